"""Lines of log files to rows of the table: each line becomes one row, of a kind of the log or of the quarantine."""

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
"""Bytes; a row has some hundreds, and its names are cut to 512 characters each."""
MAX_QUARANTINED_CHARS = 16_384
"""Characters of a line that is kept in the quarantine."""
MAX_CONNECTION_CHARS = 512
"""Characters; it has some thirty. What comes before its last `-` is noted of each process."""
MAX_COUNT = 1 << 50
"""What is counted stays below it; so a sum of them stays a number of 64 bits."""
EARLIEST = date(2020, 1, 1)
"""A day before it comes from a clock that was never set."""
MAX_BEFORE_FOLDER_HOUR, MAX_AFTER_FOLDER_HOUR = timedelta(hours=1), timedelta(hours=25)
"""How far a row may be from the hour in which its file was begun: files are rotated within a day. Beyond, the clock has jumped. A record of the topic is
written when its row is."""
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
"""None of these is below zero."""
UNKNOWN_VERSION = "unknown schema version"
MAX_NAMED_VERSION = 99
"""A schema version beyond it is none, and would make a reason of its own of each such line."""
REQUIRED_FIELDS = {
    CONNECTION: ("at", "node", "connection", "sequence", "event"),
    USAGE: ("at", "node", "connection", "sequence", "api_key", "api_version"),
}


def to_rows(lines: DataFrame, now: datetime, written: Column | None = None) -> DataFrame:
    """`lines` has `value` (a line) and `path` (of its file). Gives the columns of STORED but `batch`.

    A row's date is that of its `at`. Where that is far from the time `written`, the clock has jumped, and the date is that of `written`. Without it,
    it is the hour in the file's path.
    """
    # What was read stays one column until the end: fifty of them, copied from step to step, take longer than reading the JSON.
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
    """Rows of the log as lines for the quarantine, with what was read of them."""
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
    """Why lines of the versions that are known now went to quarantine before they were."""
    return [f"{UNKNOWN_VERSION} {version}" for version in VERSIONS]


def process_of(connection: str) -> Column:
    """Which gateway's process numbered the row."""
    return F.regexp_extract(connection, "^(.*)-[^-]*$", 1)


def _unknown_version() -> Column:
    is_told = F.col("row.v").between(0, MAX_NAMED_VERSION)
    number = F.when(is_told, F.concat(F.lit(" "), F.col("row.v").cast("string"))).otherwise(
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
    """What is no UTF-8 would keep other readers of Parquet from the whole column."""
    return F.encode(text, "UTF-8").cast("string")


def _folder_hour() -> Column:
    """The hour in which the file was begun, by its path; null where that does not say. Spark may write `=` as %3D."""
    hour = F.regexp_extract(
        "path", "/date(?:=|%3D)([0-9]{4}-[0-9]{2}-[0-9]{2}/hour(?:=|%3D)[0-9]{2})/", 1
    )
    # As a cast, which is quicker than a format, and null for a day that there is not.
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
    """Why a line is no row; null where it is one. The first reason that holds is told."""
    text = F.trim(F.col("value"))
    is_object = text.startswith("{") & (
        F.col("row.kind").isNotNull() | F.col("row.v").isNotNull() | F.col(f"row.{BROKEN}").isNull()
    )
    reasons = [
        (F.octet_length("value") > MAX_ROW_BYTES, F.lit("a line that is longer than any row")),
        (text == "", F.lit("empty line")),
        (~is_object & text.startswith("{") & ~text.endswith("}"), F.lit("half line")),
        (~is_object, F.lit("not a JSON object")),
        (F.col("row.v").isNotNull() & ~F.col("row.v").isin(*VERSIONS), _unknown_version()),
        (F.col(f"row.{BROKEN}").isNotNull() & ~text.endswith("}"), F.lit("half line")),
        (F.col(f"row.{BROKEN}").isNotNull(), F.lit("a field of the wrong type")),
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
        (~F.col("row.connection").contains("-"), F.lit("a connection that names no process")),
        (
            F.length("row.connection") > MAX_CONNECTION_CHARS,
            F.lit("a connection with too long a name"),
        ),
        (_has_bad_number(), F.lit("a number that cannot be")),
        (
            ~F.col("date").between(
                F.lit(EARLIEST), F.lit(now.astimezone(UTC).date() + timedelta(days=1))
            ),
            F.lit("a time that cannot be"),
        ),
    ]
    column = F.when(*reasons[0])
    for condition, reason in reasons[1:]:
        column = column.when(condition, reason)
    return column
