"""DescribeQuorum, UpdateFeatures, UnregisterBroker, AddRaftVoter and RemoveRaftVoter.

DescribeQuorum (KIP-595)
v0-1: topics only.
v2: nodes and error messages (KIP-853).

UpdateFeatures (KIP-584)
v0: allow_downgrade.
v1: validate_only.
v2: one error for all features.

UnregisterBroker (v0), AddRaftVoter (v0-1) and RemoveRaftVoter (v0): see the functions.

A gateway that is alone has no metadata log. A cluster has one, which the controller writes and all
nodes replay. It has no features to finalize, and no broker that is registered but not alive.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafka.protocol.admin.cluster import DescribeQuorumResponse, UpdateFeaturesResponse

from gateway.cluster.view import NodeReplay
from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.admin_messages import (
    AddRaftVoterResponse,
    RemoveRaftVoterResponse,
    UnregisterBrokerResponse,
)
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation

NO_QUORUM = "This cluster has no metadata quorum: its metadata is in its store."

METADATA_TOPIC = "__cluster_metadata"

_NO_DIRECTORY = UUID(int=0)

_Topic = DescribeQuorumResponse.TopicData
_Partition = _Topic.PartitionData

_Feature = UpdateFeaturesResponse.UpdatableFeatureResult

FIRST_VERSION_WITHOUT_RESULTS = 2


async def _refuse_description(request: Any, failure: KafkaError, caller: Caller) -> Any:
    return DescribeQuorumResponse(
        error_code=failure.code, error_message=failure.message, topics=[], nodes=[]
    )


@serves(ApiKey.DESCRIBE_QUORUM, 0, 2, at_controller=_refuse_description)
async def describe_quorum(request: Any, caller: Caller) -> Any:
    """Describe how far the nodes have replayed the metadata log (LeaderState of Kafka).

    The controller is the only voter: what it writes is stored by Pulsar and needs no other node. A
    gateway without a cluster returns UNSUPPORTED_VERSION, which clients report for a cluster
    without KRaft.
    """
    try:
        caller.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as refusal:
        return await _refuse_description(request, refusal, caller)
    node = caller.broker.membership.node
    if node is None:
        unsupported = KafkaError(ErrorCode.UNSUPPORTED_VERSION, NO_QUORUM)
        return await _refuse_description(request, unsupported, caller)
    asked = [
        (topic.topic_name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    ]
    if asked != [(METADATA_TOPIC, 0)]:
        return await _partition_errors(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, caller)
    replay = node.describe_replay()
    if replay is None:
        return await _partition_errors(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, caller)
    leader, *observers = replay.nodes
    partition = _Partition(
        partition_index=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        leader_id=leader.node_id,
        leader_epoch=replay.epoch,
        high_watermark=leader.revision,
        current_voters=[_replica(leader, caller)],
        observers=[_replica(one, caller) for one in observers],
    )
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[_Topic(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=_voter_nodes(leader.node_id, caller),
    )


def _replica(node: NodeReplay, caller: Caller) -> Any:
    return _Partition.ReplicaState(
        replica_id=node.node_id,
        replica_directory_id=_NO_DIRECTORY,
        log_end_offset=node.revision,
        last_fetch_timestamp=_timestamp(node.heard, caller),
        last_caught_up_timestamp=_timestamp(node.caught_up, caller),
    )


def _timestamp(seconds: float | None, caller: Caller) -> int:
    """Milliseconds since 1970 of a time on the broker's clock, -1 if it is unknown."""
    if seconds is None:
        return -1
    return caller.broker.now() - round((caller.broker.clock.seconds() - seconds) * 1000)


def _voter_nodes(node_id: int, caller: Caller) -> list[Any]:
    """The voter with its address on the caller's listener; other listeners may be internal."""
    node = caller.broker.cluster.find_node(node_id, caller.listener)
    if node is None:
        return []
    listener = DescribeQuorumResponse.Node.Listener(
        name=caller.listener, host=node.host, port=node.port
    )
    return [DescribeQuorumResponse.Node(node_id=node_id, listeners=[listener])]


async def _partition_errors(request: Any, code: ErrorCode, caller: Caller) -> Any:
    """The reply with this error for each requested partition."""
    slices = TimeSlices(caller.broker.clock)
    topics = []
    for topic in request.topics:
        rows = []
        for one in topic.partitions:
            rows.append(
                _Partition(
                    partition_index=one.partition_index,
                    error_code=code,
                    error_message=None,
                    leader_id=-1,
                    leader_epoch=-1,
                    high_watermark=-1,
                    current_voters=[],
                    observers=[],
                )
            )
            await slices.take()
        topics.append(_Topic(topic_name=topic.topic_name, partitions=rows))
    return await encode_if_large(
        DescribeQuorumResponse(error_code=ErrorCode.NONE, topics=topics, nodes=[]), slices, caller
    )


@serves(ApiKey.UPDATE_FEATURES, 0, 2)
async def update_features(request: Any, caller: Caller) -> Any:
    """Reject each feature as unknown (FeatureControlManager)."""
    try:
        caller.require_cluster(AclOperation.ALTER)
    except KafkaError as refusal:
        return UpdateFeaturesResponse(
            error_code=refusal.code, error_message=refusal.message, results=[]
        )
    if caller.api_version >= FIRST_VERSION_WITHOUT_RESULTS:
        if not request.feature_updates:
            return UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None)
        why = _unknown_feature_message(request.feature_updates[0], caller)
        message = (
            f"The update failed for all features since the following feature had an error: {why}"
        )
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=message
        )
    slices = TimeSlices(caller.broker.clock)
    rows = []
    for update in request.feature_updates:
        why = _unknown_feature_message(update, caller)
        rows.append(
            _Feature(
                feature=update.feature,
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message=why,
            )
        )
        await slices.take()
    return await encode_if_large(
        UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=rows),
        slices,
        caller,
    )


def _unknown_feature_message(update: Any, caller: Caller) -> str:
    node_id = caller.broker.cluster.controller_id
    return (
        f"Invalid update version {update.max_version_level} for feature {update.feature[:100]}. "
        f"Local controller {node_id} does not support this feature."
    )


@serves(ApiKey.UNREGISTER_BROKER, 0, 0)
async def unregister_broker(request: Any, caller: Caller) -> Any:
    """Reject the request: a gateway leaves the cluster when it stops."""
    try:
        caller.require_cluster(AclOperation.ALTER)
    except KafkaError as refusal:
        return UnregisterBrokerResponse(error_code=refusal.code, error_message=refusal.message)
    if request.broker_id in {node.node_id for node in caller.broker.cluster.nodes(caller.listener)}:
        message = f"Broker ID {request.broker_id} is alive: stop it to remove it from the cluster"
        return UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    message = f"Broker ID {request.broker_id} is not currently registered"
    return UnregisterBrokerResponse(
        error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=message
    )


@serves(ApiKey.ADD_RAFT_VOTER, 0, 1)
async def add_raft_voter(request: Any, caller: Caller) -> Any:
    """Reject the request like a KRaft cluster with static voters (KIP-853)."""
    try:
        caller.require_cluster(AclOperation.ALTER)
    except KafkaError as refusal:
        return AddRaftVoterResponse(error_code=refusal.code, error_message=refusal.message)
    message = "Cluster doesn't support adding voter because the kraft.version feature is 0"
    return AddRaftVoterResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=message)


@serves(ApiKey.REMOVE_RAFT_VOTER, 0, 0)
async def remove_raft_voter(request: Any, caller: Caller) -> Any:
    """Reject the request like a KRaft cluster with static voters (KIP-853)."""
    try:
        caller.require_cluster(AclOperation.ALTER)
    except KafkaError as refusal:
        return RemoveRaftVoterResponse(error_code=refusal.code, error_message=refusal.message)
    message = "Cluster doesn't support removing voter because the kraft.version feature is 0"
    return RemoveRaftVoterResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=message)
