"""The compiled and the Python path of Produce have the same effects for the same bytes.

A plain request is received, decoded, checked, queued and answered by compiled code. Every other
one, and every one without the compiled code, passes through coroutines and Python codecs. The bytes
may be damaged, and a read may end anywhere.

The store is in memory here. `tests/storage/lmdb/test_appends.py` compares the compiled and the
Python queue of the embedded store.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from gateway.coroutines import TimeSlices
from gateway.handlers import fetch as fetch_handler
from gateway.net.transport import TcpConnection
from gateway.partitions.partition import Partition
from gateway.partitions.producer_snapshots import SNAPSHOT_BATCHES, SNAPSHOT_BYTES
from gateway.protocol.errors import KafkaError
from gateway.protocol.wire.compiled import KERNEL
from gateway.security.acls import AclBinding, AclOperation, AclPattern, AclPermission, AclResource
from gateway.security.audit import AuditFiles
from gateway.security.quotas import QuotaAlteration
from gateway.topics.registry import Topics
from storage.log import StorageFailed
from tests.fakes.broker import Started, ended
from tests.fakes.socket_client import SocketClient, SocketListener
from tests.fakes.traffic import RecordedRows, TrafficScenario
from tests.gateway.net.produce_traffic import TOPICS, Event, some_events
from tests.gateway.protocol.wire.implementations import use

PARTITIONS = 2

SETTINGS: Sequence[dict[str, Any]] = (
    {},
    {},
    {"authorizer": "acls"},
    {"authorizer": "acls", "allow_everyone_if_no_acl_found": True},
    {"max_in_flight_requests_per_connection": 2},
    {
        "max_in_flight_bytes_per_connection": 1 << 10,
        "message_max_bytes": 1 << 9,
        "socket_request_max_bytes": 1 << 10,
    },
)


class Conversation(NamedTuple):
    """What happens, and to what.

    `is_open` is whether the partitions are open. `near_snapshot` is the number of batches before
    the producers of each partition are saved, or as many times 100 bytes if it is negative.
    """

    events: list[Event]
    settings: dict[str, Any]
    has_quota: bool
    is_open: bool
    near_snapshot: int
    budget_bytes: int


class LoggedEvents(logging.Handler):
    """The events logged from level warning up."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = {**vars(record).get("fields", {}), "traceback": None}
        self.events.append((record.levelname, record.getMessage(), fields))


@contextmanager
def implementation(*, is_compiled: bool) -> Iterator[tuple[pytest.MonkeyPatch, LoggedEvents]]:
    logged = LoggedEvents()
    with pytest.MonkeyPatch.context() as patch:
        use("cython" if is_compiled else "python", patch)
        if not is_compiled:
            patch.setattr(TcpConnection, "doRead", TcpConnection._read)
            in_python = partial(fetch_handler.fetch_records, magic=None)
            patch.setattr(fetch_handler, "fetch_format_2", in_python)
        ids = count(1)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(ids)))
        logging.getLogger().addHandler(logged)
        try:
            yield patch, logged
        finally:
            logging.getLogger().removeHandler(logged)


class Gateway:
    """A gateway with one client at a time, which connects again when its connection is closed."""

    def __init__(self, conversation: Conversation, patch: pytest.MonkeyPatch) -> None:
        self.scenario = TrafficScenario(**conversation.settings)
        self.audited = RecordedRows()
        env = self.env = self.scenario.env
        env.broker = replace(
            env.broker,
            traffic=self.scenario.log,
            audit=AuditFiles(self.audited, 7, env.now),
        )
        if env.broker.authorizer is not None:
            allowed = [allow(AclOperation.WRITE, "orders"), allow(AclOperation.READ, "orders")]
            ended(env.broker.authorizer.add(allowed, TimeSlices(Clock())))
        for name, configs in TOPICS.items():
            env.topic(name, PARTITIONS, **configs)
            for index in range(PARTITIONS if conversation.is_open else 0):
                partition = env.partition(name, index)
                if conversation.near_snapshot > 0:
                    partition.unsaved_batches = SNAPSHOT_BATCHES - conversation.near_snapshot
                elif conversation.near_snapshot < 0:
                    partition.unsaved_bytes = SNAPSHOT_BYTES + 100 * conversation.near_snapshot
        if conversation.has_quota:
            self.limit(20.0)
        self.listener = SocketListener(env, patch, budget_bytes=conversation.budget_bytes)
        self.client = SocketClient(self.listener)

    def limit(self, bytes_per_second: float | None) -> None:
        """Set a quota, or remove it. The store may refuse or delay this."""
        asked = QuotaAlteration({"client-id": "me"}, [("producer_byte_rate", bytes_per_second)])
        Started(self.env.broker.client_quotas.alter([asked], TimeSlices(self.env.clock)))

    def meet(self, event: Event) -> None:
        env = self.env
        self.scenario.ticks += 1_000_000
        match event:
            case "hold":
                env.store.hold()
            case "release":
                env.store.release()
            case "refuse" | "accept":
                env.store.refuse_writes = event == "refuse"
            case "refuse logs" | "accept logs":
                refusal = StorageFailed("the test refuses to open logs")
                env.store.refuse_logs = refusal if event == "refuse logs" else None
            case "fence":
                if ("orders", 0) in env.store._logs:
                    env.store.fence("orders", 0)
            case "create again":
                env.background(create_again(env.broker.topics))
            case "wait":
                env.clock.advance(1.2)
            case "limit" | "unlimit":
                self.limit(20.0 if event == "limit" else None)
            case bytes():
                if self.client.is_closed:
                    self.client.disconnect()
                    self.client = SocketClient(self.listener)
                self.client.send(event)

    def end(self) -> None:
        self.env.store.refuse_writes = False
        self.env.store.refuse_logs = None
        self.env.store.release()
        self.env.clock.advance(100.0)

    def open_partitions(self) -> list[Partition]:
        topics = self.env.broker.topics._by_name.values()
        return [one for topic in topics for one in topic.partitions.values()]


def allow(operation: AclOperation, topic: str) -> AclBinding:
    return AclBinding(
        AclResource.TOPIC,
        topic,
        AclPattern.LITERAL,
        "User:*",
        "*",
        operation,
        AclPermission.ALLOW,
    )


async def create_again(topics: Topics) -> None:
    """Delete the topic "orders", and create it again."""
    with suppress(KafkaError):
        await topics.delete(topics.require("orders"))
        await topics.create("orders", PARTITIONS, {})


def state_of(gateway: Gateway) -> dict[str, Any]:
    """The state of the connection and the counters of the gateway, after an event.

    Not `_ready_bytes`, which only decides when replies are written together.
    """
    env, connection = gateway.env, gateway.client.connection
    dispatch, flow, budget = connection._dispatch, connection._flow, gateway.listener.budget
    poll, transport = dispatch._long_poll, gateway.client.transport
    broker = env.broker
    return {
        "requests in flight": [
            (
                *(one.api_key, one.version, one.correlation_id, one.size, one.began),
                *(one.is_appending, one.throttle_ms, one.reply is None),
                one.deadline if one.on_timeout is not None else None,
            )
            for one in dispatch._in_flight
        ],
        "dispatch": (
            *(dispatch._unanswered, len(dispatch._queued_frames)),
            *(dispatch._is_serving, dispatch._is_writing_held, dispatch._is_closed),
            *(dispatch.muted_until, dispatch._mute is not None and dispatch._mute.is_on),
            dispatch._session.is_closed,
        ),
        "long poll": (
            *(poll._has_partial_request, poll._overlaps, poll._limit),
            *(poll._requests_behind, poll.on_request is None),
        ),
        "flow": (
            *(flow._bytes, flow._requests, flow._waiting_size, flow.is_paused, flow.partial_bytes),
            *(budget.request_bytes, budget.partial_bytes, budget.unblocked is flow),
        ),
        "outgoing": (
            *(gateway.listener.outgoing.unsent, gateway.listener.outgoing.reserved),
            *(broker.outgoing.unsent, broker.outgoing.reserved),
        ),
        "connection": (
            *(connection.last_active, connection._frame_started_at, connection._has_partial_frame),
            *(connection._is_closing, connection._is_closed, connection._splitter.partial_bytes),
        ),
        "transport": (
            *(bool(transport.connected), bool(transport.disconnecting), transport.last_sent),
            *(transport.unsent_bytes, transport in gateway.listener.reactor.readers),
        ),
        "partitions": [
            (
                *(one.unsaved_batches, one.unsaved_bytes, one.log.size, one.log.start_offset),
                *(one.log.end_offset, one.log.next_offset, len(one.in_flight)),
                *(len(one.log.status.watchers), one.has_queued_appends, one.recovery is None),
            )
            for one in gateway.open_partitions()
        ],
        "quotas": (
            broker.quota_usage.version,
            [
                (name, counter.limit, counter.window._total, counter.window.recorded_at)
                for name, counter in broker.quota_usage._counters.items()
            ],
        ),
        "refused batches": list(broker.topics.refused_batches.refused.items()),
        "waits": len(broker.interruptible_waits._under_way),
        "audit": len(gateway.audited.rows),
    }


def effects(conversation: Conversation, *, is_compiled: bool) -> dict[str, Any]:
    """What the events leave behind: replies, logs, producer states, rows, counters, log lines."""
    with implementation(is_compiled=is_compiled) as (patch, logged):
        gateway = Gateway(conversation, patch)
        env = gateway.env
        replies, states = [], []
        for event in conversation.events:
            gateway.meet(event)
            replies.append((gateway.client.receive(), gateway.client.is_closed))
            states.append(state_of(gateway))
        gateway.end()
        replies.append((gateway.client.receive(), gateway.client.is_closed))
        states.append(state_of(gateway))
        gateway.client.disconnect()
        states.append(state_of(gateway))
        partitions = gateway.open_partitions()
        return {
            "replies": replies,
            "states": states,
            "logged": logged.events,
            "entries": {
                place: [
                    (e.base_offset, e.last_offset, e.max_timestamp, bytes(e.payload))
                    for e in rows.entries
                ]
                for place, rows in env.store.medium.logs.items()
            },
            "producers": [one.snapshot() for one in partitions],
            "tables": env.store.medium.tables,
            # The CPU time of conversions is measured, and the order of the rows does not matter.
            "rows": sorted(
                str({**row, "conversion_cpu_us": 0, "sequence": 0})
                for row in gateway.scenario.kept.rows
            ),
            "audit": gateway.audited.rows,
            "in flight": (gateway.listener.budget.used, [one.in_flight for one in partitions]),
            "bugs": env.bugs,
        }


def conversation_of(seed: int) -> Conversation:
    random = Random(seed)
    return Conversation(
        some_events(random),
        random.choice(SETTINGS),
        has_quota=random.random() < 0.2,
        is_open=random.random() < 0.8,
        near_snapshot=random.choice([0, 0, 1, 3, 8, -1, -8]),
        budget_bytes=random.choice([1 << 30] * 3 + [1000]),
    )


@given(seed=st.integers(0, (1 << 32) - 1))
def test_all_implementations_of_produce_are_equal(seed: int) -> None:
    conversation = conversation_of(seed)
    in_python = effects(conversation, is_compiled=False)
    assert not in_python["bugs"]
    assert [one for one in in_python["logged"] if one[0] != "WARNING"] == []
    if KERNEL == "cython":
        found = effects(conversation, is_compiled=True)
        for name, expected in in_python.items():
            assert found[name] == expected, name
