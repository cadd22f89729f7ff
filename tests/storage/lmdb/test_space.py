"""Disk space: segments of the journal are used again, and nothing keeps them from it."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import lmdb
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from storage.files import DiskFiles
from storage.lmdb import LmdbStore
from storage.lmdb import store as store_module
from storage.lmdb import writer as writer_module
from storage.lmdb.journal import Journal
from storage.lmdb.layout import Row, slot_of
from storage.lmdb.write_burst import Task
from storage.lmdb.writer import begin_transaction
from storage.log import Entry, LogClosed, PartitionLog
from tests.storage.entries import bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.testkit.settle import until

ENTRY = 16_000
"""Size of an entry in bytes: four pages in the file."""

SEGMENT = 256_000
"""Size of a segment in bytes. Each round writes six of them."""


def disk_use(directory: Path) -> int:
    """Bytes of all files of the store. LMDB's file has only rows, a few pages per round."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def assert_stopped_growing(sizes: list[int]) -> None:
    """What is left is at most a round and as much deleted, and the current segment."""
    assert sizes[-1] - sizes[3] <= 3 * SEGMENT, sizes
    assert sizes[-1] < 2 * 100 * ENTRY + 6 * SEGMENT, sizes


HAS_NOWAIT = hasattr(os, "RWF_NOWAIT")
"""Whether the system tells what the page cache has."""


async def append(log: PartitionLog, entries: int) -> None:
    appends = [log.append([sized(log.next_offset, ENTRY)]) for _ in range(entries)]
    for one in appends:
        await one


async def freed(store: LmdbStore) -> None:
    """Wait until the writer has freed everything: each empty write lets it free one more piece."""
    table = await store.table("turns")
    assert store._writer
    state = store._writer._state
    while state.freeing or state.unused or state.sparse:
        await table.put({})


@ensureDeferred
async def test_file_of_trimmed_log_stops_growing(open_store: Opener, directory: Path) -> None:
    store = open_store(segment_bytes=SEGMENT)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    sizes = []
    for _ in range(12):
        await append(log, 100)
        await log.retain(since=None, at_most_bytes=100 * ENTRY)
        await freed(store)
        sizes.append(disk_use(directory))
    assert log.size == 100 * ENTRY
    assert_stopped_growing(sizes)


@ensureDeferred
async def test_file_does_not_grow_with_created_and_deleted_topics(
    open_store: Opener, directory: Path
) -> None:
    store = open_store(freeing_entries=30, segment_bytes=SEGMENT)
    await store.open()
    sizes = []
    for _ in range(10):
        await store.create_topic(topic())
        await append(await store.log("orders", 0), 100)
        await store.delete_topic("orders")
        await freed(store)
        sizes.append(disk_use(directory))
    assert_stopped_growing(sizes)


@pytest.mark.parametrize("how", ["the topic was deleted", "the start was moved"])
@ensureDeferred
async def test_interrupted_freeing_continues_after_restart(
    open_store: Opener, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_entries, turns = writer_module.free_entries, count()
    # The writer thread frees only five entries before the store is closed.
    monkeypatch.setattr(
        writer_module,
        "free_entries",
        lambda *given, **named: next(turns) < 5 and free_entries(*given, **named),
    )
    store = open_store(freeing_entries=1)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await append(log, 50)
    if how == "the topic was deleted":
        await store.delete_topic("orders")
    else:
        await log.delete_before(40)
    await store.close()
    assert store._writer
    assert store._writer._state.freeing, "nothing was left to do, so this shows nothing"
    monkeypatch.undo()
    again = open_store()
    await again.open()
    await freed(again)
    left = await again.query_log(0, lambda cursor, _: sum(1 for _ in cursor.iternext(values=False)))
    assert left == (0 if how == "the topic was deleted" else 10)


@ensureDeferred
async def test_files_are_deleted_while_freeing_fails(
    open_store: Opener, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting them needs no space, and freeing entries may need it."""
    store = open_store(segment_bytes=SEGMENT)
    await store.open()
    await store.create_topic(topic("orders", 2))
    log, last = await store.log("orders", 0), await store.log("orders", 1)
    for _ in range(4):
        await append(log, 20)
    await append(last, 1)
    free_entries = writer_module.free_entries
    refused = {last._log_id}

    def free(*given: Any, log_id: int, **named: Any) -> int:
        if log_id in refused:
            raise lmdb.DiskError("a simulated failure")
        return free_entries(*given, log_id=log_id, **named)

    monkeypatch.setattr(writer_module, "free_entries", free)
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.001)
    # The rows of both logs are deleted in this order; those of the second one never are.
    await log.delete_before(log.end_offset)
    await last.delete_before(last.end_offset)
    await until(lambda: len(list((directory / "journal").iterdir())) == 1)
    assert store._state.freeing


class UndeletableFile(DiskFiles):
    """Files on a disk that does not delete one of them."""

    is_broken = True

    def unlink(self, path: Path) -> None:
        if self.is_broken and path.name == f"{1:016d}":
            raise OSError(errno.EIO, "Input/output error")
        super().unlink(path)


@ensureDeferred
async def test_file_that_cannot_be_deleted_does_not_keep_others_from_it(
    open_store: Opener, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.001)
    files = UndeletableFile()
    store = open_store(files=files, segment_bytes=SEGMENT)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    for _ in range(5):
        await append(log, 15)
    await log.delete_before(log.end_offset)
    await until(lambda: store._state.unused == {1})
    assert len(list((directory / "journal").iterdir())) == 2
    files.is_broken = False
    await until(lambda: not store._state.unused)
    assert len(list((directory / "journal").iterdir())) == 1


@ensureDeferred
async def test_entries_of_many_logs_are_freed_in_one_transaction(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic("orders", 40))
    for partition in range(40):
        await append(await store.log("orders", partition), 1)
    await store.delete_topic("orders")
    assert store._environment
    before = store._environment._env.info()["last_txnid"]
    await until(lambda: not store._state.freeing)
    assert store._environment._env.info()["last_txnid"] - before <= 2


@ensureDeferred
async def test_segments_are_cleaned_while_there_are_always_entries_to_free(
    open_store: Opener, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(segment_bytes=SEGMENT)
    await store.open()
    await store.create_topic(topic("orders", 3))
    kept, deleted, endless = [await store.log("orders", number) for number in range(3)]
    free_entries = writer_module.free_entries

    def free(*given: Any, log_id: int, **named: Any) -> int:
        return log_id != endless._log_id and free_entries(*given, log_id=log_id, **named)

    monkeypatch.setattr(writer_module, "free_entries", free)
    for _ in range(20):
        await append(deleted, 5)
        await append(kept, 1)
    await append(endless, 1)
    files = len(list((directory / "journal").iterdir()))
    await deleted.delete_before(deleted.end_offset)
    await endless.delete_before(endless.end_offset)
    await until(lambda: len(list((directory / "journal").iterdir())) <= files // 2)
    await until(lambda: not store._state.sparse)
    assert list(store._state.freeing) == [endless._log_id]
    assert bases(await everything(kept)) == list(range(20))


@ensureDeferred
async def test_freeing_continues_while_cleaning_fails(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: cleaning needs more space, and each failure is followed by a pause."""
    failures_while_freeing: list[None] = []

    def fail(*given: Any, **named: Any) -> None:
        if store._state.freeing:
            failures_while_freeing.append(None)
        raise lmdb.DiskError("a simulated failure")

    monkeypatch.setattr(writer_module, "move_entries", fail)
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(writer_module, "CLEANING_RETRY_SECONDS", 1e6)
    store = open_store(segment_bytes=SEGMENT, freeing_entries=5)
    await store.open()
    await store.create_topic(topic("orders", 2))
    kept, deleted = [await store.log("orders", number) for number in range(2)]
    for _ in range(20):
        await append(deleted, 5)
        await append(kept, 1)
    await deleted.delete_before(deleted.end_offset)
    await until(lambda: not store._state.freeing)
    assert store._state.sparse
    assert len(failures_while_freeing) == 1


@ensureDeferred
async def test_appends_and_reads_continue_while_freeing(open_store: Opener) -> None:
    store = open_store(freeing_entries=3, tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await append(log, 200)
    await log.delete_before(195)
    for _ in range(20):
        await append(log, 1)
        assert bases(await log.read(195, 1)) == [195]
    await freed(store)
    assert bases(await everything(log)) == list(range(195, 220))


@ensureDeferred
async def test_read_overtaken_by_deletion_returns_old_entry_or_fails(
    open_store: Opener,
) -> None:
    """It must not silently return a later entry."""
    store = open_store(freeing_entries=100, tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await append(log, 50)
    deleted = Deferred.fromCoroutine(store.delete_topic("orders"))
    read = Deferred.fromCoroutine(log.read(10, 1))
    with suppress(LogClosed):
        assert bases(await read) == [10]
    await deleted


@ensureDeferred
async def test_held_entries_do_not_block_page_reuse(open_store: Opener, directory: Path) -> None:
    store = open_store(tail_bytes=0, segment_bytes=SEGMENT)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await append(log, 100)
    held = await log.read(0, 1 << 30)
    assert len(held) == 100
    sizes = []
    for _ in range(8):
        await append(log, 100)
        await log.retain(since=None, at_most_bytes=100 * ENTRY)
        await freed(store)
        sizes.append(disk_use(directory))
    assert_stopped_growing(sizes)
    assert bytes(held[0].payload) == sized(0, ENTRY).payload


@ensureDeferred
async def test_disk_use_is_bounded_if_some_entries_of_each_segment_stay(
    open_store: Opener, directory: Path
) -> None:
    store = open_store(tail_bytes=0, segment_bytes=SEGMENT)
    await store.open()
    await store.create_topic(topic("orders", 2))
    kept, deleted = await store.log("orders", 0), await store.log("orders", 1)
    for _ in range(10):
        for _ in range(20):
            await append(deleted, 5)
            await append(kept, 1)
        await deleted.delete_before(deleted.end_offset)
        await freed(store)
    assert disk_use(directory) < 2 * kept.size + 8 * SEGMENT
    assert bases(await everything(kept)) == list(range(200))
    await store.close()
    again = open_store(tail_bytes=0)
    await again.open()
    entries = await everything(await again.log("orders", 0))
    assert [bytes(one.payload) for one in entries] == [
        sized(base, ENTRY).payload for base in range(200)
    ]


@ensureDeferred
async def test_read_of_moved_entry_finds_its_new_place(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tail_bytes=0, segment_bytes=SEGMENT)
    await store.open()
    await store.create_topic(topic("orders", 2))
    kept, deleted = await store.log("orders", 0), await store.log("orders", 1)
    await append(kept, 1)
    # The first burst is in the segment of `kept`, the second in another one.
    await append(deleted, 5)
    await append(deleted, 20)
    await store.write(Task(begin_transaction))
    place = await store.query_log(0, lambda cursor, _: cursor.first() and cursor.key())
    read = store_module.read_entries
    is_found, is_moved = threading.Event(), threading.Event()

    def read_after_move(journal: Journal, rows: list[Row]) -> list[Entry]:
        """Between the search and the read of the payload, the segment is cleaned."""
        is_found.set()
        assert is_moved.wait(60)
        return read(journal, rows)

    monkeypatch.setattr(store_module, "read_entries", read_after_move)
    reading = Deferred.fromCoroutine(kept.read(0, 1))
    assert await deferToThread(is_found.wait, 60)
    await deleted.delete_before(deleted.end_offset)
    await freed(store)
    is_moved.set()
    assert bases(await reading) == [0]
    moved = await store.query_log(0, lambda cursor, _: cursor.first() and cursor.key())
    assert slot_of(moved).segment > slot_of(place).segment


@ensureDeferred
async def test_rows_of_moved_entries_are_found_again_for_a_sequential_reader(
    open_store: Opener,
) -> None:
    store = open_store(segment_bytes=SEGMENT, tail_bytes=0)
    await store.open()
    await store.create_topic(topic("orders", 2))
    log, other = await store.log("orders", 0), await store.log("orders", 1)
    for base in range(60):
        written = log.append([sized(base, 4000)]), other.append([sized(base, 10 * 4000)])
        for one in written:
            await one

    async def is_resident(offset: int) -> bool:
        found = log.read_resident(offset, 0)
        assert bases(await log.read(offset, 0) if found is None else found) == [offset]
        return found is not None

    assert [await is_resident(offset) for offset in range(3)] == [False, False, HAS_NOWAIT]
    assert store._journal
    before = set(store._journal.numbers)
    await other.delete_before(60)
    await freed(store)
    assert len(before & store._journal.numbers) <= 1
    resident = [await is_resident(offset) for offset in range(3, 10)]
    assert resident == [False, *[HAS_NOWAIT] * 6]
