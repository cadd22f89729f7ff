"""What each application did, put together so that its library can be told from it (`compat.fingerprint`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from compat.fingerprint.doing import LOG_IN, OPENING, Doing
from compat.fingerprint.table import Table
from reports.activity import of_applications
from reports.schema import HABITS
from reports.words import APPLICATION

MOST_KEPT = 16
"""Beginnings, and values of a habit, that are kept of an application: what does more is no single library."""


def doings(activity: DataFrame, connections: DataFrame, who: DataFrame, table: Table) -> DataFrame:
    """APPLICATION and `doing`, a text that is the same for those who did the same; `read` reads it."""
    versions = (
        activity.filter("api_key is not null")
        .groupBy(*APPLICATION, "api_key")
        .agg(F.sort_array(F.collect_set("api_version")).alias("versions"))
    )
    sent = versions.groupBy(*APPLICATION).agg(F.sort_array(F.collect_list(F.struct("api_key", "versions"))).alias("requests"))
    ways = _ways(connections, who)
    both = sent.join(ways, list(APPLICATION), "left").withColumn("named_like", _named_like(table))
    return both.select(*APPLICATION, F.to_json(F.struct("requests", "named_like", *ways.columns[len(APPLICATION) :])).alias("doing"))


def read(doing: str) -> Doing:
    row: dict[str, Any] = json.loads(doing)
    requests = {each["api_key"]: frozenset(each["versions"]) for each in row["requests"]}
    openings = frozenset(tuple(map(int, keys.split(","))) for keys in row.get("openings", ()) if keys)
    return Doing(requests, openings, dict(_habits(row)), row.get("named_like"))


def _habits(row: Mapping[str, Any]) -> Iterator[tuple[str, frozenset[str]]]:
    for name in HABITS.fieldNames():
        if row.get(name):
            yield name, frozenset(row[name])


def _ways(connections: DataFrame, who: DataFrame) -> DataFrame:
    """By application: how its connections began and what they asked for, of those that told it."""
    told = connections.filter("first_requests is not null or habits is not null")
    keys = F.transform("first_requests", lambda request: F.split(request, ":")[0])
    # What no gateway wrote is no number.
    keys = F.filter(keys, lambda key: key.rlike("^[0-9]{1,4}$") & ~key.isin([str(key) for key in LOG_IN]))
    changes = F.filter(keys, lambda key, place: (place == 0) | (key != F.get(keys, place - 1)))
    habits = [_as_text(f"habits.{field.name}", field.name) for field in HABITS.fields]
    rows = of_applications(told, who, F.array_join(F.slice(changes, 1, OPENING), ",").alias("opening"), *habits)
    kept = [F.slice(F.sort_array(F.collect_set("opening")), 1, MOST_KEPT).alias("openings")]
    kept += [F.slice(F.sort_array(F.collect_set(name)), 1, MOST_KEPT).alias(name) for name in HABITS.fieldNames()]
    return rows.groupBy(*APPLICATION).agg(*kept)


def _as_text(column: str, name: str) -> Column:
    text = F.array_join(column, ",") if name == "protocols" else F.col(column).cast("string")
    return text.alias(name)


def _named_like(table: Table) -> Column:
    """As Table.named_like."""
    found = F.array_compact(F.array(*[F.when(F.col("client_id").rlike(own), F.lit(name)) for name, own in table.patterns.items()]))
    return F.when(F.size(found) == 1, found[0])
