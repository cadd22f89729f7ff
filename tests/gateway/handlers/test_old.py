"""Old versions that behave differently, through their handlers."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from compat.records import check_message_set
from gateway.errors import ErrorCode
from gateway.records import check_batch
from tests.fakes.broker import House, ended, open_house
from tests.gateway.handlers.asking import ask
from tests.gateway.sets import batch, old_set

LATEST, EARLIEST = -1, -2


@pytest.fixture
def house() -> House:
    """One topic; its records are of the times 100, 200 and 300."""
    house = open_house()
    house.topic("orders")
    for timestamp in (100, 200, 300):
        records = batch(1, timestamp=timestamp)
        ended(house.partition().append_batch(records, check_batch(records, 11), 0))
    return house


def list_offsets(house: House, timestamp: int, count: int = 10, topic: str = "orders", index: int = 0) -> Any:
    named = ListOffsetsRequest.ListOffsetsTopic
    asked = named.ListOffsetsPartition(partition_index=index, timestamp=timestamp, max_num_offsets=count)
    answer = ask(house, ListOffsetsRequest(replica_id=-1, topics=[named(name=topic, partitions=[asked])]), 0)
    ((row,),) = [found.partitions for found in answer.topics]
    return row


@pytest.mark.parametrize(
    ("timestamp", "count", "expected"),
    [(LATEST, 1, [3]), (LATEST, 10, [3, 0]), (EARLIEST, 1, [0]), (99, 10, [0]), (100, 10, [1, 0]), (250, 1, [2]), (300, 10, [3, 0]),
     ((1 << 63) - 1, 1, [3])],
)  # fmt: skip
def test_offsets_come_in_an_array(house, timestamp, count, expected):
    row = list_offsets(house, timestamp, count)
    assert (row.error_code, list(row.old_style_offsets)) == (0, expected)


def test_records_without_times_count_from_when_they_came(house):
    """What Kafka 0.8 knew of any record: the time of its segment's file."""
    records = old_set(1, magic=0)
    ended(house.partition().append_message_set(records, check_message_set(records, max_decompressed_bytes=1000), 5000))
    assert [list(list_offsets(house, timestamp, 1).old_style_offsets) for timestamp in (4999, 5000)] == [[3], [4]]


@pytest.mark.parametrize(("topic", "index"), [("other", 0), ("orders", 1)])
def test_what_is_not_there_has_no_offsets(house, topic, index):
    row = list_offsets(house, LATEST, topic=topic, index=index)
    assert (row.error_code, list(row.old_style_offsets)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


def metadata(house: House, *topics: str) -> dict[str, int]:
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    answer = ask(house, MetadataRequest(topics=asked), 0)
    return {topic.name: topic.error_code for topic in answer.topics}


def test_an_empty_list_of_topics_means_all(house):
    house.topic("others")
    assert metadata(house) == {"orders": 0, "others": 0}


def test_a_topic_that_is_asked_for_is_made_before_the_answer(house):
    assert metadata(house, "new") == {"new": 0}
    assert house.broker.topics.get("new") is not None
