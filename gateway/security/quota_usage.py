"""What clients use of their quotas, and for how long they are throttled (KIP-13, KIP-124, KIP-219).

Kafka's ClientQuotaManager and ClientRequestQuotaManager. A client's usage is counted only while a
quota applies to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from heapq import nsmallest
from typing import Protocol

import msgspec

from gateway.security.client_quotas import ClientQuotas
from gateway.security.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from gateway.security.rate_windows import MAX_THROTTLE_MS, RateWindow

#: Maximum number of counted clients, some 2 KiB each. Beyond it those that were idle for the
#: longest time are forgotten, `EVICTED` at a time.
MAX_COUNTED, EVICTED = 10_000, 1_000

#: Longest name of a user or client that is kept; of longer ones it is a digest.
MAX_KEPT_CHARS = 300

#: Ms without requests after which a client's usage is forgotten.
INACTIVE_MS = 3_600_000

#: Minimum ms between two searches for such clients.
EXPIRY_INTERVAL_MS = 60_000

#: A reply to a client without a quota may have any size.
_UNLIMITED_BYTES = (1 << 31) - 1

_PERCENT_PER_NS = 100 / 1_000_000_000


class _Counter:
    """The usage of one quota. `limit` is in units per second."""

    __slots__ = ("limit", "max_throttle_ms", "window")

    def __init__(self, limit: float, window: RateWindow, max_throttle_ms: int) -> None:
        self.limit = limit
        self.window = window
        self.max_throttle_ms = max_throttle_ms

    def record(self, value: float, now: int) -> int:
        """Count a value. Returns the throttle time in ms."""
        window = self.window
        window.record(value, now)
        throttle_ms = window.throttle_ms(self.limit, now)
        return min(throttle_ms, self.max_throttle_ms) if throttle_ms else 0


class ClientUsage:
    """The counters that apply to a user and client id. `version` is that of `QuotaUsage`."""

    __slots__ = ("client_id", "fetched", "is_limited", "produced", "time", "user", "version")

    def __init__(
        self,
        version: int,
        user: str,
        client_id: str | None,
        produced: _Counter | None,
        fetched: _Counter | None,
        time: _Counter | None,
    ) -> None:
        self.version = version
        self.user = user
        self.client_id = client_id
        self.produced = produced
        self.fetched = fetched
        self.time = time
        self.is_limited = any(one is not None for one in (produced, fetched, time))


class QuotaUsage:
    """The usage of all clients.

    A window has `samples` samples of `sample_seconds` each. `now()` is in ms. `version` changes
    when a `ClientUsage` is out of date.
    """

    def __init__(
        self, quotas: ClientQuotas, *, samples: int, sample_seconds: int, now: Callable[[], int]
    ) -> None:
        self._quotas = quotas
        self._samples = samples
        self._sample_ms = sample_seconds * 1000
        self._counters: dict[tuple[str, tuple[str, str]], _Counter] = {}
        self._expired_at = 0
        self.now = now
        self.version = 0
        quotas.watch(self._invalidate)

    def __len__(self) -> int:
        return len(self._counters)

    @property
    def window_seconds(self) -> int:
        """Length of the window without the current sample."""
        return (self._samples - 1) * self._sample_ms // 1000

    def client(self, user: str, client_id: str | None) -> ClientUsage:
        """Return the counters of a client; `client_id` is None if it sent null."""
        produced, fetched, time = (
            self._counter(key, user, client_id or "")
            for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
        )
        return ClientUsage(self.version, user, client_id, produced, fetched, time)

    def _counter(self, key: str, user: str, client_id: str) -> _Counter | None:
        found = self._quotas.find(key, user, client_id)
        if found is None:
            return None
        limit, (limited_user, limited_client) = found
        limited = _kept(limited_user), _kept(limited_client)
        counter = self._counters.get((key, limited))
        if counter is not None:
            counter.limit = limit
            return counter
        now = self.now()
        self._make_room(now)
        most = self._sample_ms if key == REQUEST_PERCENTAGE else MAX_THROTTLE_MS
        counter = _Counter(limit, RateWindow(self._samples, self._sample_ms, now), most)
        self._counters[key, limited] = counter
        return counter

    def _make_room(self, now: int) -> None:
        counters = self._counters
        dropped = []
        if now - self._expired_at >= EXPIRY_INTERVAL_MS:
            self._expired_at = now
            dropped = [
                key
                for key, counter in counters.items()
                if now - counter.window.recorded_at > INACTIVE_MS
            ]
        if len(counters) - len(dropped) >= MAX_COUNTED:
            dropped = nsmallest(EVICTED, counters, key=lambda key: counters[key].window.recorded_at)
        for key in dropped:
            del counters[key]
        if dropped:
            # Connections must not go on counting with a counter that is not found any more.
            self._invalidate()

    def _invalidate(self) -> None:
        self.version += 1


def _kept(name: str) -> str:
    if len(name) <= MAX_KEPT_CHARS:
        return name
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


class RequestTime(Protocol):
    """The time that the gateway has spent on a request, in ns."""

    def total_ns(self) -> int: ...


class RequestUsage(msgspec.Struct, gc=False):
    """What one request uses of its client's quotas. `throttle_ms` is known once it is counted.

    `request_bytes` is the size of the request with its header. `spent` is None if the client's time
    is not limited.
    """

    usage: QuotaUsage
    client: ClientUsage
    request_bytes: int
    spent: RequestTime | None
    is_counted: bool = False
    throttle_ms: int = 0

    def of_same_client(self, request_bytes: int) -> RequestUsage:
        """The usage of another request of the client, whose time is not limited."""
        return RequestUsage(self.usage, self.client, request_bytes, None)

    @property
    def max_fetch_bytes(self) -> int:
        """The most that a reply may contain without being throttled in any case."""
        fetched = self.client.fetched
        if fetched is None:
            return _UNLIMITED_BYTES
        return int(min(fetched.limit * self.usage.window_seconds, _UNLIMITED_BYTES))

    @property
    def limits_fetched_bytes(self) -> bool:
        return self.client.fetched is not None

    def count_produce(self, *, has_reply: bool) -> int:
        """Count a Produce, return the throttle time. The time of one with acks=0 is not limited."""
        now = self.usage.now()
        produced = self.client.produced
        throttle_ms = 0 if produced is None else produced.record(self.request_bytes, now)
        return self._count(throttle_ms, now, is_exempt=not has_reply)

    def count_fetch(self, reply_bytes: int) -> int:
        """Count a Fetch, return the throttle time. If it is not 0, the reply must be empty."""
        now = self.usage.now()
        fetched = self.client.fetched
        throttle_ms = 0 if fetched is None else fetched.record(reply_bytes, now)
        throttle_ms = self._count(throttle_ms, now)
        if throttle_ms and fetched is not None:
            fetched.window.record(-reply_bytes, now)
        return throttle_ms

    def count_request(self, *, is_exempt: bool) -> int:
        """Count the time of a request unless it is counted already; return the throttle time."""
        if self.is_counted:
            return self.throttle_ms
        return self._count(0, self.usage.now(), is_exempt=is_exempt)

    def _count(self, throttle_ms: int, now: int, *, is_exempt: bool = False) -> int:
        self.is_counted = True
        if self.spent is not None and not is_exempt and self.client.time is not None:
            percent = self.spent.total_ns() * _PERCENT_PER_NS
            throttle_ms = max(throttle_ms, self.client.time.record(percent, now))
        self.throttle_ms = throttle_ms
        return throttle_ms

    def count_later_time(self, ns: int) -> None:
        """Count time after the throttle time was decided; later requests are throttled for it."""
        time = self.client.time
        if time is not None:
            time.window.record(ns * _PERCENT_PER_NS, time.window.recorded_at)
