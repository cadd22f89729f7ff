"""The report on known traffic: each known fact is found, and nothing else."""

from __future__ import annotations

import csv
import json
import shutil
from collections import defaultdict
from datetime import UTC, date, datetime

import pytest

from tests.reports.traffic import known_traffic
from tests.reports.traffic.traffic_logs import Process, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

NOW = datetime.fromisoformat(f"{known_traffic.NOW}T09:00:00+00:00").astimezone(UTC)


def reported(spark, logs, out, target="kafka-4.0"):
    from reports.analysis import facts
    from reports.run import ReportRequest, run

    return run(spark, ReportRequest(logs, out, facts.load_target(target)), NOW)


@pytest.fixture(scope="module")
def report(spark, tmp_path_factory):
    """The folders of the known traffic and of its report, and the summary. The tables from which
    the report makes others are kept beside them, in `kept`.
    """
    from reports.outputs import Outputs

    folder = tmp_path_factory.mktemp("planted")
    known_traffic.write(folder / "logs")
    intermediate = Outputs.intermediate

    def kept(outputs, name, rows):
        table = intermediate(outputs, name, rows)
        shutil.copytree(folder / "out" / ".new" / name, folder / "kept" / name)
        return table

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Outputs, "intermediate", kept)
        summary = reported(spark, folder / "logs", folder / "out")
    return folder / "logs", folder / "out", summary


def table(out, name):
    with (out / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_application_has_its_expected_state(report):
    rows = table(report[1], "clients")
    assert {row["client_id"]: row["state"] for row in rows} == {
        name: state for name, (state, _) in known_traffic.STATES.items()
    }
    assert len(rows) == len(known_traffic.STATES)


def test_blockers_are_exactly_the_expected_ones(report):
    found = defaultdict(set)
    for row in table(report[1], "blockers"):
        found[row["client_id"]].add(row["what"])
    assert found == {
        name: blockers for name, (_, blockers) in known_traffic.STATES.items() if blockers
    }


def test_blockers_are_ordered_by_traffic(report):
    sizes = [row["bytes"] for row in report[2]["blockers"]]
    assert sizes == sorted(sizes, reverse=True)
    assert (report[2]["blockers"][0]["client_id"], report[2]["blockers"][-1]["client_id"]) == (
        "billing",
        "lost-rows",
    )


def test_bytes_count_once_in_requests_and_topics(report):
    (billing,) = [row for row in table(report[1], "clients") if row["client_id"] == "billing"]
    days = len(known_traffic.DAYS)
    assert int(billing["bytes_in"]) == 4 * 10 * 1024 * days
    assert int(billing["topic_bytes"]) == (90 + 300) * 1024 * days
    assert (int(billing["requests"]), int(billing["records"]), int(billing["magic_in_0"])) == (
        40 * days,
        150 * days,
        4 * days,
    )


def test_library_is_the_name_that_the_client_sends(report):
    named = {
        row["client_id"]: (row["library"], row["version_low"], row["version_high"])
        for row in table(report[1], "clients")
    }
    assert named["confluent"] == ("librdkafka", "2.16.1", "2.16.1")
    assert named["shop"] == ("java", "2.8.2", "2.8.2")
    assert named["franz"] == ("franz-go", "1.22.2", "1.22.2")
    assert named["billing"] == ("", "", "")


def test_evidence_of_unnamed_client_is_its_requests(report):
    (row,) = [row for row in table(report[1], "clients") if row["client_id"] == "billing"]
    may_be, sends = row["evidence"].split("; ")
    assert may_be.startswith("may be ")
    assert (sends, row["generation"]) == (
        "sends Produce 1, Fetch 1, Metadata 0, JoinGroup 0",
        "0.9",
    )


def test_advice_is_the_lowest_supported_version(report):
    needs = {row["client_id"]: row["needs"] for row in table(report[1], "clients")}
    assert needs["librdkafka-old"] == "librdkafka 1.8.2"
    assert needs["billing"] == (
        "java 2.1.0 or librdkafka 1.8.2 or kafkajs 1.15.0 or sarama 1.41.0 or "
        "kafka-python 2.0.2 or aiokafka 0.7.2 or franz-go 1.15.4, "
        "with its protocol setting left out, where it has one; no version of kafka-node is served"
    )
    assert (needs["shop"], needs["java-1.0"]) == ("", "")


def test_shared_topics_and_groups_are_listed(report):
    assert {(row["kind"], row["name"]) for row in table(report[1], "bindings")} == {
        ("topic", "orders"),
        ("group", "billers"),
    }


def test_conversions_are_charged_to_the_consumer(report):
    (row,) = table(report[1], "conversions")
    assert (row["client_id"], row["topic"], row["cpu_seconds"], row["converted_bytes"]) == (
        "billing",
        "orders",
        "5.0",
        str(300 * 1024 * 10),
    )
    assert report[2]["conversions"]["cpu_seconds"] == 5.0


def test_trend_reaches_zero_where_the_regression_line_does(report):
    """Calculated manually.

    Days -10 to -1 with 7,7,7,7,7,6,6,6,6,6: slope -12.5/82.5, mean 6.5 at -5.5, so 5.667 today, and
    zero after 37.4 days.
    """
    assert [int(row["refused_applications"]) for row in table(report[1], "trend")] == [7] * 5 + [
        6
    ] * 5
    assert report[2]["trend"]["per_day"] == pytest.approx(-12.5 / 82.5)
    assert report[2]["trend"]["reaches_zero"] == "2026-12-28"


def numbers(row, *names):
    return tuple(int(row[name]) for name in names)


#: `billing` and `shop` on any day: 40 requests, 10 of them of a group, each 1 KiB with a response
#: of a tenth; topics have the bytes of their batches only.
KIB = known_traffic.KIB
ALL, OF_GROUP = (40, 40 * KIB + 4 * KIB), (10, 10 * KIB + KIB)
OF_BILLING = {
    ("principal", "User:ANONYMOUS"): ALL,
    ("client_id", "billing"): ALL,
    ("listener", "PLAINTEXT"): ALL,
    ("group", "billers"): OF_GROUP,
    ("topic", "orders"): (0, 390 * KIB),
}
OF_SHOP = {
    ("principal", "User:ANONYMOUS"): ALL,
    ("client_id", "shop"): ALL,
    ("listener", "PLAINTEXT"): ALL,
    ("group", "billers"): OF_GROUP,
    ("topic", "orders"): (0, 90 * KIB),
    ("topic", "invoices"): (0, 10 * KIB),
}


@pytest.mark.parametrize("day", [known_traffic.DAYS[0], known_traffic.DAYS[-1]])
@pytest.mark.parametrize(
    ("kind", "wanted"), [(("", "", "0.9"), OF_BILLING), (("java", "2.8.2", "2.8"), OF_SHOP)]
)
def test_distribution_by_day_and_dimension_is_as_expected(report, day, kind, wanted):
    """No other applications are of the kinds of `billing` and `shop`."""
    rows = [
        row
        for row in table(report[1], "distribution")
        if (row["library"], row["version"], row["generation"]) == kind
    ]
    found = {
        (row["dimension"], row["value"]): numbers(row, "applications", "requests", "bytes")
        for row in rows
        if row["date"] == day
    }
    assert found == {place: (1, *counted) for place, counted in wanted.items()}


@pytest.mark.parametrize(
    ("day", "count"), [(known_traffic.DAYS[0], 11), (known_traffic.DAYS[-1], 10)]
)
def test_application_counts_once_per_day_and_dimension(report, day, count):
    """An application known only by its address has no principal and no client id."""
    applications = defaultdict(int)
    for row in table(report[1], "distribution"):
        if row["date"] == day:
            applications[row["dimension"], row["value"]] += int(row["applications"])
    assert applications["principal", "User:ANONYMOUS"] == count
    assert (applications["principal", ""], applications["client_id", ""]) == (1, 1)
    assert (
        sum(number for (dimension, _), number in applications.items() if dimension == "client_id")
        == count + 1
    )


def test_batches_are_counted_by_topic_and_record_format(report):
    ways = [f"magic_{way}_{magic}" for way in ("in", "out") for magic in (0, 1, 2)]
    found = {
        (row["date"], row["topic"]): numbers(row, *ways) for row in table(report[1], "formats")
    }
    wanted = {(day, "orders"): (4, 0, 4, 5, 0, 0) for day in known_traffic.DAYS} | {
        (day, "invoices"): (0,) * 6 for day in known_traffic.DAYS
    }
    assert found == wanted | {(day, "events"): (0, 4, 0, 0, 0, 0) for day in known_traffic.DAYS[:5]}


def test_matrix_has_lowest_and_highest_version_of_each_request(report):
    found = {
        (row["client_id"], row["api_key"]): numbers(row, "lowest", "highest", "requests")
        for row in table(report[1], "matrix")
        if row["client_id"] in ("franz", "lost-rows")
    }
    sent = 10 * len(known_traffic.DAYS)
    assert found == {
        ("franz", "0"): (11, 11, sent),
        ("franz", "1"): (17, 17, sent),
        ("franz", "3"): (9, 12, 2 * sent),
        ("franz", "11"): (9, 9, sent),
        ("franz", "18"): (4, 4, sent),
        ("lost-rows", "1"): (3, 3, 0),
        ("lost-rows", "3"): (2, 2, 0),
    }


def test_non_applications_are_in_no_table(report):
    for name in ("clients", "blockers", "matrix"):
        assert {row["client_id"] for row in table(report[1], name)} & known_traffic.NONE == set()
    assert report[2]["log"]["never_logged_in"] == len(known_traffic.DAYS)


def test_lost_lines_are_counted(report):
    """Two usage rows per day of the application whose rows were lost."""
    assert report[2]["log"]["lines_missing"] == 2 * len(known_traffic.DAYS)


def test_summary_is_written_and_answer_is_not_ready(report):
    from reports.page import answer

    assert json.loads((report[1] / "summary.json").read_text()) == report[2]
    assert answer.exit_code(report[2]) == 3
    assert len(answer.five_lines(report[2])) == 5
    assert not (report[1] / ".new").exists()


def test_page_names_every_application(report):
    made = (report[1] / "report.html").read_text()
    assert [
        name for name in known_traffic.STATES if name and f">{name}<small>User:" not in made
    ] == []
    # Only the address of a bare token is known.
    assert ">no client id<small>no principal at 10.0.1.3<" in made


def test_every_table_is_also_parquet_with_same_row_count(spark, report):
    names = {path.stem for path in report[1].glob("*.csv")}
    assert names == {
        "clients",
        "blockers",
        "bindings",
        "conversions",
        "distribution",
        "formats",
        "matrix",
        "trend",
    }
    assert {name: spark.read.parquet(str(report[1] / name)).count() for name in names} == {
        name: len(table(report[1], name)) for name in names
    }


def test_files_of_killed_run_are_removed_before_rows_are_written(pyspark, tmp_path, monkeypatch):
    from reports import run as of_run
    from reports.ingest.taken_files import TablesError

    left = tmp_path / "out" / ".new"
    (left / "activity").mkdir(parents=True)
    (left / "activity" / "part-0.parquet").write_bytes(bytes(100))

    def write(*_):
        assert not left.exists()
        raise TablesError("the disk is full")

    monkeypatch.setattr(of_run, "ingest_new", write)
    monkeypatch.setattr(of_run, "retry_quarantined", lambda *_: of_run.IngestResult())
    with pytest.raises(TablesError, match="the disk is full"):
        reported(None, tmp_path / "logs", tmp_path / "out")
    assert not left.exists()


@pytest.fixture(scope="module")
def identified(spark, report):
    """The activity of that log and its applications' libraries, which no target changes."""
    kept = report[0].with_name("kept")
    return tuple(spark.read.parquet(str(kept / name)) for name in ("activity", "identity"))


@pytest.mark.parametrize("target", known_traffic.STATES_FOR)
def test_other_target_gives_other_report_on_same_log(identified, target):
    """Uses the tables of that log, without its other output files."""
    from reports.analysis import activity, facts, readiness

    (did, named), aim = identified, facts.load_target(target)
    found = readiness.findings(did, activity.bare_tokens(did), aim)
    states = (
        readiness.applications(did, named, readiness.blockers(found), aim)
        .select("client_id", "state")
        .collect()
    )
    assert {row["client_id"]: row["state"] for row in states} == known_traffic.STATES_FOR[target]


def test_page_shows_most_frequent_libraries_and_combines_others(spark, monkeypatch):
    from reports.ingest.small_tables import small_table
    from reports.page import page_data

    monkeypatch.setattr(page_data, "MAX_KINDS", 2)
    monkeypatch.setattr(page_data, "MAX_SERIES", 1)
    made_up = (
        [("java", "3.9.1", "fine")] * 3
        + [("b", "1.0", "fine"), ("b", "1.0.7", "refused")]
        + [(f"x{n}", None, "refused") for n in range(5)]
    )
    clients = small_table(
        spark,
        [(*row, None) for row in made_up],
        "library string, version_high string, state string, generation string",
    )
    assert page_data._kinds(clients) == [
        ("java 3.9", {"fine": 3}),
        ("b 1.0", {"fine": 1, "refused": 1}),
        ("others", {"refused": 5}),
    ]
    days = [("2026-11-18", "client_id", *row[:2], None, 1) for row in made_up] + [
        ("2026-11-19", "client_id", "java", "3.9.0", None, 2)
    ]
    spread = small_table(
        spark,
        days,
        "date date, dimension string, library string, version string, generation string, "
        "applications int",
    )
    one, other = date(2026, 11, 18), date(2026, 11, 19)
    assert page_data._kinds_by_day(spread) == [
        ("java 3.9", {one: 3, other: 2}),
        ("others", {one: 7}),
    ]
    assert (
        page_data._most(
            clients.groupBy("library", "state").count().withColumnRenamed("library", "kind"),
            "state",
            1,
        ).count()
        == 3
    )


def test_empty_log_gives_no_report(spark, tmp_path):
    from reports.ingest.taken_files import TablesError

    (tmp_path / "logs").mkdir()
    with pytest.raises(TablesError, match="no traffic log data in"):
        reported(spark, tmp_path / "logs", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tables"}
    with pytest.raises(TablesError, match="choose another folder for the report"):
        reported(spark, tmp_path / "logs", tmp_path / "logs" / "out")


def test_unusable_log_gives_no_report_but_a_reason(spark, tmp_path):
    from reports.ingest.taken_files import TablesError

    process = Process(tmp_path / "logs")
    process.file("2026-11-18", 12, [b"no row", b"nor this"])
    with pytest.raises(
        TablesError,
        match=r"no traffic log data in \S+: 2 lines quarantined, first reason: \w+",
    ):
        reported(spark, process.logs, tmp_path / "out")
    path = process.file(
        "2026-11-18",
        13,
        [process.row("usage", ms("2026-11-18"), "1-a-1", api_key=3, api_version=9, requests=1)],
    )
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        TablesError,
        match=r"no traffic log data in \S+: 1 file cannot be used, first date=\S+: \w+",
    ):
        reported(spark, process.logs, tmp_path / "out")


def test_log_of_probes_and_failed_logins_gives_no_report(spark, tmp_path):
    from reports.ingest.taken_files import TablesError

    process, begin = Process(tmp_path / "logs"), ms("2026-11-18")
    rows = process.connection(begin, begin + 1000, principal=None)
    failed = {"principal": None, "protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN"}
    rows += process.connection(
        begin,
        begin + 1000,
        ["wrong-password"],
        known_traffic.requests((known_traffic.HANDSHAKE, 1)),
        **failed,
    )
    # Idle: it authenticated and did nothing else.
    rows += process.connection(begin, begin + 1000, protocol="SASL_PLAINTEXT", mechanism="PLAIN")
    process.file("2026-11-18", 12, rows)
    with pytest.raises(
        TablesError,
        match=r"no applications in \S+ since 2026-10-21: clients sent no requests",
    ):
        reported(spark, process.logs, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tables"}
