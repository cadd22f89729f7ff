"""Traffic summed by application, day, request version, topic and group.

An application is a principal, a client id and an address. All later analyses use this table. It is
smaller than the log because it has no minutes and no connections.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reports.analysis.terms import APPLICATION
from reports.ingest.row_parser import EARLIEST
from reports.ingest.schema import MAGICS

SUMS = (
    "requests",
    "bytes_in",
    "bytes_out",
    "topic_bytes",
    "records",
    "conversions",
    "converted_records",
    "converted_bytes",
    "conversion_cpu_us",
)
"""`bytes_in` and `bytes_out` are those of whole requests and responses; `topic_bytes` those of a
topic's batches, in both directions.
"""
FORMATS = tuple(f"magic_{way}_{magic}" for way in ("in", "out") for magic in MAGICS)
"""Batches by record format, in and out."""
GSSAPI_MECHANISM, NO_HANDSHAKE = "mechanism = 'GSSAPI'", "road = 'none'"
"""A GSSAPI token without a SaslHandshake."""
REQUEST = ("api_key", "api_version", "topic", "group")
SOFTWARE = ("software", "software_version")
CONNECTION_COLUMNS = (
    "date",
    "connection",
    "client_id",
    "listener",
    "principal",
    "peer",
    *SOFTWARE,
    *REQUEST,
)
OPENING_COLUMNS = ("first_requests", "habits")
"""Describe how a connection started; in the row of its end, or once in a row while it is open."""


def activity(usage: DataFrame, connections: DataFrame, who: DataFrame) -> DataFrame:
    """Columns: date, APPLICATION, listener, SOFTWARE, REQUEST, SUMS, FORMATS, first_seen and
    last_seen (ms).

    `usage` and `connections` are the rows of the period, `who` is the result of
    `latest_connection_rows`.

    Rows of closed or settled connections that contain the highest versions sent are added with zero
    requests, so that the versions are known even if usage rows were lost. Connections that never
    authenticated although they had to are no applications. Exception: bare GSSAPI tokens give rows
    without api key; of those that were refused only the address is known.
    """
    dated = _with_connection(_by_connection(usage), who)
    dated = dated.unionByName(_with_connection(_from_connection_rows(connections), who))
    dated = dated.unionByName(_bare_token_rows(connections), allowMissingColumns=True)
    return dated.groupBy("date", *APPLICATION, "listener", *SOFTWARE, *REQUEST).agg(
        *_sums(), *_seen()
    )


def latest_connection_rows(connections: DataFrame) -> DataFrame:
    """One row per connection, from its latest row; each row repeats all that is known so far."""
    fields = (
        "listener",
        "peer",
        "protocol",
        "mechanism",
        "road",
        "principal",
        "client_ids",
        *SOFTWARE,
        *OPENING_COLUMNS,
    )
    latest = connections.groupBy("connection").agg(
        F.max_by(F.struct(*fields), "sequence").alias("latest")
    )
    # The aggregation partitions by connection, and the join would too. The hint lets Spark split
    # the partition of a connection that has most of the log.
    return latest.select(
        "connection", *[F.col(f"latest.{name}").alias(f"its_{name}") for name in fields]
    ).hint("rebalance")


def never_logged_in(who: DataFrame) -> DataFrame:
    """Connections to a SASL listener that never authenticated, except bare GSSAPI tokens."""
    return who.filter(
        "its_protocol like 'SASL%' and its_principal is null "
        f"and not coalesce(its_{GSSAPI_MECHANISM} and its_{NO_HANDSHAKE}, false)"
    )


def bare_tokens(activity: DataFrame) -> DataFrame:
    """Applications that use GSSAPI without a handshake: date, APPLICATION, first_seen,
    last_seen.
    """
    return activity.filter("api_key is null").select(
        "date", *APPLICATION, "first_seen", "last_seen"
    )


def _bare_token_rows(connections: DataFrame) -> DataFrame:
    """If the gateway rejects bare tokens, little more than the address is known.

    Else the row of the login is left out: later ones have the client id.
    """
    bare = connections.filter(f"{GSSAPI_MECHANISM} and {NO_HANDSHAKE} and event <> 'authenticated'")
    who = {
        "principal": F.col("principal"),
        "client_id": F.col("client_ids")[0],
        "address": F.col("peer"),
    }
    named = [F.coalesce(column, F.lit("")).alias(name) for name, column in who.items()]
    return bare.select("date", *named, "listener", *_times("at"))


def requests_by_connection(usage: DataFrame, connections: DataFrame, who: DataFrame) -> DataFrame:
    """Request versions by connection.

    Columns: connection, APPLICATION, SOFTWARE, OPENING_COLUMNS, api_key, api_version, requests,
    bytes, last_seen.
    """
    keys = (
        "connection",
        "client_id",
        "listener",
        "principal",
        "peer",
        *SOFTWARE,
        "api_key",
        "api_version",
    )
    rows = _with_connection(_by_connection(usage, keys), who, OPENING_COLUMNS)
    rows = rows.unionByName(
        _with_connection(_from_connection_rows(connections), who, OPENING_COLUMNS),
        allowMissingColumns=True,
    )
    columns = (
        "connection",
        *APPLICATION,
        *SOFTWARE,
        *OPENING_COLUMNS,
        "api_key",
        "api_version",
        "requests",
        "last_seen",
    )
    return rows.filter("api_key is not null").select(
        *columns, (F.col("bytes_in") + F.col("bytes_out")).alias("bytes")
    )


def _by_connection(usage: DataFrame, keys: Sequence[str] = CONNECTION_COLUMNS) -> DataFrame:
    """Aggregate by connection first, without `who`, so that fewer rows are joined."""
    counts = [
        F.col(f"magic_{way}")[magic].alias(f"magic_{way}_{magic}")
        for way in ("in", "out")
        for magic in MAGICS
    ]
    # Rows that count requests have the bytes of whole requests; rows of a topic have those of the
    # topic's batches.
    is_whole = F.coalesce("requests", F.lit(0)) > 0
    bytes_ = [F.when(is_whole, F.col(name)).alias(name) for name in ("bytes_in", "bytes_out")]
    of_topic = F.coalesce("bytes_in", F.lit(0)) + F.coalesce("bytes_out", F.lit(0))
    rows = usage.select(
        *CONNECTION_COLUMNS,
        *[name for name in SUMS if "bytes" not in name or name == "converted_bytes"],
        *bytes_,
        *counts,
        F.when(F.col("topic").isNotNull(), of_topic).alias("topic_bytes"),
        *_times("began"),
    )
    return rows.groupBy(*keys).agg(*_sums(), *_seen())


def _from_connection_rows(connections: DataFrame) -> DataFrame:
    """Versions from the rows of closed or settled connections.

    With several client ids it is unknown which of them sent a version, so each gets it.
    """
    ended = connections.filter("event in ('closed', 'settled') and highest is not null")
    by_id = ended.select(
        "date",
        "connection",
        F.explode_outer("client_ids").alias("client_id"),
        "listener",
        "principal",
        "peer",
        *SOFTWARE,
        "highest",
        *_times("opened_at"),
    )
    rows = by_id.select(
        *[name for name in by_id.columns if name != "highest"],
        F.explode("highest").alias("key", "api_version"),
    )
    zeros = [F.lit(0).cast("long").alias(name) for name in (*SUMS, *FORMATS)]
    rows = (
        rows.withColumn("api_key", F.col("key").cast("int"))
        .drop("key")
        .filter("api_key >= 0 and api_version >= 0")
    )
    return rows.select("*", *_null_columns("topic", "group"), *zeros)


def _with_connection(rows: DataFrame, who: DataFrame, more: Sequence[str] = ()) -> DataFrame:
    """Add APPLICATION and other columns from the connection's own row.

    That row was written later and is more complete than an early usage row. Columns in `more` are
    added unchanged.
    """
    joined = rows.join(who, "connection", "left")
    joined = joined.filter(
        "its_protocol is null or its_protocol not like 'SASL%' or its_principal is not "
        "null or principal is not null"
    )
    for name in ("principal", "listener", *SOFTWARE):
        joined = joined.withColumn(name, F.coalesce(f"its_{name}", name))
    joined = joined.withColumn(
        "client_id", F.coalesce("client_id", F.col("its_client_ids")[0], F.lit(""))
    )
    joined = joined.withColumn("address", F.coalesce("its_peer", "peer", F.lit(""))).withColumn(
        "principal", F.coalesce("principal", F.lit(""))
    )
    joined = joined.withColumns({name: F.col(f"its_{name}") for name in more})
    return joined.drop("peer", *[name for name in who.columns if name.startswith("its_")])


def _sums() -> list[Column]:
    return [F.sum(F.coalesce(name, F.lit(0))).alias(name) for name in (*SUMS, *FORMATS)]


def _times(since: str) -> list[Column]:
    """first_seen and last_seen of a row.

    If the clock jumped, both are the row's day. An impossible start time is replaced with
    last_seen.
    """
    last = F.when(F.col("clock_jumped"), F.unix_millis(F.col("date").cast("timestamp"))).otherwise(
        F.col("at")
    )
    first = F.when(
        (F.timestamp_millis(since) >= F.lit(EARLIEST)) & (F.col(since) <= last), F.col(since)
    ).otherwise(last)
    return [first.alias("first_seen"), last.alias("last_seen")]


def _seen() -> list[Column]:
    return [F.min("first_seen").alias("first_seen"), F.max("last_seen").alias("last_seen")]


def _null_columns(*names: str) -> list[Column]:
    return [F.lit(None).cast("string").alias(name) for name in names]
