"""Reports with `spark-submit` on a standalone master and a worker with a separate executor process,
on loopback.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tests.reports.conftest import FOR_SMALL_TABLES, submit_arguments
from tests.reports.traffic.traffic_logs import Process, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.usefixtures("pyspark")]

ROOT = Path(__file__).parents[2]
DAYS = ("2026-11-19", "2026-11-20")
#: Otherwise the executor uses Spark's default memory and the driver opens a web UI.
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
}
SMALL |= {name.replace("_", "."): text for name, text in FOR_SMALL_TABLES.items()}


@contextmanager
def running(
    *words: str, environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the cluster, stopped at the end. Its output is in `log`."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture
def of_cluster() -> dict[str, str]:
    """Environment of a machine with Spark but without kopgate and without Python."""
    import pyspark

    mine = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        **mine,
        # The flags of an archive of classes, which are those of the driver.
        "SPARK_DAEMON_JAVA_OPTS": mine.get("SPARK_SUBMIT_OPTS", ""),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": "/nonexistent",
    }


@pytest.fixture
def settings(of_cluster, tmp_path) -> str:
    """The option of the driver's settings. They are in no folder on the class path, with which Java
    would not use an archive of its classes.
    """
    file = tmp_path / "settings.conf"
    flags = {"spark.executor.extraJavaOptions": of_cluster["SPARK_DAEMON_JAVA_OPTS"]}
    file.write_text("".join(f"{name} {value}\n" for name, value in (SMALL | flags).items()))
    return f"--properties-file={file}"


@pytest.fixture
def environment(of_cluster, settings) -> dict[str, str]:
    """The driver's environment."""
    of_kopgate = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return {**of_cluster, **of_kopgate, **submit_arguments({}, settings)}


@pytest.fixture
def master(of_cluster, tmp_path) -> Iterator[str]:
    """The master's address, on a port that it chooses; a port found free before might be in use by
    then.
    """
    of, log = f"{of_cluster['SPARK_HOME']}/bin/spark-class", tmp_path / "master.log"
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with running(
        of, "org.apache.spark.deploy.master.Master", *place, environment=of_cluster, log=log
    ) as process:
        while not (
            found := re.search(r"Starting Spark master at (spark://\S+:\d+)\s", log.read_text())
        ):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        worker = (
            *place,
            "--cores",
            "2",
            "--memory",
            "1g",
            "--work-dir",
            str(tmp_path / "work"),
            found[1],
        )
        with running(
            of,
            "org.apache.spark.deploy.worker.Worker",
            *worker,
            environment=of_cluster,
            log=tmp_path / "worker.log",
        ):
            yield found[1]


@pytest.fixture
def logs(tmp_path):
    process = Process(tmp_path / "logs")
    for day in DAYS:
        begin = ms(day)
        rows = process.connection(
            begin, begin + 60_000, ["billing"], [(0, 1, 10, 100, 100), (1, 4, 5, 50, 70)]
        )
        rows += process.connection(begin, begin + 60_000, ["shop"], [(0, 9, 7, 100, 100)])
        process.file(day, 12, rows)
    process.file(DAYS[0], 13, [b'{"half'])
    return process.logs


def submitted(environment, settings, master, *words):
    place = subprocess.run(
        [sys.executable, "-m", "reports.places"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    command = [
        f"{environment['SPARK_HOME']}/bin/spark-submit",
        "--master",
        master,
        settings,
        place,
        *map(str, words),
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def said(out):
    """The content of a report that does not depend on its time."""
    summary = json.loads((out / "summary.json").read_text())
    del summary["made_at"]
    return summary, (out / "clients.csv").read_text(), (out / "blockers.csv").read_text()


def test_cluster_report_equals_local_report(spark, environment, settings, master, logs, tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    first = submitted(
        environment, settings, master, "--logs", logs, "--out", there, "--since", DAYS[0]
    )
    assert first.returncode == 3, first.stderr[-3000:]
    # Spark forwards stdout and stderr of Python as one stream.
    *before, warning = first.stdout.splitlines()[:-5]
    assert warning == "Warning: 1 new lines quarantined: incomplete line", before
    assert list((tmp_path / "work").glob("app-*/0")), (
        "no executor of the cluster had any part in it"
    )
    assert first.stdout.splitlines()[-5:] == reported_here(spark, logs, here)
    assert said(there) == said(here)


def reported_here(spark, logs, out):
    """Make a local report and return its answer."""
    from reports.analysis import facts
    from reports.page import answer
    from reports.run import ReportRequest, run

    target = facts.load_target(facts.DEFAULT_TARGET)
    order = ReportRequest(logs, out, target, date.fromisoformat(DAYS[0]))
    return answer.five_lines(run(spark, order, datetime.now(UTC)))


@pytest.mark.slow
def test_report_of_the_command_on_a_cluster_equals_local_report(
    spark, environment, master, logs, tmp_path
):
    there, here = tmp_path / "there", tmp_path / "here"
    words = ["--logs", logs, "--out", there, "--since", DAYS[0], "--master", master]
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "report", *map(str, words), "--memory", "512m"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == reported_here(spark, logs, here), done.stderr[-3000:]
    assert len(list((tmp_path / "work").glob("app-*/0"))) == 1
    assert said(there) == said(here)


def test_object_store_url_is_rejected_with_advice(monkeypatch, capsys, tmp_path):
    """Before Spark starts."""
    from reports.__main__ import main

    words = ["reports", "--logs", "s3a://bucket/logs", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert "mounted or copied first" in " ".join(capsys.readouterr().err.split())
