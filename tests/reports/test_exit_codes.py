"""Exit codes, output and leftover files of `kopgate report`. Most cases end before Spark starts."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.report import STOPPED
from tests.gateway.cli.screen import lines_of
from tests.reports.conftest import FOR_SMALL_REPORTS
from tests.reports.suspended import suspend_at
from tests.reports.terminal import COLUMNS, Terminal, running_in, when
from tests.reports.traffic.traffic_logs import Process, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.usefixtures("pyspark")]

ROOT = Path(__file__).parents[2]
DAY = "2026-11-20"


@pytest.fixture
def logs(tmp_path):
    """A log of one application with current versions."""
    process, begin = Process(tmp_path / "logs"), ms(DAY)
    process.file(
        DAY, 12, process.connection(begin, begin + 60_000, ["shop"], [(0, 9, 10, 100, 100)])
    )
    return process.logs


def command(*words):
    return [
        sys.executable,
        "-m",
        "gateway",
        "report",
        "--since",
        "9999d",
        "--master",
        "local[1]",
        "--memory",
        "512m",
        *map(str, words),
    ]


def report(*words, **environment):
    done = subprocess.run(
        command(*words),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def files_below(folder):
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--logs", "{tmp}/absent"], "is not a folder"),
        (
            ["--logs", "{tmp}/logs", "--target", "kafka-5"],
            "use kafka-4.0, kafka-4.x, kop, or the path of a .toml file",
        ),
        (
            ["--logs", "{tmp}/logs", "--since", "soon"],
            "neither a day (2026-11-01) nor a number of days (30d)",
        ),
        (["--logs", "s3a://bucket/logs"], "must be mounted or copied first"),
    ],
    ids=["no such folder", "an unknown target", "no day", "an address"],
)
def test_wrong_usage_exits_2_and_names_valid_values(logs, tmp_path, words, remedy):
    code, answer, told = report(
        "--out", tmp_path / "out", *[word.format(tmp=tmp_path) for word in words]
    )
    assert (code, answer, (tmp_path / "out").exists()) == (2, "", False)
    assert remedy in " ".join(told.split())


@pytest.mark.parametrize(
    ("logs_in", "out", "remedy"),
    [
        ("empty", "out", "--logs must be the folder that `kopgate serve --traffic-log` writes to"),
        ("logs", "logs/out", "choose another folder for the report with --out"),
        ("logs", "file/out", "make it writable, or choose another folder with --out"),
    ],
    ids=["an empty folder", "a report among the logs", "a place where nothing can be written"],
)
def test_impossible_report_exits_1_with_one_line_before_spark_starts(
    logs, tmp_path, logs_in, out, remedy
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = files_below(tmp_path)
    code, answer, told = report("--logs", tmp_path / logs_in, "--out", tmp_path / out)
    assert (code, answer, len(told.splitlines()), files_below(tmp_path)) == (1, "", 1, before)
    assert told.startswith("Error: ")
    assert remedy in told


def test_missing_java_is_reported_with_requirements(logs, tmp_path):
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "java"
    broken.write_text("#!/bin/sh\necho 'this Java is broken' >&2\nexit 1\n")
    broken.chmod(0o755)
    environment = {"PATH": f"{broken.parent}:{os.environ['PATH']}", "JAVA_HOME": str(tmp_path)}
    code, answer, told = report("--logs", logs, "--out", tmp_path / "out", **environment)
    assert (code, answer, files_below(tmp_path / "out")) == (1, "", set())
    assert told.splitlines()[0] == "starting Spark"
    assert "this Java is broken" in told
    assert "it must be version 17 or newer" in told.splitlines()[-1]
    assert "Traceback" not in told


@pytest.fixture
def small_reports(monkeypatch):
    for name, text in FOR_SMALL_REPORTS.items():
        monkeypatch.setenv(name, text)


@pytest.mark.usefixtures("small_reports")
def test_ready_report_exits_0_with_one_complete_progress_bar(logs, tmp_path):
    code, answer, written, left = Terminal(command("--logs", logs, "--out", tmp_path / "out")).end()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (code, summary["ready"], summary["applications"]["refused"], left) == (0, True, 0, []), (
        written
    )
    assert len(answer.splitlines()) == 5
    assert answer.startswith("kafka-4.0: ready. 1 application ")
    assert lines_of(written, COLUMNS) == ["[########################################] 100%  done"]
    assert [
        step
        for step in ("starting Spark", "files", "clients", "costs", "trend")
        if f"%  {step}" not in written
    ] == []
    assert not (tmp_path / "out" / ".new").exists()


@pytest.mark.usefixtures("small_reports")
@pytest.mark.parametrize(
    "point",
    [
        "while Java starts",
        "while rows are written",
        pytest.param("while the report is made", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_exits_130_with_one_line_and_leaves_nothing_incomplete(logs, tmp_path, point):
    out = tmp_path / "out"
    there, seen = {
        "while Java starts": ("nothing", lambda: "java" in running_in(here.process.pid)),
        "while rows are written": ("tables", lambda: glob.glob(f"{out}/tables/batch=*/_temporary")),
        "while the report is made": ("matrix", lambda: glob.glob(f"{out}/matrix")),
    }[point]
    here = Terminal(suspend_at(command("--logs", logs, "--out", out), out, there))
    when(here.process, seen)
    here.ctrl_c()
    code, answer, written, left = here.end()
    assert (code, answer, left) == (130, "", []), written
    bar, *words = lines_of(written, COLUMNS * 10)
    assert (bar.startswith("["), words) == (True, [STOPPED]), written
    noted = {path.stem for path in (out / "tables" / "taken").glob("*.json")}
    assert {path.name for path in (out / "tables").glob("batch=*")} == {
        f"batch={name}" for name in noted
    }
    assert [
        path.name
        for path in (out / ".new", out / "tables" / "copies", out / "summary.json")
        if path.exists()
    ] == []


@pytest.mark.usefixtures("small_reports")
def test_killed_java_exits_1_and_is_reported(logs, tmp_path):
    out = tmp_path / "out"
    here = Terminal(suspend_at(command("--logs", logs, "--out", out), out, "tables"))
    when(here.process, lambda: glob.glob(f"{out}/tables/batch=*"))
    for place in glob.glob("/proc/[0-9]*"):
        kill_if_java_of(here.process.pid, int(Path(place).name))
    code, answer, written, left = here.end()
    assert (code, answer, left) == (1, "", []), written
    assert lines_of(written, COLUMNS * 10)[-1].startswith("Error: Java ended or was killed")
    assert "Traceback" not in written
    assert list((out / "tables").glob("batch=*")) == []


def kill_if_java_of(session, process):
    try:
        if os.getsid(process) == session and "java" in Path(f"/proc/{process}/comm").read_text():
            os.kill(process, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        pass
