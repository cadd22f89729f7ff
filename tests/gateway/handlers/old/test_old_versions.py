"""Handlers of old request versions."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from compat.message_sets import check_message_set
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import NOW, BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.handler_calls import call
from tests.records.record_sets import batch, old_set

LATEST, EARLIEST = -1, -2


@pytest.fixture
def env() -> BrokerEnvironment:
    """One topic with records at timestamps 100, 200 and 300."""
    env = open_environment()
    env.topic("orders")
    for timestamp in (100, 200, 300):
        records = batch(1, timestamp=timestamp)
        ended(env.partition().append_batch(records, check_batch(records, 11), 0))
    return env


def list_offsets(
    env: BrokerEnvironment, timestamp: int, count: int = 10, topic: str = "orders", index: int = 0
) -> Any:
    named = ListOffsetsRequest.ListOffsetsTopic
    asked = named.ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, max_num_offsets=count
    )
    answer = call(
        env, ListOffsetsRequest(replica_id=-1, topics=[named(name=topic, partitions=[asked])]), 0
    )
    ((row,),) = [found.partitions for found in answer.topics]
    return row


@pytest.mark.parametrize(
    ("timestamp", "count", "expected"),
    [
        (LATEST, 1, [3]),
        (LATEST, 10, [3, 0]),
        (EARLIEST, 1, [0]),
        (99, 10, [0]),
        (100, 10, [1, 0]),
        (250, 1, [2]),
        (300, 10, [3, 0]),
        ((1 << 63) - 1, 1, [3]),
    ],
)
def test_list_offsets_v0_returns_array(env, timestamp, count, expected):
    row = list_offsets(env, timestamp, count)
    assert (row.error_code, list(row.old_style_offsets)) == (0, expected)


def test_records_without_timestamps_use_append_time(env):
    """As in Kafka 0.8, which only had the modification time of a segment file."""
    records = old_set(1, magic=0)
    ended(
        env.partition().append_message_set(
            records, check_message_set(records, max_decompressed_bytes=1000), 5000
        )
    )
    assert [
        list(list_offsets(env, timestamp, 1).old_style_offsets) for timestamp in (4999, 5000)
    ] == [[3], [4]]


@pytest.mark.parametrize(("topic", "index"), [("other", 0), ("orders", 1)])
def test_missing_partition_has_no_offsets(env, topic, index):
    row = list_offsets(env, LATEST, topic=topic, index=index)
    assert (row.error_code, list(row.old_style_offsets)) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        [],
    )


def metadata(env: BrokerEnvironment, *topics: str) -> dict[str, int]:
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    answer = call(env, MetadataRequest(topics=asked), 0)
    return {topic.name: topic.error_code for topic in answer.topics}


def test_metadata_v0_empty_list_means_all_topics(env):
    env.topic("others")
    assert metadata(env) == {"orders": 0, "others": 0}


def test_metadata_v0_creates_requested_topic(env):
    assert metadata(env, "new") == {"new": 0}
    assert env.broker.topics.get("new") is not None


CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopic


def commit(
    env: BrokerEnvironment,
    version: int,
    *,
    topic: str = "orders",
    timestamp: int = -1,
    retention: int = -1,
) -> int:
    """The error code of a commit of offset 2."""
    row = CommitTopic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=2, commit_timestamp=timestamp, committed_metadata="mine"
    )
    request = OffsetCommitRequest(
        group_id="g",
        retention_time_ms=retention,
        topics=[CommitTopic(name=topic, partitions=[row])],
    )
    ((answer,),) = [found.partitions for found in call(env, request, version).topics]
    return answer.error_code


def offset(
    env: BrokerEnvironment, version: int, topic: str = "orders", index: int = 0, group: str = "g"
) -> tuple[int, str, int]:
    request = OffsetFetchRequest(
        group_id=group, topics=[FetchTopic(name=topic, partition_indexes=[index])]
    )
    ((row,),) = [found.partitions for found in call(env, request, version).topics]
    return row.committed_offset, row.metadata, row.error_code


@pytest.mark.parametrize("version", range(5))
def test_old_commits_are_stored_like_others(env, version):
    assert commit(env, version) == 0
    assert env.broker.offsets.get("g", "orders", 0) == CommittedOffset(2, -1, "mine", NOW, None)
    assert [offset(env, fetching) for fetching in (0, 1, 7)] == [(2, "mine", 0)] * 3


@pytest.mark.parametrize("version", range(5))
def test_old_commit_to_missing_partition_is_refused(env, version):
    assert commit(env, version, topic="other") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_commit_v1_has_timestamp(env):
    commit(env, 1, timestamp=1234)
    assert env.broker.offsets.get("g", "orders", 0) == CommittedOffset(2, -1, "mine", 1234, None)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_commit_v2_to_v4_has_retention_time(env, version):
    commit(env, version, retention=60_000)
    assert env.broker.offsets.get("g", "orders", 0) == CommittedOffset(
        2, -1, "mine", NOW, NOW + 60_000
    )


@pytest.mark.parametrize(
    ("topic", "index", "group"), [("orders", 0, "unknown"), ("orders", 1, "g"), ("other", 0, "g")]
)
def test_offset_fetch_v0_without_offset_is_unknown_partition(env, topic, index, group):
    commit(env, 0)
    assert offset(env, 0, topic, index, group) == (-1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert offset(env, 1, topic, index, group) == (-1, "", 0)
