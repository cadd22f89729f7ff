from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeLogDirsRequest
from kafka.protocol.admin.transactions import DescribeProducersRequest

from gateway.partitions.record_batch import check_batch
from storage.log import Entry, VolumeUsage
from tests.fakes.broker import NOW, BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.handler_calls import append_entries, call
from tests.records.record_sets import batch


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


@pytest.mark.parametrize("version", range(3))
def test_cluster_consists_of_live_gateways(version: int) -> None:
    reply = call(
        open_environment(node_id=5),
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        version,
    )
    assert (reply.error_code, reply.cluster_id, reply.controller_id) == (
        0,
        "AAAAAAAAAAAAAAAAAAAAAA",
        5,
    )
    assert [(node.broker_id, node.host, node.port, node.rack) for node in reply.brokers] == [
        (5, "127.0.0.1", 9092, None)
    ]
    assert reply.authorized_operations is None


def test_authorized_operations_are_returned_on_request(env: BrokerEnvironment) -> None:
    reply = call(env, DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    # As in Kafka 3.9.2 without an authorizer: create, alter, describe, cluster action, describe and
    # alter configs, idempotent write.
    assert set(reply.authorized_operations) == {5, 7, 8, 9, 10, 11, 12}


# Codes and messages of Kafka 3.9.2.
@pytest.mark.parametrize(
    ("endpoint", "code", "message"),
    [
        (
            2,
            114,
            (
                "The request was sent to an endpoint of type BROKER, but we wanted an "
                "endpoint of type CONTROLLER"
            ),
        ),
        (7, 115, "Unsupported endpoint type 7"),
    ],
)
def test_other_endpoint_types_are_rejected(
    env: BrokerEnvironment, endpoint: int, code: int, message: str
) -> None:
    reply = call(
        env,
        DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=endpoint),
        1,
    )
    assert (reply.error_code, reply.error_message, list(reply.brokers)) == (code, message, [])


def log_dirs(env: BrokerEnvironment, wanted: dict[str, list[int]] | None, version: int = 4) -> Any:
    topic = DescribeLogDirsRequest.DescribableLogDirTopic
    topics = (
        None
        if wanted is None
        else [topic(topic=name, partitions=indexes) for name, indexes in wanted.items()]
    )
    return call(env, DescribeLogDirsRequest(topics=topics), version)


def sizes(reply: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, row.partition_index): row.partition_size
        for result in reply.results
        for topic in result.topics
        for row in topic.partitions
    }


def fill(env: BrokerEnvironment, name: str, index: int, size: int) -> None:
    append_entries(env.partition(name, index), Entry(0, 0, 1, bytes(size)))


@pytest.mark.parametrize("version", range(6))
def test_every_version_returns_partition_sizes(env: BrokerEnvironment, version: int) -> None:
    env.topic("orders", 3)
    fill(env, "orders", 1, 500)
    reply = log_dirs(env, {"orders": [0, 1]}, version)
    assert sizes(reply) == {("orders", 0): 0, ("orders", 1): 500}
    assert [(result.error_code, result.log_dir) for result in reply.results] == [(0, "memory")]


def test_null_topics_mean_all_partitions_and_empty_list_none(env: BrokerEnvironment) -> None:
    env.topic("orders", 2)
    env.topic("bills")
    assert set(sizes(log_dirs(env, None))) == {("orders", 0), ("orders", 1), ("bills", 0)}
    assert sizes(log_dirs(env, {})) == {}


def test_missing_partitions_are_omitted(env: BrokerEnvironment) -> None:
    env.topic("orders")
    assert sizes(log_dirs(env, {"orders": [0, 5, -1], "never": [0]})) == {("orders", 0): 0}


def test_duplicate_partition_is_returned_once(env: BrokerEnvironment) -> None:
    env.topic("orders")
    (topic,) = log_dirs(env, {"orders": [0, 0]}).results[0].topics
    assert [row.partition_index for row in topic.partitions] == [0]


def test_volume_size_is_returned_from_v4(
    env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env.store, "usage", lambda: [VolumeUsage("/data", 1000, 400)])
    (result,) = log_dirs(env, {}).results
    assert (result.log_dir, result.total_bytes, result.usable_bytes) == ("/data", 1000, 400)


def test_partition_size_does_not_open_partition(env: BrokerEnvironment) -> None:
    env.topic("orders")
    log_dirs(env, None)
    assert env.broker.topics.get_open_partition("orders", 0) is None


def producers(env: BrokerEnvironment, wanted: dict[str, list[int]]) -> dict[tuple[str, int], Any]:
    topics = [
        DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
        for name, indexes in wanted.items()
    ]
    reply = call(env, DescribeProducersRequest(topics=topics), 0)
    return {
        (topic.name, row.partition_index): row for topic in reply.topics for row in topic.partitions
    }


def test_producers_of_partition_are_returned(env: BrokerEnvironment) -> None:
    env.topic("orders", 2)
    for sequence in (0, 3):
        records = batch(3, producer=(77, 4, sequence))
        ended(env.partition().append_batch(records, check_batch(records, 11), NOW + sequence))
    rows = producers(env, {"orders": [0, 1]})
    (row,) = rows["orders", 0].active_producers
    assert (row.producer_id, row.producer_epoch, row.last_sequence, row.last_timestamp) == (
        77,
        4,
        5,
        NOW + 3,
    )
    assert (row.coordinator_epoch, row.current_txn_start_offset) == (-1, -1)
    assert list(rows["orders", 1].active_producers) == []


def test_producers_of_missing_partition_are_an_error(env: BrokerEnvironment) -> None:
    env.topic("orders")
    rows = producers(env, {"orders": [0, 3], "never": [0], "x y": [1]})
    assert {key: row.error_code for key, row in rows.items()} == {
        ("orders", 0): 0,
        ("orders", 3): 3,
        ("never", 0): 3,
        ("x y", 1): 17,
    }


def test_internal_topic_has_no_producers(env: BrokerEnvironment) -> None:
    env.broker.topics.add_internal("__consumer_offsets")
    rows = producers(env, {"__consumer_offsets": [0, 50]})
    assert {key: row.error_code for key, row in rows.items()} == {
        ("__consumer_offsets", 0): 0,
        ("__consumer_offsets", 50): 29,
    }


def test_size_that_needs_opening_the_log_is_unknown(
    env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.topic("orders", 2)
    fill(env, "orders", 1, 500)
    monkeypatch.setattr(type(env.store), "retains_by_itself", True)
    asked_before = env.store.logs_asked
    assert sizes(log_dirs(env, None)) == {("orders", 0): -1, ("orders", 1): 500}
    assert env.store.logs_asked == asked_before
