"""Supervisor and workers as real processes, with small programs in place of gateways."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from gateway import supervisor

SUPERVISOR = """
import signal, sys
from gateway import logs, supervisor
signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.STOP_SIGNALS)
with logs.ProcessLog(sys.stderr):
    code = supervisor.Supervisor([sys.executable, "-c", sys.argv[1]], 2, 60.0).run()
sys.exit(code)
"""

#: Kills workers that do not stop at once.
IMPATIENT = SUPERVISOR.replace("60.0", "0.2").replace(
    "with logs", "supervisor.KILL_GRACE_SECONDS = 0.5\nwith logs"
)

#: The third start of a process fails.
REFUSED_RESTART = SUPERVISOR.replace(
    "with logs",
    """
class Popen(supervisor.subprocess.Popen):
    count = 0
    def __init__(self, *arguments, **options):
        Popen.count += 1
        if Popen.count == 3:
            raise BlockingIOError("refused by the test")
        super().__init__(*arguments, **options)

supervisor.subprocess.Popen = Popen
with logs""",
)

#: Writes `INDEX PID` to the file `starts` when it is ready, and stops on SIGTERM.
WORKER = """
import os, signal, time
from gateway import supervisor
role = supervisor.take_worker_role(os.environ)
signal.signal(signal.SIGTERM, lambda *_: exit(0))
signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.STOP_SIGNALS)
with open("starts", "a") as starts:
    starts.write(f"{role.index} {os.getpid()}\\n")
role.report_ready()
time.sleep(600)
"""


@contextmanager
def supervised(
    folder: Path, program: str, supervising: str = SUPERVISOR
) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", supervising, program],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def starts(folder: Path) -> list[tuple[int, int]]:
    file = folder / "starts"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(index), int(pid)) for index, pid in map(str.split, lines)]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Ended, but not yet waited for by its parent.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_stop_signal_stops_all_workers(tmp_path: Path) -> None:
    with supervised(tmp_path, WORKER) as process:
        wait_until(lambda: len(starts(tmp_path)) == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    workers = starts(tmp_path)
    assert sorted(index for index, _ in workers) == [0, 1]
    assert all(has_ended(pid) for _, pid in workers)


def test_killed_worker_is_restarted_with_its_index(tmp_path: Path) -> None:
    with supervised(tmp_path, WORKER) as process:
        wait_until(lambda: len(starts(tmp_path)) == 2)
        index, pid = starts(tmp_path)[0]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(starts(tmp_path)) == 3)
        assert starts(tmp_path)[2][0] == index
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert f"worker ended, restarting it worker={index}" in process.stderr.read()


def test_worker_that_cannot_start_stops_all(tmp_path: Path) -> None:
    fails = WORKER.replace("role.report_ready()", "role.index == 0 and exit(3)")
    with supervised(tmp_path, fails) as process:
        assert process.wait(60) == 3
        assert "worker could not start, stopping all worker=0 code=3" in process.stderr.read()
    wait_until(lambda: all(has_ended(pid) for _, pid in starts(tmp_path)))


def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, WORKER) as process:
        wait_until(lambda: len(starts(tmp_path)) == 2)
        process.kill()
        process.wait()
        wait_until(lambda: all(has_ended(pid) for _, pid in starts(tmp_path)))


def test_worker_whose_supervisor_ended_before_it_asked_for_a_signal_ends(tmp_path: Path) -> None:
    """Its parent is then another process, here the test's."""
    with open(os.devnull, "wb") as ready:
        role = f"0,{ready.fileno()},{os.getppid()}"
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        ended = subprocess.run(
            [sys.executable, "-c", WORKER],
            cwd=tmp_path,
            env={**environment, supervisor.WORKER_VARIABLE: role},
            pass_fds=(ready.fileno(),),
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "the supervisor has ended\n")
    assert starts(tmp_path) == []


def refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("refused", ["os.pipe", "subprocess.Popen"])
def test_start_that_the_system_refuses_is_repeated_after_growing_pauses(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervising = supervisor.Supervisor([sys.executable, "-c", WORKER], 1, 0.2, now=lambda: 100.0)
    worker = supervisor._Worker(0, has_been_ready=True)
    monkeypatch.setattr(refused, refuse)
    files = os.listdir("/dev/fd")
    attempts = [(supervising._start(worker), worker.restart_at) for _ in range(3)]
    assert attempts == [(False, 100.5), (False, 101.0), (False, 102.0)]
    assert os.listdir("/dev/fd") == files
    assert worker.process is None


def test_supervisor_repeats_a_restart_that_the_system_refused(tmp_path: Path) -> None:
    with supervised(tmp_path, WORKER, REFUSED_RESTART) as process:
        wait_until(lambda: len(starts(tmp_path)) == 2)
        os.kill(starts(tmp_path)[0][1], signal.SIGKILL)
        wait_until(lambda: len(starts(tmp_path)) == 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "worker not started" in process.stderr.read()


def test_first_start_that_the_system_refuses_stops_all(tmp_path: Path) -> None:
    with supervised(tmp_path, WORKER, REFUSED_RESTART.replace("== 3", "== 2")) as process:
        assert process.wait(60) == 1
    wait_until(lambda: all(has_ended(pid) for _, pid in starts(tmp_path)))


def test_worker_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    stubborn = WORKER.replace("lambda *_: exit(0)", "signal.SIG_IGN")
    with supervised(tmp_path, stubborn, IMPATIENT) as process:
        wait_until(lambda: len(starts(tmp_path)) == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
        assert process.stderr.read().count("worker did not stop, killed") == 2
    assert all(has_ended(pid) for _, pid in starts(tmp_path))
