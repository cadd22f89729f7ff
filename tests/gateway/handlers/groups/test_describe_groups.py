"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

import pytest
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)

from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.group_messages import ConsumerGroupHeartbeatRequest
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.groups.group_requests import joined, leave, stable, subscription
from tests.gateway.handlers.handler_calls import call


@pytest.fixture
def env() -> BrokerEnvironment:
    """A topic, and a group with committed offsets only."""
    env = open_environment()
    env.topic("orders")
    ended(
        env.broker.offsets.commit("simple", {("orders", 0): CommittedOffset(7, -1, "", env.now())})
    )
    return env


def listed(env: BrokerEnvironment, version: int = 5, **filters: list[str]) -> list[tuple[str, ...]]:
    reply = call(
        env, ListGroupsRequest(**{"states_filter": [], "types_filter": []} | filters), version
    )
    assert reply.error_code == 0
    return [
        (row.group_id, row.protocol_type, row.group_state, row.group_type) for row in reply.groups
    ]


def described(env: BrokerEnvironment, *names: str, version: int = 6, asks: bool = False) -> list:
    return call(
        env,
        DescribeGroupsRequest(groups=list(names), include_authorized_operations=asks),
        version,
    ).groups


@pytest.mark.parametrize("version", range(6))
def test_list_returns_groups_with_members_or_offsets(env, version):
    stable(env)
    states, kinds = (
        ("Stable", "Empty") if version >= 4 else ("", ""),
        "classic" if version >= 5 else "",
    )
    assert listed(env, version) == [
        ("g", "consumer", states[0], kinds),
        ("simple", "", states[1], kinds),
    ]


def test_state_and_type_filters_ignore_case(env):
    stable(env)
    assert [row[0] for row in listed(env, states_filter=["stable", "Dead"])] == ["g"]
    assert [row[0] for row in listed(env, states_filter=["EMPTY"], types_filter=["Classic"])] == [
        "simple"
    ]
    assert listed(env, types_filter=["consumer"]) == []
    assert listed(env, states_filter=["no such state"]) == []


@pytest.mark.parametrize("version", range(7))
def test_describe_stable_group_returns_metadata_and_assignments(env, version):
    member = stable(env, instance="one")
    (group,) = described(env, "g", version=version)
    assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (row,) = group.members
    assert (row.member_id, row.client_id, row.client_host) == (
        member.member_id,
        "test",
        "/127.0.0.1",
    )
    assert (row.member_metadata, row.member_assignment) == (subscription("orders"), b"mine")
    if version >= 4:
        assert row.group_instance_id == "one"


def test_describe_rebalancing_group_returns_members_only(env):
    member = joined(env)
    (group,) = described(env, "g")
    assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
    assert [
        (row.member_id, row.member_metadata, row.member_assignment) for row in group.members
    ] == [(member.member_id, b"", b"")]


def test_group_with_offsets_only_is_empty(env):
    (group,) = described(env, "simple")
    assert (group.error_code, group.group_state, group.protocol_type, group.members) == (
        0,
        "Empty",
        "",
        [],
    )


@pytest.mark.parametrize("version", range(6))
def test_missing_group_is_dead(env, version):
    (group,) = described(env, "other", version=version)
    assert (group.error_code, group.group_state, group.members) == (0, "Dead", [])


def test_missing_group_is_an_error_since_v6(env):
    (group,) = described(env, "other")
    assert (group.error_code, group.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group other not found.",
    )


def test_consumer_group_is_listed_but_not_described(env):
    fields = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    call(
        env,
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, **fields),
        1,
    )
    assert listed(env, types_filter=["consumer"]) == [("g", "consumer", "Stable", "consumer")]
    (group,) = described(env, "g")
    assert (group.error_code, group.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a classic group.",
    )
    assert group.group_state == "Dead"


def test_repeated_group_is_described_once(env):
    assert [group.group_id for group in described(env, "g", "simple", "g")] == ["g", "simple"]


@pytest.mark.parametrize("version", range(3, 7))
def test_authorized_operations_are_returned_on_request(env, version):
    assert described(env, "simple", version=version, asks=True)[0].authorized_operations == {
        3,
        6,
        8,
    }
    # The codec's value for only the sign bit.
    assert described(env, "simple", version=version)[0].authorized_operations is None


@pytest.mark.parametrize("version", range(3))
def test_empty_group_is_deleted_with_its_offsets(env, version):
    member = stable(env)
    request = DeleteGroupsRequest(groups_names=["g", "simple", "other"])
    codes = [(row.group_id, row.error_code) for row in call(env, request, version).results]
    assert codes == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("simple", 0),
        ("other", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    leave(env, (member.member_id, None))
    codes = [(row.group_id, row.error_code) for row in call(env, request, version).results]
    assert codes == [
        ("g", 0),
        ("simple", ErrorCode.GROUP_ID_NOT_FOUND),
        ("other", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert listed(env) == []


def test_deleted_group_can_be_created_again(env):
    member = stable(env)
    leave(env, (member.member_id, None))
    call(env, DeleteGroupsRequest(groups_names=["g"]), 2)
    assert stable(env).generation_id == 1
