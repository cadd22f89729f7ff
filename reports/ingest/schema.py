"""The traffic log's rows (schema version 1) as Spark types.

Both kinds share one table; columns of the other kind are null. Unknown fields from newer gateways
are ignored, and fields missing in older rows are null. A changed meaning needs a new version;
versions that are not in VERSIONS are quarantined.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

VERSIONS = (1,)
CONNECTION = "connection"
USAGE = "usage"
QUARANTINE = "quarantine"
"""The kind of lines that are not rows."""

MAGICS = ("0", "1", "2")
"""Record formats by which batches are counted."""

TEXT, LONG, INT, TRUTH = StringType(), LongType(), IntegerType(), BooleanType()
COUNTS = MapType(TEXT, LONG)
TEXTS = ArrayType(TEXT)


def _fields(**types: DataType) -> list[StructField]:
    return [StructField(name, kind) for name, kind in types.items()]


BOTH = _fields(
    v=INT,
    at=LONG,
    node=INT,
    cluster=TEXT,
    connection=TEXT,
    sequence=LONG,
    listener=TEXT,
    principal=TEXT,
    software=TEXT,
)
BOTH += _fields(software_version=TEXT, requests=LONG, bytes_in=LONG, bytes_out=LONG, peer=TEXT)

HABITS = StructType(
    _fields(
        fetch_max_wait_ms=LONG,
        fetch_min_bytes=LONG,
        fetch_max_bytes=LONG,
        partition_max_bytes=LONG,
        acks=INT,
        produce_timeout_ms=LONG,
    )
    + _fields(isolation_level=INT, fetch_session=TRUTH, auto_create=TRUTH)
    + _fields(
        metadata_all=TRUTH, session_timeout_ms=LONG, rebalance_timeout_ms=LONG, protocols=TEXTS
    )
)

OF_CONNECTIONS = _fields(
    event=TEXT, peer_port=INT, protocol=TEXT, tls=TEXT, mechanism=TEXT, road=TEXT, api_versions=INT
)
OF_CONNECTIONS += _fields(
    api_versions_refused=TRUTH, client_ids=TEXTS, opened_at=LONG, reason=TEXT, duration_ms=LONG
)
OF_CONNECTIONS += _fields(highest=MapType(TEXT, INT), first_requests=TEXTS, habits=HABITS)

OF_USAGE = _fields(
    began=LONG,
    client_id=TEXT,
    api_key=INT,
    api_version=INT,
    topic=TEXT,
    group=TEXT,
    errors=COUNTS,
    records=LONG,
)
OF_USAGE += _fields(
    magic_in=COUNTS,
    magic_out=COUNTS,
    codec_in=COUNTS,
    codec_out=COUNTS,
    conversions=LONG,
    converted_records=LONG,
)
OF_USAGE += _fields(
    converted_bytes=LONG,
    conversion_cpu_us=LONG,
    throttle_ms=LONG,
    latency_us_sum=LONG,
    latency_us_buckets=ArrayType(LONG),
)

ROW = StructType([*BOTH, *OF_CONNECTIONS, *OF_USAGE])
"""Fields of a line, except its kind."""

BROKEN = "_broken"
LINE = StructType([StructField("kind", TEXT), *ROW.fields, StructField(BROKEN, TEXT)])
"""Schema for parsing a line; BROKEN is null if that succeeded."""

STORED = StructType(
    [
        *ROW.fields,
        *_fields(file=TEXT, clock_jumped=TRUTH, problem=TEXT, line=TEXT),
        *_fields(batch=TEXT, kind=TEXT, date=DateType()),
    ]
)
"""Schema of the table.

`file` is the log file's name; `problem` and `line` are used by the quarantine; the last three
columns are folders.
"""
