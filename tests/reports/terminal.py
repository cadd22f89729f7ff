"""Runs commands on a pseudo-terminal, where Ctrl-C reaches all of their processes."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.gateway.cli.screen import pieces_of, terminal

ROOT = Path(__file__).parents[2]
COLUMNS = 60
#: The terminal is closed when its last process ends.
LAST_WORDS_SECONDS = 30.0
#: A report took five minutes on a busy machine.
END_SECONDS = 1500.0
#: Runs a command with stderr as its controlling terminal and default signal handlers, as a shell
#: does; the test runner may ignore some signals.
TAKES_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command with its own terminal as stderr; input reaches all of its processes."""

    def __init__(self, words: list[str]) -> None:
        self._ours, theirs = terminal(COLUMNS)
        its_own = [sys.executable, "-c", TAKES_TERMINAL, *words]
        self.process = subprocess.Popen(
            its_own,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            start_new_session=True,
        )
        os.close(theirs)
        self._read = b""
        # Otherwise the command would block on a full buffer.
        self._reader = threading.Thread(target=self._look)
        self._reader.start()

    @property
    def written(self) -> str:
        """The output so far."""
        return self._read.decode(errors="replace")

    def _look(self) -> None:
        for piece in pieces_of(self._ours):
            self._read += piece

    def ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def end(self) -> tuple[int, str, str, list[str]]:
        """Return exit code, stdout, terminal output, and the processes that still run."""
        with self.process:
            answer, _ = self.process.communicate(timeout=END_SECONDS)
        left = running_in(self.process.pid)
        self._reader.join(LAST_WORDS_SECONDS)
        os.close(self._ours)
        return self.process.returncode, answer, self.written, left


def running_in(session: int) -> list[str]:
    """Names of the processes of a session that have not ended."""
    found = []
    for place in glob.glob("/proc/[0-9]*/stat"):
        try:
            name, _, rest = Path(place).read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, _, of = rest.split()[:4]
        if int(of) == session and state != "Z":
            found.append(name.partition("(")[2])
    return found


def when(process: subprocess.Popen[str], is_there: Callable[[], object]) -> None:
    """Return when `is_there` is true or the process has ended."""
    while process.poll() is None and not is_there():
        time.sleep(0.005)
