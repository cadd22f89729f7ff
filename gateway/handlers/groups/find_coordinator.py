"""FindCoordinator. Java consumers of 0.9 to 0.10.2 send it before every poll, even without a group.

Transactional ids get a coordinator although transactions are not supported: InitProducerId refuses
them. Sarama retries all errors of FindCoordinator but treats that of InitProducerId as fatal.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata.find_coordinator import FindCoordinatorResponse

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
    resource = AclResource.GROUP if request.key_type == GROUP else AclResource.TRANSACTIONAL_ID
    node = caller.broker.cluster.nodes(caller.listener)[0]
    code, message, node_id, host, port = ErrorCode.NONE, None, node.node_id, node.host, node.port
    if request.key_type not in (GROUP, TRANSACTION):
        code, message, node_id, host, port = ErrorCode.INVALID_REQUEST, _NO_COORDINATOR, -1, "", -1
    elif caller.api_version < FIRST_WITH_MANY_KEYS:
        try:
            caller.require(AclOperation.DESCRIBE, resource, request.key)
        except KafkaError as refusal:
            code, message, node_id, host, port = refusal.code, refusal.message, -1, "", -1
    if caller.api_version < FIRST_WITH_MANY_KEYS:
        return FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=node_id, host=host, port=port
        )
    rows, slices = [], TimeSlices(caller.broker.clock)
    for key in keys:
        await slices.take()
        try:
            if code is ErrorCode.NONE:
                caller.require(AclOperation.DESCRIBE, resource, key)
        except KafkaError as refusal:
            rows.append(_refused(key, refusal))
            continue
        rows.append(
            FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=node_id,
                host=host,
                port=port,
                error_code=code,
                error_message=message,
            )
        )
    return await encode_if_large(FindCoordinatorResponse(coordinators=rows), slices, caller)


def _refused(key: str, refusal: KafkaError) -> Any:
    return FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=-1,
        host="",
        port=-1,
        error_code=refusal.code,
        error_message=refusal.message,
    )
