"""Who did what, where only what connections say of themselves is left of it."""

from __future__ import annotations

import json

import pytest

from tests.reports.traffic_logs import Process, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DAY = "2026-11-18"


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path)


def said_of(process, client_ids, api_key, version, event="closed"):
    """The rows of a connection; those of use were lost."""
    begin = ms(DAY, 12, 1)
    rows = process.connection(begin, begin + 60_000, client_ids, [(api_key, version, 1, 10, 10)])
    opened, ended = (row for row in rows if row["kind"] == "connection")
    return [opened, ended | {"event": event}]


def refused(spark, rows):
    """Client ids, and what Kafka 4 refuses of them."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType

    from reports.analysis import activity, facts, readiness
    from reports.ingest.schema import LINE

    read = F.from_json(F.lit(json.dumps(rows)), ArrayType(LINE))
    lines = spark.range(1).select(F.inline(read)).withColumn("date", F.lit(DAY).cast("date"))
    lines = lines.withColumn("clock_jumped", F.lit(False))
    connections, usage = (lines.filter(F.col("kind") == kind) for kind in ("connection", "usage"))
    did = activity.activity(usage, connections, activity.latest_connection_rows(connections))
    found = readiness.findings(did, activity.bare_tokens(did), facts.load_target("kafka-4.0"))
    return {(row["client_id"], row["what"]) for row in found.select("client_id", "what").collect()}


def test_what_connections_say_of_themselves_counts_where_their_rows_of_use_were_lost(
    spark, process
):
    """Of two applications behind one connection either may have sent it; one has no client id; one is still there."""
    rows = [
        *said_of(process, ["reader", "writer"], 0, 2),
        *said_of(process, [], 1, 3),
        *said_of(process, ["open"], 8, 1, "settled"),
        *said_of(process, ["new"], 0, 9),
    ]
    assert refused(spark, rows) == {
        ("reader", "Produce 2"),
        ("writer", "Produce 2"),
        ("", "Fetch 3"),
        ("open", "OffsetCommit 1"),
    }
