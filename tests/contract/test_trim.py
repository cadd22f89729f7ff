"""Trimming the start of a log: by offset, time and size."""

from __future__ import annotations

import time

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from storage.log import OffsetOutOfRange, PartitionLog, StorageFailed, Store
from tests.contract.benches import Bench
from tests.storage.entries import bases, entry, everything, sized, topic
from tests.storage.open_shards import open_with_shards
from tests.testkit.settle import settle


@pytest.fixture
def log(log: PartitionLog) -> PartitionLog:
    """Five entries of 10 records and 100 bytes at 0 to 40, with the times 10, 30, none, 20 and
    50.
    """
    return settle(filled(log))


async def filled(log: PartitionLog) -> PartitionLog:
    times = (10, 30, -1, 20, 50)
    await log.append([sized(10 * n, 100, records=10, time=time) for n, time in enumerate(times)])
    return log


async def filled_log(store: Store, name: str) -> PartitionLog:
    await store.create_topic(topic(name))
    return await filled(await store.log(name, 0))


async def reopened(store: Store, bench: Bench) -> tuple[Store, PartitionLog]:
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    return again, await again.log("orders", 0)


@ensureDeferred
async def test_entries_wholly_before_offset_are_deleted(shared_store: Store) -> None:
    expected = {
        0: [0, 10, 20, 30, 40],
        1: [0, 10, 20, 30, 40],
        9: [0, 10, 20, 30, 40],
        10: [10, 20, 30, 40],
        25: [20, 30, 40],
        50: [],
    }
    for offset, left in expected.items():
        log = await filled_log(shared_store, f"before-{offset}")
        assert await log.delete_before(offset) == offset
        assert log.start_offset == offset
        assert bases(await everything(log)) == left
        assert log.size == 100 * len(left)


@ensureDeferred
async def test_entry_spanning_new_start_is_read_whole(log: PartitionLog) -> None:
    await log.delete_before(25)
    assert bases(await log.read(25, 1)) == [20]
    with pytest.raises(OffsetOutOfRange):
        await log.read(24, 1)


@ensureDeferred
async def test_start_offset_never_decreases(log: PartitionLog) -> None:
    await log.delete_before(25)
    assert await log.delete_before(5) == 25
    assert log.start_offset == 25


@ensureDeferred
async def test_delete_beyond_end_is_refused(log: PartitionLog) -> None:
    with pytest.raises(OffsetOutOfRange):
        await log.delete_before(51)
    assert log.start_offset == 0


@pytest.mark.parametrize("offset", [25, 50])
@ensureDeferred
async def test_start_end_and_size_survive_restart(
    log: PartitionLog, store: Store, bench: Bench, offset: int
) -> None:
    await log.delete_before(offset)
    size = log.size
    again, log = await reopened(store, bench)
    assert (log.start_offset, log.end_offset, log.next_offset, log.size) == (offset, 50, 50, size)
    await log.append([entry(50)])
    assert bases(await everything(log)) == ([20, 30, 40, 50] if offset == 25 else [50])
    await again.close()


@ensureDeferred
async def test_entries_before_first_recent_one_are_deleted(shared_store: Store) -> None:
    expected = {0: 0, 10: 0, 11: 10, 30: 10, 31: 40, 50: 40, 51: 50}
    for since, start in expected.items():
        log = await filled_log(shared_store, f"since-{since}")
        assert await log.retain(since=since, at_most_bytes=None) == start, since
        assert (log.start_offset, log.size) == (start, 500 - 10 * start)


@ensureDeferred
async def test_entries_without_a_timestamp_count_as_old(shared_store: Store) -> None:
    await shared_store.create_topic(topic("untimed"))
    log = await shared_store.log("untimed", 0)
    await log.append([entry(0), entry(1), entry(2)])
    assert await log.retain(since=1, at_most_bytes=None) == 3


@ensureDeferred
async def test_entry_is_deleted_while_rest_reaches_limit(shared_store: Store) -> None:
    """As UnifiedLog does with segments: the least size not below the limit remains."""
    expected = {1000: 0, 500: 0, 499: 0, 400: 10, 399: 10, 301: 10, 300: 20, 1: 40, 0: 50}
    for limit, start in expected.items():
        log = await filled_log(shared_store, f"limit-{limit}")
        assert await log.retain(since=None, at_most_bytes=limit) == start, limit
        assert (log.start_offset, log.size) == (start, 500 - 10 * start)


@pytest.mark.parametrize("meanwhile", ["replace", "delete_before"])
@ensureDeferred
async def test_retention_by_bytes_counts_concurrent_deletions(store: Store, meanwhile: str) -> None:
    """20,000 bytes; a concurrent deletion leaves 11,000. Another entry less would be below the
    limit.
    """
    await store.create_topic(topic("busy"))
    log = await store.log("busy", 0)
    for n in range(20):
        await log.append([sized(n, 1000)])
    await log.replace(0, 0, [sized(0, 1000)])
    # One reactor turn: writes made within callbacks of another write wait for them to finish.
    await deferLater(reactor, 0)
    deleting = Deferred.fromCoroutine(
        log.replace(10, 18, []) if meanwhile == "replace" else log.delete_before(9)
    )
    # The store's threads continue: the deletion is done, but the reactor is not notified yet.
    time.sleep(0.2)  # noqa: ASYNC251 - blocks the reactor on purpose
    await log.retain(since=None, at_most_bytes=10_500)
    await deleting
    assert log.size == 11_000
    assert bases(await everything(log)) == (
        [*range(10), 19] if meanwhile == "replace" else [*range(9, 20)]
    )


@ensureDeferred
async def test_stricter_limit_applies(shared_store: Store) -> None:
    for since, limit, start in ((11, 300, 20), (31, 300, 40), (None, None, 0)):
        log = await filled_log(shared_store, f"since-{since}-limit-{limit}")
        assert await log.retain(since=since, at_most_bytes=limit) == start, (since, limit)


@ensureDeferred
async def test_retention_never_decreases_start_offset(log: PartitionLog) -> None:
    await log.delete_before(35)
    assert await log.retain(since=0, at_most_bytes=1000) == 35


@ensureDeferred
async def test_start_before_gap_stays_if_nothing_is_deleted(log: PartitionLog) -> None:
    limits = ((0, 400), (None, 400), (0, None), (None, None))
    for first, last in ((0, 9), (10, 49)):
        await log.replace(first, last, [])
        for since, limit in limits:
            assert await log.retain(since=since, at_most_bytes=limit) == 0, (since, limit)


@ensureDeferred
async def test_deleted_bytes_do_not_count_towards_limit(log: PartitionLog) -> None:
    await log.delete_before(20)
    assert await log.retain(since=None, at_most_bytes=200) == 30


@ensureDeferred
async def test_emptied_log_continues_at_its_end(log: PartitionLog) -> None:
    await log.delete_before(50)
    assert await log.read(50, 100) == []
    await log.append([entry(50, 5)])
    assert bases(await everything(log)) == [50]
    assert await log.delete_before(55) == 55
    assert log.size == 0


@ensureDeferred
async def test_refused_deletion_changes_nothing(log: PartitionLog, bench: Bench) -> None:
    with bench.refusing_writes(), pytest.raises(StorageFailed):
        await log.delete_before(20)
    assert log.start_offset == 0
    assert bases(await log.read(0, 1)) == [0]
    assert await log.delete_before(20) == 20
