"""Incremental fetch sessions: the cache, and the logs that sessions watch.

Rules are those of KIP-227 and Kafka's FetchSessionCache.
"""

from __future__ import annotations

import pytest

from gateway.fetch.fetch_sessions import NO_SESSION, FetchSession, FetchSessions, next_epoch
from gateway.protocol.wire.fetch_codec import FetchPartition
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.fetch_requests import batch_entry, from_offset

KEY = ("orders", 0)


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", 3)
    return env


def sessions(slots: int = 2, **limits: int) -> FetchSessions:
    ids = iter(range(1, 1000))
    return FetchSessions(slots, lambda: next(ids), **limits)


def followed(env: BrokerEnvironment, current: FetchSession, index: int = 0, offset: int = 0):
    cached = current.update(("orders", index), FetchPartition(index, offset, 100))
    cached.attach(env.partition("orders", index), bytes(16))
    return cached


def watchers(env: BrokerEnvironment, index: int = 0) -> int:
    return len(env.partition("orders", index).log.status.watchers)


@pytest.mark.parametrize(
    ("epoch", "following"), [(0, 1), (1, 2), (2147483646, 2147483647), (2147483647, 1)]
)
def test_session_epoch_wraps_to_one(epoch, following):
    assert next_epoch(epoch) == following


def test_session_is_found_by_id():
    kept = sessions()
    made = kept.create(0)
    assert made.session_id != NO_SESSION
    assert kept.get(made.session_id, 0) is made
    assert kept.get(999, 0) is None


def test_session_ids_are_unique():
    ids = iter([7, 7, 0, 7, 8])
    kept = FetchSessions(5, lambda: next(ids))
    assert [kept.create(0).session_id for _ in range(2)] == [7, 8]


def test_fetch_without_free_slot_has_no_session():
    kept = sessions(slots=1)
    kept.create(0)
    assert kept.create(119_999).session_id == NO_SESSION
    assert len(kept) == 1


def test_least_recently_used_session_is_evicted_after_min_idle():
    kept = sessions()
    first, second = kept.create(0), kept.create(1)
    kept.get(first.session_id, 10)
    third = kept.create(120_001)
    assert third.session_id != NO_SESSION
    assert kept.get(second.session_id, 120_001) is None
    assert kept.get(first.session_id, 120_001) is first


def test_session_in_use_is_not_evicted():
    kept = sessions(slots=1)
    kept.create(0).is_in_use = True
    assert kept.create(10_000_000).session_id == NO_SESSION


def test_zero_slots_disable_sessions():
    assert sessions(slots=0).create(0).session_id == NO_SESSION


def test_update_watches_log_once_and_forget_unwatches(env):
    current = FetchSession(1)
    for _ in range(3):
        followed(env, current)
    assert watchers(env) == 1
    current.forget(KEY)
    current.forget(KEY)
    assert (watchers(env), len(current.partitions), len(current.pending)) == (0, 0, 0)


def test_close_unwatches_all_logs(env):
    current = FetchSession(1)
    for index in range(3):
        followed(env, current, index)
    current.close()
    assert [watchers(env, index) for index in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("how", ["removed", "evicted", "cleared"])
def test_removed_session_unwatches_all_logs(env, how):
    kept = sessions(slots=1)
    made = kept.create(0)
    followed(env, made)
    if how == "removed":
        kept.remove(made.session_id)
    elif how == "evicted":
        kept.create(500_000)
    else:
        kept.clear()
        assert len(kept) == 0
    assert watchers(env) == 0
    assert made.is_closed


def test_changed_partition_becomes_pending_and_notifies(env):
    current = FetchSession(1)
    cached = followed(env, current)
    current.pending.clear()
    woken = []
    current.on_change = lambda: woken.append(list(current.pending))
    ended(_append(env, 0))
    assert woken == [[cached]]
    assert cached.has_unread_records


def test_forgotten_partition_does_not_notify(env):
    current = FetchSession(1)
    followed(env, current)
    current.forget(KEY)
    ended(_append(env, 0))
    assert not current.pending


def test_recreated_topic_is_watched_instead_of_old_one(env):
    current = FetchSession(1)
    cached = followed(env, current)
    old = cached.partition
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    env.topic("orders", 3)
    followed(env, current)
    assert old is not cached.partition
    assert (len(old.log.status.watchers), watchers(env)) == (0, 1)


def test_consumer_at_log_end_has_no_unread_records(env):
    ended(_append(env, 0))
    current = FetchSession(1)
    assert [followed(env, current, 0, offset).has_unread_records for offset in (0, 1)] == [
        True,
        False,
    ]


async def _append(env: BrokerEnvironment, index: int) -> None:
    log = env.partition("orders", index).log
    await log.append([batch_entry(log.next_offset, 1)])


def test_offset_change_keeps_place_in_pending(env):
    current = FetchSession(1)
    for index in range(3):
        followed(env, current, index)
    current.update(("orders", 0), from_offset(5))
    assert [cached.key[1] for cached in current.pending] == [0, 1, 2]


def following(kept: FetchSessions, count: int, now: int = 0) -> FetchSession:
    made = kept.create(now)
    for index in range(count):
        made.update(("t", index), requested=None)
    return made


def test_sessions_share_a_total_partition_limit():
    kept = FetchSessions(
        10, iter(range(1, 100)).__next__, max_partitions=8, max_total_partitions=10
    )
    first, second = following(kept, 6), following(kept, 6)
    assert kept.has_room(first, 0)
    assert not kept.has_room(second, 0)
    assert (len(kept), kept.partition_count) == (1, 6)
    # A session that was idle for min_idle_ms is evicted.
    third = following(kept, 6, 130_000)
    assert kept.has_room(third, 130_000)
    assert kept.get(first.session_id, 130_000) is None
    assert (len(kept), kept.partition_count) == (1, 6)
    third.forget(("t", 0))
    assert kept.has_room(third, 130_000)
    assert kept.partition_count == 5
    kept.remove(third.session_id)
    assert kept.partition_count == 0


def test_unused_session_expires():
    kept = FetchSessions(10, iter(range(1, 100)).__next__, max_idle_ms=1000)
    made = kept.create(0)
    assert kept.get(made.session_id, 999) is made
    assert kept.get(made.session_id, 2000) is None
    assert len(kept) == 0
