"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in all versions."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer.group import JoinGroupRequest, LeaveGroupRequest

from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.groups.group_requests import (
    INITIAL_DELAY,
    heartbeat,
    join_request,
    joined,
    leave,
    stable,
    subscription,
    sync_request,
)
from tests.gateway.handlers.handler_calls import call, decode_response, start_call


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


@pytest.mark.parametrize("version", range(10))
def test_first_member_is_leader(env, version):
    member = joined(env, version)
    assert (member.error_code, member.generation_id, member.protocol_name) == (0, 1, "range")
    assert member.leader == member.member_id == "test-id-1"
    assert [(one.member_id, one.metadata) for one in member.members] == [
        (member.member_id, subscription("orders"))
    ]
    if version >= 7:
        assert member.protocol_type == "consumer"


@pytest.mark.parametrize("version", range(4))
def test_join_up_to_v3_needs_one_request(env, version):
    waiting = start_call(env, join_request(), version)
    assert not waiting.is_done
    env.clock.advance(INITIAL_DELAY)
    assert decode_response(join_request(), waiting.result, version).error_code == 0


@pytest.mark.parametrize("version", range(4, 10))
def test_join_since_v4_returns_member_id_first(env, version):
    told = call(env, join_request(), version)
    assert (told.error_code, told.member_id, told.generation_id) == (
        ErrorCode.MEMBER_ID_REQUIRED,
        "test-id-1",
        -1,
    )
    assert len(env.broker.groups.get("g").roster) == 0


@pytest.mark.parametrize("version", range(5, 10))
def test_new_static_member_joins_with_one_request(env, version):
    member = joined(env, version, instance="one")
    assert member.member_id == "one-id-1"
    assert [one.group_instance_id for one in member.members] == ["one"]


@pytest.mark.parametrize("version", range(10))
def test_join_v0_uses_session_timeout_as_rebalance_timeout(env, version):
    joined(env, version)
    (member,) = env.broker.groups.get("g").roster
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (
        10_000,
        10_000 if version == 0 else 60_000,
    )


@pytest.mark.parametrize("version", range(6))
def test_sync_distributes_leader_assignments(env, version):
    first = stable(env)
    request = join_request(call(env, join_request(), 9).member_id)
    waiting = start_call(env, request, 9)
    again = call(env, join_request(first.member_id), 9)
    second = decode_response(request, waiting.result, 9)
    assert (second.generation_id, second.members) == (2, [])
    follower = sync_request(second.member_id, 2)
    waits = start_call(env, follower, version)
    assert not waits.is_done
    words = {first.member_id: b"one", second.member_id: b"two"}
    assert call(env, sync_request(again.member_id, 2, words), version).assignment == b"one"
    synced = decode_response(follower, waits.result, version)
    assert (synced.error_code, synced.assignment) == (0, b"two")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


def test_sync_since_v5_requires_protocol(env):
    member = stable(env)
    for fields in ({"protocol_type": None}, {"protocol_name": None}, {"protocol_name": "sticky"}):
        reply = call(env, sync_request(member.member_id, 1, **fields), 5)
        assert (reply.error_code, reply.assignment) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, b"")


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_requires_member_and_generation(env, version):
    member = stable(env)
    assert heartbeat(env, member.member_id, 1, version) == 0
    assert heartbeat(env, member.member_id, 0, version) == ErrorCode.ILLEGAL_GENERATION
    assert heartbeat(env, "unknown", 1, version) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [3, 4])
def test_heartbeat_of_replaced_static_member_is_fenced(env, version):
    old = stable(env, instance="one")
    new = call(env, join_request(instance="one"), 9)
    assert heartbeat(env, old.member_id, 1, version, "one") == ErrorCode.FENCED_INSTANCE_ID
    assert heartbeat(env, new.member_id, 1, version, "one") == 0


def test_returning_static_leader_skips_assignment(env):
    stable(env, instance="one")
    back = call(env, join_request(instance="one"), 9)
    assert (back.error_code, back.generation_id, back.skip_assignment, back.leader) == (
        0,
        1,
        True,
        back.member_id,
    )
    assert (
        call(env, sync_request(back.member_id, 1, group_instance_id="one"), 5).assignment == b"mine"
    )


@pytest.mark.parametrize("version", range(5, 9))
def test_returning_static_leader_before_v9_is_follower(env, version):
    old = stable(env, instance="one")
    back = call(env, join_request(instance="one"), version)
    assert (back.error_code, back.generation_id, back.leader, back.members) == (
        0,
        1,
        old.member_id,
        [],
    )
    assert back.member_id != old.member_id


@pytest.mark.parametrize("version", range(3))
def test_leaving_member_is_removed(env, version):
    member = stable(env)
    assert (
        call(env, LeaveGroupRequest(group_id="g", member_id=member.member_id), version).error_code
        == 0
    )
    assert (
        call(env, LeaveGroupRequest(group_id="g", member_id=member.member_id), version).error_code
        == ErrorCode.UNKNOWN_MEMBER_ID
    )


@pytest.mark.parametrize("version", range(3, 6))
def test_leave_of_several_members_has_separate_errors(env, version):
    member = stable(env)
    assert leave(env, (member.member_id, None), ("unknown", None), version=version) == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert env.broker.groups.is_empty("g")


def test_static_member_is_removed_by_instance_id(env):
    stable(env, instance="one")
    assert leave(env, ("", "one"), ("", "two")) == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert env.broker.groups.is_empty("g")


def test_replaced_static_member_cannot_remove_its_successor(env):
    old = stable(env, instance="one")
    call(env, join_request(instance="one"), 9)
    assert leave(env, (old.member_id, "one")) == [ErrorCode.FENCED_INSTANCE_ID]


@pytest.mark.parametrize("group", ["", "g" * 461])
def test_group_id_has_at_most_460_bytes(env, group):
    assert call(env, join_request(group=group), 9).error_code == ErrorCode.INVALID_GROUP_ID
    assert (
        call(env, sync_request("m", 1, group_id=group), 5).error_code == ErrorCode.INVALID_GROUP_ID
    )
    assert (
        call(env, LeaveGroupRequest(group_id=group, members=[]), 5).error_code
        == ErrorCode.INVALID_GROUP_ID
    )
    assert (
        call(env, LeaveGroupRequest(group_id=group, member_id="m"), 2).error_code
        == ErrorCode.INVALID_GROUP_ID
    )
    assert list(env.broker.groups) == []


@pytest.mark.parametrize("timeout", [5_999, 1_800_001, -1])
def test_session_timeout_outside_limits_is_refused(env, timeout):
    assert (
        call(env, join_request(session_timeout_ms=timeout), 9).error_code
        == ErrorCode.INVALID_SESSION_TIMEOUT
    )


@pytest.mark.parametrize("version", range(10))
def test_failed_join_has_no_protocol(env, version):
    reply = call(env, join_request(protocols=[]), version)
    assert (reply.error_code, reply.protocol_name) == (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        None if version >= 7 else "",
    )


def test_member_has_client_id_and_host(env):
    joined(env)
    (member,) = env.broker.groups.get("g").roster
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")


def test_too_large_member_metadata_is_refused():
    env = open_environment(group_member_max_bytes=10_000)
    assert (
        call(env, join_request(metadata=bytes(10_000)), 9).error_code == ErrorCode.MESSAGE_TOO_LARGE
    )
    member = joined(env, metadata=bytes(1_000))
    reply = call(env, sync_request(member.member_id, 1, {member.member_id: bytes(10_001)}), 5)
    assert reply.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (
        call(
            env, sync_request(member.member_id, 1, {member.member_id: bytes(10_000)}), 5
        ).error_code
        == 0
    )


def test_duplicate_protocol_names_are_refused(env):
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    assert (
        call(env, join_request(protocols=[protocol, protocol]), 9).error_code
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


def test_store_timeout_fails_waiting_syncs(
    env: BrokerEnvironment,
) -> None:
    member = joined(env)
    env.store.hold()
    syncing = start_call(
        env, sync_request(member.member_id, member.generation_id, {member.member_id: b"mine"}), 5
    )
    env.clock.advance(4.9)
    assert not syncing.is_done
    env.clock.advance(0.1)
    assert (
        decode_response(
            sync_request(member.member_id, member.generation_id), syncing.result, 5
        ).error_code
        != 0
    )
