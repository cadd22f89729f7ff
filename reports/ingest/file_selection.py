"""Selects the files to ingest: each content once, whatever its file name, and no damaged files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reports.ingest.file_check import ExaminedFile
from reports.ingest.log_files import LogFile
from reports.ingest.row_spans import RowSpans
from reports.ingest.taken_files import IngestedBatch, TakenFile


@dataclass(frozen=True, slots=True)
class FileSelection:
    """Files by what to do with them.

    Files in `take` contain no known rows, judged by their first and last line. For files in
    `compare` each row is looked up. `repeats` contain nothing new. `damaged` files (name and
    reason) are checked again by the next run.
    """

    take: list[LogFile]
    compare: list[LogFile]
    repeats: list[TakenFile]
    damaged: list[tuple[str, str]]


class IngestedContent:
    """The content of the tables."""

    def __init__(self, batches: Iterable[IngestedBatch]) -> None:
        self.names: set[str] = set()
        self.rows = RowSpans()
        self._by_hash: dict[str, str] = {}
        for batch in batches:
            self.add(batch)

    def add(self, batch: IngestedBatch) -> None:
        for span in batch.spans:
            self.rows.add(span)
        for file in batch.files:
            self.names.add(file.name)
            if file.repeats is None and file.size:
                self._by_hash[file.sha256] = file.name

    def find_same(self, seen: ExaminedFile) -> str | None:
        """Describe the existing file or rows with this content; None if there may be something
        new.
        """
        if not seen.size:
            return None
        if seen.sha256 in self._by_hash:
            return self._by_hash[seen.sha256]
        # More lines than the span allows (plus an incomplete one) mean a file joined from several.
        if (
            seen.span
            and self.rows.covers(seen.span)
            and seen.lines <= seen.span.last - seen.span.first + 2
        ):
            return f"rows {seen.span.first} to {seen.span.last} of {seen.span.process}"
        return None


def select_files(
    files: Sequence[LogFile], examined: Mapping[str, ExaminedFile], known: IngestedContent
) -> FileSelection:
    """Select files. Of files with common rows the largest is taken; the others are compared with
    it.
    """
    choice = FileSelection([], [], [], [])
    here, hashes = RowSpans(), dict[str, str]()
    for file in sorted(files, key=lambda file: (-_rows(examined[file.name]), file.name)):
        seen = examined[file.name]
        if seen.damage:
            choice.damaged.append((file.name, seen.damage))
        elif repeated := known.find_same(seen) or (hashes.get(seen.sha256) if seen.size else None):
            choice.repeats.append(as_taken_file(file, seen, repeated))
        else:
            hashes[seen.sha256] = file.name
            _assign(choice, file, seen, known, here)
    return choice


def _assign(
    choice: FileSelection, file: LogFile, seen: ExaminedFile, known: IngestedContent, here: RowSpans
) -> None:
    if not seen.lines:
        choice.take.append(file)
    elif seen.span is None or known.rows.overlaps(seen.span) or here.overlaps(seen.span):
        choice.compare.append(file)
    else:
        here.add(seen.span)
        choice.take.append(file)


def as_taken_file(file: LogFile, seen: ExaminedFile, repeats: str | None = None) -> TakenFile:
    return TakenFile(file.name, seen.sha256, seen.size, seen.lines, repeats)


def _rows(seen: ExaminedFile) -> int:
    return seen.span.last - seen.span.first if seen.span else 0
