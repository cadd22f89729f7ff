"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the classic group protocol."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer.group import JoinGroupResponse, LeaveGroupResponse, SyncGroupResponse

from gateway.coroutines import TimeSlices
from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, Refused
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.heartbeat_codec import HeartbeatRequest, HeartbeatResponse
from gateway.security.acls import AclOperation, AclResource

#: A failed JoinGroup has a null protocol since this version, and an empty one before.
_FIRST_WITH_NULLABLE_PROTOCOL = 7

_FIRST_WITH_REBALANCE_TIMEOUT = 1

#: Limit on protocols (assignors) per member. Clients send one to five.
MAX_PROTOCOLS = 500

#: JoinGroup requests for one group in a row, on one connection, that are answered NOT_COORDINATOR,
#: and seconds since the first of them. The next one closes the connection. If the coordinator
#: changes twice in a second, old librdkafka connects to the address of the former one, because it
#: resolves an address at most once a second (`broker.address.ttl`), and sends it JoinGroup until
#: that connection ends. Seen with 1.0.0, reported for 1.4.2 (librdkafka #2944), corrected in 2021
#: (#3238). A client that retries for less than a second may ask gateways that do not agree yet.
MAX_REFUSED_JOINS, REFUSED_JOINS_SECONDS = 2, 1.0

_JoinedMember = JoinGroupResponse.JoinGroupResponseMember
_LeftMember = LeaveGroupResponse.MemberResponse


@serves(ApiKey.JOIN_GROUP, 9, 9)
async def join_group(request: Any, caller: Caller) -> Any:
    """Join or rejoin a group; returns the generation, and to the leader also the members.

    Older versions are in `old_group_versions`.
    """
    return await join_group_reply(
        request,
        caller,
        request.rebalance_timeout_ms,
        requires_member_id=True,
        supports_skipping_assignment=True,
    )


async def join_group_reply(
    request: Any,
    caller: Caller,
    rebalance_timeout_ms: int,
    *,
    requires_member_id: bool,
    supports_skipping_assignment: bool,
) -> Any:
    """Handle any version.

    `requires_member_id` and `supports_skipping_assignment` as in `MemberJoin`.
    """
    if len(request.protocols) > MAX_PROTOCOLS:
        return JoinGroupResponse(
            error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            generation_id=-1,
            protocol_name=None if caller.api_version >= _FIRST_WITH_NULLABLE_PROTOCOL else "",
            leader="",
            member_id=request.member_id,
            members=[],
        )
    _record_traffic(request, caller)
    member_join = MemberJoin(
        request.member_id,
        request.group_instance_id,
        caller.client_id or "",
        java_host(caller),
        request.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        request.session_timeout_ms,
        rebalance_timeout_ms,
        requires_member_id,
        supports_skipping_assignment,
        request.reason or "",
    )
    try:
        caller.require(AclOperation.READ, AclResource.GROUP, request.group_id)
        await caller.broker.confirm_coordinator(request.group_id)
    except KafkaError as refusal:
        _count_refusal(request.group_id, caller, refusal)
        result = JoinResult(refusal.code, request.member_id)
    else:
        caller.session.refused_joins = ("", 0, 0.0)
        result = await caller.broker.groups.join(request.group_id, member_join)
    return JoinGroupResponse(
        error_code=result.code,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol
        if caller.api_version >= _FIRST_WITH_NULLABLE_PROTOCOL
        else result.protocol or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            _JoinedMember(
                member_id=one.member_id, group_instance_id=one.instance_id, metadata=one.metadata
            )
            for one in result.members
        ],
    )


def _count_refusal(group_id: str, caller: Caller, refusal: KafkaError) -> None:
    """Raises Refused if this client stays at a gateway that is not the coordinator."""
    if refusal.code is not ErrorCode.NOT_COORDINATOR or caller.broker.remote_offsets is None:
        return
    now = caller.broker.clock.seconds()
    last, count, since = caller.session.refused_joins
    if last != group_id:
        count, since = 0, now
    if count >= MAX_REFUSED_JOINS and now - since >= REFUSED_JOINS_SECONDS:
        raise Refused("another gateway coordinates the group of a repeated JoinGroup") from refusal
    caller.session.refused_joins = (group_id, count + 1, since)


def _record_traffic(request: Any, caller: Caller) -> None:
    traffic = caller.traffic
    traffic.group_named(request.group_id)
    traffic.habit_seen("session_timeout_ms", request.session_timeout_ms)
    if caller.api_version >= _FIRST_WITH_REBALANCE_TIMEOUT:
        traffic.habit_seen("rebalance_timeout_ms", request.rebalance_timeout_ms)
    traffic.habit_seen("protocols", [protocol.name for protocol in request.protocols])


def java_host(caller: Caller) -> str:
    """The client's address in the format of Java's InetAddress without a host name."""
    return "/" + caller.peer.rpartition(":")[0]


@serves(ApiKey.SYNC_GROUP, 5, 5)
async def sync_group(request: Any, caller: Caller) -> Any:
    """Return the member's assignment; the leader's request carries all assignments.

    The protocol must match the generation (KIP-559).
    """
    if request.protocol_type is None or request.protocol_name is None:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, assignment=b"")
    return await sync_group_unchecked_protocol(request, caller)


@serves(ApiKey.SYNC_GROUP, 0, 4)
async def sync_group_unchecked_protocol(request: Any, caller: Caller) -> Any:
    """Versions without protocol fields. v3 adds static members (KIP-345)."""
    member_sync = MemberSync(
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
    )
    caller.traffic.group_named(request.group_id)
    try:
        caller.require(AclOperation.READ, AclResource.GROUP, request.group_id)
        await caller.broker.confirm_coordinator(request.group_id)
    except KafkaError as refusal:
        result = SyncResult(refusal.code)
    else:
        result = await caller.broker.groups.sync(request.group_id, member_sync)
    return SyncGroupResponse(
        error_code=result.code,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


@serves(ApiKey.HEARTBEAT, 0, 4)
async def heartbeat(request: HeartbeatRequest, caller: Caller) -> HeartbeatResponse:
    """Keep a member's session alive, and report a rebalance. v3 adds static members (KIP-345)."""
    code = ErrorCode.NONE
    caller.traffic.group_named(request.group_id)
    try:
        caller.require(AclOperation.READ, AclResource.GROUP, request.group_id)
        await caller.broker.confirm_coordinator(request.group_id)
        caller.broker.groups.heartbeat(
            request.group_id, request.member_id, request.generation_id, request.group_instance_id
        )
    except KafkaError as failure:
        code = failure.code
    return HeartbeatResponse(code)


@serves(ApiKey.LEAVE_GROUP, 3, 5)
async def leave_group(request: Any, caller: Caller) -> Any:
    """Remove members, at their own or an admin's request; static ones by instance id alone.

    v5 adds reasons (KIP-800).
    """
    caller.traffic.group_named(request.group_id)
    try:
        caller.require(AclOperation.READ, AclResource.GROUP, request.group_id)
        await caller.broker.confirm_coordinator(request.group_id)
        caller.broker.groups.check_active(request.group_id)
    except KafkaError as failure:
        return LeaveGroupResponse(error_code=failure.code, members=[])
    rows = []
    slices = TimeSlices(caller.broker.clock)
    for member in request.members:
        code = leave_group_member(
            request.group_id, member.member_id, member.group_instance_id, member.reason, caller
        )
        rows.append(
            _LeftMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=code,
            )
        )
        await slices.take()
    return await encode_if_large(
        LeaveGroupResponse(error_code=ErrorCode.NONE, members=rows), slices, caller
    )


def leave_group_member(
    group_id: str, member_id: str, instance_id: str | None, reason: str | None, caller: Caller
) -> ErrorCode:
    """Remove one member and return its error code."""
    try:
        caller.broker.groups.leave(group_id, member_id, instance_id, reason or "")
    except KafkaError as failure:
        return failure.code
    return ErrorCode.NONE
