"""Compacted topics require keys."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c

from gateway import handlers as handlers  # importing registers the routes
from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import ROUTES, DelayedReply
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.produce_codec import (
    PartitionProduced,
    PartitionRecords,
    ProduceRequest,
    RecordError,
    TopicRecords,
)
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.partitions.compacted_topic import FORMATS, put, table
from tests.records.record_sets import Pair, batch, old_set


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    table(env)
    return env


def produced(env: BrokerEnvironment, version: int, records: memoryview) -> PartitionProduced:
    asked = ProduceRequest(
        version, None, -1, 1000, [TopicRecords("orders", [PartitionRecords(0, records)])]
    )
    (((_, (row,)),),) = (ended(answer(env, asked)).topics,)
    return row


async def answer(env: BrokerEnvironment, asked: ProduceRequest) -> Any:
    reply = await ROUTES[ApiKey.PRODUCE, asked.version].handler(asked, env.caller(asked.version))
    return await reply.reply if isinstance(reply, DelayedReply) else reply


WITHOUT_KEY: list[Pair] = [(b"a", b"1"), (None, b"2")]


def message(partition: int = 0) -> str:
    return (
        f"Compacted topic cannot accept message without key in topic partition orders-{partition}"
    )


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_batch_with_record_without_key_is_rejected(env, codec):
    row = produced(env, 11, batch(WITHOUT_KEY, codec=codec))
    assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert row.error_message == (
        "One or more records have been rejected due to 1 record errors in total, and "
        "only showing the first three errors "
        f"at most: [RecordError(batchIndex=1, message='{message()}')]"
    )
    assert list(row.record_errors) == [RecordError(1, message())]
    assert env.partition().log.end_offset == 0


@pytest.mark.parametrize("count", [100, 1000])
def test_every_record_without_key_is_listed(env, count):
    pairs: list[Pair] = [(None if n % 10 == 7 else b"k%d" % n, b"v") for n in range(count)]
    row = produced(env, 8, batch(pairs))
    assert list(row.record_errors) == [RecordError(n, message()) for n in range(7, count, 10)]
    assert row.error_message is not None
    assert f"due to {count // 10} record errors in total" in row.error_message
    assert row.error_message.count("RecordError(") == 3


def test_listed_record_errors_are_limited(env, monkeypatch):
    monkeypatch.setattr("gateway.handlers.produce.MAX_RECORD_ERRORS", 5)
    env.topic("other", 3, **{"cleanup.policy": "compact"})
    sent = [PartitionRecords(index, batch([(None, b"v")] * 3)) for index in range(3)]
    asked = ProduceRequest(11, None, -1, 1000, [TopicRecords("other", sent)])
    (((_, rows),),) = (ended(answer(env, asked)).topics,)
    assert [row.error_code for row in rows] == [ErrorCode.INVALID_RECORD] * 3
    assert [[one.batch_index for one in row.record_errors] for row in rows] == [
        [0, 1, 2],
        [0, 1],
        [],
    ]
    assert ["due to 3 record errors" in row.error_message for row in rows] == [True] * 3


@pytest.mark.parametrize("written", [one for one in FORMATS if one[0] < 2], ids=str)
def test_message_set_with_message_without_key_is_rejected(env, written):
    """CORRUPT_MESSAGE, as in Kafka until 2.4, where InvalidRecordException extended
    CorruptRecordException.
    """
    magic, codec = written
    row = produced(env, 2, old_set(WITHOUT_KEY, magic=magic, codec=codec))
    assert (row.error_code, env.partition().log.end_offset) == (ErrorCode.CORRUPT_MESSAGE, 0)


@pytest.mark.parametrize(
    "records",
    [batch([(b"", b"1")]), batch([(b"a", None)], codec=2), batch([(b"k", b"v" * 70_000)], codec=1)],
)
def test_batch_with_keys_is_accepted(env, records):
    assert produced(env, 11, records).error_code == 0


def test_uncompacted_topic_accepts_records_without_keys(env):
    env.topic("log")
    assert put(env, (None, b"1"), topic="log") == 0


@pytest.mark.parametrize("count", [400, 600])
def test_keys_of_many_records_are_checked_on_thread(env, count):
    env.threads.calls = 0
    assert produced(env, 11, batch(count)).error_code == 0
    assert env.threads.calls == (count > 500)


def test_batch_with_wrong_record_count_is_rejected(env):
    records = batch([(b"a", b"1")])
    lying = bytearray(records)
    lying[61] = 0x7F
    lying[17:21] = crc32c(bytes(lying[21:])).to_bytes(4, "big")
    assert produced(env, 11, memoryview(lying)).error_code == ErrorCode.INVALID_RECORD
