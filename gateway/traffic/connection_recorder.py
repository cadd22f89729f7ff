"""The recorder of one connection: what it is told becomes rows, of use once a minute and of the connection at each event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from gateway.protocol.session import Session
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchRequest, FetchResponse
from gateway.protocol.wire.header import RequestHeader
from gateway.protocol.wire.produce_codec import ProduceRequest
from gateway.traffic.client_identity import ClientIdentity, Peer
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
"""Intervals with requests after which a connection has shown its habits, if its first requests have not all been seen before: a member of a group
fetches when it has its partitions, some time after it has joined.
"""

#: Errors of Produce and Fetch are those of their topics.
_FETCH = int(ApiKey.FETCH)


class RowDestination(Protocol):
    """The log that a connection's rows go to. `now()` in ms since 1970, `ticks()` in ns."""

    node: int
    cluster: str
    room: RowLimits
    now: Callable[[], int]
    ticks: Callable[[], int]
    topic_name: Callable[[str | bytes], str]

    def write(self, rows: Sequence[Row]) -> None: ...
    def forget(self, recorder: ConnectionRecorder) -> None: ...


class ConnectionRecorder(Recorder):
    """`name` is unique among all connections. It writes at once that the connection is open."""

    __slots__ = (
        "_bytes_in",
        "_bytes_out",
        "_client",
        "_counters",
        "_group",
        "_home",
        "_is_closed",
        "_is_overdue",
        "_name",
        "_opened_at",
        "_peer",
        "_reason",
        "_requests",
        "_session",
        "_since",
        "_ticks",
        "_unsettled",
    )

    def __init__(self, home: RowDestination, name: str, peer: Peer, session: Session) -> None:
        self._home = home
        self._name = name
        self._peer = peer
        self._session = session
        self._ticks = home.ticks
        self._client = ClientIdentity(str(session.principal) if session.is_ready else None)
        self._opened_at = self._since = home.now()
        self._group: str | None = None
        self._reason: Reason | None = None
        self._is_closed = False
        self._is_overdue = False
        self._unsettled = SETTLED_AFTER_INTERVALS
        self._requests = self._bytes_in = self._bytes_out = 0
        self._counters = self._fresh()
        home.write([self._event("opened")])

    def secured(self, version: str) -> None:
        self._client.secured(version)

    def shook_hands(self, mechanism: str, version: int) -> None:
        self._client.shook_hands(mechanism, version)

    def spoke_gssapi(self) -> None:
        self._client.spoke_gssapi()
        self.ends("error:mechanism")

    def authenticated(self) -> None:
        self._client.principal = bounded_text(str(self._session.principal))
        rows: list[Row] = [self._event("authenticated")]
        if self._is_overdue:
            self._is_overdue = False
            rows += self.take()
        self._home.write(rows)

    def introduced(self, software: str | None, version: str | None) -> None:
        self._client.introduced(software, version)

    def habit(self, name: HabitName, value: Habit) -> None:
        self._client.habit(name, value)

    def ends(self, reason: Reason) -> None:
        if self._reason is None:
            self._reason = reason

    def closed(self, reason: Reason) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.ends(reason)
        self._home.forget(self)
        rows: list[Row] = list(self.take())
        row = self._told("closed")
        row.reason = self._reason
        self._home.write([*rows, row])

    def began(self, owed: TracedRequest, header: RequestHeader) -> None:
        client = self._client
        if (client.is_new or header.client_id != client.client_id) and client.notice(
            header, is_served=owed.route is not None
        ):
            self._home.write([self._event("greeted")])
        owed.began = self._ticks()

    def answered(self, owed: TracedRequest, reply: Any, size: int) -> None:
        if owed.api_key < 0:
            # A bare token of a log-in.
            self._bytes_in += owed.size
            self._bytes_out += size
            return
        group, self._group = self._group, None
        usage = self._counters[owed.api_key, owed.version, None, group]
        usage.answered(owed.size, size, (self._ticks() - owed.began) // 1000)
        if owed.api_key > _FETCH and reply is not None:
            count_errors(usage, reply)

    def unanswered(self, owed: TracedRequest) -> None:
        if owed.api_key < 0:
            self._bytes_in += owed.size
            return
        group, self._group = self._group, None
        usage = self._counters[owed.api_key, owed.version, None, group]
        usage.requests += 1
        usage.bytes_in += owed.size

    def for_group(self, group: str) -> None:
        self._group = group or None

    def touched(
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
                usage.error(code)

    def produced(self, request: ProduceRequest, prepared: Sequence[Any]) -> None:
        if "acks" not in self._client.habits:
            self._client.note_produce(request)
        self._counters.produced(request, prepared)

    def fetched(self, request: FetchRequest, response: FetchResponse) -> None:
        if "fetch_max_wait_ms" not in self._client.habits:
            self._client.note_fetch(request)
        self._counters.fetched(request, response)

    def converted(
        self, api_key: int, version: int, topic: str | bytes, *, records: int, size: int
    ) -> None:
        usage = self._counters[api_key, version, topic, None]
        usage.conversions += 1
        usage.converted_records += records
        usage.converted_bytes += size

    def spent(self, api_key: int, version: int, topic: str | bytes, microseconds: int) -> None:
        self._counters[api_key, version, topic, None].conversion_cpu_us += microseconds

    def interval(self) -> list[Row]:
        """take(), and once what a connection that never closes would never say: when it has shown its habits.

        While a log-in lasts that waits for its end, which says whose it is.
        """
        if self._client.principal is None:
            self._is_overdue = True
            return []
        rows: list[Row] = list(self.take())
        if rows and self._unsettled:
            self._unsettled = self._unsettled - 1 if self._client.is_new else 0
            if not self._unsettled:
                rows.append(self._told("settled"))
        return rows

    def take(self) -> list[UsageRow]:
        """What was counted since the last time; counting begins anew."""
        counters, self._counters = self._counters, self._fresh()
        counters.leave()
        began, self._since = self._since, self._home.now()
        rows = []
        for key, usage in counters.items():
            row = self._usage_row(began, key)
            usage.fill(row, is_incoming=key[0] == ApiKey.PRODUCE)
            if key[2] is None:
                self._requests += row.requests
                self._bytes_in += row.bytes_in
                self._bytes_out += row.bytes_out
            rows.append(row)
        return rows

    def _fresh(self) -> Counters:
        return Counters(self._home.room, self._client.highest)

    def _told(self, event: str) -> ConnectionRow:
        """With what it did until now."""
        row, client = self._event(event), self._client
        row.duration_ms = max(row.at - self._opened_at, 0)
        row.requests, row.bytes_in, row.bytes_out = self._requests, self._bytes_in, self._bytes_out
        row.highest = {str(key): version for key, version in sorted(client.highest.items())} or None
        row.first_requests = client.first_requests or None
        row.habits = client.habits or None
        return row

    def _event(self, event: str) -> ConnectionRow:
        home, peer = self._home, self._peer
        return ConnectionRow(
            v=VERSION,
            at=home.now(),
            node=home.node,
            cluster=home.cluster,
            connection=self._name,
            sequence=-1,
            event=event,
            listener=peer.listener,
            peer=peer.address,
            peer_port=peer.port,
            protocol=peer.protocol,
            road=self._client.road,
            opened_at=self._opened_at,
            **self._client.known(),
        )

    def _usage_row(self, began: int, key: CounterKey) -> UsageRow:
        home, client = self._home, self._client
        api_key, version, topic, group = key
        return UsageRow(
            v=VERSION,
            at=max(self._since, began),
            node=home.node,
            cluster=home.cluster,
            connection=self._name,
            sequence=-1,
            began=began,
            listener=self._peer.listener,
            peer=self._peer.address,
            api_key=api_key,
            api_version=version,
            topic=bounded_text(home.topic_name(topic)) if topic else None,
            group=bounded_text(group) if group else None,
            client_id=client.client_id,
            principal=client.principal,
            software=client.software,
            software_version=client.software_version,
        )
