"""Records which files are in the tables, in one JSON file per batch.

Rows are first written to a folder of their own, which is not read until its batch is committed here
in one step. A folder without a committed batch is removed by the next run. So each file's rows
count once or not at all, whenever a run is interrupted.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reports.ingest.row_spans import RowSpan

FORMAT = 2
"""Version of the JSON files."""
NAME = re.compile(r"\d+-\w+")
"""Batch name: sequence number and random suffix."""


class TablesError(Exception):
    """The folder of tables cannot be used; the message gives reason and remedy."""


@dataclass(frozen=True, slots=True)
class TakenFile:
    """A file that need not be read again. `repeats` names the file or rows that it repeats, if it
    has nothing new.
    """

    name: str
    sha256: str
    size: int
    lines: int
    repeats: str | None = None


@dataclass(frozen=True, slots=True)
class IngestedBatch:
    """A committed batch: `rows` by kind, `quarantined` by reason, and the `spans` of these rows.

    `repeated_rows` were in other batches already. `source` tells where a batch without files comes
    from. A batch of open files (`is_passing`) is valid only until the next run.
    """

    name: str
    files: tuple[TakenFile, ...]
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    is_passing: bool = False
    spans: tuple[RowSpan, ...] = ()
    repeated_rows: int = 0
    source: str | None = None


class Tables:
    """The folder of tables: rows in `batch=NAME`, the description of each batch in
    `taken/NAME.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder / "taken"
        self.copies = folder / "copies"
        """Copies of open files while they are read."""

    def batches(self) -> list[IngestedBatch]:
        """Committed batches, in order."""
        if not self._notes.is_dir():
            return []
        return [_read(path) for path in sorted(self._notes.glob("*.json"))]

    @contextmanager
    def locked(self, *, waits: bool = False) -> Iterator[None]:
        """Lock for writers, and for readers of rows that the next writer may remove.

        If another process holds the lock, wait (`waits`) or raise TablesError. The lock is released
        when its process ends.
        """
        self._notes.mkdir(parents=True, exist_ok=True)
        with (self._notes / ".lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                raise TablesError(
                    f"another process is using {self.folder}: wait until it has finished"
                ) from None
            self._remove_temporary()
            self._remove_unfinished()
            self._check_files()
            try:
                yield
            finally:
                self._remove_unfinished()

    def new_batch_name(self) -> str:
        """Return a unique name.

        Spark may continue to write for a moment after a run was killed; a unique name keeps that
        out of committed batches.
        """
        number = 1 + max((int(batch.name.partition("-")[0]) for batch in self.batches()), default=0)
        return f"{number:08d}-{secrets.token_hex(6)}"

    def rows_of(self, batch: str) -> Path:
        return self.folder / f"batch={batch}"

    def remove_rows(self, batch: str) -> None:
        """Remove the rows of an uncommitted batch."""
        shutil.rmtree(self.rows_of(batch), ignore_errors=True)

    def _remove_temporary(self) -> None:
        """Remove batches that are valid until the next run only."""
        for batch in self.batches():
            if batch.is_passing:
                (self._notes / f"{batch.name}.json").unlink()

    def _remove_unfinished(self) -> None:
        """Remove files of interrupted runs."""
        noted = {batch.name for batch in self.batches()}
        for path in self.folder.glob("batch=*"):
            if path.name.removeprefix("batch=") not in noted:
                self.remove_rows(path.name.removeprefix("batch="))
        for path in self._notes.glob(".*.new"):
            path.unlink()
        shutil.rmtree(self.copies, ignore_errors=True)

    def _check_files(self) -> None:
        """Check that the files of all batches exist.

        Spark reads whatever it finds; with a lost file an application could seem to be ready.
        """
        for path in sorted(self._notes.glob("*.json")):
            folder = self.rows_of(path.stem)
            wanted = _content(path).get("lies")
            if wanted is not None and wanted != (found := _file_totals(folder)):
                raise TablesError(
                    f"{folder} has {found['files']} files of {found['bytes']} bytes instead of "
                    f"{wanted['files']} of {wanted['bytes']}: restore it, or remove {path} "
                    "to read its rows again from the remaining logs"
                )

    def commit(self, batch: IngestedBatch) -> None:
        """Commit a batch durably; its rows count from then on."""
        for path in [*self.rows_of(batch.name).rglob("*"), self.rows_of(batch.name), self.folder]:
            _sync(path)
        new = self._notes / f".{batch.name}.new"
        content = {
            "format": FORMAT,
            "lies": _file_totals(self.rows_of(batch.name)),
            **asdict(batch),
        }
        new.write_text(json.dumps(content, ensure_ascii=True), "utf-8")
        _sync(new)
        try:
            os.link(new, self._notes / f"{batch.name}.json")
        except FileExistsError:
            raise TablesError(
                f"{self.folder} has a batch {batch.name} already; run it again"
            ) from None
        finally:
            new.unlink()
        _sync(self._notes)


def _sync(path: Path) -> None:
    if not path.exists():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_totals(folder: Path) -> dict[str, int]:
    """Number and size of the files that Spark would read; hidden files are ignored."""
    sizes = [
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not _is_hidden(path.relative_to(folder))
    ]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _read(path: Path) -> IngestedBatch:
    note = _content(path)
    note.pop("lies", None)
    try:
        files, spans = note.pop("files"), note.pop("spans")
        return IngestedBatch(
            **note,
            files=tuple(TakenFile(**row) for row in files),
            spans=tuple(RowSpan(**row) for row in spans),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def _content(path: Path) -> dict[str, Any]:
    try:
        note: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if note["format"] != FORMAT:
            raise TablesError(
                f"{path} was written by another version of kopgate (format "
                f"{note['format']}, this one has {FORMAT}): use that version, "
                "or another folder, whose tables are created from the remaining logs"
            )
        del note["format"]
        if note["name"] != path.stem or not NAME.fullmatch(path.stem):
            raise TablesError(
                f"{path} does not describe a batch of that name: if it is a copy or a "
                "stray file, remove it"
            )
        return note
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> TablesError:
    return TablesError(
        f"{path} cannot be read ({error}): delete its folder to create the tables again "
        "from the remaining logs"
    )
