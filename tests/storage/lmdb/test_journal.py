"""Writes to the journal: when it is synced, how files are filled, what a failed write leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.lmdb import LmdbSettings, LmdbStore
from storage.lmdb.journal import FIRST_STEP, LARGEST_FILLED_WRITE
from storage.log import PartitionLog, StorageFailed
from tests.storage.entries import bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.storage.lmdb.simulation.simulated_disk import SimulatedDisk, io_error
from tests.testkit.settle import until

NEVER = 1e6


async def opened_log(store: LmdbStore) -> PartitionLog:
    await store.open()
    if not store.topics:
        await store.create_topic(topic())
    return await store.log("orders", 0)


@pytest.mark.parametrize("sync_appends", [True, False])
@ensureDeferred
async def test_append_is_synced_before_acknowledgement_unless_turned_off(
    open_store: Opener, sync_appends: bool
) -> None:
    disk = SimulatedDisk()
    log = await opened_log(open_store(files=disk, sync_appends=sync_appends, index_seconds=NEVER))
    for base in range(5):
        await log.append([sized(base, 100)])
        (file,) = disk.files.values()
        assert bool(file.unsynced) is not sync_appends


@ensureDeferred
async def test_unsynced_appends_are_synced_before_their_rows_are_committed(
    open_store: Opener,
) -> None:
    disk = SimulatedDisk()
    store = open_store(files=disk, sync_appends=False, index_seconds=0.01)
    log = await opened_log(store)
    await log.append([sized(0, 100)])
    (file,) = disk.files.values()
    await until(lambda: not store._state.pending.count)
    assert not file.unsynced


@ensureDeferred
async def test_file_is_filled_ahead_of_small_writes_only(open_store: Opener) -> None:
    disk = SimulatedDisk()
    log = await opened_log(open_store(files=disk))
    await log.append([sized(0, 1000)])
    (file,) = disk.files.values()
    size = len(file.data)
    assert size > FIRST_STEP
    for base in range(1, 10):
        await log.append([sized(base, 1000)])
    assert len(file.data) == size
    await log.append([sized(10, LARGEST_FILLED_WRITE)])
    assert not file.data.endswith(bytes(100))


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
