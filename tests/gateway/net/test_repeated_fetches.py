"""Fetch requests like the last one of a connection, and those with all records in memory.

Compiled code serves the former, and no coroutine the latter. `test_fetch_implementations.py`
compares the results.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer.fetch import FetchRequest

import gateway
from gateway.handlers import fetch as handler
from gateway.protocol.wire import compiled
from gateway.protocol.wire.header import read_header
from storage.log import StorageFailed
from tests.fakes.connection import MemoryClient, produce_request, request, versions
from tests.fakes.traffic import TrafficScenario
from tests.gateway.handlers.fetch_requests import batch_entry
from tests.gateway.handlers.handler_calls import append_entries, decode_response
from tests.gateway.protocol.wire.implementations import use

Topic = FetchRequest.FetchTopic

NO_SESSION = (0, -1)


def fetch(
    offsets: dict[int, int],
    *,
    session: tuple[int, int] = NO_SESSION,
    topic: str = "orders",
    version: int = 11,
    leader_epoch: int = -1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    forgotten: int | None = None,
) -> FetchRequest:
    partitions = [
        Topic.FetchPartition(
            version=version,
            partition=index,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=partition_max_bytes,
        )
        for index, offset in offsets.items()
    ]
    gone = [] if forgotten is None else [
        FetchRequest.ForgottenTopic(version=version, topic=topic, partitions=[forgotten])
    ]  # fmt: skip
    return FetchRequest(
        version=version,
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[Topic(version=version, topic=topic, partitions=partitions)] if partitions else [],
        forgotten_topics_data=gone,
        rack_id="",
    )


class Consumer:
    """A client of a gateway with a topic "orders" of two partitions."""

    def __init__(self) -> None:
        self.scenario = TrafficScenario()
        self.env = self.scenario.env
        self.env.topic("orders", partitions=2)
        self.end = [0, 0]
        self.append(0, 5)
        self.append(1, 3)
        self.client: MemoryClient = self.scenario.connect()

    def append(self, index: int, batches: int) -> None:
        for _ in range(batches):
            append_entries(self.env.partition("orders", index), batch_entry(self.end[index], 3))
            self.end[index] += 3

    def ask(self, *asked: FetchRequest) -> list[Any]:
        """Send requests in one chunk; return their replies."""
        self.client.send(*[request(one, correlation_id=number) for number, one in enumerate(asked)])
        found = self.client.receive()
        assert [int.from_bytes(reply[:4], "big") for reply in found] == list(range(len(found)))
        # The reply has tagged fields from version 12 on.
        return [
            decode_response(one, reply[5 if one.version >= 12 else 4 :], one.version)
            for one, reply in zip(asked[: len(found)], found, strict=True)
        ]


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """Its next requests are like the last one."""
    use("cython", monkeypatch)
    made = Consumer()
    made.ask(fetch({0: 0}))
    return made


@pytest.fixture
def headers(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Headers that are decoded after the first request."""
    found: list[Any] = []

    def record(*given: Any) -> Any:
        found.append(given)
        return read_header(*given)

    monkeypatch.setattr("gateway.protocol.dispatch.read_header", record)
    return found


@pytest.mark.parametrize(("version", "decoded"), [(11, 0), (10, 1)])
def test_only_a_fetch_with_the_last_header_is_served_without_reading_it(
    consumer: Consumer, headers: list[Any], version: int, decoded: int
) -> None:
    (reply,) = consumer.ask(fetch({0: 6}, version=version))
    assert reply.responses[0].partitions[0].high_watermark == 15
    assert len(headers) == decoded


def test_waiting_fetch_is_woken_by_records(consumer: Consumer, headers: list[Any]) -> None:
    assert consumer.ask(fetch({0: 15}, max_wait_ms=500)) == []
    assert (consumer.client.acknowledgements, headers) == (1, [])
    consumer.append(0, 1)
    (frame,) = consumer.client.receive()
    assert frame[:4] == b"\0\0\0\0"
    assert len(frame) > 100
    assert consumer.client.dispatch.is_idle
    assert consumer.client.budget.used == 0


def test_waiting_fetch_ends_for_a_request_behind_it(consumer: Consumer, headers: list[Any]) -> None:
    assert consumer.ask(fetch({0: 15}, max_wait_ms=500)) == []
    consumer.client.send(versions(0, 7))
    assert [reply[:4] for reply in consumer.client.receive()] == [b"\0\0\0\0", b"\0\0\0\7"]


def test_malformed_fetch_closes_the_connection(consumer: Consumer, headers: list[Any]) -> None:
    consumer.client.send(request(fetch({0: 0}))[:-9])
    assert consumer.client.is_aborted
    assert headers == []
    consumer.client.disconnect()
    assert consumer.client.budget.used == 0


def test_bug_of_a_handler_closes_the_connection(
    consumer: Consumer, headers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    (reply,) = consumer.ask(fetch({0: 0}, session=(0, 0)))
    monkeypatch.setattr(consumer.env.partition("orders", 0).log, "read_resident", fail)
    consumer.client.send(request(fetch({0: 3}, session=(reply.session_id, 1))))
    assert (consumer.client.is_aborted, headers) == (True, [])
    session = consumer.env.broker.fetch_sessions.get(reply.session_id, consumer.env.now())
    assert session is not None
    assert not session.is_in_use
    consumer.env.bugs.clear()


def test_storage_failure_is_the_error_of_its_partition(
    consumer: Consumer, headers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = consumer.env.partition("orders", 1).log

    def fail(offset: int, size: int) -> None:
        if size:
            raise StorageFailed("broken")

    monkeypatch.setattr(log, "read_resident", fail)
    (reply,) = consumer.ask(fetch({0: 0, 1: 0}))
    assert [row.error_code for row in reply.responses[0].partitions] == [0, 56]
    assert headers == []


def test_quota_is_counted_for_each_fetch(consumer: Consumer, headers: list[Any]) -> None:
    consumer.env.set_quota("consumer_byte_rate", 1.0, client_id="test")
    (first,) = consumer.ask(fetch({0: 0}))
    assert len(headers) == 1
    assert first.throttle_time_ms > 0


def test_quota_of_another_client_leaves_fetches_to_compiled_code(
    consumer: Consumer, headers: list[Any]
) -> None:
    consumer.env.set_quota("consumer_byte_rate", 1.0, client_id="another")
    for _ in range(4):
        (reply,) = consumer.ask(fetch({0: 0}))
        assert reply.throttle_time_ms == 0
    # The first one finds that this client has no quota.
    assert len(headers) == 1
    consumer.env.set_quota("consumer_byte_rate", 1.0, client_id="test")
    (limited,) = consumer.ask(fetch({0: 0}))
    assert limited.throttle_time_ms > 0


def test_first_partition_is_not_read_again_if_the_second_one_must_be_awaited(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    for index in range(2):
        log = consumer.env.partition("orders", index).log

        def resident(
            offset: int, size: int, log: Any = log, index: int = index, old: Any = log.read_resident
        ) -> Any:
            if size:
                read.append(index)
                return None if index else old(offset, size)
            return old(offset, size)

        monkeypatch.setattr(log, "read_resident", resident)
    (reply,) = consumer.ask(fetch({0: 0, 1: 0}))
    assert [row.records is not None for row in reply.responses[0].partitions] == [True, True]
    assert read.count(0) == 1


def test_partition_that_was_fenced_is_an_error_once_and_then_opened_again(
    consumer: Consumer, headers: list[Any]
) -> None:
    env, log = consumer.env, consumer.env.partition("orders", 0).log
    log.fence()
    env.store._logs = {key: one for key, one in env.store._logs.items() if one is not log}
    (first,) = consumer.ask(fetch({0: 0}))
    assert first.responses[0].partitions[0].error_code == 6
    (second,) = consumer.ask(fetch({0: 0}))
    assert second.responses[0].partitions[0].error_code == 0
    assert headers == []


def test_produce_keeps_its_header_on_a_connection_that_is_used_for_both(
    consumer: Consumer, headers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make = compiled.plain_context

    def record(*given: Any) -> Any:
        made.append(given)
        return make(*given)

    monkeypatch.setattr(compiled, "plain_context", record)
    client = consumer.client
    for number in range(4):
        client.send(request(produce_request(), correlation_id=number))
        client.send(request(fetch({0: 0}), correlation_id=9))
        assert len(client.receive()) == 2
    assert len(made) == 1


def test_fetch_like_the_last_one_runs_little_python(consumer: Consumer) -> None:
    if handler.compiled is None:
        pytest.skip("the compiled module is not built")
    (reply,) = consumer.ask(fetch({0: 0}, session=(0, 0)))
    asked = [fetch({0: 3 * number}, session=(reply.session_id, number)) for number in (1, 2)]
    consumer.ask(asked[0])
    root = Path(gateway.__file__).parent
    folders = {root / "fetch", root / "handlers", root / "protocol", root / "protocol" / "wire"}
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        folder = Path(frame.f_code.co_filename).parent
        count += event == "opcode" and folder in folders
        return trace

    sent = request(asked[1], correlation_id=5)
    sys.settrace(trace)
    try:
        consumer.client.send(sent)
    finally:
        sys.settrace(None)
    (found,) = consumer.client.receive()
    assert found[:4] == b"\0\0\0\5"
    assert len(found) > 100
    assert count <= 200
