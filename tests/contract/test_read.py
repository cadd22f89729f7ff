"""Reading: whole entries, the limits of bytes and offsets."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from storage.log import OffsetOutOfRange, PartitionLog, Store
from tests.contract.benches import Bench
from tests.contract.entries import bases, entry, everything, plain, sized, topic
from tests.contract.waiting import settle


@pytest.fixture
def log(store: Store) -> PartitionLog:
    """Four entries of 10 records and 100 bytes each: 0, 10, 20, 30."""
    settle(store.create_topic(topic()))
    made = settle(store.log("orders", 0))
    settle(made.append([sized(base, 100, records=10) for base in (0, 10, 20, 30)]))
    return made


@pytest.mark.parametrize("offset", [10, 14, 19])
@ensureDeferred
async def test_a_read_begins_with_the_entry_that_contains_the_offset(
    log: PartitionLog, offset: int
) -> None:
    assert bases(await log.read(offset, 10_000)) == [10, 20, 30]


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [
        (0, [0]),
        (1, [0]),
        (100, [0]),
        (199, [0]),
        (200, [0, 10]),
        (399, [0, 10, 20]),
        (400, [0, 10, 20, 30]),
    ],
)
@ensureDeferred
async def test_a_read_gives_what_fits_and_at_least_one_entry(
    log: PartitionLog, max_bytes: int, expected: list[int]
) -> None:
    assert bases(await log.read(0, max_bytes)) == expected


@ensureDeferred
async def test_a_read_at_the_end_is_empty(log: PartitionLog) -> None:
    assert await log.read(40, 100) == []


@pytest.mark.parametrize("offset", [-1, 41, 1 << 62])
@ensureDeferred
async def test_a_read_outside_start_and_end_is_refused(log: PartitionLog, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange):
        await log.read(offset, 100)


@pytest.mark.parametrize("offset", [-1, 41])
@ensureDeferred
async def test_a_resident_read_outside_start_and_end_is_refused(
    log: PartitionLog, offset: int
) -> None:
    with pytest.raises(OffsetOutOfRange):
        log.read_resident(offset, 100)


@pytest.mark.parametrize("offset", [0, 5, 10, 39, 40])
@pytest.mark.parametrize("max_bytes", [1, 250, 1000])
@ensureDeferred
async def test_a_resident_read_is_the_same_read_or_none(
    log: PartitionLog, offset: int, max_bytes: int
) -> None:
    resident = log.read_resident(offset, max_bytes)
    assert resident is None or plain(resident) == plain(await log.read(offset, max_bytes))


@ensureDeferred
async def test_what_was_read_stays_valid_while_the_log_moves_on(log: PartitionLog) -> None:
    seen = await log.read(0, 400)
    before = plain(seen)
    await log.delete_before(40)
    for base in range(40, 60):
        await log.append([sized(base, 100_000)])
    assert plain(seen) == before


@ensureDeferred
async def test_the_size_is_the_sum_of_the_payloads(log: PartitionLog) -> None:
    assert log.size == 400


@ensureDeferred
async def test_everything_is_read_back_after_a_restart(
    log: PartitionLog, store: Store, bench: Bench
) -> None:
    before = plain(await everything(log))
    await store.close()
    again = bench.store()
    await again.open()
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
async def test_the_only_epoch_ends_at_the_end_and_no_other_is_known(log: PartitionLog) -> None:
    assert log.end_offset_for_epoch(log.leader_epoch) == (log.leader_epoch, 40)
    assert log.end_offset_for_epoch(log.leader_epoch + 1) == (-1, -1)
    assert log.end_offset_for_epoch(-1) == (-1, -1)
