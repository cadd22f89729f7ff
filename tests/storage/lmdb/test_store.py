"""Limits of the store, and overlapping calls."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred, gatherResults

from storage.lmdb import LmdbStore, queries
from storage.lmdb.layout import Slot
from storage.lmdb.log import LmdbLog
from storage.log import (
    Entry,
    EntryRun,
    LogClosed,
    OffsetOutOfRange,
    StorageFailed,
    Topic,
    UnknownTopic,
)
from tests.storage.entries import bases, everything, plain, sized, topic
from tests.storage.lmdb.conftest import Opener


@ensureDeferred
async def test_append_beyond_queue_bytes_fails_and_log_continues(open_store: Opener) -> None:
    store = open_store(queue_bytes=1000)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    first = log.append([sized(0, 900)])
    with pytest.raises(StorageFailed, match="at most 1000 bytes"):
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
    with pytest.raises(StorageFailed, match="in 2 writes: retry later"):
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


# Sequential reads from the page cache


async def with_entries(
    open_store: Opener, count: int, partitions: int = 1, size: int = 1000
) -> tuple[LmdbStore, list[LmdbLog]]:
    """A store whose partitions have `count` entries of some 1,000 bytes, none in the tail cache."""
    store = open_store(tail_bytes=0, index_entries=40)
    await store.open()
    await store.create_topic(topic(partitions=partitions))
    logs = [await store.log("orders", index) for index in range(partitions)]
    for number in range(count):
        for log in logs:
            await log.append([sized(2 * number, size + number, records=2, time=number)])
    return store, logs


async def fetch(log: LmdbLog, offset: int, max_bytes: int = 0) -> list[Entry]:
    resident = log.read_resident(offset, max_bytes)
    return await log.read(offset, max_bytes) if resident is None else resident


def in_python(log: LmdbLog, name: str) -> Callable[..., Any]:
    """The method that compiled code replaces in the common case."""
    found: Callable[..., Any] = getattr(log, f"{name}_any", getattr(log, name))
    return found


def outline(run: EntryRun | None) -> object:
    return run and (run.base_offset, run.last_offset, run.count, run.payload, run.entries())


async def read_in_order(log: LmdbLog, max_bytes: int) -> tuple[list[Entry], int]:
    """All entries of a log; and how many reads needed no other thread."""
    found: list[Entry] = []
    offset = log.start_offset
    count = 0
    while offset < log.end_offset:
        run, resident = log.read_run(offset, max_bytes), log.read_resident(offset, max_bytes)
        assert outline(run) == outline(in_python(log, "read_run")(offset, max_bytes))
        assert resident == in_python(log, "read_resident")(offset, max_bytes)
        entries = await log.read(offset, max_bytes)
        assert (run is None) is (resident is None)
        if run is not None and resident is not None:
            count += 1
            assert plain(resident) == plain(entries)
            assert bytes(run.payload) == b"".join(entry.payload for entry in entries)
            assert (run.base_offset, run.last_offset, run.count) == (
                entries[0].base_offset,
                entries[-1].last_offset,
                len(entries),
            )
        found += entries
        offset = entries[-1].last_offset + 1
    return found, count


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("max_bytes", [0, 5000])
@ensureDeferred
async def test_sequential_reader_gets_every_entry_mostly_from_the_page_cache(
    open_store: Opener, partitions: int, max_bytes: int
) -> None:
    """Committed rows and those in memory only, with other partitions' frames in between."""
    _, logs = await with_entries(open_store, 100, partitions)
    for log in logs:
        found, count = await read_in_order(log, max_bytes)
        assert plain(found) == plain(
            [sized(2 * n, 1000 + n, records=2, time=n) for n in range(100)]
        )
        reads = 100 if max_bytes == 0 else 25
        assert count >= reads - 2 - reads // 10 or not hasattr(os, "RWF_NOWAIT")


@ensureDeferred
async def test_reader_that_gets_a_part_of_each_read_is_sequential(open_store: Opener) -> None:
    """Converted to an older format, fewer batches fit into the reply."""
    _, (log,) = await with_entries(open_store, 60)
    resident = []
    for offset in range(0, 100, 3):
        resident.append(log.read_resident(offset, 5000) is not None)
        assert (await log.read(offset, 5000))[0].base_offset == offset - offset % 2
    assert resident.count(True) >= len(resident) - 4 or not hasattr(os, "RWF_NOWAIT")


@ensureDeferred
async def test_first_entry_that_does_not_fit_is_not_read(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (log,) = await with_entries(open_store, 20)
    for offset in (0, 2):
        await fetch(log, offset)
    reads: list[int] = []
    real = store.read_cached

    def read_cached(segment: int, rows: bytes, first: int, stop: int) -> bytes | None:
        reads.append(stop - first)
        return real(segment, rows, first, stop)

    monkeypatch.setattr(store, "read_cached", read_cached)
    run = log.read_run(4, 1001, at_least_one=False)
    assert run
    assert (run.count, run.payload, run.entries(), reads) == (0, b"", [], [])
    log.read_run(4, 1002, at_least_one=False)
    log.read_run(4, 0)
    assert reads == [1, 1] or not hasattr(os, "RWF_NOWAIT")


@ensureDeferred
async def test_read_from_the_journal_always_waits(open_store: Opener) -> None:
    """A loop over a whole log must let the reactor serve others."""
    _, (log,) = await with_entries(open_store, 30)
    for offset in range(0, 60, 2):
        reading = Deferred.fromCoroutine(log.read(offset, 0))
        assert not reading.called
        assert bases(await reading) == [offset]
    assert log._ahead is None


@ensureDeferred
async def test_reader_that_jumps_does_not_find_rows_in_advance(open_store: Opener) -> None:
    _, (log,) = await with_entries(open_store, 30)
    for offset in (40, 20, 0, 30, 10):
        await fetch(log, offset)
    assert log._ahead is None


@ensureDeferred
async def test_replaced_entries_are_not_read_from_rows_found_before(open_store: Opener) -> None:
    _, (log,) = await with_entries(open_store, 30)
    for offset in (0, 2, 4):
        await fetch(log, offset)
    new = sized(20, 50, records=2, time=1)
    await log.replace(20, 21, [new])
    assert log.read_run(20, 0) is None
    assert plain(await fetch(log, 20)) == plain([new])


@ensureDeferred
async def test_rows_that_are_found_while_entries_are_replaced_are_not_kept(
    open_store: Opener,
) -> None:
    store, (log,) = await with_entries(open_store, 30)
    await fetch(log, 0)
    may_end: Deferred[None] = Deferred()
    read = store.read_entries

    async def later(*arguments: Any) -> list[Entry]:
        entries = await read(*arguments)
        await may_end
        return entries

    store.read_entries = later  # type: ignore[method-assign]
    reading = Deferred.fromCoroutine(fetch(log, 2))
    new = sized(20, 50, records=2, time=1)
    await log.replace(20, 21, [new])
    may_end.callback(None)
    await reading
    store.read_entries = read  # type: ignore[method-assign]
    assert plain(await fetch(log, 20)) == plain([new])


@ensureDeferred
async def test_damaged_entry_is_reported_to_a_sequential_reader(
    open_store: Opener, directory: Path
) -> None:
    _, (log,) = await with_entries(open_store, 10)
    for offset in (0, 2):
        await fetch(log, offset)
    (segment,) = (directory / "journal").iterdir()
    damaged = sized(12, 1006)
    at = segment.read_bytes().index(bytes(damaged.payload))
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"?")
    assert log.read_run(12, 0) is None
    with pytest.raises(StorageFailed, match="offsets 12 to 13 of orders-0 are damaged"):
        await log.read(12, 0)
    assert bases(await log.read(10, 5000)) == [10]
    assert bases(await log.read(14, 0)) == [14]


@ensureDeferred
async def test_deleted_entries_are_not_read_from_rows_found_before(open_store: Opener) -> None:
    store, (log,) = await with_entries(open_store, 30)
    for offset in (0, 2, 4):
        await fetch(log, offset)
    await log.delete_before(20)
    for read in (log.read_run, log.read_resident):
        with pytest.raises(OffsetOutOfRange):
            read(10, 0)
    await store.delete_topic("orders")
    with pytest.raises(LogClosed):
        log.read_run(24, 0)
    assert store._ahead_bytes == 0


@ensureDeferred
async def test_rows_found_in_advance_take_a_limited_amount_of_memory(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, logs = await with_entries(open_store, 30, partitions=4)
    # Each log has 17 rows.
    monkeypatch.setattr("storage.lmdb.store.MOST_AHEAD_BYTES", 2 * 17 * 64)
    for log in logs:
        for offset in (0, 2):
            await fetch(log, offset)
    assert [log._ahead is not None for log in logs] == [False, False, True, True]
    assert store._ahead_bytes == 2 * 17 * 64


@pytest.mark.parametrize(("limit", "rows"), [(100, 17 * 4), (12, 12), (8, 8), (7, 0), (3, 0)])
@ensureDeferred
async def test_limit_of_rows_found_in_advance_includes_those_of_the_read(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, limit: int, rows: int
) -> None:
    """None are kept if they do not suffice for another read."""
    monkeypatch.setattr("storage.lmdb.log.MOST_ROWS_AHEAD", limit)
    store, (log,) = await with_entries(open_store, 90)
    await fetch(log, 0, 4100)
    assert len(await fetch(log, 8, 4100)) == 4
    assert store._ahead_bytes == rows * 64
