"""The report on random traffic, compared with plain counting; known applications among it are
found.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from tests.reports.traffic import known_traffic, random_traffic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

NOW = datetime.fromisoformat(f"{known_traffic.NOW}T09:00:00+00:00").astimezone(UTC)
NUMBERS = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "JoinGroup": 11,
    "CreateTopics": 19,
}
NUMBERS |= {"DeleteTopics": 20, "DescribeConfigs": 32}


def reported(spark, logs, out):
    """The summary, and the tables by name."""
    from reports.analysis import facts
    from reports.run import ReportRequest, run

    summary = run(spark, ReportRequest(logs, out, facts.load_target("kafka-4.0")), NOW)
    tables = {}
    for path in out.glob("*.csv"):
        with path.open(newline="") as file:
            tables[path.stem] = list(csv.DictReader(file))
    return summary, tables


def who(row):
    return row["principal"], row["client_id"], row["address"]


@pytest.fixture(scope="module")
def among_noise(spark, tmp_path_factory):
    """The known traffic among random traffic that Kafka 4 serves, and the report on both."""
    folder = tmp_path_factory.mktemp("among-noise")
    known_traffic.write(folder / "logs")
    found = random_traffic.write(
        folder / "logs", 4, known_traffic.DAYS, lowest=random_traffic.MINIMUMS
    )
    assert found.refused == {}
    return found, *reported(spark, folder / "logs", folder / "out")


@pytest.mark.slow
def test_known_blockers_are_found_among_random_traffic(among_noise):
    found, summary, tables = among_noise
    blockers = defaultdict(set)
    for row in tables["blockers"]:
        blockers[row["client_id"]].add(row["what"])
    assert blockers == {name: what for name, (_, what) in known_traffic.STATES.items() if what}
    assert summary["applications"]["total"] == len(known_traffic.STATES) + len(found.applications)
    assert summary["applications"]["refused"] == len(blockers)


@pytest.mark.slow
def test_bindings_and_conversions_are_found_among_random_traffic(among_noise):
    found, _, tables = among_noise
    assert {(row["kind"], row["name"]) for row in tables["bindings"]} == {
        ("topic", "orders"),
        ("group", "billers"),
    }
    converted = {(who(row), row["topic"]) for row in tables["conversions"]}
    assert converted - set(found.converted) == {
        (("User:ANONYMOUS", "billing", "10.0.1.1"), "orders")
    }
    assert set(found.converted) - converted == set()


@pytest.mark.slow
def test_random_traffic_does_not_change_the_trend(among_noise):
    assert [int(row["refused_applications"]) for row in among_noise[2]["trend"]] == [7] * 5 + [
        6
    ] * 5


@pytest.fixture(scope="module")
def by_chance(spark, tmp_path_factory):
    """Random traffic of all kinds, its plain counts, and the report on it."""
    folder = tmp_path_factory.mktemp("by-chance")
    found = random_traffic.write(folder / "logs", 896, known_traffic.DAYS)
    return found, *reported(spark, folder / "logs", folder / "out")


def test_random_blockers_equal_plain_counts(by_chance):
    found, summary, tables = by_chance
    blockers = {}
    for row in tables["blockers"]:
        api, version = row["what"].split()
        blockers[who(row), NUMBERS[api], int(version)] = [int(row["requests"]), int(row["bytes"])]
    assert blockers == found.refused
    counted = summary["applications"]
    assert (counted["total"], counted["refused"]) == (len(found.applications), len(found.old))


def test_random_applications_keep_names_and_request_counts(by_chance):
    found, _, tables = by_chance
    assert {who(row): int(row["requests"]) for row in tables["clients"]} == found.requests


def test_random_bindings_equal_plain_counts(by_chance):
    found, _, tables = by_chance
    bound = {
        (row["kind"], row["name"]): (int(row["old"]), int(row["new"]), int(row["bytes"]))
        for row in tables["bindings"]
    }
    assert bound == found.bound
    assert len(bound) > 50


def test_random_conversion_costs_equal_plain_counts(by_chance):
    found, _, tables = by_chance
    names = ("conversions", "converted_records", "converted_bytes")
    converted = {
        (who(row), row["topic"]): {name: int(row[name]) for name in names}
        | {"conversion_cpu_us": round(float(row["cpu_seconds"]) * 1e6)}
        for row in tables["conversions"]
    }
    assert converted == {place: dict(counted) for place, counted in found.converted.items()}


def test_random_days_equal_plain_counts(by_chance):
    found, _, tables = by_chance
    days = {
        row["date"]: (int(row["applications"]), int(row["refused_applications"]))
        for row in tables["trend"]
    }
    assert days == {
        day: (len(seen), len(found.old_by_day[day])) for day, seen in found.seen.items()
    }
