"""Produce: formats by version, errors, order and timeouts."""

from __future__ import annotations

import zlib
from struct import pack
from typing import Any, cast

import pytest
from kafka.protocol.producer import ProduceRequest as CodecRequest
from kafka.protocol.producer import ProduceResponse as CodecResponse
from twisted.internet.defer import Deferred

from gateway.handlers.produce import LARGE_RECORDS_BYTES, TURN_PARTITIONS
from gateway.partitions.partition import ProducerRecovery
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, Refused
from gateway.protocol.routes import ROUTES, DelayedReply
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.produce_codec import (
    PartitionProduced,
    PartitionRecords,
    ProduceRequest,
    TopicRecords,
    write_produce_response,
)
from gateway.topics.topic_names import CONSUMER_OFFSETS, TRAFFIC_TOPIC
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment
from tests.fakes.connection import MemoryClient
from tests.records import sample_records
from tests.records.peers import read_with_kafka_python
from tests.records.record_sets import batch, old_set
from tests.records.sample_records import Sample

NEW = 11


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", 3)
    return env


def request(
    version: int,
    *sent: tuple[int, memoryview | None],
    topic: str | bytes = "orders",
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    partitions = [PartitionRecords(index, records) for index, records in sent]
    return ProduceRequest(version, transactional_id, acks, 1000, [TopicRecords(topic, partitions)])


def start(env: BrokerEnvironment, asked: ProduceRequest) -> Started:
    """Start a Produce request, including its delayed response."""

    async def serve() -> Any:
        reply = await ROUTES[ApiKey.PRODUCE, asked.version].handler(
            asked, env.caller(asked.version)
        )
        return await reply.reply if isinstance(reply, DelayedReply) else reply

    return Started(serve())


def produce(
    env: BrokerEnvironment, version: int, *sent: tuple[int, memoryview | None], **more: Any
) -> list[PartitionProduced]:
    ((_, rows),) = start(env, request(version, *sent, **more)).result.topics
    return list(rows)


def code(env: BrokerEnvironment, version: int, records: memoryview | None, **more: Any) -> int:
    (row,) = produce(env, version, (0, records), **more)
    return row.error_code


def raw(text: bytes) -> memoryview:
    return memoryview(bytearray(text))


def stored(env: BrokerEnvironment, index: int = 0) -> list[Any]:
    partition = env.partition("orders", index)
    return [
        found
        for one in ended(partition.read(0, 1 << 30))
        for found in read_with_kafka_python(bytes(one.payload))
    ]


def set_for(version: int) -> memoryview:
    """Return two records in the format of the version."""
    return batch(2) if version >= 3 else old_set(2, magic=1 if version == 2 else 0)


@pytest.mark.parametrize("version", range(14))
def test_every_version_stores_and_returns_offset(env, version):
    topic = env.broker.topics.require("orders").topic.topic_id if version >= 13 else "orders"
    for base_offset in (0, 2):
        response = start(env, request(version, (1, set_for(version)), topic=topic)).result
        ((named, (row,)),) = response.topics
        assert (
            named,
            row.index,
            row.error_code,
            row.base_offset,
            row.log_append_time,
            row.log_start_offset,
        ) == (
            topic,
            1,
            0,
            base_offset,
            -1,
            0,
        )
        if version < 13:
            # kafka-python's codec has no topic ids in the response of v13.
            decoded = CodecResponse.decode(
                write_produce_response(response, version), version=version
            )
            assert decoded.responses[0].partition_responses[0].base_offset == base_offset
    assert [found[0] for found in stored(env, 1)] == [0, 1, 2, 3]


def test_partitions_keep_request_order_and_fail_alone(env):
    rows = produce(env, NEW, (2, batch(2)), (9, batch(1)), (0, raw(b"nonsense")), (1, batch(3)))
    assert [(row.index, row.error_code, row.base_offset) for row in rows] == [
        (2, 0, 0), (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (0, ErrorCode.CORRUPT_MESSAGE, -1), (1, 0, 0),
    ]  # fmt: skip


def test_large_request_is_appended_in_turns_and_in_order(env):
    env.topic("wide", 2 * TURN_PARTITIONS + 1)
    sent = [(index, batch(1)) for index in range(2 * TURN_PARTITIONS + 1)]
    started = start(env, request(NEW, *sent, (0, batch(2)), topic="wide"))
    assert not started.is_done
    env.clock.advance(0)
    ((_, rows),) = started.result.topics
    assert [(row.index, row.error_code, row.base_offset) for row in rows] == [
        (index, 0, 0) for index, _ in sent
    ] + [(0, 0, 1)]


def test_each_missing_topic_is_looked_up_once(env, monkeypatch):
    looked_up = []
    open_soon = env.broker.topics.prefetch
    monkeypatch.setattr(
        env.broker.topics, "prefetch", lambda *key: (looked_up.append(key), open_soon(*key))
    )
    topics = [TopicRecords(f"t{number}", [PartitionRecords(0, batch(1))]) for number in range(150)]
    reply = start(env, ProduceRequest(NEW, None, -1, 1000, topics)).result
    assert {row.error_code for _, rows in reply.topics for row in rows} == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert sorted(looked_up) == sorted((f"t{number}", 0) for number in range(150))


def test_duplicate_partition_appends_both_in_order(env):
    assert [row.base_offset for row in produce(env, NEW, (0, batch(2)), (0, batch(3)))] == [0, 2]


def test_log_start_offset_is_returned(env):
    produce(env, NEW, (0, batch(5)))

    async def cut() -> None:
        await env.partition("orders").log.delete_before(3)

    ended(cut())
    (row,) = produce(env, NEW, (0, batch(1)))
    assert (row.base_offset, row.log_start_offset) == (5, 3)


def test_log_append_time_is_broker_time(env):
    env.topic("stamped", message_timestamp_type="LogAppendTime")
    env.clock.advance(2)
    (row,) = produce(env, NEW, (0, batch(1)), topic="stamped")
    assert row.log_append_time == NOW + 2000


# acks


@pytest.mark.parametrize("acks", [1, -1])
def test_response_waits_until_records_are_durable(env, acks):
    env.store.hold()
    producing = start(env, request(NEW, (0, batch(1)), acks=acks))
    assert not producing.is_done
    env.store.release()
    assert producing.result is not None


def test_acks_0_has_no_response(env):
    assert start(env, request(NEW, (0, batch(1)), acks=0)).result is None
    assert len(stored(env)) == 1


@pytest.mark.parametrize("records", [raw(b"nonsense"), None])
def test_acks_0_failure_closes_connection(env, records):
    assert isinstance(start(env, request(NEW, (0, records), acks=0)).failure, Refused)


def test_acks_0_store_failure_closes_connection(env):
    env.store.refuse_writes = True
    assert isinstance(start(env, request(NEW, (0, batch(1)), acks=0)).failure, Refused)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_invalid_acks_are_rejected(env, acks):
    assert code(env, NEW, batch(1), acks=acks) == ErrorCode.INVALID_REQUIRED_ACKS
    assert stored(env) == []


# Rejected records


@pytest.mark.parametrize(("version", "topic", "expected"), [
    (0, "other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (NEW, "other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (13, b"x" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
])  # fmt: skip
def test_unknown_topic_is_not_created(env, version, topic, expected):
    assert code(env, version, set_for(version), topic=topic) == expected
    assert len(env.broker.topics) == 1


@pytest.mark.parametrize("version", [0, NEW])
def test_gateway_topics_reject_client_records(env, version):
    env.topic(TRAFFIC_TOPIC)
    assert (
        code(env, version, set_for(version), topic=TRAFFIC_TOPIC)
        == ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    assert env.partition(TRAFFIC_TOPIC).log.end_offset == 0


@pytest.mark.parametrize("version", [0, NEW, 13])
def test_internal_topic_rejects_records(env, version):
    env.broker.topics.add_internal(CONSUMER_OFFSETS)
    topic = (
        CONSUMER_OFFSETS
        if version < 13
        else env.broker.topics.find_internal(CONSUMER_OFFSETS).topic.topic_id
    )
    assert code(env, version, set_for(version), topic=topic) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", [0, 1, 2])
def test_empty_message_set_is_accepted_as_in_kafka(env, version):
    (row,) = produce(env, version, (0, raw(b"")))
    assert (row.error_code, row.base_offset) == (0, -1)


@pytest.mark.parametrize(("version", "records", "expected"), [
    (2, None, ErrorCode.CORRUPT_MESSAGE), (3, None, ErrorCode.INVALID_RECORD),
    (NEW, raw(b""), ErrorCode.INVALID_RECORD),
])  # fmt: skip
def test_missing_records_are_rejected(env, version, records, expected):
    assert code(env, version, records) == expected


def test_record_format_must_match_version(env):
    assert code(env, 3, old_set(1, magic=1)) == ErrorCode.INVALID_RECORD
    assert code(env, 2, batch(1)) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_zstd_is_rejected_before_v7(env):
    assert code(env, 6, batch(9, codec=4)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert code(env, 7, batch(9, codec=4)) == 0


@pytest.mark.parametrize("version", [2, NEW])
def test_batch_above_max_message_bytes_is_too_large(env, version):
    records = set_for(version)
    size = len(records) if version == NEW else len(records) // 2
    env.topic("exact", max_message_bytes=str(size))
    env.topic("narrow", max_message_bytes=str(size - 1))
    assert code(env, version, records, topic="exact") == 0
    assert code(env, version, set_for(version), topic="narrow") == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_with_wrong_crc_is_corrupt(env, magic):
    records = old_set(3, magic=magic)
    records[-1] ^= 1
    assert code(env, magic + 1, records) == ErrorCode.CORRUPT_MESSAGE


def test_old_producers_receive_only_known_errors(env):
    """A set with two formats: INVALID_RECORD for current producers, unknown to old ones."""
    mixed = raw(
        sample_records.message(0, b"k", b"v", magic=0)
        + sample_records.message(1, b"k", b"v", magic=1)
    )
    assert code(env, 2, mixed) == ErrorCode.CORRUPT_MESSAGE


def test_unknown_codec_in_message_set_is_named(env):
    assert (
        code(env, 2, raw(sample_records.message(0, None, b"v", magic=1, attributes=5)))
        == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )


def test_log_append_time_from_producer_is_rejected(env):
    assert (
        code(env, 2, raw(sample_records.message(0, None, b"v", magic=1, attributes=8)))
        == ErrorCode.INVALID_TIMESTAMP
    )


def test_transactional_records_are_rejected(env):
    assert code(env, NEW, batch(1), transactional_id="tx") == ErrorCode.INVALID_TXN_STATE
    assert (
        code(env, NEW, batch(1, producer=(1, 0, 0), is_transactional=True))
        == ErrorCode.INVALID_TXN_STATE
    )


@pytest.mark.parametrize(("producer", "expected"), [
    ((7, 0, 5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ((7, 1, 5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
])  # fmt: skip
def test_sequence_gap_is_rejected(env, producer, expected):
    assert code(env, NEW, batch(2, producer=(7, 0, 0))) == 0
    assert code(env, NEW, batch(1, producer=producer)) == expected


def test_old_producer_epoch_is_rejected(env):
    assert code(env, NEW, batch(1, producer=(7, 3, 0))) == 0
    assert code(env, NEW, batch(1, producer=(7, 2, 0))) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_retry_returns_first_offset(env):
    offsets = [
        produce(env, NEW, (0, batch(2, producer=(7, 0, sequence))))[0].base_offset
        for sequence in (0, 2, 0, 2)
    ]
    assert offsets == [0, 2, 0, 2]


def test_store_failure_is_storage_error(env):
    env.store.refuse_writes = True
    assert code(env, NEW, batch(1)) == ErrorCode.KAFKA_STORAGE_ERROR


def test_topic_being_deleted_is_not_leader(env):
    env.partition("orders").log.shut()
    assert code(env, NEW, batch(1)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


# Message sets


def test_zero_inner_offsets_of_sarama_are_assigned(env):
    """kop#1992."""
    samples = [Sample(n, 5, b"k%d" % n, b"v") for n in range(4)]
    for version, magic in ((1, 0), (2, 1)):
        records = raw(
            sample_records.wrapper(
                samples, sample_records.GZIP, magic=magic, inner_offsets=[0] * 4, offset=0
            )
        )
        assert code(env, version, records) == 0
    assert [found[0] for found in stored(env)] == list(range(8))


def test_small_message_sets_are_checked_inline_and_large_on_thread(env):
    assert code(env, 2, old_set([(b"k", b"v" * 1000)], magic=1)) == 0
    assert env.threads.calls == 0
    assert code(env, 2, old_set([(b"k", b"v" * LARGE_RECORDS_BYTES)], magic=1)) == 0
    assert env.threads.calls == 1


def test_batches_above_a_limit_per_turn_are_checked_one_after_the_other(env, monkeypatch):
    """A large one is checked on another thread."""
    records = [batch(count) for count in (1, 1, 1, 20)]
    small = len(records[0])
    monkeypatch.setattr("gateway.handlers.produce.MAX_CHECKED_BYTES", 2 * small)
    monkeypatch.setattr("gateway.handlers.produce.LARGE_BATCH_BYTES", small + 1)
    checked = []

    def check(given, version):
        checked.append(given)
        return check_batch(given, version)

    monkeypatch.setattr("gateway.handlers.produce.check_batch", check)
    (row,) = produce(env, NEW, (0, records[0]))
    assert (row.error_code, len(checked), env.threads.calls) == (0, 1, 0)
    checked.clear()
    env.threads.hold()
    started = start(env, request(NEW, *((0, one) for one in records)))
    assert len(checked) == 2
    env.clock.advance(0)
    assert (len(checked), env.threads.calls) == (2 + 1, 1)
    env.threads.release()
    env.clock.advance(0)
    ((_, rows),) = started.result.topics
    assert [row.base_offset for row in rows] == [1, 2, 3, 4]


def test_small_set_with_large_content_is_checked_on_thread(env):
    packed = old_set([(b"k", b"v" * 2 * LARGE_RECORDS_BYTES)], magic=1, codec=1)
    assert len(packed) < LARGE_RECORDS_BYTES // 10
    assert code(env, 2, packed) == 0
    assert env.threads.calls == 1


def test_decompression_bomb_is_too_large():
    env = open_environment(max_decompressed_bytes=1 << 20)
    env.topic("orders")
    bomb = sample_records.message(
        0, None, zlib.compress(bytes(64 << 20), wbits=31), magic=1, attributes=1
    )
    assert code(env, 2, raw(bomb)) == ErrorCode.MESSAGE_TOO_LARGE


# Order


class Connection(MemoryClient):
    """A client's connection to a complete broker."""

    def __init__(self, env: BrokerEnvironment) -> None:
        super().__init__()
        self.dispatch._broker = env.broker

    def produces(
        self, topic: str, index: int, records: memoryview, version: int, correlation_id: int
    ) -> None:
        named = CodecRequest.TopicProduceData
        data = named(
            name=topic,
            partition_data=[named.PartitionProduceData(index=index, records=bytes(records))],
        )
        asked = CodecRequest(
            version=version, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[data]
        )
        self.send(
            pack(">hhih", 0, version, correlation_id, -1) + bytes(asked.encode(version=version))
        )

    def answered(self) -> list[int]:
        return [int.from_bytes(reply[:4], "big") for reply in self.receive()]


def test_connection_keeps_produce_order_while_partition_opens(env, monkeypatch):
    """The first waits for the opening, the second for a check on a thread, the third for nothing;
    they are stored in order.
    """
    real = env.store.log

    async def slow(topic: str, partition: int) -> Any:
        await env.threads.run(lambda: None)
        return await real(topic, partition)

    monkeypatch.setattr(env.store, "log", slow)
    env.threads.hold()
    connection = Connection(env)
    connection.produces("orders", 0, old_set([(b"1", b"")], magic=1), 2, 1)
    connection.produces("orders", 0, old_set([(b"2", b"v" * LARGE_RECORDS_BYTES)], magic=1), 2, 2)
    connection.produces("orders", 0, old_set([(b"3", b"")], magic=1), 2, 3)
    assert connection.answered() == []
    while env.threads._waiting:
        env.threads.release()
        connection.run_reactor()
    assert connection.answered() == [1, 2, 3]
    assert [found[3] for found in stored(env)] == [b"1", b"2", b"3"]


def test_produces_of_one_connection_overlap_in_store(env):
    env.partition("orders")
    env.store.hold()
    connection = Connection(env)
    for n in range(1, 6):
        connection.produces("orders", 0, batch([(b"%d" % n, b"")], producer=(7, 0, n - 1)), 8, n)
    assert len(env.store._queue) == 5
    env.store.release()
    connection.run_reactor()
    assert connection.answered() == [1, 2, 3, 4, 5]
    assert [found[3] for found in stored(env)] == [b"1", b"2", b"3", b"4", b"5"]


def test_queued_records_are_stored_after_disconnect(env):
    env.partition("orders")
    env.store.hold()
    connection = Connection(env)
    connection.produces("orders", 0, batch(1, producer=(7, 0, 0)), 8, 1)
    connection.dispatch.close()
    env.store.release()
    assert code(env, NEW, batch(1, producer=(7, 0, 0))) == 0
    assert len(stored(env)) == 1


# Timeouts and failures


def waiting(
    env: BrokerEnvironment, *sent: tuple[int, memoryview | None], **more: Any
) -> tuple[Started, DelayedReply[Any]]:
    """Start a Produce request that waits for the store."""
    reply = delayed(env, request(NEW, *sent, **more))
    return Started(later(reply)), reply


def delayed(env: BrokerEnvironment, asked: ProduceRequest) -> DelayedReply[Any]:
    """What the handler returns."""

    async def serve() -> DelayedReply[Any]:
        reply = await ROUTES[ApiKey.PRODUCE, NEW].handler(asked, env.caller(NEW))
        assert isinstance(reply, DelayedReply)
        return reply

    return cast(DelayedReply[Any], Started(serve()).result)


async def later(reply: DelayedReply[Any]) -> Any:
    return await reply.reply


@pytest.mark.parametrize("acks", [-1, 1])
def test_records_not_stored_in_time_are_reported_and_stored_later(
    env: BrokerEnvironment, acks: int
) -> None:
    env.store.hold()
    under_way, reply = waiting(env, (0, batch()), acks=acks)
    assert (reply.timeout_seconds, reply.on_timeout is not None) == (1.0, True)
    assert reply.on_timeout is not None
    ((_, (row,)),) = reply.on_timeout().topics
    assert (row.error_code, row.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    env.store.release()
    assert under_way.is_done
    assert env.partition().log.end_offset == 1


def test_partitions_stored_in_time_are_reported_as_stored(
    env: BrokerEnvironment,
) -> None:
    env.partition("orders", 1)
    env.store.hold()
    _, reply = waiting(env, (0, batch()), (1, None), (2, batch()))
    env.store._queue.popleft().told.callback(None)
    assert reply.on_timeout is not None
    ((_, told),) = reply.on_timeout().topics
    assert [row.error_code for row in told] == [
        0,
        ErrorCode.INVALID_RECORD,
        ErrorCode.REQUEST_TIMED_OUT,
    ]


def test_timeout_needs_acks_and_positive_timeout_ms(
    env: BrokerEnvironment,
) -> None:
    _, quiet = waiting(env, (0, batch()), acks=0)
    asked = ProduceRequest(
        NEW, None, -1, 0, [TopicRecords("orders", [PartitionRecords(0, batch())])]
    )
    patient = delayed(env, asked)
    assert (quiet.timeout_seconds, patient.timeout_seconds) == (None, None)
    assert Started(later(patient)).result.topics


@pytest.mark.parametrize(
    ("version", "told"), [(3, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_produce_store_failure_is_retriable_for_every_version(
    env: BrokerEnvironment, version: int, told: ErrorCode
) -> None:
    """ProduceResponse of Kafka 1.0 to 3.9: clients up to v3 may not know KafkaStorageException."""
    env.store.refuse_writes = True
    assert code(env, version, batch()) == told


def test_produce_opens_partitions_concurrently(env: BrokerEnvironment) -> None:
    env.store.slow_logs = Deferred()
    producing = start(env, request(NEW, (0, batch()), (1, batch()), (2, batch())))
    assert env.store.logs_asked == 3
    env.store.slow_logs.callback(None)
    ((_, rows),) = producing.result.topics
    assert [row.error_code for row in rows] == [0, 0, 0]


def test_producer_recovery_does_not_delay_other_producers(env):
    """As after a restart without a snapshot of a large log."""
    partition = env.partition()
    recovery = partition.recovery = ProducerRecovery(0, env.clock.seconds() + 5)
    waiting = start(env, request(NEW, (0, batch(1, producer=(7, 0, 0)))))
    assert code(env, NEW, batch(1)) == ErrorCode.NONE
    assert not waiting.is_done
    partition.recovery = None
    recovery.finished.succeed(None)
    ((_, (row,)),) = waiting.result.topics
    assert (row.error_code, row.base_offset) == (ErrorCode.NONE, 1)
