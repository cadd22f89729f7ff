"""Mutes a connection whose client is over a quota: no request starts until the time is over
(KIP-219). Meanwhile little is read ahead, as behind a blocked request.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.coroutines import Cancel, Clock, call_later
from gateway.net.flow_control import ConnectionFlow


class Mute:
    """The throttle time of one connection.

    `until` is the end of the last one in the clock's seconds. `on_end` is called when requests may
    start again.
    """

    __slots__ = ("_cancel", "_clock", "_flow", "_is_disabled", "_on_end", "is_on", "until")

    def __init__(self, clock: Clock, flow: ConnectionFlow, on_end: Callable[[], None]) -> None:
        self._clock = clock
        self._flow = flow
        self._on_end = on_end
        self._cancel: Cancel | None = None
        self._is_disabled = False
        self.is_on = False
        self.until = 0.0

    def extend(self, milliseconds: int) -> None:
        """Start no request for this time, or until a later end that is set already."""
        if self._is_disabled:
            return
        self.until = max(self.until, self._clock.seconds() + milliseconds / 1000)
        if not self.is_on:
            self.is_on = True
            self._flow.set_waiting(0)
            self._cancel = call_later(self._clock, milliseconds / 1000, self._unmute)

    def _unmute(self) -> None:
        left = self.until - self._clock.seconds()
        if left > 0:
            # A request that was running when the timer was set was throttled for longer.
            self._cancel = call_later(self._clock, left, self._unmute)
            return
        self._end()

    def _end(self) -> None:
        self.is_on = False
        self._flow.set_waiting(None)
        self._on_end()

    def cancel(self) -> None:
        """Stop the timer, because the connection is closed."""
        if self._cancel is not None:
            self._cancel()

    def disable(self) -> None:
        """End the mute, and mute no more: the gateway shuts down."""
        self._is_disabled = True
        if self.is_on:
            self.cancel()
            self._end()
