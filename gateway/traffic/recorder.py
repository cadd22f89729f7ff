"""What dispatch, session and handlers report about a connection to the traffic log.

Without a traffic log, `NULL_RECORDER` ignores all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from auth.mechanism import Principal
from gateway.protocol.wire.fetch_codec import FetchRequest, FetchResponse
from gateway.protocol.wire.header import RequestHeader
from gateway.protocol.wire.produce_codec import ProduceRequest
from gateway.traffic.traffic_rows import Habit, HabitName, Reason


class TracedRequest(Protocol):
    """A request in dispatch.

    `size` is in bytes, `began` are the recorder's `ticks` before the request was parsed.
    `throttle_ms` is the throttle time of the reply.
    """

    api_key: int
    version: int
    size: int
    began: int
    throttle_ms: int

    @property
    def route(self) -> object | None:
        """None where the gateway does not serve this API and version."""
        ...


class Recorder:
    """A recorder that ignores everything.

    Methods may be called at any time and in any order, and do not raise.
    """

    __slots__ = ()

    #: A clock for latencies, in ns; None if they are not recorded.
    ticks: Callable[[], int] | None = None

    def tls_established(self, version: str) -> None:
        """The TLS handshake is complete, with this protocol version."""

    def handshake_received(self, mechanism: str, version: int) -> None:
        """A SaslHandshake request named this mechanism."""

    def bare_gssapi_received(self) -> None:
        """The connection began with a bare GSSAPI token, without SaslHandshake (Kafka 0.9)."""

    def authenticated(self, principal: Principal) -> None:
        """Authentication is complete."""

    def software_announced(self, software: str | None, version: str | None) -> None:
        """The client sent its software name and version (ApiVersions v3 and later)."""

    def request_started(self, request: TracedRequest, header: RequestHeader) -> None:
        """A handler starts processing a request, whose `began` is set."""

    def request_answered(self, request: TracedRequest, reply: Any, size: int) -> None:
        """The reply is ready, `size` bytes on the wire.

        `reply` is None if it is encoded already or not sent.
        """

    def request_abandoned(self, request: TracedRequest) -> None:
        """The connection closed before the reply."""

    def group_named(self, group: str) -> None:
        """The current request concerns this group only."""

    def habit_seen(self, name: HabitName, value: Habit) -> None:
        """The client uses this setting; the first value is kept."""

    def topic_accessed(
        self,
        api_key: int,
        version: int,
        topic: str | bytes,
        codes: Iterable[int] = (),
        group: str | None = None,
    ) -> None:
        """A request concerned this topic; `codes` are the error codes of its partitions, 0 for
        none.
        """

    def produced(self, request: ProduceRequest, prepared: Sequence[Any]) -> None:
        """Records of a Produce request are appended.

        `prepared` has one item per partition: a KafkaError, or a tuple whose third item has the
        record `count`.
        """

    def produced_at_once(self, request: Any) -> None:
        """As `produced`, for a `PlainProduce` whose batches are all queued or refused by now."""

    def fetched(self, request: FetchRequest, response: FetchResponse) -> None:
        """Records of a Fetch response are sent."""

    def converted(
        self,
        api_key: int,
        version: int,
        topic: str | bytes,
        *,
        batches: int,
        records: int,
        size: int,
    ) -> None:
        """Batches or message sets were converted for this client, now or from the cache.

        `size` is the number of bytes stored or sent.
        """

    def conversion_cpu_used(
        self, api_key: int, version: int, topic: str | bytes, microseconds: int
    ) -> None:
        """CPU time of conversions that this client was the first to need."""

    def closing(self, reason: Reason) -> None:
        """The connection will be closed for this reason; the first reason is kept."""

    def closed(self, reason: Reason) -> None:
        """The connection is closed, for this reason unless `closing` gave one."""


NULL_RECORDER = Recorder()
