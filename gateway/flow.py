"""How many bytes may be in the house: per connection and in all. Past a limit a socket is not read; nothing is ever dropped.

A frame counts with its full size from the moment its length is known until its reply has been handed to the socket.
"""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """The bytes in flight of all connections together. `limit` may be passed by one frame, never by more."""

    __slots__ = ("_paused", "limit", "requests", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.requests = 0
        self._paused: dict[Flow, None] = {}

    @property
    def is_spent(self) -> bool:
        return self.used >= self.limit

    def wait(self, flow: Flow) -> None:
        self._paused[flow] = None

    def forget(self, flow: Flow) -> None:
        self._paused.pop(flow, None)

    def freed(self) -> None:
        """Let the longest waiting connections read on. With no request under way only unfinished frames are left to hold the budget:
        then the oldest goes on all the same, or none ever would."""
        while self._paused and (not self.is_spent or self.requests == 0):
            flow = next(iter(self._paused))
            del self._paused[flow]
            flow.may_read()
            if self.is_spent:
                break


class Flow:
    """One connection's share. `pause` and `resume` stop and restart the reading of its socket."""

    __slots__ = ("_bytes", "_expected", "_is_paused", "_max_bytes", "_max_requests", "_pause", "_requests", "_resume", "budget")

    def __init__(self, budget: Budget, *, max_bytes: int, max_requests: int, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.budget = budget
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._pause = pause
        self._resume = resume
        self._bytes = 0
        self._requests = 0
        self._expected = 0
        self._is_paused = False

    def took(self, size: int) -> None:
        """A whole request of this many bytes arrived."""
        self._bytes += size
        self._requests += 1
        self.budget.used += size
        self.budget.requests += 1

    def gave(self, size: int, requests: int) -> None:
        """This many bytes of `requests` requests have been answered."""
        self._bytes -= size
        self._requests -= requests
        self.budget.used -= size
        self.budget.requests -= requests
        if self._is_paused and not self._is_full:
            self.may_read()
        self.budget.freed()

    def expect(self, size: int) -> None:
        """A frame of this many bytes has begun to arrive; 0 for none."""
        self.budget.used += size - self._expected
        self._expected = size

    def settle(self) -> None:
        """Stop the reading if a limit is passed. Called once for every chunk that arrived."""
        if self._is_paused:
            return
        if self._is_full:
            self._is_paused = True
            self._pause()
        elif self.budget.is_spent and (self.budget.requests or self._expected != self.budget.used):
            self._is_paused = True
            self.budget.wait(self)
            self._pause()

    def may_read(self) -> None:
        """Read on, unless this connection's own limit forbids it."""
        if self._is_paused and not self._is_full:
            self._is_paused = False
            self._resume()

    def close(self) -> None:
        """The connection is gone, and with it what it held."""
        self.budget.forget(self)
        self._resume = self._pause = _nothing
        self.expect(0)
        self.budget.freed()

    @property
    def _is_full(self) -> bool:
        return self._bytes >= self._max_bytes or self._requests >= self._max_requests


def _nothing() -> None:
    return
