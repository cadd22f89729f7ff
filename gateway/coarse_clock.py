"""A clock for deadlines that hardly ever come: it may be a tenth of a second late, and a deadline that is taken back costs next to nothing.

Every Produce and every OffsetCommit has one. The reactor's own timers cost some microseconds each, a tenth of a small request.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.coroutines import Clock

#: Seconds by which a call may come late.
GRANULARITY_SECONDS = 0.1


class CoarseCall:
    """A call that is still to come, or not any more."""

    __slots__ = ("_arguments", "_function", "_slot")

    def __init__(
        self, slot: set[CoarseCall], function: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        self._slot = slot
        self._function = function
        self._arguments = arguments

    def active(self) -> bool:
        return self in self._slot

    def cancel(self) -> None:
        self._slot.discard(self)
        # The owner of this call is often among the arguments: without that cycle a request is freed as soon as it is answered, and not
        # by the garbage collector, which may not run for a long time.
        self._function, self._arguments = _nothing, ()

    def run(self) -> None:
        function, arguments = self._function, self._arguments
        self.cancel()
        function(*arguments)


def _nothing() -> None:
    return


class CoarseClock:
    """As `clock`. There is one timer for all, and none while nothing is to come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, set[CoarseCall]] = {}
        self._is_ticking = False

    def seconds(self) -> float:
        return self._clock.seconds()

    def callLater(self, delay: float, callable: Callable[..., object], *args: object) -> CoarseCall:
        number = int((self._clock.seconds() + delay) / GRANULARITY_SECONDS) + 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = set()
            self._tick_later()
        call = CoarseCall(slot, callable, args)
        slot.add(call)
        return call

    def _tick_later(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._clock.callLater(GRANULARITY_SECONDS, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        now = int(self._clock.seconds() / GRANULARITY_SECONDS)
        for number in sorted(self._slots):
            if number <= now:
                for call in list(self._slots.pop(number)):
                    if call.active():
                        call.run()
            elif not self._slots[number]:
                del self._slots[number]
        if self._slots:
            self._tick_later()
