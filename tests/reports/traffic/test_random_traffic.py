"""The report on random traffic, compared with plain counting; known applications and strange ones
among it are found.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.reports.traffic import known_traffic, random_traffic, strange_traffic
from tests.reports.traffic.strange_traffic import NAMES, ODD_TIMES
from tests.reports.traffic.traffic_logs import Process, ms

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


def reported(spark, logs, out, since=None):
    """The summary, and the tables by name."""
    from reports.analysis import facts
    from reports.run import ReportRequest, run

    summary = run(spark, ReportRequest(logs, out, facts.load_target("kafka-4.0"), since), NOW)
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


#: Of random traffic; more are in `make slow`.
APPLICATIONS = 160
#: The day before the period, and the period's first.
EARLIER, SINCE = "2026-11-08", date.fromisoformat(strange_traffic.DAY)


@dataclass(frozen=True)
class Reported:
    """Plain counts of the random traffic, and the report.

    By table, `rows` are those of random applications and `others` those of strange ones.
    """

    found: random_traffic.Found
    out: Path
    summary: dict[str, Any]
    rows: dict[str, list[dict[str, str]]]
    others: dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def by_chance(spark, tmp_path_factory):
    """The report on random traffic of all kinds and on strange traffic, from tables without the
    log's files, with an earlier day in them, and with a limit of one kind of clients.
    """
    from reports.analysis import identity
    from reports.ingest.ingest_job import ingest
    from reports.ingest.taken_files import Tables

    folder = tmp_path_factory.mktemp("by-chance")
    logs, out = folder / "logs", folder / "out"
    found = random_traffic.write(logs, 896, known_traffic.DAYS, applications=APPLICATIONS)
    strange_traffic.write(logs)
    process = Process(logs, 4, "login")
    for day in (EARLIER, strange_traffic.DAY):
        process.file(day, 12, _without_login(process, ms(day)))
    earlier, sent = ms(EARLIER, 13), [strange_traffic.PRODUCE_1]
    process.file(EARLIER, 13, process.connection(earlier, earlier + 1000, ["nightly"], sent))
    ingest(spark, logs, Tables(out / "tables"), NOW)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(identity, "MAX_BEHAVIOURS", 1)
        summary, tables = reported(spark, None, out, SINCE)
    rows, others = (
        {
            name: [row for row in table if is_random(row) is is_wanted]
            for name, table in tables.items()
        }
        for is_wanted in (True, False)
    )
    return Reported(found, out, summary, rows, others)


def _without_login(process, begin):
    """A connection that never authenticated."""
    said = {"principal": None, "protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN"}
    return process.connection(begin, begin + 1000, ["wrong-password"], **said)


def is_random(row):
    """Whether the row is of a random application, or of a day with random ones."""
    if "principal" in row:
        return row["principal"].startswith("User:team-")
    return row.get("date") != strange_traffic.DAY


def test_random_blockers_equal_plain_counts(by_chance):
    blockers = {}
    for row in by_chance.rows["blockers"]:
        api, version = row["what"].split()
        blockers[who(row), NUMBERS[api], int(version)] = [int(row["requests"]), int(row["bytes"])]
    assert blockers == by_chance.found.refused


def test_random_and_strange_applications_are_counted(by_chance):
    found, counted = by_chance.found, by_chance.summary["applications"]
    strange, refused = (
        len(names) + strange_traffic.ADDRESSES_ONLY
        for names in (strange_traffic.APPLICATIONS, strange_traffic.REFUSED)
    )
    assert (counted["total"], counted["refused"]) == (
        len(found.applications) + strange,
        len(found.old) + refused,
    )


def test_random_applications_keep_names_and_request_counts(by_chance):
    clients = by_chance.rows["clients"]
    assert {who(row): int(row["requests"]) for row in clients} == by_chance.found.requests


def test_random_bindings_equal_plain_counts(by_chance):
    bound = {
        (row["kind"], row["name"]): (int(row["old"]), int(row["new"]), int(row["bytes"]))
        for row in by_chance.rows["bindings"]
    }
    assert bound == by_chance.found.bound
    assert len(bound) > 50


def test_random_conversion_costs_equal_plain_counts(by_chance):
    names = ("conversions", "converted_records", "converted_bytes")
    converted = {
        (who(row), row["topic"]): {name: int(row[name]) for name in names}
        | {"conversion_cpu_us": round(float(row["cpu_seconds"]) * 1e6)}
        for row in by_chance.rows["conversions"]
    }
    assert converted == {
        place: dict(counted) for place, counted in by_chance.found.converted.items()
    }


def test_random_days_equal_plain_counts(by_chance):
    found = by_chance.found
    days = {
        row["date"]: (int(row["applications"]), int(row["refused_applications"]))
        for row in by_chance.rows["trend"]
    }
    assert days == {
        day: (len(seen), len(found.old_by_day[day])) for day, seen in found.seen.items()
    }


def test_since_excludes_earlier_days_and_needs_no_log_files(by_chance):
    summary = by_chance.summary
    assert (summary["from"], summary["log"]["files"], summary["trend"]["days"]) == (
        str(SINCE),
        0,
        len(by_chance.found.seen) + 1,
    )
    assert summary["log"]["never_logged_in"] == 1
    assert "nightly" not in {row["client_id"] for row in by_chance.others["clients"]}


def test_too_many_kinds_of_clients_are_counted_in_summary(by_chance):
    """All but the most frequent one, which the applications with impossible times have, too."""
    from reports.analysis import identity

    kinds = Counter(map(frozenset, by_chance.found.kinds.values()))
    kept = frozenset([frozenset([strange_traffic.PRODUCE_1[:2]])])
    assert kinds[kept] + len(ODD_TIMES) > max(kinds.values())
    left_out = [
        row["client_id"]
        for row in (*by_chance.rows["clients"], *by_chance.others["clients"])
        if row["evidence"].startswith(identity.LEFT_OUT)
    ]
    assert sorted(left_out) == sorted(
        [
            *(who[1] for who, its in by_chance.found.kinds.items() if frozenset(its) != kept),
            strange_traffic.LOUD,
            strange_traffic.ODD,
        ]
    )
    assert by_chance.summary["log"]["library_not_looked_for"] == len(left_out)
    evidence = {row["client_id"]: row["evidence"] for row in by_chance.others["clients"]}
    assert evidence["日本語"].startswith("software name 日本語 日本語")


def test_hostile_names_do_not_break_outputs(spark, by_chance):
    out = by_chance.out
    for path in out.glob("*.csv"):
        with path.open(newline="") as file:
            assert [
                cell
                for row in csv.reader(file)
                for cell in row
                if cell.startswith(("=", "+", "@", "\t", "\r", "\n", "＝"))
            ] == [], path
    others = strange_traffic.APPLICATIONS - set(NAMES)
    assert {row["client_id"] for row in by_chance.others["clients"]} == {
        f"'{name}" if name[:1] in "=+-@\n＝" and name else name for name in NAMES
    } | others
    stored = spark.read.parquet(str(out / "clients")).collect()
    assert {row["client_id"] for row in stored if not is_random(row.asDict())} == {*NAMES, *others}
    assert not {"<script", "<img"} & set(
        (out / "report.html").read_text().replace(">", " ").split()
    )


def test_refused_requests_beyond_fifty_are_counted(by_chance):
    """Strange applications have the most traffic."""
    first = by_chance.summary["blockers"][: len(strange_traffic.REFUSED)]
    blockers = {row["client_id"]: row["reasons"].split(", ") for row in first}
    assert blockers.keys() == strange_traffic.REFUSED
    loud = blockers[strange_traffic.LOUD]
    assert (len(loud), loud[-1]) == (51, "and 250 more")


def test_any_clock_year_gives_valid_times(by_chance):
    first = by_chance.summary["blockers"][: len(strange_traffic.REFUSED)]
    assert {row["last_refused"] for row in first} == {strange_traffic.DAY}
    for name in ("clients", "blockers"):
        assert {
            row[when][:10] for row in by_chance.others[name] for when in ("first_seen", "last_seen")
        } == {strange_traffic.DAY}, name
