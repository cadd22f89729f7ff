"""The rows of the traffic log, schema version 1, as Spark's types. Both kinds are in one table; what is not of a row's kind is null and costs nothing.

A field that a newer gateway adds is ignored until it is named here; one that older rows lack is null in them. A new meaning is a new version, and a
version that is not in VERSIONS goes to quarantine.
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
"""The kind under which lines are kept that are no rows."""

MAGICS = ("0", "1", "2")
"""Formats of records, by which batches are counted."""

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
"""What a line of the log may say, but for its kind."""

BROKEN = "_broken"
LINE = StructType([StructField("kind", TEXT), *ROW.fields, StructField(BROKEN, TEXT)])
"""What a line is read as; BROKEN is null where that went well."""

STORED = StructType(
    [
        *ROW.fields,
        *_fields(file=TEXT, clock_jumped=TRUTH, problem=TEXT, line=TEXT),
        *_fields(batch=TEXT, kind=TEXT, date=DateType()),
    ]
)
"""The table: `file` is the log file's name, `problem` and `line` are of the quarantine, the last three are folders."""
