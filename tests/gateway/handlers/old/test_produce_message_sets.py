"""Message sets of formats 0 and 1 on topics that store format 2.

Each set becomes one batch with the same contents and the offsets of the leader.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.handlers.produce import LARGE_RECORDS_BYTES
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.produce_codec import PartitionProduced
from tests.compat.message_sets.test_up_conversion import with_epoch
from tests.fakes.broker import NOW, BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.fetch_requests import from_offset, payload, rows, start_fetch
from tests.gateway.handlers.fetch_requests import request as fetching
from tests.gateway.handlers.test_produce import produce
from tests.records.peers import read_with_aiokafka, read_with_kafka_python
from tests.records.record_sets import batch as new_batch
from tests.records.record_sets import old_set
from tests.records.sample_records import GZIP, LZ4, SNAPPY, Sample, batch, message_set, wrapper

A, B = Sample(0, 1000, b"k", b"first"), Sample(1, 990, None, None)

#: Produce version by format.
VERSIONS = {0: 1, 1: 2}


def kept(**configs: str) -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", entry_format="kafka", **configs)
    return env


@pytest.fixture
def env() -> BrokerEnvironment:
    return kept()


def send(env: BrokerEnvironment, payload: bytes, magic: int = 1) -> PartitionProduced:
    (row,) = produce(env, VERSIONS[magic], (0, memoryview(bytearray(payload))))
    return row


def payloads(env: BrokerEnvironment) -> list[bytes]:
    return [bytes(entry.payload) for entry in ended(env.partition().read(0, 1 << 30))]


def test_uncompressed_messages_become_one_batch(env):
    assert send(env, message_set([A, B], magic=1)).error_code == 0
    assert payloads(env) == [with_epoch(batch([A, B]), 0)]


def test_format_0_messages_have_no_timestamps(env):
    send(env, message_set([A, B], magic=0), magic=0)
    assert read_with_kafka_python(payloads(env)[0]) == [
        (0, -1, 0, b"k", b"first", ()),
        (1, -1, 0, None, None, ()),
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_compressed_set_keeps_codec_for_any_inner_offsets(env, magic, codec):
    send(env, wrapper([A, B], codec, magic=magic, inner_offsets=[0, 0], offset=0), magic)
    (stored,) = payloads(env)
    assert stored[22] & 7 == codec
    assert [(found[0], *found[3:5]) for found in read_with_aiokafka(stored)] == [
        (0, b"k", b"first"),
        (1, None, None),
    ]


def test_offsets_continue_across_formats(env):
    offsets = [
        send(env, message_set([A, B], magic=1)).base_offset,
        send(env, wrapper([A, B], GZIP, magic=0), magic=0).base_offset,
    ]
    offsets += [
        produce(env, 11, (0, new_batch(3)))[0].base_offset,
        send(env, message_set([A], magic=0), magic=0).base_offset,
    ]
    assert offsets == [0, 2, 4, 7]
    assert [
        found[0] for stored in payloads(env) for found in read_with_kafka_python(stored)
    ] == list(range(8))
    assert env.partition().log.end_offset == 8


def test_log_append_time_sets_timestamps_to_gateway_clock():
    env = kept(message_timestamp_type="LogAppendTime")
    row = send(env, message_set([A, B], magic=1))
    assert row.log_append_time == NOW
    assert [found[1:3] for found in read_with_kafka_python(payloads(env)[0])] == [
        (NOW, 1),
        (NOW, 1),
    ]


@pytest.mark.parametrize("codec", [None, GZIP, SNAPPY, LZ4])
def test_format_0_is_stored_in_format_2_with_log_append_time(codec):
    env = open_environment()
    env.topic("orders", message_timestamp_type="LogAppendTime")
    sent = message_set([A, B], magic=0) if codec is None else wrapper([A, B], codec, magic=0)
    row = send(env, sent, magic=0)
    assert (row.error_code, row.base_offset, row.log_append_time) == (0, 0, NOW)
    (stored,) = payloads(env)
    assert stored[22] & 7 == (codec or 0)
    assert read_with_aiokafka(stored) == [
        (0, NOW, 1, b"k", b"first", ()),
        (1, NOW, 1, None, None, ()),
    ]


def test_format_1_is_not_converted_with_log_append_time():
    env = open_environment()
    env.topic("orders", message_timestamp_type="LogAppendTime")
    send(env, message_set([A, B], magic=1))
    (stored,) = payloads(env)
    assert (stored[16], [found[1:3] for found in read_with_kafka_python(stored)]) == (
        1,
        [(NOW, 1), (NOW, 1)],
    )


def test_empty_set_appends_nothing(env):
    assert (send(env, b"").error_code, payloads(env)) == (0, [])


def test_mixed_format_topic_keeps_formats():
    env = open_environment(entry_format="kafka")
    env.topic("orders", entry_format="mixed_kafka")
    send(env, message_set([A, B], magic=1))
    assert payloads(env) == [message_set([A, B], magic=1)]


def test_setting_applies_to_topic_without_entry_format():
    env = open_environment(entry_format="kafka")
    env.topic("orders")
    send(env, message_set([A, B], magic=1))
    assert payloads(env) == [with_epoch(batch([A, B]), 0)]


def test_converted_set_above_max_message_bytes_is_refused():
    """LogValidator checks each message, UnifiedLog the converted set (messageSizeMaybeChanged)."""
    env = kept(max_message_bytes="300")
    assert (
        send(
            env, message_set([Sample(n, 1000, None, b"v" * 100) for n in range(4)], magic=1)
        ).error_code
        == ErrorCode.MESSAGE_TOO_LARGE
    )
    assert payloads(env) == []


def test_malformed_set_is_corrupt(env):
    assert send(env, message_set([A, B], magic=1)[:-1]).error_code == ErrorCode.CORRUPT_MESSAGE


def test_compacted_topic_refuses_message_without_key():
    env = kept(cleanup_policy="compact")
    assert send(env, message_set([A, B], magic=1)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert send(env, message_set([A], magic=1)).error_code == 0


@pytest.mark.parametrize(
    ("records", "calls"),
    [
        pytest.param(old_set([(b"k", b"v" * 1000)], magic=1), 0, id="small"),
        pytest.param(old_set([(b"k", b"v" * LARGE_RECORDS_BYTES)], magic=1), 2, id="large"),
        pytest.param(
            old_set([(b"k", b"v" * 2 * LARGE_RECORDS_BYTES)], magic=1, codec=1),
            2,
            id="large once unpacked",
        ),
    ],
)
def test_large_sets_are_validated_and_converted_on_a_thread(env, records, calls):
    assert send(env, bytes(records)).error_code == 0
    assert env.threads.calls == calls


def test_decompression_bomb_is_too_large():
    env = open_environment(max_decompressed_bytes=1 << 20)
    env.topic("orders", entry_format="kafka")
    bomb = wrapper([Sample(0, 1, b"k", bytes(4 << 20))], GZIP, magic=1)
    assert send(env, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_old_consumers_read_records_of_old_producers(env):
    send(env, message_set([A, B], magic=0), magic=0)
    for version in (0, 2, 4, 12):
        (row,) = rows(start_fetch(env, fetching(version, [from_offset(0)])).result).values()
        found = read_with_kafka_python(payload(row))
        assert [(one[0], *one[3:5]) for one in found] == [(0, b"k", b"first"), (1, None, None)]


def test_records_stored_before_format_change_stay_readable(env: Any) -> None:
    live = env.topic("bills")
    old = memoryview(bytearray(message_set([A], magic=1)))
    assert produce(env, 2, (0, old), topic="bills")[0].error_code == 0

    async def alter() -> None:
        await env.broker.topics.alter(
            live,
            lambda topic: type(topic)(topic.name, topic.topic_id, 1, {"entry.format": "kafka"}),
        )

    ended(alter())
    assert (
        produce(env, 2, (0, memoryview(bytearray(message_set([A], magic=1)))), topic="bills")[
            0
        ].base_offset
        == 1
    )
    entries = ended(env.partition("bills").read(0, 1 << 30))
    assert [entry.payload[16] for entry in entries] == [1, 2]
