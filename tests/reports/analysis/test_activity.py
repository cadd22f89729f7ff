"""Activity derived from connection rows alone, after the usage rows were lost."""

from __future__ import annotations

import json

import pytest

from tests.reports.traffic.traffic_logs import Process, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DAY = "2026-11-18"


def said_of(process, client_ids, api_key, version, event="closed"):
    """The rows of a connection whose usage rows were lost."""
    begin = ms(DAY, 12, 1)
    rows = process.connection(begin, begin + 60_000, client_ids, [(api_key, version, 1, 10, 10)])
    opened, ended = (row for row in rows if row["kind"] == "connection")
    return [opened, ended | {"event": event}]


def refused(spark, rows):
    """By client id, what Kafka 4 refuses."""
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


@pytest.fixture(scope="module")
def found(spark, tmp_path_factory):
    """What Kafka 4 refuses, of connections of both kinds."""
    process = Process(tmp_path_factory.mktemp("lost"))
    opened, ended = said_of(process, ["old"], 0, 2)
    bare = {"mechanism": "GSSAPI", "road": "none", "protocol": "SASL_PLAINTEXT"}
    login = ended | bare | {"event": "authenticated", "client_ids": [], "highest": {}}
    rows = [
        *said_of(process, ["reader", "writer"], 0, 2),
        *said_of(process, [], 1, 3),
        *said_of(process, ["open"], 8, 1, "settled"),
        *said_of(process, ["new"], 0, 9),
        *(opened, login, ended | bare),
    ]
    return refused(spark, rows)


def test_versions_in_connection_rows_count_if_usage_rows_were_lost(found):
    """Covers two client ids on one connection (either may have sent the request), a missing client
    id, and an open connection.
    """
    assert {one for one in found if one[0] != "old"} == {
        ("reader", "Produce 2"),
        ("writer", "Produce 2"),
        ("", "Fetch 3"),
        ("open", "OffsetCommit 1"),
    }


def test_application_that_logs_in_by_bare_tokens_is_named_once(found):
    assert {one for one in found if one[0] in ("", "old")} == {
        ("", "Fetch 3"),
        ("old", "Produce 2"),
        ("old", "GSSAPI without a handshake"),
    }
