"""Which files are to be taken: each content once, whatever name it goes by, and nothing of a file that is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reports.ingest.file_check import Examined
from reports.ingest.log_files import LogFile
from reports.ingest.row_spans import Rows
from reports.ingest.taken_files import Batch, TakenFile


@dataclass(frozen=True, slots=True)
class Choice:
    """`take` has files of which no row can be known, as far as their first and last line say; of those in `compare` each row is to be looked up.
    `repeats` need no look any more; `damaged` (name and reason) are looked at again by the next run.
    """

    take: list[LogFile]
    compare: list[LogFile]
    repeats: list[TakenFile]
    damaged: list[tuple[str, str]]


class Known:
    """What is in the tables."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.names: set[str] = set()
        self.rows = Rows()
        self._by_hash: dict[str, str] = {}
        for batch in batches:
            self.add(batch)

    def add(self, batch: Batch) -> None:
        for span in batch.spans:
            self.rows.add(span)
        for file in batch.files:
            self.names.add(file.name)
            if file.repeats is None and file.size:
                self._by_hash[file.sha256] = file.name

    def same_as(self, seen: Examined) -> str | None:
        """The file that has this content already, or the rows that it can have at most."""
        if not seen.size:
            return None
        if seen.sha256 in self._by_hash:
            return self._by_hash[seen.sha256]
        # One that has more lines than its first and last row leave room for (and half a line) is joined of several.
        if (
            seen.span
            and self.rows.has(seen.span)
            and seen.lines <= seen.span.last - seen.span.first + 2
        ):
            return f"rows {seen.span.first} to {seen.span.last} of {seen.span.process}"
        return None


def choose(files: Sequence[LogFile], examined: Mapping[str, Examined], known: Known) -> Choice:
    """Of files that have rows in common the largest is taken, and the others are compared with it."""
    choice = Choice([], [], [], [])
    here, hashes = Rows(), dict[str, str]()
    for file in sorted(files, key=lambda file: (-_rows(examined[file.name]), file.name)):
        seen = examined[file.name]
        if seen.damage:
            choice.damaged.append((file.name, seen.damage))
        elif repeated := known.same_as(seen) or (hashes.get(seen.sha256) if seen.size else None):
            choice.repeats.append(noted(file, seen, repeated))
        else:
            hashes[seen.sha256] = file.name
            _put(choice, file, seen, known, here)
    return choice


def _put(choice: Choice, file: LogFile, seen: Examined, known: Known, here: Rows) -> None:
    if not seen.lines:
        choice.take.append(file)
    elif seen.span is None or known.rows.touches(seen.span) or here.touches(seen.span):
        choice.compare.append(file)
    else:
        here.add(seen.span)
        choice.take.append(file)


def noted(file: LogFile, seen: Examined, repeats: str | None = None) -> TakenFile:
    return TakenFile(file.name, seen.sha256, seen.size, seen.lines, repeats)


def _rows(seen: Examined) -> int:
    return seen.span.last - seen.span.first if seen.span else 0
