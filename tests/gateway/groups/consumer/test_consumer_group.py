"""The rules of a consumer group, one by one (KIP-848)."""

from __future__ import annotations

import pytest

from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.consumer_rows import decode_group, encode, parse_key
from gateway.groups.consumer.consumer_states import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupState,
    MemberState,
)
from gateway.groups.consumer.group_epochs import NEVER
from gateway.protocol.errors import ErrorCode, KafkaError
from tests.gateway.groups.group_harness import (
    REBALANCE,
    SESSION,
    A,
    ConsumerGroupHarness,
    metadata_of,
    of,
)


@pytest.fixture
def harness() -> ConsumerGroupHarness:
    return ConsumerGroupHarness()


def two(harness: ConsumerGroupHarness) -> None:
    """m1 and m2 in epoch 2, stable: each has two of the four partitions."""
    harness.heartbeat("m1")
    harness.heartbeat("m2")
    harness.heartbeat("m1", 1)
    harness.heartbeat("m1", 1, owned=of(0, 1))
    harness.heartbeat("m2", 2)
    assert harness.group.state is ConsumerGroupState.STABLE


def has(harness: ConsumerGroupHarness, member_id: str) -> set[int]:
    return set(harness.group.roster.get(member_id).assigned.get(A, ()))


def test_the_first_member_has_everything_in_epoch_1(harness):
    beaten = harness.heartbeat("m1")
    assert (beaten.code, beaten.member_id, beaten.epoch, beaten.assignment) == (
        ErrorCode.NONE,
        "m1",
        1,
        of(0, 1, 2, 3),
    )
    assert harness.group.state is ConsumerGroupState.STABLE


def test_a_member_is_told_its_assignment_only_when_that_is_new(harness):
    harness.heartbeat("m1")
    assert harness.heartbeat("m1", 1).assignment is None


def test_a_member_that_says_everything_is_told_everything(harness):
    harness.heartbeat("m1")
    beaten = harness.heartbeat(
        "m1", 1, rebalance_timeout_ms=REBALANCE, topics=frozenset({"a"}), owned=of(0)
    )
    assert beaten.assignment == of(0, 1, 2, 3)


def test_a_partition_is_given_on_when_it_was_given_back(harness):
    harness.heartbeat("m1")
    second = harness.heartbeat("m2")
    assert (second.epoch, second.assignment) == (2, {})
    first = harness.heartbeat("m1", 1)
    assert (first.epoch, len(first.assignment[A])) == (1, 2)
    assert harness.group.state is ConsumerGroupState.RECONCILING
    assert harness.heartbeat("m2", 2).assignment is None
    back = harness.heartbeat("m1", 1, owned=first.assignment)
    assert (back.epoch, back.assignment) == (2, None)
    assert harness.heartbeat("m2", 2).assignment == of(*({0, 1, 2, 3} - first.assignment[A]))
    assert harness.group.state is ConsumerGroupState.STABLE


def test_what_somebody_leaves_is_given_to_the_others(harness):
    two(harness)
    assert harness.heartbeat("m2", LEAVE_EPOCH).epoch == LEAVE_EPOCH
    beaten = harness.heartbeat("m1", 2)
    assert (beaten.epoch, beaten.assignment) == (3, of(0, 1, 2, 3))


def test_who_is_not_heard_of_is_gone_when_its_session_ends(harness):
    two(harness)
    harness.now += SESSION - 1
    harness.heartbeat("m1", 2)
    harness.pass_time(1)
    assert "m2" not in harness.group.roster
    assert harness.heartbeat("m1", 2).assignment == of(0, 1, 2, 3)
    assert harness.heartbeat("m2", 2).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_becomes_a_classic_one_while_members_are_overdue_has_nothing_due_any_more(
    harness,
):
    harness.heartbeat("m1")
    for member_id in ("c1", "c2"):
        harness.join(member_id, metadata_of(set()), protocol="range")
    harness.pass_time(SESSION)
    assert harness.group.successor is not None
    assert harness.group.next_expire_at == NEVER
    assert "m1" not in harness.group.successor.roster


def test_who_does_not_give_partitions_back_in_time_is_out_although_it_is_heard_of(harness):
    harness.heartbeat("m1")
    harness.heartbeat("m2")
    harness.heartbeat("m1", 1)
    for _ in range(2):
        harness.pass_time(REBALANCE / 2 - 1)
        harness.heartbeat("m1", 1)
        harness.heartbeat("m2", 2)
    assert "m1" in harness.group.roster
    harness.pass_time(2)
    assert "m1" not in harness.group.roster
    assert harness.heartbeat("m2", 2).assignment == of(0, 1, 2, 3)


def test_a_member_of_an_epoch_that_is_not_its_own_is_fenced(harness):
    two(harness)
    assert harness.heartbeat("m1", 3).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert harness.heartbeat("m1", 1).code is ErrorCode.FENCED_MEMBER_EPOCH


def test_who_lost_its_answer_comes_with_the_epoch_before(harness):
    two(harness)
    harness.heartbeat("m2", LEAVE_EPOCH)
    assert harness.heartbeat("m1", 2).epoch == 3
    assert harness.heartbeat("m1", 2, owned=of(0, 1)).epoch == 3
    assert harness.heartbeat("m1", 2, owned=of(5)).code is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_stranger_is_told_so(harness):
    two(harness)
    assert harness.heartbeat("m9", 2).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("m9", LEAVE_EPOCH).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_in():
    harness = ConsumerGroupHarness(group_max_size=1)
    harness.heartbeat("m1")
    assert harness.heartbeat("m2").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.heartbeat("m1", 1).code is ErrorCode.NONE


def test_a_topic_that_grows_makes_a_new_target(harness):
    harness.heartbeat("m1")
    harness.topology.make("a", 5)
    beaten = harness.heartbeat("m1", 1)
    assert (beaten.epoch, beaten.assignment) == (2, of(0, 1, 2, 3, 4))


def test_a_topic_that_is_made_later_is_assigned_then(harness):
    harness.heartbeat("m1", topics=frozenset({"a", "b"}))
    harness.topology.make("b", 1)
    assert len(harness.heartbeat("m1", 1).assignment) == 2


def test_a_topic_that_nobody_reads_moves_nothing(harness):
    harness.heartbeat("m1")
    harness.topology.make("b", 1)
    assert harness.heartbeat("m1", 1).epoch == 1


def test_a_regular_expression_names_topics_that_come_later_and_is_not_tried_at_every_heartbeat(
    harness,
):
    beaten = harness.heartbeat("m1", topics=None, regex="[ab].*")
    assert beaten.assignment == of(0, 1, 2, 3)
    harness.topology.make("b1", 1)
    matched = harness.topology.matched
    assert harness.heartbeat("m1", 1).assignment is None
    assert harness.topology.matched == matched
    harness.now += 10_000
    assert len(harness.heartbeat("m1", 1).assignment) == 2


def test_what_a_regular_expression_names_counts_until_nobody_subscribes_by_it(harness):
    empty = harness.group.size
    harness.heartbeat("m1", topics=None, regex="a")
    alone = harness.group.size
    assert alone - empty > harness.group.roster.size
    stored = decode_group(
        (parse_key(key)[1], encode(row)) for key, row in harness.writes[0].rows.items()
    )
    assert (
        ConsumerGroup.restored("g", stored, harness.topology, harness.settings, harness.now).size
        == alone
    )
    harness.heartbeat("m1", LEAVE_EPOCH)
    assert harness.group.size == empty


def test_a_regular_expression_that_is_none_changes_nothing(harness):
    harness.heartbeat("m1")
    assert harness.heartbeat("m1", 1, regex="(").code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (
        harness.heartbeat("m2", topics=None, regex="(").code is ErrorCode.INVALID_REGULAR_EXPRESSION
    )
    assert harness.heartbeat("m1", 1).epoch == 1
    assert len(harness.group.roster) == 1


def test_what_a_member_no_longer_subscribes_to_it_gives_back_at_once(harness):
    harness.topology.make("b", 1)
    harness.heartbeat("m1", topics=frozenset({"a", "b"}))
    beaten = harness.heartbeat("m1", 1, topics=frozenset({"a"}))
    assert beaten.assignment == of(0, 1, 2, 3)
    assert harness.group.roster.get("m1").state is MemberState.UNREVOKED


def test_the_assignor_that_most_ask_for_is_taken(harness):
    harness.heartbeat("m1", assignor="range")
    assert harness.group.assignor == "range"
    harness.heartbeat("m2", assignor="uniform")
    harness.heartbeat("m3", assignor="uniform")
    assert harness.group.assignor == "uniform"


def test_many_who_come_at_once_are_assigned_together():
    harness = ConsumerGroupHarness(group_consumer_assignment_interval_ms=1_000)
    harness.heartbeat("m1")
    assert harness.heartbeat("m2").epoch == 1
    assert harness.heartbeat("m3").epoch == 1
    assert harness.group.state is ConsumerGroupState.ASSIGNING
    harness.now += 1_000
    assert harness.heartbeat("m2", 1).epoch == 3
    assert harness.group.target_epoch == 3


def test_a_static_member_that_will_be_back_keeps_its_partitions_under_its_next_id(harness):
    harness.heartbeat("m1", instance_id="one")
    harness.heartbeat("m2")
    harness.heartbeat("m1", 1, instance_id="one")
    harness.heartbeat("m1", 1, instance_id="one", owned=of(0, 1))
    before = has(harness, "m1")
    assert (
        harness.heartbeat("m1", STATIC_LEAVE_EPOCH, instance_id="one").epoch == STATIC_LEAVE_EPOCH
    )
    back = harness.heartbeat("m3", instance_id="one")
    assert (back.epoch, back.assignment) == (2, of(*before))
    assert harness.group.epoch == 2
    assert harness.heartbeat("m1", 2, instance_id="one").code is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_is_there_is_not_replaced(harness):
    harness.heartbeat("m1", instance_id="one")
    assert harness.heartbeat("m2", instance_id="one").code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_member_that_takes_a_static_members_place_is_one_member(harness):
    harness.heartbeat("m1", instance_id="one")
    harness.heartbeat("m2")
    harness.heartbeat("m1", STATIC_LEAVE_EPOCH, instance_id="one")
    assert harness.heartbeat("m2", instance_id="one").code is ErrorCode.NONE
    assert [(member.member_id, member.instance_id) for member in harness.group.roster] == [
        ("m2", "one")
    ]
    rows = {key: row for write in harness.writes for key, row in write.rows.items()}
    assert len([row for row in rows.values() if row is not None]) == 2


def test_a_static_member_that_does_not_come_back_is_gone_when_its_session_ends(harness):
    harness.heartbeat("m1", instance_id="one")
    harness.heartbeat("m1", STATIC_LEAVE_EPOCH, instance_id="one")
    harness.pass_time(SESSION - 1)
    assert len(harness.group.roster) == 1
    harness.pass_time(1)
    assert harness.group.is_empty


def test_the_epoch_of_an_empty_group_goes_on_rising(harness):
    harness.heartbeat("m1")
    harness.heartbeat("m1", LEAVE_EPOCH)
    assert harness.group.is_empty
    assert harness.heartbeat("m2").epoch == 3


def test_nobody_is_told_anything_before_it_is_stored(harness):
    harness.holds_writes = True
    assert harness.heartbeat("m1") is None
    assert harness.heartbeat("m1", 1) is None
    harness.group.on_stored(harness.writes[0])
    harness.act()
    assert [reply.epoch for reply in harness.answers.values()] == [1, 1]


def test_what_could_not_be_stored_is_asked_for_again_and_stored_then(harness):
    harness.holds_writes = True
    harness.heartbeat("m1")
    harness.group.on_store_failed(harness.writes.pop(), harness.now)
    harness.act()
    assert harness.answers[1].code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.holds_writes = False
    assert harness.heartbeat("m1").epoch == 1
    assert len(harness.writes[0].rows) == 2


def test_what_could_not_be_stored_is_tried_again_though_nobody_asks(harness):
    harness.holds_writes = True
    harness.heartbeat("m1")
    harness.group.on_store_failed(harness.writes.pop(), harness.now)
    assert harness.group.next_expire_at == harness.now + 1_000
    harness.pass_time(1_000)
    assert len(harness.writes) == 1


def test_a_group_goes_on_after_a_restart_as_if_nothing_had_been(harness):
    two(harness)
    rows = {}
    for write in harness.writes:
        rows |= write.rows
    stored = decode_group(
        (parse_key(key)[1], encode(row)) for key, row in rows.items() if row is not None
    )
    harness.group = ConsumerGroup.restored(
        "g", stored, harness.topology, harness.settings, harness.now
    )
    assert (harness.heartbeat("m1", 2).epoch, harness.heartbeat("m2", 2).epoch) == (2, 2)
    assert harness.group.state is ConsumerGroupState.STABLE
    assert has(harness, "m1") | has(harness, "m2") == {0, 1, 2, 3}


def test_a_topic_that_grew_just_before_a_crash_is_seen_after_it(harness):
    harness.heartbeat("m1")
    rows = dict(harness.writes[0].rows)
    harness.topology.make("a", 5)
    stored = decode_group((parse_key(key)[1], encode(row)) for key, row in rows.items())
    harness.group = ConsumerGroup.restored(
        "g", stored, harness.topology, harness.settings, harness.now
    )
    assert harness.heartbeat("m1", 1).assignment == of(0, 1, 2, 3, 4)


def test_who_commits_must_be_a_member_in_its_epoch(harness):
    two(harness)
    group = harness.group
    assert group.validate_offset_commit("m1", 2, 9) is None
    for member_id, epoch, version, code in [
        ("m9", 2, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 3, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("m1", 2, 8, ErrorCode.UNSUPPORTED_VERSION),
    ]:
        with pytest.raises(KafkaError) as refusal:
            group.validate_offset_commit(member_id, epoch, version)
        assert refusal.value.code is code


def test_a_commit_of_an_older_epoch_is_for_what_the_member_has_had_since_then(harness):
    two(harness)
    fence = harness.group.validate_offset_commit("m1", 1, 9)
    (kept,) = {0, 1, 2, 3} & has(harness, "m1") - {max(has(harness, "m1"))}
    (lost, *_) = has(harness, "m2")
    assert fence(A, kept) is ErrorCode.NONE
    assert fence(A, lost) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_group_without_members_takes_commits_of_nobody(harness):
    assert harness.group.validate_offset_commit("", -1, 2) is None


def test_who_asks_where_the_group_stands_says_its_epoch_or_nothing(harness):
    two(harness)
    harness.group.validate_offset_fetch(None, -1)
    harness.group.validate_offset_fetch("m1", 2)
    for member_id, epoch, code in [
        ("m1", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m9", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(KafkaError) as refusal:
            harness.group.validate_offset_fetch(member_id, epoch)
        assert refusal.value.code is code


def test_a_target_that_takes_long_is_not_made_again_soon():
    """A tenth of a second for fifty thousand partitions, and twenty times that in between."""
    harness = ConsumerGroupHarness(50_000, group_consumer_assignment_interval_ms=1)
    harness.heartbeat("m1")
    harness.now += 1_999
    harness.heartbeat("m2")
    assert harness.group.epoch > harness.group.target_epoch
    harness.now += 2
    harness.heartbeat("m2", harness.group.roster.get("m2").epoch)
    assert harness.group.epoch == harness.group.target_epoch
