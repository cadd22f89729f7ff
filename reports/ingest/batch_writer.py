"""Writes the rows of a batch and reads back what was written, to verify that no row is there
twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reports.ingest.file_check import ExaminedFile
from reports.ingest.log_files import LogFile
from reports.ingest.row_parser import process_of, to_quarantine_lines
from reports.ingest.row_spans import RowSpan
from reports.ingest.schema import QUARANTINE, STORED
from reports.ingest.small_tables import small_table

MAX_PROCESSES = 10_000
"""Gateway processes per compared batch, each about a hundred bytes in its file.

A gateway that restarts every ten seconds reaches this in a day.
"""
TOO_MANY_PROCESSES = f"from more than {MAX_PROCESSES} processes at once"


@dataclass(slots=True)
class FileRows:
    """The rows of one file, as found in the table. `total` is the sum of their sequence numbers."""

    processes: set[str] = field(default_factory=set)
    first: int = 1 << 62
    last: int = -1
    rows: int = 0
    total: int = 0

    def is_within(self, span: RowSpan | None) -> bool:
        return (
            span is not None
            and self.processes == {span.process}
            and span.first <= self.first
            and self.last <= span.last
        )

    def span(self) -> RowSpan:
        (process,) = self.processes
        return RowSpan(process, self.first, self.last, self.is_gapless)

    @property
    def is_gapless(self) -> bool:
        """Whether each number from first to last is there once, judged by count and sum.

        Only deliberately constructed rows could have the same count and sum.
        """
        return (
            self.rows == self.last - self.first + 1
            and 2 * self.total == (self.first + self.last) * self.rows
        )


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """`rows` by kind, `quarantined` by reason, `files` by file name without folder."""

    rows: dict[str, int]
    quarantined: dict[str, int]
    files: dict[str, FileRows]

    @property
    def lines(self) -> int:
        return sum(self.rows.values()) + sum(self.quarantined.values())


def write(rows: DataFrame, folder: Path) -> None:
    # In SQL: before Spark 4 the DataFrame hint takes no columns from Python.
    rebalanced = rows.sparkSession.sql(
        "SELECT /*+ REBALANCE(kind, date) */ * FROM {rows}", rows=rows
    )
    rebalanced.write.mode("overwrite").partitionBy("kind", "date").parquet(str(folder))


def read_back(spark: SparkSession, folder: Path) -> WrittenRows:
    """Count the rows in `folder`."""
    which = process_of("connection")
    numbers = [
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.sum("sequence").alias("total"),
    ]
    ends = [F.min(which).alias("low"), F.max(which).alias("high")]
    rows: Counter[str] = Counter()
    quarantined: Counter[str] = Counter()
    files: dict[str, FileRows] = defaultdict(FileRows)
    for row in (
        read_rows(spark, folder)
        .groupBy("kind", "problem", "file")
        .agg(F.count("*").alias("rows"), *numbers, *ends)
        .collect()
    ):
        if row["kind"] == QUARANTINE:
            quarantined[row["problem"]] += row["rows"]
            continue
        rows[row["kind"]] += row["rows"]
        seen = files[row["file"]]
        seen.processes |= {row["low"], row["high"]}
        seen.first, seen.last = min(seen.first, row["first"]), max(seen.last, row["last"])
        seen.rows += row["rows"]
        seen.total += row["total"]
    return WrittenRows(dict(rows), dict(quarantined), dict(files))


def verify_files(
    spark: SparkSession,
    folder: Path,
    files: Sequence[LogFile],
    examined: Mapping[str, ExaminedFile],
    seen: WrittenRows,
) -> tuple[list[RowSpan], list[LogFile]]:
    """Return the spans of the rows, and the files whose rows are not verified to be there once.

    A file is not verified if the lines between its first and last do not match these two.
    """
    named = Counter(file.path.name for file in files)
    # Spark's spelling of a name may differ from that on disk.
    are_all_known = seen.files.keys() <= named.keys()
    spans: list[RowSpan] = []
    unverified: list[LogFile] = []
    with_gaps: dict[str, tuple[LogFile, FileRows]] = {}
    for file in files:
        rows, span = seen.files.get(file.path.name, FileRows()), examined[file.name].span
        is_known = are_all_known and named[file.path.name] == 1
        if is_known and not rows.rows:
            continue
        if not is_known or not rows.is_within(span):
            unverified.append(file)
        elif rows.is_gapless:
            spans.append(rows.span())
        else:
            with_gaps[file.path.name] = file, rows
    once = _files_with_distinct_rows(spark, folder, with_gaps)
    for name, (file, rows) in with_gaps.items():
        if name in once:
            spans.append(rows.span())
        else:
            unverified.append(file)
    return spans, unverified


def _files_with_distinct_rows(
    spark: SparkSession, folder: Path, names: Collection[str]
) -> set[str]:
    """Those of the files that have no row twice."""
    if not names:
        return set()
    rows = (
        read_rows(spark, folder)
        .filter(F.col("kind") != QUARANTINE)
        .filter(F.col("file").isin(*names))
    )
    counted = rows.groupBy("file").agg(
        F.count("*").alias("rows"), F.count_distinct("sequence").alias("numbers")
    )
    return {row["file"] for row in counted.filter("rows = numbers").collect()}


def new_rows(rows: DataFrame, there: DataFrame | None) -> DataFrame:
    """`rows` without duplicates and without the rows that are in `there`; quarantine lines are
    kept.
    """
    good = (
        rows.filter("problem is null")
        .withColumn("process", process_of("connection"))
        .dropDuplicates(["process", "sequence"])
    )
    if there is not None:
        known = there.select(process_of("connection").alias("process"), "sequence")
        good = good.join(known, ["process", "sequence"], "left_anti")
    return good.select(*rows.columns).unionByName(rows.filter("problem is not null"))


def limit_processes(rows: DataFrame, now: datetime) -> tuple[DataFrame, list[RowSpan]]:
    """Return `rows` and their spans, limited to the MAX_PROCESSES processes with the most rows.

    Rows of other processes become quarantine lines.
    """
    spans = spans_of(rows, MAX_PROCESSES + 1)
    if len(spans) <= MAX_PROCESSES:
        return rows, spans
    del spans[MAX_PROCESSES:]
    names = small_table(rows.sparkSession, [[span.process] for span in spans], "process string")
    good = rows.filter("problem is null").withColumn("process", process_of("connection"))
    kept, others = (
        good.join(names, "process", how).select(*rows.columns) for how in ("left_semi", "left_anti")
    )
    return kept.unionByName(to_quarantine_lines(others, TOO_MANY_PROCESSES, now)).unionByName(
        rows.filter("problem is not null")
    ), spans


def spans_of(rows: DataFrame, most: int = MAX_PROCESSES) -> list[RowSpan]:
    """Spans of the `most` processes with the most rows."""
    good = rows.filter(F.col("sequence").isNotNull()).groupBy(
        process_of("connection").alias("process")
    )
    found = (
        good.agg(F.min("sequence"), F.max("sequence"), F.count("*").alias("rows"))
        .orderBy(F.desc("rows"), "process")
        .limit(most)
        .collect()
    )
    return [
        RowSpan(name, first, last, count == last - first + 1) for name, first, last, count in found
    ]


def read_rows(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema(STORED).option("basePath", str(folder)).parquet(escape_path(folder))


def escape_path(path: Path) -> str:
    """Escape a path, since Spark interprets paths as glob patterns."""
    return "".join(
        f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in str(path.absolute())
    )


def sum_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(sum(map(Counter, counts), Counter[str]()).items()))
