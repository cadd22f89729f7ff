"""Runs several gateways on one machine: a supervisor process and one process per worker.

Each worker runs the supervisor's command line. An environment variable has the index of the worker,
from which it derives its node id and ports (`Settings.for_worker`). A worker that ends is
restarted; the pauses between restarts grow while it fails. SIGTERM and SIGINT stop all workers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from gateway import logs

_log = logs.get_logger(__name__)

WORKER_VARIABLE = "KOPGATE_WORKER"
"""Set for workers: index of the worker, a file descriptor to report readiness, and the process id
of the supervisor.
"""

#: Pause before a worker is restarted, in seconds: after its first failure, and at most. Doubles
#: with each further failure.
MIN_PAUSE, MAX_PAUSE = 0.5, 30.0

#: If a worker ran for this many seconds, the next pause is MIN_PAUSE again.
STABLE_SECONDS = 60.0

#: Seconds that a worker may take beyond `shutdown_timeout_ms` to stop before it is killed.
KILL_GRACE_SECONDS = 10.0

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """Which worker this process is."""

    index: int
    ready_file: int

    def report_ready(self) -> None:
        """Tell the supervisor that the worker accepts connections."""
        os.write(self.ready_file, b"ready")
        os.close(self.ready_file)


def take_worker_role(environment: MutableMapping[str, str]) -> WorkerRole | None:
    """Return the role that the environment contains, and remove it; None if this is no worker.

    On Linux, a worker receives SIGTERM when its supervisor ends, also if the supervisor is killed.
    Raises SystemExit if the supervisor has already ended.
    """
    given = environment.pop(WORKER_VARIABLE, None)
    if given is None:
        return None
    index, ready_file, supervisor = map(int, given.split(","))
    # Blocked in the supervisor, which waits for SIGCHLD by `sigtimedwait`; workers inherit this.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    if hasattr(process_library := ctypes.CDLL(None), "prctl"):  # Linux
        process_library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        raise SystemExit("the supervisor has ended")
    return WorkerRole(index, ready_file)


@dataclass(slots=True)
class _Worker:
    index: int
    process: subprocess.Popen[bytes] | None = None
    ready_pipe: int = -1
    started_at: float = 0.0
    restart_at: float = 0.0
    failures: int = 0
    has_been_ready: bool = False


@dataclass(slots=True)
class Supervisor:
    """Starts `count` processes of `command`, and keeps them running until a stop signal.

    A worker that has not stopped `stop_seconds` plus `KILL_GRACE_SECONDS` after SIGTERM is killed.
    Block `STOP_SIGNALS` before `run`.
    """

    command: Sequence[str]
    count: int
    stop_seconds: float
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    now: Callable[[], float] = time.monotonic

    def run(self) -> int:
        """Return the exit code: 0 after a stop, else the code of a worker that could not start."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        workers = [_Worker(index) for index in range(self.count)]
        all_started = all(self._start(worker) for worker in workers)
        code = self._supervise(workers) if all_started else 1
        return self._stop(workers) or code

    def _start(self, worker: _Worker) -> bool:
        """Start a process, or set the time of the next attempt if the system refuses."""
        try:
            self._spawn(worker)
        except OSError as failure:
            pause = self._set_pause(worker)
            _log.error(
                "worker not started", worker=worker.index, reason=str(failure), seconds=pause
            )
            return False
        return True

    def _spawn(self, worker: _Worker) -> None:
        """Start a process. Raises OSError, for example if there are too many processes."""
        ready_pipe, ready_file = os.pipe()
        os.set_blocking(ready_pipe, False)
        role = f"{worker.index},{ready_file},{os.getpid()}"
        try:
            worker.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                pass_fds=(ready_file,),
                env={**self.environment, WORKER_VARIABLE: role},
            )
        except OSError:
            os.close(ready_pipe)
            raise
        finally:
            os.close(ready_file)
        worker.ready_pipe, worker.started_at = ready_pipe, self.now()

    def _supervise(self, workers: Sequence[_Worker]) -> int:
        """Restart workers until a stop signal arrives or one cannot start; return the exit code."""
        while True:
            waiting = [worker.restart_at for worker in workers if worker.process is None]
            pause = max(min(waiting) - self.now(), 0) if waiting else 3600.0
            received = signal.sigtimedwait({*STOP_SIGNALS, signal.SIGCHLD}, pause)
            if received is not None and received.si_signo in STOP_SIGNALS:
                return 0
            for worker in workers:
                code = None if worker.process is None else worker.process.poll()
                if code is not None:
                    self._ended(worker, code)
                    if not worker.has_been_ready:
                        _log.error(
                            "worker could not start, stopping all", worker=worker.index, code=code
                        )
                        return code if code > 0 else 1
                if worker.process is None and worker.restart_at <= self.now():
                    self._start(worker)

    def _ended(self, worker: _Worker, code: int) -> None:
        was_stable = self.now() - worker.started_at >= STABLE_SECONDS
        worker.process = None
        worker.has_been_ready |= _is_ready(worker)
        os.close(worker.ready_pipe)
        if was_stable:
            worker.failures = 0
        pause = self._set_pause(worker)
        if worker.has_been_ready:
            _log.error(
                "worker ended, restarting it",
                worker=worker.index,
                reason=f"signal {-code}" if code < 0 else f"exit code {code}",
                seconds=pause,
            )

    def _set_pause(self, worker: _Worker) -> float:
        """Count a failure, and return the seconds until the next start."""
        worker.failures += 1
        pause: float = min(MIN_PAUSE * 2 ** min(worker.failures - 1, 10), MAX_PAUSE)
        worker.restart_at = self.now() + pause
        return pause

    def _stop(self, workers: Sequence[_Worker]) -> int:
        """Stop all workers; return 1 if one of them was killed or ended with an error, else 0."""
        running = [worker for worker in workers if worker.process is not None]
        for worker in running:
            assert worker.process
            worker.process.send_signal(signal.SIGTERM)
        deadline = self.now() + self.stop_seconds + KILL_GRACE_SECONDS
        code = 0
        for worker in running:
            assert worker.process
            try:
                ended = worker.process.wait(max(deadline - self.now(), 0))
            except subprocess.TimeoutExpired:
                _log.error("worker did not stop, killed", worker=worker.index)
                worker.process.kill()
                ended = worker.process.wait()
            os.close(worker.ready_pipe)
            code = code or int(ended != 0)
        return code


def _is_ready(worker: _Worker) -> bool:
    """Whether the worker reported readiness before it ended."""
    try:
        return bool(os.read(worker.ready_pipe, 16))
    except BlockingIOError:
        return False
