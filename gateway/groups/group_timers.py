"""Timers of groups: one reactor timer for all, and a limited number of calls per reactor turn.

The reactor runs all calls that are due in a single turn. Ten thousand group timers would block
other connections.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count

from gateway.coroutines import Cancel, Clock, DelayedCall

#: Seconds of calls per reactor turn. The last call may exceed it.
TURN_SECONDS = 0.005

#: Cancelled calls are removed once there are more than this and they are the majority.
MAX_CANCELLED = 100


class _Call:
    __slots__ = ("at", "function")

    def __init__(self, at: float, function: Callable[[], None]) -> None:
        self.at = at
        self.function: Callable[[], None] | None = function


class GroupTimers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count()
        self._calls: list[tuple[float, int, _Call]] = []
        self._cancelled = 0
        self._timer: DelayedCall | None = None
        self._fires_at = 0.0

    def __len__(self) -> int:
        """Pending calls, including cancelled ones that have not been removed."""
        return len(self._calls)

    def call_later(self, seconds: float, function: Callable[[], None]) -> Cancel:
        """Call `function` after `seconds`, or slightly later.

        Returns a function that cancels the call. Cancelling a call that has already run does
        nothing.
        """
        call = _Call(self._clock.seconds() + seconds, function)
        heappush(self._calls, (call.at, next(self._numbers), call))
        self._set_timer(call.at)
        return partial(self._cancel, call)

    def _cancel(self, call: _Call) -> None:
        if call.function is None:
            return
        call.function = None
        self._cancelled += 1
        if self._cancelled == len(self._calls) or (
            self._cancelled > MAX_CANCELLED and self._cancelled * 2 > len(self._calls)
        ):
            self._calls = [one for one in self._calls if one[2].function is not None]
            heapify(self._calls)
            self._cancelled = 0
        if not self._calls and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._fires_at <= at:
                return
            self._timer.cancel()
        self._fires_at = at
        self._timer = self._clock.callLater(max(at - self._clock.seconds(), 0), self._run_due)

    def _run_due(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        until = now + TURN_SECONDS
        try:
            while self._calls and self._calls[0][0] <= now and self._clock.seconds() <= until:
                self._call_next()
        finally:
            if self._calls:
                self._set_timer(self._calls[0][0])

    def _call_next(self) -> None:
        _, _, call = heappop(self._calls)
        function, call.function = call.function, None
        if function is None:
            self._cancelled -= 1
        else:
            function()
