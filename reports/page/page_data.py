"""Collects the page's data from the tables, limited to what a person can read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reports.analysis.readiness import state_order
from reports.analysis.terms import APPLICATION
from reports.page.page_model import PageModel

MAX_APPLICATIONS = 200
"""Applications listed on the page; clients.csv has all."""
MAX_KINDS = 20
"""Libraries with versions shown separately on the page."""
MAX_SERIES = 7
"""Kinds with a colour of their own in the plot by day; the others share one."""


def build_page_model(
    clients: DataFrame,
    matrix: DataFrame,
    distribution: DataFrame,
    days: DataFrame,
    bindings: DataFrame,
) -> PageModel:
    """Collect the data from the written tables."""
    order = [state_order(), F.desc(F.col("bytes_in") + F.col("bytes_out")), *APPLICATION]
    shown = clients.orderBy(*order).limit(MAX_APPLICATIONS)
    applications = [
        row.asDict(recursive=True)
        for row in shown.withColumn("last_seen", F.date_format("last_seen", "yyyy-MM-dd")).collect()
    ]
    sent = matrix.join(F.broadcast(shown.select(*APPLICATION)), list(APPLICATION)).collect()
    versions: dict[tuple[str, ...], dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in sent:
        versions[tuple(row[name] for name in APPLICATION)][row["api_key"]] = (
            row["lowest"],
            row["highest"],
        )
    bound = bindings.orderBy(F.desc("bytes"), "kind", "name").limit(MAX_APPLICATIONS)
    return PageModel(
        applications,
        dict(versions),
        _kinds(clients),
        [row.asDict() for row in days.orderBy("date").collect()],
        _kinds_by_day(distribution),
        [row.asDict(recursive=True) for row in bound.collect()],
    )


def kind_of(version: str) -> Column:
    """The label of a kind of client: library and major.minor of `version` (or "no upper version").

    For an unknown library it is "unknown, like Kafka 2.4", from `generation`.
    """
    short = F.nullif(F.regexp_extract(version, r"^(\d+(?:\.\d+)?)", 1), F.lit(""))
    # The name alone would look like all versions of the library.
    named = F.concat_ws(
        "", "library", F.coalesce(F.concat(F.lit(" "), short), F.lit(", no upper version"))
    )
    return F.when(F.col("library").isNotNull(), named).otherwise(
        F.concat(F.lit("unknown, like Kafka "), F.coalesce("generation", F.lit("?")))
    )


def _kinds(clients: DataFrame) -> list[tuple[str, dict[str, int]]]:
    """Applications by kind and state, the most frequent kinds first; others than MAX_KINDS are
    combined.
    """
    counted: dict[str | None, dict[str, int]] = defaultdict(dict)
    grouped = clients.groupBy(kind_of("version_high").alias("kind"), "state").agg(
        F.count("*").alias("count")
    )
    for row in _most(grouped, "state", MAX_KINDS).collect():
        counted[row["kind"]][row["state"]] = row["count"]
    return _ordered(counted)


def _kinds_by_day(distribution: DataFrame) -> list[tuple[str, dict[date, int]]]:
    """Counted by client id, since an application has exactly one."""
    once = distribution.filter("dimension = 'client_id'")
    counted: dict[str | None, dict[date, int]] = defaultdict(dict)
    grouped = once.groupBy("date", kind_of("version").alias("kind")).agg(
        F.sum("applications").alias("count")
    )
    for row in _most(grouped, "date", MAX_SERIES).collect():
        counted[row["kind"]][row["date"]] = row["count"]
    return _ordered(counted)


def _most(grouped: DataFrame, by: str, most: int) -> DataFrame:
    """`count` by kind and `by` for the most frequent kinds; kind null combines all others.

    Clients can send any library name, so the number of kinds is unlimited.
    """
    top = (
        grouped.groupBy("kind")
        .agg(F.sum("count").alias("all"))
        .orderBy(F.desc("all"), "kind")
        .limit(most)
    )
    told = grouped.join(
        F.broadcast(top.select("kind", F.lit(True).alias("is_top"))), "kind", "left"
    )
    return told.groupBy(F.when(F.col("is_top"), F.col("kind")).alias("kind"), by).agg(
        F.sum("count").alias("count")
    )


def _ordered(counted: Mapping[str | None, dict[Any, int]]) -> list[tuple[str, dict[Any, int]]]:
    """Most frequent first, "others" last."""
    told = [(kind, counts) for kind, counts in counted.items() if kind is not None]
    rest = [("others", counted[None])] if None in counted else []
    return sorted(told, key=lambda pair: (-sum(pair[1].values()), pair[0])) + rest
