"""Spark's join strategies: small tables are broadcast, and the log is aggregated before it is
joined.

Tests query plans with Spark's size estimates disabled: a broadcast in them is requested by the
code.
"""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

NAMED = ("library", "version_high", "generation")


@pytest.fixture(scope="module")
def plans(spark, tmp_path_factory):
    """Query plans by name, as lines."""
    from pyspark.sql.types import StringType, StructField, StructType

    from reports.analysis import activity, client_history, costs, facts, identity, readiness, trend
    from reports.ingest import schema

    def of(rows):
        return str(rows._jdf.queryExecution().sparkPlan()).splitlines()

    log = spark.read.schema(schema.STORED).parquet(str(tmp_path_factory.mktemp("nothing")))
    guesses = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        summed = activity.activity(log, log, activity.latest_connection_rows(log))
        # The other plans start from tables with these columns, so that each has only its own joins.
        did = spark.read.schema(summed.schema).parquet(str(tmp_path_factory.mktemp("did")))
        whose = StructType([did.schema[name] for name in ("principal", "client_id", "address")])
        named = spark.read.schema(
            StructType([*whose, *[StructField(name, StringType()) for name in NAMED]])
        )
        named = named.parquet(str(tmp_path_factory.mktemp("named")))
        states = named.withColumnRenamed("library", "state")
        found = readiness.findings(did, activity.bare_tokens(did), facts.load_target("kafka-4.0"))
        yield {
            "activity": of(summed),
            "limits": of(found),
            "libraries": of(client_history.distribution(did, named)),
            "states": of(costs.bindings(did, states)),
            "verdicts": of(
                identity._identify_all(
                    named.withColumnRenamed("library", "behaviour"), identity._library_table()
                )
            ),
            "days": of(trend.trend(did, found.select("date", *whose.names, "requests", "bytes"))),
        }
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", guesses)


def joins(plan):
    return re.findall(r"\b(\w+Join|BroadcastNestedLoopJoin|CartesianProduct)\b", "\n".join(plan))


@pytest.mark.parametrize(
    ("name", "number"),
    [("limits", 1), ("libraries", 1), ("states", 1), ("verdicts", 1), ("days", 2)],
)
def test_small_tables_are_broadcast_regardless_of_estimated_size(plans, name, number):
    """The days are joined with the result of the limits."""
    assert joins(plans[name]) == ["BroadcastHashJoin"] * number


def test_log_and_connections_are_never_broadcast(plans):
    """Usage rows and connection rows; there may be millions of connections."""
    assert joins(plans["activity"]) == ["SortMergeJoin"] * 2


def test_log_is_aggregated_by_connection_before_the_join(plans):
    """So a connection with most of the log has one row per topic, request and day in the join, not
    one per minute.
    """
    join = next(place for place, line in enumerate(plans["activity"]) if "SortMergeJoin" in line)
    below = plans["activity"][join + 1 :]
    first = next(line for line in below if re.search(r"(Aggregate|FileScan|SortMergeJoin)\b", line))
    assert "Aggregate(keys=[" in first
    assert "connection#" in first
