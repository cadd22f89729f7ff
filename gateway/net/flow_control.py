"""How many bytes may be in the house: per connection and in all. Past a limit a socket is not read; nothing is ever dropped.

What counts are bytes that are there: those of requests until their replies have been handed to the socket, and those that have come of frames
that are still arriving. A length that is only announced counts nothing, or a few liars could use up what all others need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.coroutines import Clock

#: What one read may bring, at the least: so much is set aside for each connection that is let go on.
CHUNK_BYTES = 256 << 10

#: What a connection may send behind a request that waits, perhaps for very long: small requests, but nothing that others need the room for.
BEHIND_BYTES = 64 << 10

#: How often waiting connections are looked at, in seconds: long enough for those let go on to have been read.
TURN_SECONDS = 0.01


class Budget:
    """The bytes in flight of all connections together.

    `limit` may be passed by one chunk of each connection that was being read when it was reached, and by one frame. Where unfinished frames
    hold half of it or more, answering requests would free too little: then the oldest waiting one of these is let go on to its end, whatever
    the limit says, and connections between two frames may use an eighth more, so that no unfinished frame keeps small requests out.
    """

    __slots__ = ("_clock", "_finishing", "_is_due", "_waiting", "limit", "under_way", "unfinished")

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self.under_way = 0
        self.unfinished = 0
        self._waiting: dict[Flow, None] = {}
        self._finishing: Flow | None = None
        self._is_due = False

    @property
    def used(self) -> int:
        return self.under_way + self.unfinished

    def has_room(self, flow: Flow, promised: int = 0) -> bool:
        """Whether `flow` may be read on, where `promised` bytes are set aside for others."""
        used = self.used + promised
        if used < self.limit or flow is self._finishing:
            return True
        if not self._is_clogged or flow.is_amid_frame:
            return False
        others = used if self._finishing is None else used - self._finishing.unfinished
        return others < self.limit + self.limit // 8

    def wait(self, flow: Flow) -> None:
        """Let `flow` go on when it is its turn."""
        self._waiting[flow] = None
        if not self._is_due:
            self._is_due = True
            self._clock.callLater(TURN_SECONDS, self._take_turn)

    def completed(self, flow: Flow) -> None:
        """`flow` has come to the end of a frame, or of its life."""
        if self._finishing is flow:
            self._finishing = None

    def forget(self, flow: Flow) -> None:
        self.completed(flow)
        self._waiting.pop(flow, None)

    @property
    def _is_clogged(self) -> bool:
        return self.unfinished >= self.limit // 2

    def _take_turn(self) -> None:
        """Let go on as many as there is room for, the longest waiting first."""
        self._is_due = False
        waiting, self._waiting = self._waiting, {}
        promised = 0
        for flow in waiting:
            if self._finishing is None and flow.is_amid_frame and self._is_clogged:
                self._finishing = flow
            if self.has_room(flow, promised):
                promised += CHUNK_BYTES
                flow.go_on()
            else:
                self.wait(flow)


class Pushed(Protocol):
    """A connection that is not logged in."""

    def give_way(self) -> None:
        """Close at once."""
        ...


class LoginBudget:
    """Bytes of partly received frames on connections that are not logged in. They do not count in `Budget`, and no connection is paused
    for them: beyond `limit` the connection whose frame began first is closed.

    A token arrives within milliseconds, so that those are connections which hold a frame back.
    """

    __slots__ = ("_held", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._held: dict[Pushed, int] = {}

    def partial_frame(self, connection: Pushed, size: int, *, has_begun: bool = False) -> None:
        """Note how many bytes of its last, incomplete frame a connection has sent, 0 if there is none; `has_begun` says that it is another frame
        than the last time."""
        if not size or has_begun:
            self.used -= self._held.pop(connection, 0)
        if size:
            self.used += size - self._held.get(connection, 0)
            self._held[connection] = size
        while self.used > self.limit:
            oldest = next(iter(self._held))
            self.used -= self._held.pop(oldest)
            oldest.give_way()


class Outgoing:
    """What is on its way out to all connections together: bytes that peers have yet to take, and those that replies being made may come to.

    Nothing is held back and nobody is cut off: the less room there is, the smaller are the replies that can be smaller. Beyond `limit` each
    is one whole batch.
    """

    __slots__ = ("limit", "promised", "unsent")

    def __init__(self, limit: int = 1 << 62) -> None:
        self.limit = limit
        self.unsent = 0
        self.promised = 0

    def promise(self, wanted: int) -> int:
        """How many bytes of records a reply may have where `wanted` were asked for: a quarter of the room at the most. They are set aside
        until `keep`."""
        promised = max(min(wanted, (self.limit - self.unsent - self.promised) // 4), 0)
        self.promised += promised
        return promised

    def keep(self, promised: int) -> None:
        """The reply is made; what it really has counts from when it is sent."""
        self.promised -= promised


class Flow:
    """One connection's share. `pause` and `resume` stop and restart the reading of its socket."""

    __slots__ = (
        "_bytes",
        "_max_bytes",
        "_max_requests",
        "_pause",
        "_requests",
        "_resume",
        "_waits",
        "budget",
        "is_paused",
        "unfinished",
    )

    def __init__(
        self,
        budget: Budget,
        *,
        max_bytes: int,
        max_requests: int,
        pause: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        self.budget = budget
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._pause = pause
        self._resume = resume
        self._bytes = 0
        self._requests = 0
        self.unfinished = 0
        self._waits: int | None = None
        self.is_paused = False

    @property
    def is_amid_frame(self) -> bool:
        return self.unfinished > 0

    def took(self, size: int, requests: int) -> None:
        """Whole requests of this many bytes together arrived."""
        self._bytes += size
        self._requests += requests
        self.budget.under_way += size
        self.budget.completed(self)

    def gave(self, size: int, requests: int) -> None:
        """This many bytes of `requests` requests have been answered."""
        was_full = self.is_paused and self._is_full
        self._bytes -= size
        self._requests -= requests
        self.budget.under_way -= size
        if was_full:
            self._emptied()

    def waits(self, size: int | None) -> None:
        """The request that is being served, of so many bytes, waits for something; None once it has stopped waiting.

        Meanwhile little is read of what comes behind it. Its own bytes do not count: it is answered early
        when another request is seen behind it.
        """
        was_full = self.is_paused and self._is_full
        self._waits = size
        if was_full:
            self._emptied()

    def holds(self, size: int) -> None:
        """This many bytes are there of a frame that is not whole yet."""
        self.budget.unfinished += size - self.unfinished
        self.unfinished = size

    def settle(self) -> None:
        """Stop the reading if a limit is passed. Called once for every chunk that arrived."""
        if self.is_paused:
            return
        if self._is_full:
            self.is_paused = True
            self._pause()
        elif not self.budget.has_room(self):
            self.is_paused = True
            self.budget.wait(self)
            self._pause()

    def go_on(self) -> None:
        """Read on: it is this connection's turn."""
        if self.is_paused and not self._is_full:
            self.is_paused = False
            self._resume()

    def close(self) -> None:
        """The connection is gone, and with it what had come of its last frame. What its requests hold is given back when they end."""
        self.budget.forget(self)
        self._resume = self._pause = _nothing
        self.holds(0)

    @property
    def _is_full(self) -> bool:
        if self._waits is not None and self._bytes - self._waits + self.unfinished >= BEHIND_BYTES:
            return True
        return self._bytes >= self._max_bytes or self._requests >= self._max_requests

    def _emptied(self) -> None:
        if self._is_full:
            return
        if self.budget.has_room(self):
            self.go_on()
        else:
            self.budget.wait(self)


def _nothing() -> None:
    return
