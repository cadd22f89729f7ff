"""The command as a process: answer, exit code, and a full disk."""

from __future__ import annotations

import csv
import glob
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import are_required
from tests.reports.conftest import FOR_SMALL_REPORTS
from tests.reports.suspended import suspend_at
from tests.reports.terminal import running_in, when
from tests.reports.traffic.traffic_logs import Process, ms

# A report in a separate process took five minutes on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.usefixtures("pyspark")]

ROOT = Path(__file__).parents[2]
DAY = "2026-11-20"
#: Runs a command on a small volume that is unmounted with it, as root or in a user namespace.
NAMESPACES = [["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]]
#: Arguments: folder, folder for copies, sizes, command. Runs the command on a volume of each of the
#: sizes, and copies its output and the content each time. All in one script, since the volume
#: exists only in its process.
ON_DISKS = """
out="$0" kept="$1" sizes="$2"; shift 2
mount -t tmpfs none "$out" || exit 99
for size in $sizes; do
    mount -o remount,size=$size "$out" || exit 98
    mkdir "$kept/$size"
    "$@" > "$kept/$size/stdout" 2> "$kept/$size/stderr"
    printf %s $? > "$kept/$size/code"
    cp -r "$out" "$kept/$size/out" || exit 97
done
"""
#: Full while rows are written, full while the report is made, and with room.
SMALL, LARGER, ROOMY = "200k", "800k", "64m"


def write(logs):
    process = Process(logs)
    begin = ms(DAY)
    rows = process.connection(begin, begin + 60_000, ["billing"], [(0, 1, 10, 100, 100)])
    # Incompressible names, to fill a small disk.
    rows += [
        process.row(
            "usage",
            begin,
            "1-a-1",
            api_key=3,
            api_version=9,
            requests=1,
            topic=os.urandom(40).hex(),
        )
        for _ in range(5000)
    ]
    process.file(DAY, 12, rows)
    return process.logs


def command(logs, out):
    folders = ["--logs", str(logs), "--out", str(out)]
    return [
        sys.executable,
        "-m",
        "gateway",
        "report",
        *folders,
        "--since",
        "9999d",
        "--master",
        "local[1]",
        "--memory",
        "512m",
    ]


def report(logs, out, *before):
    return subprocess.run(
        [*before, *command(logs, out)],
        cwd=ROOT,
        env={**os.environ, **FOR_SMALL_REPORTS},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def logs(tmp_path):
    return write(tmp_path / "logs")


def killed_when(pattern, there, logs, out, with_java):
    """Kill a report as soon as a file in `out` matches `pattern`; return whether it was killed
    before its end.

    The report is suspended once a file matches `there`. Its Java has ended when this returns: it is
    killed, too, or ends by itself.
    """

    def made():
        # Unlike pathlib's, this ignores folders that disappear in the meantime.
        return set(glob.glob(f"{out}/**/{pattern}", recursive=True))

    before = made()
    words = suspend_at(command(logs, out), out, there)
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **FOR_SMALL_REPORTS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        when(process, lambda: not made() <= before)
        if with_java:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    while running_in(process.pid):
        time.sleep(0.05)
    return process.returncode == -signal.SIGKILL


def report_on_disks(folder, *sizes):
    """The folder with the log, and with copies of a volume with the report, by size."""
    within = next(
        (
            found
            for found in NAMESPACES
            if subprocess.run([*found, "true"], capture_output=True, check=False).returncode == 0
        ),
        None,
    )
    if within is None:
        missing = "no volume can be mounted here: neither as root nor in a namespace of one's own"
        (pytest.fail if are_required() else pytest.skip)(missing)
    out = folder / "out"
    out.mkdir()
    words = [*within, "sh", "-c", ON_DISKS, str(out), str(folder), " ".join(sizes)]
    done = report(write(folder / "logs"), out, *words)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def full_disk(pyspark, tmp_path_factory):
    return report_on_disks(tmp_path_factory.mktemp("disk"), SMALL)


@pytest.fixture(scope="module")
def disks(pyspark, tmp_path_factory):
    return report_on_disks(tmp_path_factory.mktemp("disks"), SMALL, LARGER, ROOMY)


def is_reported_as_full(kept, batches):
    from reports.ingest.taken_files import Tables

    assert ((kept / "code").read_text(), (kept / "stdout").read_text()) == ("1", "")
    told = (kept / "stderr").read_text()
    assert "no space left in" in told.splitlines()[-1]
    assert "Traceback" not in told
    assert (
        len(Tables(kept / "out" / "tables").batches()),
        (kept / "out" / "summary.json").exists(),
    ) == (batches, False)


def test_full_disk_is_reported_and_next_run_counts_everything_once(spark, full_disk):
    from reports.ingest.ingest_job import ingest, stored
    from reports.ingest.taken_files import Tables

    is_reported_as_full(full_disk / SMALL, batches=0)
    tables = Tables(full_disk / SMALL / "out" / "tables")
    ingest(spark, full_disk / "logs", tables, datetime.now(UTC))
    rows = stored(spark, tables, "usage")
    assert (rows.count(), rows.select("sequence").distinct().count()) == (5001, 5001)


@pytest.mark.slow
def test_disk_full_while_report_is_made_is_reported(disks):
    is_reported_as_full(disks / LARGER, batches=1)


@pytest.mark.slow
def test_run_after_full_disks_counts_everything_once(spark, disks):
    from reports.ingest.ingest_job import stored
    from reports.ingest.taken_files import Tables

    out = disks / ROOMY / "out"
    rows = stored(spark, Tables(out / "tables"), "usage")
    assert (rows.count(), rows.select("sequence").distinct().count()) == (5001, 5001)
    with (out / "clients.csv").open(newline="") as file:
        counts = {
            row["client_id"]: (row["requests"], row["topic_count"]) for row in csv.DictReader(file)
        }
    assert counts == {"billing": ("10", "0"), "": ("5000", "5000")}
    assert json.loads((out / "summary.json").read_text())["log"]["files"] == 0


@pytest.mark.slow
def test_answer_has_five_lines_and_exit_code_says_not_ready(disks):
    last = disks / ROOMY
    answer, told = (last / "stdout").read_text(), (last / "stderr").read_text()
    assert ((last / "code").read_text(), len(answer.splitlines())) == ("3", 5), told
    # And none of the output of Java and Spark at each start. Only the run before had new files.
    before = (disks / LARGER / "stderr").read_text().splitlines()
    assert before[:3] == ["starting Spark", "files", "clients"]
    assert told.splitlines() == [
        "starting Spark",
        "clients",
        "readiness",
        "costs",
        "trend",
        "summary",
        "done",
    ]
    assert "billing" in answer.splitlines()[1]
    out = last / "out"
    assert json.loads((out / "summary.json").read_text())["applications"]["refused"] == 1
    assert "billing" in (out / "report.html").read_text()


@pytest.mark.parametrize("kills", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_report_counts_everything_once_next_time(spark, logs, tmp_path, kills):
    """While rows are written, after the commit (rows of open files not yet), and while the report
    is made. With two kills its Java is killed, too; with three it ends by itself.
    """
    from reports.ingest.ingest_job import ingest, stored
    from reports.ingest.taken_files import Tables

    process = Process(logs, node=2)
    process.file(
        DAY,
        12,
        [
            process.row("usage", ms(DAY), "2-a-1", api_key=3, api_version=9, requests=1)
            for _ in range(10)
        ],
        packed=False,
    )
    tables = Tables(tmp_path / "out" / "tables")
    (tmp_path / "out").mkdir()
    for pattern, there in (
        ("batch=*/_temporary", "tables"),
        ("taken/*.json", "tables/taken/*.json"),
        ("clients.csv", "clients.csv"),
    )[:kills]:
        assert killed_when(pattern, there, logs, tmp_path / "out", with_java=kills == 2), pattern
    assert not (tmp_path / "out" / "summary.json").exists()
    ingest(spark, logs, tables, datetime.now(UTC))
    assert {path.name for path in tables.folder.glob("batch=*")} == {
        f"batch={batch.name}" for batch in tables.batches()
    }
    rows = stored(spark, tables, "usage")
    assert (rows.count(), rows.select("node", "sequence").distinct().count()) == (
        5001 + 10,
        5001 + 10,
    )
