"""ConsumerGroupHeartbeat (KIP-848)."""

from __future__ import annotations

from typing import Any

from gateway.groups.consumer.assignors import ASSIGNORS
from gateway.groups.consumer.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    HeartbeatResult,
    MemberHeartbeat,
    Partitions,
)
from gateway.handlers.groups.join_group import java_host
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.group_messages import ConsumerGroupHeartbeatResponse
from gateway.protocol.wire.messages import topic_id_of, uuid_of
from gateway.security.acls import AclOperation, AclResource
from gateway.topics.tenant_scope import plain_id

_Assignment = ConsumerGroupHeartbeatResponse.Assignment

#: RebalanceTimeoutMs if unchanged.
_UNCHANGED = -1


@serves(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 1)
async def consumer_group_heartbeat(request: Any, caller: Caller) -> Any:
    """Join, keep alive or leave a group; returns the member epoch and a changed assignment.

    Since v1 the client generates its member id (KIP-1082) and may subscribe with a regular
    expression.
    """
    return await heartbeat_reply(request, caller, requires_member_id=True)


async def heartbeat_reply(request: Any, caller: Caller, *, requires_member_id: bool) -> Any:
    """Handle any version. `requires_member_id` is False if a joining member may omit its id."""
    caller.traffic.group_named(request.group_id)
    try:
        caller.require(AclOperation.READ, AclResource.GROUP, request.group_id)
        # From Kafka 4 on.
        for topic in request.subscribed_topic_names or ():
            caller.require_topic(AclOperation.DESCRIBE, topic)
        _check(request, requires_member_id=requires_member_id)
        await caller.broker.confirm_coordinator(request.group_id)
    except KafkaError as failure:
        return _reply(HeartbeatResult(failure.code, failure.message), request.group_id, caller)
    owned = None
    if request.topic_partitions is not None:
        owned = _partitions(request.topic_partitions)
    heartbeat = MemberHeartbeat(
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        None if request.rebalance_timeout_ms == _UNCHANGED else request.rebalance_timeout_ms,
        None
        if request.subscribed_topic_names is None
        else frozenset(request.subscribed_topic_names),
        request.subscribed_topic_regex,
        request.server_assignor,
        owned,
        caller.client_id or "",
        java_host(caller),
    )
    return _reply(
        await caller.broker.groups.consumer_heartbeat(request.group_id, heartbeat),
        request.group_id,
        caller,
    )


def _check(request: Any, *, requires_member_id: bool) -> None:
    """Validate the fields (GroupCoordinatorService, Kafka 4.3).

    Raises KafkaError: INVALID_REQUEST if fields contradict each other, UNSUPPORTED_ASSIGNOR.
    """
    epoch = request.member_epoch
    names = {
        "GroupId": plain_id(request.group_id),
        "InstanceId": request.instance_id,
        "RackId": request.rack_id,
    }
    if requires_member_id or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH:
        names["MemberId"] = request.member_id
    for name, value in names.items():
        if value is not None and not value.strip():
            raise _invalid(f"{name} must not be empty.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == _UNCHANGED:
            raise _invalid("RebalanceTimeoutMs must be provided when joining.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "SubscribedTopicNames or SubscribedTopicRegex must be provided when joining."
            )
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId must be provided to leave temporarily.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not one of {', '.join(ASSIGNORS)}.",
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _partitions(rows: Any) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for row in rows:
        found.setdefault(topic_id_of(row.topic_id), set()).update(row.partitions)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}


def _reply(result: HeartbeatResult, group_id: str, caller: Caller) -> Any:
    settings = caller.broker.group_configs.settings_of(group_id)
    is_accepted = result.code is ErrorCode.NONE
    assignment = None
    if result.assignment is not None:
        row = _Assignment.TopicPartitions
        rows = [
            row(topic_id=uuid_of(topic), partitions=sorted(indexes))
            for topic, indexes in sorted(result.assignment.items())
        ]
        assignment = _Assignment(topic_partitions=rows)
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=result.code,
        error_message=result.message,
        member_id=result.member_id if is_accepted else None,
        member_epoch=result.epoch,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms
        if is_accepted and result.epoch >= JOIN_EPOCH
        else 0,
        assignment=assignment,
    )
