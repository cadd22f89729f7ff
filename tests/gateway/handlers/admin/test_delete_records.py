from __future__ import annotations

import pytest
from kafka.protocol.admin.topics import DeleteRecordsRequest

from gateway.protocol.errors import ErrorCode
from storage.log import Entry
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import append_entries, call

Topic = DeleteRecordsRequest.DeleteRecordsTopic


@pytest.fixture
def env() -> BrokerEnvironment:
    """A topic `orders` whose partition 0 holds offsets 0-9 in two entries, partition 1 nothing."""
    env = open_environment()
    env.topic("orders", 2)
    append_entries(env.partition(), Entry(0, 4, 1, b"first"), Entry(5, 9, 1, b"second"))
    return env


def delete(
    env: BrokerEnvironment, *wanted: tuple[str, dict[int, int]], version: int = 2
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return low watermark and error code by topic and partition."""
    topics = [
        Topic(
            name=name,
            partitions=[
                Topic.DeleteRecordsPartition(partition_index=index, offset=offset)
                for index, offset in offsets.items()
            ],
        )
        for name, offsets in wanted
    ]
    reply = call(env, DeleteRecordsRequest(topics=topics, timeout_ms=1000), version)
    return {
        (topic.name, row.partition_index): (row.low_watermark, row.error_code)
        for topic in reply.topics
        for row in topic.partitions
    }


@pytest.mark.parametrize("version", range(3))
def test_records_below_offset_are_deleted(env: BrokerEnvironment, version: int) -> None:
    assert delete(env, ("orders", {0: 5}), version=version) == {("orders", 0): (5, 0)}
    log = env.partition().log
    assert (log.start_offset, log.size) == (5, len(b"second"))


def test_minus_one_deletes_all_records(env: BrokerEnvironment) -> None:
    assert delete(env, ("orders", {0: -1, 1: -1})) == {
        ("orders", 0): (10, 0),
        ("orders", 1): (0, 0),
    }
    assert env.partition().log.size == 0


def test_log_start_never_decreases(env: BrokerEnvironment) -> None:
    delete(env, ("orders", {0: 7}))
    assert delete(env, ("orders", {0: 3})) == {("orders", 0): (7, 0)}
    assert env.partition().log.start_offset == 7


# Responses of Kafka 3.9.2.
@pytest.mark.parametrize("offset", [11, -2, 1 << 62])
def test_offset_outside_log_is_out_of_range(env: BrokerEnvironment, offset: int) -> None:
    assert delete(env, ("orders", {0: offset})) == {
        ("orders", 0): (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
    }
    assert env.partition().log.start_offset == 0


def test_missing_partition_is_unknown(env: BrokerEnvironment) -> None:
    assert delete(env, ("orders", {99: 0}), ("never", {0: 0})) == {
        ("orders", 99): (-1, 3),
        ("never", 0): (-1, 3),
    }


def test_compacted_topic_keeps_records(env: BrokerEnvironment) -> None:
    env.topic("table", cleanup_policy="compact")
    assert delete(env, ("table", {0: -1})) == {("table", 0): (-1, ErrorCode.POLICY_VIOLATION)}


def test_internal_topic_keeps_records(env: BrokerEnvironment) -> None:
    env.broker.topics.add_internal("__consumer_offsets")
    assert delete(env, ("__consumer_offsets", {0: -1})) == {
        ("__consumer_offsets", 0): (-1, ErrorCode.INVALID_TOPIC_EXCEPTION)
    }


def test_last_offset_of_duplicate_partition_applies(env: BrokerEnvironment) -> None:
    # Kafka 3.9.2 answers a request for offsets 0 and 7 of one partition with 7.
    assert delete(env, ("orders", {0: 8}), ("orders", {0: 4})) == {("orders", 0): (4, 0)}


def test_full_disk_deletes_nothing(env: BrokerEnvironment) -> None:
    env.partition()
    env.store.refuse_writes = True
    assert delete(env, ("orders", {0: 5})) == {("orders", 0): (-1, ErrorCode.KAFKA_STORAGE_ERROR)}
    assert env.partition().log.start_offset == 0
