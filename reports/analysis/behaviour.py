"""Combines the behaviour of an application's connections for library identification."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from compat.fingerprint.behaviour import OPENING_REQUESTS, SASL_REQUESTS, Behaviour
from reports.analysis.activity import SOFTWARE, requests_by_connection
from reports.analysis.terms import APPLICATION
from reports.ingest.schema import HABITS

MAX_KEPT = 16
"""Openings, and values per habit, kept for a kind of connection; a single library does not have
more.
"""
MAX_VERSIONS = 256
"""Request versions kept per connection; a release of a library sends about twenty."""
MAX_KINDS = 64
"""Kinds of connections analysed per application, those with the most traffic first."""


def connection_kinds(usage: DataFrame, connections: DataFrame, who: DataFrame) -> DataFrame:
    """One row per kind of connection of an application.

    Columns: APPLICATION, SOFTWARE, sent, kind, bytes, requests, connections, last_seen, is_beyond.

    Connections with the same name and the same request versions (`sent`) are of one kind. `kind` is
    JSON for `parse_kind`, null if the client sent its name. `is_beyond` is true for unnamed kinds
    beyond MAX_KINDS.
    """
    pairs = F.sort_array(F.collect_set(F.struct("api_key", "api_version")))
    each = requests_by_connection(usage, connections, who).groupBy(
        "connection", *APPLICATION, *SOFTWARE
    )
    # All rows of a connection have the same opening.
    each = each.agg(
        F.slice(pairs, 1, MAX_VERSIONS).alias("sent"),
        *_sums(),
        F.first("first_requests").alias("first"),
        F.first("habits").alias("habits"),
    )
    habits = [_as_text(f"habits.{field.name}", field.name) for field in HABITS.fields]
    told = each.select("*", _opening().alias("opening"), *habits)
    kept = [
        _set_of("opening").alias("openings"),
        *[_set_of(name).alias(name) for name in HABITS.fieldNames()],
    ]
    rows = told.groupBy(*APPLICATION, *SOFTWARE, "sent").agg(
        *kept, *_sums(), F.count("*").alias("connections")
    )
    kind = F.to_json(F.struct("sent", "openings", *HABITS.fieldNames()))
    rows = rows.withColumn("kind", F.when(F.col("software").isNull(), kind))
    # Kinds with a name are aggregated by name later and do not count here.
    of_these = Window.partitionBy(*APPLICATION, F.col("kind").isNull())
    place = F.row_number().over(
        of_these.orderBy(F.desc("bytes"), F.desc("connections"), "kind", *SOFTWARE, "sent")
    )
    return rows.select(
        *APPLICATION,
        *SOFTWARE,
        "sent",
        "kind",
        "bytes",
        "requests",
        "connections",
        "last_seen",
        (F.col("kind").isNotNull() & (place > MAX_KINDS)).alias("is_beyond"),
    )


def parse_kind(kind: str) -> Behaviour:
    row: dict[str, Any] = json.loads(kind)
    openings = frozenset(
        tuple(map(int, keys.split(","))) for keys in row.get("openings", ()) if keys
    )
    return Behaviour(requests_of(row["sent"]), openings, dict(_habits(row)), is_complete=False)


def requests_of(sent: list[dict[str, int]]) -> dict[int, frozenset[int]]:
    """Versions by api key, from pairs of api key and version."""
    found: dict[int, frozenset[int]] = {}
    for one in sent:
        found[one["api_key"]] = found.get(one["api_key"], frozenset()) | {one["api_version"]}
    return found


def _habits(row: Mapping[str, Any]) -> Iterator[tuple[str, frozenset[str]]]:
    for name in HABITS.fieldNames():
        if row.get(name):
            yield name, frozenset(row[name])


def _sums() -> list[Column]:
    return [
        *[F.sum(name).alias(name) for name in ("bytes", "requests")],
        F.max("last_seen").alias("last_seen"),
    ]


def _set_of(name: str) -> Column:
    return F.slice(F.sort_array(F.collect_set(name)), 1, MAX_KEPT)


def _opening() -> Column:
    """The first requests by api key, without SASL requests and consecutive repetitions."""
    keys = F.transform("first", lambda request: F.split(request, ":")[0])
    # Lines not written by a gateway may contain other text.
    keys = F.filter(
        keys, lambda key: key.rlike("^[0-9]{1,4}$") & ~key.isin([str(key) for key in SASL_REQUESTS])
    )
    changes = F.filter(keys, lambda key, place: (place == 0) | (key != F.get(keys, place - 1)))
    return F.array_join(F.slice(changes, 1, OPENING_REQUESTS), ",")


def _as_text(column: str, name: str) -> Column:
    text = F.array_join(column, ",") if name == "protocols" else F.col(column).cast("string")
    return text.alias(name)
