"""Starts gateways as forks of a process that has imported their modules.

Nearly all of the CPU time of a start of `python -m gateway serve` is for imports. A gateway that is
forked runs the same `main` with its own arguments, environment, folder and standard streams, and is
a child of the tests' process: signals and exit code are those of any `subprocess.Popen`. It shares
the seed of Python's hashes and pages of memory with others. Tests that measure its memory, or that
need variables which the interpreter or the loader reads, start Python instead.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[3]
#: Arguments and environment of a process, at most. The kernel allows less for a message.
REQUEST_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
#: Modules that each gateway imports itself: the reactor, and Pulsar's client, whose readers would
#: have the same random names in all forks.
UNSHARED = {"twisted.internet.reactor", "_pulsar"}

#: One start at a time in this process.
_start = threading.Lock()


def start_gateway(
    arguments: Sequence[str],
    stderr: IO[Any] | int,
    *,
    within: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    checkout: Path | None = None,
    by_fork: bool | None = None,
) -> subprocess.Popen[str]:
    """Start `kopgate` with these arguments; stdout is a pipe.

    `environment` is added to that of the tests, `within` is a command that runs the command line,
    and `checkout` is the folder of the sources to run, by default these. By default, the process is
    a new interpreter with one of them, and a fork without. A fork has all variables; of those that
    are read before `main`, only LD_PRELOAD has an effect. A fork always runs these sources.
    """
    if by_fork is None:
        by_fork = not within and not environment and checkout is None
    return (_ForkedProcess if by_fork else subprocess.Popen)(
        [*within, sys.executable, "-m", "gateway", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=checkout,
        env={**os.environ, **(environment or {})},
    )


class _ForkedProcess(subprocess.Popen[str]):
    """Differs from `subprocess.Popen` only in how the process of `python -m gateway` starts."""

    def _execute_child(
        self,
        args: Sequence[str],
        executable: None,
        preexec_fn: None,
        close_fds: bool,
        pass_fds: tuple[int, ...],
        cwd: None,
        env: Mapping[str, str],
        startupinfo: None,
        creationflags: int,
        shell: bool,
        *files_and_more: int,
    ) -> None:
        stdin, stdin_writer, stdout_reader, stdout, stderr_reader, stderr, *_ = files_and_more
        try:
            with _start:
                forker = _forker(env.get("LD_PRELOAD"))
                self.pid = forker.fork(args[3:], env, (stdin, stdout, stderr))
            self._child_created = True
        finally:
            self._close_pipe_fds(stdin, stdin_writer, stdout_reader, stdout, stderr_reader, stderr)


class _Forker:
    """The prepared process; it ends with this one. The loader of its libraries reads `preload`."""

    def __init__(self, preload: str | None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, **({"LD_PRELOAD": preload} if preload else {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> int:
        """Start a child of this process; return its pid."""
        request = json.dumps([[*arguments], {**environment}, os.getcwd()]).encode()
        # A process whose parent has ended becomes a child of its nearest ancestor that is a
        # "subreaper". Only during a start, since those of other programs must not.
        _be_subreaper(True)
        try:
            socket.send_fds(self._socket, [request], streams)
            pid, adopted = self._socket.recv(32), self._socket.recv(32)
            if not adopted:
                raise RuntimeError("the process that forks gateways has ended")
        except BaseException:
            # After a timeout, for example. Its next replies may be those to this request.
            self._socket.close()
            _forker.cache_clear()
            raise
        finally:
            _be_subreaper(False)
        return int(pid)


@cache
def _forker(preload: str | None) -> _Forker:
    return _Forker(preload)


def _be_subreaper(value: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _become_gateway(connection: socket.socket) -> None:
    """Fork for each request. Returns in the forked processes only."""
    while True:
        request, streams, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
        if not request:
            sys.exit()
        if between := os.fork():
            os.waitpid(between, 0)
            for stream in streams:
                os.close(stream)
            connection.send(b"adopted")
            continue
        if pid := os.fork():
            # This process ends, so that the tests' process becomes the parent.
            connection.send(str(pid).encode())
            os._exit(0)
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        arguments, environment, folder = json.loads(request)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        return


if __name__ == "__main__":
    # Ctrl-C reaches this process, too. It ends with its parent.
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    from gateway.cli.main import main

    # As in `serve`.
    gc.disable()
    from gateway import server as server

    if len(os.listdir("/proc/self/task")) > 1 or UNSHARED & sys.modules.keys():
        sys.exit("an import made what forks cannot share: a thread, or one of " + str(UNSHARED))
    # `serve` does so, too, with all that exists when it has started. A collection in a fork would
    # write to each object, and so copy its memory page.
    gc.collect()
    gc.freeze()
    _become_gateway(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, interrupted)
    gc.enable()
    main(prog_name="kopgate")
