"""Applications behind one address with a library's default client id: one row that names each
library and range.
"""

from __future__ import annotations

import csv
import json
import re
from datetime import UTC, datetime

import pytest

from compat.fingerprint.table import OBSERVED, version_numbers
from reports.analysis import facts
from tests.legacy_clients.applications import Application, ConsumeStep, ProduceStep, run
from tests.legacy_clients.brokers import are_required
from tests.reports.test_run import reported
from tests.reports.traffic import known_traffic
from tests.reports.traffic.traffic_logs import Process, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DAY = known_traffic.DAYS[-1]
KIB = 1024
#: By client id, the recorded clients that share it, and their traffic in KiB.
BEHIND = {
    "rdkafka": {
        "confluent-0.11.6": 100,
        "confluent-1.0.0": 200,
        "confluent-1.7.0": 300,
        "confluent-2.16.1": 400,
    },
    "sarama": {"sarama-1.10.0": 200, "sarama-1.61.1": 200},
    "alone": {"confluent-1.0.0": 10},
}


def recorded():
    rows = [json.loads(line) for line in OBSERVED.read_text("utf-8").splitlines()]
    return {row["client"]: row for row in rows if row["scenario"] == "group"}


def write(logs):
    """One connection per recorded opening of a client.

    The traffic and the later requests are on the connection that joins a group, or on the longest
    one; the client of the other connections may be ambiguous.
    """
    process, rows, clients = Process(logs), [], recorded()
    begin, end = ms(DAY, 12, 1), ms(DAY, 12, 59)
    for client_id, behind in BEHIND.items():
        for name, kib in behind.items():
            row = clients[name]
            main = max(
                row["first"],
                key=lambda first: (any(one.startswith("11:") for one in first), len(first)),
            )
            seen = {request for first in row["first"] for request in first}
            later = [
                f"{key}:{version}"
                for key, versions in row["requests"].items()
                for version in versions
            ]
            said = {
                key: row[key]
                for key in ("software", "software_version", "api_versions")
                if key in row
            }
            habits = {key: values[0] for key, values in row["habits"].items()}
            for first in row["first"]:
                sent = sorted(
                    {*first, *([one for one in later if one not in seen] if first is main else [])}
                )
                pairs = [tuple(map(int, one.split(":"))) for one in sent]
                requests = [
                    (key, version, 1, kib * KIB if first is main and place == 0 else 0, 0)
                    for place, (key, version) in enumerate(pairs)
                ]
                its = habits if first is main else {}
                rows += process.connection(
                    begin, end, [client_id], requests, first_requests=first, habits=its, **said
                )
    process.file(DAY, 12, rows)


@pytest.fixture(scope="module")
def report(spark, tmp_path_factory):
    """The rows of clients.csv by client id, the summary and the page."""
    folder = tmp_path_factory.mktemp("shared-address")
    write(folder / "logs")
    summary = reported(spark, folder / "logs", folder / "out", target="kafka-4.x")
    with (folder / "out" / "clients.csv").open(newline="") as file:
        rows = {row["client_id"]: row for row in csv.DictReader(file)}
    return rows, summary, (folder / "out" / "report.html").read_text()


def libraries(row):
    return json.loads(row["libraries"])


def software(name):
    row = recorded()[name]
    return f"{row['software']} {row['software_version']}"


def is_within(one, version):
    low, high = one.get("version_low"), one.get("version_high")
    return version_numbers(low) <= version_numbers(version) and (
        high is None or version_numbers(version) <= version_numbers(high)
    )


def versions(one):
    low, high = one["version_low"], one["version_high"]
    return low if low == high else f"{low} to {high}"


@pytest.mark.parametrize("client_id", BEHIND)
def test_row_lists_each_library_and_range_with_share_of_traffic(report, client_id):
    clients = recorded()
    left = libraries(report[0][client_id])
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


def test_row_has_lowest_version_and_worst_state(report):
    row = report[0]["rdkafka"]
    lows = [one["version_low"] for one in libraries(row)]
    assert row["version_low"] == min(lows, key=version_numbers)
    assert version_numbers(row["version_low"]) <= version_numbers("0.11.6")
    assert row["version_high"] == "2.16.0"
    assert [one["state"] for one in libraries(row)] == ["refused", "refused", "refused", "fine"]
    assert row["state"] == "refused"


def test_each_client_has_its_difference(report):
    *nameless, older, newer = sorted(
        libraries(report[0]["rdkafka"]),
        key=lambda one: (one["confidence"], version_numbers(one["version_low"])),
    )
    assert [
        one["difference"].startswith("sends ") and "(others: " in one["difference"]
        for one in nameless
    ] == [True, True]
    assert [one["evidence"].split("; ")[0] for one in (older, newer)] == [
        f"software name {software(name)}" for name in ("confluent-1.7.0", "confluent-2.16.1")
    ]
    assert "difference" not in libraries(report[0]["alone"])[0]


def test_needs_list_each_refused_library(report):
    row = report[0]["rdkafka"]
    needy = [one for one in libraries(row) if one["needs"]]
    assert [one["state"] for one in needy] == ["refused", "refused", "refused"]
    assert row["needs"] == "; ".join(f"librdkafka {versions(one)}: {one['needs']}" for one in needy)
    assert report[0]["alone"]["needs"] == libraries(report[0]["alone"])[0]["needs"]


def test_summary_lists_libraries_of_refused_applications(report):
    rows, summary, _ = report
    blockers = {row["client_id"]: row for row in summary["blockers"]}
    assert blockers.keys() >= {"rdkafka"}
    for client_id, blocker in blockers.items():
        told = [(one["library"], one["version_low"], one["share"]) for one in blocker["libraries"]]
        assert told == [
            (one["library"], one["version_low"], one["share"]) for one in libraries(rows[client_id])
        ]


def test_page_lists_libraries_in_application_row(report):
    (cell,) = re.findall(r">rdkafka<small>.*?</tr>", report[2], re.DOTALL)[:1]
    assert cell.count("of the traffic, last seen") == 4
    assert [share for share in ("10% of", "20% of", "30% of", "40% of") if share not in cell] == []
    assert "librdkafka 2.16.0, 40% of the traffic, last seen 2026-11-19<small>software name" in cell


#: Real clients that run one after the other with a library's default client id, without
#: authentication.
REAL = {
    "rdkafka": ("confluent-0.11.6", "confluent-1.0.0", "confluent-2.8.0", "confluent-2.16.1"),
    "sarama": ("sarama-1.19.0", "sarama-1.19.0-as-2.0.0", "sarama-1.61.1"),
}


@pytest.fixture(scope="module")
def real(spark, tmp_path_factory):
    """By client id, the clients that ran and the row of clients.csv."""
    folder = tmp_path_factory.mktemp("shared-by-real-clients")
    company = [
        Application(
            client_id,
            name,
            (ProduceStep("events", 50), ConsumeStep("events", f"group-of-{name}", 50)),
        )
        for client_id, names in REAL.items()
        for name in names
    ]
    ran = run(company, folder, folder / "logs")
    if ran.left_out and are_required():
        pytest.fail(f"left out: {ran.left_out}")
    from reports.run import ReportRequest
    from reports.run import run as made

    made(
        spark,
        ReportRequest(folder / "logs", folder / "out", facts.load_target("kafka-4.x")),
        datetime.now(UTC),
    )
    with (folder / "out" / "clients.csv").open(newline="") as file:
        rows = {row["client_id"]: row for row in csv.DictReader(file)}
    return {
        client_id: (
            [who.client for who in ran.applications if who.client_id == client_id],
            rows.get(client_id),
        )
        for client_id in REAL
    }


@pytest.mark.peer
@pytest.mark.parametrize("client_id", REAL)
def test_libraries_behind_one_address_are_all_identified_and_no_others(real, client_id):
    """A binding's version is not that of its librdkafka."""
    names, application = real[client_id]
    if not names:
        pytest.skip(f"no client of {client_id} runs here")
    left = libraries(application)
    for name in names:
        row = recorded()[name]
        found = [
            one
            for one in left
            if one["library"] == row["library"] and is_within(one, row["version"])
        ]
        assert found, (name, left)
        left.remove(found[0])
    assert left == []
    assert application["state"] == "refused"
