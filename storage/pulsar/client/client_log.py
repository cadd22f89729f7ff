"""What the client library writes, handed to Python's logging.

The library has one log per process, the first that it was given, for ever. It writes while it holds its own locks: given a Python logger it
would wait for the interpreter while the interpreter waits for such a lock, and both for ever (apache/pulsar-client-python#116). So it writes
into a pipe, and a thread that holds nothing reads the other end.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import cache

import pulsar

logger = logging.getLogger("pulsar")

PIPE_BYTES = 1 << 20
"""What may wait in the pipe, where the system lets it be so large: a full one would hold up the library's only thread."""

LINES_PER_MINUTE = 60
"""A lost broker makes each producer and reader complain at each attempt to come back; the first few say it all."""

LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
}


class LineRateLimiter:
    """Lets `limit` lines of a minute through, and says of how many it did not."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._minute = -1
        self._logged = 0
        self._dropped = 0

    def log_line(self, line: str, now: float) -> None:
        """Log `line`, which came at `now` (seconds), unless too many came before it."""
        if int(now // 60) != self._minute:
            self._minute = int(now // 60)
            self._logged = 0
            if self._dropped:
                logger.warning("%d more lines of the client library were left out", self._dropped)
                self._dropped = 0
        if self._logged >= self._limit:
            self._dropped += 1
            return
        self._logged += 1
        # 2026-01-31 12:00:00.000 WARN  [140000000000000] ClientConnection:1234 | what happened
        head, _, text = line.partition(" | ")
        words = head.split()
        logger.log(
            LEVELS.get(words[2], logging.WARNING) if len(words) > 2 else logging.WARNING,
            "%s",
            text or head,
        )


def forward_lines(descriptor: int, clock: Callable[[], float]) -> None:
    """Hand on whatever comes out of the pipe, until nobody writes to it any more."""
    sieve = LineRateLimiter(LINES_PER_MINUTE)
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            sieve.log_line(line.rstrip("\n"), clock())


@cache
def client_logger() -> pulsar.FileLogger:
    """The one log of the process, made when it is first asked for. Warnings and errors; all there is where the logger "pulsar" shows debug lines."""
    reading, writing = os.pipe()
    with contextlib.suppress(
        AttributeError, OSError
    ):  # not on every system, and not beyond what it allows
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    threading.Thread(
        target=forward_lines, args=(reading, time.monotonic), name="pulsar-log", daemon=True
    ).start()
    level = (
        pulsar.LoggerLevel.Debug if logger.isEnabledFor(logging.DEBUG) else pulsar.LoggerLevel.Warn
    )
    # `writing` stays open for as long as the process lives: each client opens it once more by this name.
    return pulsar.FileLogger(level, f"/dev/fd/{writing}")
