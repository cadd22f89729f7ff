"""Old versions of group requests with different behaviour. The codec handles their layouts."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer.group import LeaveGroupResponse

from gateway.handlers.groups.consumer_group_heartbeat import heartbeat_reply
from gateway.handlers.groups.describe_groups import describe_classic_groups, not_found
from gateway.handlers.groups.join_group import join_group_reply, leave_group_member
from gateway.handlers.groups.offset_commit import commit_offsets
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource


@serves(ApiKey.JOIN_GROUP, 0, 0)
async def join_group_v0(request: Any, caller: Caller) -> Any:
    """Kafka 0.9 and 0.10.0, kafka-python 1, Sarama, kafka-node.

    The session timeout is also the rebalance timeout.
    """
    return await join_group_reply(
        request,
        caller,
        request.session_timeout_ms,
        requires_member_id=False,
        supports_skipping_assignment=False,
    )


@serves(ApiKey.JOIN_GROUP, 1, 3)
async def join_group_v1_v3(request: Any, caller: Caller) -> Any:
    """Kafka 0.10.1 to 2.1: a new member receives its id with its first generation."""
    return await join_group_reply(
        request,
        caller,
        request.rebalance_timeout_ms,
        requires_member_id=False,
        supports_skipping_assignment=False,
    )


@serves(ApiKey.JOIN_GROUP, 4, 8)
async def join_group_v4_v8(request: Any, caller: Caller) -> Any:
    """Kafka 2.2 to 3.1: a new member first receives its id (KIP-394).

    v5 adds static members (KIP-345), v7 the protocol type (KIP-559), v8 reasons (KIP-800). A
    rejoining leader is treated as a follower.
    """
    return await join_group_reply(
        request,
        caller,
        request.rebalance_timeout_ms,
        requires_member_id=True,
        supports_skipping_assignment=False,
    )


@serves(ApiKey.OFFSET_COMMIT, 2, 4)
async def offset_commit_v2_v4(request: Any, caller: Caller) -> Any:
    """Kafka 0.9 to 2.0: the client may set a retention time."""
    now = caller.broker.now()
    until = expires_at(request.retention_time_ms, now)
    return await commit_offsets(request, caller, lambda _: (now, until))


def expires_at(retention_ms: int, now: int) -> int | None:
    """The end of a client's retention time. None means that the broker's retention applies."""
    return None if retention_ms == -1 else now + retention_ms


@serves(ApiKey.LEAVE_GROUP, 0, 2)
async def leave_group_one_member(request: Any, caller: Caller) -> Any:
    """Kafka 0.9 to 2.3: the request has a single member."""
    caller.traffic.group_named(request.group_id)
    try:
        caller.require(AclOperation.READ, AclResource.GROUP, request.group_id)
        await caller.broker.confirm_coordinator(request.group_id)
    except KafkaError as refusal:
        return LeaveGroupResponse(error_code=refusal.code, members=[])
    return LeaveGroupResponse(
        error_code=leave_group_member(request.group_id, request.member_id, None, None, caller),
        members=[],
    )


@serves(ApiKey.DESCRIBE_GROUPS, 0, 5)
async def describe_groups_missing_as_dead(request: Any, caller: Caller) -> Any:
    """Up to Kafka 3.9: a missing group is reported as dead.

    v3 adds authorized operations, v4 static members.
    """
    return await describe_classic_groups(
        request, caller, lambda group_id: not_found(group_id, ErrorCode.NONE, None)
    )


@serves(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 0)
async def consumer_group_heartbeat_without_id(request: Any, caller: Caller) -> Any:
    """Kafka 3.7 to 3.9, librdkafka 2.4 to 2.9: the coordinator generates missing member ids."""
    return await heartbeat_reply(request, caller, requires_member_id=False)
