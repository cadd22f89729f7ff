"""Watchers of a log."""

from __future__ import annotations

from pytest_twisted import ensureDeferred

from storage.log import PartitionLog, Store
from tests.storage.entries import entry


class Witness:
    """Records the log's offsets at each call."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.seen: list[tuple[int, int]] = []

    def __call__(self) -> None:
        self.seen.append((self._log.start_offset, self._log.end_offset))


@ensureDeferred
async def test_watcher_is_called_after_end_changed(log: PartitionLog) -> None:
    witness = Witness(log)
    log.watch(witness)
    await log.append([entry(0, 3)])
    assert witness.seen == [(0, 3)]


@ensureDeferred
async def test_entries_are_readable_when_watcher_is_called(log: PartitionLog) -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append(log.read_resident(0, 100))
        log.unwatch(look)

    log.watch(look)
    await log.append([entry(0)])
    assert len(seen) == 1
    assert seen[0] != []


@ensureDeferred
async def test_watcher_is_called_after_start_changed(log: PartitionLog) -> None:
    await log.append([entry(0), entry(1)])
    witness = Witness(log)
    log.watch(witness)
    await log.delete_before(1)
    assert witness.seen == [(1, 2)]


@ensureDeferred
async def test_watcher_of_another_log_is_not_called(log: PartitionLog, store: Store) -> None:
    await store.alter_topic(
        type(store.topics["orders"])("orders", store.topics["orders"].topic_id, 2)
    )
    other = await store.log("orders", 1)
    witness = Witness(other)
    other.watch(witness)
    await log.append([entry(0)])
    assert witness.seen == []


@ensureDeferred
async def test_removed_watcher_is_not_called(log: PartitionLog) -> None:
    witness = Witness(log)
    log.watch(witness)
    log.unwatch(witness)
    await log.append([entry(0)])
    assert witness.seen == []


@ensureDeferred
async def test_removing_unknown_watcher_has_no_effect(log: PartitionLog) -> None:
    log.unwatch(Witness(log))


@ensureDeferred
async def test_watcher_may_remove_itself_during_call(
    log: PartitionLog,
) -> None:
    witness = Witness(log)

    def once() -> None:
        log.unwatch(once)

    log.watch(once)
    log.watch(witness)
    await log.append([entry(0)])
    await log.append([entry(1)])
    assert witness.seen == [(0, 1), (0, 2)]


@ensureDeferred
async def test_watcher_is_called_when_topic_is_deleted(log: PartitionLog, store: Store) -> None:
    witness = Witness(log)
    log.watch(witness)
    await store.delete_topic("orders")
    assert len(witness.seen) == 1


@ensureDeferred
async def test_watcher_is_called_when_store_is_closed(log: PartitionLog, store: Store) -> None:
    witness = Witness(log)
    log.watch(witness)
    await store.close()
    assert len(witness.seen) == 1
