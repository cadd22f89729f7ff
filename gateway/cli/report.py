"""`kopgate report`: who still speaks old Kafka, from the traffic log. PySpark is needed by nothing else, and imported here alone, when it is asked for."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway.cli.progress import ProgressBar
from reports.analysis import facts
from reports.ingest.taken_files import TablesError
from reports.interrupts import Interrupted, SignalHandler
from reports.page import answer
from reports.places import folder
from reports.preconditions import check_preconditions
from reports.since import day

NO_PYSPARK = "reports need PySpark, which is not installed: pip install 'kopgate[report]'"
NO_JAVA = "Spark needs Java 17 or newer, and there is none here: install one (on Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
MASTER = (
    r"local(\[([1-9]\d*|\*)(, *\d+)?\])?|local-cluster\[.+\]|spark://[^\s/]+:\d+|yarn|k8s://\S+",
    "local[N], local[*] or spark://HOST:PORT (yarn and k8s://... are Spark's, too)",
)
MEMORY = (r"(?i)[1-9]\d*[kmgt]b?", "a size such as 512m or 2g")
STOPPED = "stopped; what was taken until now stays taken, and the next run goes on from there"


def _day(_: click.Context, __: click.Parameter, value: str | None) -> date | None:
    try:
        return day(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _matching(pattern: str, wanted: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """What Spark would find wrong half a minute later, in words of Java's."""

    def check(_: click.Context, __: click.Parameter, value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise click.BadParameter(f"{value!r} is not {wanted}")
        return value

    return check


def _folder(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    try:
        return folder(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--logs",
    callback=_folder,
    metavar="DIR",
    help="The traffic log: what `kopgate serve` wrote it to.  [default: what is in the tables]",
)
@click.option(
    "--out",
    callback=_folder,
    required=True,
    metavar="DIR",
    help="Where the report goes, and the tables made of the log.",
)
@click.option(
    "--target",
    default=facts.DEFAULT_TARGET,
    show_default=True,
    metavar="NAME",
    help=f"{', '.join(facts.target_names())}, or a TOML file.",
)
@click.option(
    "--since",
    callback=_day,
    metavar="DAY|Nd",
    help="The first day, or how many days back.  [default: 30d]",
)
@click.option(
    "--master",
    callback=_matching(*MASTER),
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="local[N], or spark://HOST:PORT.",
)
@click.option(
    "--memory",
    callback=_matching(*MEMORY),
    default="2g",
    show_default=True,
    metavar="SIZE",
    help="Memory for Spark on this machine.",
)
def report(
    logs: Path | None, out: Path, target: str, since: date | None, master: str, memory: str
) -> None:
    """Say which applications a target would refuse, from the traffic log.

    New log files are taken into tables below --out, each once; it may be run again at any time, and while gateways write. Five lines on stdout are
    the answer; the rest is in --out: report.html, the page for people; clients.csv, blockers.csv, trend.csv and others (each as Parquet, too); summary.json.

    Exit codes: 0 ready, 3 not ready, 1 it did not work, 2 the command is wrong, 130 it was stopped (Ctrl-C).

    \b
    kopgate report --logs /var/log/kopgate-traffic --out report
    kopgate report --logs /var/log/kopgate-traffic --out report --target kafka-4.x --since 90d
    """
    try:
        chosen = facts.load_target(target)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--target") from None
    if logs and not logs.is_dir():
        raise click.BadParameter(f"{logs} is not a folder", param_hint="--logs")
    signals = SignalHandler()
    try:
        with signals.installed():
            run, order = _load_reports()
            check_preconditions(logs, out)
            if not shutil.which("java") and not os.environ.get("JAVA_HOME"):
                _fail(NO_JAVA)
            with ProgressBar(sys.stderr) as progress:
                progress("starting Spark", 0.0)
                summary = run(order(logs, out, chosen, since), master, memory, progress, signals)
    except TablesError as error:
        _fail(str(error))
    except Interrupted as stopped:
        click.echo(STOPPED, err=True)
        sys.exit(stopped.exit_code)
    _print_answer(summary, out)
    sys.exit(answer.exit_code(summary))


def _print_answer(summary: dict[str, Any], out: Path) -> None:
    for line in answer.warnings(summary["log"]):
        click.echo(line, err=True)
    try:
        click.echo("\n".join(answer.five_lines(summary)))
    except OSError as error:
        # Python would try it once more at its end, and fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(
            f"the answer cannot be written to stdout: {error.strerror}; it is in {out / 'summary.json'}"
        )


def _load_reports() -> tuple[Any, Any]:
    """What does the work: a function, and what it is told."""
    if importlib.util.find_spec("pyspark") is None:
        _fail(NO_PYSPARK)
    from reports.local_run import run_local_report
    from reports.run import ReportRequest

    return run_local_report, ReportRequest


def _fail(problem: str) -> NoReturn:
    click.echo(f"Error: {problem}", err=True)
    sys.exit(1)
