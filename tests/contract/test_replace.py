"""Compaction: replacing a range of entries."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from storage.log import PartitionLog, StorageFailed, Store
from tests.contract.benches import Bench
from tests.storage.entries import bases, entry, everything, plain, sized
from tests.storage.open_shards import open_with_shards
from tests.testkit.settle import settle


@pytest.fixture
def log(log: PartitionLog) -> PartitionLog:
    """Five entries of 10 records and 100 bytes each, at 0 to 40."""
    settle(log.append([sized(base, 100, records=10) for base in range(0, 50, 10)]))
    return log


@ensureDeferred
async def test_range_is_replaced(log: PartitionLog) -> None:
    await log.replace(10, 39, [entry(12, 3, payload=b"new"), entry(30, 2, payload=b"newer")])
    assert bases(await everything(log)) == [0, 12, 30, 40]
    assert plain(await log.read(12, 5)) == [(12, 14, -1, b"new")]
    assert (log.start_offset, log.end_offset, log.next_offset) == (0, 50, 50)
    assert log.size == 208


@ensureDeferred
async def test_only_entries_wholly_within_range_are_replaced(log: PartitionLog) -> None:
    await log.replace(5, 25, [])
    assert bases(await everything(log)) == [0, 20, 30, 40]


@ensureDeferred
async def test_read_in_gap_continues_with_next_entry(log: PartitionLog) -> None:
    await log.replace(10, 29, [])
    assert [bases(await log.read(offset, 1)) for offset in (9, 10, 25, 30)] == [
        [0],
        [30],
        [30],
        [30],
    ]


@ensureDeferred
async def test_end_offset_stays_if_last_entry_is_removed(log: PartitionLog) -> None:
    await log.replace(30, 49, [])
    assert (log.end_offset, log.next_offset, log.size) == (50, 50, 300)
    assert await log.read(45, 100) == []
    await log.append([entry(50)])
    assert bases(await log.read(30, 100)) == [50]


@ensureDeferred
async def test_replacement_out_of_range_or_order_is_refused(log: PartitionLog) -> None:
    refused = {
        "before": [entry(9)],
        "after": [entry(30, 11)],
        "order": [entry(20), entry(15)],
        "overlap": [entry(20, 5), entry(24)],
    }
    for name, rows in refused.items():
        with pytest.raises(ValueError):
            await log.replace(10, 39, rows)
        assert bases(await everything(log)) == [0, 10, 20, 30, 40], name


@ensureDeferred
async def test_replacement_survives_restart(log: PartitionLog, store: Store, bench: Bench) -> None:
    await log.replace(0, 29, [entry(25, payload=b"rest")])
    await log.replace(40, 49, [])
    before, size = plain(await everything(log)), log.size
    assert size == 104
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    reopened = await again.log("orders", 0)
    assert plain(await everything(reopened)) == before
    assert (reopened.start_offset, reopened.end_offset, reopened.next_offset, reopened.size) == (
        0,
        50,
        50,
        size,
    )
    await again.close()


@ensureDeferred
async def test_size_is_exact_after_trimming_compacted_log(log: PartitionLog) -> None:
    await log.replace(0, 29, [entry(5, payload=b"1234"), entry(25, payload=b"123456")])
    await log.delete_before(20)
    assert log.size == 206
    await log.append([sized(50, 100)])
    assert await log.retain(since=None, at_most_bytes=300) == 30
    assert log.size == 300
    await log.delete_before(51)
    assert log.size == 0


@ensureDeferred
async def test_replace_does_not_restore_deleted_entries(log: PartitionLog) -> None:
    await log.delete_before(25)
    await log.replace(
        0,
        39,
        [
            entry(5, payload=b"gone"),
            entry(20, 10, payload=b"straddles"),
            entry(31, payload=b"left"),
        ],
    )
    assert bases(await everything(log)) == [20, 31, 40]
    assert (log.start_offset, log.end_offset, log.size) == (25, 50, 113)


@ensureDeferred
async def test_refused_replacement_changes_nothing(log: PartitionLog, bench: Bench) -> None:
    with bench.refusing_writes(), pytest.raises(StorageFailed):
        await log.replace(0, 29, [entry(25)])
    assert bases(await everything(log)) == [0, 10, 20, 30, 40]
    assert log.size == 500
