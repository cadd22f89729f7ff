"""ConsumerGroupHeartbeat, and what becomes of other group requests in a consumer group."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer.group import HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from gateway.groups.classic.classic_states import GroupState
from gateway.groups.consumer.consumer_states import ConsumerGroupState
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.group_messages import ConsumerGroupHeartbeatRequest
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.group_requests import (
    INITIAL_DELAY,
    heartbeat,
    join_request,
    joined,
    leave,
    sync_request,
)
from tests.gateway.handlers.handler_calls import call, decode_response, start_call

TopicPartitions = ConsumerGroupHeartbeatRequest.TopicPartitions

SESSION = 45


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment(group_consumer_assignment_interval_ms=0)
    env.topic("orders", 4)
    return env


def request(
    env: BrokerEnvironment,
    member_id: str,
    epoch: int = 0,
    *,
    owned: list[int] | None = None,
    **fields: Any,
) -> Any:
    """A newcomer says all that it must; others say what is given."""
    values: dict[str, Any] = {
        "group_id": "g",
        "instance_id": None,
        "rack_id": None,
        "server_assignor": None,
        "subscribed_topic_regex": None,
    }
    values |= {"rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}
    if epoch == 0:
        values |= {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["orders"],
            "topic_partitions": [],
        }
    if owned is not None:
        topic_id = uuid.UUID(bytes=env.broker.topics.get("orders").topic.topic_id)
        values["topic_partitions"] = (
            [TopicPartitions(topic_id=topic_id, partitions=owned)] if owned else []
        )
    return ConsumerGroupHeartbeatRequest(member_id=member_id, member_epoch=epoch, **values | fields)


def member_heartbeat(
    env: BrokerEnvironment, member_id: str, epoch: int = 0, version: int = 1, **fields: Any
) -> Any:
    return call(env, request(env, member_id, epoch, **fields), version)


def assigned(reply: Any) -> list[int] | None:
    """The partitions of orders; None where it says nothing of them."""
    if reply.assignment is None:
        return None
    return [index for row in reply.assignment.topic_partitions for index in row.partitions]


def two(env: BrokerEnvironment) -> None:
    """m1 and m2, stable in epoch 2 with two partitions each."""
    member_heartbeat(env, "m1")
    member_heartbeat(env, "m2")
    kept = assigned(member_heartbeat(env, "m1", 1))
    member_heartbeat(env, "m1", 1, owned=kept)
    member_heartbeat(env, "m2", 2)
    assert env.broker.groups.get("g").state is ConsumerGroupState.STABLE


def kind(env: BrokerEnvironment) -> str:
    return env.broker.groups.get("g").kind


@pytest.mark.parametrize("version", [0, 1])
def test_a_newcomer_is_told_its_epoch_its_assignment_and_when_to_come_again(env, version):
    reply = member_heartbeat(env, "m1", version=version)
    assert (reply.error_code, reply.error_message, reply.member_id, reply.member_epoch) == (
        0,
        None,
        "m1",
        1,
    )
    assert reply.heartbeat_interval_ms == 5_000
    assert assigned(reply) == [0, 1, 2, 3]
    assert assigned(member_heartbeat(env, "m1", 1, version)) is None


def test_a_newcomer_of_version_0_may_be_given_its_id(env):
    reply = member_heartbeat(env, "", version=0)
    assert (reply.error_code, reply.member_id, reply.member_epoch) == (0, "id-1", 1)


def test_from_version_1_a_newcomer_makes_its_id_itself(env):
    assert member_heartbeat(env, "").error_code == ErrorCode.INVALID_REQUEST


def test_a_regular_expression_subscribes(env):
    reply = member_heartbeat(env, "m1", subscribed_topic_names=None, subscribed_topic_regex="ord.*")
    assert assigned(reply) == [0, 1, 2, 3]
    assert (
        member_heartbeat(
            env, "m2", subscribed_topic_names=None, subscribed_topic_regex="("
        ).error_code
        == ErrorCode.INVALID_REGULAR_EXPRESSION
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": " "},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"owned": [0]},
        {"subscribed_topic_names": None},
        {"epoch": -3},
        {"epoch": -2},
        {"epoch": -1, "member_id": ""},
        {"epoch": 1, "member_id": ""},
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_what_contradicts_itself_is_an_invalid_request(env, fields, version):
    values = {"member_id": "m1", "epoch": 0, **fields}
    reply = member_heartbeat(env, values.pop("member_id"), values.pop("epoch"), version, **values)
    assert (reply.error_code, reply.member_id, reply.assignment) == (
        ErrorCode.INVALID_REQUEST,
        None,
        None,
    )
    assert reply.error_message
    assert env.broker.groups.get("g") is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"group_id": "g" * 461}, ErrorCode.INVALID_GROUP_ID),
        (
            {
                "subscribed_topic_names": ["t" * 30_000] * 2
                + [f"{'t' * 30_000}{n}" for n in range(40)]
            },
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_what_is_not_taken_leaves_no_group_behind(env, fields, code):
    values = {"epoch": 0, **fields}
    assert member_heartbeat(env, "m1", values.pop("epoch"), **values).error_code == code
    assert list(env.broker.groups) == []


def test_all_groups_together_have_their_limit():
    env = open_environment(max_group_bytes=1 << 20)
    env.topic("orders", 4)
    codes = [
        member_heartbeat(env, f"m{number}", group_id=f"g{number}").error_code
        for number in range(200)
    ]
    assert codes[0] == 0
    assert codes[-1] == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_one_group_has_its_limit_too():
    env = open_environment(max_bytes_per_group=64 << 10)
    env.topic("orders", 4)
    names = [f"{number:x}" for number in range(100)]
    replies = [
        member_heartbeat(env, f"m{number}", subscribed_topic_names=names) for number in range(5)
    ]
    assert [reply.error_code for reply in replies] == [
        0,
        0,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        *[ErrorCode.GROUP_MAX_SIZE_REACHED] * 2,
    ]
    assert "max_bytes_per_group" in replies[-1].error_message
    assert member_heartbeat(env, "m0", 1, subscribed_topic_names=["orders"]).error_code == 0
    assert member_heartbeat(env, "m2", subscribed_topic_names=["orders"]).error_code == 0
    assert member_heartbeat(env, "m", group_id="another").error_code == 0


def test_partitions_change_hands_over_heartbeats(env):
    member_heartbeat(env, "m1")
    assert assigned(member_heartbeat(env, "m2")) == []
    kept = assigned(member_heartbeat(env, "m1", 1))
    assert member_heartbeat(env, "m1", 1, owned=kept).member_epoch == 2
    assert sorted(kept + assigned(member_heartbeat(env, "m2", 2))) == [0, 1, 2, 3]


def test_who_leaves_is_answered_with_what_it_said(env):
    two(env)
    reply = member_heartbeat(env, "m2", -1)
    assert (reply.error_code, reply.member_id, reply.member_epoch, reply.heartbeat_interval_ms) == (
        0,
        "m2",
        -1,
        0,
    )
    assert assigned(member_heartbeat(env, "m1", 2)) == [0, 1, 2, 3]


def test_who_is_silent_is_gone_when_its_session_ends(env):
    two(env)
    env.clock.advance(SESSION - 1)
    member_heartbeat(env, "m1", 2)
    env.clock.advance(1)
    assert member_heartbeat(env, "m2", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_go_on_after_a_restart_in_their_epochs(env):
    two(env)
    env = again(env)
    assert [member_heartbeat(env, member, 2).error_code for member in ("m1", "m2")] == [0, 0]
    assert env.broker.groups.get("g").state is ConsumerGroupState.STABLE


def again(env: BrokerEnvironment) -> BrokerEnvironment:
    """The gateway after a restart."""
    medium = env.store.medium
    medium.held_by = None
    return open_environment(medium, group_consumer_assignment_interval_ms=0)


def test_nobody_is_told_what_is_not_stored(env):
    env.store.hold()
    waiting = start_call(env, request(env, "m1"), 1)
    assert not waiting.is_done
    env.store.release()
    assert decode_response(request(env, "m1"), waiting.result, 1).member_epoch == 1


def test_a_store_that_fails_is_a_reason_to_ask_again(env):
    env.store.refuse_writes = True
    assert member_heartbeat(env, "m1").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    env.store.refuse_writes = False
    assert member_heartbeat(env, "m1").member_epoch == 1
    assert member_heartbeat(again(env), "m1", 1).error_code == 0


def test_a_group_whose_rows_make_no_sense_begins_anew_and_leaves_nothing_of_the_old_one(env):
    two(env)
    rows = env.store.medium.tables["groups"]
    first = min(rows)
    rows[first] = b"?"
    env = again(env)
    assert member_heartbeat(env, "m1", 2).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert assigned(member_heartbeat(env, "m1")) == [0, 1, 2, 3]
    env = again(env)
    assert len(env.broker.groups.get("g").roster) == 1


# Committed offsets


def commit(
    env: BrokerEnvironment, member_id: str, epoch: int, version: int = 9, partition: int = 0
) -> int:
    live = env.broker.topics.get("orders")
    row = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="orders",
        topic_id=uuid.UUID(bytes=live.topic.topic_id),
        partitions=[
            row(
                partition_index=partition,
                committed_offset=1,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
        ],
    )
    said = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=None,
        topics=[topic],
    )
    return int(call(env, said, version).topics[0].partitions[0].error_code)


def fetch(env: BrokerEnvironment, member_id: str | None, epoch: int, version: int = 9) -> int:
    group = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", member_id=member_id, member_epoch=epoch, topics=None
    )
    return int(
        call(env, OffsetFetchRequest(groups=[group], require_stable=False), version)
        .groups[0]
        .error_code
    )


@pytest.mark.parametrize("version", [9, 10])
def test_members_commit_and_fetch_in_their_epoch(env, version):
    two(env)
    assert (commit(env, "m1", 2, version), fetch(env, "m1", 2, version)) == (0, 0)
    assert (commit(env, "m1", 3, version), fetch(env, "m1", 3, version)) == (
        ErrorCode.STALE_MEMBER_EPOCH,
    ) * 2
    assert (commit(env, "m9", 2, version), fetch(env, "m9", 2, version)) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
    ) * 2
    assert fetch(env, None, -1, version) == 0


def test_a_commit_of_an_older_epoch_is_taken_partition_by_partition(env):
    two(env)
    (kept,) = env.broker.groups.get("g").roster.get("m1").assigned.values()
    lost = ({0, 1, 2, 3} - set(kept)).pop()
    assert commit(env, "m1", 1, partition=min(kept)) == 0
    assert commit(env, "m1", 1, partition=lost) == ErrorCode.STALE_MEMBER_EPOCH


def test_a_member_of_the_new_protocol_commits_in_versions_that_know_epochs(env):
    two(env)
    assert commit(env, "m1", 2, version=8) == ErrorCode.UNSUPPORTED_VERSION


# Those who look after groups


def test_a_consumer_group_is_listed_as_one(env):
    two(env)
    (row,) = call(env, ListGroupsRequest(states_filter=[], types_filter=["Consumer"]), 5).groups
    assert (row.group_id, row.protocol_type, row.group_state, row.group_type) == (
        "g",
        "consumer",
        "Stable",
        "consumer",
    )
    assert call(env, ListGroupsRequest(states_filter=[], types_filter=["classic"]), 5).groups == []


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_consumer_group_is_not_there_for_who_describes_classic_ones(env, version, code):
    two(env)
    (row,) = call(
        env, DescribeGroupsRequest(groups=["g"], include_authorized_operations=False), version
    ).groups
    assert (row.error_code, row.group_state) == (code, "Dead")


def test_a_consumer_group_is_deleted_when_it_is_empty(env):
    two(env)
    assert delete(env) == ErrorCode.NON_EMPTY_GROUP
    member_heartbeat(env, "m1", -1)
    member_heartbeat(env, "m2", -1)
    assert delete(env) == 0
    assert not any(b"g" in key for key in env.store.medium.tables["groups"])
    assert list(again(env).broker.groups) == []


def test_a_group_is_not_deleted_before_it_is_stored_that_it_is_empty(env):
    member_heartbeat(env, "m1")
    env.store.hold()
    going = start_call(env, request(env, "m1", -1), 1)
    assert delete(env) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    env.store.release()
    assert going.is_done
    assert delete(env) == 0


def test_a_group_that_goes_over_to_the_classic_protocol_while_it_is_written_leaves_nothing_behind(
    env,
):
    member_heartbeat(env, "m1")
    env.store.hold()
    start_call(env, request(env, "m2"), 1)
    for member in ("m2", "m1"):
        start_call(env, request(env, member, -1), 1)
    joining = start_call(env, join_request(instance="i1"), 9)
    env.store.release()
    env.clock.advance(INITIAL_DELAY)
    assert decode_response(join_request(), joining.result, 9).generation_id == 1
    classic_sync(env, decode_response(join_request(), joining.result, 9).member_id, 1)
    assert [one.kind for one in again(env).broker.groups] == ["classic"]


def delete(env: BrokerEnvironment) -> int:
    return int(call(env, DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code)


def test_offsets_are_kept_while_members_read_the_topic_and_then_count_from_when_the_last_left(
    env,
):
    groups = env.broker.groups
    member_heartbeat(env, "m1")
    assert (groups.subscribed_topics("g"), groups.is_empty("g"), groups.empty_since("g")) == (
        frozenset({"orders"}),
        False,
        None,
    )
    env.clock.advance(5)
    member_heartbeat(env, "m1", -1)
    assert (groups.subscribed_topics("g"), groups.is_empty("g"), groups.empty_since("g")) == (
        frozenset(),
        True,
        env.now(),
    )
    assert again(env).broker.groups.empty_since("g") == env.now()


def test_a_group_without_members_is_forgotten_and_one_with_members_is_not(env):
    member_heartbeat(env, "m1")
    env.broker.groups.delete_in_background("g")
    assert kind(env) == "consumer"
    member_heartbeat(env, "m1", -1)
    env.broker.groups.delete_in_background("g")
    assert list(env.broker.groups) == []
    assert list(again(env).broker.groups) == []


def test_a_topic_that_is_deleted_is_taken_from_the_members(env):
    env.topic("bills", 1)
    names = ["orders", "bills"]
    member_heartbeat(env, "m1", subscribed_topic_names=names)
    ended(env.broker.topics.delete(env.broker.topics.get("bills")))
    assert assigned(member_heartbeat(env, "m1", 1)) == [0, 1, 2, 3]
    assert member_heartbeat(env, "m1", 1, owned=[0, 1, 2, 3]).member_epoch == 2
    assert env.broker.groups.get("g").state is ConsumerGroupState.STABLE
    (row,) = env.broker.groups.get("g").roster.get("m1").assigned
    assert row == env.broker.topics.get("orders").topic.topic_id


# From one protocol to the other


def classic_sync(env: BrokerEnvironment, member_id: str, generation: int, **words: bytes) -> Any:
    return call(env, sync_request(member_id, generation, words), 5)


def told(synced: Any) -> list[int]:
    """The partitions of orders in a SyncGroup's answer."""
    rows = ConsumerProtocolAssignment.decode(synced.assignment).assigned_partitions
    return [index for row in rows if row.topic == "orders" for index in row.partitions]


def everything() -> bytes:
    row = ConsumerProtocolAssignment.TopicPartition
    words = ConsumerProtocolAssignment(
        version=0,
        assigned_partitions=[row(topic="orders", partitions=[0, 1, 2, 3])],
        user_data=None,
    )
    return bytes(words.encode(version=0))


def classic(env: BrokerEnvironment) -> str:
    """A stable classic group of one member, which has everything."""
    member = joined(env)
    request = sync_request(member.member_id, 1, {member.member_id: everything()})
    assert told(call(env, request, 5)) == [0, 1, 2, 3]
    return str(member.member_id)


def join_again(env: BrokerEnvironment, member_id: str, **fields: Any) -> Any:
    request = join_request(member_id, **fields)
    return decode_response(request, start_call(env, request, 9).result, 9)


def test_an_empty_classic_group_becomes_a_consumer_group(env):
    member_id = classic(env)
    leave(env, (member_id, None))
    assert assigned(member_heartbeat(env, "m1")) == [0, 1, 2, 3]
    assert [one.kind for one in again(env).broker.groups] == ["consumer"]


def test_an_empty_consumer_group_becomes_a_classic_group(env):
    member_heartbeat(env, "m1")
    member_heartbeat(env, "m1", -1)
    classic(env)
    assert kind(env) == "classic"
    assert [one.kind for one in again(env).broker.groups] == ["classic"]


def test_an_empty_consumer_group_stays_one_when_whoever_joins_is_refused(env):
    member_heartbeat(env, "m1")
    member_heartbeat(env, "m1", -1)
    request = join_request(protocols=[])
    assert (
        decode_response(request, start_call(env, request, 9).result, 9).error_code
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert join_again(env, "unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert kind(env) == "consumer"


def test_members_of_both_protocols_share_a_group_online(env):
    old = classic(env)
    reply = member_heartbeat(env, "new")
    assert (reply.error_code, reply.member_epoch, assigned(reply)) == (0, 2, [])
    assert kind(env) == "consumer"
    assert heartbeat(env, old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    # As those do that give everything back before they join.
    again = join_again(env, old)
    assert (
        again.error_code,
        again.generation_id,
        again.protocol_name,
        again.leader,
        again.members,
    ) == (0, 2, "range", "", [])
    kept = told(classic_sync(env, old, 2))
    assert len(kept) == 2
    assert heartbeat(env, old, 2) == 0
    assert sorted(kept + assigned(member_heartbeat(env, "new", 2))) == [0, 1, 2, 3]


def test_the_group_is_a_classic_one_again_when_the_last_of_the_new_protocol_leaves(env):
    old = classic(env)
    member_heartbeat(env, "new")
    join_again(env, old)
    classic_sync(env, old, 2)
    member_heartbeat(env, "new", -1)
    assert (kind(env), env.broker.groups.get("g").state) == (
        "classic",
        GroupState.PREPARING_REBALANCE,
    )
    assert heartbeat(env, old, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    member = join_again(env, old)
    assert (member.generation_id, member.leader) == (3, old)
    assert told(classic_sync(env, old, 3, **{old: everything()})) == [0, 1, 2, 3]
    assert [one.kind for one in again(env).broker.groups] == ["classic"]


def test_the_group_is_a_classic_one_again_when_the_last_of_the_new_protocol_is_not_heard_of(env):
    old = classic(env)
    member_heartbeat(env, "new")
    join_again(env, old, session_timeout_ms=60_000)
    classic_sync(env, old, 2)
    env.clock.advance(SESSION)
    assert kind(env) == "classic"


def test_who_waits_to_join_a_classic_group_is_sent_again_when_that_becomes_a_consumer_group(env):
    classic(env)
    joining = join_request(instance="i1")
    second = start_call(env, joining, 9)
    assert not second.is_done
    member_heartbeat(env, "new")
    assert decode_response(joining, second.result, 9).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_classic_group_stays_one_where_the_policy_says_so(policy):
    env = open_environment(group_consumer_migration_policy=policy)
    env.topic("orders", 4)
    old = classic(env)
    assert member_heartbeat(env, "new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert heartbeat(env, old, 1) == 0


def test_a_consumer_group_stays_one_where_the_policy_says_so():
    env = open_environment(
        group_consumer_migration_policy="upgrade", group_consumer_assignment_interval_ms=0
    )
    env.topic("orders", 4)
    old = classic(env)
    member_heartbeat(env, "new")
    join_again(env, old)
    member_heartbeat(env, "new", -1)
    assert kind(env) == "consumer"


def test_a_group_of_another_protocol_type_does_not_become_a_consumer_group(env):
    request = join_request(instance="w", protocol_type="connect", metadata=b"its own")
    waiting = start_call(env, request, 9)
    env.clock.advance(INITIAL_DELAY)
    member = decode_response(request, waiting.result, 9)
    reply = member_heartbeat(env, "new")
    assert (reply.error_code, kind(env)) == (ErrorCode.GROUP_ID_NOT_FOUND, "classic")
    assert heartbeat(env, member.member_id, 1, instance="w") == ErrorCode.NONE


def test_a_classic_group_whose_assignments_nobody_can_read_stays_one(env):
    member = joined(env)
    classic_sync(env, member.member_id, 1, **{member.member_id: b"not an assignment"})
    assert member_heartbeat(env, "new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert heartbeat(env, member.member_id, 1) == 0


def test_a_group_of_both_protocols_goes_on_after_a_restart(env):
    old = classic(env)
    member_heartbeat(env, "new")
    join_again(env, old)
    classic_sync(env, old, 2)
    member_heartbeat(env, "new", 2)
    env = again(env)
    assert (heartbeat(env, old, 2), member_heartbeat(env, "new", 2).error_code) == (0, 0)


def test_a_classic_member_of_a_consumer_group_that_is_asked_to_join_and_does_not_is_out(env):
    old = classic(env)
    member_heartbeat(env, "new")
    assert heartbeat(env, old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    for second in range(60):
        env.clock.advance(1)
        if second % 5 == 0:
            heartbeat(env, old, 1)
            member_heartbeat(env, "new", 2)
    assert heartbeat(env, old, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert assigned(member_heartbeat(env, "new", 2)) == [0, 1, 2, 3]


def test_requests_of_the_classic_protocol_are_not_for_members_of_the_new_one(env):
    two(env)
    assert heartbeat(env, "m1", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert call(env, sync_request("m1", 2), 5).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        call(
            env,
            HeartbeatRequest(group_id="g", generation_id=2, member_id="m1", group_instance_id="i"),
            4,
        ).error_code
        == 25
    )


def test_an_administrator_removes_a_static_member_of_the_new_protocol(env):
    member_heartbeat(env, "m1", instance_id="one")
    assert leave(env, ("", "one")) == [0]
    assert env.broker.groups.get("g").is_empty
