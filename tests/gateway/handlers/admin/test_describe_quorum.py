from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin.cluster import DescribeQuorumRequest, UpdateFeaturesRequest

from gateway.cluster.cluster_node import LogReplay
from gateway.cluster.view import UNKNOWN, NodeReplay
from gateway.protocol.wire.admin_messages import (
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
)
from tests.fakes.broker import NOW, BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call

UNSUPPORTED_VERSION, INVALID_REQUEST, INVALID_UPDATE, NOT_REGISTERED = 35, 42, 95, 102
UNKNOWN_TOPIC, NOT_LEADER, CLUSTER_AUTHORIZATION_FAILED = 3, 6, 31

#: Of node 1 at 60 s: node 2 has sent a heartbeat at 59.9 s, node 3 none to this controller.
REPLAY = LogReplay(
    4, (NodeReplay(1, 900, 900, 60.0, 60.0), NodeReplay(2, 898, 900, 59.9, 59.6), NodeReplay(3))
)


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment(node_id=1)


def describe(env: BrokerEnvironment, version: int, *wanted: tuple[str, list[int]]) -> Any:
    data = DescribeQuorumRequest.TopicData
    topics = [
        data(
            topic_name=name,
            partitions=[data.PartitionData(partition_index=index) for index in indexes],
        )
        for name, indexes in wanted or [("__cluster_metadata", [0])]
    ]
    return call(env, DescribeQuorumRequest(topics=topics), version)


def join(env: BrokerEnvironment, replay: LogReplay | None) -> None:
    """Make it a node of a cluster, at 60 s."""
    node: Any = SimpleNamespace(describe_replay=lambda: replay)
    env.broker.membership.node = node
    env.clock.advance(60)


@pytest.mark.parametrize("version", range(3))
def test_quorum_of_a_gateway_that_is_alone_is_unsupported(
    env: BrokerEnvironment, version: int
) -> None:
    reply = describe(env, version)
    assert (reply.error_code, list(reply.topics)) == (UNSUPPORTED_VERSION, [])


@pytest.mark.parametrize("version", range(3))
def test_controller_describes_the_replay_of_its_log(env: BrokerEnvironment, version: int) -> None:
    join(env, REPLAY)
    reply = describe(env, version)
    ((topic, (partition,)),) = ((one.topic_name, one.partitions) for one in reply.topics)
    assert (reply.error_code, topic, partition.error_code) == (0, "__cluster_metadata", 0)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 4, 900)
    found = [
        [(row.replica_id, row.log_end_offset, *times(row, version)) for row in rows]
        for rows in (partition.current_voters, partition.observers)
    ]
    expected = [
        [(1, 900, NOW + 60_000, NOW + 60_000)],
        [(2, 898, NOW + 59_900, NOW + 59_600), (3, UNKNOWN, -1, -1)],
    ]
    assert found == [[row[: 4 if version else 2] for row in rows] for rows in expected]
    if version == 2:
        # The controller's address on the client's listener.
        (node,) = reply.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.name, listener.host) == (1, "PLAINTEXT", "127.0.0.1")


def times(row: Any, version: int) -> tuple[int, ...]:
    """Version 1 adds the times."""
    return (row.last_fetch_timestamp, row.last_caught_up_timestamp) if version else ()


@pytest.mark.parametrize(
    "wanted",
    [
        [("orders", [0])],
        [("__cluster_metadata", [1])],
        [("__cluster_metadata", [0, 1])],
        [("__cluster_metadata", [0]), ("orders", [2])],
    ],
)
def test_only_the_metadata_log_can_be_described(
    env: BrokerEnvironment, wanted: list[tuple[str, list[int]]]
) -> None:
    join(env, REPLAY)
    reply = describe(env, 2, *wanted)
    assert reply.error_code == 0
    assert [
        (topic.topic_name, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in reply.topics
    ] == [(name, [(index, UNKNOWN_TOPIC) for index in indexes]) for name, indexes in wanted]


def test_gateway_that_is_not_the_controller_any_more_does_not_describe(
    env: BrokerEnvironment,
) -> None:
    join(env, None)
    (topic,) = describe(env, 2).topics
    assert [one.error_code for one in topic.partitions] == [NOT_LEADER]


def test_describing_the_quorum_requires_describe_on_the_cluster() -> None:
    env = open_environment(node_id=1, authorizer="acls")
    join(env, REPLAY)
    reply = describe(env, 2)
    assert (reply.error_code, list(reply.topics)) == (CLUSTER_AUTHORIZATION_FAILED, [])


def update(env: BrokerEnvironment, version: int, *names: str) -> Any:
    feature = UpdateFeaturesRequest.FeatureUpdateKey
    updates = [feature(feature=name, max_version_level=1, upgrade_type=1) for name in names]
    return call(env, UpdateFeaturesRequest(timeout_ms=1000, feature_updates=updates), version)


# Responses of Kafka 3.9.2 (v1) and 4.3.1 (v2).
UNKNOWN_FEATURE = (
    "Invalid update version 1 for feature a. Local controller 1 does not support this feature."
)


@pytest.mark.parametrize("version", range(2))
def test_unknown_feature_is_rejected_by_name(env: BrokerEnvironment, version: int) -> None:
    reply = update(env, version, "a", "b")
    assert reply.error_code == 0
    assert [(row.feature, row.error_code) for row in reply.results] == [
        ("a", INVALID_UPDATE),
        ("b", INVALID_UPDATE),
    ]
    assert reply.results[0].error_message == UNKNOWN_FEATURE


def test_unknown_feature_rejects_whole_v2_request(env: BrokerEnvironment) -> None:
    reply = update(env, 2, "a", "b")
    message = (
        "The update failed for all features since the following feature had an "
        f"error: {UNKNOWN_FEATURE}"
    )
    assert (reply.error_code, reply.error_message) == (INVALID_UPDATE, message)
    assert update(env, 2).error_code == 0


@pytest.mark.parametrize(("broker_id", "code"), [(77, NOT_REGISTERED), (1, INVALID_REQUEST)])
def test_brokers_cannot_be_unregistered(env: BrokerEnvironment, broker_id: int, code: int) -> None:
    assert call(env, UnregisterBrokerRequest(broker_id=broker_id), 0).error_code == code


@pytest.mark.parametrize("version", range(2))
def test_raft_voters_are_fixed(env: BrokerEnvironment, version: int) -> None:
    listener = AddRaftVoterRequest.Listener(name="CONTROLLER", host="localhost", port=65535)
    voter: dict[str, Any] = {"cluster_id": None, "voter_id": 7, "voter_directory_id": UUID(int=5)}
    assert (
        call(
            env, AddRaftVoterRequest(timeout_ms=1, listeners=[listener], **voter), version
        ).error_code
        == UNSUPPORTED_VERSION
    )
    assert call(env, RemoveRaftVoterRequest(**voter), 0).error_code == UNSUPPORTED_VERSION
