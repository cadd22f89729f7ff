from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.cluster import AlterReplicaLogDirsRequest
from kafka.protocol.admin.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

from storage.log import VolumeUsage
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call

# Codes and messages are those of Kafka 3.9.2 (tests/peers/tools/test_admin_clients.py).
UNKNOWN, LOG_DIR_NOT_FOUND, INVALID_ASSIGNMENT, INVALID_REQUEST, NOT_NEEDED, NO_REASSIGNMENT = (
    3,
    57,
    39,
    42,
    84,
    85,
)


@pytest.fixture
def env() -> BrokerEnvironment:
    """A gateway with node id 1, which leads the two partitions of `orders`."""
    env = open_environment(node_id=1)
    env.topic("orders", 2)
    return env


def elect(
    env: BrokerEnvironment, asked: dict[str, list[int]] | None, version: int = 2, kind: int = 0
) -> Any:
    topic = ElectLeadersRequest.TopicPartitions
    topics = (
        None
        if asked is None
        else [topic(topic=name, partitions=indexes) for name, indexes in asked.items()]
    )
    return call(
        env,
        ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=1000),
        version,
    )


@pytest.mark.parametrize("version", range(3))
def test_every_leader_is_the_preferred_one(env: BrokerEnvironment, version: int) -> None:
    (orders, never) = elect(env, {"orders": [0, 7], "never": [0]}, version).replica_election_results
    assert [
        (row.partition_id, row.error_code, row.error_message) for row in orders.partition_result
    ] == [
        (0, NOT_NEEDED, "Leader election not needed for topic partition."),
        (7, UNKNOWN, "No such partition as orders-7"),
    ]
    assert [(row.error_code, row.error_message) for row in never.partition_result] == [
        (UNKNOWN, "No such topic as never")
    ]


def test_election_of_all_partitions_returns_none(env: BrokerEnvironment) -> None:
    reply = elect(env, None)
    assert (reply.error_code, list(reply.replica_election_results)) == (0, [])


@pytest.mark.parametrize(("kind", "code"), [(0, 0), (1, 0), (2, INVALID_REQUEST)])
def test_unknown_election_type_is_rejected(env: BrokerEnvironment, kind: int, code: int) -> None:
    assert elect(env, {"orders": [0]}, kind=kind).error_code == code


def reassign(
    env: BrokerEnvironment, name: str, index: int, replicas: list[int] | None, version: int = 0
) -> Any:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=1000, topics=[topic(name=name, partitions=[partition])]
    )
    reply = call(env, request, version)
    assert reply.error_code == 0
    (row,) = reply.responses[0].partitions
    assert (reply.responses[0].name, row.partition_index) == (name, index)
    return row.error_code, row.error_message


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("replicas", "outcome"),
    [
        ([1], (0, None)),
        (
            [9],
            (
                INVALID_ASSIGNMENT,
                (
                    "The manual partition assignment includes broker 9, but no such broker is "
                    "registered."
                ),
            ),
        ),
        (
            [1, 1],
            (
                INVALID_ASSIGNMENT,
                "The manual partition assignment includes the broker 1 more than once.",
            ),
        ),
        (
            [],
            (INVALID_ASSIGNMENT, "The manual partition assignment includes an empty replica list."),
        ),
        (None, (NO_REASSIGNMENT, "No partition reassignment is in progress.")),
    ],
)
def test_partition_can_only_be_assigned_to_its_leader(
    env: BrokerEnvironment,
    version: int,
    replicas: list[int] | None,
    outcome: tuple[int, str | None],
) -> None:
    assert reassign(env, "orders", 0, replicas, version) == outcome


def test_missing_partitions_cannot_be_reassigned(env: BrokerEnvironment) -> None:
    assert reassign(env, "never", 0, [1]) == (UNKNOWN, "Unable to find a topic named never.")
    assert reassign(env, "orders", 2, [1]) == (UNKNOWN, "Unable to find partition orders:2.")


@pytest.mark.parametrize("asked", [None, {"orders": [0], "never": [0]}])
def test_no_reassignment_is_in_progress(
    env: BrokerEnvironment, asked: dict[str, list[int]] | None
) -> None:
    topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    topics = (
        None
        if asked is None
        else [topic(name=name, partition_indexes=indexes) for name, indexes in asked.items()]
    )
    reply = call(env, ListPartitionReassignmentsRequest(timeout_ms=1000, topics=topics), 0)
    assert (reply.error_code, list(reply.topics)) == (0, [])


@pytest.mark.parametrize("version", range(3))
def test_partition_can_only_be_moved_to_its_directory(
    env: BrokerEnvironment, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env.store, "usage", lambda: [VolumeUsage("/data", 1000, 400)])
    directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topic = directory.AlterReplicaLogDirTopic
    here = directory(
        path="/data",
        topics=[topic(name="orders", partitions=[0, 7]), topic(name="never", partitions=[0])],
    )
    elsewhere = directory(path="/other", topics=[topic(name="orders", partitions=[1])])
    reply = call(env, AlterReplicaLogDirsRequest(dirs=[here, elsewhere]), version)
    rows = {
        (result.topic_name, row.partition_index): row.error_code
        for result in reply.results
        for row in result.partitions
    }
    assert rows == {
        ("orders", 0): 0,
        ("orders", 7): UNKNOWN,
        ("never", 0): UNKNOWN,
        ("orders", 1): LOG_DIR_NOT_FOUND,
    }
