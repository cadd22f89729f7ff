"""Runs failed tests with real peers again, one by one, after all others; those that pass are
"unstable".

Real brokers, clients and Spark can fail a test for reasons that are not defects of the gateway: a
machine that stalls, a port that is taken, a fault of the peer. `--rerun-failed-peers` runs each
failed test marked `peer` or `spark` again in a separate process, without other tests of the session
beside it.

- A test that passes its second run does not fail the session. It is counted as "unstable", its
  first failure is printed, and it is added to `tests/unstable.txt`.
- A test that fails twice, or that runs without peers, fails the session as usual.
- Nothing is run again if more than MAX_RERUNS tests failed or the session was interrupted.

`tests/test_reruns.py` requires that a change to a list that is not empty empties it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

#: More failures than this indicate a defect or a broken machine and are not run again. One broker
#: that several files share has up to 70 tests.
MAX_RERUNS = 80
#: Limit of the whole second run, in seconds.
MAX_RERUN_SECONDS = 1500.0
#: Limit for an interrupted second run to stop its brokers, in seconds.
MAX_STOP_SECONDS = 60.0
MARKERS = frozenset({"peer", "spark"})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("reruns")
    group.addoption(
        "--rerun-failed-peers",
        action="store_true",
        help="run failed tests marked `peer` or `spark` once more, alone, at the end",
    )
    group.addoption(
        "--rerun-list",
        type=Path,
        metavar="FILE",
        help="(internal) run the tests named in FILE alone, and keep those that pass in it",
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    listed = config.getoption("--rerun-list")
    if listed is not None:
        config.pluginmanager.register(SecondRun(listed), "second-run")
    elif config.getoption("--rerun-failed-peers"):
        config.pluginmanager.register(FirstRun(config), "first-run")


def unstable_list(root: Path) -> Path:
    """The file that lists unstable tests of the checkout at `root`."""
    return root / "tests" / "unstable.txt"


def list_versions(root: Path) -> list[str]:
    """The texts of the unstable list at `root`, newest first: the current file, then its commits.

    Versions with the same entries as their predecessor are omitted. Without git only the file is
    returned.
    """
    listed = unstable_list(root)
    name = listed.relative_to(root).as_posix()

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    commits = git("log", "--format=%H", "--diff-filter=AM", "--", name).split()
    texts = [listed.read_text("utf-8"), *(git("show", f"{commit}:./{name}") for commit in commits)]
    return [
        text
        for text, older in zip(texts, [*texts[1:], None], strict=True)
        if older is None or entries(text) != entries(older)
    ]


def entries(text: str) -> list[str]:
    """The test ids in the text of an unstable list; its other lines are comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


class FirstRun:
    """Collects the failures of a session and runs them again when it is over."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, pytest.TestReport] = {}
        self._with_peers: set[str] = set()
        self._unstable: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, report)
            if MARKERS & set(report.keywords):
                self._with_peers.add(report.nodeid)

    # Innermost: after the workers have ended and before the terminal's summary.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        result = yield
        again = [name for name in self._failed if name in self._with_peers]
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(again) <= MAX_RERUNS:
            return result
        self._unstable = self._run_again(again)
        self._count_unstable()
        if self._unstable:
            _add(unstable_list(self._config.rootpath), self._unstable)
        if self._unstable == set(self._failed):
            session.exitstatus = pytest.ExitCode.OK
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._unstable:
            return
        terminalreporter.section("unstable: failed once, passed alone", yellow=True)
        for name in sorted(self._unstable):
            terminalreporter.write_sep("_", name)
            self._failed[name].toterminal(terminalreporter._tw)
        for name in sorted(self._unstable):
            terminalreporter.write_line(f"UNSTABLE {name}", yellow=True)
        shown = unstable_list(self._config.rootpath).relative_to(self._config.rootpath)
        terminalreporter.write_line(
            f"{len(self._unstable)} unstable; find out why and empty {shown}"
        )

    def _run_again(self, names: list[str]) -> set[str]:
        """The tests that pass a second run; its output goes to the terminal."""
        terminal = self._terminal()
        terminal.write_line("")
        terminal.section(f"second run of {len(names)} failed tests, alone")
        parameters = self._config.invocation_params
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "tests"
            listed.write_text("\n".join(names))
            argv = [
                sys.executable,
                "-m",
                "pytest",
                *map(str, parameters.args),
                "-n",
                "0",
                f"--rerun-list={listed}",
            ]
            output = Path(folder) / "output"
            with output.open("wb") as written:
                code = _exit_code(argv, parameters.dir, written)
            terminal.write_line(output.read_text("utf-8", "replace").rstrip())
            if code is None:
                terminal.write_line(f"the second run was stopped after {MAX_RERUN_SECONDS:.0f} s")
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                return set()
            return set(listed.read_text().splitlines()) & set(names)

    def _count_unstable(self) -> None:
        stats = self._terminal().stats
        for category in ("failed", "error"):
            reports = stats.pop(category, [])
            kept = [report for report in reports if report.nodeid not in self._unstable]
            if kept:
                stats[category] = kept
        if self._unstable:
            stats["unstable"] = [self._failed[name] for name in sorted(self._unstable)]

    def _terminal(self) -> pytest.TerminalReporter:
        found = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(found, pytest.TerminalReporter)
        return found


class SecondRun:
    """Runs only the tests named in a file, and keeps those that passed in it."""

    def __init__(self, listed: Path) -> None:
        self._listed = listed
        self._wanted = set(listed.read_text().splitlines())
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        config.hook.pytest_deselected(
            items=[item for item in items if item.nodeid not in self._wanted]
        )
        items[:] = [item for item in items if item.nodeid in self._wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._listed.write_text("\n".join(sorted(self._passed - self._failed)))


def _exit_code(argv: list[str], folder: Path, output: IO[bytes]) -> int | None:
    """The exit code of a test run, or None if it was stopped at MAX_RERUN_SECONDS."""
    with subprocess.Popen(
        argv,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        try:
            return process.wait(MAX_RERUN_SECONDS)
        except subprocess.TimeoutExpired:
            # An interrupt allows fixtures to stop their brokers; remaining processes are killed.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(MAX_STOP_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return None


def _add(listed: Path, names: Iterable[str]) -> None:
    text = listed.read_text("utf-8") if listed.exists() else ""
    new = sorted(set(names) - set(entries(text)))
    if new:
        listed.parent.mkdir(parents=True, exist_ok=True)
        # One write at the end of the file: two sessions may add to it at the same time.
        with listed.open("a", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in new))
