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
from tests.gateway.groups.consuming import REBALANCE, SESSION, A, Told, metadata_of, of


@pytest.fixture
def told() -> Told:
    return Told()


def two(told: Told) -> None:
    """m1 and m2 in epoch 2, stable: each has two of the four partitions."""
    told.beat("m1")
    told.beat("m2")
    told.beat("m1", 1)
    told.beat("m1", 1, owned=of(0, 1))
    told.beat("m2", 2)
    assert told.group.state is ConsumerGroupState.STABLE


def has(told: Told, member_id: str) -> set[int]:
    return set(told.group.roster.get(member_id).assigned.get(A, ()))


def test_the_first_member_has_everything_in_epoch_1(told):
    beaten = told.beat("m1")
    assert (beaten.code, beaten.member_id, beaten.epoch, beaten.assignment) == (
        ErrorCode.NONE,
        "m1",
        1,
        of(0, 1, 2, 3),
    )
    assert told.group.state is ConsumerGroupState.STABLE


def test_a_member_is_told_its_assignment_only_when_that_is_new(told):
    told.beat("m1")
    assert told.beat("m1", 1).assignment is None


def test_a_member_that_says_everything_is_told_everything(told):
    told.beat("m1")
    beaten = told.beat(
        "m1", 1, rebalance_timeout_ms=REBALANCE, topics=frozenset({"a"}), owned=of(0)
    )
    assert beaten.assignment == of(0, 1, 2, 3)


def test_a_partition_is_given_on_when_it_was_given_back(told):
    told.beat("m1")
    second = told.beat("m2")
    assert (second.epoch, second.assignment) == (2, {})
    first = told.beat("m1", 1)
    assert (first.epoch, len(first.assignment[A])) == (1, 2)
    assert told.group.state is ConsumerGroupState.RECONCILING
    assert told.beat("m2", 2).assignment is None
    back = told.beat("m1", 1, owned=first.assignment)
    assert (back.epoch, back.assignment) == (2, None)
    assert told.beat("m2", 2).assignment == of(*({0, 1, 2, 3} - first.assignment[A]))
    assert told.group.state is ConsumerGroupState.STABLE


def test_what_somebody_leaves_is_given_to_the_others(told):
    two(told)
    assert told.beat("m2", LEAVE_EPOCH).epoch == LEAVE_EPOCH
    beaten = told.beat("m1", 2)
    assert (beaten.epoch, beaten.assignment) == (3, of(0, 1, 2, 3))


def test_who_is_not_heard_of_is_gone_when_its_session_ends(told):
    two(told)
    told.now += SESSION - 1
    told.beat("m1", 2)
    told.pass_time(1)
    assert "m2" not in told.group.roster
    assert told.beat("m1", 2).assignment == of(0, 1, 2, 3)
    assert told.beat("m2", 2).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_becomes_a_classic_one_while_members_are_overdue_has_nothing_due_any_more(
    told,
):
    told.beat("m1")
    for member_id in ("c1", "c2"):
        told.join(member_id, metadata_of(set()), protocol="range")
    told.pass_time(SESSION)
    assert told.group.successor is not None
    assert told.group.due == NEVER
    assert "m1" not in told.group.successor.roster


def test_who_does_not_give_partitions_back_in_time_is_out_although_it_is_heard_of(told):
    told.beat("m1")
    told.beat("m2")
    told.beat("m1", 1)
    for _ in range(2):
        told.pass_time(REBALANCE / 2 - 1)
        told.beat("m1", 1)
        told.beat("m2", 2)
    assert "m1" in told.group.roster
    told.pass_time(2)
    assert "m1" not in told.group.roster
    assert told.beat("m2", 2).assignment == of(0, 1, 2, 3)


def test_a_member_of_an_epoch_that_is_not_its_own_is_fenced(told):
    two(told)
    assert told.beat("m1", 3).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert told.beat("m1", 1).code is ErrorCode.FENCED_MEMBER_EPOCH


def test_who_lost_its_answer_comes_with_the_epoch_before(told):
    two(told)
    told.beat("m2", LEAVE_EPOCH)
    assert told.beat("m1", 2).epoch == 3
    assert told.beat("m1", 2, owned=of(0, 1)).epoch == 3
    assert told.beat("m1", 2, owned=of(5)).code is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_stranger_is_told_so(told):
    two(told)
    assert told.beat("m9", 2).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert told.beat("m9", LEAVE_EPOCH).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_in():
    told = Told(group_max_size=1)
    told.beat("m1")
    assert told.beat("m2").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert told.beat("m1", 1).code is ErrorCode.NONE


def test_a_topic_that_grows_makes_a_new_target(told):
    told.beat("m1")
    told.topology.make("a", 5)
    beaten = told.beat("m1", 1)
    assert (beaten.epoch, beaten.assignment) == (2, of(0, 1, 2, 3, 4))


def test_a_topic_that_is_made_later_is_assigned_then(told):
    told.beat("m1", topics=frozenset({"a", "b"}))
    told.topology.make("b", 1)
    assert len(told.beat("m1", 1).assignment) == 2


def test_a_topic_that_nobody_reads_moves_nothing(told):
    told.beat("m1")
    told.topology.make("b", 1)
    assert told.beat("m1", 1).epoch == 1


def test_a_regular_expression_names_topics_that_come_later_and_is_not_tried_at_every_heartbeat(
    told,
):
    beaten = told.beat("m1", topics=None, regex="[ab].*")
    assert beaten.assignment == of(0, 1, 2, 3)
    told.topology.make("b1", 1)
    matched = told.topology.matched
    assert told.beat("m1", 1).assignment is None
    assert told.topology.matched == matched
    told.now += 10_000
    assert len(told.beat("m1", 1).assignment) == 2


def test_what_a_regular_expression_names_counts_until_nobody_subscribes_by_it(told):
    empty = told.group.size
    told.beat("m1", topics=None, regex="a")
    alone = told.group.size
    assert alone - empty > told.group.roster.size
    stored = decode_group(
        (parse_key(key)[1], encode(row)) for key, row in told.writes[0].rows.items()
    )
    assert ConsumerGroup.restored("g", stored, told.topology, told.settings, told.now).size == alone
    told.beat("m1", LEAVE_EPOCH)
    assert told.group.size == empty


def test_a_regular_expression_that_is_none_changes_nothing(told):
    told.beat("m1")
    assert told.beat("m1", 1, regex="(").code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert told.beat("m2", topics=None, regex="(").code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert told.beat("m1", 1).epoch == 1
    assert len(told.group.roster) == 1


def test_what_a_member_no_longer_subscribes_to_it_gives_back_at_once(told):
    told.topology.make("b", 1)
    told.beat("m1", topics=frozenset({"a", "b"}))
    beaten = told.beat("m1", 1, topics=frozenset({"a"}))
    assert beaten.assignment == of(0, 1, 2, 3)
    assert told.group.roster.get("m1").state is MemberState.UNREVOKED


def test_the_assignor_that_most_ask_for_is_taken(told):
    told.beat("m1", assignor="range")
    assert told.group.assignor == "range"
    told.beat("m2", assignor="uniform")
    told.beat("m3", assignor="uniform")
    assert told.group.assignor == "uniform"


def test_many_who_come_at_once_are_assigned_together():
    told = Told(group_consumer_assignment_interval_ms=1_000)
    told.beat("m1")
    assert told.beat("m2").epoch == 1
    assert told.beat("m3").epoch == 1
    assert told.group.state is ConsumerGroupState.ASSIGNING
    told.now += 1_000
    assert told.beat("m2", 1).epoch == 3
    assert told.group.target_epoch == 3


def test_a_static_member_that_will_be_back_keeps_its_partitions_under_its_next_id(told):
    told.beat("m1", instance_id="one")
    told.beat("m2")
    told.beat("m1", 1, instance_id="one")
    told.beat("m1", 1, instance_id="one", owned=of(0, 1))
    before = has(told, "m1")
    assert told.beat("m1", STATIC_LEAVE_EPOCH, instance_id="one").epoch == STATIC_LEAVE_EPOCH
    back = told.beat("m3", instance_id="one")
    assert (back.epoch, back.assignment) == (2, of(*before))
    assert told.group.epoch == 2
    assert told.beat("m1", 2, instance_id="one").code is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_is_there_is_not_replaced(told):
    told.beat("m1", instance_id="one")
    assert told.beat("m2", instance_id="one").code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_member_that_takes_a_static_members_place_is_one_member(told):
    told.beat("m1", instance_id="one")
    told.beat("m2")
    told.beat("m1", STATIC_LEAVE_EPOCH, instance_id="one")
    assert told.beat("m2", instance_id="one").code is ErrorCode.NONE
    assert [(member.member_id, member.instance_id) for member in told.group.roster] == [
        ("m2", "one")
    ]
    rows = {key: row for write in told.writes for key, row in write.rows.items()}
    assert len([row for row in rows.values() if row is not None]) == 2


def test_a_static_member_that_does_not_come_back_is_gone_when_its_session_ends(told):
    told.beat("m1", instance_id="one")
    told.beat("m1", STATIC_LEAVE_EPOCH, instance_id="one")
    told.pass_time(SESSION - 1)
    assert len(told.group.roster) == 1
    told.pass_time(1)
    assert told.group.is_empty


def test_the_epoch_of_an_empty_group_goes_on_rising(told):
    told.beat("m1")
    told.beat("m1", LEAVE_EPOCH)
    assert told.group.is_empty
    assert told.beat("m2").epoch == 3


def test_nobody_is_told_anything_before_it_is_stored(told):
    told.is_held = True
    assert told.beat("m1") is None
    assert told.beat("m1", 1) is None
    told.group.written(told.writes[0])
    told.act()
    assert [reply.epoch for reply in told.answers.values()] == [1, 1]


def test_what_could_not_be_stored_is_asked_for_again_and_stored_then(told):
    told.is_held = True
    told.beat("m1")
    told.group.write_failed(told.writes.pop(), told.now)
    told.act()
    assert told.answers[1].code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    told.is_held = False
    assert told.beat("m1").epoch == 1
    assert len(told.writes[0].rows) == 2


def test_what_could_not_be_stored_is_tried_again_though_nobody_asks(told):
    told.is_held = True
    told.beat("m1")
    told.group.write_failed(told.writes.pop(), told.now)
    assert told.group.due == told.now + 1_000
    told.pass_time(1_000)
    assert len(told.writes) == 1


def test_a_group_goes_on_after_a_restart_as_if_nothing_had_been(told):
    two(told)
    rows = {}
    for write in told.writes:
        rows |= write.rows
    stored = decode_group(
        (parse_key(key)[1], encode(row)) for key, row in rows.items() if row is not None
    )
    told.group = ConsumerGroup.restored("g", stored, told.topology, told.settings, told.now)
    assert (told.beat("m1", 2).epoch, told.beat("m2", 2).epoch) == (2, 2)
    assert told.group.state is ConsumerGroupState.STABLE
    assert has(told, "m1") | has(told, "m2") == {0, 1, 2, 3}


def test_a_topic_that_grew_just_before_a_crash_is_seen_after_it(told):
    told.beat("m1")
    rows = dict(told.writes[0].rows)
    told.topology.make("a", 5)
    stored = decode_group((parse_key(key)[1], encode(row)) for key, row in rows.items())
    told.group = ConsumerGroup.restored("g", stored, told.topology, told.settings, told.now)
    assert told.beat("m1", 1).assignment == of(0, 1, 2, 3, 4)


def test_who_commits_must_be_a_member_in_its_epoch(told):
    two(told)
    group = told.group
    assert group.check_commit("m1", 2, 9) is None
    for member_id, epoch, version, code in [
        ("m9", 2, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 3, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("m1", 2, 8, ErrorCode.UNSUPPORTED_VERSION),
    ]:
        with pytest.raises(KafkaError) as refusal:
            group.check_commit(member_id, epoch, version)
        assert refusal.value.code is code


def test_a_commit_of_an_older_epoch_is_for_what_the_member_has_had_since_then(told):
    two(told)
    fence = told.group.check_commit("m1", 1, 9)
    (kept,) = {0, 1, 2, 3} & has(told, "m1") - {max(has(told, "m1"))}
    (lost, *_) = has(told, "m2")
    assert fence(A, kept) is ErrorCode.NONE
    assert fence(A, lost) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_group_without_members_takes_commits_of_nobody(told):
    assert told.group.check_commit("", -1, 2) is None


def test_who_asks_where_the_group_stands_says_its_epoch_or_nothing(told):
    two(told)
    told.group.check_fetch(None, -1)
    told.group.check_fetch("m1", 2)
    for member_id, epoch, code in [
        ("m1", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m9", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(KafkaError) as refusal:
            told.group.check_fetch(member_id, epoch)
        assert refusal.value.code is code


def test_a_target_that_takes_long_is_not_made_again_soon():
    """A tenth of a second for fifty thousand partitions, and twenty times that in between."""
    told = Told(50_000, group_consumer_assignment_interval_ms=1)
    told.beat("m1")
    told.now += 1_999
    told.beat("m2")
    assert told.group.epoch > told.group.target_epoch
    told.now += 2
    told.beat("m2", told.group.roster.get("m2").epoch)
    assert told.group.epoch == told.group.target_epoch
