"""Forwards the log of the pulsar-client library to Python's logging.

The library has one logger per process, the first one it was given. It logs while holding its own
locks: with a Python logger it would wait for the GIL while the holder of the GIL waits for such a
lock, a deadlock (apache/pulsar-client-python#116). So it writes to a pipe, and a thread that holds
no lock reads the other end.
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
"""Capacity of the pipe, if the system allows it. A full pipe blocks the library's only thread."""

LINES_PER_MINUTE = 60
"""Limit on forwarded lines: without a broker every producer and reader logs each reconnection
attempt.
"""

OMITTED = (
    "Topic has an existing exclusive producer",
    "Received error response from server: ResultProducerFenced",
    "Failed to create consumer: AlreadyClosed",
    "Failed to create producer: AlreadyClosed",
    "Failed to close producer: AlreadyClosed",
    "Cancel the reconnection since the handler is destroyed",
)
"""Parts of lines that are not forwarded. They are normal in a cluster, and frequent: a gateway is
refused while it tries to become the controller, is fenced when its shards have a new leader, and
closes producers and readers that wait for a topic or are already closed. The store reports what
matters.
"""

LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
}


class LineRateLimiter:
    """Logs up to `limit` lines per minute and reports the number of dropped lines."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._minute = -1
        self._logged = 0
        self._dropped = 0

    def log_line(self, line: str, now: float) -> None:
        """Log `line`, received at `now` (seconds), unless the limit is reached."""
        if any(part in line for part in OMITTED):
            return
        if int(now // 60) != self._minute:
            self._minute = int(now // 60)
            self._logged = 0
            if self._dropped:
                logger.warning(
                    "%d log lines of the Pulsar client library dropped, over the limit of %d "
                    "a minute",
                    self._dropped,
                    self._limit,
                )
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
    """Forward lines from the pipe until its last writer closes it."""
    limiter = LineRateLimiter(LINES_PER_MINUTE)
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            limiter.log_line(line.rstrip("\n"), clock())


@cache
def client_logger() -> pulsar.FileLogger:
    """The process's only library logger, created on first use.

    It logs warnings and errors; everything if the logger "pulsar" is enabled for DEBUG.
    """
    reading, writing = os.pipe()
    with contextlib.suppress(
        AttributeError,
        OSError,
        # Not available on every system; the size is limited.
    ):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    threading.Thread(
        target=forward_lines, args=(reading, time.monotonic), name="pulsar-log", daemon=True
    ).start()
    level = (
        pulsar.LoggerLevel.Debug if logger.isEnabledFor(logging.DEBUG) else pulsar.LoggerLevel.Warn
    )
    # `writing` stays open until the process ends: each client opens it again by this name.
    return pulsar.FileLogger(level, f"/dev/fd/{writing}")
