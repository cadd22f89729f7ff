"""A log dominated by one connection, application, topic or null: the report is the same however
Spark splits it.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.reports.traffic import known_traffic, skewed_traffic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

NOW = datetime.fromisoformat(f"{known_traffic.NOW}T09:00:00+00:00").astimezone(UTC)
ALL_IN_ONE = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.skewJoin.enabled": "false",
}
#: As for large tables: nothing is broadcast for being small, partitions are not merged, and
#: partitions of a few KiB are split.
IN_MANY = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "1",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "2KB",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "2KB",
    "spark.sql.leafNodeDefaultParallelism": "2",
}


@contextmanager
def set_to(spark, settings):
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@dataclass(frozen=True)
class Reported:
    """By settings, all tables as in their CSV, and the summary."""

    usage: Any
    connections: Any
    ways: list[tuple[dict[str, list[dict[str, str]]], dict[str, Any]]]

    @property
    def tables(self):
        return self.ways[0][0]

    @property
    def summary(self):
        return self.ways[0][1]


@pytest.fixture(scope="module")
def reported(spark, tmp_path_factory):
    """The log, ingested once, and two reports on it."""
    from reports.analysis import facts
    from reports.ingest.ingest_job import ingest, stored
    from reports.run import ReportRequest, run

    folder = tmp_path_factory.mktemp("skewed")
    skewed_traffic.write(folder / "logs")
    order = ReportRequest(None, folder / "out", facts.load_target("kafka-4.0"))
    ingest(spark, folder / "logs", order.tables, NOW)
    ways = []
    for settings in (ALL_IN_ONE, IN_MANY):
        with set_to(spark, settings):
            summary = run(spark, order, NOW)
        ways.append(({path.stem: rows_of(path) for path in order.out.glob("*.csv")}, summary))
    return Reported(
        stored(spark, order.tables, "usage"), stored(spark, order.tables, "connection"), ways
    )


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def who(row):
    return row["principal"], row["client_id"], row["address"]


def test_log_is_dominated_by_its_skewed_values(reported):
    """Precondition of the other tests."""
    usage, connections = (
        rows.select("connection", "principal", "client_id", "topic", "group", "peer").collect()
        for rows in (reported.usage, reported.connections)
    )
    assert most(usage, "connection") == ("2-hot-1", pytest.approx(0.75, abs=0.1))
    assert most(connections, "peer") == (skewed_traffic.MACHINE[2], pytest.approx(0.75, abs=0.1))
    for name in ("principal", "client_id", "topic", "group"):
        assert most(usage, name) == (None, pytest.approx(0.8, abs=0.2))
    assert most([row for row in usage if row["topic"]], "topic") == (
        "orders",
        pytest.approx(1, abs=0.1),
    )
    assert most([row for row in usage if row["group"]], "group") == (
        "billers",
        pytest.approx(1, abs=0.1),
    )


def most(rows, name):
    """The most frequent value and its share."""
    ((value, count),) = Counter(row[name] for row in rows).most_common(1)
    return value, count / len(rows)


def test_skewed_log_gives_same_report_however_it_is_split(reported):
    """All tables in their order, and the summary."""
    (tables, summary), (others, other) = reported.ways
    assert tables.keys() == others.keys() >= {"clients", "blockers", "trend"}
    for name in tables:
        assert tables[name] == others[name], name
    assert as_told(summary) == as_told(other)


def as_told(summary):
    """Without its time; float sums may differ in the last digit with the order of addition."""
    return json.loads(
        json.dumps(summary | {"made_at": None}), parse_float=lambda text: round(float(text), 9)
    )


def test_dominant_applications_have_their_states_and_totals(
    reported,
):
    states = {name or "10.0.1.3": state for name, (state, _) in known_traffic.STATES.items()}
    states |= {address: wanted["state"] for (_, _, address), wanted in skewed_traffic.HOT.items()}
    assert {
        row["client_id"] or row["address"]: row["state"] for row in reported.tables["clients"]
    } == states
    rows = {who(row): row for row in reported.tables["clients"]}
    for hot, wanted in skewed_traffic.HOT.items():
        assert {name: rows[hot][name] for name in wanted} == wanted
    counted = reported.summary["applications"]
    assert (counted["total"], counted["refused"]) == (len(states), 8)
    assert reported.summary["log"]["lines_missing"] == 2 * len(known_traffic.DAYS)


def test_other_applications_keep_their_blockers_and_costs(
    reported,
):
    blockers = defaultdict(set)
    for row in reported.tables["blockers"]:
        blockers[row["client_id"] or row["address"]].add(row["what"])
    wanted = {name or "10.0.1.3": what for name, (_, what) in known_traffic.STATES.items() if what}
    assert blockers == wanted | {skewed_traffic.MACHINE[2]: {"Fetch 3"}}
    (cost,) = reported.tables["conversions"]
    assert (cost["client_id"], cost["topic"], cost["cpu_seconds"]) == ("billing", "orders", "5.0")
    bound = {
        (row["kind"], row["name"], int(row["old"]), int(row["new"]), int(row["bytes"]))
        for row in reported.tables["bindings"]
    }
    assert bound == skewed_traffic.BOUND


def test_trend_changes_by_one_per_dominant_application(reported):
    assert [
        (int(row["applications"]), int(row["refused_applications"]))
        for row in reported.tables["trend"]
    ] == skewed_traffic.DAYS


def below(node):
    """The direct children of a node of an executed plan."""
    if kind(node) == "AdaptiveSparkPlanExec":
        return [node.executedPlan()]
    if kind(node).endswith("QueryStageExec"):
        return [node.plan()]
    children = node.children()
    return [children.apply(place) for place in range(children.size())]


def kind(node):
    return node.getClass().getSimpleName()


def nodes(node):
    yield node
    for child in below(node):
        yield from nodes(child)


def of_kind(plan, *kinds):
    return [node for node in nodes(plan) if kind(node) in kinds]


def executed(spark, usage, connections, settings):
    """The final plan of the activity query, and its rows."""
    from reports.analysis import activity

    with set_to(spark, settings):
        its = activity.latest_connection_rows(connections).persist()
        its.count()
        did = activity.activity(usage, connections, its)
        rows = sorted(map(str, did.collect()))
        its.unpersist()
    return did._jdf.queryExecution().executedPlan(), rows


@pytest.fixture(scope="module")
def in_many(spark, reported):
    return executed(spark, reported.usage, reported.connections, IN_MANY)


def parted_by(shuffle):
    return tuple(re.findall(r"(\w+)#", shuffle.outputPartitioning().toString()))


def written_to(plan):
    """By partitioning, the number of rows written by shuffles."""
    found = defaultdict(list)
    for node in of_kind(plan, "ShuffleExchangeExec"):
        found[parted_by(node)].append(node.metrics().apply("shuffleRecordsWritten").value())
    return found


def test_only_sums_of_a_dominant_connection_are_shuffled(spark, in_many, reported):
    """In the first shuffle at most once per task that read it; once in the join."""
    from reports.analysis.activity import REQUEST, SOFTWARE

    usage = reported.usage
    keys = ("date", "connection", "client_id", "listener", "principal", "peer", *SOFTWARE, *REQUEST)
    rows = [tuple(row) for row in usage.select(*keys).collect()]
    with set_to(spark, IN_MANY):
        tasks = usage._jdf.rdd().getNumPartitions()
    shuffled = written_to(in_many[0])
    (first,) = shuffled[keys]
    assert len(set(rows)) <= first <= tasks * len(set(rows)) < len(rows) / 2
    assert len(set(rows)) in shuffled[("connection",)]
    assert len(rows) not in [count for counts in shuffled.values() for count in counts]


def test_connection_with_thousands_of_topics_is_split_in_the_join(spark, reported):
    from pyspark.sql import functions as F

    topics = spark.range(3000).select(
        F.concat(F.lit("topic-"), F.col("id").cast("string")).alias("topic")
    )
    row = (
        reported.usage.filter("connection = '2-hot-1' and topic is not null").limit(1).drop("topic")
    )
    usage = reported.usage.unionByName(row.crossJoin(F.broadcast(topics)))
    plan, rows = executed(spark, usage, reported.connections, IN_MANY)
    of_usage, _ = of_kind(plan, "SortMergeJoinExec", "ShuffledHashJoinExec")
    assert of_usage.isSkewJoin()
    whole, same = executed(
        spark,
        usage,
        reported.connections,
        IN_MANY | {"spark.sql.adaptive.skewJoin.enabled": "false"},
    )
    assert not any(
        join.isSkewJoin() for join in of_kind(whole, "SortMergeJoinExec", "ShuffledHashJoinExec")
    )
    assert rows == same
    assert len(rows) > 3000


def test_few_connections_are_broadcast(spark, in_many, reported):
    plan, rows = executed(spark, reported.usage, reported.connections, ALL_IN_ONE)
    assert [kind(join) for join in nodes(plan) if kind(join).endswith("JoinExec")] == [
        "BroadcastHashJoinExec"
    ] * 2
    assert rows == in_many[1]


def is_summed_up(node):
    """Whether every path from here to the log or the activity has an aggregation, except small
    broadcast tables.
    """
    if "AggregateExec" in kind(node) or kind(node) == "BroadcastExchangeExec":
        return True
    if kind(node) == "FileSourceScanExec":
        return "/summed/" in node.relation().location().rootPaths().mkString()
    return bool(below(node)) and all(map(is_summed_up, below(node)))


def test_each_table_aggregates_before_it_shuffles(spark, tmp_path):
    """So a dominant application, topic or null is one row per task. Rows of connections are few per
    connection and go to their connection. Uses initial plans, where no sizes are known.

    As in a report, tables start from those that are written before.
    """
    from reports.analysis import (
        activity,
        behaviour,
        client_history,
        costs,
        facts,
        identity,
        readiness,
        trend,
    )
    from reports.ingest import schema

    def written(name, fields):
        (tmp_path / name).mkdir(parents=True)
        return spark.read.schema(fields).parquet(str(tmp_path / name))

    target = facts.load_target("kafka-4.0")
    with set_to(spark, IN_MANY):
        log = written("log", schema.STORED)
        connections = activity.latest_connection_rows(log)
        summed = activity.activity(log, log, connections)
        did = written("activity", summed.schema)
        kinds = behaviour.connection_kinds(log, log, connections)
        identified = identity.identify(written("summed/kinds", kinds.schema))
        named = written("summed/identity", identified.schema)
        found = readiness.findings(did, activity.bare_tokens(did), target)
        blockers = readiness.blockers(found)
        applications = readiness.applications(did, named, blockers, target)
        clients = written("summed/clients", applications.schema)
        tables = {
            "activity": summed,
            "kinds": kinds,
            "identity": identified,
            "applications": applications,
            "distribution": client_history.distribution(did, clients),
            "matrix": client_history.matrix(did),
            "blockers": blockers,
            "bindings": costs.bindings(did, clients),
            "conversions": costs.conversions(did),
            "formats": costs.formats(did),
            "trend": trend.trend(did, found),
        }
        for name, rows in tables.items():
            shuffles = of_kind(rows._jdf.queryExecution().executedPlan(), "ShuffleExchangeExec")
            assert shuffles, name
            assert [
                str(one)
                for one in shuffles
                if parted_by(one) != ("connection",) and not is_summed_up(one.child())
            ] == [], name


def test_library_name_used_last_is_deterministic(
    spark,
):
    from reports.analysis import identity

    rows = ["('sarama', '1.29.1')", "('apache-kafka-java', '3.9.1')", "('Java', '3.9.1')"]
    found = []
    for order in (rows, rows[::-1]):
        kinds = spark.sql(
            "SELECT '' principal, 'both' client_id, '' address, 60000L last_seen, 1L "
            "bytes, 1L requests, 1L connections, "
            "array(named_struct('api_key', 0, 'api_version', 9)) sent, * "
            f"FROM VALUES {', '.join(order)} AS t(software, software_version)"
        )
        found.append(
            {
                tuple(row)
                for row in identity._named(kinds)
                .select("library", "version_low", "evidence")
                .collect()
            }
        )
    assert found[0] == found[1]
    assert ("sarama", "1.29.1", "software name sarama 1.29.1") in found[0]
