"""ConsumerGroupHeartbeat, and other group requests to consumer groups."""

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

from gateway.groups.classic.classic_group import GroupState
from gateway.groups.consumer.consumer_group import ConsumerGroupState
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.group_messages import ConsumerGroupHeartbeatRequest
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.groups.group_requests import (
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
    """A heartbeat. A joining member's has all required fields, others only those given."""
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
    """Assigned partitions of orders, or None if the reply has no assignment."""
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
def test_join_returns_epoch_assignment_and_heartbeat_interval(env, version):
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


def test_v0_generates_missing_member_id(env):
    reply = member_heartbeat(env, "", version=0)
    assert (reply.error_code, reply.member_id, reply.member_epoch) == (0, "id-1", 1)


def test_v1_requires_member_id(env):
    assert member_heartbeat(env, "").error_code == ErrorCode.INVALID_REQUEST


def test_subscription_by_regex(env):
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
def test_inconsistent_fields_are_an_invalid_request(env, fields, version):
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
def test_refused_join_creates_no_group(env, fields, code):
    values = {"epoch": 0, **fields}
    assert member_heartbeat(env, "m1", values.pop("epoch"), **values).error_code == code
    assert list(env.broker.groups) == []


def test_max_group_bytes_limits_all_groups():
    env = open_environment(max_group_bytes=1 << 20)
    env.topic("orders", 4)
    codes = [
        member_heartbeat(env, f"m{number}", group_id=f"g{number}").error_code
        for number in range(200)
    ]
    assert codes[0] == 0
    assert codes[-1] == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_max_bytes_per_group_limits_one_group():
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


def test_partitions_move_between_members_by_heartbeats(env):
    member_heartbeat(env, "m1")
    assert assigned(member_heartbeat(env, "m2")) == []
    kept = assigned(member_heartbeat(env, "m1", 1))
    assert member_heartbeat(env, "m1", 1, owned=kept).member_epoch == 2
    assert sorted(kept + assigned(member_heartbeat(env, "m2", 2))) == [0, 1, 2, 3]


def test_leave_reply_repeats_member_epoch(env):
    two(env)
    reply = member_heartbeat(env, "m2", -1)
    assert (reply.error_code, reply.member_id, reply.member_epoch, reply.heartbeat_interval_ms) == (
        0,
        "m2",
        -1,
        0,
    )
    assert assigned(member_heartbeat(env, "m1", 2)) == [0, 1, 2, 3]


def test_silent_member_is_removed_at_session_timeout(env):
    two(env)
    env.clock.advance(SESSION - 1)
    member_heartbeat(env, "m1", 2)
    env.clock.advance(1)
    assert member_heartbeat(env, "m2", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_keep_their_epochs_after_restart(env):
    two(env)
    env = restarted(env)
    assert [member_heartbeat(env, member, 2).error_code for member in ("m1", "m2")] == [0, 0]
    assert env.broker.groups.get("g").state is ConsumerGroupState.STABLE


def restarted(env: BrokerEnvironment) -> BrokerEnvironment:
    """The gateway after a restart."""
    medium = env.store.medium
    medium.held_by = None
    return open_environment(medium, group_consumer_assignment_interval_ms=0)


def test_reply_is_sent_after_changes_are_stored(env):
    env.store.hold()
    waiting = start_call(env, request(env, "m1"), 1)
    assert not waiting.is_done
    env.store.release()
    assert decode_response(request(env, "m1"), waiting.result, 1).member_epoch == 1


def test_store_failure_is_retriable(env):
    env.store.refuse_writes = True
    assert member_heartbeat(env, "m1").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    env.store.refuse_writes = False
    assert member_heartbeat(env, "m1").member_epoch == 1
    assert member_heartbeat(restarted(env), "m1", 1).error_code == 0


def test_group_with_inconsistent_rows_starts_over_without_old_rows(env):
    two(env)
    rows = env.store.medium.tables["groups"]
    first = min(rows)
    rows[first] = b"?"
    env = restarted(env)
    assert member_heartbeat(env, "m1", 2).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert assigned(member_heartbeat(env, "m1")) == [0, 1, 2, 3]
    env = restarted(env)
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
def test_commit_and_fetch_require_member_epoch(env, version):
    two(env)
    assert (commit(env, "m1", 2, version), fetch(env, "m1", 2, version)) == (0, 0)
    assert (commit(env, "m1", 3, version), fetch(env, "m1", 3, version)) == (
        ErrorCode.STALE_MEMBER_EPOCH,
    ) * 2
    assert (commit(env, "m9", 2, version), fetch(env, "m9", 2, version)) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
    ) * 2
    assert fetch(env, None, -1, version) == 0


def test_commit_of_older_epoch_is_checked_per_partition(env):
    two(env)
    (kept,) = env.broker.groups.get("g").roster.get("m1").assigned.values()
    lost = ({0, 1, 2, 3} - set(kept)).pop()
    assert commit(env, "m1", 1, partition=min(kept)) == 0
    assert commit(env, "m1", 1, partition=lost) == ErrorCode.STALE_MEMBER_EPOCH


def test_consumer_protocol_member_needs_commit_version_with_epochs(env):
    two(env)
    assert commit(env, "m1", 2, version=8) == ErrorCode.UNSUPPORTED_VERSION


# Admin requests


def test_list_groups_returns_consumer_group_type(env):
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
def test_describe_groups_does_not_find_consumer_group(env, version, code):
    two(env)
    (row,) = call(
        env, DescribeGroupsRequest(groups=["g"], include_authorized_operations=False), version
    ).groups
    assert (row.error_code, row.group_state) == (code, "Dead")


def test_only_empty_consumer_group_can_be_deleted(env):
    two(env)
    assert delete(env) == ErrorCode.NON_EMPTY_GROUP
    member_heartbeat(env, "m1", -1)
    member_heartbeat(env, "m2", -1)
    assert delete(env) == 0
    assert not any(b"g" in key for key in env.store.medium.tables["groups"])
    assert list(restarted(env).broker.groups) == []


def test_group_is_not_deleted_while_changes_are_unstored(env):
    member_heartbeat(env, "m1")
    env.store.hold()
    going = start_call(env, request(env, "m1", -1), 1)
    assert delete(env) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    env.store.release()
    assert going.is_done
    assert delete(env) == 0


def test_conversion_to_classic_during_write_leaves_no_consumer_rows(
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
    assert [one.kind for one in restarted(env).broker.groups] == ["classic"]


def delete(env: BrokerEnvironment) -> int:
    return int(call(env, DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code)


def test_offset_retention_starts_when_last_member_leaves(
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
    assert restarted(env).broker.groups.empty_since("g") == env.now()


def test_only_empty_group_is_deleted_in_background(env):
    member_heartbeat(env, "m1")
    env.broker.groups.delete_in_background("g")
    assert kind(env) == "consumer"
    member_heartbeat(env, "m1", -1)
    env.broker.groups.delete_in_background("g")
    assert list(env.broker.groups) == []
    assert list(restarted(env).broker.groups) == []


def test_deleted_topic_is_revoked_from_members(env):
    env.topic("bills", 1)
    names = ["orders", "bills"]
    member_heartbeat(env, "m1", subscribed_topic_names=names)
    ended(env.broker.topics.delete(env.broker.topics.get("bills")))
    assert assigned(member_heartbeat(env, "m1", 1)) == [0, 1, 2, 3]
    assert member_heartbeat(env, "m1", 1, owned=[0, 1, 2, 3]).member_epoch == 2
    assert env.broker.groups.get("g").state is ConsumerGroupState.STABLE
    (row,) = env.broker.groups.get("g").roster.get("m1").assigned
    assert row == env.broker.topics.get("orders").topic.topic_id


# Protocol migration


def classic_sync(env: BrokerEnvironment, member_id: str, generation: int, **words: bytes) -> Any:
    return call(env, sync_request(member_id, generation, words), 5)


def synced_partitions(synced: Any) -> list[int]:
    """Partitions of orders in a SyncGroup reply."""
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
    """A stable classic group whose only member has all partitions."""
    member = joined(env)
    request = sync_request(member.member_id, 1, {member.member_id: everything()})
    assert synced_partitions(call(env, request, 5)) == [0, 1, 2, 3]
    return str(member.member_id)


def rejoin(env: BrokerEnvironment, member_id: str, **fields: Any) -> Any:
    request = join_request(member_id, **fields)
    return decode_response(request, start_call(env, request, 9).result, 9)


def test_empty_classic_group_becomes_consumer_group(env):
    member_id = classic(env)
    leave(env, (member_id, None))
    assert assigned(member_heartbeat(env, "m1")) == [0, 1, 2, 3]
    assert [one.kind for one in restarted(env).broker.groups] == ["consumer"]


def test_empty_consumer_group_becomes_classic_group(env):
    member_heartbeat(env, "m1")
    member_heartbeat(env, "m1", -1)
    classic(env)
    assert kind(env) == "classic"
    assert [one.kind for one in restarted(env).broker.groups] == ["classic"]


def test_empty_consumer_group_stays_if_classic_join_is_refused(env):
    member_heartbeat(env, "m1")
    member_heartbeat(env, "m1", -1)
    request = join_request(protocols=[])
    assert (
        decode_response(request, start_call(env, request, 9).result, 9).error_code
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert rejoin(env, "unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert kind(env) == "consumer"


def test_members_of_both_protocols_share_a_group(env):
    old = classic(env)
    reply = member_heartbeat(env, "new")
    assert (reply.error_code, reply.member_epoch, assigned(reply)) == (0, 2, [])
    assert kind(env) == "consumer"
    assert heartbeat(env, old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    # As clients with an eager assignor do.
    restarted = rejoin(env, old)
    assert (
        restarted.error_code,
        restarted.generation_id,
        restarted.protocol_name,
        restarted.leader,
        restarted.members,
    ) == (0, 2, "range", "", [])
    kept = synced_partitions(classic_sync(env, old, 2))
    assert len(kept) == 2
    assert heartbeat(env, old, 2) == 0
    assert sorted(kept + assigned(member_heartbeat(env, "new", 2))) == [0, 1, 2, 3]


def test_group_becomes_classic_when_last_consumer_protocol_member_leaves(env):
    old = classic(env)
    member_heartbeat(env, "new")
    rejoin(env, old)
    classic_sync(env, old, 2)
    member_heartbeat(env, "new", -1)
    assert (kind(env), env.broker.groups.get("g").state) == (
        "classic",
        GroupState.PREPARING_REBALANCE,
    )
    assert heartbeat(env, old, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    member = rejoin(env, old)
    assert (member.generation_id, member.leader) == (3, old)
    assert synced_partitions(classic_sync(env, old, 3, **{old: everything()})) == [0, 1, 2, 3]
    assert [one.kind for one in restarted(env).broker.groups] == ["classic"]


def test_group_becomes_classic_when_last_consumer_protocol_member_times_out(env):
    old = classic(env)
    member_heartbeat(env, "new")
    rejoin(env, old, session_timeout_ms=60_000)
    classic_sync(env, old, 2)
    env.clock.advance(SESSION)
    assert kind(env) == "classic"


def test_waiting_join_is_retried_when_group_becomes_consumer_group(env):
    classic(env)
    joining = join_request(instance="i1")
    second = start_call(env, joining, 9)
    assert not second.is_done
    member_heartbeat(env, "new")
    assert decode_response(joining, second.result, 9).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_policy_can_prevent_upgrade(policy):
    env = open_environment(group_consumer_migration_policy=policy)
    env.topic("orders", 4)
    old = classic(env)
    assert member_heartbeat(env, "new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert heartbeat(env, old, 1) == 0


def test_policy_can_prevent_downgrade():
    env = open_environment(
        group_consumer_migration_policy="upgrade", group_consumer_assignment_interval_ms=0
    )
    env.topic("orders", 4)
    old = classic(env)
    member_heartbeat(env, "new")
    rejoin(env, old)
    member_heartbeat(env, "new", -1)
    assert kind(env) == "consumer"


def test_group_of_other_protocol_type_is_not_upgraded(env):
    request = join_request(instance="w", protocol_type="connect", metadata=b"its own")
    waiting = start_call(env, request, 9)
    env.clock.advance(INITIAL_DELAY)
    member = decode_response(request, waiting.result, 9)
    reply = member_heartbeat(env, "new")
    assert (reply.error_code, kind(env)) == (ErrorCode.GROUP_ID_NOT_FOUND, "classic")
    assert heartbeat(env, member.member_id, 1, instance="w") == ErrorCode.NONE


def test_group_with_unreadable_assignments_is_not_upgraded(env):
    member = joined(env)
    classic_sync(env, member.member_id, 1, **{member.member_id: b"not an assignment"})
    assert member_heartbeat(env, "new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert heartbeat(env, member.member_id, 1) == 0


def test_group_of_both_protocols_continues_after_restart(env):
    old = classic(env)
    member_heartbeat(env, "new")
    rejoin(env, old)
    classic_sync(env, old, 2)
    member_heartbeat(env, "new", 2)
    env = restarted(env)
    assert (heartbeat(env, old, 2), member_heartbeat(env, "new", 2).error_code) == (0, 0)


def test_classic_member_that_does_not_rejoin_is_removed(env):
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


def test_classic_requests_of_consumer_protocol_member_are_refused(env):
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


def test_admin_can_remove_static_consumer_protocol_member(env):
    member_heartbeat(env, "m1", instance_id="one")
    assert leave(env, ("", "one")) == [0]
    assert env.broker.groups.get("g").is_empty
