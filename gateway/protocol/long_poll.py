"""How long a Fetch may wait for data: max_wait_ms at most, and less where it holds up its connection.

A connection's requests are served one at a time, so what arrives behind a Fetch that waits would wait
as long. Two rules, both about connections that carry more than Fetch requests:

- A Fetch stops waiting when another request is behind it. Another Fetch does not count: two consumers
  on one connection would keep ending each other's waits. Each request ends the wait of the Fetch
  directly before it at most, so a client's empty fetches are no more than its other requests.
- Sarama since 1.38 sends nothing while a Fetch is unanswered; a Produce waits in the client, where it
  cannot be seen. After a Produce on such a connection the waits are short, and each one that ends
  without data doubles the next one until max_wait_ms is reached.
"""

from __future__ import annotations

from collections.abc import Callable

#: The first wait after a Produce. Twice as long each time, it takes nine fetches to get to half a second.
MIN_WAIT_SECONDS = 0.001


class LongPoll:
    """One connection's. `on_request` is set by the Fetch that waits, and called when a request is behind it."""

    __slots__ = ("_has_partial_request", "_limit", "_overlaps", "_requests_behind", "on_request")

    def __init__(self) -> None:
        #: Requests that have arrived and are not being served yet, Fetch requests not counted.
        self._requests_behind = 0
        self._has_partial_request = False
        #: Whether the client ever sent a request while a Fetch of it waited.
        self._overlaps = False
        self._limit: float | None = None
        self.on_request: Callable[[], None] | None = None

    @property
    def should_end(self) -> bool:
        """Whether a request waits behind the Fetch that is being served."""
        return self._requests_behind > 0 or self._has_partial_request

    def requests_arrived(self, others: int) -> None:
        """Requests arrived, `others` of them not Fetch. What had arrived in part is one of the requests."""
        self._has_partial_request = False
        self._requests_behind += others
        self._notify()

    def partial_request_arrived(self) -> None:
        """A request that is no Fetch arrived in part. While a Fetch waits, the rest may not be read (`flow.BEHIND_BYTES`)."""
        self._has_partial_request = True
        self._notify()

    def request_started(self, *, is_produce: bool) -> None:
        """A request that is no Fetch is served now."""
        self._requests_behind -= 1
        if is_produce and not self._overlaps:
            self._limit = MIN_WAIT_SECONDS

    def wait_seconds(self, max_wait_ms: int) -> float:
        """How long the next Fetch may wait."""
        longest = max_wait_ms / 1000
        if self._limit is None:
            return longest
        if self._limit >= longest:
            self._limit = None
            return longest
        return self._limit

    def timed_out(self) -> None:
        """A Fetch waited for its time without finding enough."""
        if self._limit is not None:
            self._limit *= 2

    def _notify(self) -> None:
        if self.on_request is not None and self.should_end:
            self._overlaps = True
            self._limit = None
            self.on_request()
