"""ConsumerGroupDescribe."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from gateway.protocol.wire.messages import uuid_of
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.groups.group_requests import stable
from tests.gateway.handlers.handler_calls import call

#: Minimum interval between target assignments.
NEXT_TARGET = 1.0


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", partitions=2)
    return env


def member_heartbeat(env: BrokerEnvironment, member_id: str, epoch: int = 0, **fields: Any) -> Any:
    """A heartbeat to `g`.

    At epoch 0 the member joins and subscribes to orders unless `fields` differ.
    """
    joining = (
        {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["orders"],
            "topic_partitions": [],
        }
        if epoch == 0
        else {}
    )
    reply = call(
        env,
        ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, **joining | fields
        ),
        1,
    )
    assert reply.error_code == 0, reply.error_message
    return reply


def described(
    env: BrokerEnvironment, *names: str, version: int = 1, asks: bool = False
) -> list[Any]:
    request = ConsumerGroupDescribeRequest(
        group_ids=list(names), include_authorized_operations=asks
    )
    return list(call(env, request, version).groups)


def rows(assignment: Any) -> list[tuple[str, list[int]]]:
    return [(row.topic_name, row.partitions) for row in assignment.topic_partitions]


@pytest.mark.parametrize("version", [0, 1])
def test_describe_returns_epochs_members_and_assignments(env, version):
    joined = member_heartbeat(env, "m", instance_id="one", rack_id="r", server_assignor="range")
    (group,) = described(env, "g", version=version)
    assert (group.error_code, group.error_message, group.group_id, group.group_state) == (
        0,
        None,
        "g",
        "Stable",
    )
    assert group.group_epoch == group.assignment_epoch == joined.member_epoch
    assert group.assignor_name == "range"
    (row,) = group.members
    assert (row.member_id, row.instance_id, row.rack_id, row.member_epoch) == (
        "m",
        "one",
        "r",
        joined.member_epoch,
    )
    assert (row.client_id, row.client_host) == ("test", "/127.0.0.1")
    assert (row.subscribed_topic_names, row.subscribed_topic_regex) == (["orders"], "")
    assert rows(row.assignment) == rows(row.target_assignment) == [("orders", [0, 1])]
    assert [one.topic_id for one in row.assignment.topic_partitions] == [
        uuid_of(env.broker.topics.require("orders").topic.topic_id)
    ]
    if version >= 1:
        assert row.member_type == 1


def test_assignment_differs_from_target_during_reconciliation(env):
    first = member_heartbeat(env, "a")
    env.clock.advance(NEXT_TARGET)
    second = member_heartbeat(env, "b")
    (group,) = described(env, "g")
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == (
        "Reconciling",
        second.member_epoch,
        second.member_epoch,
    )
    a, b = sorted(group.members, key=lambda row: row.member_id)
    assert (a.member_epoch, b.member_epoch) == (first.member_epoch, second.member_epoch)
    assert (rows(a.assignment), rows(b.assignment)) == ([("orders", [0, 1])], [])
    assert sorted(rows(a.target_assignment) + rows(b.target_assignment)) == [
        ("orders", [0]),
        ("orders", [1]),
    ]


def test_partition_being_revoked_counts_as_assigned(env):
    first = member_heartbeat(env, "a")
    env.clock.advance(NEXT_TARGET)
    member_heartbeat(env, "b")
    told = member_heartbeat(env, "a", first.member_epoch)
    assert [len(row.partitions) for row in told.assignment.topic_partitions] == [1]
    (group,) = described(env, "g")
    assert [rows(row.assignment) for row in group.members if row.member_id == "a"] == [
        [("orders", [0, 1])]
    ]
    member_heartbeat(
        env, "a", first.member_epoch, topic_partitions=told.assignment.topic_partitions
    )
    (group,) = described(env, "g")
    assert [
        len(part)
        for row in group.members
        if row.member_id == "a"
        for _, part in rows(row.assignment)
    ] == [1]


def test_group_without_current_target_is_assigning(env):
    member_heartbeat(env, "a")
    member_heartbeat(env, "b")
    (group,) = described(env, "g")
    assert (group.group_state, group.group_epoch > group.assignment_epoch) == ("Assigning", True)


def test_subscribed_regex_is_returned(env):
    member_heartbeat(env, "m", subscribed_topic_names=None, subscribed_topic_regex="or.*")
    (group,) = described(env, "g")
    assert [(row.subscribed_topic_names, row.subscribed_topic_regex) for row in group.members] == [
        ([], "or.*")
    ]


def test_group_without_members_is_empty(env):
    member_heartbeat(env, "m")
    member_heartbeat(env, "m", -1)
    (group,) = described(env, "g")
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", [])


def test_deleted_topic_is_left_out(env):
    member_heartbeat(env, "m")
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    (group,) = described(env, "g")
    assert [(rows(row.assignment), rows(row.target_assignment)) for row in group.members] == [
        ([], [])
    ]


def test_missing_and_classic_groups_are_errors(env):
    stable(env)
    ended(
        env.broker.offsets.commit("simple", {("orders", 0): CommittedOffset(7, -1, "", env.now())})
    )
    found = [
        (row.group_id, row.error_code, row.error_message)
        for row in described(env, "other", "g", "simple")
    ]
    assert found == [
        ("other", ErrorCode.GROUP_ID_NOT_FOUND, "Group other not found."),
        ("g", ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a consumer group."),
        ("simple", ErrorCode.GROUP_ID_NOT_FOUND, "Group simple is not a consumer group."),
    ]


def test_empty_group_id_is_refused(env):
    (row,) = described(env, "")
    assert row.error_code == ErrorCode.INVALID_GROUP_ID


def test_repeated_group_is_described_once(env):
    member_heartbeat(env, "m")
    assert [row.group_id for row in described(env, "g", "g")] == ["g"]


def test_authorized_operations_are_returned_for_existing_groups_on_request(env):
    member_heartbeat(env, "m")
    assert [row.authorized_operations for row in described(env, "g", "other", asks=True)] == [
        {3, 6, 8},
        None,
    ]
    assert [row.authorized_operations for row in described(env, "g")] == [None]
