"""The report of `make demo` on real clients of many ages equals what they were configured to do."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reports.analysis import facts
from reports.analysis.facts import DEFAULT_TARGET
from tests.legacy_clients.applications import COMPANY, ConsumeStep, ProduceStep
from tests.legacy_clients.brokers import are_required
from tests.legacy_clients.clients import table
from tests.legacy_clients.runs.test_traffic_log import (
    API_VERSIONS,
    FETCH,
    KNOWN,
    METADATA,
    NEVER,
    PRODUCE,
    HighestVersions,
)
from tests.reports.page.browser import CUT, MEDIA, SCREEN

pytestmark = [pytest.mark.spark, pytest.mark.peer, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1"
LEFT_OUT = re.compile(r"^left out: (\S+) \((.+)$", re.MULTILINE)
#: The highest versions of clients missing in the other table: for the newest, what Apache Kafka 4.3
#: serves, since they send ApiVersions first.
SPEAKS = KNOWN | {
    "java-4.4.0": HighestVersions(13, 18, 13, 5),
    "kafka-python-2.0.2": HighestVersions(7, 4, 1, 0),
    "franz-go-1.22.2": HighestVersions(13, 18, 13, 5),
    "aiokafka-0.14.0": HighestVersions(7, 11, 5, 0),
    "confluent-1.0.0": HighestVersions(7, 4, 2, 0),
}
#: What Kafka 4 refuses, from KIP-896 and each library's code; the second is refused by 4.0.0 only.
REFUSED = {
    "ledger-import": ({"Produce 0"}, set()),
    "server-metrics": ({"Produce 0"}, set()),
    "air-sensors": ({"Produce 0"}, set()),
    "orders-export": ({"Fetch 0"}, set()),
    "billing": ({"Fetch 1", "ListOffsets 0"}, {"JoinGroup 0"}),
    "accounts": ({"Fetch 3", "Produce 2"}, {"JoinGroup 1"}),
    "stock": ({"ListOffsets 0", "OffsetCommit 1"}, set()),
}
#: Clients that send their name (KIP-511) and version.
NAMED = {"java-4.4.0", "java-2.8.2", "franz-go-1.22.2", "kcat-1.7.1"}
#: Libraries with another name in the table of clients.
LIBRARIES = {"kafka-clients": "java", "confluent-kafka": "librdkafka", "kcat": "librdkafka"}
#: Expected library of each (none if two behave the same under an application's client id) and
#: states for Kafka 4. By KIP-896, Java before 2.1, librdkafka before 1.8.2 and so on are below
#: their baseline; they are known to be only if the version range does not reach it.
TOLD = {
    "shop": ("java", {"fine"}),
    "mobile-app": ("kafkajs", {"unknown"}),
    "warehouse": ("librdkafka", {"below"}),
    "ledger-import": ("", {"refused"}),
    "server-metrics": ("", {"refused"}),
    "air-sensors": ("", {"refused"}),
    "billing": ("java", {"refused"}),
    "billing-next": ("java", {"fine"}),
    "orders-export": ("", {"refused"}),
    "accounts": ("java", {"refused"}),
    "invoice-mail": ("kafka-python", {"unknown"}),
    "fraud-check": ("java", {"unknown"}),
    "dashboards": ("franz-go", {"fine"}),
    # The confidence of its library is close to the minimum for a state.
    "search": ("aiokafka", {"unknown", "fine"}),
    "stock": ("librdkafka", {"refused"}),
    "archive": ("librdkafka", {"fine"}),
}
TARGETS = ("kafka-4.0", "kafka-4.x")


@pytest.fixture(scope="module")
def demo(pyspark, tmp_path_factory):
    """The finished `make demo`, and its folder."""
    folder = tmp_path_factory.mktemp("company")
    command = [sys.executable, "-m", "tests.legacy_clients.demo", "--out", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False), folder


@pytest.fixture(scope="module")
def ran(demo):
    """The applications that ran, and the folder with their log and the report for the first
    target.
    """
    done, folder = demo
    left_out = dict(LEFT_OUT.findall(done.stderr))
    if left_out and are_required():
        pytest.fail(f"left out: {left_out}")
    if len(left_out) == len(COMPANY):
        pytest.skip(f"no client runs here: {left_out}")
    assert done.returncode == 0, done.stderr
    return [who for who in COMPANY if who.client_id not in left_out], folder


@pytest.fixture(
    scope="module", params=[TARGETS[0], pytest.param(TARGETS[1], marks=pytest.mark.slow)]
)
def report(request, ran):
    """The target and the report's tables by name: the demo's report, and one for the other
    target.
    """
    out = ran[1] / "report"
    if request.param != DEFAULT_TARGET:
        from reports.run import ReportRequest
        from reports.run import run as reported

        reported(
            request.getfixturevalue("spark"),
            ReportRequest(ran[1] / "log", out, facts.load_target(request.param)),
            datetime.now(UTC),
        )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["target"] == request.param
    tables = {}
    for path in out.glob("*.csv"):
        with path.open(newline="") as file:
            tables[path.stem] = list(csv.DictReader(file))
    return request.param, tables, summary


@pytest.fixture(params=("telephone", "print"))
def medium(request, report, ran, chromium):
    """The medium that the page is opened for, and the page."""
    page = ran[1] / "report" / "report.html"
    chromium.open(page, MEDIA[request.param], medium=request.param)
    return request.param, page


@pytest.fixture
def company(ran):
    return {who.client_id: who for who in ran[0]}


def refused(target, company):
    """By application, what the target refuses."""
    each = {
        name: always | (only_first if target == "kafka-4.0" else set())
        for name, (always, only_first) in REFUSED.items()
    }
    return {name: what for name, what in each.items() if name in company}


def by_application(rows):
    """By client id, which is unique per application here."""
    found = {row["client_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_demo_prints_progress_then_answer_and_path_of_page(demo, ran):
    done, folder = demo
    told = done.stderr.splitlines()
    turns = [
        f"[{number:2}/{len(COMPANY)}] {who.client_id} ({who.row.library} {who.row.version})"
        for number, who in enumerate(COMPANY, 1)
    ]
    assert told[0].startswith(f"the log and the report go to {folder}; ")
    assert told[1 : len(COMPANY) + 2] == [*turns, f"{len(ran[0])} applications ran"]
    assert all(line.isprintable() for line in told)
    # And none of the output of Java and Spark at each start.
    assert [line for line in told[len(COMPANY) + 2 :] if not LEFT_OUT.match(line)] == [
        "starting Spark",
        "files",
        "clients",
        "readiness",
        "costs",
        "trend",
        "summary",
        "done",
    ]
    *answer, page = done.stdout.splitlines()
    assert (len(answer), page) == (5, f"the report: {(folder / 'report' / 'report.html').as_uri()}")
    is_ready = not refused(DEFAULT_TARGET, {who.client_id for who in ran[0]})
    assert answer[0].startswith(f"{DEFAULT_TARGET}: {'ready' if is_ready else 'NOT READY'}. ")


def test_reported_applications_are_those_that_ran(report, company):
    _, tables, summary = report
    found = {(row["principal"], row["client_id"], row["address"]) for row in tables["clients"]}
    assert found == {(who.principal, who.client_id, ADDRESS) for who in company.values()}
    assert len(tables["clients"]) == summary["applications"]["total"] == len(company)


def test_each_application_has_its_topics_and_groups(report, company):
    rows = by_application(report[1]["clients"])
    found = {
        name: (set(json.loads(row["topics"])), set(json.loads(row["groups"])))
        for name, row in rows.items()
    }
    assert found == {name: (who.topics, who.groups) for name, who in company.items()}


def test_each_application_sent_the_versions_of_its_library(report, company):
    found = defaultdict(dict)
    for row in report[1]["matrix"]:
        found[row["client_id"]][row["api_key"]] = int(row["highest"])
    seen = {
        name: HighestVersions(
            *(found[name].get(key, NEVER) for key in (PRODUCE, FETCH, METADATA, API_VERSIONS))
        )
        for name in company
    }
    assert seen == {
        name: SPEAKS[who.client]._replace(
            **({} if who.is_producer else {"produce": NEVER}),
            **({} if who.is_consumer else {"fetch": NEVER}),
        )
        for name, who in company.items()
    }


def test_refused_applications_and_reasons_are_those_of_kafka_4(report, company):
    target, tables, summary = report
    found = defaultdict(set)
    for row in tables["blockers"]:
        found[row["client_id"]].add(row["what"])
    wanted = refused(target, company)
    assert found == wanted
    assert {
        name for name, row in by_application(tables["clients"]).items() if row["state"] == "refused"
    } == set(wanted)
    assert (summary["ready"], summary["applications"]["refused"]) == (not wanted, len(wanted))


def test_bindings_are_topics_and_groups_shared_by_old_and_new(report, company):
    target, tables, _ = report
    old = refused(target, company)
    users = defaultdict(set)
    for who in company.values():
        for kind, names in (("topic", who.topics), ("group", who.groups)):
            for name in names:
                users[kind, name].add(who.client_id)
    shared = {
        place: (len(who & set(old)), len(who - set(old)))
        for place, who in users.items()
        if who & set(old) and who - set(old)
    }
    assert {
        (row["kind"], row["name"]): (int(row["old"]), int(row["new"])) for row in tables["bindings"]
    } == shared


def test_conversions_are_those_of_readers_of_another_format(report, company):
    """Readers of magic 2 get only magic 2; others get nothing newer than they support."""
    formats = defaultdict(set)
    for who in company.values():
        for step in who.steps:
            if isinstance(step, ProduceStep):
                formats[step.topic].add(who.row.writes)
    wanted = {}
    for who in company.values():
        for step in who.steps:
            knows = who.row.reads
            if isinstance(step, ConsumeStep) and any(
                one < knows if knows == 2 else one > knows for one in formats[step.topic]
            ):
                wanted[who.client_id, step.topic] = step.records
    found = {(row["client_id"], row["topic"]): row for row in report[1]["conversions"]}
    assert set(found) == set(wanted)
    # A fetch converts all of its result, which may be more than is then consumed.
    assert [
        place
        for place, records in wanted.items()
        if int(found[place]["converted_records"]) < records
    ] == []
    assert {row["produces_converted"] for row in found.values()} == {"0"}
    assert report[2]["conversions"]["cpu_seconds"] > 0


def test_named_library_is_correct_and_range_contains_version(report, company):
    rows = by_application(report[1]["clients"])
    wrong = {}
    for name, who in company.items():
        row, client = rows[name], table()[who.client]
        if who.client in NAMED:
            assert float(row["confidence"]) == 1
        told = (row["library"], row["version_low"], row["version_high"])
        if row["library"] and not (
            row["library"] == LIBRARIES.get(client.library, client.library)
            and is_within(client, *told[1:])
        ):
            wrong[name] = told
    assert wrong == {}
    assert {who.client for name, who in company.items() if rows[name]["library"]} >= NAMED & {
        who.client for who in company.values()
    }


def test_each_application_has_expected_library_and_state(report, company):
    rows = by_application(report[1]["clients"])
    found = {name: (row["library"], row["state"]) for name, row in rows.items()}
    assert {
        name: told
        for name, told in found.items()
        if told[0] != TOLD[name][0] or told[1] not in TOLD[name][1]
    } == {}
    assert set(TOLD) >= set(company)


def test_undetermined_application_is_advised_for_each_candidate(report, company):
    """The client is kafka-node, which is not served in any version."""
    if "air-sensors" in company:
        needs = by_application(report[1]["clients"])["air-sensors"]["needs"]
        assert needs.startswith(
            "java 2.1.0 or librdkafka 1.8.2 or kafkajs 1.15.0 or sarama 1.41.0 or "
            "kafka-python 2.0.2 or "
        )
        assert needs.endswith(
            "with its protocol setting left out, where it has one; no version of "
            "kafka-node is served"
        )


def is_within(client, low, high):
    """kcat's version is not that of its librdkafka, which depends on the system."""
    return client.library == "kcat" or numbers(low) <= numbers(client.version) <= numbers(
        high or "9999"
    )


def numbers(version):
    return [int(part) for part in version.split(".")] if version else []


def test_report_finds_no_lost_or_invalid_lines(report):
    log = report[2]["log"]
    assert (log["damaged"], log["quarantined"], log["lines_missing"], log["never_logged_in"]) == (
        [],
        {},
        0,
        0,
    )


def test_page_requests_nothing_and_nothing_is_cut_off(medium, chromium):
    kind, page = medium
    assert (chromium.requested, chromium.said) == ([page.as_uri()], [])
    assert (
        chromium.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth")
        == MEDIA[kind]
    )
    assert chromium.evaluate(CUT) == []


def test_page_names_each_refused_application_and_reason(report, company, ran, chromium):
    chromium.open(ran[1] / "report" / "report.html", SCREEN)
    shown = chromium.evaluate("document.body.textContent")
    missing = [
        word
        for name, whats in refused(report[0], company).items()
        for word in (name, *whats)
        if word not in shown
    ]
    assert missing == []
