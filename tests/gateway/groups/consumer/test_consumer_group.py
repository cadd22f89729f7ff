"""Rules of a consumer group (KIP-848)."""

from __future__ import annotations

import pytest

from gateway.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from gateway.groups.consumer.consumer_member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    MemberState,
)
from gateway.groups.consumer.consumer_rows import decode_group, encode, parse_key
from gateway.groups.group_effects import NEVER
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
    """m1 and m2, stable in epoch 2 with two of the four partitions each."""
    harness.heartbeat("m1")
    harness.heartbeat("m2")
    harness.heartbeat("m1", 1)
    harness.heartbeat("m1", 1, owned=of(0, 1))
    harness.heartbeat("m2", 2)
    assert harness.group.state is ConsumerGroupState.STABLE


def has(harness: ConsumerGroupHarness, member_id: str) -> set[int]:
    return set(harness.group.roster.get(member_id).assigned.get(A, ()))


def test_first_member_is_assigned_all_partitions_in_epoch_1(harness):
    beaten = harness.heartbeat("m1")
    assert (beaten.code, beaten.member_id, beaten.epoch, beaten.assignment) == (
        ErrorCode.NONE,
        "m1",
        1,
        of(0, 1, 2, 3),
    )
    assert harness.group.state is ConsumerGroupState.STABLE


def test_heartbeat_returns_only_changed_assignment(harness):
    harness.heartbeat("m1")
    assert harness.heartbeat("m1", 1).assignment is None


def test_full_heartbeat_returns_assignment(harness):
    harness.heartbeat("m1")
    beaten = harness.heartbeat(
        "m1", 1, rebalance_timeout_ms=REBALANCE, topics=frozenset({"a"}), owned=of(0)
    )
    assert beaten.assignment == of(0, 1, 2, 3)


def test_partition_is_assigned_after_previous_owner_releases_it(harness):
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


def test_partitions_of_leaving_member_are_reassigned(harness):
    two(harness)
    assert harness.heartbeat("m2", LEAVE_EPOCH).epoch == LEAVE_EPOCH
    beaten = harness.heartbeat("m1", 2)
    assert (beaten.epoch, beaten.assignment) == (3, of(0, 1, 2, 3))


def test_silent_member_is_removed_at_session_timeout(harness):
    two(harness)
    harness.now += SESSION - 1
    harness.heartbeat("m1", 2)
    harness.pass_time(1)
    assert "m2" not in harness.group.roster
    assert harness.heartbeat("m1", 2).assignment == of(0, 1, 2, 3)
    assert harness.heartbeat("m2", 2).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_converted_group_has_no_deadlines(
    harness,
):
    harness.heartbeat("m1")
    for member_id in ("c1", "c2"):
        harness.join(member_id, metadata_of(set()), protocol="range")
    harness.pass_time(SESSION)
    assert harness.group.successor is not None
    assert harness.group.next_expire_at == NEVER
    assert "m1" not in harness.group.successor.roster


def test_member_that_does_not_revoke_in_time_is_removed_despite_heartbeats(harness):
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


def test_wrong_member_epoch_is_fenced(harness):
    two(harness)
    assert harness.heartbeat("m1", 3).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert harness.heartbeat("m1", 1).code is ErrorCode.FENCED_MEMBER_EPOCH


def test_previous_epoch_is_accepted_after_lost_reply(harness):
    two(harness)
    harness.heartbeat("m2", LEAVE_EPOCH)
    assert harness.heartbeat("m1", 2).epoch == 3
    assert harness.heartbeat("m1", 2, owned=of(0, 1)).epoch == 3
    assert harness.heartbeat("m1", 2, owned=of(5)).code is ErrorCode.FENCED_MEMBER_EPOCH


def test_unknown_member_is_refused(harness):
    two(harness)
    assert harness.heartbeat("m9", 2).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("m9", LEAVE_EPOCH).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_full_group_refuses_new_members():
    harness = ConsumerGroupHarness(group_max_size=1)
    harness.heartbeat("m1")
    assert harness.heartbeat("m2").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.heartbeat("m1", 1).code is ErrorCode.NONE


def test_added_partitions_cause_new_target(harness):
    harness.heartbeat("m1")
    harness.topology.make("a", 5)
    beaten = harness.heartbeat("m1", 1)
    assert (beaten.epoch, beaten.assignment) == (2, of(0, 1, 2, 3, 4))


def test_topic_created_later_is_assigned(harness):
    harness.heartbeat("m1", topics=frozenset({"a", "b"}))
    harness.topology.make("b", 1)
    assert len(harness.heartbeat("m1", 1).assignment) == 2


def test_unsubscribed_topic_does_not_change_epoch(harness):
    harness.heartbeat("m1")
    harness.topology.make("b", 1)
    assert harness.heartbeat("m1", 1).epoch == 1


def test_regex_matches_new_topics_and_is_evaluated_at_intervals(
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


def test_regex_topics_count_until_last_subscriber_is_gone(harness):
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


def test_invalid_regex_changes_nothing(harness):
    harness.heartbeat("m1")
    assert harness.heartbeat("m1", 1, regex="(").code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (
        harness.heartbeat("m2", topics=None, regex="(").code is ErrorCode.INVALID_REGULAR_EXPRESSION
    )
    assert harness.heartbeat("m1", 1).epoch == 1
    assert len(harness.group.roster) == 1


def test_unsubscribed_topic_is_revoked_at_once(harness):
    harness.topology.make("b", 1)
    harness.heartbeat("m1", topics=frozenset({"a", "b"}))
    beaten = harness.heartbeat("m1", 1, topics=frozenset({"a"}))
    assert beaten.assignment == of(0, 1, 2, 3)
    assert harness.group.roster.get("m1").state is MemberState.UNREVOKED


def test_most_requested_assignor_is_used(harness):
    harness.heartbeat("m1", assignor="range")
    assert harness.group.assignor == "range"
    harness.heartbeat("m2", assignor="uniform")
    harness.heartbeat("m3", assignor="uniform")
    assert harness.group.assignor == "uniform"


def test_burst_of_joins_causes_one_target():
    harness = ConsumerGroupHarness(group_consumer_assignment_interval_ms=1_000)
    harness.heartbeat("m1")
    assert harness.heartbeat("m2").epoch == 1
    assert harness.heartbeat("m3").epoch == 1
    assert harness.group.state is ConsumerGroupState.ASSIGNING
    harness.now += 1_000
    assert harness.heartbeat("m2", 1).epoch == 3
    assert harness.group.target_epoch == 3


def test_returning_static_member_keeps_partitions(harness):
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


def test_active_static_member_is_not_replaced(harness):
    harness.heartbeat("m1", instance_id="one")
    assert harness.heartbeat("m2", instance_id="one").code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_dynamic_member_that_becomes_static_is_counted_once(harness):
    harness.heartbeat("m1", instance_id="one")
    harness.heartbeat("m2")
    harness.heartbeat("m1", STATIC_LEAVE_EPOCH, instance_id="one")
    assert harness.heartbeat("m2", instance_id="one").code is ErrorCode.NONE
    assert [(member.member_id, member.instance_id) for member in harness.group.roster] == [
        ("m2", "one")
    ]
    rows = {key: row for write in harness.writes for key, row in write.rows.items()}
    assert len([row for row in rows.values() if row is not None]) == 2


@pytest.mark.parametrize(
    ("protocol", "instance_id"),
    [("consumer", None), ("consumer", "two"), ("classic", None), ("classic", "one")],
)
def test_absent_static_member_joins_with_its_instance_id_only(protocol, instance_id):
    harness = ConsumerGroupHarness(group_consumer_migration_policy="upgrade")
    harness.heartbeat("m1", instance_id="one")
    harness.heartbeat("m1", STATIC_LEAVE_EPOCH, instance_id="one")
    before, epoch = harness.group.roster.get("m1"), harness.group.epoch
    if protocol == "consumer":
        refused = harness.heartbeat("m1", instance_id=instance_id)
        assert refused.code is ErrorCode.FENCED_MEMBER_EPOCH
    else:
        refused = harness.join("m1", metadata_of({0}), instance_id=instance_id)
        assert refused.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert (harness.group.roster.get("m1"), harness.group.epoch) == (before, epoch)
    assert harness.heartbeat("m1", instance_id="one").assignment == of(0, 1, 2, 3)


def test_absent_static_member_is_removed_at_session_timeout(harness):
    harness.heartbeat("m1", instance_id="one")
    harness.heartbeat("m1", STATIC_LEAVE_EPOCH, instance_id="one")
    harness.pass_time(SESSION - 1)
    assert len(harness.group.roster) == 1
    harness.pass_time(1)
    assert harness.group.is_empty


def test_epoch_of_empty_group_is_not_reset(harness):
    harness.heartbeat("m1")
    harness.heartbeat("m1", LEAVE_EPOCH)
    assert harness.group.is_empty
    assert harness.heartbeat("m2").epoch == 3


def test_reply_is_sent_after_changes_are_stored(harness):
    harness.holds_writes = True
    assert harness.heartbeat("m1") is None
    assert harness.heartbeat("m1", 1) is None
    harness.group.on_stored(harness.writes[0])
    harness.act()
    assert [reply.epoch for reply in harness.answers.values()] == [1, 1]


def test_failed_write_is_refused_and_stored_on_retry(harness):
    harness.holds_writes = True
    harness.heartbeat("m1")
    harness.group.on_store_failed(harness.writes.pop(), harness.now)
    harness.act()
    assert harness.answers[1].code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.holds_writes = False
    assert harness.heartbeat("m1").epoch == 1
    assert len(harness.writes[0].rows) == 2


def test_failed_write_is_retried_without_requests(harness):
    harness.holds_writes = True
    harness.heartbeat("m1")
    harness.group.on_store_failed(harness.writes.pop(), harness.now)
    assert harness.group.next_expire_at == harness.now + 1_000
    harness.pass_time(1_000)
    assert len(harness.writes) == 1


def test_group_continues_after_restart(harness):
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


def test_partitions_added_before_crash_are_found_after_it(harness):
    harness.heartbeat("m1")
    rows = dict(harness.writes[0].rows)
    harness.topology.make("a", 5)
    stored = decode_group((parse_key(key)[1], encode(row)) for key, row in rows.items())
    harness.group = ConsumerGroup.restored(
        "g", stored, harness.topology, harness.settings, harness.now
    )
    assert harness.heartbeat("m1", 1).assignment == of(0, 1, 2, 3, 4)


def test_commit_requires_member_and_epoch(harness):
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


def test_commit_of_older_epoch_is_limited_to_partitions_owned_since(harness):
    two(harness)
    fence = harness.group.validate_offset_commit("m1", 1, 9)
    (kept,) = {0, 1, 2, 3} & has(harness, "m1") - {max(has(harness, "m1"))}
    (lost, *_) = has(harness, "m2")
    assert fence(A, kept) is ErrorCode.NONE
    assert fence(A, lost) is ErrorCode.STALE_MEMBER_EPOCH


def test_empty_group_accepts_commits_without_member(harness):
    assert harness.group.validate_offset_commit("", -1, 2) is None


def test_offset_fetch_requires_epoch_or_no_member(harness):
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


def test_expensive_target_delays_next_target():
    """Fifty thousand partitions cost a tenth of a second; the minimum interval is twenty times
    it.
    """
    harness = ConsumerGroupHarness(50_000, group_consumer_assignment_interval_ms=1)
    harness.heartbeat("m1")
    harness.now += 1_999
    harness.heartbeat("m2")
    assert harness.group.epoch > harness.group.target_epoch
    harness.now += 2
    harness.heartbeat("m2", harness.group.roster.get("m2").epoch)
    assert harness.group.epoch == harness.group.target_epoch
