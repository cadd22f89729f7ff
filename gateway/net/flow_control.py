"""Flow control: limits on request bytes in memory, per connection and in total.

A connection over its limit, or any connection while the total is over the limit, is not read until
memory is freed. Nothing is dropped.

A request counts until its reply is written. A partly received frame counts the bytes received so
far, not its announced length: otherwise clients could reserve memory without sending anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.coroutines import Clock
from gateway.protocol.wire.compiled import KERNEL, BudgetState, FlowState, OutgoingState

#: Bytes kept free for each resumed connection: the largest size of one read.
RESUME_RESERVE_BYTES = 256 << 10

#: Bytes read behind a blocked request, which can stay blocked for long: enough for small requests,
#: too little to take memory from other connections.
MAX_BYTES_BEHIND_WAITING_REQUEST = 64 << 10

#: Seconds between two attempts to resume paused connections: long enough for the ones resumed last
#: to have been read.
RESUME_INTERVAL_SECONDS = 0.01


class MemoryBudget(BudgetState):
    """Request bytes held by all connections.

    The total can exceed `limit` by one read (256 KiB) per connection that was being read when the
    limit was reached, and by one frame.

    If partly received frames hold at least half of the budget, finishing requests cannot free
    enough of it. In that case the connection that has waited longest with a partial frame may
    complete it regardless of the limit, and connections between frames may use an extra eighth.
    """

    unblocked: ConnectionFlow | None

    __slots__ = ("_clock", "_is_scheduled", "_waiting")

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self.request_bytes = 0
        self.partial_bytes = 0
        self._waiting: dict[ConnectionFlow, None] = {}
        self.unblocked = None
        self._is_scheduled = False

    @property
    def used(self) -> int:
        return self.request_bytes + self.partial_bytes

    def has_room(self, flow: ConnectionFlow, reserved: int = 0) -> bool:
        """Return whether `flow` may be read while `reserved` bytes are kept free for others."""
        used = self.used + reserved
        if used < self.limit or flow is self.unblocked:
            return True
        if not self._partial_frames_dominate or flow.has_partial_frame:
            return False
        others = used if self.unblocked is None else used - self.unblocked.partial_bytes
        return others < self.limit + self.limit // 8

    def resume_later(self, flow: ConnectionFlow) -> None:
        """Resume `flow` when there is room, in the order of the calls."""
        self._waiting[flow] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.callLater(RESUME_INTERVAL_SECONDS, self._resume_waiting)

    def frame_completed(self, flow: ConnectionFlow) -> None:
        """Note that `flow` has received a whole frame or is closed."""
        if self.unblocked is flow:
            self.unblocked = None

    def remove(self, flow: ConnectionFlow) -> None:
        self.frame_completed(flow)
        self._waiting.pop(flow, None)

    @property
    def _partial_frames_dominate(self) -> bool:
        return self.partial_bytes >= self.limit // 2

    def _resume_waiting(self) -> None:
        """Resume as many connections as there is room for, the longest waiting first."""
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, {}
        reserved = 0
        for flow in waiting:
            if self.unblocked is None and flow.has_partial_frame and self._partial_frames_dominate:
                self.unblocked = flow
            if self.has_room(flow, reserved):
                reserved += RESUME_RESERVE_BYTES
                flow.resume()
            else:
                self.resume_later(flow)


class UnauthenticatedConnection(Protocol):
    """A connection before the login."""

    def evict(self) -> None:
        """Close the connection at once."""
        ...


class LoginBudget:
    """Bytes of partly received frames on connections before the login.

    They do not count in `MemoryBudget`, and no connection is paused for them: over `limit`, the
    connection with the oldest partial frame is closed. A login token arrives within milliseconds,
    so that connection is withholding the rest of its frame.
    """

    __slots__ = ("_partial_frames", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._partial_frames: dict[UnauthenticatedConnection, int] = {}

    def partial_frame(
        self, connection: UnauthenticatedConnection, size: int, *, has_begun: bool = False
    ) -> None:
        """Record how many bytes of its incomplete frame a connection has sent, 0 for none.

        `has_begun` says that it is a different frame from the one of the previous call.
        """
        if not size or has_begun:
            self.used -= self._partial_frames.pop(connection, 0)
        if size:
            self.used += size - self._partial_frames.get(connection, 0)
            self._partial_frames[connection] = size
        while self.used > self.limit:
            oldest = next(iter(self._partial_frames))
            self.used -= self._partial_frames.pop(oldest)
            oldest.evict()


class OutgoingBytes(OutgoingState):
    """Reply bytes of all connections: unsent ones, and those reserved for replies being built.

    Nothing is delayed or closed. The closer the total is to `limit`, the smaller are the replies
    whose size can vary (Fetch); over the limit each holds one whole batch.
    """

    __slots__ = ()

    def __init__(self, limit: int = 1 << 62) -> None:
        self.limit = limit
        self.unsent = 0
        self.reserved = 0

    def reserve(self, wanted: int) -> int:
        """Return how many bytes of records a reply may hold, out of the `wanted` ones.

        This is at most a quarter of the free bytes. They stay reserved until `release`.
        """
        reserved = min(wanted, (self.limit - self.unsent - self.reserved) // 4)
        if reserved <= 0:
            return 0
        self.reserved += reserved
        return reserved

    def release(self, reserved: int) -> None:
        """End a reservation: the reply is built.

        Its actual size counts in `unsent` once the transport has it.
        """
        self.reserved -= reserved

    if not TYPE_CHECKING and KERNEL == "cython":
        reserve, release = OutgoingState.reserve, OutgoingState.release


class ConnectionFlow(FlowState):
    """The share of one connection in the memory budget.

    `pause` and `resume` stop and restart reading from its socket.
    """

    budget: MemoryBudget

    __slots__ = ("_pause", "_resume")

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
        self._waiting_size = None
        self.is_paused = False

    @property
    def has_partial_frame(self) -> bool:
        return self.partial_bytes > 0

    def requests_arrived(self, size: int, requests: int) -> None:
        """Record that `requests` whole requests arrived, with `size` bytes in total.

        The compiled `FlowState.arrived` does the same, and `finished` as `requests_finished`.
        """
        self._bytes += size
        self._requests += requests
        budget = self.budget
        budget.request_bytes += size
        if budget.unblocked is self:
            budget.unblocked = None

    def requests_finished(self, size: int, requests: int) -> None:
        """Record that `size` bytes of `requests` requests are answered."""
        was_full = self.is_paused and self._is_over_limit
        self._bytes -= size
        self._requests -= requests
        self.budget.request_bytes -= size
        if was_full:
            self._resume_if_allowed()

    def set_waiting(self, size: int | None) -> None:
        """Tell whether the current request is blocked, for example a long-polling Fetch.

        `size` is that of the request, None once it is no longer blocked. While it is, only
        MAX_BYTES_BEHIND_WAITING_REQUEST are read ahead. The bytes of the request itself do not
        count: a Fetch is answered early when another request arrives behind it.
        """
        was_full = self.is_paused and self._is_over_limit
        self._waiting_size = size
        if was_full:
            self._resume_if_allowed()

    def partial_frame(self, size: int) -> None:
        """Record how many bytes of the current, incomplete frame have been received."""
        self.budget.partial_bytes += size - self.partial_bytes
        self.partial_bytes = size

    def pause_if_over_limit(self) -> None:
        """Stop reading if a limit is exceeded. Called once for each chunk received."""
        if self.is_paused:
            return
        budget = self.budget
        if (
            self._waiting_size is None
            and self._bytes < self._max_bytes
            and self._requests < self._max_requests
            and budget.request_bytes + budget.partial_bytes < budget.limit
        ):
            # The common case, without further calls.
            return
        if self._is_over_limit:
            self.is_paused = True
            self._pause()
        elif not budget.has_room(self):
            self.is_paused = True
            budget.resume_later(self)
            self._pause()

    def resume(self) -> None:
        """Resume reading unless the connection is over its limit."""
        if self.is_paused and not self._is_over_limit:
            self.is_paused = False
            self._resume()

    def close(self) -> None:
        """Release the partial frame.

        Bytes of running requests are released when they finish.
        """
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
