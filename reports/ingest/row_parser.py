"""Parses log lines: each becomes one row, of a kind of the log or of the quarantine."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reports.ingest.schema import (
    BROKEN,
    CONNECTION,
    LINE,
    MAGICS,
    QUARANTINE,
    ROW,
    STORED,
    USAGE,
    VERSIONS,
)

MAX_ROW_BYTES = 1 << 18
"""A row has some hundred bytes; names are cut to 512 characters each."""
MAX_QUARANTINED_CHARS = 16_384
"""Characters kept of a quarantined line."""
MAX_CONNECTION_CHARS = 512
"""A connection id has about thirty; the part before the last `-` is recorded per process."""
MAX_COUNT = 1 << 50
"""Limit of counters, so that sums fit into 64 bits."""
EARLIEST = date(2020, 1, 1)
"""Earlier days come from a clock that was never set."""
MAX_BEFORE_FOLDER_HOUR, MAX_AFTER_FOLDER_HOUR = timedelta(hours=1), timedelta(hours=25)
"""Allowed distance of a row from the hour in which its file was started; files are rotated within a
day.

A larger distance means that the clock jumped. Records of the topic are written when the row is.
"""
COUNTED = (
    "requests",
    "bytes_in",
    "bytes_out",
    "records",
    "conversions",
    "converted_records",
    "converted_bytes",
    "conversion_cpu_us",
)
TIMES = ("at", "began", "opened_at", "duration_ms", "throttle_ms", "latency_us_sum")
BATCHES = tuple(f"{name}.{magic}" for name in ("magic_in", "magic_out") for magic in MAGICS)
NUMBERS = ("sequence", "api_key", "api_version", *TIMES, *COUNTED, *BATCHES)
"""Fields that must not be negative."""
UNKNOWN_VERSION = "unknown schema version"
MAX_NAMED_VERSION = 99
"""Higher versions are not real ones; naming each would create a separate reason for it."""
REQUIRED_FIELDS = {
    CONNECTION: ("at", "node", "connection", "sequence", "event"),
    USAGE: ("at", "node", "connection", "sequence", "api_key", "api_version"),
}


def to_rows(lines: DataFrame, now: datetime, written: Column | None = None) -> DataFrame:
    """Parse `lines`, with columns `value` (a line) and `path` (of its file), to the columns of
    STORED except `batch`.

    A row's date is that of its `at`. If that is far from the time `written`, the clock has jumped
    and the date is that of `written`, by default the hour in the file's path.
    """
    # The parsed line stays one column until the end: copying fifty columns between steps takes
    # longer than parsing the JSON.
    row = F.from_json(
        "value", LINE, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN}
    ).alias("row")
    written = _folder_hour() if written is None else written
    read = lines.select(
        "value", row, F.substring_index("path", "/", -1).alias("file"), written.alias("written")
    )
    read = read.withColumn("clock_jumped", F.coalesce(_is_clock_jump(), F.lit(False)))
    read = read.withColumn(
        "date",
        F.to_date(
            F.when(F.col("clock_jumped"), F.col("written")).otherwise(F.timestamp_millis("row.at"))
        ),
    )
    read = read.withColumn("problem", _problem(now))
    is_bad = F.col("problem").isNotNull()
    good = F.when(~is_bad, F.col("row"))
    rows = read.select(
        good.alias("row"),
        "file",
        F.when(~is_bad, F.col("clock_jumped")).alias("clock_jumped"),
        "problem",
        F.when(is_bad, _readable(F.substring("value", 1, MAX_QUARANTINED_CHARS))).alias("line"),
        F.when(is_bad, F.lit(QUARANTINE)).otherwise(F.col("row.kind")).alias("kind"),
        F.when(is_bad, F.lit(now.astimezone(UTC).date())).otherwise(F.col("date")).alias("date"),
    )
    fields = [F.col(f"row.{name}").alias(name) for name in ROW.fieldNames()]
    return rows.select(
        *fields, *[name for name in STORED.fieldNames() if name not in {*ROW.fieldNames(), "batch"}]
    )


def to_quarantine_lines(rows: DataFrame, problem: str, now: datetime) -> DataFrame:
    """Convert rows back to quarantine lines."""
    names = ROW.fieldNames()
    line = F.substring(F.to_json(F.struct("kind", *names)), 1, MAX_QUARANTINED_CHARS)
    said = {
        "problem": F.lit(problem),
        "line": line,
        "kind": F.lit(QUARANTINE),
        "date": F.lit(now.astimezone(UTC).date()),
    }
    nothing = {name: F.lit(None).cast(ROW[name].dataType) for name in names} | {
        "clock_jumped": F.lit(None).cast("boolean")
    }
    return rows.select(
        *[{**nothing, **said}.get(name, F.col(name)).alias(name) for name in rows.columns]
    )


def reasons_of_known_versions() -> list[str]:
    """The quarantine reasons of lines whose schema version is now known."""
    return [f"{UNKNOWN_VERSION} {version}" for version in VERSIONS]


def process_of(connection: str) -> Column:
    """The gateway process that numbered the row."""
    return F.regexp_extract(connection, "^(.*)-[^-]*$", 1)


def _unknown_version() -> Column:
    is_named = F.col("row.v").between(0, MAX_NAMED_VERSION)
    number = F.when(is_named, F.concat(F.lit(" "), F.col("row.v").cast("string"))).otherwise(
        F.lit("")
    )
    return F.concat(F.lit(UNKNOWN_VERSION), number)


def _lacks(kind: str, name: str) -> Column:
    return (F.col("row.kind") == kind) & F.col(f"row.{name}").isNull()


def _has_bad_number() -> Column:
    is_none = F.lit(False)
    for name in NUMBERS:
        is_none = is_none | F.coalesce(
            (F.col(f"row.{name}") < 0) | (F.col(f"row.{name}") > MAX_COUNT), F.lit(False)
        )
    return is_none


def _readable(text: Column) -> Column:
    """Invalid UTF-8 would prevent other Parquet readers from reading the column."""
    return F.encode(text, "UTF-8").cast("string")


def _folder_hour() -> Column:
    """The hour in which the file was started, from its path, or null. Spark may write `=` as
    %3D.
    """
    hour = F.regexp_extract(
        "path", "/date(?:=|%3D)([0-9]{4}-[0-9]{2}-[0-9]{2}/hour(?:=|%3D)[0-9]{2})/", 1
    )
    # A cast is faster than parsing a format and gives null for impossible days.
    return F.concat_ws(
        ":", F.concat_ws(" ", F.substring(hour, 1, 10), F.substring(hour, -2, 2)), F.lit("00")
    ).cast("timestamp")


def _is_clock_jump() -> Column:
    at = F.timestamp_millis("row.at")
    return (at < F.col("written") - F.expr(_interval(MAX_BEFORE_FOLDER_HOUR))) | (
        at >= F.col("written") + F.expr(_interval(MAX_AFTER_FOLDER_HOUR))
    )


def _interval(time: timedelta) -> str:
    return f"interval {int(time.total_seconds())} seconds"


def _problem(now: datetime) -> Column:
    """The first reason why a line is not a row; null if it is one."""
    text = F.trim(F.col("value"))
    is_object = text.startswith("{") & (
        F.col("row.kind").isNotNull() | F.col("row.v").isNotNull() | F.col(f"row.{BROKEN}").isNull()
    )
    reasons = [
        (F.octet_length("value") > MAX_ROW_BYTES, F.lit("line too long")),
        (text == "", F.lit("empty line")),
        (~is_object & text.startswith("{") & ~text.endswith("}"), F.lit("incomplete line")),
        (~is_object, F.lit("not a JSON object")),
        (F.col("row.v").isNotNull() & ~F.col("row.v").isin(*VERSIONS), _unknown_version()),
        (F.col(f"row.{BROKEN}").isNotNull() & ~text.endswith("}"), F.lit("incomplete line")),
        (F.col(f"row.{BROKEN}").isNotNull(), F.lit("field of wrong type")),
        (F.col("row.v").isNull(), F.lit("no schema version")),
        (
            F.col("row.kind").isNull() | ~F.col("row.kind").isin(*REQUIRED_FIELDS),
            F.lit("unknown kind"),
        ),
        *[
            (_lacks(kind, name), F.lit(f"no {name}"))
            for kind, names in REQUIRED_FIELDS.items()
            for name in names
        ],
        (~F.col("row.connection").contains("-"), F.lit("connection without process")),
        (
            F.length("row.connection") > MAX_CONNECTION_CHARS,
            F.lit("connection name too long"),
        ),
        (_has_bad_number(), F.lit("number out of range")),
        (
            ~F.col("date").between(
                F.lit(EARLIEST), F.lit(now.astimezone(UTC).date() + timedelta(days=1))
            ),
            F.lit("time out of range"),
        ),
    ]
    column = F.when(*reasons[0])
    for condition, reason in reasons[1:]:
        column = column.when(condition, reason)
    return column
