"""The report on recorded clients: concluded libraries are correct, no client that fails with Kafka
4 is "fine", and clients behind one address are one row that names each library and range.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from compat.fingerprint.matcher import MIN_SHARE
from compat.fingerprint.table import OBSERVED, version_numbers
from tests.compat.fingerprint.evaluation import UNSEEN
from tests.reports.test_run import reported
from tests.reports.traffic import known_traffic, shared_address
from tests.reports.traffic.shared_address import BEHIND, is_within, libraries, recorded
from tests.reports.traffic.traffic_logs import Process, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

JUDGEMENT = UNSEEN.parent / "kafka-4.jsonl"
DAY = known_traffic.DAYS[-1]
#: The principal of clients behind one address.
SHARED = "User:ANONYMOUS"
SETTING = "its protocol setting"
#: A library and a version in `needs`; what is below the baseline but not refused is separate.
ADVISED = re.compile(r"([a-z][a-z-]+) (?:\(not refused from )?(\d[\d.]*\d)")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


RUNS = [*lines(OBSERVED), *lines(UNSEEN)]


def name_of(row):
    return f"{row['client']}/{row['scenario']}"


def write(logs, rows):
    """Each run is an application with its own principal and one connection per opening.

    The first connection sends all requests; the others only their opening.
    """
    process = Process(logs)
    begin, end = ms(DAY, 12, 1), ms(DAY, 12, 59)
    written = []
    for row in rows:
        requests = [
            (int(key), version, 10, 1024, 1024)
            for key, versions in row["requests"].items()
            for version in versions
        ]
        said = {
            name: row[name]
            for name in ("software", "software_version", "api_versions")
            if name in row
        }
        said["principal"] = f"User:{name_of(row)}"
        client_ids = [
            one.replace("{n}", "1").replace("{group}", "billing")
            for one in row.get("client_ids", ())
        ][:1]
        habits = {name: values[0] for name, values in row["habits"].items()}
        for place, first in enumerate(row["first"]):
            did = (
                requests
                if place == 0
                else [(*map(int, one.split(":")), 1, 1, 1) for one in sorted(set(first))]
            )
            written += process.connection(
                begin, end, client_ids, did, first_requests=first, habits=habits, **said
            )
    process.file(DAY, 12, written)


@pytest.fixture(scope="module")
def report(spark, tmp_path_factory):
    """The rows of clients.csv, the summary and the page. Each recorded run is an application, with
    versions in the table and versions that are not; others share an address and a client id.
    """
    folder = tmp_path_factory.mktemp("fingerprints")
    write(folder / "logs", RUNS)
    shared_address.write(folder / "logs", DAY)
    summary = reported(spark, folder / "logs", folder / "out", target="kafka-4.x")
    with (folder / "out" / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return rows, summary, (folder / "out" / "report.html").read_text()


@pytest.fixture(scope="module")
def clients(report):
    """By name, the applications of one recorded run each."""
    return {
        row["principal"].removeprefix("User:"): row
        for row in report[0]
        if row["principal"] != SHARED
    }


@pytest.fixture(scope="module")
def shared(report):
    """By client id, the applications behind one address."""
    return {row["client_id"]: row for row in report[0] if row["principal"] == SHARED}


def test_each_recorded_run_is_a_separate_application(clients):
    assert set(clients) == {name_of(row) for row in RUNS}


def test_named_libraries_and_versions_are_correct(clients):
    named, wrong = 0, set()
    for row in lines(UNSEEN):
        told = clients[name_of(row)]
        if not told["library"]:
            continue
        named += 1
        if told["library"] != row["library"]:
            wrong.add(row["client"])
            continue
        low, high = told["version_low"], told["version_high"]
        assert version_numbers(low) <= version_numbers(row["version"]), told
        assert not high or version_numbers(row["version"]) <= version_numbers(high), told
    assert named >= 0.9 * len(lines(UNSEEN))
    # It uses librdkafka's default client id.
    assert wrong <= {"java-2.0.1"}


def test_conclusion_has_evidence_and_confidence(clients):
    concluded = [
        clients[name_of(row)]
        for row in lines(UNSEEN)
        if "software" not in row and clients[name_of(row)]["library"]
    ]
    assert concluded
    for told in concluded:
        assert MIN_SHARE <= float(told["confidence"]) < 1
        assert told["evidence"].startswith("requests ")
    assert {clients[name_of(row)]["confidence"] for row in lines(UNSEEN) if "software" in row} == {
        "1.0"
    }


def test_refused_clients_are_those_that_fail_with_kafka_4(clients):
    works = {name_of(row): row["works"] for row in lines(JUDGEMENT)}
    assert works.keys() <= clients.keys()
    states = {name: clients[name]["state"] for name in works}
    assert {name for name, state in states.items() if state == "refused"} == {
        name for name, does in works.items() if not does
    }


def test_advised_versions_and_later_ones_do_not_fail_with_kafka_4(clients):
    works = {name_of(row): row["works"] for row in lines(JUDGEMENT)}
    failed = [row for row in RUNS if "pinned" not in row and not works.get(name_of(row), True)]
    refused = [told for told in clients.values() if told["state"] == "refused"]
    wrong = []
    for told in refused:
        advised = ADVISED.findall(told["needs"])
        assert advised or told["needs"].startswith(SETTING), told
        wrong += [
            (told["needs"], row["client"])
            for name, version in advised
            for row in failed
            if is_from(row, name, version)
        ]
    assert refused
    assert wrong == []


def is_from(row, name, version):
    return row["library"] == name and version_numbers(row["version"]) >= version_numbers(version)


def test_client_with_older_protocol_setting_is_advised_to_remove_it(clients):
    pinned = [
        clients[name_of(row)]
        for row in RUNS
        if "pinned" in row and clients[name_of(row)]["state"] == "refused"
    ]
    assert pinned
    assert [told for told in pinned if SETTING not in told["needs"]] == []


def test_client_without_protocol_setting_is_advised_another_version_or_library(clients):
    unset = (
        "java-0.9.0.1/produce",
        "java-0.10.2.2/group",
        "kafkajs-1.0.1/group",
        "confluent-1.4.2/group",
        "kafka-node-5.0.0/group",
    )
    assert {name: clients[name]["needs"] for name in unset} == {
        "java-0.9.0.1/produce": "java 2.1.0 (not refused from 0.11.0)",
        "java-0.10.2.2/group": "java 2.1.0 (not refused from 0.11.0)",
        "kafkajs-1.0.1/group": "kafkajs 1.15.0 (not refused from 1.12.0)",
        "confluent-1.4.2/group": "librdkafka 1.8.2",
        "kafka-node-5.0.0/group": (
            "another library, such as kafkajs 1.15.0: no version of kafka-node is served"
        ),
    }


def test_advice_has_version_and_setting_if_setting_is_uncertain(clients):
    assert clients["kafka-python-1.0.2/produce"]["needs"] == (
        "kafka-python 2.0.2 (not refused from 1.4.7), with its protocol setting "
        "(api_version) left out"
    )
    assert (
        clients["sarama-1.29.1/group"]["needs"]
        == "sarama 1.41.0, with its protocol setting (Config.Version) left out"
    )


def software(name):
    row = recorded()[name]
    return f"{row['software']} {row['software_version']}"


def versions(one):
    low, high = one["version_low"], one["version_high"]
    return low if low == high else f"{low} to {high}"


@pytest.mark.parametrize("client_id", BEHIND)
def test_row_lists_each_library_and_range_with_share_of_traffic(shared, client_id):
    clients = recorded()
    left = libraries(shared[client_id])
    total = sum(BEHIND[client_id].values())
    for name, kib in BEHIND[client_id].items():
        row = clients[name]
        found = [
            one
            for one in left
            if (one["library"], one["share"]) == (row["library"], round(kib / total, 4))
            and is_within(one, row["version"])
        ]
        assert found, (name, left)
        left.remove(found[0])
    assert left == []


def test_row_has_lowest_version_and_worst_state(shared):
    row = shared["rdkafka"]
    lows = [one["version_low"] for one in libraries(row)]
    assert row["version_low"] == min(lows, key=version_numbers)
    assert version_numbers(row["version_low"]) <= version_numbers("0.11.6")
    assert row["version_high"] == "2.16.0"
    assert [one["state"] for one in libraries(row)] == ["refused", "refused", "refused", "fine"]
    assert row["state"] == "refused"


def test_each_client_has_its_difference(shared):
    *nameless, older, newer = sorted(
        libraries(shared["rdkafka"]),
        key=lambda one: (one["confidence"], version_numbers(one["version_low"])),
    )
    assert [
        one["difference"].startswith("sends ") and "(others: " in one["difference"]
        for one in nameless
    ] == [True, True]
    assert [one["evidence"].split("; ")[0] for one in (older, newer)] == [
        f"software name {software(name)}" for name in ("confluent-1.7.0", "confluent-2.16.1")
    ]
    assert "difference" not in libraries(shared["alone"])[0]


def test_needs_list_each_refused_library(shared):
    row = shared["rdkafka"]
    needy = [one for one in libraries(row) if one["needs"]]
    assert [one["state"] for one in needy] == ["refused", "refused", "refused"]
    assert row["needs"] == "; ".join(f"librdkafka {versions(one)}: {one['needs']}" for one in needy)
    assert shared["alone"]["needs"] == libraries(shared["alone"])[0]["needs"]


def test_summary_lists_libraries_of_refused_applications(report, shared):
    """Those with the most traffic."""
    blockers = {
        row["client_id"]: row for row in report[1]["blockers"] if row["principal"] == SHARED
    }
    assert blockers.keys() >= {"rdkafka"}
    for client_id, blocker in blockers.items():
        told = [(one["library"], one["version_low"], one["share"]) for one in blocker["libraries"]]
        assert told == [
            (one["library"], one["version_low"], one["share"])
            for one in libraries(shared[client_id])
        ]


def test_page_lists_libraries_in_application_row(report):
    row = rf">rdkafka<small>{SHARED} at .*?</tr>"
    (cell,) = re.findall(row, report[2], re.DOTALL)[:1]
    assert cell.count("of the traffic, last seen") == 4
    assert [share for share in ("10% of", "20% of", "30% of", "40% of") if share not in cell] == []
    assert "librdkafka 2.16.0, 40% of the traffic, last seen 2026-11-19<small>software name" in cell
