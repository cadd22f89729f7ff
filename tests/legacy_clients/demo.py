"""`make demo`: run example applications against a gateway with a traffic log, and report on it.

The gateway's store is in a temporary folder; the log and the report remain. A client that cannot
run on this machine is left out and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gateway.cli.progress import ProgressBar
from reports.analysis.facts import DEFAULT_TARGET, target_names
from reports.interrupts import Interrupted, SignalHandler
from tests.legacy_clients.applications import COMPANY, Application, RunResult, run
from tests.legacy_clients.brokers import GatewayFailed

READY, NOT_READY = 0, 3
"""Exit codes of `kopgate report` if it created the report."""
LAST_SECONDS = 40.0
"""Limit for a stopped report to end Spark and remove incomplete files."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the log and the report (default: a new temporary folder)",
    )
    parser.add_argument(
        "--target", choices=target_names(), default=DEFAULT_TARGET, help="default: %(default)s"
    )
    given = parser.parse_args()
    if given.out and (given.out / "log").exists():
        return _print_status(f"Error: {given.out} has a log already; name a new folder", 1)
    if missing := _missing():
        return _print_status(f"Error: cannot create the report: {'; '.join(missing)}", 1)
    try:
        with SignalHandler().installed():
            return _demo(given.out or Path(tempfile.mkdtemp(prefix="kopgate-demo-")), given.target)
    except Interrupted as stopped:
        return stopped.exit_code
    except (GatewayFailed, OSError, subprocess.SubprocessError) as error:
        return _print_status(f"Error: {error}", 1)


def _demo(out: Path, target: str) -> int:
    _print_status(
        f"the log and the report go to {out}; missing clients are downloaded and built when they "
        "are needed",
        0,
    )
    is_whole = False
    try:
        with (
            tempfile.TemporaryDirectory(prefix="kopgate-demo-store-") as folder,
            ProgressBar(sys.stderr) as progress,
        ):
            ran = run(
                COMPANY,
                Path(folder),
                out / "log",
                lambda number, who: progress.show(_progress_text(number, who)),
            )
        is_whole = True
    except Interrupted:
        _print_status("stopped; downloaded clients are kept, and the same command starts again", 0)
        raise
    finally:
        if not is_whole:
            shutil.rmtree(out / "log", ignore_errors=True)
    _report_left_out(ran)
    if not ran.applications:
        return _print_status(
            "Error: no client can run here: they need java and maven, node and npm, go, kcat, "
            "or Pythons 2.7 and 3.6",
            1,
        )
    return _report(out, target)


def _missing() -> list[str]:
    pyspark = (
        "there is no PySpark (`make demo` installs it; manually: pip install 'kopgate[report]')"
    )
    java = "there is no Java (on Debian: apt-get install openjdk-17-jdk-headless)"
    wanted = {
        pyspark: importlib.util.find_spec("pyspark"),
        java: shutil.which("java") or os.environ.get("JAVA_HOME"),
    }
    return [words for words, found in wanted.items() if not found]


def _progress_text(number: int, who: Application) -> str:
    return f"[{number + 1:2}/{len(COMPANY)}] {who.client_id} ({who.row.library} {who.row.version})"


def _report_left_out(ran: RunResult) -> None:
    _print_status(f"{len(ran.applications)} applications ran", 0)
    for who, why in ran.left_out:
        _print_status(f"left out: {who.client_id} ({who.client}): {why}", 0)


def _report(out: Path, target: str) -> int:
    words = ["report", "--logs", str(out / "log"), "--out", str(out / "report"), "--target", target]
    code = 1
    try:
        code = _run_to_end([sys.executable, "-m", "gateway", *words])
    finally:
        if code not in (READY, NOT_READY):
            _print_status(
                f"the log is complete; to create only the report: kopgate {' '.join(words)}", 0
            )
    if code not in (READY, NOT_READY):
        return code
    print(f"the report: {(out / 'report' / 'report.html').resolve().as_uri()}")
    return 0


def _run_to_end(command: list[str]) -> int:
    """Run the command and return its exit code.

    When stopped, terminate it: it receives Ctrl-C by itself, but not SIGTERM.
    """
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(LAST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _print_status(words: str, code: int) -> int:
    sys.stderr.write(words + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
