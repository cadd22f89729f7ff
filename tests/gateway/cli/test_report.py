"""`kopgate report` without Spark."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gateway.cli import report as command
from gateway.cli.main import main
from reports.ingest.taken_files import TablesError
from reports.interrupts import Interrupted

SUMMARY = {
    "target": "kafka-4.0", "ready": False, "from": "2026-11-01", "until": "2026-11-20",
    "applications": {"total": 1, "refused": 1, "below": 0, "unknown": 0, "fine": 0},
    "blockers": [], "bindings": {"topics": 0, "groups": 0, "first": None},
    "conversions": {"conversions": 0},
    "trend": {"days": 0, "first": None, "last": None, "reaches_zero": None, "why": "too few"},
    "log": {
        "damaged": [{"file": "a.jsonl", "reason": "it is cut off"}],
        "quarantined": {"incomplete line": 2}, "lines_missing": 3, "library_not_looked_for": 4,
    },
}  # fmt: skip


@pytest.fixture
def jobs(monkeypatch):
    """Replace the Spark jobs: record their arguments, return or raise a result."""
    seen = SimpleNamespace(summary=SUMMARY, error=None, orders=[])

    def run(order, master, memory, progress, signals):
        seen.orders.append(order)
        progress("files", 0.5)
        if seen.error:
            raise seen.error
        return seen.summary

    monkeypatch.setattr(command, "_load_reports", lambda: (run, lambda *order: order))
    monkeypatch.setattr(command.shutil, "which", lambda _: "/usr/bin/java")
    return seen


def report(tmp_path, *more):
    logs = tmp_path / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "0-a-0.jsonl").touch()
    return CliRunner().invoke(
        main, ["report", "--logs", str(logs), "--out", str(tmp_path / "out"), *more]
    )


def test_report_prints_five_lines_and_sets_exit_code(jobs, tmp_path):
    done = report(tmp_path)
    assert (len(done.stdout.splitlines()), done.exit_code) == (5, 3)
    jobs.summary = {**SUMMARY, "ready": True}
    assert report(tmp_path).exit_code == 0


def test_warnings_go_to_stderr(jobs, tmp_path):
    warnings = [line for line in report(tmp_path).stderr.splitlines() if line.startswith("Warning")]
    assert warnings == [
        "Warning: file skipped: a.jsonl: it is cut off",
        "Warning: 2 new lines quarantined: incomplete line",
        "Warning: library not determined for 4 applications: too many kinds of clients",
        "Warning: 3 lines are missing: dropped by gateways, in quarantine, or in deleted files",
    ]


def test_failure_is_one_line_and_exit_code_1(jobs, tmp_path):
    jobs.error = TablesError("there is no room left")
    done = report(tmp_path)
    assert (done.exit_code, done.stdout, done.stderr.splitlines()[-1]) == (
        1,
        "",
        "Error: there is no room left",
    )


#: The command in a separate process, with jobs that return immediately.
WITHOUT_SPARK = """
import sys
from gateway.cli.main import main
from gateway.cli import report
report.os.environ["JAVA_HOME"] = "/"
report._load_reports = lambda: (lambda *_: SUMMARY, lambda *_: None)
main(sys.argv[1:])
""".replace("SUMMARY", repr(SUMMARY))


def test_unwritable_stdout_names_summary_file(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "0-a-0.jsonl").touch()
    words = ["report", "--logs", str(tmp_path / "logs"), "--out", str(tmp_path / "out")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_SPARK, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert (
        last
        == f"Error: cannot write to stdout: No space left on device; see {words[-1]}/summary.json"
    )


def test_ctrl_c_reports_what_is_kept(jobs, tmp_path):
    jobs.error = Interrupted(signal.SIGINT)
    done = report(tmp_path)
    assert (done.exit_code, done.stdout, done.stderr.splitlines()[-1]) == (130, "", command.STOPPED)


def test_since_accepts_day_or_number_of_days(jobs, tmp_path):
    report(tmp_path, "--since", "2026-11-01")
    report(tmp_path, "--since", "90d")
    report(tmp_path)
    today = datetime.now(UTC).date()
    first, second, third = (order[3] for order in jobs.orders)
    assert (first, third) == (date(2026, 11, 1), None)
    assert today - second - timedelta(days=90) in (timedelta(0), timedelta(days=1))


@pytest.mark.parametrize(
    "more",
    [
        *(["--since", "soon"], ["--target", "kafka-5"], ["--logs", "/nowhere/at/all"]),
        *(
            ["--master", "localhost"],
            ["--master", "local[0]"],
            ["--master", "spark://host"],
            ["--memory", "2"],
            ["--memory", "much"],
        ),
    ],
)
def test_invalid_option_is_rejected_before_start(jobs, tmp_path, more):
    done = report(tmp_path, *more)
    assert (done.exit_code, jobs.orders) == (2, [])
    assert more[1] in done.stderr


@pytest.mark.parametrize(
    "more",
    [
        *(
            ["--master", "local"],
            ["--master", "local[4]"],
            ["--master", "local[*, 3]"],
            ["--master", "spark://10.0.0.1:7077"],
        ),
        *(
            ["--master", "spark://a:7077,b:7077"],
            ["--master", "yarn"],
            ["--memory", "512m"],
            ["--memory", "4G"],
        ),
    ],
)
def test_spark_options_are_passed_on(jobs, tmp_path, more):
    assert (report(tmp_path, *more).exit_code, len(jobs.orders)) == (3, 1)


def test_missing_pyspark_error_names_package(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = report(tmp_path)
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: PySpark is not installed: pip install 'kopgate[report]'\n",
    )


def test_missing_java_is_reported(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(command.shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    done = report(tmp_path)
    assert (done.exit_code, jobs.orders) == (1, [])
    assert "Spark needs Java 17" in done.stderr
