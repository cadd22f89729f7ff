"""`kopgate report`: applications that use old Kafka versions, from the traffic log.

Only this module imports PySpark, and only when the command runs.
"""

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

NO_PYSPARK = "PySpark is not installed: pip install 'kopgate[report]'"
NO_JAVA = (
    "Java not found; Spark needs Java 17 or newer: install it "
    "(on Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
)
MASTER = (
    r"local(\[([1-9]\d*|\*)(, *\d+)?\])?|local-cluster\[.+\]|spark://[^\s/]+:\d+|yarn|k8s://\S+",
    "local[N], local[*], spark://HOST:PORT, yarn or k8s://...",
)
MEMORY = (r"(?i)[1-9]\d*[kmgt]b?", "a size like 512m or 2g")
STOPPED = "stopped; the files ingested so far are kept, and the next run continues from there"


def _day(_: click.Context, __: click.Parameter, value: str | None) -> date | None:
    try:
        return day(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _matching(pattern: str, wanted: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Return a check of an option, because Spark reports wrong values late and as Java errors."""

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
    help="Folder of the traffic log.  [default: report from the existing tables]",
)
@click.option(
    "--out",
    callback=_folder,
    required=True,
    metavar="DIR",
    help="Folder for the report and the tables built from the log.",
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
    help="First day, or number of days back.  [default: 30d]",
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
    """Report which applications a target Kafka version would reject, from the traffic log.

    New log files are ingested once into tables below --out. The command can be repeated at any
    time, also while gateways write. It prints five lines; the details are in --out: report.html,
    clients.csv, blockers.csv, trend.csv and others (also as Parquet), and summary.json.

    Exit codes: 0 ready, 3 not ready, 1 failure, 2 usage error, 130 interrupted (Ctrl-C).

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
        # Python would write the buffer again at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"cannot write to stdout: {error.strerror}; see {out / 'summary.json'}")


def _load_reports() -> tuple[Any, Any]:
    """Return `run_local_report` and `ReportRequest`, or exit if PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        _fail(NO_PYSPARK)
    from reports.local_run import run_local_report
    from reports.run import ReportRequest

    return run_local_report, ReportRequest


def _fail(problem: str) -> NoReturn:
    click.echo(f"Error: {problem}", err=True)
    sys.exit(1)
