"""What a compacted topic takes: records with keys, since it could not tell what to keep of others."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c

from gateway import handlers as handlers  # importing them routes them
from gateway.errors import ErrorCode
from gateway.routes import ROUTES, Later
from gateway.wire.api_keys import ApiKey
from gateway.wire.produce import PartitionProduced, PartitionRecords, ProduceRequest, TopicRecords
from tests.fakes.broker import House, ended, open_house
from tests.gateway.compacted import FORMATS, put, table
from tests.gateway.sets import Pair, batch, old_set


@pytest.fixture
def house() -> House:
    house = open_house()
    table(house)
    return house


def produced(house: House, version: int, records: memoryview) -> PartitionProduced:
    asked = ProduceRequest(version, None, -1, 1000, [TopicRecords("orders", [PartitionRecords(0, records)])])

    async def serve() -> Any:
        reply = await ROUTES[ApiKey.PRODUCE, version].handler(asked, house.caller(version))
        return await reply.reply if isinstance(reply, Later) else reply

    (((_, (row,)),),) = (ended(serve()).topics,)
    return row


WITHOUT_KEY: list[Pair] = [(b"a", b"1"), (None, b"2")]


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_batch_with_a_record_without_a_key_is_refused(house, codec):
    row = produced(house, 11, batch(WITHOUT_KEY, codec=codec))
    assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert row.error_message == "Compacted topic cannot accept message without key in topic partition orders-0"
    assert house.partition().log.end_offset == 0


@pytest.mark.parametrize("written", [one for one in FORMATS if one[0] < 2], ids=str)
def test_a_message_set_with_a_message_without_a_key_is_refused(house, written):
    """In the words of the brokers of its time: InvalidRecordException was a CorruptRecordException until Kafka 2.4."""
    magic, codec = written
    row = produced(house, 2, old_set(WITHOUT_KEY, magic=magic, codec=codec))
    assert (row.error_code, house.partition().log.end_offset) == (ErrorCode.CORRUPT_MESSAGE, 0)


@pytest.mark.parametrize("records", [batch([(b"", b"1")]), batch([(b"a", None)], codec=2), batch([(b"k", b"v" * 70_000)], codec=1)])
def test_a_batch_with_keys_is_taken(house, records):
    assert produced(house, 11, records).error_code == 0


def test_a_topic_that_is_not_compacted_takes_records_without_keys(house):
    house.topic("log")
    assert put(house, (None, b"1"), topic="log") == 0


@pytest.mark.parametrize("count", [400, 600])
def test_keys_of_many_records_are_looked_at_on_another_thread(house, count):
    house.threads.calls = 0
    assert produced(house, 11, batch(count)).error_code == 0
    assert house.threads.calls == (count > 500)


def test_a_batch_whose_records_are_not_what_the_header_says_is_refused(house):
    records = batch([(b"a", b"1")])
    lying = bytearray(records)
    lying[61] = 0x7F
    lying[17:21] = crc32c(bytes(lying[21:])).to_bytes(4, "big")
    assert produced(house, 11, memoryview(lying)).error_code == ErrorCode.INVALID_RECORD
