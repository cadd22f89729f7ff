"""Writes to the journal: when it is synced, how files are filled, what a failed write leaves."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.files import DiskFiles
from storage.lmdb import LmdbSettings, LmdbStore, journal
from storage.lmdb.frames import compiled
from storage.lmdb.journal import FIRST_STEP, LARGEST_FILLED_WRITE
from storage.lmdb.queries import MOST_ROWS
from storage.log import Buffer, PartitionLog, StorageFailed
from tests.storage.entries import bases, entry, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.storage.lmdb.simulation.simulated_disk import SimulatedDisk, io_error
from tests.testkit.settle import until

NEVER = 1e6


async def opened_log(store: LmdbStore) -> PartitionLog:
    await store.open()
    if not store.topics:
        await store.create_topic(topic())
    return await store.log("orders", 0)


@pytest.mark.parametrize("has_flusher", [True, False])
@pytest.mark.parametrize("sync_appends", [True, False])
@ensureDeferred
async def test_append_is_synced_before_acknowledgement_unless_turned_off(
    open_store: Opener, sync_appends: bool, has_flusher: bool
) -> None:
    disk = SimulatedDisk()
    disk.has_flusher = has_flusher
    log = await opened_log(open_store(files=disk, sync_appends=sync_appends, index_seconds=NEVER))
    for base in range(5):
        await log.append([sized(base, 100)])
        (file,) = disk.files.values()
        assert file.has_unsynced_frames is not sync_appends


@pytest.mark.parametrize("has_flusher", [True, False])
@ensureDeferred
async def test_unsynced_appends_are_synced_before_their_rows_are_committed(
    open_store: Opener, has_flusher: bool
) -> None:
    disk = SimulatedDisk()
    disk.has_flusher = has_flusher
    store = open_store(files=disk, sync_appends=False, index_seconds=0.1)
    log = await opened_log(store)
    for base in range(3):
        await log.append([sized(base, 100)])
    (file,) = disk.files.values()
    await until(lambda: not store._state.pending.count)
    assert not file.has_unsynced_frames


@ensureDeferred
async def test_file_is_filled_ahead_of_small_writes_only(open_store: Opener) -> None:
    disk = SimulatedDisk()
    log = await opened_log(open_store(files=disk))
    await log.append([sized(0, 1000)])
    (file,) = disk.files.values()
    size = len(file.data)
    assert size >= FIRST_STEP
    for base in range(1, 10):
        await log.append([sized(base, 1000)])
    assert len(file.data) == size
    await log.append([sized(10, LARGEST_FILLED_WRITE)])
    assert not file.data.endswith(bytes(100))


class StagedFlusher:
    """A flusher that writes in `begin` and, if it `syncs`, flushes in `end`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._descriptor = self._room = 0
        self._syncs = False

    def fileno(self) -> int:
        return -1

    def begin(
        self,
        descriptor: int,
        buffers: list[Buffer],
        position: int,
        directory: bytes,
        written: int,
        least: int,
        syncs: bool,
    ) -> None:
        self._descriptor, self._syncs = descriptor, syncs
        self._room = self._disk.room(Path(), written)
        if self._room >= least:
            self._disk.write(descriptor, buffers, position)

    def end(self) -> int:
        if self._syncs:
            self._disk.sync(self._descriptor)
        return self._room

    def close(self) -> None:
        pass


async def opened_journal(
    open_store: Opener, disk: SimulatedDisk, **settings: Any
) -> journal.Journal:
    """The journal of a store with one entry; its file has FIRST_STEP bytes of zeros.

    The methods for the flusher are compiled.
    """
    if compiled is None:
        pytest.skip("not compiled")
    store = open_store(files=disk, **({"index_seconds": NEVER} | settings))
    log = await opened_log(store)
    await log.append([sized(0, 10)])
    assert store._journal
    return store._journal


@ensureDeferred
async def test_flusher_learns_of_a_failed_flush_while_the_file_is_filled_ahead(
    open_store: Opener,
) -> None:
    """Linux reports it once per open file; the flusher's next flush would succeed."""
    disk = SimulatedDisk()
    opened = await opened_journal(open_store, disk, reserve_bytes=0)
    flusher = StagedFlusher(disk)
    at = opened.end.at
    opened.begin_write(flusher, [b"x" * 10_000], opened.end.at + 10_000)
    failures = [io_error()]

    def fail(operation: str) -> None:
        if operation == "sync" and failures:
            raise failures.pop()

    disk.before = fail
    assert opened.lacks_zeros
    with pytest.raises(OSError, match="Input/output error"):
        opened.fill_ahead()
    with pytest.raises(journal.JournalFailed, match="Input/output error"):
        opened.end_write(flusher, at + 10_000)


@ensureDeferred
async def test_file_is_filled_ahead_durably_within_its_limits(open_store: Opener) -> None:
    disk = SimulatedDisk()
    limit = 5 * FIRST_STEP
    opened = await opened_journal(open_store, disk, segment_bytes=limit, reserve_bytes=0)
    (file,) = disk.files.values()
    flusher = StagedFlusher(disk)
    sizes = []
    while opened.end.at < limit - 10_000:
        opened.begin_write(flusher, [b"x" * 10_000], opened.end.at + 10_000)
        opened.fill_ahead()
        assert file.durable[opened.end.at + 10_000 :] == file.data[opened.end.at + 10_000 :]
        assert opened.end_write(flusher, opened.end.at + 10_000)
        sizes.append(len(file.data))
    assert sizes[-1] == limit
    assert len(set(sizes)) < 4
    assert not opened.lacks_zeros


@ensureDeferred
async def test_file_is_not_filled_ahead_if_the_disk_is_nearly_full(open_store: Opener) -> None:
    disk = SimulatedDisk()
    opened = await opened_journal(open_store, disk, reserve_bytes=5000, held_bytes=0)
    flusher = StagedFlusher(disk)
    opened.begin_write(flusher, [b"x" * 10_000], opened.end.at + 10_000)
    (file,) = disk.files.values()
    size = len(file.data)
    # The file would grow by as much as it has.
    disk.limit = 2 * size + 4999
    with pytest.raises(OSError, match="the disk is full"):
        opened.fill_ahead()
    assert len(file.data) == size
    disk.limit += 1
    opened.fill_ahead()
    assert len(file.data) == 2 * size


@ensureDeferred
async def test_flusher_leaves_the_reserve_free_when_a_file_grows(open_store: Opener) -> None:
    """Without `sync_appends` a file is not filled ahead."""
    disk = SimulatedDisk()
    opened = await opened_journal(
        open_store, disk, sync_appends=False, reserve_bytes=5000, held_bytes=0
    )
    (file,) = disk.files.values()
    flusher, size, before = StagedFlusher(disk), len(file.data), opened.end
    at = size + 10_000
    disk.limit = at + 4999
    for _ in range(2):
        opened.begin_write(flusher, [b"x" * (at - before.at)], at)
        with pytest.raises(journal.JournalFailed, match="4999 bytes would be left, 5000 bytes are"):
            opened.end_write(flusher, at)
        assert len(file.data) == size
        assert opened.end == before
    disk.limit += 1
    opened.begin_write(flusher, [b"x" * (at - before.at)], at)
    assert opened.end_write(flusher, at)
    assert len(file.data) == at == opened.end.at


@pytest.mark.parametrize("operation", ["write", "written", "sync"])
@ensureDeferred
async def test_flusher_does_not_write_where_zeros_are_not_durable_yet(
    open_store: Opener, operation: str
) -> None:
    """They would replace what it wrote."""
    disk = SimulatedDisk()
    opened = await opened_journal(open_store, disk, reserve_bytes=0)
    flusher = StagedFlusher(disk)
    opened.begin_write(flusher, [b"x" * 10_000], opened.end.at + 10_000)
    opened.end_write(flusher, opened.end.at + 10_000)
    opened.is_filling = True
    before = opened.flusher_limit()
    assert before < opened.segment_bytes
    during = []

    def fail(name: str) -> None:
        during.append(opened.flusher_limit())
        if name == operation:
            raise io_error()

    disk.before = fail
    with pytest.raises(OSError, match="Input/output error"):
        opened.fill_ahead()
    disk.before = lambda name: None
    assert [*during, opened.flusher_limit()] == [before] * (len(during) + 1)
    opened.fill_ahead()
    assert opened.flusher_limit() != before


@pytest.mark.parametrize("can_erase", [True, False])
@ensureDeferred
async def test_segment_begun_by_a_failed_write_is_not_part_of_the_journal(
    open_store: Opener,
    tmp_path: Path,
    directory: Path,
    can_erase: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if the failed write could not be erased."""
    disk = SimulatedDisk()
    settings = {"tail_bytes": 0, "segment_bytes": 30_000, "index_seconds": NEVER}
    log = await opened_log(open_store(files=disk, **settings))
    await log.append([sized(0, 9000)])
    fails: list[str] = []

    def fail(operation: str) -> None:
        """The flush of the second segment fails, then everything that would erase the write."""
        if len(disk.files) > 1 and (operation == "sync" or (fails and not can_erase)):
            fails.append(operation)
            raise io_error()

    disk.before = fail
    appends = [log.append([sized(base, 9000)]) for base in range(1, 6)]
    outcomes = []
    for one in appends:
        try:
            await one
            outcomes.append(True)
        except StorageFailed:
            outcomes.append(False)
    assert fails
    assert not all(outcomes)
    disk.before = lambda operation: None
    base = log.next_offset
    await log.append([sized(base, 10)])
    expected = list(range(base + 1))

    # As after a kill: nothing is closed, LMDB has no rows of these entries.
    shutil.copytree(directory, tmp_path / "killed")
    again = LmdbStore(
        tmp_path / "killed", reactor=reactor, settings=LmdbSettings(**settings), files=disk
    )
    await again.open()
    reopened = await again.log("orders", 0)
    assert bases(await everything(reopened)) == expected
    assert "damaged" not in caplog.text
    await reopened.append([sized(base + 1, 9000)])
    await reopened.append([sized(base + 2, 20_000)])
    assert bases(await everything(reopened)) == [*expected, base + 1, base + 2]
    await again.close()


class Chance:
    """Decides that all, or nothing, of what was not synced is on the medium."""

    def __init__(self, is_kept: bool) -> None:
        self._is_kept = is_kept

    def random(self) -> float:
        return 0.0 if self._is_kept else 0.999

    def choice(self, choices: list[float]) -> float:
        return max(choices) if self._is_kept else min(choices)

    def randint(self, first: int, last: int) -> int:
        return last if self._is_kept else first


def chance_of(is_kept: bool) -> Any:
    return Chance(is_kept)


async def reopened_log(
    disk: SimulatedDisk, directory: Path, copy: Path, **settings: Any
) -> tuple[LmdbStore, PartitionLog]:
    """The log on another disk, with LMDB's file as it is now: as after a kill."""
    shutil.copytree(directory, copy)
    store = LmdbStore(copy, reactor=reactor, settings=LmdbSettings(**settings), files=disk)
    return store, await opened_log(store)


@pytest.mark.parametrize("fails_later", [True, False])
@ensureDeferred
async def test_refused_record_that_cannot_be_cut_off_replaces_no_acknowledged_one(
    open_store: Opener, tmp_path: Path, directory: Path, fails_later: bool
) -> None:
    """The flush fails although everything reached the medium, and truncating fails, too."""
    disk = SimulatedDisk()
    disk.chance = chance_of(is_kept=True)
    settings = {"tail_bytes": 0, "index_seconds": NEVER}
    log = await opened_log(open_store(files=disk, **settings))
    await log.append([entry(0, payload=b"first")])
    fails = {"sync", "truncate"}

    def fail(operation: str) -> None:
        if operation in fails:
            raise io_error()

    disk.before = fail
    with pytest.raises(StorageFailed):
        await log.append([entry(1, payload=b"refused")])
    fails.discard("sync")
    if not fails_later:
        fails.clear()
    await log.append([entry(1, payload=b"second")])
    assert len(disk.files) == (2 if fails_later else 1)
    cut = disk.after_power_cut(chance_of(is_kept=False))
    store, again = await reopened_log(cut, directory, tmp_path / "again", **settings)
    assert [bytes(one.payload) for one in await everything(again)] == [b"first", b"second"]
    await again.append([entry(2, payload=b"third")])
    await store.close()


@ensureDeferred
async def test_failed_sync_of_the_directory_is_repeated_before_the_next_append(
    open_store: Opener, tmp_path: Path, directory: Path
) -> None:
    disk = SimulatedDisk()
    settings = {"tail_bytes": 0, "index_seconds": NEVER}
    log = await opened_log(open_store(files=disk, **settings))
    fails = ["sync_directory"] * 2

    def fail(operation: str) -> None:
        if operation in fails:
            fails.remove(operation)
            raise io_error()

    disk.before = fail
    for _ in range(2):
        with pytest.raises(StorageFailed):
            await log.append([entry(0)])
    await log.append([entry(0)])
    cut = disk.after_power_cut(chance_of(is_kept=False))
    store, again = await reopened_log(cut, directory, tmp_path / "again", **settings)
    assert bases(await everything(again)) == [0]
    await store.close()


@ensureDeferred
async def test_directory_of_the_journal_is_synced_when_it_is_opened(
    open_store: Opener, tmp_path: Path, directory: Path
) -> None:
    """A kill came before the directory was synced."""
    disk = SimulatedDisk()
    settings = {"tail_bytes": 0, "index_seconds": NEVER}
    log = await opened_log(open_store(files=disk, **settings))
    await log.append([entry(0)])
    killed = disk.after_kill()
    killed.durable.clear()
    killed.changes = list(killed.files.items())
    store, again = await reopened_log(killed, directory, tmp_path / "again", **settings)
    await again.append([entry(1)])
    assert killed.durable
    await store.close()


@pytest.mark.parametrize("has_flusher", [True, False])
@ensureDeferred
async def test_entries_acknowledged_before_a_failed_flush_are_written_again(
    open_store: Opener, has_flusher: bool
) -> None:
    """With `log_flush=os`: the flush would otherwise succeed without writing them."""
    disk = SimulatedDisk()
    disk.has_flusher = has_flusher
    disk.chance = chance_of(is_kept=False)
    store = open_store(files=disk, sync_appends=False, index_seconds=NEVER)
    log = await opened_log(store)
    fails: list[str] = ["sync"]

    def fail(operation: str) -> None:
        if operation in fails:
            raise io_error()

    table = await store.table("rows")
    for base in range(2):
        await log.append([entry(base, payload=b"acknowledged %d" % base)])
    disk.before = fail
    with pytest.raises(StorageFailed):
        await table.put({b"k": b"v"})
    with pytest.raises(StorageFailed):
        await log.append([entry(2)])
    fails.clear()
    await table.put({b"k": b"v"})
    (file,) = disk.files.values()
    assert b"acknowledged 0" in file.durable
    assert b"acknowledged 1" in file.durable
    assert bases(await everything(log)) == [0, 1]


@ensureDeferred
async def test_rows_are_committed_while_the_journal_cannot_be_written(open_store: Opener) -> None:
    """The entries that they refer to are durable."""
    disk = SimulatedDisk()
    store = open_store(files=disk, index_seconds=NEVER)
    log = await opened_log(store)
    table = await store.table("rows")
    await log.append([entry(0)])

    def fail(operation: str) -> None:
        raise io_error()

    disk.before = fail
    with pytest.raises(StorageFailed):
        await log.append([entry(1)])
    await table.put({b"k": b"v"})
    assert await log.delete_before(1) == 1
    assert store._state.pending.count == 0


@pytest.mark.parametrize(("error", "is_damage"), [(errno.EMFILE, False), (errno.EIO, True)])
@ensureDeferred
async def test_only_errors_of_the_medium_are_reported_as_damage(
    open_store: Opener,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: int,
    is_damage: bool,
) -> None:
    log = await opened_log(open_store(tail_bytes=0))
    await log.append([entry(0)])

    def fail(*_: Any) -> bytes:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(DiskFiles, "read", fail)
    with pytest.raises(StorageFailed, match="are damaged" if is_damage else "Too many open files"):
        await log.read(0, 100)
    assert ("are damaged" in caplog.text) is is_damage
    monkeypatch.undo()
    assert bases(await log.read(0, 100)) == [0]


class CountingFiles(DiskFiles):
    """Files that count the bytes read from them."""

    bytes_read = 0

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        self.bytes_read += length
        return super().read(descriptor, length, position)


@ensureDeferred
async def test_read_of_small_entries_between_large_ones_reads_a_limited_part_of_the_journal(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LARGEST_READ", 50_000)
    monkeypatch.setattr(journal, "MOST_BYTES_READ", 200_000)
    files = CountingFiles()
    store = open_store(files=files, tail_bytes=0)
    await store.open()
    await store.create_topic(topic("orders", 2))
    small, large = await store.log("orders", 0), await store.log("orders", 1)
    for base in range(40):
        await small.append([sized(base, 100)])
        await large.append([sized(base, 10_000)])
    offset = reads = 0
    while offset < small.end_offset:
        files.bytes_read = 0
        entries = await small.read(offset, 1 << 20)
        assert bases(entries) == list(range(offset, offset + len(entries)))
        assert files.bytes_read <= 200_000
        offset += len(entries)
        reads += 1
    # The journal has about 400,000 bytes.
    assert reads <= 4

    # An entry larger than the limit is returned.
    await small.append([sized(40, 300_000), sized(41, 100)])
    assert bases(await small.read(40, 1 << 20)) == [40]


@ensureDeferred
async def test_read_returns_a_limited_number_of_entries(open_store: Opener) -> None:
    log = await opened_log(open_store(tail_bytes=0))
    await log.append([sized(base, 10) for base in range(MOST_ROWS + 1)])
    assert bases(await log.read(0, 1 << 20)) == list(range(MOST_ROWS))
    assert bases(await log.read(MOST_ROWS, 1 << 20)) == [MOST_ROWS]
