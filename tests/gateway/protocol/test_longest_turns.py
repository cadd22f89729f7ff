"""No request blocks the reactor for long: each API with as many elements as a request may have."""

from __future__ import annotations

import gc
import math
import time
import uuid
from collections.abc import Callable
from functools import partial
from struct import pack_into
from typing import Any

import pytest
from twisted.internet.task import Clock

from gateway.protocol.routes import supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import REQUESTS
from gateway.protocol.wire.primitives import MAX_ELEMENTS
from tests.fakes.broker import Threads
from tests.fakes.connection import MemoryClient, request
from tests.fakes.traffic import TrafficScenario
from tests.records.record_sets import batch

pytestmark = pytest.mark.long

#: Longest allowed reactor turn, in CPU seconds of a processor on which `exercise` takes
#: EXERCISE_SECONDS.
TURN_SECONDS = 0.05
EXERCISE_SECONDS = 0.012

#: Attempts per request; the best counts. Other processes share the processor's second
#: thread and caches, and may disturb a turn more than the exercise before and after it.
ATTEMPTS = 10

#: Upper bound of the timeouts in requests.
LONGEST_WAIT = 60.0

#: 10,000 is the most that one request may change, append to or commit. Larger requests are refused
#: at once.
COUNTS = (MAX_ELEMENTS, 10_000, 500)


def exercise() -> float:
    """CPU seconds of a fixed calculation with dictionaries, strings and objects, as in handlers."""
    began = time.thread_time()
    rows = {f"name-{number}": (number, [number]) for number in range(25_000)}
    assert sum(row[0] for name, row in rows.items() if row[1] and name) > 0
    return time.thread_time() - began


class TimedReactor(Clock):
    """A clock whose calls are made one at a time.

    `longest` is the longest call in CPU seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0.0

    def timed(self, call: Callable[..., object], *arguments: Any) -> None:
        began = time.thread_time()
        call(*arguments)
        self.longest = max(self.longest, time.thread_time() - began)

    def turn(self, until: float) -> bool:
        """Make the next call. Returns False if there is none before that time."""
        if not self.calls or self.calls[0].getTime() > until:
            return False
        call = self.calls.pop(0)
        self.rightNow = max(self.rightNow, call.getTime())
        call.called = 1
        self.timed(call.func, *call.args)
        return True


class OtherThreads(Threads):
    """Worker threads whose CPU time does not count as the reactor's."""

    def __init__(self) -> None:
        super().__init__()
        self.hold()

    def next(self) -> Callable[[], None] | None:
        """Make the oldest call. Returns the reactor's part, which handles the result."""
        if not self._waiting:
            return None
        told, function, arguments = self._waiting.pop(0)
        if told.called:
            return lambda: None
        try:
            return partial(told.callback, function(*arguments))
        except Exception as failure:
            return partial(told.errback, failure)


class Filled:
    """A request whose array at the path `largest` has `count` elements, all others one.

    Elements differ from each other. `topic_id` is the id of an existing topic.
    """

    def __init__(self, largest: str, count: int, version: int, topic_id: uuid.UUID | None) -> None:
        self.largest = largest
        self.count = count
        self.version = version
        self.topic_id = topic_id

    def struct(self, struct: Any, path: str = "", number: int = 0) -> dict[str, Any]:
        return {
            field.name: self.value(field, f"{path}.{field.name}", number)
            for field in struct.untagged_fields(self.version)
        }

    def value(self, field: Any, path: str, number: int) -> Any:
        numbers = range(self.count) if path == self.largest else [number]
        if field.is_struct_array():
            return [field.data_class(**self.struct(field.array_of, path, one)) for one in numbers]
        if field.is_array():
            kind = field.array_of.type_str.removeprefix("[]")
            return [self.plain(field.name, kind, one) for one in numbers]
        if field.is_struct():
            return (
                None
                if field.nullable_for_version_q(self.version)
                else field.data_class(**self.struct(field, path, number))
            )
        return self.plain(field.name, field.type_str, number)

    def plain(self, name: str, kind: str, number: int) -> Any:
        if name in FIXED:
            return FIXED[name]
        if self.topic_id is not None and kind == "uuid":
            return self.topic_id
        if (
            self.topic_id is not None
            and kind == "string"
            and not any(word in name for word in ("group", "member", "key"))
        ):
            return "orders"
        return PLAIN[kind](number)


#: Field values that pass the first check of a request.
FIXED = {
    "acks": -1,
    "broker_ids": 0,
    "current_leader_epoch": -1,
    "endpoint_type": 1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "group_id": "g",
    "instance_id": None,
    "key_type": 0,
    "max_bytes": 1 << 20,
    "max_wait_ms": 10,
    "member_epoch": 0,
    "member_id": "",
    "num_partitions": -1,
    "partition_max_bytes": 1 << 20,
    "protocol_type": "consumer",
    "rack_id": None,
    "rebalance_timeout_ms": 10_000,
    "replication_factor": -1,
    "resource_type": 2,
    "response_partition_limit": 2_000,
    "server_assignor": None,
    "session_epoch": 0,
    "session_id": 0,
    "session_timeout_ms": 10_000,
    "subscribed_topic_regex": None,
    "timeout_ms": 1000,
    "timestamp": -1,
    "transactional_id": None,
}

RECORDS = bytes(batch(1))

PLAIN: dict[str, Callable[[int], Any]] = {
    "bool": lambda number: False,
    "bytes": lambda number: b"",
    "float64": lambda number: 0.0,
    "int8": lambda number: 0,
    "int16": lambda number: 0,
    "int32": lambda number: number,
    "int64": lambda number: 0,
    "records": lambda number: RECORDS,
    "string": lambda number: f"{number:x}",
    "uint16": lambda number: 0,
    "uuid": lambda number: uuid.UUID(int=number + 1),
}


def arrays(struct: Any, version: int, path: str = "") -> list[str]:
    """Paths of all arrays in a message."""
    found = []
    for field in struct.untagged_fields(version):
        name = f"{path}.{field.name}"
        if field.is_array() or field.is_struct_array():
            found.append(name)
        if field.is_struct_array():
            found += arrays(field.array_of, version, name)
        elif field.is_struct() and not field.nullable_for_version_q(version):
            found += arrays(field, version, name)
    return found


def frame_of(
    key: ApiKey, version: int, largest: str, most: int, topic_id: uuid.UUID | None
) -> bytearray:
    """A request with about `most` elements in total."""
    kind = REQUESTS[key]
    paths = arrays(kind._struct, version)
    within = sum(path.startswith(f"{largest}.") for path in paths)
    count = (most - len(paths) + within) // (1 + within)
    frame = bytearray(
        request(
            kind(version=version, **Filled(largest, count, version, topic_id).struct(kind._struct))
        )
    )
    # The codec would otherwise write the minimum version of Kafka 4.
    pack_into(">h", frame, 2, version)
    return frame


def longest_turn(key: ApiKey, version: int, largest: str, most: int, *, is_known: bool) -> float:
    """CPU seconds of the longest turn, from the arrival of a request to the disconnect."""
    reactor, threads = TimedReactor(), OtherThreads()
    scene = TrafficScenario(clock=reactor, threads=threads)
    topic_id = (
        uuid.UUID(bytes=scene.env.topic("orders", 10_000).topic.topic_id) if is_known else None
    )
    client = scene.connect()
    frame = frame_of(key, version, largest, most, topic_id)
    gc.collect()
    gc.disable()
    try:
        serve(client, frame, reactor, threads, LONGEST_WAIT)
        reactor.timed(client.disconnect)
    finally:
        gc.enable()
    return reactor.longest


def serve(
    client: MemoryClient,
    frame: bytearray,
    reactor: TimedReactor,
    threads: OtherThreads,
    seconds: float,
) -> None:
    """Pass a request to the gateway and let time pass, up to `seconds`, until it is answered."""
    until = reactor.seconds() + seconds
    reactor.timed(client.dispatch.frames_received, [frame])
    while not client.dispatch.is_idle:
        result = threads.next()
        if result is not None:
            reactor.timed(result)
        elif not reactor.turn(until):
            break


def cases() -> list[Any]:
    """Each array of the oldest and newest version of each API."""
    return [
        pytest.param(key, version, largest, id=f"{key.name}-{version}{largest}")
        for key, bounds in supported_versions().items()
        for version in sorted(set(bounds))
        for largest in arrays(REQUESTS[key]._struct, version)
    ]


def shortest(attempt: Callable[[], float]) -> float:
    """The result of the best attempt, as on the processor of EXERCISE_SECONDS.

    A faster processor counts as that one. No attempt is made after one within TURN_SECONDS.
    """
    found, before = math.inf, exercise()
    for _ in range(ATTEMPTS):
        seconds, after = attempt(), exercise()
        found = min(found, seconds / max(min(before, after) / EXERCISE_SECONDS, 1.0))
        if found <= TURN_SECONDS:
            break
        before = after
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("key", "version", "largest"), cases())
def test_no_request_holds_the_reactor_for_long(key: ApiKey, version: int, largest: str) -> None:
    for most in COUNTS:
        for is_known in (False, True):
            attempt = partial(longest_turn, key, version, largest, most, is_known=is_known)
            assert shortest(attempt) <= TURN_SECONDS, (most, is_known)


@pytest.mark.parametrize(
    ("key", "version", "largest"),
    [case for case in cases() if case.values[1] == supported_versions()[case.values[0]][1]],
)
def test_large_request_does_not_block_reactor(key: ApiKey, version: int, largest: str) -> None:
    """The short form, with existing topics, which cost the most."""
    attempt = partial(longest_turn, key, version, largest, 10_000, is_known=True)
    assert shortest(attempt) <= TURN_SECONDS


#: Requests that wait for records or members, and the login, which this listener does not have.
WAITING = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
LOGIN = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


@pytest.mark.parametrize("key", sorted(supported_versions().keys() - WAITING - LOGIN))
def test_request_is_answered_without_delay(key: ApiKey) -> None:
    """Only its work takes time: no reply waits for a timer, and none is a closed connection."""
    reactor, threads = TimedReactor(), OtherThreads()
    scene = TrafficScenario(clock=reactor, threads=threads)
    topic_id = uuid.UUID(bytes=scene.env.topic("orders").topic.topic_id)
    for version in set(supported_versions()[key]):
        client = scene.connect()
        serve(client, frame_of(key, version, "", 1, topic_id), reactor, threads, 0.0)
        assert len(client.receive()) == 1
        assert not client.is_aborted
        assert not client.closed_after_ms
