"""Rules of a group, one at a time. What holds whatever happens is in `test_group_model`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from gateway.groups.classic.classic_group import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup
from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.classic.classic_states import GroupState
from gateway.groups.group_effects import LogEvent, Reply, StoreClassicGroup
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings

SESSION, REBALANCE = 10_000, 30_000


class Played:
    """A group without an initial delay, and what it answered. Handles are names; what it wants stored is stored at once unless `holds_store`."""

    def __init__(self, **settings: Any) -> None:
        self.group = ClassicGroup(
            "g", Settings(**{"group_initial_rebalance_delay_ms": 0} | settings), 0
        )
        self.now = 0
        self.answers: dict[Any, JoinResult | SyncResult] = {}
        self.saves: list[StoreClassicGroup] = []
        self.notes: list[LogEvent] = []
        self.holds_store = False

    def _take(self) -> None:
        for effect in self.group.take_effects():
            if isinstance(effect, Reply):
                assert effect.handle not in self.answers
                self.answers[effect.handle] = effect.result
            elif isinstance(effect, StoreClassicGroup):
                self.saves.append(effect)
            else:
                self.notes.append(effect)
        if self.saves and not self.holds_store:
            self.group.on_stored(self.saves.pop(0), self.now)
            self._take()

    def join_count(
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

    def syncs(self, handle: str, member_id: str, **words: bytes) -> Any:
        self.group.sync(
            MemberSync(member_id, None, self.group.generation, assignments=tuple(words.items())),
            handle,
            self.now,
        )
        self._take()
        return self.answers.get(handle)

    def leaves(self, member_id: str) -> None:
        self.group.leave(member_id, None, "", self.now)
        self._take()

    def passes(self, ms: int) -> None:
        self.now += ms
        self.group.expire(self.now)
        self._take()

    def lets_pass_with_heartbeats_of(self, member_id: str, ms: int) -> None:
        self.passes(ms)
        with suppress(KafkaError):
            self.group.heartbeat(member_id, self.group.generation, None, self.now)

    @property
    def state(self) -> GroupState:
        return self.group.state


@pytest.fixture
def two() -> Played:
    """`a` leads, `b` follows, and neither has its assignment yet."""
    played = Played()
    played.join_count("a")
    played.join_count("b")
    played.passes(0)
    played.passes(0)
    assert (played.answers["a"].leader, played.answers["b"].generation, played.state) == (
        "a",
        1,
        GroupState.COMPLETING_REBALANCE,
    )
    return played


@pytest.fixture
def stable(two: Played) -> Played:
    two.syncs("sync a", "a", a=b"A", b=b"B")
    assert two.syncs("sync b", "b").assignment == b"B"
    return two


def test_a_first_rebalance_waits_longer_for_each_newcomer_but_no_longer_than_members_allow():
    played = Played(group_initial_rebalance_delay_ms=3_000)
    played.join_count("a", rebalance_timeout_ms=5_000)
    for number in range(4):
        played.passes(1_000)
        played.join_count(f"b{number}", rebalance_timeout_ms=5_000)
    assert played.state is GroupState.PREPARING_REBALANCE
    played.passes(1_000)
    assert len(played.answers["a"].members) == 5


def test_a_follower_that_asks_before_the_leader_brings_the_assignment_waits_for_it(two):
    assert two.syncs("sync b", "b") is None
    two.syncs("sync a", "a", a=b"A", b=b"B")
    assert (two.answers["sync a"].assignment, two.answers["sync b"].assignment) == (b"A", b"B")


def test_who_is_left_out_of_the_assignment_has_an_empty_one(two):
    two.syncs("sync a", "a", a=b"A", nobody=b"N")
    assert two.syncs("sync b", "b") == SyncResult(ErrorCode.NONE, "consumer", "range", b"")


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_unknown(two):
    two.syncs("sync b", "b")
    two.leaves("b")
    assert two.answers["sync b"].code is ErrorCode.UNKNOWN_MEMBER_ID


def test_others_join_again_when_one_leaves_before_the_assignment(two):
    two.syncs("sync b", "b")
    two.leaves("a")
    assert two.answers["sync b"].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert two.join_count("b again", "b").leader == "b"


def test_an_assignment_that_is_stored_after_its_generation_is_over_is_told_to_nobody(two):
    two.holds_store = True
    two.syncs("sync a", "a", a=b"old", b=b"old")
    late = two.saves.pop()
    two.join_count("c")
    assert two.answers["sync a"].code is ErrorCode.REBALANCE_IN_PROGRESS
    two.join_count("a again", "a")
    two.join_count("b again", "b")
    two.syncs("sync a again", "a", a=b"new", b=b"new")
    two.group.on_stored(late, two.now)
    two._take()
    assert "sync a again" not in two.answers
    two.holds_store = False
    two._take()
    assert two.answers["sync a again"].assignment == b"new"


def test_what_the_leader_says_first_counts(two):
    two.holds_store = True
    two.syncs("sync a", "a", a=b"first")
    two.syncs("sync a again", "a", a=b"second")
    assert two.answers["sync a"].code is ErrorCode.REBALANCE_IN_PROGRESS
    two.holds_store = False
    two._take()
    assert two.answers["sync a again"].assignment == b"first"


def test_a_leader_that_joins_again_wants_a_rebalance(stable):
    assert stable.join_count("a again", "a") is None
    assert stable.state is GroupState.PREPARING_REBALANCE
    assert stable.join_count("b again", "b").generation == 2


def test_a_follower_that_says_nothing_new_is_told_again_what_is(stable):
    assert stable.join_count("b again", "b").generation == 1
    assert stable.state is GroupState.STABLE


def test_a_member_that_says_something_new_makes_all_join_again(stable):
    assert stable.join_count("b again", "b", protocols=(("range", b"other topics"),)) is None
    assert stable.join_count("a again", "a").members[1].metadata == b"other topics"


def test_who_is_heard_of_but_does_not_join_again_in_time_is_out(stable):
    stable.join_count("c")
    stable.join_count("a again", "a")
    for _ in range(6):
        stable.lets_pass_with_heartbeats_of("b", REBALANCE // 6)
    assert [fellow.member_id for fellow in stable.answers["a again"].members] == ["a", "c"]


def test_who_waits_for_the_others_may_be_silent(stable):
    stable.join_count("c")
    stable.join_count("a again", "a")
    for _ in range(2):
        stable.lets_pass_with_heartbeats_of("b", SESSION - 1)
    assert stable.state is GroupState.PREPARING_REBALANCE
    assert "a" in stable.group.roster


def test_a_newcomer_s_first_wait_has_its_limit():
    played = Played(group_max_session_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    played.join_count(
        "a",
        rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS,
        session_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS,
    )
    played.passes(0)
    played.syncs("sync a", "a")
    played.join_count("b", rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    played.passes(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert played.answers["b"] == JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_a_member_that_joins_twice_is_answered_where_it_asked_last(stable):
    stable.join_count("a again", "a")
    stable.join_count("a once more", "a")
    assert stable.answers["a again"].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert (
        stable.join_count("b again", "b").generation
        == stable.answers["a once more"].generation
        == 2
    )


def test_a_rebalance_waits_for_newcomers_that_were_told_their_id(stable):
    assert (
        stable.join_count("c", new="c-1", requires_member_id=True).code
        is ErrorCode.MEMBER_ID_REQUIRED
    )
    stable.join_count("a again", "a")
    assert stable.join_count("b again", "b") is None
    assert len(stable.join_count("c again", "c-1").members) == 0
    assert len(stable.answers["a again"].members) == 3


def test_a_newcomer_that_was_told_its_id_may_leave_before_it_is_in(stable):
    stable.join_count("c", new="c-1", requires_member_id=True)
    stable.leaves("c-1")
    assert stable.state is GroupState.STABLE
    assert stable.join_count("c again", "c-1").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_new():
    played = Played(group_max_size=1)
    played.join_count("a")
    played.passes(0)
    assert played.join_count("b").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    played.syncs("sync a", "a")
    assert played.join_count("c").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert played.state is GroupState.STABLE


def test_members_who_share_no_protocol_are_in_no_group_together(stable):
    assert (
        stable.join_count("c", protocols=(("sticky", b""),)).code
        is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert (
        stable.join_count("d", protocol_type="connect").code
        is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert stable.state is GroupState.STABLE


def test_a_static_member_keeps_its_place_through_a_rebalance_that_it_misses():
    played = Played()
    played.join_count("a")
    played.join_count("s", instance_id="one")
    played.passes(0)
    played.passes(0)
    played.syncs("sync a", "a")
    played.join_count("a again", "a")
    for _ in range(6):
        played.lets_pass_with_heartbeats_of("s", REBALANCE // 6)
    assert [fellow.member_id for fellow in played.answers["a again"].members] == ["a", "s"]


def test_a_static_member_that_comes_back_during_a_rebalance_takes_part_in_it():
    played = Played()
    played.join_count("s", instance_id="one")
    played.join_count("t", instance_id="one")
    assert played.answers["s"].code is ErrorCode.FENCED_INSTANCE_ID
    played.passes(0)
    assert (played.answers["t"].leader, played.answers["t"].generation) == ("t", 1)


def test_changes_are_noted_with_their_reason(stable):
    stable.join_count("c", reason="more work")
    assert (stable.notes[-1].event, stable.notes[-1].reason, stable.notes[-1].member_id) == (
        "rebalance started",
        "member joined: more work",
        "c",
    )


def test_who_leaves_and_what_comes_of_it_is_noted(stable):
    stable.leaves("b")
    assert [(note.event, note.reason, note.member_id) for note in stable.notes[-2:]] == [
        ("member removed", "left", "b"),
        ("rebalance started", "member removed: left", "b"),
    ]
