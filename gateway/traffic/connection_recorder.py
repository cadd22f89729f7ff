"""The recorder of one connection.

It writes connection rows for events and usage rows once per interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from auth.mechanism import Principal
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchRequest, FetchResponse
from gateway.protocol.wire.header import RequestHeader
from gateway.protocol.wire.produce_codec import ProduceRequest
from gateway.topics.tenant_scope import printable_id
from gateway.traffic.client_identity import ClientIdentity, PeerAddress
from gateway.traffic.counters import CounterKey, Counters, RowLimits, count_errors
from gateway.traffic.recorder import Recorder, TracedRequest
from gateway.traffic.traffic_rows import (
    VERSION,
    ConnectionRow,
    Habit,
    HabitName,
    Reason,
    Row,
    UsageRow,
    bounded_text,
)

SETTLED_AFTER_INTERVALS = 3
"""Intervals with requests after which the `settled` row is written, if the first requests
(`MAX_FIRST_REQUESTS`) have not all been seen earlier. A group member starts to fetch some time
after it joined.
"""

#: Errors of Produce and Fetch are counted per topic.
_FETCH = int(ApiKey.FETCH)


class RowDestination(Protocol):
    """The traffic log as seen by a recorder. `now()` is in ms since 1970, `ticks()` in ns."""

    node: int
    cluster: str
    limits: RowLimits
    now: Callable[[], int]
    ticks: Callable[[], int]
    topic_name: Callable[[str | bytes], str]

    def write(self, rows: Sequence[Row]) -> None: ...
    def remove(self, recorder: ConnectionRecorder) -> None: ...


class ConnectionRecorder(Recorder):
    """Records one connection, named by a unique `name`. Writes the `opened` row immediately."""

    ticks: Callable[[], int]

    __slots__ = (
        "_bytes_in",
        "_bytes_out",
        "_client",
        "_counters",
        "_group",
        "_has_deferred_rows",
        "_intervals_to_settle",
        "_is_closed",
        "_log",
        "_name",
        "_opened_at",
        "_peer",
        "_reason",
        "_requests",
        "_since",
        "ticks",
    )

    def __init__(
        self, log: RowDestination, name: str, peer: PeerAddress, principal: Principal | None
    ) -> None:
        self._log = log
        self._name = name
        self._peer = peer
        self.ticks = log.ticks
        self._client = ClientIdentity(None if principal is None else str(principal))
        self._opened_at = self._since = log.now()
        self._group: str | None = None
        self._reason: Reason | None = None
        self._is_closed = False
        self._has_deferred_rows = False
        self._intervals_to_settle = SETTLED_AFTER_INTERVALS
        self._requests = self._bytes_in = self._bytes_out = 0
        self._counters = self._new_counters()
        log.write([self._event("opened")])

    def tls_established(self, version: str) -> None:
        self._client.tls_established(version)

    def handshake_received(self, mechanism: str, version: int) -> None:
        self._client.handshake_received(mechanism, version)

    def bare_gssapi_received(self) -> None:
        self._client.bare_gssapi_received()

    def authenticated(self, principal: Principal) -> None:
        self._client.principal = bounded_text(str(principal))
        rows: list[Row] = [self._event("authenticated")]
        if self._has_deferred_rows:
            self._has_deferred_rows = False
            rows += self.take_usage_rows()
        self._log.write(rows)

    def software_announced(self, software: str | None, version: str | None) -> None:
        self._client.software_announced(software, version)

    def habit_seen(self, name: HabitName, value: Habit) -> None:
        self._client.habit_seen(name, value)

    def closing(self, reason: Reason) -> None:
        if self._reason is None:
            self._reason = reason

    def closed(self, reason: Reason) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.closing(reason)
        self._log.remove(self)
        rows: list[Row] = list(self.take_usage_rows())
        row = self._summary("closed")
        row.reason = self._reason
        self._log.write([*rows, row])

    def request_started(self, request: TracedRequest, header: RequestHeader) -> None:
        client = self._client
        if (client.is_incomplete or header.client_id != client.client_id) and client.record_request(
            header, is_served=request.route is not None
        ):
            self._log.write([self._event("greeted")])

    def request_answered(self, request: TracedRequest, reply: Any, size: int) -> None:
        if request.api_key < 0:
            # A bare SASL token without a Kafka header.
            self._bytes_in += request.size
            self._bytes_out += size
            return
        group, self._group = self._group, None
        usage = self._counters[request.api_key, request.version, None, group]
        usage.add_request(request.size, size, (self.ticks() - request.began) // 1000)
        if request.throttle_ms:
            usage.throttle_ms += request.throttle_ms
        if request.api_key > _FETCH and reply is not None:
            count_errors(usage, reply)

    def request_abandoned(self, request: TracedRequest) -> None:
        if request.api_key < 0:
            self._bytes_in += request.size
            return
        group, self._group = self._group, None
        usage = self._counters[request.api_key, request.version, None, group]
        usage.requests += 1
        usage.bytes_in += request.size

    def group_named(self, group: str) -> None:
        self._group = group or None

    def topic_accessed(
        self,
        api_key: int,
        version: int,
        topic: str | bytes,
        codes: Iterable[int] = (),
        group: str | None = None,
    ) -> None:
        usage = self._counters[api_key, version, topic, group or None]
        for code in codes:
            if code:
                usage.add_error(code)

    def produced(self, request: ProduceRequest, prepared: Sequence[Any]) -> None:
        if "acks" not in self._client.habits:
            self._client.record_produce(request)
        self._counters.count_produced(request, prepared)

    def produced_at_once(self, request: Any) -> None:
        if "acks" not in self._client.habits:
            self._client.record_produce(request)
        self._counters.count_produced_at_once(request)

    def fetched(self, request: FetchRequest, response: FetchResponse) -> None:
        if "fetch_max_wait_ms" not in self._client.habits:
            self._client.record_fetch(request)
        self._counters.count_fetched(request, response)

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
        usage = self._counters[api_key, version, topic, None]
        usage.conversions += batches
        usage.converted_records += records
        usage.converted_bytes += size

    def conversion_cpu_used(
        self, api_key: int, version: int, topic: str | bytes, microseconds: int
    ) -> None:
        self._counters[api_key, version, topic, None].conversion_cpu_us += microseconds

    def interval_rows(self) -> list[Row]:
        """Return the usage rows and, once, the `settled` row.

        `settled` describes the habits of connections that never close. Until authentication
        completes nothing is returned, because the principal is unknown; the rows are written
        afterwards.
        """
        if self._client.principal is None:
            self._has_deferred_rows = True
            return []
        rows: list[Row] = list(self.take_usage_rows())
        if rows and self._intervals_to_settle:
            self._intervals_to_settle = (
                self._intervals_to_settle - 1 if self._client.is_incomplete else 0
            )
            if not self._intervals_to_settle:
                rows.append(self._summary("settled"))
        return rows

    def take_usage_rows(self) -> list[UsageRow]:
        """Return what was counted since the last call and reset the counters."""
        counters, self._counters = self._counters, self._new_counters()
        counters.release()
        started_at, self._since = self._since, self._log.now()
        rows = []
        for key, usage in counters.items():
            row = self._usage_row(started_at, key)
            usage.fill(row, is_incoming=key[0] == ApiKey.PRODUCE)
            if key[2] is None:
                self._requests += row.requests
                self._bytes_in += row.bytes_in
                self._bytes_out += row.bytes_out
            rows.append(row)
        return rows

    def _new_counters(self) -> Counters:
        return Counters(self._log.limits, self._client.highest)

    def _summary(self, event: str) -> ConnectionRow:
        """Return an event row with the totals so far."""
        row, client = self._event(event), self._client
        row.duration_ms = max(row.at - self._opened_at, 0)
        row.requests, row.bytes_in, row.bytes_out = self._requests, self._bytes_in, self._bytes_out
        row.highest = {str(key): version for key, version in sorted(client.highest.items())} or None
        row.first_requests = client.first_requests or None
        row.habits = client.habits or None
        return row

    def _event(self, event: str) -> ConnectionRow:
        log, peer = self._log, self._peer
        return ConnectionRow(
            v=VERSION,
            at=log.now(),
            node=log.node,
            cluster=log.cluster,
            connection=self._name,
            sequence=-1,
            event=event,
            listener=peer.listener,
            peer=peer.address,
            peer_port=peer.port,
            protocol=peer.protocol,
            road=self._client.sasl_path,
            opened_at=self._opened_at,
            **self._client.row_fields(),
        )

    def _usage_row(self, started_at: int, key: CounterKey) -> UsageRow:
        log, client = self._log, self._client
        api_key, version, topic, group = key
        return UsageRow(
            v=VERSION,
            at=max(self._since, started_at),
            node=log.node,
            cluster=log.cluster,
            connection=self._name,
            sequence=-1,
            began=started_at,
            listener=self._peer.listener,
            peer=self._peer.address,
            api_key=api_key,
            api_version=version,
            topic=bounded_text(log.topic_name(topic)) if topic else None,
            group=bounded_text(printable_id(group)) if group else None,
            client_id=client.client_id,
            principal=client.principal,
            software=client.software,
            software_version=client.software_version,
        )
