"""Appends: order, atomicity, no gaps, failures."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError, Deferred

from gateway.coroutines import when_ended
from storage.log import OffsetOutOfRange, PartitionLog, StorageFailed, Store
from tests.contract.benches import Bench
from tests.storage.entries import bases, entry, everything, plain, sized, topic
from tests.storage.open_shards import open_with_shards


def watched(append: Awaitable[int | None]) -> Deferred[int | None]:
    """A Deferred that fires when the append ends, and not later."""
    ended: Deferred[int | None] = Deferred()
    when_ended(append, ended.callback, ended.errback)
    return ended


async def waiting_for(append: Awaitable[int | None]) -> None:
    await append


@ensureDeferred
async def test_new_log_is_empty_and_starts_at_zero(log: PartitionLog) -> None:
    assert (log.start_offset, log.end_offset, log.next_offset, log.size) == (0, 0, 0, 0)
    assert await log.read(0, 100) == []


@ensureDeferred
async def test_appended_entries_are_read_back_unchanged(log: PartitionLog) -> None:
    rows = [entry(0, 3, time=77), entry(3, 1, time=-1), entry(4, 10, time=5, payload=b"")]
    await log.append(rows)
    assert plain(await log.read(0, 1000)) == plain(rows)
    assert (log.start_offset, log.end_offset, log.next_offset) == (0, 14, 14)


@ensureDeferred
async def test_payload_may_be_any_contiguous_buffer(log: PartitionLog) -> None:
    for offset, kind in enumerate((bytes, bytearray, memoryview)):
        await log.append([entry(offset, payload=kind(b"some bytes"))])
        assert plain(await log.read(offset, 100)) == [(offset, offset, -1, b"some bytes")], kind


@ensureDeferred
async def test_large_entry_is_stored_whole(log: PartitionLog) -> None:
    large = sized(0, 3_000_000)
    await log.append([large])
    assert plain(await log.read(0, 1)) == plain([large])


@ensureDeferred
async def test_next_offset_advances_at_once_and_end_offset_when_durable(
    log: PartitionLog,
) -> None:
    first = watched(log.append([entry(0, 5)]))
    assert log.next_offset == 5
    assert log.end_offset == (5 if first.called else 0)
    await first
    assert log.end_offset == 5


@ensureDeferred
async def test_entries_are_not_readable_before_durable(log: PartitionLog) -> None:
    await log.append([entry(0)])
    second = watched(log.append([entry(1)]))
    seen = log.read_resident(0, 100)
    assert seen is None or bases(seen) == ([0, 1] if second.called else [0])
    await second


@ensureDeferred
async def test_appends_in_flight_are_stored_in_call_order(log: PartitionLog) -> None:
    appends = [log.append([entry(n)]) for n in range(200)]
    for one in appends:
        await one
    assert bases(await everything(log)) == list(range(200))


@ensureDeferred
async def test_concurrent_appends_to_many_logs(store: Store) -> None:
    await store.create_topic(topic("wide", partitions=50))
    logs = [await store.log("wide", n) for n in range(50)]
    appends = [
        log.append([entry(base, payload=b"%d" % n)])
        for base in range(3)
        for n, log in enumerate(logs)
    ]
    for one in appends:
        await one
    for n, log in enumerate(logs):
        assert plain(await log.read(0, 100)) == [(base, base, -1, b"%d" % n) for base in range(3)]


@ensureDeferred
async def test_append_not_at_next_offset_is_refused(log: PartitionLog) -> None:
    await log.append([entry(0, 2)])
    for base in (0, 1, 3, 100):
        with pytest.raises(OffsetOutOfRange):
            await log.append([entry(base)])
        assert (log.end_offset, log.next_offset) == (2, 2), base
    await log.append([entry(2)])


@ensureDeferred
async def test_one_invalid_entry_refuses_whole_append(log: PartitionLog) -> None:
    invalid = {"gap": entry(4), "overlap": entry(2), "backwards": entry(3, 0)}
    for name, second in invalid.items():
        with pytest.raises(OffsetOutOfRange):
            await log.append([entry(0, 3), second])
        assert (log.end_offset, log.next_offset, log.size) == (0, 0, 0), name
        assert await log.read(0, 100) == []


@ensureDeferred
async def test_empty_append_changes_nothing(log: PartitionLog) -> None:
    await log.append([])
    assert (log.end_offset, log.next_offset) == (0, 0)


@ensureDeferred
async def test_cancelled_append_is_still_stored(log: PartitionLog) -> None:
    first = Deferred.fromCoroutine(waiting_for(log.append([entry(0)])))
    first.addErrback(lambda failure: failure.trap(CancelledError))
    first.cancel()
    await log.append([entry(1)])
    assert bases(await log.read(0, 100)) == [0, 1]


@ensureDeferred
async def test_medium_failure_fails_all_appends_in_flight(
    log: PartitionLog, store: Store, bench: Bench
) -> None:
    await log.append([entry(0)])
    with bench.refusing_writes():
        appends = [log.append([sized(1, 100_000)]), log.append([sized(log.next_offset, 100_000)])]
        for one in appends:
            with pytest.raises(bench.refusal):
                await one
        log = await store.log("orders", 0)
        assert bases(await log.read(0, 1_000_000)) == [0]
        assert log.end_offset == 1


@ensureDeferred
async def test_log_continues_at_durable_end_after_failure(
    log: PartitionLog, store: Store, bench: Bench
) -> None:
    await log.append([entry(0)])
    with bench.refusing_writes():
        failing = [log.append([sized(log.next_offset, 100_000)]) for _ in range(3)]
        for one in failing:
            with pytest.raises(bench.refusal):
                await one
        log = await store.log("orders", 0)
        assert log.next_offset == 1
    await log.append([entry(1)])
    assert bases(await log.read(0, 100)) == [0, 1]


@ensureDeferred
async def test_log_refuses_appends_until_last_failure_is_delivered(
    log: PartitionLog, bench: Bench
) -> None:
    seen = []
    with bench.refusing_writes():
        failing = [watched(log.append([sized(log.next_offset, 100_000)])) for _ in range(3)]

        def look(failure: object) -> object:
            seen.append((log.next_offset == log.end_offset, all(one.called for one in failing)))
            return failure

        for one in failing:
            one.addErrback(look)
        for one in failing:
            with pytest.raises(bench.refusal):
                await one
    assert len(seen) == 3
    assert all(are_all_told for is_usable, are_all_told in seen if is_usable)


@ensureDeferred
async def test_refused_append_does_not_affect_appends_in_flight(
    log: PartitionLog, store: Store, bench: Bench
) -> None:
    first = log.append([entry(0, 2)])
    with bench.full_queue(store), pytest.raises(StorageFailed):
        await log.append([entry(2)])
    assert log.next_offset == 2
    await first
    assert (log.end_offset, log.next_offset) == (2, 2)
    await log.append([entry(2)])
    assert bases(await log.read(0, 100)) == [0, 2]


@ensureDeferred
async def test_reads_work_after_failed_append(
    log: PartitionLog, store: Store, bench: Bench
) -> None:
    await log.append([entry(0, time=5)])
    with bench.refusing_writes():
        with pytest.raises(bench.refusal):
            await log.append([sized(1, 100_000)])
        log = await store.log("orders", 0)
        assert bases(await log.read(0, 100)) == [0]
        found = await log.entry_for_time(5)
        assert found is not None
        assert found.base_offset == 0


@ensureDeferred
async def test_failed_append_is_absent_after_restart(
    log: PartitionLog, store: Store, bench: Bench
) -> None:
    await log.append([entry(0)])
    with bench.refusing_writes(), pytest.raises(bench.refusal):
        await log.append([sized(1, 100_000)])
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    reopened = await again.log("orders", 0)
    assert reopened.end_offset == 1
    assert bases(await reopened.read(0, 100)) == [0]
    await again.close()
