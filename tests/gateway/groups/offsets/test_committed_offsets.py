"""Committed offsets: durability, deletion with their topic, and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.coroutines import TimeSlices
from gateway.groups.offsets.committed_offsets import MAX_LOGGED_GROUPS, CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import EntryTooLarge, Topic
from tests.fakes.broker import BrokerEnvironment, Started, ended, open_environment
from tests.fakes.memory_store import MemoryStore


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", 3)
    env.topic("bills", 1)
    return env


def at(offset: int, metadata: str = "", committed_at: int = 5) -> CommittedOffset:
    return CommittedOffset(offset, -1, metadata, committed_at)


def commit(env: BrokerEnvironment, group: str, rows: Mapping[tuple[str, int], int]) -> None:
    ended(committing(env, group, rows))


def committing(env: BrokerEnvironment, group: str, rows: Mapping[tuple[str, int], int]) -> Any:
    return env.broker.offsets.commit(group, {place: at(offset) for place, offset in rows.items()})


def offsets(env: BrokerEnvironment, group: str = "g") -> dict[tuple[str, int], int]:
    return {
        place: committed.offset for place, committed in env.broker.offsets.of_group(group).items()
    }


def restarted(env: BrokerEnvironment, **settings: Any) -> BrokerEnvironment:
    """The gateway restarted with the same store."""
    ended(env.store.close())
    return open_environment(env.store.medium, **settings)


def rows_stored(env: BrokerEnvironment) -> int:
    return len(ended(ended(env.store.table("offsets")).items()))


def delete_topic(env: BrokerEnvironment, name: str = "orders") -> None:
    topic = env.broker.topics.require(name)
    ended(env.broker.topics.delete(topic))
    ended(env.broker.offsets.delete_topic(topic.topic))


def test_offset_belongs_to_its_group(env):
    commit(env, "g", {("orders", 0): 7, ("bills", 0): 1})
    commit(env, "other", {("orders", 0): 3})
    assert offsets(env) == {("orders", 0): 7, ("bills", 0): 1}
    assert env.broker.offsets.get("other", "orders", 0) == at(3)
    assert env.broker.offsets.get("g", "orders", 1) is None
    assert sorted(env.broker.offsets.groups()) == ["g", "other"]


def test_later_commit_replaces_earlier_one(env):
    for offset in (7, 9, 2):
        commit(env, "g", {("orders", 0): offset})
    assert offsets(env) == {("orders", 0): 2}
    assert offsets(restarted(env)) == {("orders", 0): 2}


def test_all_offset_fields_survive_restart(env):
    rows = {
        ("orders", 2): CommittedOffset(
            12, 4, "bei mir, früh", 1_700_000_000_000, 1_700_000_600_000
        ),
        ("bills", 0): at(-1),
    }
    ended(env.broker.offsets.commit("grüppe", rows))
    ended(env.broker.offsets.commit("", {("orders", 0): at(1)}))
    reopened = restarted(env)
    assert reopened.broker.offsets.of_group("grüppe") == rows
    assert offsets(reopened, "") == {("orders", 0): 1}
    assert len(reopened.broker.offsets) == 3


def test_offset_is_visible_after_it_is_durable(env):
    commit(env, "g", {("orders", 0): 1})
    env.store.hold()
    waiting = Started(committing(env, "g", {("orders", 0): 2}))
    assert not waiting.is_done
    assert offsets(env) == {("orders", 0): 1}
    env.store.release()
    assert waiting.is_done
    assert offsets(env) == {("orders", 0): 2}


def test_cancelled_commit_is_completed(env):
    env.store.hold()
    waiting = Started(committing(env, "g", {("orders", 0): 2}))
    waiting.cancel()
    env.store.release()
    assert offsets(env) == offsets(restarted(env)) == {("orders", 0): 2}


def test_store_failure_is_retriable_and_changes_nothing(env):
    commit(env, "g", {("orders", 0): 1})
    env.store.refuse_writes = True
    for work in (committing(env, "g", {("orders", 0): 2}), env.broker.offsets.delete("g")):
        with pytest.raises(KafkaError) as refused:
            ended(work)
        assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offsets(env) == {("orders", 0): 1}


def test_commit_is_atomic(env):
    for place in (("orders", 3), ("orders", -1), ("nowhere", 0)):
        with pytest.raises(KafkaError) as refused:
            commit(env, "g", {("bills", 0): 1, place: 1})
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(env) == {}
    assert rows_stored(env) == 0


def test_group_is_deleted_with_its_offsets(env):
    commit(env, "g", {("orders", 0): 7, ("orders", 1): 8, ("bills", 0): 1})
    commit(env, "other", {("orders", 0): 3})
    ended(env.broker.offsets.delete("g"))
    assert list(env.broker.offsets.groups()) == ["other"]
    assert list(restarted(env).broker.offsets.groups()) == ["other"]


def test_delete_ignores_missing_partitions(env):
    commit(env, "g", {("orders", 0): 7, ("orders", 1): 8})
    ended(
        env.broker.offsets.delete(
            "g", [("orders", 0), ("orders", 2), ("orders", 9), ("nowhere", 0)]
        )
    )
    assert offsets(env) == offsets(restarted(env)) == {("orders", 1): 8}


def test_deleted_topic_deletes_offsets_of_all_groups(env):
    commit(env, "g", {("orders", 0): 7, ("orders", 1): 7, ("bills", 0): 1})
    commit(env, "other", {("orders", 0): 3})
    delete_topic(env)
    assert offsets(env) == {("bills", 0): 1}
    assert list(env.broker.offsets.groups()) == ["g"]
    assert len(env.broker.offsets) == rows_stored(env) == 1


def test_recreated_topic_has_no_offsets(env):
    commit(env, "g", {("orders", 0): 7})
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    env.topic("orders")
    # The old offsets are still stored, because their deletion has not been requested yet.
    assert rows_stored(env) == 1
    assert offsets(env) == {}
    assert env.broker.offsets.get("g", "orders", 0) is None


def test_orphaned_offsets_are_deleted_at_start(env):
    commit(env, "g", {("orders", 0): 7, ("bills", 0): 1})
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    reopened = restarted(env)
    assert offsets(reopened) == {("bills", 0): 1}
    assert len(reopened.broker.offsets) == rows_stored(reopened) == 1


def test_opened_shard_drops_offsets_of_deleted_topics_and_keeps_those_of_unknown_ones(env):
    """A topic that is not known yet was created after this gateway's last replayed row."""
    commit(env, "g", {("orders", 0): 7, ("bills", 0): 1})
    for name in ("orders", "bills"):
        ended(env.broker.topics.delete(env.broker.topics.require(name)))
    orders, bills = sorted(key[:16] for key in env.store.medium.tables["offsets"])
    env.store.deleted_ids.add(orders)
    offsets = CommittedOffsets(
        env.store, env.broker.topics, env.broker.settings, env.clock, topics_may_return=True
    )
    ended(offsets.open_shard(0, TimeSlices(env.clock)))
    assert [key[:16] for key in env.store.medium.tables["offsets"]] == [bills]
    env.store.outside([Topic("bills", bills, 1)])
    assert list(offsets.of_group("g")) == [("bills", 0)]


def test_start_succeeds_if_orphans_cannot_be_deleted(env, caplog):
    commit(env, "g", {("orders", 0): 7, ("bills", 0): 1})
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    env.store.refuse_writes = True
    started = CommittedOffsets(env.store, env.broker.topics, env.broker.settings, env.clock)
    ended(started.open_shard(0, TimeSlices(env.clock)))
    assert list(started.of_group("g")) == [("bills", 0)]
    assert [record.getMessage() for record in caplog.records] == [
        "offsets of deleted topics not deleted, retried after the next start"
    ]


def test_offsets_of_deleted_topic_disappear_despite_store_failure(env, caplog):
    commit(env, "g", {("orders", 0): 7})
    topic = env.broker.topics.require("orders")
    ended(env.broker.topics.delete(topic))
    env.store.refuse_writes = True
    ended(env.broker.offsets.delete_topic(topic.topic))
    assert [record.getMessage() for record in caplog.records] == [
        "offsets of deleted topics not deleted, retried after the next start"
    ]
    assert len(env.broker.offsets) == 0


def test_commit_overtaken_by_topic_deletion_is_removed(env):
    """As with tables and topics in different stores, which do not wait for each other."""
    slow = MemoryStore()
    ended(slow.open())
    offsets = CommittedOffsets(slow, env.broker.topics, env.broker.settings, env.clock)
    ended(offsets.open_shard(0, TimeSlices(env.clock)))
    slow.hold()
    waiting = Started(offsets.commit("g", {("orders", 0): at(7)}))
    live = env.broker.topics.require("orders")
    ended(env.broker.topics.delete(live))
    ended(offsets.delete_topic(live.topic))
    slow.release()
    assert waiting.failure is None
    assert list(offsets.groups()) == []
    assert ended(ended(slow.table("offsets")).items()) == []


def test_commit_to_deleted_topic_is_refused(env):
    delete_topic(env)
    with pytest.raises(KafkaError) as refused:
        commit(env, "g", {("orders", 0): 1})
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_unreadable_row_is_logged_and_skipped(env, caplog):
    commit(env, "g", {("orders", 0): 7})

    async def spoil() -> None:
        table = await env.store.table("offsets")
        await table.put(
            {
                b"short": b"\x90",
                bytes(20) + b"\xff": b"\x95\1\1\xa0\1\xc0",
                bytes(20) + b"g": b"nothing of the kind",
            }
        )

    ended(spoil())
    reopened = restarted(env)
    assert offsets(reopened) == {("orders", 0): 7}
    assert len(caplog.records) == 3


def refusal(env: BrokerEnvironment, group: str, rows: Mapping[tuple[str, int], int]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        commit(env, group, rows)
    return refused.value.code


def test_max_offsets_per_group_limits_commits(caplog):
    env = open_environment(max_offsets_per_group=2)
    env.topic("orders", 3)
    commit(env, "g", {("orders", 0): 1, ("orders", 1): 1})
    assert refusal(env, "g", {("orders", 2): 1}) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert [record.getMessage() for record in caplog.records] == ["commit refused"]
    # Existing offsets can advance, and a deleted one makes room for another.
    commit(env, "g", {("orders", 0): 2, ("orders", 1): 2})
    ended(env.broker.offsets.delete("g", [("orders", 0)]))
    commit(env, "g", {("orders", 2): 1})


def test_committed_offsets_max_bytes_limits_all_groups():
    """1 MiB holds fewer than 1,748 offsets of 600 bytes."""
    env = open_environment(committed_offsets_max_bytes=1 << 20)
    env.topic("orders", 1000)
    commit(env, "a", {("orders", index): 1 for index in range(1000)})
    commit(env, "b", {("orders", index): 1 for index in range(500)})
    assert (
        refusal(env, "c", {("orders", index): 1 for index in range(248)})
        == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    )
    # Existing offsets can advance, but not with longer metadata, and a deleted group makes room for
    # another.
    commit(env, "b", {("orders", index): 2 for index in range(500)})
    with pytest.raises(KafkaError):
        ended(
            env.broker.offsets.commit(
                "b", {("orders", index): at(2, "x" * 600) for index in range(500)}
            )
        )
    ended(env.broker.offsets.delete("b"))
    commit(env, "c", {("orders", index): 1 for index in range(248)})


def test_refused_commits_are_logged_once_per_group(caplog):
    env = open_environment(max_offsets_per_group=1)
    env.topic("orders", 2)
    for number in range(1_000):
        assert (
            refusal(env, f"g{number % 500}", {("orders", 0): 1, ("orders", 1): 1})
            == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        )
    assert len(caplog.records) == MAX_LOGGED_GROUPS
    commit(env, "a", {("orders", 0): 1})
    ended(env.broker.offsets.delete("a"))
    assert (
        refusal(env, "b", {("orders", 0): 1, ("orders", 1): 1})
        == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    )
    assert len(caplog.records) == MAX_LOGGED_GROUPS + 1


def test_group_names_count_towards_memory_limit():
    env = open_environment(committed_offsets_max_bytes=1 << 20)
    env.topic("orders", 1)
    names = [f"{'g' * 450}{number}" for number in range(1_100)]
    codes = [Started(committing(env, name, {("orders", 0): 1})).failure for name in names]
    assert 900 < codes.count(None) < 1_000
    for name in names:
        ended(env.broker.offsets.delete(name))
    assert env.broker.offsets._bytes == 0


def test_commits_being_stored_count_towards_memory_limit():
    env = open_environment(committed_offsets_max_bytes=1 << 20)
    env.topic("orders", 1_000)
    env.store.hold()
    many = {("orders", index): 1 for index in range(1_000)}
    first, second = Started(committing(env, "a", many)), Started(committing(env, "b", many))
    assert (first.is_done, second.failure.code) == (False, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    env.store.release()
    assert first.failure is None
    assert len(offsets(env, "a")) == 1_000


def test_loaded_offsets_count_towards_memory_limit():
    env = open_environment(committed_offsets_max_bytes=1 << 20)
    env.topic("orders", 100)
    rows = {("orders", index): at(1, "x" * 4096) for index in range(100)}
    ended(env.broker.offsets.commit("a", rows))
    reopened = restarted(env, committed_offsets_max_bytes=1 << 20)
    ended(reopened.broker.offsets.commit("b", rows))
    with pytest.raises(KafkaError):
        ended(reopened.broker.offsets.commit("c", rows))


def test_longest_group_id_can_be_stored():
    env = open_environment()
    env.topic("orders")
    commit(env, "g" * 460, {("orders", 0): 1})
    assert offsets(restarted(env), "g" * 460) == {("orders", 0): 1}


@pytest.mark.parametrize("group", ["g" * 461, "ü" * 231])
def test_too_long_group_id_is_refused(env, group):
    assert refusal(env, group, {("orders", 0): 1}) == ErrorCode.INVALID_GROUP_ID


def test_commit_timeout_is_refused_and_counts_once_stored(env):
    env.store.hold()
    waiting = Started(env.broker.offsets.commit("g", {("orders", 0): at(7)}))
    env.clock.advance(4.9)
    assert not waiting.is_done
    env.clock.advance(0.2)
    env.clock.advance(0.1)
    assert waiting.failure.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert env.store.committed == {}
    env.store.release()
    assert offsets(env) == {("orders", 0): 7}


def test_listener_is_called_for_durable_commits_only(env):
    env.store.refuse_writes = True
    refused = Started(env.broker.offsets.commit("g", {("orders", 0): at(7)}))
    assert (refused.failure.code, env.store.committed) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        {},
    )
    env.store.refuse_writes = False
    commit(env, "g", {("orders", 0): 8, ("bills", 0): 1})
    assert env.store.committed == {("g", "orders", 0): 8, ("g", "bills", 0): 1}


def test_commit_too_large_for_store_is_refused(env, monkeypatch):
    def put(rows):
        raise EntryTooLarge("6000000 bytes where 5000000 are taken")

    monkeypatch.setattr(ended(env.store.shard_table(0, "offsets")), "put", put)
    refused = Started(env.broker.offsets.commit("g", {("orders", 0): at(7)}))
    assert refused.failure.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
