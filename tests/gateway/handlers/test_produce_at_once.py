"""Produce requests that compiled code decodes, checks and queues without awaiting anything.

Every other one, and every one without the compiled code, passes through coroutines and Python
codecs. `tests/gateway/net/test_produce_implementations.py` compares the effects of both.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from kafka.protocol.producer.produce import ProduceRequest as CodecRequest

from gateway.configs.topic_configs import effective_config
from gateway.handlers.produce import produce_at_once
from gateway.partitions.partition import Partition
from gateway.partitions.producer_snapshots import SNAPSHOT_BATCHES
from gateway.partitions.record_batch import check_batch
from gateway.protocol.dispatch import (
    MAX_KEPT_HEADER_BYTES,
    MAX_REQUESTS_PER_TURN,
    MAX_TURN_SECONDS,
)
from gateway.protocol.errors import ErrorCode
from gateway.protocol.in_flight import InFlightRequest
from gateway.protocol.wire import compiled
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.header import read_header
from gateway.topics.topic_state import TopicState
from gateway.traffic.recorder import Recorder
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.connection import MemoryClient, request, versions
from tests.fakes.traffic import TrafficScenario
from tests.gateway.handlers.handler_calls import decode_response
from tests.gateway.net.produce_traffic import TOPICS, SentPartition, Topic
from tests.gateway.protocol.wire.implementations import IMPLEMENTATIONS, use
from tests.records.record_sets import batch, old_set


def plain_request(name: str, records: bytes, version: int = 11) -> CodecRequest:
    return CodecRequest(
        version=version,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            Topic(
                version=version, name=name, partition_data=[SentPartition(index=0, records=records)]
            )
        ],
    )


@pytest.mark.parametrize(
    ("name", "records", "is_expected"),
    [
        ("orders", batch(), True),
        ("orders", batch(producer=(7, 0, 0)), True),
        ("orders", batch(is_transactional=True), False),
        ("orders", bytes(batch())[:-1] + b"?", False),
        ("orders", old_set(2, magic=1), False),
        ("compacted", batch(), False),
        ("small", batch(10), False),
        ("absent", batch(), False),
    ],
)
def test_plain_requests_are_plain_context(
    name: str, records: bytes, is_expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("cython", monkeypatch)
    env = open_environment()
    for topic, configs in TOPICS.items():
        env.topic(topic, **configs)
        env.partition(topic)
    frame = bytearray(plain_request(name, records).encode(version=11))
    assert (produce_at_once(frame, 0, env.caller(11)) is not None) == is_expected


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_exception_in_a_callback_of_an_append_does_not_stop_the_others(
    implementation: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(implementation, monkeypatch)
    env = open_environment()
    env.topic("orders")
    partition, records = env.partition("orders"), bytearray(batch())
    env.store.hold()
    append = partition.queue_batch(memoryview(records), check_batch(memoryview(records), 11), 0)
    ran: list[int] = []
    append.when_done(lambda: 1 // 0)
    append.when_done(lambda: ran.append(1))
    env.store.release()
    assert ran == [1]
    assert "ZeroDivisionError" in caplog.text


class BrokenRecorder(Recorder):
    """A bug in what happens after an append."""

    __slots__ = ()

    def request_answered(self, *_: Any) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("bug", ["stored", "refused", "answered"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bug_at_the_end_of_an_append_closes_the_connection(
    implementation: str,
    bug: str,
    is_again: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise the client would wait for its reply until its timeout."""
    use(implementation, monkeypatch)
    scenario = TrafficScenario()
    env = scenario.env
    env.topic("orders")
    partition = env.partition("orders")
    client = scenario.connect()
    asked = request(plain_request("orders", bytes(batch())), client_id="me")
    if is_again:
        client.send(asked)
        assert len(client.receive()) == 1
    env.store.hold()
    client.send(asked)
    if bug == "answered":
        client.dispatch._traffic = BrokenRecorder()
    else:
        partition.unsaved_batches = SNAPSHOT_BATCHES
        monkeypatch.setattr(env.broker.topics, "save_if_due", None)
        monkeypatch.setattr(Partition, "handle_storage_error", None)
    env.store.refuse_writes = bug == "refused"
    env.store.release()
    assert (client.receive(), client.is_aborted) == ([], True)
    (logged,) = caplog.records
    error = "ZeroDivisionError" if bug == "answered" else "TypeError"
    assert error in str(vars(logged)["fields"]["traceback"])
    client.disconnect()
    assert client.budget.used == 0


def test_exception_after_a_plain_request_does_not_stop_the_retry(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use("cython", monkeypatch)
    env = open_environment()
    env.topic("orders")
    env.partition("orders")
    env.store.hold()
    ran: list[int] = []
    for callback in (lambda: 1 // 0, lambda: ran.append(1)):
        asked = plain_request("orders", bytes(batch(producer=(7, 0, 0)))).encode(version=11)
        served: Any = produce_at_once(bytearray(asked), 0, env.caller(11))
        served.reply.when_done(callback)
    env.store.release()
    assert ran == [1]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("change", "is_expected"),
    [
        ({}, True),
        ({"client_id": "you"}, False),
        ({"client_id": None}, False),
        ({"version": 10}, False),
    ],
)
def test_only_requests_with_the_last_header_are_served_without_reading_it(
    change: dict[str, Any], is_expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("cython", monkeypatch)
    scenario = TrafficScenario()
    scenario.env.topic("orders")
    scenario.env.partition("orders")
    client = scenario.connect()
    read: list[Any] = []

    def record(*given: Any) -> Any:
        read.append(given)
        return read_header(*given)

    monkeypatch.setattr("gateway.protocol.dispatch.read_header", record)
    for fields in ({}, change):
        asked = plain_request("orders", bytes(batch()), version=fields.get("version", 11))
        client.send(request(asked, client_id=fields.get("client_id", "me")))
    assert (len(read) == 1, len(client.receive())) == (is_expected, 2)


def test_plain_request_has_the_attributes_of_a_request_in_dispatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for implementation in IMPLEMENTATIONS:
        use(implementation, monkeypatch)
        env = open_environment()
        env.topic("orders")
        env.partition("orders")
        client = MemoryClient(broker=env.broker, listener="PLAINTEXT")
        asked = request(plain_request("orders", bytes(batch())), correlation_id=7)
        client.send(asked)
        env.store.hold()
        client.send(asked)
        (waiting,) = client.dispatch._in_flight
        attributes = {name: getattr(waiting, name) for name in InFlightRequest.__struct_fields__}
        attributes["on_timeout"] = waiting.on_timeout()
        found.append((type(waiting), attributes))
        # What dispatch changes later.
        for name in ("cancel", "deadline", "is_appending", "on_timeout", "reply", "route", "usage"):
            setattr(waiting, name, getattr(InFlightRequest(0), name))
    (common, expected), (plain, attributes) = found
    assert common is InFlightRequest is not plain
    assert attributes == expected


def test_latency_begins_before_a_request_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    use("cython", monkeypatch)
    scenario = TrafficScenario()
    scenario.env.topic("orders")
    scenario.env.partition("orders")

    def ask_slowly(now: float) -> bool:
        scenario.ticks += 100_000
        return True

    refused = scenario.env.broker.topics.refused_batches
    refused.refused["orders", 0, 7] = 0, 0, 0.0
    monkeypatch.setattr(refused, "has_any", ask_slowly)
    client = scenario.connect()
    for _ in range(3):
        client.send(request(plain_request("orders", bytes(batch())), client_id="me"))
    assert client.dispatch._plain_context is not None
    scenario.disconnect(client)
    assert scenario.usage(api_key=0, topic=None)["latency_us_sum"] == 300


@pytest.mark.parametrize("is_refused", [False, True])
def test_answered_requests_are_freed_without_garbage_collector(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("cython", monkeypatch)
    scenario = TrafficScenario()
    env = scenario.env
    env.topic("orders")
    env.partition("orders")
    client = scenario.connect()
    gc.collect()
    before = compiled_objects()
    gc.disable()
    try:
        env.store.hold()
        env.store.refuse_writes = is_refused
        for sequence in (0, 1, 1):
            asked = plain_request("orders", bytes(batch(producer=(7, 0, sequence))))
            client.send(request(asked, client_id="me"))
        in_flight = compiled_objects() - before
        env.store.release()
        env.clock.advance(0)
        replies = client.receive()
        assert (in_flight, len(replies), compiled_objects() - before) == (5, 3, 0)
    finally:
        gc.enable()


def compiled_objects() -> int:
    """The number of plain requests and appends. A repeated batch waits for the first append."""
    names = ("PlainProduce", "InFlightAppend")
    return sum(type(one).__name__ in names for one in gc.get_objects())


def sent_alone(client: MemoryClient, frame: bytes) -> Any:
    """Send a request of version 11 and return the row of its only partition."""
    client.send(frame)
    client.run_reactor()
    (reply,) = client.receive()
    return decode_response(CodecRequest(), reply[5:], 11)


def connected(**settings: Any) -> tuple[BrokerEnvironment, MemoryClient, bytes]:
    """A connection that has sent a plain request, which is returned.

    Skips the test without the compiled code, which keeps the header.
    """
    if compiled.KERNEL != "cython":
        pytest.skip("requests are not served by compiled code")
    env = open_environment(**settings)
    env.topic("orders")
    client = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    sent = request(plain_request("orders", bytes(batch([(None, b"no key")]))))
    # Only the second one has the caller of the one before it.
    for _ in range(2):
        assert not sent_alone(client, sent).throttle_time_ms
    assert client.dispatch._plain_context is not None
    return env, client, sent


def code_of(reply: Any) -> int:
    code: int = reply.responses[0].partition_responses[0].error_code
    return code


def test_quota_applies_to_a_request_with_the_last_header() -> None:
    env, client, sent = connected()
    env.set_quota("producer_byte_rate", 1.0, client_id=None)
    assert sent_alone(client, sent).throttle_time_ms > 0


def test_quota_of_another_client_leaves_requests_to_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, client, sent = connected()
    env.set_quota("producer_byte_rate", 1.0, client_id="another")
    # The first one finds that this client has no quota.
    sent_alone(client, sent)
    headers = headers_read(monkeypatch)
    for _ in range(3):
        assert code_of(sent_alone(client, sent)) == ErrorCode.NONE
    assert headers == []
    env.set_quota("producer_byte_rate", 1.0, client_id="test")
    assert sent_alone(client, sent).throttle_time_ms > 0


def test_client_with_a_quota_for_bytes_is_counted_by_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, client, sent = connected()
    size = len(sent)
    # For a window of ten seconds.
    env.set_quota("producer_byte_rate", 2.0 * size, client_id="test")
    # Only the second one has the header of the one before it.
    answered = [sent_alone(client, sent).throttle_time_ms for _ in range(2)]
    headers = headers_read(monkeypatch)
    while not answered[-1] and len(answered) < 30:
        answered.append(sent_alone(client, sent).throttle_time_ms)
    assert (len(answered), answered[-1]) == (21, 500)
    assert headers == []
    client.send(sent)
    assert client.receive() == []
    env.clock.advance(0.5)
    assert client.receive()
    env.set_quota("request_percentage", 50.0, client_id="test")
    env.clock.advance(100)
    headers.clear()
    sent_alone(client, sent)
    assert len(headers) == 1


def test_session_that_expires_is_served_by_compiled_code_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, client, sent = connected()
    session = client.dispatch._session
    session._seconds, session.expires_at = env.clock.seconds, env.clock.seconds() + 10
    headers = headers_read(monkeypatch)
    env.clock.advance(10)
    assert code_of(sent_alone(client, sent)) == ErrorCode.NONE
    assert headers == []
    env.clock.advance(1)
    client.send(sent)
    assert client.receive() == []
    assert client.is_aborted


def headers_read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The headers that Python code reads from now on."""
    found: list[Any] = []

    def record(*given: Any) -> Any:
        found.append(read_header(*given))
        return found[-1]

    monkeypatch.setattr("gateway.protocol.dispatch.read_header", record)
    return found


@pytest.mark.parametrize(
    ("config", "value", "code"),
    [
        ("max.message.bytes", "10", ErrorCode.MESSAGE_TOO_LARGE),
        ("cleanup.policy", "compact", ErrorCode.INVALID_RECORD),
    ],
)
def test_config_applies_to_a_request_with_the_last_header(
    config: str, value: str, code: ErrorCode
) -> None:
    env, client, sent = connected()
    env.partition().config = effective_config({config: value}, env.broker.settings)
    assert code_of(sent_alone(client, sent)) == code


def test_request_with_the_last_header_finds_that_its_topic_is_deleted() -> None:
    env, client, sent = connected()
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    assert code_of(sent_alone(client, sent)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_other_requests_do_not_make_the_connection_forget_the_last_header() -> None:
    _, client, _ = connected()
    served = client.dispatch._plain_context
    client.send(versions(correlation_id=5))
    assert client.receive()
    assert client.dispatch._plain_context is served


def test_large_header_is_not_kept() -> None:
    env, client, sent = connected()
    client = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    tags_at = 10 + len("test")
    assert sent[tags_at] == 0
    tag = bytes(MAX_KEPT_HEADER_BYTES)
    tags = b"\1\5" + bytes([len(tag) & 0x7F | 0x80, len(tag) >> 7]) + tag
    for _ in range(2):
        large = sent[:tags_at] + tags + sent[tags_at + 1 :]
        assert code_of(sent_alone(client, large)) == ErrorCode.NONE
    assert client.dispatch._plain_context is None


def test_bug_after_the_last_header_closes_the_connection(caplog) -> None:
    env, client, sent = connected()

    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    env.broker.topics.open_partitions = fails
    client.send(sent)
    assert client.is_aborted
    client.disconnect()
    assert client.budget.used == 0
    (logged,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert dict(logged.fields)["api_key"] == ApiKey.PRODUCE


def plain_client(scenario: TrafficScenario) -> tuple[MemoryClient, bytes]:
    """A client that has sent a plain request, and the next one."""
    scenario.env.topic("orders")
    scenario.env.partition("orders")
    client = scenario.connect()
    asked = request(plain_request("orders", bytes(batch())), client_id="me")
    client.send(asked)
    assert (len(client.receive()), client.dispatch._plain_context is not None) == (1, True)
    return client, asked


def test_plain_requests_of_one_chunk_keep_the_limit_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use("cython", monkeypatch)
    scenario = TrafficScenario()
    client, asked = plain_client(scenario)
    client.send(*[asked] * (MAX_REQUESTS_PER_TURN + 10))
    assert len(client.dispatch._queued_frames) == 10
    assert len(client.receive()) == MAX_REQUESTS_PER_TURN + 10


def test_slow_plain_requests_of_one_chunk_keep_the_time_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use("cython", monkeypatch)
    scenario = TrafficScenario()
    client, asked = plain_client(scenario)
    refused = scenario.env.broker.topics.refused_batches

    def ask_slowly(now: float) -> bool:
        scenario.env.clock.rightNow += MAX_TURN_SECONDS * 0.6
        return True

    refused.refused["orders", 0, 7] = 0, 0, 0.0
    monkeypatch.setattr(refused, "has_any", ask_slowly)
    client.send(*[asked] * 5)
    assert len(client.dispatch._queued_frames) == 3
    while client.dispatch._queued_frames:
        client.run_reactor()
    assert len(client.receive()) == 5


def test_closed_connection_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    use("cython", monkeypatch)
    scenario = TrafficScenario()
    client, _ = plain_client(scenario)
    client.disconnect()
    closed = weakref.ref(client)
    del client
    gc.collect()
    assert closed() is None


def test_deleted_topic_is_freed_while_its_producer_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use("cython", monkeypatch)
    scenario = TrafficScenario()
    client, asked = plain_client(scenario)
    topics = scenario.env.broker.topics
    ended(topics.delete(topics.require("orders")))
    gc.collect()
    assert [one for one in gc.get_objects() if type(one) is TopicState and one.is_deleted] == []
    client.send(asked)
    assert len(client.receive()) == 1


def test_topic_without_partitions_is_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's right to write to it is checked, and a refusal is recorded."""
    use("cython", monkeypatch)
    asked = plain_request("orders", bytes(batch()))
    asked.topic_data.append(Topic(version=11, name="secret", partition_data=[]))
    assert compiled.plain_produce(bytearray(asked.encode(version=11)), 0, 11, 100) is None


def test_late_response_of_a_plain_request_that_has_ended_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use("cython", monkeypatch)
    asked = plain_request("orders", bytes(batch())).encode(version=11)
    plain = compiled.plain_produce(bytearray(asked), 0, 11, 100)
    with pytest.raises(ValueError, match="no append is running"):
        plain.timed_out()
