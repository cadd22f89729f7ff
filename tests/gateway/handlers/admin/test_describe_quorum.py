from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin.cluster import DescribeQuorumRequest, UpdateFeaturesRequest

from gateway.protocol.wire.admin_messages import (
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
)
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call

UNSUPPORTED_VERSION, INVALID_REQUEST, INVALID_UPDATE, NOT_REGISTERED = 35, 42, 95, 102


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment(node_id=1)


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_is_unsupported(env: BrokerEnvironment, version: int) -> None:
    topic = DescribeQuorumRequest.TopicData
    asked = topic(
        topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)]
    )
    reply = call(env, DescribeQuorumRequest(topics=[asked]), version)
    assert (reply.error_code, list(reply.topics)) == (UNSUPPORTED_VERSION, [])


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
