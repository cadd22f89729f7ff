"""Reads: whole entries, byte limits, offset limits."""

from __future__ import annotations

from itertools import product

import pytest
from pytest_twisted import ensureDeferred

from storage.log import OffsetOutOfRange, PartitionLog, Store
from tests.contract.benches import Bench
from tests.storage.entries import bases, entry, everything, plain, sized
from tests.storage.open_shards import open_with_shards
from tests.testkit.settle import settle


@pytest.fixture
def log(log: PartitionLog) -> PartitionLog:
    """Four entries of 10 records and 100 bytes each: 0, 10, 20, 30."""
    settle(log.append([sized(base, 100, records=10) for base in (0, 10, 20, 30)]))
    return log


@ensureDeferred
async def test_read_starts_with_entry_containing_offset(log: PartitionLog) -> None:
    for offset in (10, 14, 19):
        assert bases(await log.read(offset, 10_000)) == [10, 20, 30], offset


@ensureDeferred
async def test_read_returns_what_fits_and_at_least_one_entry(log: PartitionLog) -> None:
    expected = {
        0: [0],
        1: [0],
        100: [0],
        199: [0],
        200: [0, 10],
        399: [0, 10, 20],
        400: [0, 10, 20, 30],
    }
    assert {limit: bases(await log.read(0, limit)) for limit in expected} == expected


@ensureDeferred
async def test_read_at_end_is_empty(log: PartitionLog) -> None:
    assert await log.read(40, 100) == []


@ensureDeferred
async def test_read_outside_start_and_end_is_refused(log: PartitionLog) -> None:
    for offset in (-1, 41, 1 << 62):
        with pytest.raises(OffsetOutOfRange):
            await log.read(offset, 100)
    for offset in (-1, 41):
        with pytest.raises(OffsetOutOfRange):
            log.read_resident(offset, 100)


@ensureDeferred
async def test_resident_read_equals_read_or_is_none(log: PartitionLog) -> None:
    for offset, max_bytes in product((0, 5, 10, 39, 40), (1, 250, 1000)):
        resident = log.read_resident(offset, max_bytes)
        read = await log.read(offset, max_bytes)
        assert resident is None or plain(resident) == plain(read), (offset, max_bytes)


@ensureDeferred
async def test_run_is_what_a_read_returns_or_none(log: PartitionLog) -> None:
    """Also for a reader that has come from the beginning, as a store may expect."""
    for max_bytes, start in product((1, 250, 1000), (0, 5)):
        offset = start
        while offset < 40:
            run = log.read_run(offset, max_bytes)
            fitting = log.read_run(offset, max_bytes, at_least_one=False)
            log.read_resident(offset, max_bytes)
            read = await log.read(offset, max_bytes)
            if run is not None and fitting is not None:
                fits = len(read[0].payload) <= max_bytes
                assert (fitting.count, plain(fitting.entries())) == (
                    (len(read), plain(read)) if fits else (0, [])
                )
                assert len(fitting.payload) == (len(run.payload) if fits else 0)
                assert plain(run.entries()) == plain(read)
                assert (run.base_offset, run.last_offset, run.count, bytes(run.payload)) == (
                    read[0].base_offset,
                    read[-1].last_offset,
                    len(read),
                    b"".join(entry.payload for entry in read),
                )
            offset = read[-1].last_offset + 1
    assert log.read_run(40, 100) is None
    for outside in (-1, 41):
        with pytest.raises(OffsetOutOfRange):
            log.read_run(outside, 100)


@ensureDeferred
async def test_read_entries_stay_valid_after_changes(log: PartitionLog) -> None:
    seen = await log.read(0, 400)
    before = plain(seen)
    await log.delete_before(40)
    for base in range(40, 60):
        await log.append([sized(base, 100_000)])
    assert plain(seen) == before


@ensureDeferred
async def test_size_is_sum_of_payloads(log: PartitionLog) -> None:
    assert log.size == 400


@ensureDeferred
async def test_entries_survive_restart(log: PartitionLog, store: Store, bench: Bench) -> None:
    before = plain(await everything(log))
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    reopened = await again.log("orders", 0)
    assert plain(await everything(reopened)) == before
    assert (reopened.start_offset, reopened.end_offset, reopened.next_offset, reopened.size) == (
        0,
        40,
        40,
        400,
    )
    await reopened.append([entry(40)])
    await again.close()


@ensureDeferred
async def test_current_epoch_ends_at_end_offset_and_others_are_unknown(log: PartitionLog) -> None:
    assert log.end_offset_for_epoch(log.leader_epoch) == (log.leader_epoch, 40)
    assert log.end_offset_for_epoch(log.leader_epoch + 1) == (-1, -1)
    assert log.end_offset_for_epoch(-1) == (-1, -1)
