"""Rows into the folder of a batch, and what lies there then. That no row is there twice is shown by what was written, not by what was to be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reports.analysis.literals import table_of
from reports.ingest.file_check import Examined
from reports.ingest.log_files import LogFile
from reports.ingest.row_parser import as_lines, process
from reports.ingest.row_spans import Span
from reports.ingest.schema import QUARANTINE, STORED

MOST_PROCESSES = 10_000
"""Gateways' processes in one batch that is compared, each some hundred bytes in its note: a gateway that starts every ten seconds has as many in a day."""
TOO_MANY_PROCESSES = f"of more than {MOST_PROCESSES} processes at once"


@dataclass(slots=True)
class InFile:
    """The rows of one file, as they are in the table. `total` is the sum of their numbers."""

    processes: set[str] = field(default_factory=set)
    first: int = 1 << 62
    last: int = -1
    rows: int = 0
    total: int = 0

    def is_within(self, span: Span | None) -> bool:
        return (
            span is not None
            and self.processes == {span.process}
            and span.first <= self.first
            and self.last <= span.last
        )

    def span(self) -> Span:
        (process,) = self.processes
        return Span(process, self.first, self.last, self.is_gapless)

    @property
    def is_gapless(self) -> bool:
        """Each number from the first to the last is there once: so many rows with that sum are no others, but by intent."""
        return (
            self.rows == self.last - self.first + 1
            and 2 * self.total == (self.first + self.last) * self.rows
        )


@dataclass(frozen=True, slots=True)
class Found:
    """`rows` by kind, `quarantined` by reason, `files` by the last part of their names."""

    rows: dict[str, int]
    quarantined: dict[str, int]
    files: dict[str, InFile]

    @property
    def lines(self) -> int:
        return sum(self.rows.values()) + sum(self.quarantined.values())


def write(rows: DataFrame, folder: Path) -> None:
    # As SQL: the hint of DataFrames takes no columns from Python before Spark 4.
    rebalanced = rows.sparkSession.sql(
        "SELECT /*+ REBALANCE(kind, date) */ * FROM {rows}", rows=rows
    )
    rebalanced.write.mode("overwrite").partitionBy("kind", "date").parquet(str(folder))


def found(spark: SparkSession, folder: Path) -> Found:
    """From what lies there."""
    which = process("connection")
    numbers = [
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.sum("sequence").alias("total"),
    ]
    ends = [F.min(which).alias("low"), F.max(which).alias("high")]
    rows: Counter[str] = Counter()
    quarantined: Counter[str] = Counter()
    files: dict[str, InFile] = defaultdict(InFile)
    for row in (
        read(spark, folder)
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
    return Found(dict(rows), dict(quarantined), dict(files))


def proven(
    spark: SparkSession,
    folder: Path,
    files: Sequence[LogFile],
    examined: Mapping[str, Examined],
    seen: Found,
) -> tuple[list[Span], list[LogFile]]:
    """Which rows are there, and the files of which it is not shown that theirs are there once: those whose lines between the first and the last are not
    as those two say.
    """
    named = Counter(file.path.name for file in files)
    # Spark may write a name in another way than the disk does.
    are_all_known = seen.files.keys() <= named.keys()
    spans: list[Span] = []
    doubtful: list[LogFile] = []
    with_gaps: dict[str, tuple[LogFile, InFile]] = {}
    for file in files:
        rows, span = seen.files.get(file.path.name, InFile()), examined[file.name].span
        is_known = are_all_known and named[file.path.name] == 1
        if is_known and not rows.rows:
            continue
        if not is_known or not rows.is_within(span):
            doubtful.append(file)
        elif rows.is_gapless:
            spans.append(rows.span())
        else:
            with_gaps[file.path.name] = file, rows
    once = _rows_that_are_there_once(spark, folder, with_gaps)
    for name, (file, rows) in with_gaps.items():
        if name in once:
            spans.append(rows.span())
        else:
            doubtful.append(file)
    return spans, doubtful


def _rows_that_are_there_once(
    spark: SparkSession, folder: Path, names: Collection[str]
) -> set[str]:
    """Of these files those that have each of their rows once."""
    if not names:
        return set()
    rows = (
        read(spark, folder).filter(F.col("kind") != QUARANTINE).filter(F.col("file").isin(*names))
    )
    counted = rows.groupBy("file").agg(
        F.count("*").alias("rows"), F.count_distinct("sequence").alias("numbers")
    )
    return {row["file"] for row in counted.filter("rows = numbers").collect()}


def new_rows(rows: DataFrame, there: DataFrame | None) -> DataFrame:
    """Of `rows` (those of the log, and lines for the quarantine) each row of the log once, and none that is `there`."""
    good = (
        rows.filter("problem is null")
        .withColumn("process", process("connection"))
        .dropDuplicates(["process", "sequence"])
    )
    if there is not None:
        known = there.select(process("connection").alias("process"), "sequence")
        good = good.join(known, ["process", "sequence"], "left_anti")
    return good.select(*rows.columns).unionByName(rows.filter("problem is not null"))


def bounded(rows: DataFrame, now: datetime) -> tuple[DataFrame, list[Span]]:
    """`rows` and their spans. Of too many processes those with the most rows are left; the rows of the others become lines for the quarantine."""
    spans = spans_of(rows, MOST_PROCESSES + 1)
    if len(spans) <= MOST_PROCESSES:
        return rows, spans
    del spans[MOST_PROCESSES:]
    names = table_of(rows.sparkSession, [[span.process] for span in spans], "process string")
    good = rows.filter("problem is null").withColumn("process", process("connection"))
    kept, others = (
        good.join(names, "process", how).select(*rows.columns) for how in ("left_semi", "left_anti")
    )
    return kept.unionByName(as_lines(others, TOO_MANY_PROCESSES, now)).unionByName(
        rows.filter("problem is not null")
    ), spans


def spans_of(rows: DataFrame, most: int = MOST_PROCESSES) -> list[Span]:
    """Of the `most` processes with the most rows."""
    good = rows.filter(F.col("sequence").isNotNull()).groupBy(
        process("connection").alias("process")
    )
    found = (
        good.agg(F.min("sequence"), F.max("sequence"), F.count("*").alias("rows"))
        .orderBy(F.desc("rows"), "process")
        .limit(most)
        .collect()
    )
    return [
        Span(name, first, last, count == last - first + 1) for name, first, last, count in found
    ]


def read(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema(STORED).option("basePath", str(folder)).parquet(literally(folder))


def literally(path: Path) -> str:
    """Spark takes a path for a pattern."""
    return "".join(
        f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in str(path.absolute())
    )


def joined(*counts: Mapping[str, int]) -> dict[str, int]:
    """Their sums."""
    return dict(sorted(sum(map(Counter, counts), Counter[str]()).items()))
