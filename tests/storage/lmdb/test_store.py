"""Limits of the store, and overlapping calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred, gatherResults

from storage.lmdb import queries
from storage.lmdb.layout import Slot
from storage.log import Entry, LogClosed, StorageFailed, Topic, UnknownTopic
from tests.storage.entries import bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener


@ensureDeferred
async def test_append_beyond_queue_bytes_fails_and_log_continues(open_store: Opener) -> None:
    store = open_store(queue_bytes=1000)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    first = log.append([sized(0, 900)])
    with pytest.raises(StorageFailed, match="queue_bytes=1000"):
        await log.append([sized(1, 200)])
    second = log.append([sized(1, 100)])
    await first
    await second
    assert bases(await everything(log)) == [0, 1]


@ensureDeferred
async def test_write_beyond_queue_operations_fails(open_store: Opener) -> None:
    store = open_store(queue_operations=2)
    await store.open()
    table = await store.table("rows")
    puts = [table.put({b"%d" % n: b""}) for n in range(3)]
    await puts[0]
    await puts[1]
    with pytest.raises(StorageFailed, match="queue_operations=2"):
        await puts[2]
    assert len(await table.items()) == 2


@ensureDeferred
async def test_oversized_write_is_accepted_by_empty_queue(
    open_store: Opener,
) -> None:
    store = open_store(queue_bytes=10)
    await store.open()
    await (await store.table("rows")).put({b"k": b"v" * 100})


@pytest.mark.parametrize(
    "call",
    [lambda log: log.latest_by_time(), lambda log: log.entry_for_time(60)],
    ids=["latest", "for time"],
)
@ensureDeferred
async def test_long_search_is_split_so_that_map_can_grow(
    open_store: Opener,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Any], Awaitable[Entry | None]],
) -> None:
    """Growing the map waits for running reads, and every write waits for that."""
    monkeypatch.setattr("storage.lmdb.log.SCAN_KEYS", 5)
    store = open_store(map_bytes=1, tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    for n in range(50):
        # The greatest timestamp is deleted, so every key must be scanned.
        await log.append([sized(n, 100, time=100 if n == 0 else n)])
    await log.delete_before(1)
    seen: list[int] = []
    slots_from = queries.slots_from

    def counted(*arguments: Any) -> Iterator[Slot]:
        seen.append(0)
        for slot in slots_from(*arguments):
            seen[-1] += 1
            yield slot

    monkeypatch.setattr(queries, "slots_from", counted)
    found = await call(log)
    assert (found and found.base_offset) == (49 if found else None)
    assert max(seen) <= 5
    assert sum(seen) >= 49


@ensureDeferred
async def test_appends_to_many_logs_share_one_commit(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic("wide", partitions=100))
    logs = await gatherResults([Deferred.fromCoroutine(store.log("wide", n)) for n in range(100)])
    assert store._environment
    before = store._environment._env.info()["last_txnid"]
    appends = [log.append([sized(0, 1000)]) for log in logs]
    for one in appends:
        await one
    commits = store._environment._env.info()["last_txnid"] - before
    assert commits <= 5, "the first few may have gone before the rest was queued"


@ensureDeferred
async def test_concurrent_opens_return_the_same_log(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    logs = await gatherResults([Deferred.fromCoroutine(store.log("orders", 0)) for _ in range(5)])
    assert all(one is logs[0] for one in logs)


@ensureDeferred
async def test_cancelled_first_open_does_not_affect_others(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    first = Deferred.fromCoroutine(store.table("rows"))
    second = Deferred.fromCoroutine(store.table("rows"))
    first.addErrback(lambda failure: None)
    first.cancel()
    assert await second is await store.table("rows")


@ensureDeferred
async def test_opening_log_of_topic_being_deleted_fails(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    deleted = Deferred.fromCoroutine(store.delete_topic("orders"))
    with pytest.raises(UnknownTopic):
        await store.log("orders", 0)
    await deleted


@ensureDeferred
async def test_log_is_closed_if_topic_is_deleted_while_opening(
    open_store: Opener,
) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    opened = Deferred.fromCoroutine(store.log("orders", 0))
    await store.delete_topic("orders")
    log = await opened
    with pytest.raises(LogClosed):
        await log.append([sized(0, 10)])


@ensureDeferred
async def test_closed_store_object_can_be_reopened(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    await (await store.log("orders", 0)).append([sized(0, 10)])
    await store.close()
    await store.open()
    assert bases(await everything(await store.log("orders", 0))) == [0]


@ensureDeferred
async def test_append_queued_behind_topic_deletion_fails_and_stores_nothing(
    open_store: Opener,
) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    deleted = Deferred.fromCoroutine(store.delete_topic("orders"))
    with pytest.raises(LogClosed):
        await log.append([sized(0, 10)])
    await deleted
    assert await store.query_log(0, lambda cursor, _: cursor.first()) is False


@ensureDeferred
async def test_log_ids_are_not_reused(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    seen: set[int] = set()
    for _ in range(3):
        await store.create_topic(topic("orders", 2))
        await store.alter_topic(topic("orders", 3))
        ids = store._topics["orders"].log_ids
        assert len(ids) == 3
        assert not seen & set(ids)
        seen |= set(ids)
        await store.delete_topic("orders")


@pytest.mark.parametrize("name", ["", "t" * 481])
@ensureDeferred
async def test_name_too_long_for_a_key_is_refused(open_store: Opener, name: str) -> None:
    store = open_store()
    await store.open()
    with pytest.raises(ValueError):
        await store.create_topic(Topic(name, bytes(16), 1))
    with pytest.raises(ValueError):
        await store.table(name)


@ensureDeferred
async def test_watcher_is_called_once_per_burst(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    calls: list[int] = []
    log.watch(lambda: calls.append(log.end_offset))
    appends = [log.append([sized(n, 10)]) for n in range(100)]
    for one in appends:
        await one
    assert calls[-1] == 100
    assert len(calls) <= 5, "the first few may have gone before the rest was queued"


@ensureDeferred
async def test_store_uuid_is_stable(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    first = store.uuid
    await store.close()
    again = open_store()
    await again.open()
    assert again.uuid == first
    assert len(first) == 16


def test_canonical_name_is_unchanged_and_slash_is_refused(open_store: Opener) -> None:
    store = open_store()
    assert store.canonical("orders") == "orders"
    with pytest.raises(ValueError, match="slash"):
        store.canonical("public/default/orders")
