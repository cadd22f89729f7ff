"""How many bytes may be in the house: per connection and in all. Past a limit a socket is not read; nothing is ever dropped.

What counts are bytes that are there: those of requests until their replies have been handed to the socket, and those that have come of frames
that are still arriving. A length that is only announced counts nothing, or a few liars could use up what all others need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.coroutines import Clock

#: What one read may bring, at the least: so much is set aside for each connection that is let go on.
RESUME_RESERVE_BYTES = 256 << 10

#: What a connection may send behind a request that waits, perhaps for very long: small requests, but nothing that others need the room for.
MAX_BYTES_BEHIND_WAITING_REQUEST = 64 << 10

#: How often waiting connections are looked at, in seconds: long enough for those let go on to have been read.
RESUME_INTERVAL_SECONDS = 0.01


class MemoryBudget:
    """The bytes in flight of all connections together.

    `limit` may be passed by one chunk of each connection that was being read when it was reached, and by one frame. Where unfinished frames
    hold half of it or more, answering requests would free too little: then the oldest waiting one of these is let go on to its end, whatever
    the limit says, and connections between two frames may use an eighth more, so that no unfinished frame keeps small requests out.
    """

    __slots__ = (
        "_clock",
        "_is_scheduled",
        "_unblocked",
        "_waiting",
        "limit",
        "partial_bytes",
        "request_bytes",
    )

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self.request_bytes = 0
        self.partial_bytes = 0
        self._waiting: dict[ConnectionFlow, None] = {}
        self._unblocked: ConnectionFlow | None = None
        self._is_scheduled = False

    @property
    def used(self) -> int:
        return self.request_bytes + self.partial_bytes

    def has_room(self, flow: ConnectionFlow, reserved: int = 0) -> bool:
        """Whether `flow` may be read on, where `reserved` bytes are set aside for others."""
        used = self.used + reserved
        if used < self.limit or flow is self._unblocked:
            return True
        if not self._partial_frames_dominate or flow.has_partial_frame:
            return False
        others = used if self._unblocked is None else used - self._unblocked.partial_bytes
        return others < self.limit + self.limit // 8

    def resume_later(self, flow: ConnectionFlow) -> None:
        """Let `flow` go on when it is its turn."""
        self._waiting[flow] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.callLater(RESUME_INTERVAL_SECONDS, self._resume_waiting)

    def frame_completed(self, flow: ConnectionFlow) -> None:
        """`flow` has come to the end of a frame, or of its life."""
        if self._unblocked is flow:
            self._unblocked = None

    def remove(self, flow: ConnectionFlow) -> None:
        self.frame_completed(flow)
        self._waiting.pop(flow, None)

    @property
    def _partial_frames_dominate(self) -> bool:
        return self.partial_bytes >= self.limit // 2

    def _resume_waiting(self) -> None:
        """Let go on as many as there is room for, the longest waiting first."""
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, {}
        reserved = 0
        for flow in waiting:
            if self._unblocked is None and flow.has_partial_frame and self._partial_frames_dominate:
                self._unblocked = flow
            if self.has_room(flow, reserved):
                reserved += RESUME_RESERVE_BYTES
                flow.resume()
            else:
                self.resume_later(flow)


class UnauthenticatedConnection(Protocol):
    """A connection that is not logged in."""

    def evict(self) -> None:
        """Close at once."""
        ...


class LoginBudget:
    """Bytes of partly received frames on connections that are not logged in. They do not count in `MemoryBudget`, and no connection is paused
    for them: beyond `limit` the connection whose frame began first is closed.

    A token arrives within milliseconds, so that those are connections which hold a frame back.
    """

    __slots__ = ("_partial_frames", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._partial_frames: dict[UnauthenticatedConnection, int] = {}

    def partial_frame(
        self, connection: UnauthenticatedConnection, size: int, *, has_begun: bool = False
    ) -> None:
        """Note how many bytes of its last, incomplete frame a connection has sent, 0 if there is none; `has_begun` says that it is another frame
        than the last time."""
        if not size or has_begun:
            self.used -= self._partial_frames.pop(connection, 0)
        if size:
            self.used += size - self._partial_frames.get(connection, 0)
            self._partial_frames[connection] = size
        while self.used > self.limit:
            oldest = next(iter(self._partial_frames))
            self.used -= self._partial_frames.pop(oldest)
            oldest.evict()


class OutgoingBytes:
    """What is on its way out to all connections together: bytes that peers have yet to take, and those that replies being made may come to.

    Nothing is held back and nobody is cut off: the less room there is, the smaller are the replies that can be smaller. Beyond `limit` each
    is one whole batch.
    """

    __slots__ = ("limit", "reserved", "unsent")

    def __init__(self, limit: int = 1 << 62) -> None:
        self.limit = limit
        self.unsent = 0
        self.reserved = 0

    def reserve(self, wanted: int) -> int:
        """How many bytes of records a reply may have where `wanted` were asked for: a quarter of the room at the most. They are set aside
        until `release`."""
        reserved = max(min(wanted, (self.limit - self.unsent - self.reserved) // 4), 0)
        self.reserved += reserved
        return reserved

    def release(self, reserved: int) -> None:
        """The reply is made; what it really has counts from when it is sent."""
        self.reserved -= reserved


class ConnectionFlow:
    """One connection's share. `pause` and `resume` stop and restart the reading of its socket."""

    __slots__ = (
        "_bytes",
        "_max_bytes",
        "_max_requests",
        "_pause",
        "_requests",
        "_resume",
        "_waiting_size",
        "budget",
        "is_paused",
        "partial_bytes",
    )

    def __init__(
        self,
        budget: MemoryBudget,
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
        self.partial_bytes = 0
        self._waiting_size: int | None = None
        self.is_paused = False

    @property
    def has_partial_frame(self) -> bool:
        return self.partial_bytes > 0

    def requests_arrived(self, size: int, requests: int) -> None:
        """Whole requests of this many bytes together arrived."""
        self._bytes += size
        self._requests += requests
        self.budget.request_bytes += size
        self.budget.frame_completed(self)

    def requests_finished(self, size: int, requests: int) -> None:
        """This many bytes of `requests` requests have been answered."""
        was_full = self.is_paused and self._is_over_limit
        self._bytes -= size
        self._requests -= requests
        self.budget.request_bytes -= size
        if was_full:
            self._resume_if_allowed()

    def set_waiting(self, size: int | None) -> None:
        """The request that is being served, of so many bytes, waits for something; None once it has stopped waiting.

        Meanwhile little is read of what comes behind it. Its own bytes do not count: it is answered early
        when another request is seen behind it.
        """
        was_full = self.is_paused and self._is_over_limit
        self._waiting_size = size
        if was_full:
            self._resume_if_allowed()

    def partial_frame(self, size: int) -> None:
        """This many bytes are there of a frame that is not whole yet."""
        self.budget.partial_bytes += size - self.partial_bytes
        self.partial_bytes = size

    def pause_if_over_limit(self) -> None:
        """Stop the reading if a limit is passed. Called once for every chunk that arrived."""
        if self.is_paused:
            return
        if self._is_over_limit:
            self.is_paused = True
            self._pause()
        elif not self.budget.has_room(self):
            self.is_paused = True
            self.budget.resume_later(self)
            self._pause()

    def resume(self) -> None:
        """Read on: it is this connection's turn."""
        if self.is_paused and not self._is_over_limit:
            self.is_paused = False
            self._resume()

    def close(self) -> None:
        """The connection is gone, and with it what had come of its last frame. What its requests hold is given back when they end."""
        self.budget.remove(self)
        self._resume = self._pause = _nothing
        self.partial_frame(0)

    @property
    def _is_over_limit(self) -> bool:
        if (
            self._waiting_size is not None
            and self._bytes - self._waiting_size + self.partial_bytes
            >= MAX_BYTES_BEHIND_WAITING_REQUEST
        ):
            return True
        return self._bytes >= self._max_bytes or self._requests >= self._max_requests

    def _resume_if_allowed(self) -> None:
        if self._is_over_limit:
            return
        if self.budget.has_room(self):
            self.resume()
        else:
            self.budget.resume_later(self)


def _nothing() -> None:
    return
