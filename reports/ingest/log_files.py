"""Finds the files of a traffic log and tells which of them are finished."""

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
"""Node id, start time of the process, number."""
DAY = re.compile(r"date=(\d{4}-\d\d-\d\d)/")


MAX_COPIED_BYTES = 4 << 30
"""Size limit of an open file: gateways rotate files long before, and a copy needs as much space."""


class UnreadableError(Exception):
    """A file cannot be ingested; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """`name` is the path within the log folder without `.gz`, so that it stays the same after
    compression.
    """

    path: Path
    name: str
    is_finished: bool


def find(logs: Path) -> list[LogFile]:
    """Find all files of the log, by name. Hidden files (starting with `.` or `_`) are ignored, as
    by Spark.

    If a file exists both compressed and uncompressed, the compressed one counts. Files deleted in
    the meantime are skipped. Raises OSError if a folder cannot be listed.
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
    """Return the files that can be ingested, and names and reasons of the others.

    `until` is the last day that a gateway's clock may show.
    """
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
        return "Spark cannot read a file whose name is not UTF-8: rename it"
    if ":" in file.path.name:
        return "Spark cannot read a file with a colon in its name: rename it"
    day = DAY.search(file.name)
    # Dates in this form sort as text. The file is not quarantined, which is permanent: the clock
    # here may be the wrong one.
    return (
        "dated in the future: the clock of the gateway or of this machine is wrong"
        if day and day[1] > f"{until}"
        else None
    )


def copy_complete_lines(file: LogFile, folder: Path) -> LogFile:
    """Copy the complete lines of an open file below `folder`, so that it does not change while it
    is read.

    Raises FileNotFoundError if it was finished and compressed in the meantime, UnreadableError if
    it cannot be read.
    """
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as copy:
        for piece in _chunks(file.path):
            copy.write(piece)
            if copy.tell() > MAX_COPIED_BYTES:
                path.unlink()
                raise UnreadableError(f"larger than {MAX_COPIED_BYTES} bytes")
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
        raise UnreadableError(f"cannot be read: {error.strerror}") from error


def _process_and_number(name: str) -> tuple[str, int] | None:
    """The process that writes the file and the file's number; None if the name is not a
    gateway's.
    """
    match = NAME.fullmatch(name.rsplit("/", 1)[-1].removesuffix(PLAIN))
    return None if match is None else (f"{match['node']}-{match['start']}", int(match["number"]))


def _last_of_each_process(names: Iterable[str]) -> dict[str, int]:
    last: dict[str, int] = {}
    for process, number in filter(None, map(_process_and_number, names)):
        last[process] = max(number, last.get(process, number))
    return last


def _has_successor(name: str, last: dict[str, int]) -> bool:
    """Whether the file's process has started another file.

    A newer process of the same node proves nothing: start times come from a clock that may be set
    back, and a process that is shutting down still writes.
    """
    place = _process_and_number(name)
    return place is not None and place[1] < last[place[0]]
