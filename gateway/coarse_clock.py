"""A clock for timeouts that rarely expire: up to 0.1 s late, and cheap to cancel.

Every Produce and every OffsetCommit has such a timeout. Each timer of the reactor costs several
microseconds, a tenth of a small request.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.coroutines import Clock

#: Largest delay of a call in seconds.
GRANULARITY_SECONDS = 0.1


class CoarseCall:
    """A scheduled call, like Twisted's IDelayedCall."""

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
        # The owner of this call is often among the arguments. Without that reference cycle a
        # request is freed when it is answered, not by a later run of the garbage collector.
        self._function, self._arguments = _nothing, ()

    def run(self) -> None:
        function, arguments = self._function, self._arguments
        self.cancel()
        function(*arguments)


def _nothing() -> None:
    return


class CoarseClock:
    """Has the interface of `clock`.

    All calls share one timer, which runs only while calls are scheduled.
    """

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
