"""Offset expiration as in KIP-211, with a retention of a week."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gateway.groups.offsets.offset_expiry import GROUPS_PER_DELETION, OFFSETS_PER_TURN, OffsetExpiry
from gateway.groups.offsets.offset_rows import CommittedOffset
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment

DAY = 24 * 3600 * 1000
WEEK = 7 * DAY


@dataclass
class FakeGroup:
    """A test group: its subscribed topics (None if unknown), or when it became empty."""

    group_id: str
    topics: frozenset[str] | None = None
    empty_since: float | None = None


class FakeMemberships:
    """A fake coordinator. `forgotten` are the groups that it was asked to delete."""

    def __init__(self) -> None:
        self.known: dict[str, FakeGroup] = {}
        self.forgotten: list[str] = []

    def has_members(self, group_id: str, *topics: str, do_not_say: bool = False) -> None:
        self.known[group_id] = FakeGroup(group_id, None if do_not_say else frozenset(topics))

    def lost_its_last(self, group_id: str, at: float) -> None:
        self.known[group_id] = FakeGroup(group_id, empty_since=at)

    def __iter__(self) -> Iterator[FakeGroup]:
        return iter(list(self.known.values()))

    def is_empty(self, group_id: str) -> bool:
        return group_id not in self.known or self.known[group_id].empty_since is not None

    def empty_since(self, group_id: str) -> float | None:
        return self.known[group_id].empty_since if group_id in self.known else None

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        return self.known[group_id].topics

    def delete_in_background(self, group_id: str) -> None:
        self.forgotten.append(group_id)
        del self.known[group_id]


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", 2)
    env.topic("bills")
    return env


@pytest.fixture
def groups() -> FakeMemberships:
    return FakeMemberships()


def commit(
    env: BrokerEnvironment, group: str, *topics: str, at: int = NOW, until: int | None = None
) -> None:
    ended(
        env.broker.offsets.commit(
            group, {(topic, 0): CommittedOffset(1, -1, "", at, until) for topic in topics}
        )
    )


def kept(env: BrokerEnvironment, groups: FakeMemberships, now: int, group: str = "g") -> set[str]:
    """Topics of the group's remaining offsets after a pass at this time."""
    ended(OffsetExpiry(env.broker.offsets, groups, WEEK, env.clock).run(now))
    return {topic for topic, _ in env.broker.offsets.of_group(group)}


def test_retention_without_members_starts_at_commit(env, groups):
    commit(env, "g", "orders", at=NOW)
    commit(env, "g", "bills", at=NOW + DAY)
    assert kept(env, groups, NOW + WEEK - 1) == {"orders", "bills"}
    assert kept(env, groups, NOW + WEEK) == {"bills"}
    assert kept(env, groups, NOW + WEEK + DAY) == set()


def test_retention_starts_when_group_becomes_empty(env, groups):
    commit(env, "g", "orders", at=NOW - 30 * DAY)
    commit(env, "g", "bills", at=NOW - DAY)
    groups.lost_its_last("g", NOW)
    assert kept(env, groups, NOW + WEEK - 1) == {"orders", "bills"}
    assert kept(env, groups, NOW + WEEK) == set()


def test_offsets_of_subscribed_topics_do_not_expire(env, groups):
    commit(env, "g", "orders", "bills", at=NOW - 365 * DAY)
    groups.has_members("g", "orders")
    assert kept(env, groups, NOW) == {"orders"}


def test_offsets_of_unsubscribed_topics_expire_after_retention(env, groups):
    commit(env, "g", "bills")
    groups.has_members("g", "orders")
    assert kept(env, groups, NOW + WEEK - 1) == {"bills"}
    assert kept(env, groups, NOW + WEEK) == set()


def test_unknown_subscriptions_keep_all_offsets(env, groups):
    commit(env, "g", "orders", at=NOW - 365 * DAY)
    groups.has_members("g", do_not_say=True)
    assert kept(env, groups, NOW) == {"orders"}


def test_retention_time_of_request_takes_precedence(env, groups):
    commit(env, "g", "orders", until=NOW + DAY)
    commit(env, "g", "bills", until=NOW + 2 * WEEK)
    groups.lost_its_last("g", NOW - WEEK)
    assert kept(env, groups, NOW + DAY - 1) == {"orders", "bills"}
    assert kept(env, groups, NOW + DAY) == {"bills"}
    assert kept(env, groups, NOW + 2 * WEEK) == set()


def test_expired_offset_stays_deleted_after_restart(env, groups):
    commit(env, "g", "orders")
    commit(env, "g", "bills", at=NOW + DAY)
    kept(env, groups, NOW + WEEK)
    ended(env.store.close())
    assert set(open_environment(env.store.medium).broker.offsets.of_group("g")) == {("bills", 0)}


def test_empty_group_is_deleted_with_its_last_offset(env, groups):
    commit(env, "g", "orders", "bills")
    commit(env, "still", "orders", until=NOW + 2 * WEEK)
    for group in ("g", "still", "never committed"):
        groups.lost_its_last(group, NOW)
    kept(env, groups, NOW + WEEK - 1)
    assert groups.forgotten == ["never committed"]
    kept(env, groups, NOW + WEEK)
    assert groups.forgotten == ["never committed", "g"]


def test_group_with_members_is_not_deleted(env, groups):
    commit(env, "g", "orders")
    groups.has_members("g")
    assert kept(env, groups, NOW + WEEK) == set()
    assert groups.forgotten == []


def test_commit_being_stored_prevents_expiration(env, groups):
    commit(env, "g", "orders")
    env.store.hold()
    newer = Started(
        env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(2, -1, "", NOW + WEEK)})
    )
    ending = Started(OffsetExpiry(env.broker.offsets, groups, WEEK, env.clock).run(NOW + WEEK))
    env.store.release()
    assert newer.is_done
    assert ending.is_done
    assert env.broker.offsets.get("g", "orders", 0) == CommittedOffset(2, -1, "", NOW + WEEK)
    # The next pass treats it like any other offset.
    assert kept(env, groups, NOW + 2 * WEEK) == set()


def test_commit_between_reactor_turns_prevents_expiration(env, groups):
    commit(env, "first", "orders")
    for index in range(OFFSETS_PER_TURN):
        commit(env, f"g{index}", "orders", at=NOW + DAY)
    commit(env, "last", "orders")
    going = Started(OffsetExpiry(env.broker.offsets, groups, WEEK, env.clock).run(NOW + WEEK))
    for group in ("first", "last"):
        commit(env, group, "orders", at=NOW + WEEK)
    env.clock.advance(0)
    assert going.is_done
    assert [env.broker.offsets.get(group, "orders", 0) for group in ("first", "last")] == [
        CommittedOffset(1, -1, "", NOW + WEEK)
    ] * 2


def test_failed_commit_does_not_prevent_expiration(env, groups):
    commit(env, "g", "orders")
    env.store.refuse_writes = True
    assert Started(
        env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(2, -1, "", NOW + WEEK)})
    ).failure
    env.store.refuse_writes = False
    assert kept(env, groups, NOW + WEEK) == set()


def test_store_failure_is_logged_and_retried_in_next_pass(env, groups, caplog):
    commit(env, "g", "orders")
    env.store.refuse_writes = True
    groups.lost_its_last("g", NOW)
    assert kept(env, groups, NOW + WEEK) == {"orders"}
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "expired offsets not deleted, retried by the next check"
    ]
    assert groups.forgotten == []
    env.store.refuse_writes = False
    assert kept(env, groups, NOW + WEEK) == set()


def test_expiration_of_many_groups_yields_to_reactor(env, groups):
    count = OFFSETS_PER_TURN + GROUPS_PER_DELETION // 2
    for index in range(count):
        commit(env, f"g{index}", "orders")
    going = Started(OffsetExpiry(env.broker.offsets, groups, WEEK, env.clock).run(NOW + WEEK))
    assert not going.is_done
    env.clock.advance(0)
    assert going.is_done
    assert list(env.broker.offsets.groups()) == []


def test_stop_ends_pass_at_next_reactor_turn(env, groups):
    for index in range(OFFSETS_PER_TURN):
        commit(env, f"g{index}", "orders", at=NOW + DAY)
    commit(env, "last", "orders")
    expiry = OffsetExpiry(env.broker.offsets, groups, WEEK, env.clock)
    going = Started(expiry.run(NOW + WEEK))
    expiry.stop()
    env.clock.advance(0)
    assert going.is_done
    assert env.broker.offsets.has("last")


def test_empty_groups_are_deleted_a_hundred_at_a_time(env):
    memberships = FakeMemberships()
    for number in range(3 * GROUPS_PER_DELETION):
        memberships.lost_its_last(f"g{number}", NOW)
    round_of_all = Started(OffsetExpiry(env.broker.offsets, memberships, WEEK, env.clock).run(NOW))
    assert len(memberships.forgotten) == GROUPS_PER_DELETION
    env.clock.advance(0)
    assert round_of_all.is_done
    assert len(memberships.forgotten) == 3 * GROUPS_PER_DELETION
