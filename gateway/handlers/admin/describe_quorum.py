"""DescribeQuorum, UpdateFeatures, UnregisterBroker, AddRaftVoter and RemoveRaftVoter.

DescribeQuorum (KIP-595)
v0-1: topics only.
v2: nodes and error messages (KIP-853).

UpdateFeatures (KIP-584)
v0: allow_downgrade.
v1: validate_only.
v2: one error for all features.

UnregisterBroker (v0), AddRaftVoter (v0-1) and RemoveRaftVoter (v0): see the functions.

A cluster of gateways has no controller quorum, no features to finalize, and no broker that is
registered but not alive.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin.cluster import DescribeQuorumResponse, UpdateFeaturesResponse

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

_Feature = UpdateFeaturesResponse.UpdatableFeatureResult

FIRST_VERSION_WITHOUT_RESULTS = 2


@serves(ApiKey.DESCRIBE_QUORUM, 0, 2)
async def describe_quorum(request: Any, caller: Caller) -> Any:
    """Return UNSUPPORTED_VERSION, which clients report for a cluster without KRaft."""
    try:
        caller.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as refusal:
        return DescribeQuorumResponse(
            error_code=refusal.code, error_message=refusal.message, topics=[], nodes=[]
        )
    return DescribeQuorumResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_QUORUM, topics=[], nodes=[]
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
