"""The group coordinator with timeouts, store failures, disconnects and restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.groups.classic.classic_group import GroupState
from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync
from gateway.groups.classic.classic_rows import GroupRow, MemberRow, encode
from gateway.protocol.errors import ErrorCode, KafkaError
from tests.fakes.broker import BrokerEnvironment, Started, ended, open_environment
from tests.fakes.memory_store import Medium

SESSION = 10
INITIAL_DELAY = 3


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def joining(
    member_id: str = "", instance: str | None = None, *, first: bool = False, metadata: bytes = b"m"
) -> MemberJoin:
    return MemberJoin(
        member_id,
        instance,
        "c",
        "/h",
        "consumer",
        (("range", metadata),),
        SESSION * 1000,
        60_000,
        first,
    )


def join(
    env: BrokerEnvironment,
    member_id: str = "",
    instance: str | None = None,
    group: str = "g",
    **fields: Any,
) -> Started:
    return Started(env.broker.groups.join(group, joining(member_id, instance, **fields)))


def sync(env: BrokerEnvironment, member_id: str, generation: int, **assignments: bytes) -> Started:
    words = tuple((name.replace("_", "-"), word) for name, word in assignments.items())
    return Started(
        env.broker.groups.sync("g", MemberSync(member_id, None, generation, assignments=words))
    )


def alone(env: BrokerEnvironment, instance: str | None = None) -> JoinResult:
    """A stable group with one member, `c-id-1`."""
    waiting = join(env, instance=instance)
    env.clock.advance(INITIAL_DELAY)
    member = waiting.result
    assert (
        sync(env, member.member_id, 1, **{member.member_id.replace("-", "_"): b"mine"}).result.code
        is ErrorCode.NONE
    )
    return member


def two(env: BrokerEnvironment) -> tuple[JoinResult, JoinResult]:
    """Leader `c-id-1` and follower `c-id-2` of a generation without assignments yet."""
    waiting = join(env), join(env)
    for _ in range(2):
        env.clock.advance(INITIAL_DELAY)
    return waiting[0].result, waiting[1].result


def state(env: BrokerEnvironment) -> GroupState:
    return env.broker.groups.get("g").state


def heartbeat(env: BrokerEnvironment, member_id: str, generation: int) -> None:
    env.broker.groups.heartbeat("g", member_id, generation, None)


def restarted(env: BrokerEnvironment, **settings: Any) -> BrokerEnvironment:
    """The gateway after a restart."""
    medium = env.store.medium
    medium.held_by = None
    return open_environment(medium, **settings)


def test_members_that_start_together_share_a_generation(env):
    first = join(env)
    env.clock.advance(2)
    second = join(env)
    env.clock.advance(1)
    assert not first.is_done
    env.clock.advance(INITIAL_DELAY)
    assert (first.result.generation, second.result.generation) == (1, 1)
    assert [member.member_id for member in first.result.members] == ["c-id-1", "c-id-2"]


@pytest.mark.parametrize("seconds", [SESSION - 1, 100 * SESSION])
def test_session_continues_after_gateway_was_cut_off(env, seconds):
    member = alone(env).member_id
    env.broker.leadership.suspend()
    env.clock.advance(seconds)
    env.broker.leadership.resume()
    env.clock.advance(SESSION - 1)
    assert state(env) is GroupState.STABLE
    heartbeat(env, member, 1)
    env.clock.advance(SESSION - 1)
    assert state(env) is GroupState.STABLE
    env.clock.advance(2)
    assert state(env) is GroupState.EMPTY


def test_timers_of_groups_fire_at_most_once_a_second_while_gateway_is_cut_off(env):
    alone(env)
    env.clock.advance(SESSION - 0.001)
    env.broker.leadership.suspend()
    calls = 0

    def count(group):
        nonlocal calls
        calls += 1
        expire(group)

    expire, env.broker.groups._expire = env.broker.groups._expire, count
    for _ in range(1_000):
        env.clock.advance(0.01)
    assert calls <= 11
    assert state(env) is GroupState.STABLE


def test_assignment_is_sent_after_it_is_stored(env):
    waiting = join(env)
    env.clock.advance(INITIAL_DELAY)
    env.store.hold()
    synced = sync(env, waiting.result.member_id, 1, c_id_1=b"mine")
    assert not synced.is_done
    assert state(env) is GroupState.COMPLETING_REBALANCE
    env.store.release()
    assert synced.result.assignment == b"mine"
    assert state(env) is GroupState.STABLE


def test_store_failure_makes_members_rejoin(env):
    waiting = join(env)
    env.clock.advance(INITIAL_DELAY)
    env.store.refuse_writes = True
    assert (
        sync(env, waiting.result.member_id, 1, c_id_1=b"mine").result.code
        is ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert state(env) is GroupState.PREPARING_REBALANCE
    env.store.refuse_writes = False
    assert join(env, "c-id-1").result.generation == 2
    assert sync(env, "c-id-1", 2, c_id_1=b"mine").result.assignment == b"mine"


def test_member_continues_after_restart(env):
    member = alone(env)
    env = restarted(env)
    heartbeat(env, member.member_id, 1)
    assert sync(env, member.member_id, 1).result.assignment == b"mine"
    assert state(env) is GroupState.STABLE


def test_static_member_rejoins_after_restart_without_rebalance(env):
    alone(env, "one")
    env = restarted(env)
    back = join(env, instance="one").result
    assert (back.code, back.generation) == (ErrorCode.NONE, 1)
    assert sync(env, back.member_id, 1).result.assignment == b"mine"


def test_new_id_of_static_member_survives_restart(env):
    alone(env, "one")
    back = join(env, instance="one").result
    env = restarted(env)
    heartbeat(env, back.member_id, 1)


def test_member_missing_after_restart_is_removed_at_session_timeout(env):
    alone(env)
    env = restarted(env)
    env.clock.advance(SESSION - 1)
    assert state(env) is GroupState.STABLE
    env.clock.advance(1)
    assert state(env) is GroupState.EMPTY


def test_generation_is_not_reused_after_restart(env):
    member = alone(env)
    env.broker.groups.leave("g", member.member_id, None, "")
    env = restarted(env)
    waiting = join(env)
    env.clock.advance(INITIAL_DELAY)
    # The second generation was the empty one.
    assert waiting.result.generation == 3


def test_group_over_reduced_max_size_rebalances_at_start(env):
    first, second = two(env)
    waiting = sync(env, second.member_id, 1)
    sync(env, first.member_id, 1)
    assert waiting.result.code is ErrorCode.NONE
    env = restarted(env, group_max_size=1)
    assert state(env) is GroupState.PREPARING_REBALANCE


def test_group_with_unreadable_row_starts_over(caplog):
    twice = MemberRow("m", None, "c", "/h", 1, 1, (("range", b""),), b"")
    row = encode(GroupRow(1, "consumer", "range", "m", 0, (twice, twice)))
    env = open_environment(Medium(tables={"groups": {b"g": b"\xff", b"\xff": b"\xff", b"h": row}}))
    assert caplog.text.count("group unreadable") == 3
    assert alone(env).generation == 1


def test_member_without_heartbeats_is_removed_at_session_timeout(env):
    member = alone(env)
    for _ in range(5):
        env.clock.advance(SESSION - 1)
        heartbeat(env, member.member_id, 1)
    env.clock.advance(SESSION - 1)
    assert state(env) is GroupState.STABLE
    env.clock.advance(1)
    assert state(env) is GroupState.EMPTY
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        heartbeat(env, member.member_id, 1)


def test_offset_commit_restarts_session(env):
    member = alone(env)
    env.clock.advance(SESSION - 1)
    env.broker.groups.validate_offset_commit("g", member.member_id, 1, None, env.now())
    env.clock.advance(SESSION - 1)
    assert state(env) is GroupState.STABLE


def test_rebalance_waits_for_member_at_most_until_session_timeout(env):
    alone(env)
    waiting = join(env)
    with pytest.raises(KafkaError, match="REBALANCE_IN_PROGRESS"):
        heartbeat(env, "c-id-1", 1)
    env.clock.advance(SESSION)
    assert [member.member_id for member in waiting.result.members] == ["c-id-2"]


def test_join_is_cancelled_when_connection_closes(env):
    alone(env)
    waiting = join(env, first=True)
    known = join(env, waiting.result.member_id)
    known.cancel()
    assert [member.member_id for member in env.broker.groups.get("g").roster] == [
        "c-id-1",
        "c-id-2",
    ]
    # The client has its member id and could return, so the session timeout applies.
    leader = join(env, "c-id-1")
    assert not leader.is_done
    env.clock.advance(SESSION)
    assert [member.member_id for member in leader.result.members] == ["c-id-1"]


def test_new_member_disconnected_before_its_id_is_removed(env):
    alone(env)
    join(env).cancel()
    assert join(env, "c-id-1").result.generation == 2


def test_sync_is_cancelled_when_connection_closes(env):
    first, second = two(env)
    sync(env, second.member_id, 1).cancel()
    assert sync(env, first.member_id, 1, c_id_2=b"yours").result.code is ErrorCode.NONE
    assert sync(env, second.member_id, 1).result.assignment == b"yours"


def test_member_without_sync_is_removed(env):
    first, second = two(env)
    waiting = sync(env, second.member_id, 1)
    env.clock.advance(SESSION)
    # The leader was silent; the follower starts over.
    assert waiting.result.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert join(env, second.member_id).result.leader == second.member_id
    assert first.leader == first.member_id


def test_reply_may_trigger_next_request_synchronously(env):
    async def member() -> bytes:
        joined = await env.broker.groups.join("g", joining())
        words = tuple((member.member_id, member.member_id.encode()) for member in joined.members)
        return (
            await env.broker.groups.sync(
                "g", MemberSync(joined.member_id, None, joined.generation, assignments=words)
            )
        ).assignment

    members = [Started(member()) for _ in range(4)]
    env.clock.advance(INITIAL_DELAY)
    env.clock.advance(INITIAL_DELAY)
    assert [one.result for one in members] == [b"c-id-1", b"c-id-2", b"c-id-3", b"c-id-4"]
    assert env.bugs == []


def test_close_answers_all_waiting_requests(env):
    alone(env)
    waiting = join(env)
    env.broker.groups.close()
    assert waiting.result.code is ErrorCode.NOT_COORDINATOR
    assert join(env).result.code is ErrorCode.NOT_COORDINATOR
    assert env.clock.getDelayedCalls() == []


def test_group_without_any_member_is_dropped(env):
    assert join(env, first=True).result.code is ErrorCode.MEMBER_ID_REQUIRED
    assert [group.group_id for group in env.broker.groups] == ["g"]
    env.clock.advance(SESSION)
    assert list(env.broker.groups) == []
    assert env.clock.getDelayedCalls() == []
    assert join(env, "unknown").result.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(env.broker.groups) == []


def test_ten_thousand_joins_without_sync_stay_within_memory_limit():
    env = open_environment(group_max_pending_members=1_000)
    codes = [join(env, first=True).result.code for _ in range(10_000)]
    assert (
        codes
        == [ErrorCode.MEMBER_ID_REQUIRED] * 1_000 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 9_000
    )
    env.clock.advance(SESSION)
    assert list(env.broker.groups) == []


def test_pending_member_ids_count_towards_memory_limit():
    env = open_environment(max_group_bytes=1 << 20)
    said = replace(joining(first=True), client_id="c" * 8_000)
    codes = [Started(env.broker.groups.join("g", said)).result.code for _ in range(200)]
    assert 100 < codes.count(ErrorCode.MEMBER_ID_REQUIRED) <= (1 << 20) // 8_000
    env.clock.advance(SESSION)
    assert env.broker.groups._bytes == 0


def test_thousand_session_timeouts_need_few_expire_calls():
    env = open_environment()
    for _ in range(1_000):
        join(env, first=True)
        env.clock.advance(0.001)
    before = env.clock.seconds()
    looks = 0
    while env.broker.groups.get("g") is not None:
        env.clock.advance(env.clock.getDelayedCalls()[0].getTime() - env.clock.seconds())
        looks += 1
    assert looks < 300
    assert env.clock.seconds() - before < SESSION + 0.1


def test_max_bytes_per_group_does_not_affect_other_groups():
    env = open_environment(max_bytes_per_group=1 << 20)
    waiting = [join(env, metadata=bytes(100_000)) for _ in range(11)]
    assert waiting[-1].result.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not any(one.is_done for one in waiting[:-1])
    env.clock.advance(INITIAL_DELAY)
    env.clock.advance(INITIAL_DELAY)
    first = waiting[0].result
    assert join(env, first.member_id, metadata=bytes(100_000)).failure is None
    assert not join(env, group="another", metadata=bytes(100_000)).is_done


def test_repeated_static_rejoins_do_not_pile_up_writes():
    env = open_environment(max_bytes_per_group=1 << 20)
    first = join(env, instance="i", metadata=bytes(500_000))
    env.clock.advance(INITIAL_DELAY)
    assert sync(env, first.result.member_id, 1).result.code is ErrorCode.NONE
    env.store.hold()
    waiting = [join(env, instance="i", metadata=bytes(500_000)) for _ in range(10)]
    assert [one.is_done for one in waiting] == [False] * 3 + [True] * 7
    assert waiting[-1].result.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    env.store.release()
    assert {one.result.code for one in waiting[:3]} == {ErrorCode.NONE}
    assert not join(env, instance="i", metadata=bytes(500_000)).result.code


def test_max_group_bytes_limits_all_groups(caplog):
    env = open_environment(max_group_bytes=1 << 20)
    groups = 0
    while (
        join(env, group=f"g{groups}", metadata=bytes(100_000)).failure is None
        and env.broker.groups.get(f"g{groups}") is not None
    ):
        groups += 1
    assert groups == 10
    for _ in range(100):
        join(env, group="another", metadata=bytes(100_000))
    (told,) = caplog.records
    assert "max_group_bytes" in told.message
    env.clock.advance(1)
    join(env, group="another", metadata=bytes(100_000))
    assert caplog.records[-1].fields["refused"] == 101
    env.clock.advance(INITIAL_DELAY)
    for number in range(groups):
        env.broker.groups.leave(f"g{number}", f"c-id-{number + 1}", None, "")
    assert not join(env, group="another", metadata=bytes(100_000)).is_done


HOUR_MS = 3_600_000


def test_wall_clock_set_forward_removes_no_member(env):
    member = alone(env)
    env.clock.advance(SESSION - 1)
    heartbeat(env, member.member_id, 1)
    env.step_ms = HOUR_MS
    env.clock.advance(SESSION - 1)
    assert state(env) is GroupState.STABLE


def test_wall_clock_set_back_does_not_extend_sessions(env):
    alone(env)
    env.step_ms = -HOUR_MS
    env.clock.advance(SESSION)
    assert state(env) is GroupState.EMPTY


def test_wall_clock_correction_does_not_extend_session(env):
    env.step_ms = HOUR_MS
    member = alone(env)
    heartbeat(env, member.member_id, 1)
    env.step_ms = 0
    env.clock.advance(SESSION)
    assert state(env) is GroupState.EMPTY


def test_empty_since_is_wall_clock_time_and_survives_restart(env):
    member = alone(env)
    env.step_ms = HOUR_MS
    env.broker.groups.leave("g", member.member_id, None, "")
    empty_since = env.now()
    env.clock.advance(60)
    assert env.broker.groups.empty_since("g") == empty_since
    assert restarted(env).broker.groups.empty_since("g") == empty_since


def test_empty_group_is_deleted_in_background(env):
    member = alone(env)
    groups = env.broker.groups
    groups.delete_in_background("g")
    assert groups.get("g") is not None
    assert groups.empty_since("g") is None
    groups.leave("g", member.member_id, None, "")
    assert groups.empty_since("g") == env.now()
    groups.delete_in_background("g")
    assert groups.get("g") is None
    assert list(restarted(env).broker.groups) == []


def test_group_stays_if_background_deletion_fails(env, caplog):
    member = alone(env)
    env.broker.groups.leave("g", member.member_id, None, "")
    env.store.refuse_writes = True
    env.broker.groups.delete_in_background("g")
    assert "empty group not deleted" in caplog.text
    with pytest.raises(KafkaError, match="refuses writes"):
        ended(env.broker.groups.delete("g"))
    assert state(env) is GroupState.EMPTY


def test_member_id_issued_during_deletion_is_valid(env):
    member = alone(env)
    groups = env.broker.groups
    groups.leave("g", member.member_id, None, "")
    env.store.hold()
    groups.delete_in_background("g")
    told = join(env, first=True).result
    env.store.release()
    waiting = join(env, told.member_id)
    env.clock.advance(INITIAL_DELAY)
    assert (waiting.result.code, waiting.result.generation) == (ErrorCode.NONE, 3)


def test_join_during_deletion_keeps_group(env):
    member = alone(env)
    env.broker.groups.leave("g", member.member_id, None, "")
    env.store.hold()
    deleting = Started(env.broker.groups.delete("g"))
    waiting = join(env)
    env.store.release()
    assert deleting.result is None
    env.clock.advance(INITIAL_DELAY)
    assert waiting.result.generation == 3


def test_commit_requires_member_and_generation(env):
    groups = env.broker.groups

    def code(member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        try:
            groups.validate_offset_commit("g", member_id, generation, instance, 8)
        except KafkaError as failure:
            return failure.code
        return ErrorCode.NONE

    # A group without members accepts commits of consumers outside of group management.
    assert (code("", -1), code("m", 1)) == (ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION)
    waiting = join(env, instance="one")
    assert code("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    env.clock.advance(INITIAL_DELAY)
    member = waiting.result.member_id
    assert code(member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    sync(env, member, 1)
    assert (code(member, 1), code(member, 1, "one")) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (code(member, 0), code(member, -1)) == (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.ILLEGAL_GENERATION,
    )
    assert (code("other", 1), code("other", 1, "one")) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    )
    groups.leave("g", "", "one", "")
    assert (code("", -1), code(member, 1)) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)


def test_subscribed_topics_are_those_of_members(env):
    groups = env.broker.groups
    assert (groups.subscribed_topics("g"), groups.is_empty("g")) == (None, True)
    waiting = join(env, metadata=b"\0\1\0\0\0\1\0\6orders\xff\xff\xff\xff")
    env.clock.advance(INITIAL_DELAY)
    assert (groups.subscribed_topics("g"), groups.is_empty("g")) == (frozenset({"orders"}), False)
    groups.leave("g", waiting.result.member_id, None, "")
    assert (groups.subscribed_topics("g"), groups.is_empty("g")) == (frozenset(), True)
