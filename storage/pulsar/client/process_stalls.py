"""How often this process stood still for so long that a broker may have let go of it: stopped, starved, or its machine suspended.

A broker lets go of a client that says nothing for `keepAliveIntervalSeconds` (30 s; seen after 30 to 60), and another process can have what was this
one's. Whoever goes on has not heard of that yet, and the requests that came meanwhile wait in its sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from storage.bridge import Reactor, ScheduledCall

STALL_SECONDS = 10.0
"""A third of what a broker waits for at least, where nobody has changed it."""

CHECKS_PER_STALL = 4
"""How often in that time a timer looks. A reactor that is busy for so long counts as well, which costs one message of the lock."""

#: Goes on while the machine is suspended, where there is such a clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ProcessStalls:
    """Those that were longer than `seconds`."""

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
        self._timer: ScheduledCall | None = None

    def count(self) -> int:
        """How many there were. Right also before the reactor comes to any timer again."""
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
