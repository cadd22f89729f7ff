"""Ingestion from the topic with Spark's Kafka source through a real gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.reports.conftest import FOR_SMALL_TABLES, submit_arguments
from tests.reports.traffic.traffic_logs import Process, ms
from tests.testkit.cache import CannotInstall
from tests.testkit.gateway import gateway, one_record
from tests.testkit.traffic_rows import read_rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
TOPIC = "orders"


@pytest.fixture
def environment(pyspark):
    """Environment with Spark's Kafka source and settings for small tables."""
    import pyspark

    from tests.reports.spark_cache import connector

    try:
        jars = ",".join(map(str, connector(pyspark.__version__)))
    except CannotInstall as missing:
        pytest.fail(str(missing))
    return {
        **os.environ,
        **submit_arguments(FOR_SMALL_TABLES, "--driver-memory 512m", f"--jars {jars}"),
    }


@pytest.fixture
def following(environment, tmp_path):
    """The ingesting command as a process."""

    def start(server, *more):
        address = "{}:{}".format(*server.address)
        command = [
            sys.executable,
            "-m",
            "reports.follow",
            "--bootstrap-servers",
            address,
            "--out",
            str(tmp_path / "out"),
            "--master",
            "local[1]",
        ]
        return subprocess.Popen(
            [*command, *more],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def ends_well(process):
    errors = process.communicate()[1]
    assert process.returncode == 0, errors[-3000:]


def produces(server, times=3):
    for _ in range(times):
        with server.peer() as peer:
            peer.create_topic(TOPIC)
            assert peer.produce(TOPIC, one_record(b"v")).error_code == 0


def test_rows_of_topic_and_files_count_once_despite_killed_process(spark, following, tmp_path):
    """First from the topic, until the process is killed; then in turns."""
    from reports.ingest.ingest_job import ingest, stored
    from reports.ingest.taken_files import Tables

    log, out = tmp_path / "traffic", tmp_path / "out"
    tables = Tables(out / "tables")
    writing = ("--traffic-log", str(log), "--traffic-topic")

    def there():
        rows = [
            row
            for kind in ("usage", "connection")
            for row in stored(spark, tables, kind).select("connection", "sequence").collect()
        ]
        return sorted(map(key, rows))

    def written():
        return sorted(map(key, read_rows(log)))

    with gateway(tmp_path, *writing, traffic_log_interval_ms=1000) as server:
        produces(server)
        with following(server, "--every", "1") as process:
            while not tables.batches():
                assert process.poll() is None, process.stderr.read()[-3000:]
                time.sleep(0.01)
            # Its Java, too, which would continue to read the topic during the next run.
            os.killpg(process.pid, signal.SIGKILL)
        first = there()
        assert len(first) >= 3 * 3
        assert server.stop() == 0
    taken = ingest(spark, log, tables, datetime.now(UTC))
    assert (there(), taken.repeated_rows) == (written(), len(first))
    before = there()
    with gateway(tmp_path, *writing, traffic_log_interval_ms=1000) as server:
        produces(server)
        ends_well(following(server, "--once"))
        followed = there()
        assert server.stop() == 0
    everything = written()
    assert set(first) < set(before) < set(followed) < set(everything)
    assert len(followed) == len(set(followed))
    taken = ingest(spark, log, tables, datetime.now(UTC))
    assert (there(), taken.repeated_rows) == (everything, len(followed) - len(before))


def key(row):
    """The process and the number of a row."""
    return row["connection"].rpartition("-")[0], row["sequence"]


def test_row_counts_on_day_of_its_record_if_clock_jumped(spark, tmp_path):
    from pyspark.sql import functions as F

    from reports.follow import ingest_batch
    from reports.ingest.ingest_job import stored
    from reports.ingest.small_tables import small_table
    from reports.ingest.taken_files import Tables

    process, written = Process(tmp_path), ms("2026-11-20", 0, 10)
    times = [
        written,
        ms("2026-11-19", 23, 59),
        ms("2026-11-10"),
        ms("2026-11-30"),
        ms("1970-01-01"),
    ]
    said = {"api_key": 0, "api_version": 9}
    values = [(json.dumps(process.row("usage", at, "1-a-1", **said)), written) for at in times]
    records = small_table(spark, values, "value string, written long")
    tables = Tables(tmp_path / "tables")
    lines = records.select("value", F.timestamp_millis("written").alias("timestamp"))
    assert ingest_batch(lines, tables, "q/0", datetime(2026, 11, 20, 8, tzinfo=UTC)).rows == {
        "usage": 5
    }
    found = {
        row["at"]: (row["date"].day, row["clock_jumped"])
        for row in stored(spark, tables, "usage").collect()
    }
    assert found == dict(
        zip(times, [(20, False), (19, False), (20, True), (20, True), (20, True)], strict=True)
    )


def test_batch_with_too_many_processes_keeps_the_largest_and_continues(
    spark, tmp_path, monkeypatch
):
    from pyspark.sql import functions as F

    from reports.follow import ingest_batch
    from reports.ingest import batch_writer
    from reports.ingest.ingest_job import stored
    from reports.ingest.small_tables import small_table
    from reports.ingest.taken_files import Tables

    monkeypatch.setattr(batch_writer, "MAX_PROCESSES", 2)
    at, now = ms("2026-11-20", 0, 10), datetime(2026, 11, 20, 8, tzinfo=UTC)
    processes = [Process(tmp_path, start=f"p{number}") for number in range(4)]
    tables = Tables(tmp_path / "tables")

    def takes(batch, *counts):
        rows = [
            (json.dumps(one.row("usage", at, f"1-{one.start}-1", api_key=0, api_version=9)), at)
            for one, count in zip(processes, counts, strict=True)
            for _ in range(count)
        ]
        lines = small_table(spark, rows, "value string, written long").select(
            "value", F.timestamp_millis("written").alias("timestamp")
        )
        return ingest_batch(lines, tables, f"q/{batch}", now)

    def there():
        rows = stored(spark, tables, "usage").select("connection", "sequence").collect()
        return sorted((row["connection"][2:4], row["sequence"]) for row in rows)

    taken = takes(0, 1, 3, 2, 1)
    assert (taken.rows, taken.quarantined, taken.repeated_rows) == (
        {"usage": 5},
        {batch_writer.TOO_MANY_PROCESSES: 2},
        0,
    )
    of_the_busiest = [("p1", 0), ("p1", 1), ("p1", 2), ("p2", 0), ("p2", 1)]
    assert there() == of_the_busiest
    left = [json.loads(row["line"]) for row in stored(spark, tables, "quarantine").collect()]
    assert sorted(row["connection"] for row in left) == ["1-p0-1", "1-p3-1"]
    assert {(row["kind"], row["at"], row["api_version"], row["sequence"]) for row in left} == {
        ("usage", at, 9, 0)
    }
    assert takes(1, 1, 0, 0, 1).rows == {"usage": 2}
    assert there() == sorted([*of_the_busiest, ("p0", 1), ("p3", 1)])
