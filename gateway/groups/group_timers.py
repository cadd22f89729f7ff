"""Time of groups: their clock, and one timer per group for its earliest deadline.

All timers share one reactor timer, with a limited number of calls per reactor turn. The reactor
runs all calls that are due in a single turn, so ten thousand group timers would block other
connections.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count

from gateway.coroutines import Cancel, Clock, DelayedCall
from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.group_effects import NEVER

#: A group of either protocol.
AnyGroup = ClassicGroup | ConsumerGroup

#: Seconds of calls per reactor turn. The last call may exceed it.
TURN_SECONDS = 0.005

#: Members that may expire per millisecond of timer delay.
#:
#: Expiring a group costs about 1 us per member, and thousands of sessions may end within a few
#: milliseconds. The timer of a large group is delayed so that one pass handles many.
MEMBERS_PER_MS = 50

#: Minimum delay while the clock is paused, when a deadline does not come nearer.
MIN_PAUSED_DELAY_MS = 1000

#: Cancelled calls are removed once there are more than this and they are the majority.
MAX_CANCELLED = 100


class GroupClock:
    """The monotonic clock in ms, without the time in which the gateway could not serve.

    Members cannot send heartbeats while the gateway is cut off from its store. Their sessions
    continue afterwards, so that an outage of the store does not rebalance each group. Stored rows
    have ms since 1970 instead (`wall_ms`).
    """

    def __init__(self, clock: Clock, wall_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._wall_ms = wall_ms
        self._paused_at: float | None = None
        self._paused_seconds = 0.0
        """Length of all former pauses."""

    @property
    def is_paused(self) -> bool:
        return self._paused_at is not None

    def set_running(self, is_running: bool) -> None:
        """Stop the clock, or let it continue. No effect if it does that already."""
        if is_running and self._paused_at is not None:
            self._paused_seconds += self._clock.seconds() - self._paused_at
            self._paused_at = None
        elif not is_running and self._paused_at is None:
            self._paused_at = self._clock.seconds()

    def now(self) -> int:
        seconds = self._clock.seconds() if self._paused_at is None else self._paused_at
        return int((seconds - self._paused_seconds) * 1000)

    def to_wall(self, time: float) -> int:
        """Convert a time of `now` to ms since 1970."""
        return int(time) - self.now() + self._wall_ms()

    def from_wall(self, time: float) -> float:
        return time + self.now() - self._wall_ms()


class _Call:
    __slots__ = ("at", "function")

    def __init__(self, at: float, function: Callable[[], None]) -> None:
        self.at = at
        self.function: Callable[[], None] | None = function


class GroupTimers:
    def __init__(self, clock: Clock, group_clock: GroupClock) -> None:
        self._clock = clock
        self._group_clock = group_clock
        self._numbers = count()
        self._calls: list[tuple[float, int, _Call]] = []
        self._cancelled = 0
        self._timer: DelayedCall | None = None
        self._fires_at = 0.0
        self._scheduled: dict[str, tuple[float, Cancel]] = {}
        """Each group's deadline and the function that cancels its call."""

    def __len__(self) -> int:
        """Pending calls, including cancelled ones that have not been removed."""
        return len(self._calls)

    def schedule(self, group: AnyGroup, expire: Callable[[AnyGroup], None]) -> None:
        """Call `expire` at the group's earliest deadline.

        A deadline that moves later, as after a heartbeat or a pause of the clock, does not touch
        the timer: it fires early, and the group is scheduled again.
        """
        at = group.next_expire_at
        scheduled = self._scheduled.get(group.group_id)
        if at == NEVER or (scheduled is not None and scheduled[0] <= at):
            return
        if scheduled is not None:
            scheduled[1]()
        delay_ms = max(at - self._group_clock.now(), group.member_count // MEMBERS_PER_MS)
        if self._group_clock.is_paused:
            delay_ms = max(delay_ms, MIN_PAUSED_DELAY_MS)
        call = partial(self._expire, group, expire)
        self._scheduled[group.group_id] = (at, self.call_later(delay_ms / 1000, call))

    def _expire(self, group: AnyGroup, expire: Callable[[AnyGroup], None]) -> None:
        del self._scheduled[group.group_id]
        expire(group)

    def cancel(self, group_id: str) -> None:
        scheduled = self._scheduled.pop(group_id, None)
        if scheduled is not None:
            scheduled[1]()

    def cancel_all(self) -> None:
        for group_id in list(self._scheduled):
            self.cancel(group_id)

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
