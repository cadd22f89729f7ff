"""Topics: creation, changes, deletion, restart."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from storage.log import (
    LogClosed,
    PartitionLog,
    StorageFailed,
    Store,
    Topic,
    TopicExists,
    UnknownTopic,
)
from tests.contract.benches import Bench
from tests.storage.entries import bases, entry, everything, topic
from tests.storage.open_shards import open_with_shards


@ensureDeferred
async def test_topic_is_listed_as_created(store: Store) -> None:
    made = topic("orders", 3, {"retention.ms": "1000", "x": ""})
    await store.create_topic(made)
    assert dict(store.topics) == {"orders": made}


@ensureDeferred
async def test_topics_view_is_live_and_read_only(store: Store) -> None:
    view = store.topics
    await store.create_topic(topic("late"))
    assert "late" in view
    with pytest.raises(TypeError):
        view["own"] = topic("own")


@ensureDeferred
async def test_existing_name_is_refused(store: Store) -> None:
    await store.create_topic(topic("orders", 2))
    with pytest.raises(TopicExists):
        await store.create_topic(topic("orders", 5))
    assert store.topics["orders"].partitions == 2


@ensureDeferred
async def test_topic_can_be_altered(store: Store) -> None:
    await store.create_topic(topic("orders", 1))
    await store.alter_topic(topic("orders", 4, {"a": "b"}))
    assert store.topics["orders"] == topic("orders", 4, {"a": "b"})
    await (await store.log("orders", 3)).append([entry(0)])


@ensureDeferred
async def test_adding_partitions_keeps_entries(log: PartitionLog, store: Store) -> None:
    await log.append([entry(0)])
    await store.alter_topic(topic("orders", 2))
    assert await store.log("orders", 0) is log
    assert bases(await everything(log)) == [0]
    assert (await store.log("orders", 1)).end_offset == 0


@ensureDeferred
async def test_fewer_partitions_are_refused(store: Store) -> None:
    await store.create_topic(topic("orders", 2))
    with pytest.raises(ValueError):
        await store.alter_topic(topic("orders", 1))
    assert store.topics["orders"].partitions == 2


@ensureDeferred
async def test_topic_id_cannot_change(store: Store) -> None:
    await store.create_topic(topic("orders"))
    with pytest.raises(ValueError):
        await store.alter_topic(Topic("orders", b"another id, 16 B", 1))


@pytest.mark.parametrize("wrong", [Topic("short", b"id", 1), Topic("none", bytes(16), 0)])
@ensureDeferred
async def test_topic_needs_16_byte_id_and_a_partition(store: Store, wrong: Topic) -> None:
    with pytest.raises(ValueError):
        await store.create_topic(wrong)
    assert wrong.name not in store.topics


@ensureDeferred
async def test_missing_topic_is_unknown(store: Store) -> None:
    await store.create_topic(topic("orders", 2))
    for call in (
        store.log("nothing", 0),
        store.log("orders", 2),
        store.log("orders", -1),
        store.delete_topic("nothing"),
    ):
        with pytest.raises(UnknownTopic):
            await call
    with pytest.raises(UnknownTopic):
        await store.alter_topic(topic("nothing"))


@ensureDeferred
async def test_log_is_the_same_object_at_each_call(store: Store) -> None:
    await store.create_topic(topic("orders", 2))
    assert await store.log("orders", 1) is await store.log("orders", 1)
    assert await store.log("orders", 0) is not await store.log("orders", 1)


@ensureDeferred
async def test_topics_survive_restart(store: Store, bench: Bench) -> None:
    await store.create_topic(topic("kept", 3, {"a": "b"}))
    await store.create_topic(topic("altered", 1))
    await store.alter_topic(topic("altered", 2, {"c": "d"}))
    await store.create_topic(topic("deleted", 1))
    await store.delete_topic("deleted")
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    assert dict(again.topics) == {
        "kept": topic("kept", 3, {"a": "b"}),
        "altered": topic("altered", 2, {"c": "d"}),
    }
    await again.close()


@ensureDeferred
async def test_log_of_deleted_topic_is_closed(log: PartitionLog, store: Store) -> None:
    await log.append([entry(0)])
    await store.delete_topic("orders")
    assert "orders" not in store.topics
    with pytest.raises(LogClosed):
        await log.append([entry(1)])
    with pytest.raises(LogClosed):
        await log.read(0, 100)
    with pytest.raises(LogClosed):
        log.read_resident(0, 100)
    with pytest.raises(LogClosed):
        await log.entry_for_time(0)
    with pytest.raises(LogClosed):
        await log.latest_by_time()
    with pytest.raises(LogClosed):
        await log.delete_before(1)
    with pytest.raises(LogClosed):
        await log.retain(since=1, at_most_bytes=None)
    with pytest.raises(LogClosed):
        await log.replace(0, 0, [])
    with pytest.raises(UnknownTopic):
        await store.log("orders", 0)


@ensureDeferred
async def test_appends_behind_deletion_fail_with_log_closed(
    log: PartitionLog, store: Store
) -> None:
    before = log.append([entry(0)])
    deletion = store.delete_topic("orders")
    await before
    await deletion
    with pytest.raises(LogClosed):
        await log.append([entry(1)])


@ensureDeferred
async def test_recreated_topic_is_empty(log: PartitionLog, store: Store, bench: Bench) -> None:
    await log.append([entry(0, 5)])
    await store.delete_topic("orders")
    await store.create_topic(topic("orders"))
    fresh = await store.log("orders", 0)
    assert (fresh.start_offset, fresh.end_offset, fresh.size) == (0, 0, 0)
    await fresh.append([entry(0, payload=b"second life")])
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    assert [bytes(one.payload) for one in await everything(await again.log("orders", 0))] == [
        b"second life"
    ]
    await again.close()


@ensureDeferred
async def test_refused_topic_does_not_exist(store: Store, bench: Bench) -> None:
    await store.create_topic(topic("orders"))
    with bench.refusing_writes():
        with pytest.raises(StorageFailed):
            await store.create_topic(topic("new"))
        with pytest.raises(StorageFailed):
            await store.delete_topic("orders")
    assert list(store.topics) == ["orders"]
    await store.create_topic(topic("new"))
    await (await store.log("orders", 0)).append([entry(0)])
