"""Assignments of members when a group changes its protocol (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.groups.classic.classic_group import ClassicGroup, GroupState
from gateway.groups.classic.classic_member import MemberJoin, MemberSync
from gateway.groups.classic.subscription import MAX_ELEMENTS, encode_assignment, parse_assignment
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.consumer_member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ClassicMemberMetadata,
    ConsumerGroupMember,
    MemberHeartbeat,
    MemberState,
)
from gateway.groups.group_effects import Reply, StoreClassicGroup, StoreRows
from gateway.groups.group_migration import check_upgrade, to_classic_group, to_consumer_group
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from tests.fakes.topology import FakeTopology, id_of
from tests.gateway.groups.group_harness import START, TOPIC, ConsumerGroupHarness, metadata_of

T = id_of(TOPIC)


@pytest.fixture
def topology() -> FakeTopology:
    topology = FakeTopology()
    topology.make(TOPIC, 4)
    return topology


def joined(*owned: set[int]) -> ClassicGroup:
    """A group in generation 1 that waits for assignments.

    Its members m0, m1, ... have reported owned partitions.
    """
    group = ClassicGroup("g", Settings(group_initial_rebalance_delay_ms=0), START)
    for number, indexes in enumerate(owned):
        words = (("sticky", metadata_of(indexes)),)
        group.join(
            MemberJoin("", f"i{number}", "c", "/h", "consumer", words, 30_000, 60_000),
            f"m{number}",
            number,
            START,
        )
    for _ in range(2):
        group.expire(START)
    assert group.state is GroupState.COMPLETING_REBALANCE
    group.take_effects()
    return group


def assign(group: ClassicGroup, *assignments: bytes) -> None:
    words = tuple((f"m{number}", words) for number, words in enumerate(assignments))
    group.sync(MemberSync("m0", None, 1, assignments=words), "sync", START)
    (save,) = group.take_effects()
    group.on_stored(save, START)
    assert group.state is GroupState.STABLE


def to(*indexes: int) -> bytes:
    return encode_assignment({TOPIC: frozenset(indexes)} if indexes else {}, b"\0\1")


def has(group: ClassicGroup, topology: FakeTopology) -> list[set[int]]:
    return [
        set(member.assigned.get(T, ())) for member in to_consumer_group(group, topology).members
    ]


def test_members_of_stable_group_keep_their_assignment(topology):
    group = joined({0, 1, 2, 3}, set())
    assign(group, to(0, 1), to(2, 3))
    stored = to_consumer_group(group, topology)
    assert [dict(member.assigned) for member in stored.members] == [
        {T: {0: 1, 1: 1}},
        {T: {2: 1, 3: 1}},
    ]
    assert [dict(member.target) for member in stored.members] == [
        {T: frozenset({0, 1})},
        {T: frozenset({2, 3})},
    ]
    assert {member.epoch for member in stored.members} == {stored.row.epoch} == {1}


def test_members_of_rebalancing_group_keep_owned_partitions(topology):
    assert has(joined({0, 1}, {2}), topology) == [{0, 1}, {2}]


def test_partition_owned_by_two_members_goes_to_the_first(topology):
    assert has(joined({0, 1}, {1, 2}), topology) == [{0, 1}, {2}]


def test_deleted_topic_is_not_assigned(topology):
    group = joined(set())
    assign(group, to(0, 1))
    topology.delete(TOPIC)
    assert to_consumer_group(group, topology).members[0].assigned == {}


@pytest.mark.parametrize(
    "assignments", [(to(0), to(0, 1)), (to(0)[:-4] + b"\0\0\0\1x", to(1)), (b"?", to(1))]
)
def test_group_with_unconvertible_assignments_stays_classic(topology, assignments):
    group = joined(set(), set())
    assign(group, *assignments)
    with pytest.raises(KafkaError) as refusal:
        to_consumer_group(group, topology)
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_group_over_max_size_stays_classic():
    with pytest.raises(KafkaError):
        check_upgrade(joined(set(), set()), Settings(group_max_size=1))


def test_converted_classic_members_get_their_target(topology):
    words = ClassicMemberMetadata(
        30_000, (("sticky", metadata_of(set())), ("range", metadata_of(set())))
    )
    members = [
        ConsumerGroupMember(
            1,
            "a",
            "i",
            None,
            "c",
            "/h",
            60_000,
            classic=words,
            epoch=7,
            target={T: frozenset({0, 3})},
        ),
        ConsumerGroupMember(
            2, "b", classic=ClassicMemberMetadata(30_000, (("range", metadata_of(set())),)), epoch=6
        ),
    ]
    group = to_classic_group("g", 7, members, topology, Settings(), START)
    assert (group.state, group.generation, group.protocol, group.roster.leader) == (
        GroupState.STABLE,
        7,
        "range",
        "a",
    )
    assert [parse_assignment(member.assignment)[0] for member in group.roster] == [
        {TOPIC: frozenset({0, 3})},
        {},
    ]
    assert group.subscribed_topics == frozenset({TOPIC})


def test_classic_members_of_rebalancing_group_keep_owned_partitions(topology):
    member = ConsumerGroupMember(
        1,
        "a",
        classic=ClassicMemberMetadata(30_000, (("range", metadata_of(set())),)),
        state=MemberState.UNREVOKED,
        epoch=6,
        assigned={T: {0: 6}},
        revoking={T: {1: 6}},
        target={T: frozenset({0, 3})},
    )
    group = to_classic_group("g", 7, [member], topology, Settings(), START, rebalances=True)
    assert [parse_assignment(one.assignment)[0] for one in group.roster] == [
        {TOPIC: frozenset({0, 1})}
    ]


def test_group_rebalances_again_after_restart_during_conversion_to_classic(topology):
    classic = joined(set())
    assign(classic, to(0, 1, 2, 3))
    consumer = upgraded(classic, topology)
    heartbeat(consumer, "c1", 0)
    heartbeat(consumer, "c1", LEAVE_EPOCH)
    group = consumer.successor
    assert group is not None
    (row,) = [one.row for one in group.take_effects() if isinstance(one, StoreClassicGroup)]
    restored = ClassicGroup.restored("g", row, Settings(), START)
    assert restored.state is group.state is GroupState.PREPARING_REBALANCE
    assert [member.member_id for member in restored.roster] == ["m0"]


@pytest.mark.parametrize("epochs", [(), (STATIC_LEAVE_EPOCH,)], ids=["still there", "away"])
def test_static_member_returning_with_classic_protocol_converts_group(epochs):
    harness = ConsumerGroupHarness(partitions=1)
    harness.topology.make(TOPIC, 2)
    harness.heartbeat("m", instance_id="one", topics=frozenset({TOPIC}))
    for epoch in epochs:
        harness.heartbeat("m", epoch, instance_id="one")
    harness.join("", metadata_of(set()), instance_id="one")
    group = harness.group.successor
    assert group is not None
    assert group.state is GroupState.STABLE
    assert [parse_assignment(member.assignment)[0] for member in group.roster] == [
        {TOPIC: frozenset({0, 1})}
    ]


def test_group_with_too_many_topics_stays_classic(topology):
    half = range(MAX_ELEMENTS // 2 + 1)
    group = joined(set(half), set(half))
    with pytest.raises(KafkaError, match="too many") as refusal:
        to_consumer_group(group, topology)
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    few = joined({0})
    assign(few, encode_assignment({TOPIC: frozenset(range(MAX_ELEMENTS + 1))}, bytes(2)))
    with pytest.raises(KafkaError, match="too many"):
        to_consumer_group(few, topology)


def heartbeat(group: ConsumerGroup, member_id: str, epoch: int) -> set[int]:
    """The partitions that a member with the consumer protocol is assigned."""
    request = MemberHeartbeat(member_id, epoch, None, None, 60_000, frozenset({TOPIC}), owned={})
    assert group.consumer_heartbeat(request, "beat", START)
    assignments = [result.assignment or {} for result in results_of(group)]
    return {index for assignment in assignments for index in assignment.get(T, ())}


def results_of(group: ConsumerGroup) -> list[Any]:
    """The results of all requests, after the group's changes are stored."""
    results: list[Any] = []
    while group.successor is None and (effects := group.take_effects()):
        for effect in effects:
            if isinstance(effect, StoreRows):
                group.on_stored(effect)
            elif isinstance(effect, Reply):
                results.append(effect.result)
    return results


def upgraded(group: ClassicGroup, topology: FakeTopology) -> ConsumerGroup:
    settings = Settings(group_consumer_assignment_interval_ms=0)
    stored = to_consumer_group(group, topology)
    return ConsumerGroup.restored("g", stored, topology, settings, START)


def test_partition_revoked_from_classic_member_is_not_assigned_until_it_rejoins(topology):
    classic = joined({0, 1, 2, 3}, set())
    assign(classic, to(0, 1), to())
    # m0 has not received its assignment, and still reads all partitions.
    consumer = upgraded(classic, topology)
    assert heartbeat(consumer, "c1", 0) == set()
    words = (("sticky", metadata_of(set())),)
    joining = MemberJoin("m0", "i0", "c", "/h", "consumer", words, 30_000, 60_000)
    consumer.join(joining, "", "join", START)
    results_of(consumer)
    assert heartbeat(consumer, "c1", consumer.epoch) != set()


def test_partitions_of_classic_member_stay_its_own_after_upgrade_downgrade_and_upgrade(topology):
    classic = joined(set())
    assign(classic, to(0, 1, 2, 3))
    consumer = upgraded(classic, topology)
    assert heartbeat(consumer, "c1", 0) == set()
    heartbeat(consumer, "c1", LEAVE_EPOCH)
    assert consumer.successor is not None
    assert consumer.successor.state is GroupState.PREPARING_REBALANCE
    # m0 has sent no request, and still reads all partitions.
    again = upgraded(consumer.successor, topology)
    assert heartbeat(again, "c2", 0) == set()
    member = again.roster.get("m0")
    assert member is not None
    assert set(member.assigned[T]) == {0, 1, 2, 3}
