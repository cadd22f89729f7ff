"""Counts stalls of this process that were long enough for a broker to drop its connections.

A process stalls when it is stopped or starved, or its machine is suspended. A broker disconnects a
client that is silent for `keepAliveIntervalSeconds` (30 s; observed after 30 to 60 s), and another
process can then take over what this one held. The stalled process does not know this yet when it
continues, and requests that arrived meanwhile are in its socket buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from storage.bridge import DelayedCall, Reactor

STALL_SECONDS = 10.0
"""A third of the shortest time after which a broker disconnects by default."""

CHECKS_PER_STALL = 4
"""Timer checks per STALL_SECONDS.

A reactor that is busy for that long counts as a stall too, which costs one message to the lock
topic.
"""

#: Continues while the machine is suspended, where such a clock exists.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ProcessStalls:
    """Counts stalls longer than `seconds`."""

    def __init__(
        self,
        reactor: Reactor,
        seconds: float = STALL_SECONDS,
        now: Callable[[], float] = lambda: time.clock_gettime(_CLOCK),
    ) -> None:
        self._reactor = reactor
        self._seconds = seconds
        self._now = now
        self._count = 0
        self._last_check = 0.0
        self._timer: DelayedCall | None = None

    def count(self) -> int:
        """The number of stalls so far, including one that has just ended before any timer ran."""
        now = self._now()
        if self._timer is not None and now - self._last_check > self._seconds:
            self._count += 1
        self._last_check = now
        return self._count

    def start(self) -> None:
        self._last_check = self._now()
        self._schedule_check()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self) -> None:
        self._timer = self._reactor.callLater(self._seconds / CHECKS_PER_STALL, self._check)

    def _check(self) -> None:
        self.count()
        self._schedule_check()
