"""Requests of group members for handler tests, version by version."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from tests.fakes.broker import BrokerEnvironment
from tests.gateway.handlers.handler_calls import call, decode_response, start_call

#: Longer than the initial rebalance delay of an empty group.
INITIAL_DELAY = 3


def subscription(*topics: str) -> bytes:
    return bytes(
        ConsumerProtocolSubscription(version=0, topics=list(topics), user_data=b"").encode(
            version=0
        )
    )


def join_request(
    member_id: str = "",
    *,
    group: str = "g",
    instance: str | None = None,
    metadata: bytes | None = None,
    **fields: Any,
) -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(
        name="range", metadata=subscription("orders") if metadata is None else metadata
    )
    values: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
    }
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance,
        **{"protocols": [protocol], "reason": None} | values | fields,
    )


def sync_request(
    member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **fields: Any
) -> Any:
    rows = [
        SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=word)
        for name, word in (assignments or {}).items()
    ]
    values = {
        "group_id": "g",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
    } | fields
    return SyncGroupRequest(
        member_id=member_id, generation_id=generation, assignments=rows, **values
    )


def heartbeat(
    env: BrokerEnvironment,
    member_id: str,
    generation: int,
    version: int = 4,
    instance: str | None = None,
) -> int:
    request = HeartbeatRequest(
        group_id="g", generation_id=generation, member_id=member_id, group_instance_id=instance
    )
    return int(call(env, request, version).error_code)


def leave(env: BrokerEnvironment, *members: tuple[str, str | None], version: int = 5) -> list[int]:
    rows = [
        LeaveGroupRequest.MemberIdentity(member_id=name, group_instance_id=instance, reason="done")
        for name, instance in members
    ]
    return [
        row.error_code
        for row in call(env, LeaveGroupRequest(group_id="g", members=rows), version).members
    ]


def joined(env: BrokerEnvironment, version: int = 9, **fields: Any) -> Any:
    """A new member after both joins and the initial delay.

    No other member may delay its rebalance.
    """
    request = join_request(**fields)
    waiting = start_call(env, request, version)
    if version >= 4 and fields.get("instance") is None:
        told = decode_response(request, waiting.result, version)
        assert told.error_code == 79
        request = join_request(told.member_id, **fields)
        waiting = start_call(env, request, version)
    env.clock.advance(INITIAL_DELAY)
    return decode_response(request, waiting.result, version)


def stable(env: BrokerEnvironment, version: int = 9, **fields: Any) -> Any:
    """A group with one member and its assignment, `mine`."""
    member = joined(env, version, **fields)
    synced = call(
        env,
        sync_request(
            member.member_id, member.generation_id, {member.member_id: b"mine"}, **_instance(fields)
        ),
        5,
    )
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    return member


def _instance(fields: dict[str, Any]) -> dict[str, Any]:
    return {"group_instance_id": fields["instance"]} if "instance" in fields else {}
