"""FindCoordinator. Java consumers of 0.9 to 0.10.2 send it before every poll, even without a group.

Transactional ids get a coordinator although transactions are not supported: InitProducerId refuses
them. Sarama retries all errors of FindCoordinator but treats that of InitProducerId as fatal.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata.find_coordinator import FindCoordinatorResponse

from gateway.cluster.view import Node
from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource
from gateway.topics.topic_names import CONSUMER_OFFSETS

GROUP, TRANSACTION = 0, 1

FIRST_WITH_MANY_KEYS = 4
_NO_COORDINATOR = "unsupported key type: only groups and transactional ids have a coordinator"


@serves(ApiKey.FIND_COORDINATOR, 0, 6)
async def find_coordinator(request: Any, caller: Caller) -> Any:
    """Return the coordinator of each key.

    v1 adds transactional ids, v4 batches keys, v6 adds share groups.
    """
    keys = [request.key] if caller.api_version < FIRST_WITH_MANY_KEYS else request.coordinator_keys
    if request.key_type == GROUP and len(keys) == 1:
        caller.traffic.group_named(keys[0])
    if request.key_type == GROUP:
        caller.broker.topics.add_internal(CONSUMER_OFFSETS)
    slices = TimeSlices(caller.broker.clock)
    if caller.api_version < FIRST_WITH_MANY_KEYS:
        try:
            node = _coordinator(request.key_type, request.key, caller)
        except KafkaError as refusal:
            return FindCoordinatorResponse(
                error_code=refusal.code,
                error_message=refusal.message,
                node_id=-1,
                host="",
                port=-1,
            )
        return FindCoordinatorResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            node_id=node.node_id,
            host=node.host,
            port=node.port,
        )
    rows = []
    for key in keys:
        await slices.take()
        try:
            node = _coordinator(request.key_type, key, caller)
        except KafkaError as refusal:
            rows.append(_refused(key, refusal))
            continue
        rows.append(
            FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=node.node_id,
                host=node.host,
                port=node.port,
                error_code=ErrorCode.NONE,
                error_message=None,
            )
        )
    return await encode_if_large(FindCoordinatorResponse(coordinators=rows), slices, caller)


def _coordinator(key_type: int, key: str, caller: Caller) -> Node:
    """Raises KafkaError."""
    if key_type not in (GROUP, TRANSACTION):
        raise KafkaError(ErrorCode.INVALID_REQUEST, _NO_COORDINATOR)
    resource = AclResource.GROUP if key_type == GROUP else AclResource.TRANSACTIONAL_ID
    caller.require(AclOperation.DESCRIBE, resource, key)
    cluster = caller.broker.cluster
    node = cluster.find_node(cluster.coordinator_of(key), caller.listener)
    if node is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return node


def _refused(key: str, refusal: KafkaError) -> Any:
    return FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=-1,
        host="",
        port=-1,
        error_code=refusal.code,
        error_message=refusal.message,
    )
