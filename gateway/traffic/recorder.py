"""What dispatch, session and handlers say of one connection while they serve it. Where there is no traffic log, nobody listens: `NULL_RECORDER`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from gateway.protocol.wire.fetch_codec import FetchRequest, FetchResponse
from gateway.protocol.wire.header import RequestHeader
from gateway.protocol.wire.produce_codec import ProduceRequest
from gateway.traffic.traffic_rows import Habit, HabitName, Reason


class TracedRequest(Protocol):
    """A request on its way through the dispatch: `size` in bytes, `began` in the recorder's own ticks."""

    api_key: int
    version: int
    size: int
    began: int

    @property
    def route(self) -> object | None:
        """None where the gateway does not serve this API and version."""
        ...


class Recorder:
    """Notes nothing. Whatever is said may be said at any time and in any order, and costs its teller no failure."""

    __slots__ = ()

    def tls_established(self, version: str) -> None:
        """TLS stands, in this version."""

    def handshake_received(self, mechanism: str, version: int) -> None:
        """SaslHandshake asked for this mechanism."""

    def bare_gssapi_received(self) -> None:
        """It began with a bare GSSAPI token, without any SaslHandshake, as clients of 0.9 do."""

    def authenticated(self) -> None:
        """The log-in is complete."""

    def software_announced(self, software: str | None, version: str | None) -> None:
        """The client said what it is (ApiVersions 3 and later)."""

    def request_started(self, request: TracedRequest, header: RequestHeader) -> None:
        """A request is being served."""

    def request_answered(self, request: TracedRequest, reply: Any, size: int) -> None:
        """Its reply is ready, `size` bytes on the wire; None for one that is encoded already, or not sent."""

    def request_abandoned(self, request: TracedRequest) -> None:
        """The connection ended first."""

    def group_named(self, group: str) -> None:
        """The request that is being served is about this group, and no other."""

    def habit_seen(self, name: HabitName, value: Habit) -> None:
        """What this client asks for by itself; the first value counts."""

    def topic_accessed(
        self,
        api_key: int,
        version: int,
        topic: str | bytes,
        codes: Iterable[int] = (),
        group: str | None = None,
    ) -> None:
        """A request was about this topic; of its partitions came these error codes (0: none)."""

    def produced(self, request: ProduceRequest, prepared: Sequence[Any]) -> None:
        """Records came. `prepared` has one item a partition: a KafkaError, or a tuple whose third item has their `count`."""

    def fetched(self, request: FetchRequest, response: FetchResponse) -> None:
        """Records go."""

    def converted(
        self, api_key: int, version: int, topic: str | bytes, *, records: int, size: int
    ) -> None:
        """A batch or set of so many records and stored (or sent) bytes was converted for this client, now or before."""

    def conversion_cpu_used(
        self, api_key: int, version: int, topic: str | bytes, microseconds: int
    ) -> None:
        """CPU time that conversions took which this client was the first to need."""

    def closing(self, reason: Reason) -> None:
        """Why the connection is about to end; the first reason counts."""

    def closed(self, reason: Reason) -> None:
        """It has ended, for this reason where `ends` gave none."""


NULL_RECORDER = Recorder()
