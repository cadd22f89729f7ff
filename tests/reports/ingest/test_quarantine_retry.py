"""Quarantined lines of a schema version that has become known are ingested, each once despite
interruptions.
"""

from __future__ import annotations

import gzip
import itertools
import os
import pydoc
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tests.reports.terminal import running_in, when
from tests.reports.traffic.traffic_logs import Process, lines, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DAY = "2026-11-20"
NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
REASON = "unknown schema version 2"


class KilledError(Exception):
    """Simulates the end of the process."""


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path / "logs")


@pytest.fixture
def tables(pyspark, tmp_path):
    from reports.ingest.taken_files import Tables

    return Tables(tmp_path / "tables")


@pytest.fixture
def knows(pyspark, monkeypatch):
    """Simulate a release that knows these versions."""
    from reports.ingest import row_parser

    return lambda *versions: monkeypatch.setattr(row_parser, "VERSIONS", versions)


@pytest.fixture
def take(spark, process, tables):
    """Retry the quarantine, then ingest new files; return the result."""
    from reports.ingest.ingest_job import ingest_new, retry_quarantined

    def run():
        with tables.locked():
            found = retry_quarantined(spark, tables, NOW)
            ingest_new(spark, process.logs, tables, NOW, lambda done, of: None)
            return found

    return run


@pytest.fixture
def numbers(spark, tables):
    from reports.ingest.ingest_job import stored

    return lambda: sorted(
        row["sequence"] for row in stored(spark, tables, "usage").select("sequence").collect()
    )


def some(process, count, version=1, **fields):
    said = {"api_key": 0, "api_version": 9, "requests": 1, **fields}
    return [
        {**process.row("usage", ms(DAY, 12, 30), f"1-{process.start}-1", **said), "v": version}
        for _ in range(count)
    ]


def test_lines_of_now_known_version_count_once_without_their_files(
    spark, process, take, knows, numbers, tables
):
    from reports.ingest.ingest_job import stored

    rows = [
        *some(process, 3),
        *some(process, 4, version=2, topic="日本"),
        *some(process, 2, version=3),
        *some(process, 1),
    ]
    first = process.file(DAY, 12, rows)
    take()
    # Some of them are in quarantine twice.
    again = first.with_name("other.jsonl.gz")
    again.write_bytes(gzip.compress(lines(rows[5:8])))
    assert (take().rows, numbers()) == ({}, [0, 1, 2, 9])
    first.unlink()
    again.unlink()
    knows(1, 2)
    taken = take()
    assert (taken.rows, taken.quarantined, taken.repeated_rows, numbers()) == (
        {"usage": 4},
        {},
        2,
        [0, 1, 2, 3, 4, 5, 6, 9],
    )
    noted = tables.batches()
    assert (take().rows, numbers(), tables.batches()) == ({}, [0, 1, 2, 3, 4, 5, 6, 9], noted)
    found = (
        stored(spark, tables, "usage")
        .filter("topic is not null")
        .select("v", "topic", "date")
        .distinct()
        .collect()
    )
    assert [tuple(row) for row in found] == [(2, "日本", date.fromisoformat(DAY))]
    process.file(DAY, 13, rows[2:])
    knows(1, 2, 3)
    assert (take().rows, numbers()) == ({"usage": 2}, list(range(10)))
    assert stored(spark, tables, "quarantine").count() == 4 + 2 + 2 + 1


def test_line_invalid_for_its_version_is_quarantined_again(process, take, knows, numbers):
    process.file(
        DAY,
        12,
        [
            *some(process, 1),
            *some(process, 1, version=2, requests=-1),
            *some(process, 1, version=2),
        ],
    )
    take()
    knows(1, 2)
    taken = take()
    assert (taken.rows, taken.quarantined, numbers()) == (
        {"usage": 1},
        {"number out of range": 1},
        [0, 2],
    )


#: In CI a run is interrupted at these: before and after the commit.
IN_CI = ("new rows are written", "they are noted")
#: By step, the last function that runs, and how often it has run by then.
STEPS = {
    "all lines are written": ("reports.ingest.batch_writer.write", 1),
    "new rows are written": ("reports.ingest.batch_writer.write", 2),
    "what was written is looked at": ("reports.ingest.batch_writer.read_back", 2),
    "they are noted": ("reports.ingest.taken_files.os.link", 1),
}


@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=() if step in IN_CI else (pytest.mark.slow,)) for step in STEPS],
)
def test_lines_count_once_after_interruption_at_each_step(
    process, take, knows, numbers, monkeypatch, step
):
    process.file(DAY, 12, [*some(process, 2), *some(process, 3, version=2)])
    take()
    process.file(DAY, 13, some(process, 2))
    knows(1, 2)
    with monkeypatch.context() as patched:
        _kill_after(patched, *STEPS[step])
        with pytest.raises(KilledError):
            take()
    assert numbers() == ([0, 1, 2, 3, 4] if step == "they are noted" else [0, 1])
    take()
    assert numbers() == list(range(7))


def _kill_after(patched, name, times):
    function, calls = pydoc.locate(name), itertools.count(1)

    def last(*given):
        result = function(*given)
        if next(calls) == times:
            raise KilledError
        return result

    patched.setattr(name, last)


ROOT = Path(__file__).parents[3]
#: Retries the quarantine as a release that knows version 2, and hangs before the commit.
TAKES = """
import sys, time
from datetime import datetime
from pathlib import Path
from reports.ingest import row_parser
from reports.ingest.ingest_job import retry_quarantined
from reports.spark_session import open_session
from reports.ingest.taken_files import Tables
from tests.reports.conftest import FOR_SMALL_TABLES

row_parser.VERSIONS, Tables.commit = (1, 2), lambda *_: time.sleep(3600)
tables = Tables(Path(sys.argv[1]))
with tables.locked():
    spark = open_session("local[1]", "512m", **FOR_SMALL_TABLES)
    retry_quarantined(spark, tables, datetime.fromisoformat(sys.argv[2]))
"""


@contextmanager
def taking(tables):
    """The process; at the end both it and its Java are gone."""
    words = [sys.executable, "-c", TAKES, str(tables.folder), NOW.isoformat()]
    with subprocess.Popen(
        words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            yield running
        finally:
            if running_in(running.pid):
                os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "point",
    [
        "while new rows are written",
        pytest.param("before they are noted", marks=pytest.mark.slow),
    ],
)
def test_lines_count_once_after_process_is_killed(process, take, knows, numbers, tables, point):
    process.file(DAY, 12, [*some(process, 2), *some(process, 3, version=2)])
    take()
    process.file(DAY, 13, some(process, 2))
    (there,) = tables.batches()
    written = "kind=usage/date=*/*.parquet"
    # If the first file exists too briefly to be seen, the written ones follow and stay.
    seen = {
        "while new rows are written": ["_temporary", written],
        "before they are noted": [written],
    }[point]

    def is_there():
        found = {
            path.relative_to(tables.folder).parts[0]
            for one in seen
            for path in tables.folder.glob(f"batch=*/{one}")
        }
        # All lines, new or not, are first written to a separate folder.
        return [
            name for name in found if name != f"batch={there.name}" and not name.endswith("-all")
        ]

    with taking(tables) as running:
        when(running, is_there)
        assert running.poll() is None, running.stderr.read()[-3000:]
        running.kill()
        # The lock is released when the process ends. Its Java may still write.
        running.wait()
        assert numbers() == [0, 1]
        knows(1, 2)
        take()
    assert numbers() == list(range(7))
    with tables.locked():
        assert {path.name for path in tables.folder.glob("batch=*")} == {
            f"batch={batch.name}" for batch in tables.batches()
        }
