"""Searches by timestamp."""

from __future__ import annotations

from pytest_twisted import ensureDeferred

from storage.log import Entry, PartitionLog, Store
from tests.contract.benches import Bench
from tests.storage.entries import entry
from tests.storage.open_shards import open_with_shards


def base(found: Entry | None) -> int | None:
    return None if found is None else found.base_offset


@ensureDeferred
async def test_finds_first_entry_reaching_timestamp(log: PartitionLog) -> None:
    expected = {0: 0, 10: 0, 11: 5, 20: 5, 21: 15, 30: 15, 31: None}
    await log.append(
        [entry(0, 5, time=10), entry(5, 5, time=20), entry(10, 5, time=15), entry(15, 5, time=30)]
    )
    found = {timestamp: base(await log.entry_for_time(timestamp)) for timestamp in expected}
    assert found == expected


@ensureDeferred
async def test_empty_log_has_no_entry_for_any_timestamp(log: PartitionLog) -> None:
    assert await log.entry_for_time(0) is None
    assert await log.latest_by_time() is None


@ensureDeferred
async def test_entries_without_timestamp_are_skipped(log: PartitionLog) -> None:
    await log.append([entry(0), entry(1), entry(2, time=5), entry(3)])
    assert base(await log.entry_for_time(0)) == 2
    assert base(await log.latest_by_time()) == 2


@ensureDeferred
async def test_log_without_timestamps_has_no_latest_entry(log: PartitionLog) -> None:
    await log.append([entry(0), entry(1)])
    assert await log.latest_by_time() is None


@ensureDeferred
async def test_latest_is_first_entry_with_greatest_timestamp(log: PartitionLog) -> None:
    await log.append([entry(0, time=9), entry(1, time=50), entry(2, time=50), entry(3, time=7)])
    assert base(await log.latest_by_time()) == 1


@ensureDeferred
async def test_trimmed_entries_are_not_found(log: PartitionLog) -> None:
    await log.append(
        [
            entry(0, time=100),
            entry(1, time=10),
            entry(2, time=20),
            entry(3, time=20),
            entry(4, time=15),
        ]
    )
    await log.delete_before(1)
    assert [base(await log.entry_for_time(time)) for time in (5, 10, 11, 20, 21, 100)] == [
        1,
        1,
        2,
        2,
        None,
        None,
    ]
    assert base(await log.latest_by_time()) == 2


@ensureDeferred
async def test_compacted_entries_are_not_found(log: PartitionLog) -> None:
    await log.append([entry(0, time=1), entry(1, time=100), entry(2, time=10), entry(3, time=20)])
    await log.replace(0, 2, [entry(0, time=1), entry(2, time=10)])
    assert [base(await log.entry_for_time(time)) for time in (1, 2, 10, 11, 21)] == [
        0,
        2,
        2,
        3,
        None,
    ]
    assert base(await log.latest_by_time()) == 3


@ensureDeferred
async def test_timestamps_are_found_after_restart(
    log: PartitionLog, store: Store, bench: Bench
) -> None:
    await log.append([entry(0, time=100), entry(1, time=10)])
    await log.append([entry(2, time=20)])
    await log.delete_before(1)
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    reopened = await again.log("orders", 0)
    await reopened.append([entry(3, time=30)])
    assert [base(await reopened.entry_for_time(time)) for time in (10, 11, 21, 31)] == [
        1,
        2,
        3,
        None,
    ]
    assert base(await reopened.latest_by_time()) == 3
    await again.close()


@ensureDeferred
async def test_found_entry_is_whole(log: PartitionLog) -> None:
    await log.append([entry(0, 3, time=10, payload=b"all of it")])
    found = await log.entry_for_time(10)
    assert found is not None
    assert (found.base_offset, found.last_offset, found.max_timestamp, bytes(found.payload)) == (
        0,
        2,
        10,
        b"all of it",
    )
