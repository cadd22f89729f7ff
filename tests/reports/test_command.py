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
from tests.reports.conftest import WITHOUT_CODEGEN
from tests.reports.suspended import suspend_at
from tests.reports.terminal import running_in, when
from tests.reports.traffic.traffic_logs import Process, ms

# A report in a separate process took five minutes on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.usefixtures("pyspark")]

ROOT = Path(__file__).parents[2]
DAY = "2026-11-20"
#: Runs a command on a small volume that is unmounted with it, as root or in a user namespace.
NAMESPACES = [["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]]
#: Arguments: folder, folder for copies, command. Runs the command on a volume that is full while
#: rows are written, then on a larger one that is full while the report is made, and then with room.
#: Copies the content each time. All in one script, since the volume exists only in its process.
THREE_TIMES = """
out="$0" kept="$1"; shift
mount -t tmpfs -o size=200k none "$out" || exit 99
for place in rows report; do
    mkdir "$kept/$place"
    "$@" > "$kept/$place/stdout" 2> "$kept/$place/stderr"
    printf %s $? > "$kept/$place/code"
    cp -r "$out" "$kept/$place/out" || exit 98
    mount -o remount,size=$([ $place = rows ] && echo 800k || echo 64m) "$out" || exit 97
done
"$@"
code=$?
cp -r "$out" "$kept/roomy" && exit $code
"""


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
        env={**os.environ, **WITHOUT_CODEGEN},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def logs(tmp_path):
    return write(tmp_path / "logs")


def killed_when(pattern, there, logs, out):
    """Kill a report as soon as a file in `out` matches `made`; return whether it was killed before
    its end.

    The report is suspended once a file matches `there`. Its Java has ended when this returns.
    """

    def made():
        # Unlike pathlib's, this ignores folders that disappear in the meantime.
        return set(glob.glob(f"{out}/**/{pattern}", recursive=True))

    before = made()
    words = suspend_at(command(logs, out), out, there)
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **WITHOUT_CODEGEN},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        when(process, lambda: not made() <= before)
        process.kill()
    while running_in(process.pid):
        time.sleep(0.05)
    return process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def disk(pyspark, tmp_path_factory):
    """The folder with copies of a volume that was full twice, and the last command."""
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
    folder = tmp_path_factory.mktemp("disk")
    out, kept = folder / "out", folder / "kept"
    out.mkdir()
    kept.mkdir()
    done = report(
        write(folder / "logs"), out, *within, "sh", "-c", THREE_TIMES, str(out), str(kept)
    )
    return kept, done


@pytest.mark.parametrize(("place", "batches"), [("rows", 0), ("report", 1)])
def test_full_disk_is_reported(disk, place, batches):
    from reports.ingest.taken_files import Tables

    kept = disk[0] / place
    assert ((kept / "code").read_text(), (kept / "stdout").read_text()) == ("1", "")
    told = (kept / "stderr").read_text()
    assert "no space left in" in told.splitlines()[-1]
    assert "Traceback" not in told
    assert (
        len(Tables(kept / "out" / "tables").batches()),
        (kept / "out" / "summary.json").exists(),
    ) == (batches, False)


def test_run_after_full_disks_counts_everything_once(spark, disk):
    from reports.ingest.ingest_job import stored
    from reports.ingest.taken_files import Tables

    out = disk[0] / "roomy"
    rows = stored(spark, Tables(out / "tables"), "usage")
    assert (rows.count(), rows.select("sequence").distinct().count()) == (5001, 5001)
    with (out / "clients.csv").open(newline="") as file:
        counts = {
            row["client_id"]: (row["requests"], row["topic_count"]) for row in csv.DictReader(file)
        }
    assert counts == {"billing": ("10", "0"), "": ("5000", "5000")}
    assert json.loads((out / "summary.json").read_text())["log"]["files"] == 0


def test_answer_has_five_lines_and_exit_code_says_not_ready(disk):
    kept, done = disk
    assert (done.returncode, len(done.stdout.splitlines())) == (3, 5), done.stderr
    # And none of the output of Java and Spark at each start. Only the run before had new files.
    before = (kept / "report" / "stderr").read_text().splitlines()
    assert before[:3] == ["starting Spark", "files", "clients"]
    assert done.stderr.splitlines() == [
        "starting Spark",
        "clients",
        "readiness",
        "costs",
        "trend",
        "summary",
        "done",
    ]
    assert "billing" in done.stdout.splitlines()[1]
    assert json.loads((kept / "roomy" / "summary.json").read_text())["applications"]["refused"] == 1
    assert "billing" in (kept / "roomy" / "report.html").read_text()


@pytest.mark.parametrize("kills", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_report_counts_everything_once_next_time(spark, logs, tmp_path, kills):
    """While rows are written, after the commit (rows of open files not yet), and while the report
    is made.
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
        assert killed_when(pattern, there, logs, tmp_path / "out"), pattern
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
