"""The files of a traffic log: which there are, and which of them are finished."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

COMPRESSED = ".jsonl.gz"
PLAIN = ".jsonl"
NAME = re.compile(r"(?P<node>\d+)-(?P<start>[0-9a-z]+)-(?P<number>\d+)")
"""A node's id, its process's start, a number."""
DAY = re.compile(r"date=(\d{4}-\d\d-\d\d)/")


MAX_COPIED_BYTES = 4 << 30
"""Bytes of a file that is written to: gateways go on to another one long before, and a copy needs as much room."""


class UnreadableError(Exception):
    """A file that is there and cannot be taken; the message says why."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """`name` is the path below the folder of logs without `.gz`: it stays the same when the file is compressed."""

    path: Path
    name: str
    is_finished: bool


def find(logs: Path) -> list[LogFile]:
    """Every file of the log, by name. What is hidden (a name with `.` or `_` before it) is none: Spark does not see it either.

    Where a file is there compressed and not, the compressed one counts. What a gateway deletes meanwhile is not there. Raises OSError where the folder,
    or one in it, cannot be listed.
    """
    found: dict[str, Path] = {}

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or error.filename == str(logs):
            raise error

    for folder, folders, names in os.walk(logs, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in names:
            if name.endswith((PLAIN, COMPRESSED)) and not name.startswith((".", "_")):
                path = Path(folder, name)
                key = path.relative_to(logs).as_posix().removesuffix(".gz")
                if path.is_file() and (key not in found or name.endswith(COMPRESSED)):
                    found[key] = path
    last = _last_of_each_process(found)
    return [
        LogFile(path, name, path.name.endswith(COMPRESSED) or _has_successor(name, last))
        for name, path in sorted(found.items())
    ]


def check_names(
    found: Iterable[LogFile], until: date
) -> tuple[list[LogFile], list[tuple[str, str]]]:
    """Those that can be taken, and of the others names and reasons. `until` is the last day that a gateway's clock may say."""
    good: list[LogFile] = []
    strange: list[tuple[str, str]] = []
    for file in found:
        reason = _name_problem(file, until)
        if reason is None:
            good.append(file)
        else:
            strange.append((os.fsencode(file.name).decode("utf-8", "backslashreplace"), reason))
    return good, strange


def _name_problem(file: LogFile, until: date) -> str | None:
    try:
        file.name.encode("utf-8")
    except UnicodeEncodeError:
        return "Spark reads no file whose name is no UTF-8; rename it"
    if ":" in file.path.name:
        return "Spark reads no file with a colon in its name; rename it"
    day = DAY.search(file.name)
    # Text of this form stands in the order of days. In quarantine it would stay for ever, where it was the clock here that was wrong.
    return (
        "it is of a day that has not come: a clock is wrong, there or here"
        if day and day[1] > f"{until}"
        else None
    )


def copy_complete_lines(file: LogFile, folder: Path) -> LogFile:
    """The file as it is now, as far as its last whole line, at the same place below `folder`: what is written meanwhile does not change it.

    Raises FileNotFoundError where it was finished and compressed in the meantime, UnreadableError where it cannot be read.
    """
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as copy:
        for piece in _chunks(file.path):
            copy.write(piece)
            if copy.tell() > MAX_COPIED_BYTES:
                path.unlink()
                raise UnreadableError(f"it has more than {MAX_COPIED_BYTES} bytes")
    if path.stat().st_size:
        with path.open("r+b") as copy:
            with mmap.mmap(copy.fileno(), 0) as content:
                end = content.rfind(b"\n") + 1
            copy.truncate(end)
    return LogFile(path, file.name, file.is_finished)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {error.strerror}") from error


def _process_and_number(name: str) -> tuple[str, int] | None:
    """The process that writes it, and its number there; None for a file that a gateway did not name."""
    match = NAME.fullmatch(name.rsplit("/", 1)[-1].removesuffix(PLAIN))
    return None if match is None else (f"{match['node']}-{match['start']}", int(match["number"]))


def _last_of_each_process(names: Iterable[str]) -> dict[str, int]:
    last: dict[str, int] = {}
    for process, number in filter(None, map(_process_and_number, names)):
        last[process] = max(number, last.get(process, number))
    return last


def _has_successor(name: str, last: dict[str, int]) -> bool:
    """Whether its process has gone on to another file. That another process of the same node has begun one says nothing: the starts in their names are
    of a clock, which may have been set back, and one that is on its way out still writes.
    """
    place = _process_and_number(name)
    return place is not None and place[1] < last[place[0]]
