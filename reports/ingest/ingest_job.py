"""Ingests new log files into the tables, each row exactly once.

A file is ingested completely or not at all. Spark writes a batch's rows to a separate folder;
they count once the batch is committed (`reports.ingest.taken_files`). Before that, the written rows
are counted and compared with the files and with the known rows (`reports.ingest.batch_writer`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reports.ingest import batch_writer, file_check, log_files
from reports.ingest.file_check import ExaminedFile
from reports.ingest.file_selection import (
    FileSelection,
    IngestedContent,
    as_taken_file,
    select_files,
)
from reports.ingest.log_files import LogFile, UnreadableError
from reports.ingest.row_parser import EARLIEST, reasons_of_known_versions, to_rows
from reports.ingest.row_spans import RowSpan, RowSpans
from reports.ingest.schema import CONNECTION, QUARANTINE, STORED, USAGE
from reports.ingest.small_tables import empty_table
from reports.ingest.spark_errors import is_spark_error, translate_errors
from reports.ingest.taken_files import IngestedBatch, Tables, TablesError, TakenFile

BATCH_BYTES = 8 << 30
"""Size on disk of the files in a batch: the work that is repeated after an interruption, some
minutes.
"""
BATCH_FILES = 2_000
"""Keeps the batch's JSON file small enough to read."""
MAX_ATTEMPTS = 1_000
"""Limit for repeating the search for new files within a run."""

FilesProgress = Callable[[int, int], None]
"""Called with the number of files done and in total."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of a run.

    `repeated_rows` were in the tables already. `damaged` has the names and reasons of
    files that were not ingested.
    """

    files: int = 0
    repeated: int = 0
    known: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    repeated_rows: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)

    def __add__(self, other: IngestResult) -> IngestResult:
        return IngestResult(
            self.files + other.files,
            self.repeated + other.repeated,
            self.known + other.known,
            batch_writer.sum_counts(self.rows, other.rows),
            batch_writer.sum_counts(self.quarantined, other.quarantined),
            self.repeated_rows + other.repeated_rows,
            self.damaged + other.damaged,
        )


def ingest(
    spark: SparkSession,
    logs: Path,
    tables: Tables,
    now: datetime,
    say: FilesProgress = lambda done, of: None,
) -> IngestResult:
    """Ingest what is new in `logs`.

    Raises TablesError if it cannot continue. What was ingested until then stays; the next run
    continues.
    """
    with translate_errors(tables.folder), tables.locked():
        return ingest_new(spark, logs, tables, now, say)


def ingest_new(
    spark: SparkSession, logs: Path, tables: Tables, now: datetime, say: FilesProgress
) -> IngestResult:
    """Like `ingest`, for a caller that holds the tables' lock.

    Finished files first, repeatedly, since gateways finish files in the meantime; then open files.
    """
    if not logs.is_dir():
        raise TablesError(f"{logs} is not a folder")
    today = now.astimezone(UTC).date()
    if today < EARLIEST:
        raise TablesError(
            f"the clock of this machine says {today}: set it, or every row is dated in the future"
        )
    ingester = Ingester(spark, tables, now)
    total = IngestResult(
        known=sum(file.name in ingester.known.names for file in log_files.find(logs))
    )
    seen: set[str] = set()
    for _ in range(MAX_ATTEMPTS):
        sound, strange = log_files.check_names(log_files.find(logs), today + timedelta(days=1))
        new = [file for file in sound if file.name not in ingester.known.names | seen]
        finished = [file for file in new if file.is_finished]
        try:
            copies, unreadable = ([], []) if finished else _copy_open_files(new, tables.copies)
            for group in _groups(finished or copies):
                total += ingester.ingest_files(group, is_passing=not finished)
                seen.update(file.name for file in group)
                say(len(seen), len(seen | {file.name for file in new}))
        except FileNotFoundError:
            # Finished and compressed, or deleted by retention, since it was found.
            continue
        if not finished:
            return total + IngestResult(damaged=[*strange, *unreadable])
    raise TablesError(f"files in {logs} keep disappearing while they are read")


def stored(
    spark: SparkSession, tables: Tables, kind: str, batches: Iterable[IngestedBatch] | None = None
) -> DataFrame:
    """The rows of a kind in all batches or in `batches`, with the partition column `date`."""
    names = [batch.name for batch in (tables.batches() if batches is None else batches)]
    paths = [path for name in names if (path := tables.rows_of(name) / f"kind={kind}").is_dir()]
    if not paths:
        return empty_table(spark, STORED)
    return (
        spark.read.schema(STORED)
        .option("basePath", str(tables.folder))
        .parquet(*map(batch_writer.escape_path, paths))
    )


class Ingester:
    """Ingests files, or lines from other sources, batch by batch."""

    def __init__(self, spark: SparkSession, tables: Tables, now: datetime) -> None:
        self._spark = spark
        self._tables = tables
        self._now = now
        self.batches = tables.batches()
        self.known = IngestedContent(self.batches)

    def ingest_files(self, group: Sequence[LogFile], is_passing: bool) -> IngestResult:
        """Raises FileNotFoundError if one of the files has disappeared."""
        examined = _examine_all(group)
        if any(examined[file.name].damage and not file.path.exists() for file in group):
            raise FileNotFoundError
        choice = select_files(group, examined, self.known)
        try:
            plain, unverified = self._ingest_distinct(choice, examined, is_passing)
            later = select_files([*choice.compare, *unverified], examined, self.known)
            compared = self._ingest_compared(later, examined, is_passing)
        except Exception as error:
            if (isinstance(error, TablesError) or is_spark_error(error)) and not all(
                file.path.exists() for file in group
            ):
                raise FileNotFoundError from error
            raise
        return IngestResult(damaged=choice.damaged) + plain + compared

    def _ingest_distinct(
        self, choice: FileSelection, examined: Mapping[str, ExaminedFile], is_passing: bool
    ) -> tuple[IngestResult, list[LogFile]]:
        """Ingest files without rows of other files; return those that turned out to have some."""
        files = choice.take
        unverified: list[LogFile] = []
        while True:
            name = self._tables.new_batch_name()
            spans: list[RowSpan] = []
            found = batch_writer.WrittenRows({}, {}, {})
            if any(examined[file.name].lines for file in files):
                folder = self._tables.rows_of(name)
                batch_writer.write(self._rows_of(files), folder)
                found = batch_writer.read_back(self._spark, folder)
                _check_line_count(found.lines, sum(examined[file.name].lines for file in files))
                spans, odd = batch_writer.verify_files(self._spark, folder, files, examined, found)
                if odd:
                    self._tables.remove_rows(name)
                    unverified += odd
                    files = [file for file in files if file not in odd]
                    continue
            notes = [*(as_taken_file(file, examined[file.name]) for file in files), *choice.repeats]
            batch = IngestedBatch(
                name, tuple(notes), found.rows, found.quarantined, is_passing, tuple(spans)
            )
            return self._commit(batch), unverified

    def _ingest_compared(
        self, choice: FileSelection, examined: Mapping[str, ExaminedFile], is_passing: bool
    ) -> IngestResult:
        """Ingest files whose rows are looked up one by one."""
        files = [*choice.take, *choice.compare]
        notes = (*(as_taken_file(file, examined[file.name]) for file in files), *choice.repeats)
        if not files:
            return self._commit(
                IngestedBatch(self._tables.new_batch_name(), notes, is_passing=is_passing)
            )
        return self.compare(
            self._rows_of(files),
            sum(examined[file.name].lines for file in files),
            notes,
            is_passing,
        )

    def compare(
        self,
        rows: DataFrame,
        lines: int | None = None,
        files: tuple[TakenFile, ...] = (),
        is_passing: bool = False,
        source: str | None = None,
    ) -> IngestResult:
        """Ingest those `rows` (from `to_rows`, `lines` in number) that are not in the tables."""
        name = self._tables.new_batch_name()
        # Written first, so that lines are read and parsed once for several queries.
        everything, folder = self._tables.rows_of(f"{name}-all"), self._tables.rows_of(name)
        batch_writer.write(rows, everything)
        read_rows = batch_writer.read_back(self._spark, everything)
        if lines is not None:
            _check_line_count(read_rows.lines, lines)
        there, spans = batch_writer.limit_processes(
            batch_writer.read_rows(self._spark, everything), self._now
        )
        batch_writer.write(batch_writer.new_rows(there, self._stored(spans)), folder)
        self._tables.remove_rows(f"{name}-all")
        found = batch_writer.read_back(self._spark, folder)
        repeated = read_rows.lines - found.lines
        new = (
            batch_writer.spans_of(batch_writer.read_rows(self._spark, folder)) if found.rows else []
        )
        return self._commit(
            IngestedBatch(
                name, files, found.rows, found.quarantined, is_passing, tuple(new), repeated, source
            )
        )

    def _stored(self, spans: Sequence[RowSpan]) -> DataFrame | None:
        """The rows of the batches that may contain rows of `spans`."""
        wanted = RowSpans(spans)
        batches = [batch for batch in self.batches if any(map(wanted.overlaps, batch.spans))]
        if not batches:
            return None
        return stored(self._spark, self._tables, USAGE, batches).unionByName(
            stored(self._spark, self._tables, CONNECTION, batches)
        )

    def _rows_of(self, files: Sequence[LogFile]) -> DataFrame:
        lines = self._spark.read.option("lineSep", "\n").text(
            [batch_writer.escape_path(file.path) for file in files]
        )
        return to_rows(lines.select("value", F.col("_metadata.file_path").alias("path")), self._now)

    def _commit(self, batch: IngestedBatch) -> IngestResult:
        """A batch without files and source is not committed."""
        if batch.files or batch.source:
            self._tables.commit(batch)
            self.batches.append(batch)
            self.known.add(batch)
        repeated = sum(file.repeats is not None for file in batch.files)
        return IngestResult(
            len(batch.files) - repeated,
            repeated,
            0,
            batch.rows,
            batch.quarantined,
            batch.repeated_rows,
        )


def _check_line_count(lines: int, wanted: int) -> None:
    if lines != wanted:
        raise TablesError(
            f"read {lines} of {wanted} lines: a file changed while it was read; run it again"
        )


def retry_quarantined(spark: SparkSession, tables: Tables, now: datetime) -> IngestResult:
    """Ingest quarantined lines whose schema version has become known with an upgrade.

    They are compared with the existing rows and committed as one batch, like lines of the topic.
    Its `source` names the last batch whose quarantine was searched, so that each line counts once
    even if a run is interrupted. The quarantine is not changed. A row counts on the day of its
    `at`, since the hour of its file is not known. Requires the tables' lock.
    """
    ingester = Ingester(spark, tables, now)
    total = IngestResult()
    for reason in reasons_of_known_versions():
        left = _unchecked_batches(ingester.batches, reason)
        if left:
            lines = stored(spark, tables, QUARANTINE, left).filter(F.col("problem") == reason)
            rows = to_rows(
                lines.select(F.col("line").alias("value"), F.col("file").alias("path")), now
            )
            total += ingester.compare(rows, source=f"{reason} until {left[-1].name}")
    return total


def _copy_open_files(
    new: Sequence[LogFile], folder: Path
) -> tuple[list[LogFile], list[tuple[str, str]]]:
    copies: list[LogFile] = []
    unreadable: list[tuple[str, str]] = []
    for file in new:
        try:
            copies.append(log_files.copy_complete_lines(file, folder))
        except UnreadableError as error:
            unreadable.append((file.name, str(error)))
    return copies, unreadable


def _examine_all(group: Sequence[LogFile]) -> dict[str, ExaminedFile]:
    # Decompression and hashing release the GIL.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(
            zip(
                (file.name for file in group),
                pool.map(lambda file: file_check.examine(file.path), group),
                strict=True,
            )
        )


def _groups(found: Iterable[LogFile]) -> list[list[LogFile]]:
    """Raises FileNotFoundError if a file has disappeared."""
    groups: list[list[LogFile]] = []
    size = 0
    for file in found:
        length = file.path.stat().st_size
        if not groups or size + length > BATCH_BYTES or len(groups[-1]) >= BATCH_FILES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += length
    return groups


def _unchecked_batches(batches: list[IngestedBatch], reason: str) -> list[IngestedBatch]:
    """Batches with such lines that were not searched yet. Batch names start with their number."""
    before = f"{reason} until "
    until = max(
        (
            batch.source.removeprefix(before)
            for batch in batches
            if batch.source and batch.source.startswith(before)
        ),
        default="",
    )
    return [batch for batch in batches if reason in batch.quarantined and batch.name > until]
