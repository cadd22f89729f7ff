"""How long a Fetch may wait for data: max_wait_ms, or less if it delays other requests.

A connection's requests are served one at a time, so requests behind a waiting Fetch wait as well.
Two rules apply to connections that carry more than Fetch requests:

- A Fetch stops waiting when another request arrives behind it. Another Fetch does not count: two
  consumers on one connection would keep ending each other's waits. Each request ends at most the
  wait of the Fetch directly before it, so a client receives no more empty replies than it sends
  other requests.
- Sarama 1.38 and later sends nothing while a Fetch is unanswered: a Produce waits in the client,
  invisible to the gateway. After a Produce on such a connection waits are short, and each wait that
  ends without data doubles the next, up to max_wait_ms.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.protocol.wire.compiled import LongPollState

#: First wait after a Produce. Doubling reaches 0.5 seconds after nine fetches.
MIN_WAIT_SECONDS = 0.001


def acknowledge_nothing() -> None:
    """The `acknowledge` of a `LongPoll` without a TCP connection."""


class LongPoll(LongPollState):
    """The state of one connection.

    A waiting Fetch sets `on_request`, which is called when another request arrives behind it.
    """

    __slots__ = ("_requests_behind", "acknowledge", "on_request")

    def __init__(self, acknowledge: Callable[[], None]) -> None:
        #: Acknowledges the received bytes (decision 031). To be called before a Fetch waits.
        self.acknowledge = acknowledge
        #: Requests that arrived and are not yet served, without Fetch requests.
        self._requests_behind = 0
        self._has_partial_request = False
        #: Whether the client has ever sent a request while its Fetch was waiting.
        self._overlaps = False
        self._limit = None
        self.on_request: Callable[[], None] | None = None

    @property
    def should_end(self) -> bool:
        """Whether a request waits behind the Fetch that is being served."""
        return self._requests_behind > 0 or self._has_partial_request

    def requests_arrived(self, others: int) -> None:
        """Record that requests arrived, `others` of them not Fetch.

        The partly received request, if any, is one of them.
        """
        self._has_partial_request = False
        self._requests_behind += others
        if self.on_request is not None:
            self._notify()

    def partial_request_arrived(self) -> None:
        """Record that part of a request other than Fetch arrived.

        While a Fetch waits, its rest may not be read
        (`flow_control.MAX_BYTES_BEHIND_WAITING_REQUEST`).
        """
        self._has_partial_request = True
        self._notify()

    def request_started(self, *, is_produce: bool) -> None:
        """Record that a request other than Fetch is being served."""
        self._requests_behind -= 1
        if is_produce and not self._overlaps:
            self._limit = MIN_WAIT_SECONDS

    def wait_seconds(self, max_wait_ms: int) -> float:
        """Return how long the next Fetch may wait."""
        longest = max_wait_ms / 1000
        if self._limit is None:
            return longest
        if self._limit >= longest:
            self._limit = None
            return longest
        return self._limit

    def timed_out(self) -> None:
        """Record that a Fetch waited for its full time without enough data."""
        if self._limit is not None:
            self._limit *= 2

    def _notify(self) -> None:
        if self.on_request is not None and self.should_end:
            self._overlaps = True
            self._limit = None
            self.on_request()
