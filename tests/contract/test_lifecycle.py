"""Opening and closing a store and its shards."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from storage.log import LogClosed, PartitionLog, Store, StoreInUse
from tests.contract.benches import Bench
from tests.storage.entries import bases, entry, everything, topic
from tests.storage.open_shards import open_as_controller, open_with_shards


@ensureDeferred
async def test_open_store_cannot_be_opened_twice(store: Store, bench: Bench) -> None:
    with pytest.raises(StoreInUse):
        await open_as_controller(bench.store())
    await store.create_topic(topic())


@ensureDeferred
async def test_closed_store_can_be_reopened(store: Store, bench: Bench) -> None:
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    await again.close()


@ensureDeferred
async def test_close_writes_queued_appends(log: PartitionLog, store: Store, bench: Bench) -> None:
    appends = [log.append([entry(n)]) for n in range(100)]
    await store.close()
    for one in appends:
        await one
    again = bench.store()
    await open_with_shards(again)
    assert bases(await everything(await again.log("orders", 0))) == list(range(100))
    await again.close()


@ensureDeferred
async def test_close_is_idempotent(store: Store) -> None:
    await store.close()
    await store.close()


@ensureDeferred
async def test_closed_store_refuses_all_calls(log: PartitionLog, store: Store) -> None:
    table = await store.table("groups")
    await store.close()
    with pytest.raises(LogClosed):
        await log.append([entry(0)])
    with pytest.raises(LogClosed):
        await log.read(0, 100)
    with pytest.raises(LogClosed):
        await table.items()
    with pytest.raises(LogClosed):
        await store.create_topic(topic("new"))
    with pytest.raises(LogClosed):
        await store.delete_topic("orders")
    with pytest.raises(LogClosed):
        await store.log("orders", 0)
    with pytest.raises(LogClosed):
        await store.table("groups")


@ensureDeferred
async def test_open_store_is_confirmed_as_held(store: Store) -> None:
    assert not store.may_be_lost
    await store.confirm_held()


@ensureDeferred
async def test_usage_reports_at_least_one_volume(store: Store) -> None:
    for usage in store.usage():
        assert usage.path
        assert usage.usable_bytes <= usage.total_bytes or usage.total_bytes == -1
    assert list(store.usage())


@ensureDeferred
async def test_topic_is_listed_by_canonical_name(store: Store) -> None:
    await store.create_topic(topic("orders"))
    assert [store.canonical(name) for name in store.topics] == ["orders"]


@ensureDeferred
async def test_own_changes_do_not_call_topic_watchers(store: Store) -> None:
    changes: list[None] = []
    store.watch_topics(lambda: changes.append(None))
    await store.create_topic(topic("orders"))
    await store.alter_topic(topic("orders", 2))
    await store.delete_topic("orders")
    assert changes == []


@ensureDeferred
async def test_note_committed_accepts_unknown_topics(store: Store) -> None:
    store.note_committed("group", "orders", 0, 0)
    store.note_committed("group", "no such topic", 7, 1 << 40)


@ensureDeferred
async def test_permissions_are_none_or_allow_nothing_until_granted(store: Store) -> None:
    permissions = await store.permissions()
    assert await store.permissions() is permissions
    if permissions is not None:
        assert not permissions.may_write("alice", "orders")
        assert not permissions.may_read_any("alice")


@ensureDeferred
async def test_closed_and_reopened_shard_has_all_entries_once(store: Store) -> None:
    await store.create_topic(topic("orders", 4))
    for index in range(4):
        log = await store.log("orders", index)
        # The last ones are in flight when the shard is closed.
        appends = [log.append([entry(n)]) for n in range(20)]
        await appends[0]
    for shard in range(store.shard_count):
        await store.close_shard(shard)
    for shard in range(store.shard_count):
        await store.open_shard(shard, 7)
    for index in range(4):
        log = await store.log("orders", index)
        await log.append([entry(20)])
        assert bases(await everything(log)) == list(range(21))


@ensureDeferred
async def test_opening_an_open_shard_changes_nothing(store: Store) -> None:
    await store.create_topic(topic("orders"))
    log = await store.log("orders", 0)
    for shard in range(store.shard_count):
        await store.open_shard(shard, log.leader_epoch)
    assert await store.log("orders", 0) is log


@ensureDeferred
async def test_shard_of_closed_store_is_not_opened(store: Store) -> None:
    table = await store.shard_table(0, "groups")
    await store.close()
    with pytest.raises(LogClosed):
        await table.items()
    with pytest.raises(LogClosed):
        await store.shard_table(0, "groups")
