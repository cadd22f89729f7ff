"""What members of a group ask, in every version."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer.group import JoinGroupRequest, LeaveGroupRequest

from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import House, open_house
from tests.gateway.handlers.asking import answer, ask, asked
from tests.gateway.handlers.grouping import (
    INITIAL_DELAY,
    heartbeat,
    join_request,
    joined,
    leave,
    stable,
    subscription,
    sync_request,
)


@pytest.fixture
def house() -> House:
    return open_house()


@pytest.mark.parametrize("version", range(10))
def test_the_first_member_leads_a_generation_of_itself(house, version):
    member = joined(house, version)
    assert (member.error_code, member.generation_id, member.protocol_name) == (0, 1, "range")
    assert member.leader == member.member_id == "test-id-1"
    assert [(one.member_id, one.metadata) for one in member.members] == [
        (member.member_id, subscription("orders"))
    ]
    if version >= 7:
        assert member.protocol_type == "consumer"


@pytest.mark.parametrize("version", range(4))
def test_a_newcomer_of_kafka_2_1_or_older_joins_in_one_step(house, version):
    waiting = asked(house, join_request(), version)
    assert not waiting.is_done
    house.clock.advance(INITIAL_DELAY)
    assert answer(join_request(), waiting.result, version).error_code == 0


@pytest.mark.parametrize("version", range(4, 10))
def test_a_newcomer_is_told_its_id_before_it_is_a_member(house, version):
    told = ask(house, join_request(), version)
    assert (told.error_code, told.member_id, told.generation_id) == (
        ErrorCode.MEMBER_ID_REQUIRED,
        "test-id-1",
        -1,
    )
    assert len(house.broker.groups.get("g").roster) == 0


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_newcomer_needs_no_second_step(house, version):
    member = joined(house, version, instance="one")
    assert member.member_id == "one-id-1"
    assert [one.group_instance_id for one in member.members] == ["one"]


@pytest.mark.parametrize("version", range(10))
def test_rebalances_wait_as_long_as_the_session_for_those_who_could_not_say_more(house, version):
    joined(house, version)
    (member,) = house.broker.groups.get("g").roster
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (
        10_000,
        10_000 if version == 0 else 60_000,
    )


@pytest.mark.parametrize("version", range(6))
def test_the_leader_s_assignment_reaches_each_member(house, version):
    first = stable(house)
    request = join_request(ask(house, join_request(), 9).member_id)
    waiting = asked(house, request, 9)
    again = ask(house, join_request(first.member_id), 9)
    second = answer(request, waiting.result, 9)
    assert (second.generation_id, second.members) == (2, [])
    follower = sync_request(second.member_id, 2)
    waits = asked(house, follower, version)
    assert not waits.is_done
    words = {first.member_id: b"one", second.member_id: b"two"}
    assert ask(house, sync_request(again.member_id, 2, words), version).assignment == b"one"
    synced = answer(follower, waits.result, version)
    assert (synced.error_code, synced.assignment) == (0, b"two")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


def test_from_version_5_on_a_sync_names_its_protocol(house):
    member = stable(house)
    for fields in ({"protocol_type": None}, {"protocol_name": None}, {"protocol_name": "sticky"}):
        reply = ask(house, sync_request(member.member_id, 1, **fields), 5)
        assert (reply.error_code, reply.assignment) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, b"")


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_is_of_a_member_and_its_generation(house, version):
    member = stable(house)
    assert heartbeat(house, member.member_id, 1, version) == 0
    assert heartbeat(house, member.member_id, 0, version) == ErrorCode.ILLEGAL_GENERATION
    assert heartbeat(house, "nobody", 1, version) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [3, 4])
def test_a_heartbeat_of_a_static_member_under_an_old_id_is_fenced(house, version):
    old = stable(house, instance="one")
    new = ask(house, join_request(instance="one"), 9)
    assert heartbeat(house, old.member_id, 1, version, "one") == ErrorCode.FENCED_INSTANCE_ID
    assert heartbeat(house, new.member_id, 1, version, "one") == 0


def test_a_leader_that_comes_back_skips_the_assignment(house):
    stable(house, instance="one")
    back = ask(house, join_request(instance="one"), 9)
    assert (back.error_code, back.generation_id, back.skip_assignment, back.leader) == (
        0,
        1,
        True,
        back.member_id,
    )
    assert (
        ask(house, sync_request(back.member_id, 1, group_instance_id="one"), 5).assignment
        == b"mine"
    )


@pytest.mark.parametrize("version", range(5, 9))
def test_a_leader_that_comes_back_and_cannot_skip_takes_itself_for_a_follower(house, version):
    old = stable(house, instance="one")
    back = ask(house, join_request(instance="one"), version)
    assert (back.error_code, back.generation_id, back.leader, back.members) == (
        0,
        1,
        old.member_id,
        [],
    )
    assert back.member_id != old.member_id


@pytest.mark.parametrize("version", range(3))
def test_one_member_leaves(house, version):
    member = stable(house)
    assert (
        ask(house, LeaveGroupRequest(group_id="g", member_id=member.member_id), version).error_code
        == 0
    )
    assert (
        ask(house, LeaveGroupRequest(group_id="g", member_id=member.member_id), version).error_code
        == ErrorCode.UNKNOWN_MEMBER_ID
    )


@pytest.mark.parametrize("version", range(3, 6))
def test_several_leave_each_with_an_outcome_of_its_own(house, version):
    member = stable(house)
    assert leave(house, (member.member_id, None), ("nobody", None), version=version) == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert house.broker.groups.is_empty("g")


def test_a_static_member_is_removed_by_its_instance_id_alone(house):
    stable(house, instance="one")
    assert leave(house, ("", "one"), ("", "two")) == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert house.broker.groups.is_empty("g")


def test_a_static_member_under_an_old_id_cannot_make_the_new_one_leave(house):
    old = stable(house, instance="one")
    ask(house, join_request(instance="one"), 9)
    assert leave(house, (old.member_id, "one")) == [ErrorCode.FENCED_INSTANCE_ID]


@pytest.mark.parametrize("group", ["", "g" * 461])
def test_a_group_has_a_name_of_up_to_460_bytes(house, group):
    assert ask(house, join_request(group=group), 9).error_code == ErrorCode.INVALID_GROUP_ID
    assert (
        ask(house, sync_request("m", 1, group_id=group), 5).error_code == ErrorCode.INVALID_GROUP_ID
    )
    assert (
        ask(house, LeaveGroupRequest(group_id=group, members=[]), 5).error_code
        == ErrorCode.INVALID_GROUP_ID
    )
    assert (
        ask(house, LeaveGroupRequest(group_id=group, member_id="m"), 2).error_code
        == ErrorCode.INVALID_GROUP_ID
    )
    assert list(house.broker.groups) == []


@pytest.mark.parametrize("timeout", [5_999, 1_800_001, -1])
def test_a_session_is_neither_too_short_nor_too_long(house, timeout):
    assert (
        ask(house, join_request(session_timeout_ms=timeout), 9).error_code
        == ErrorCode.INVALID_SESSION_TIMEOUT
    )


@pytest.mark.parametrize("version", range(10))
def test_what_is_refused_names_no_protocol(house, version):
    reply = ask(house, join_request(protocols=[]), version)
    assert (reply.error_code, reply.protocol_name) == (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        None if version >= 7 else "",
    )


def test_a_member_is_known_by_its_client(house):
    joined(house)
    (member,) = house.broker.groups.get("g").roster
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")


def test_a_member_may_not_say_more_than_the_limit():
    house = open_house(group_member_max_bytes=10_000)
    assert (
        ask(house, join_request(metadata=bytes(10_000)), 9).error_code
        == ErrorCode.MESSAGE_TOO_LARGE
    )
    member = joined(house, metadata=bytes(1_000))
    reply = ask(house, sync_request(member.member_id, 1, {member.member_id: bytes(10_001)}), 5)
    assert reply.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (
        ask(
            house, sync_request(member.member_id, 1, {member.member_id: bytes(10_000)}), 5
        ).error_code
        == 0
    )


def test_protocols_of_one_name_are_no_choice(house):
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    assert (
        ask(house, join_request(protocols=[protocol, protocol]), 9).error_code
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


def test_an_assignment_that_is_not_stored_in_time_ends_the_wait_for_it(house: House) -> None:
    member = joined(house)
    house.store.hold()
    syncing = asked(
        house, sync_request(member.member_id, member.generation_id, {member.member_id: b"mine"}), 5
    )
    house.clock.advance(4.9)
    assert not syncing.is_done
    house.clock.advance(0.1)
    assert (
        answer(sync_request(member.member_id, member.generation_id), syncing.result, 5).error_code
        != 0
    )
