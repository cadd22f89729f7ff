"""Rules of a classic group. General invariants are checked by `test_classic_group_model`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from gateway.groups.classic.classic_group import (
    ANSWERS,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    TRANSITIONS,
    ClassicGroup,
    GroupState,
)
from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.group_effects import LogEvent, Reply, StoreClassicGroup
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings

SESSION, REBALANCE = 10_000, 30_000


class GroupHarness:
    """A group without an initial delay, and its replies.

    Handles are names. Effects to store are completed at once unless `holds_store` is set.
    """

    def __init__(self, **settings: Any) -> None:
        self.group = ClassicGroup(
            "g", Settings(**{"group_initial_rebalance_delay_ms": 0} | settings), 0
        )
        self.now = 0
        self.answers: dict[Any, JoinResult | SyncResult] = {}
        self.pending_stores: list[StoreClassicGroup] = []
        self.events: list[LogEvent] = []
        self.holds_store = False

    def _take(self) -> None:
        for effect in self.group.take_effects():
            if isinstance(effect, Reply):
                assert effect.handle not in self.answers
                self.answers[effect.handle] = effect.result
            elif isinstance(effect, StoreClassicGroup):
                self.pending_stores.append(effect)
            else:
                self.events.append(effect)
        if self.pending_stores and not self.holds_store:
            self.group.on_stored(self.pending_stores.pop(0), self.now)
            self._take()

    def join(
        self,
        handle: str,
        member_id: str = "",
        *,
        new: str = "",
        protocols: Any = (("range", b"m"),),
        **fields: Any,
    ) -> Any:
        values = {
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "protocol_type": "consumer",
        } | fields
        timeouts = {"session_timeout_ms": SESSION, "rebalance_timeout_ms": REBALANCE}
        self.group.join(
            MemberJoin(member_id=member_id, protocols=protocols, **timeouts | values),
            new or handle,
            handle,
            self.now,
        )
        self._take()
        return self.answers.get(handle)

    def sync(self, handle: str, member_id: str, **words: bytes) -> Any:
        self.group.sync(
            MemberSync(member_id, None, self.group.generation, assignments=tuple(words.items())),
            handle,
            self.now,
        )
        self._take()
        return self.answers.get(handle)

    def leave(self, member_id: str) -> None:
        self.group.leave(member_id, None, "", self.now)
        self._take()

    def advance(self, ms: int) -> None:
        self.now += ms
        self.group.expire(self.now)
        self._take()

    def advance_with_heartbeat(self, member_id: str, ms: int) -> None:
        self.advance(ms)
        with suppress(KafkaError):
            self.group.heartbeat(member_id, self.group.generation, None, self.now)

    @property
    def state(self) -> GroupState:
        return self.group.state


@pytest.fixture
def two() -> GroupHarness:
    """Leader `a` and follower `b`, both without assignment."""
    harness = GroupHarness()
    harness.join("a")
    harness.join("b")
    harness.advance(0)
    harness.advance(0)
    assert (harness.answers["a"].leader, harness.answers["b"].generation, harness.state) == (
        "a",
        1,
        GroupState.COMPLETING_REBALANCE,
    )
    return harness


@pytest.fixture
def stable(two: GroupHarness) -> GroupHarness:
    two.sync("sync a", "a", a=b"A", b=b"B")
    assert two.sync("sync b", "b").assignment == b"B"
    return two


def test_first_rebalance_is_extended_up_to_rebalance_timeout():
    harness = GroupHarness(group_initial_rebalance_delay_ms=3_000)
    harness.join("a", rebalance_timeout_ms=5_000)
    for number in range(4):
        harness.advance(1_000)
        harness.join(f"b{number}", rebalance_timeout_ms=5_000)
    assert harness.state is GroupState.PREPARING_REBALANCE
    harness.advance(1_000)
    assert len(harness.answers["a"].members) == 5


def test_follower_sync_waits_for_leader_assignment(two):
    assert two.sync("sync b", "b") is None
    two.sync("sync a", "a", a=b"A", b=b"B")
    assert (two.answers["sync a"].assignment, two.answers["sync b"].assignment) == (b"A", b"B")


def test_member_missing_in_leader_assignment_gets_empty_assignment(two):
    two.sync("sync a", "a", a=b"A", unknown=b"N")
    assert two.sync("sync b", "b") == SyncResult(ErrorCode.NONE, "consumer", "range", b"")


def test_leaving_member_with_waiting_sync_gets_unknown_member_id(two):
    two.sync("sync b", "b")
    two.leave("b")
    assert two.answers["sync b"].code is ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_before_assignment_makes_others_rejoin(two):
    two.sync("sync b", "b")
    two.leave("a")
    assert two.answers["sync b"].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert two.join("b again", "b").leader == "b"


def test_assignment_stored_after_its_generation_is_discarded(two):
    two.holds_store = True
    two.sync("sync a", "a", a=b"old", b=b"old")
    late = two.pending_stores.pop()
    two.join("c")
    assert two.answers["sync a"].code is ErrorCode.REBALANCE_IN_PROGRESS
    two.join("a again", "a")
    two.join("b again", "b")
    two.sync("sync a again", "a", a=b"new", b=b"new")
    two.group.on_stored(late, two.now)
    two._take()
    assert "sync a again" not in two.answers
    two.holds_store = False
    two._take()
    assert two.answers["sync a again"].assignment == b"new"


def test_first_assignment_of_leader_is_used(two):
    two.holds_store = True
    two.sync("sync a", "a", a=b"first")
    two.sync("sync a again", "a", a=b"second")
    assert two.answers["sync a"].code is ErrorCode.REBALANCE_IN_PROGRESS
    two.holds_store = False
    two._take()
    assert two.answers["sync a again"].assignment == b"first"


def test_rejoin_of_leader_starts_rebalance(stable):
    assert stable.join("a again", "a") is None
    assert stable.state is GroupState.PREPARING_REBALANCE
    assert stable.join("b again", "b").generation == 2


def test_unchanged_rejoin_of_follower_returns_current_generation(stable):
    assert stable.join("b again", "b").generation == 1
    assert stable.state is GroupState.STABLE


def test_rejoin_with_new_metadata_starts_rebalance(stable):
    assert stable.join("b again", "b", protocols=(("range", b"other topics"),)) is None
    assert stable.join("a again", "a").members[1].metadata == b"other topics"


def test_member_that_does_not_rejoin_in_time_is_removed_despite_heartbeats(stable):
    stable.join("c")
    stable.join("a again", "a")
    for _ in range(6):
        stable.advance_with_heartbeat("b", REBALANCE // 6)
    assert [member.member_id for member in stable.answers["a again"].members] == ["a", "c"]


def test_waiting_member_needs_no_heartbeats(stable):
    stable.join("c")
    stable.join("a again", "a")
    for _ in range(2):
        stable.advance_with_heartbeat("b", SESSION - 1)
    assert stable.state is GroupState.PREPARING_REBALANCE
    assert "a" in stable.group.roster


def test_first_join_of_new_member_times_out():
    harness = GroupHarness(group_max_session_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    harness.join(
        "a",
        rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS,
        session_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS,
    )
    harness.advance(0)
    harness.sync("sync a", "a")
    harness.join("b", rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    harness.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert harness.answers["b"] == JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_repeated_join_replaces_waiting_one(stable):
    stable.join("a again", "a")
    stable.join("a once more", "a")
    assert stable.answers["a again"].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert stable.join("b again", "b").generation == stable.answers["a once more"].generation == 2


def test_rebalance_waits_for_pending_members(stable):
    assert stable.join("c", new="c-1", requires_member_id=True).code is ErrorCode.MEMBER_ID_REQUIRED
    stable.join("a again", "a")
    assert stable.join("b again", "b") is None
    assert len(stable.join("c again", "c-1").members) == 0
    assert len(stable.answers["a again"].members) == 3


def test_pending_member_can_leave(stable):
    stable.join("c", new="c-1", requires_member_id=True)
    stable.leave("c-1")
    assert stable.state is GroupState.STABLE
    assert stable.join("c again", "c-1").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_full_group_refuses_new_members():
    harness = GroupHarness(group_max_size=1)
    harness.join("a")
    harness.advance(0)
    assert harness.join("b").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    harness.sync("sync a", "a")
    assert harness.join("c").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.state is GroupState.STABLE


def test_join_without_common_protocol_is_refused(stable):
    assert (
        stable.join("c", protocols=(("sticky", b""),)).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert stable.join("d", protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stable.state is GroupState.STABLE


def test_static_member_that_misses_rebalance_stays():
    harness = GroupHarness()
    harness.join("a")
    harness.join("s", instance_id="one")
    harness.advance(0)
    harness.advance(0)
    harness.sync("sync a", "a")
    harness.join("a again", "a")
    for _ in range(6):
        harness.advance_with_heartbeat("s", REBALANCE // 6)
    assert [member.member_id for member in harness.answers["a again"].members] == ["a", "s"]


def test_static_member_can_rejoin_during_rebalance():
    harness = GroupHarness()
    harness.join("s", instance_id="one")
    harness.join("t", instance_id="one")
    assert harness.answers["s"].code is ErrorCode.FENCED_INSTANCE_ID
    harness.advance(0)
    assert (harness.answers["t"].leader, harness.answers["t"].generation) == ("t", 1)


def test_log_events_have_reasons(stable):
    stable.join("c", reason="more work")
    assert (stable.events[-1].event, stable.events[-1].reason, stable.events[-1].member_id) == (
        "rebalance started",
        "member joined: more work",
        "c",
    )


def test_leave_logs_removal_and_rebalance(stable):
    stable.leave("b")
    assert [(note.event, note.reason, note.member_id) for note in stable.events[-2:]] == [
        ("member removed", "left", "b"),
        ("rebalance started", "member removed: left", "b"),
    ]


def test_every_state_has_transitions():
    assert set(TRANSITIONS) == set(GroupState)


@pytest.mark.parametrize("state", GroupState)
def test_dead_state_is_final_and_reachable_from_all_others(state):
    assert (GroupState.DEAD in TRANSITIONS[state]) == (state is not GroupState.DEAD)
    assert not TRANSITIONS[GroupState.DEAD]


def test_invalid_transition_raises():
    group = ClassicGroup("g", Settings(), 0)
    with pytest.raises(RuntimeError, match="Empty cannot move to Stable"):
        group._transition(GroupState.STABLE, 0)


def test_every_state_with_members_has_answers():
    assert set(ANSWERS) == set(GroupState) - {GroupState.EMPTY, GroupState.DEAD}
