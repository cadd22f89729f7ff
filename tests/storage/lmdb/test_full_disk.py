"""A full disk: writes fail, reads and deletions work, no acknowledged entry is lost."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.files import DiskFiles
from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import Buffer, PartitionLog, StorageFailed
from tests.contract.benches import no_file_may_grow
from tests.storage.entries import everything, sized, topic
from tests.storage.lmdb.conftest import Opener

ENTRY = 16_000
SEGMENT = 256_000
DISK = 4_000_000
RESERVE = 500_000


class SmallDisk(DiskFiles):
    """Files of at most `limit` bytes together; what they already have can be overwritten."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self.limit = limit

    def room(self, directory: Path, written: int) -> int:
        used = sum(path.stat().st_size for path in self._directory.glob("journal/*"))
        return max(self.limit - used, 0)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        growth = position + sum(map(len, buffers)) - self.size(descriptor)
        if growth > max(self.room(self._directory, 0), 0):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(descriptor, buffers, position)


@ensureDeferred
async def test_append_into_allocated_part_of_a_file_does_not_use_the_reserve(
    directory: Path, open_store: Opener
) -> None:
    """Rows in LMDB follow it."""
    disk = SmallDisk(directory, DISK)
    store = open_store(files=disk, tail_bytes=0, reserve_bytes=RESERVE)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append([sized(0, 100), sized(1, 100)])
    disk.limit = RESERVE
    with pytest.raises(StorageFailed, match="the disk is full"):
        await log.append([sized(2, 100)])
    # Half of the reserve is for what frees space.
    await log.replace(0, 1, [sized(1, 50)])
    disk.limit = RESERVE // 2
    with pytest.raises(StorageFailed, match="the disk is full"):
        await log.replace(0, 1, [sized(1, 40)])
    await log.delete_before(1)
    await (await store.table("rows")).put({b"k": b"v"})
    assert [one.base_offset for one in await everything(log)] == [1]


@ensureDeferred
async def test_refused_replacement_does_not_fail_what_is_written_with_it(
    directory: Path, open_store: Opener
) -> None:
    disk = SmallDisk(directory, DISK)
    store = open_store(files=disk, tail_bytes=0, reserve_bytes=RESERVE)
    await store.open()
    await store.create_topic(topic())
    await store.create_topic(topic("gone"))
    log, table = await store.log("orders", 0), await store.table("rows")
    await log.append([sized(0, 100), sized(1, 100)])
    disk.limit = RESERVE // 2

    async def wait(outcome: Awaitable[object]) -> None:
        await outcome

    # The first occupies the writer, so that the others are one burst.
    first, replacing, *others = [
        Deferred.fromCoroutine(wait(outcome))
        for outcome in (
            table.put({b"a": b"1"}),
            log.replace(0, 1, [sized(1, 50)]),
            log.delete_before(1),
            store.delete_topic("gone"),
            table.put({b"k": b"v"}),
        )
    ]
    with pytest.raises(StorageFailed, match="the disk is full"):
        await replacing
    for one in (first, *others):
        await one


@ensureDeferred
async def test_store_and_partition_open_on_full_disk_with_rows_to_be_committed(
    directory: Path, open_store: Opener, tmp_path: Path
) -> None:
    """After a kill; neither LMDB's file nor the journal can grow or be written."""
    store = open_store(tail_bytes=0, index_seconds=1e6)
    await store.open()
    await store.create_topic(topic("orders", 2))
    await (await store.table("rows")).put({b"k": b"v"})
    log = await store.log("orders", 0)
    for base in range(3):
        await log.append([sized(base, 100)])
    assert store._state.pending.count == 4
    killed = tmp_path / "killed"
    shutil.copytree(directory, killed)
    with no_file_may_grow():
        # Also while rows wait in the store that is open.
        assert (await store.log("orders", 1)).end_offset == 0
        again = LmdbStore(killed, reactor=reactor, settings=LmdbSettings(tail_bytes=0))
        await again.open()
        log = await again.log("orders", 0)
        assert [one.base_offset for one in await everything(log)] == [0, 1, 2]
        assert (await again.log("orders", 1)).end_offset == 0
        assert await (await again.table("rows")).items() == [(b"k", b"v")]
        with pytest.raises(StorageFailed):
            await log.append([sized(3, 100)])
    await log.append([sized(3, 100)])
    assert [one.base_offset for one in await everything(log)] == [0, 1, 2, 3]
    await again.close()


async def fill(log: PartitionLog) -> int:
    """Append until the disk is full; return the number of stored entries."""
    stored = 0
    while True:
        appends = [log.append([sized(log.next_offset, ENTRY)]) for _ in range(5)]
        refused = 0
        for one in appends:
            try:
                await one
                stored += 1
            except StorageFailed:
                refused += 1
        if refused:
            assert log.next_offset == log.end_offset
            return stored


async def refill(log: PartitionLog) -> int:
    """Retry until an append succeeds: freeing takes several turns of the writer."""
    for _ in range(1000):
        if stored := await fill(log):
            return stored
    return 0


@pytest.mark.parametrize("kept_every", [0, 3])
@ensureDeferred
async def test_full_disk_refuses_writes_serves_reads_and_loses_nothing(
    directory: Path, open_store: Opener, kept_every: int
) -> None:
    disk = SmallDisk(directory, DISK)
    limits = {"tail_bytes": 0, "reserve_bytes": RESERVE, "segment_bytes": SEGMENT}
    store = open_store(files=disk, **limits)
    await store.open()
    await store.create_topic(topic("orders", 2))
    log, other = await store.log("orders", 0), await store.log("orders", 1)
    for number in range(60 if kept_every else 0):
        # These stay in segments that are mostly deleted below.
        if number % kept_every == 0:
            await other.append([sized(other.next_offset, ENTRY)])
        await log.append([sized(log.next_offset, ENTRY)])
    await fill(log)
    assert log.end_offset > 100
    assert len(await log.read(0, 1 << 30)) == log.end_offset
    start = await log.delete_before(log.end_offset * 3 // 4)
    assert await refill(log) > 10
    disk.limit *= 2
    await log.append([sized(log.next_offset, ENTRY)])
    await (await store.table("rows")).put({b"k": b"v"})
    end, size, others = log.end_offset, log.size, other.end_offset
    await store.close()

    again = open_store(**limits)
    await again.open()
    log = await again.log("orders", 0)
    assert (log.start_offset, log.end_offset, log.size) == (start, end, size)
    entries = await everything(log)
    assert [one.base_offset for one in entries] == list(range(start, end))
    assert all(bytes(one.payload[:12]) == b"%012d" % one.base_offset for one in entries)
    assert len(await everything(await again.log("orders", 1))) == others
    assert await (await again.table("rows")).items() == [(b"k", b"v")]
