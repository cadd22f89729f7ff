"""State of idempotent producers after failed appends, on every store."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from pytest_twisted import ensureDeferred

from gateway.configs.topic_configs import effective_config
from gateway.partitions.partition import AppendResult, Partition, ProducerRecovery
from gateway.partitions.producer_snapshots import ProducerSnapshots
from gateway.partitions.producer_state import ProducerStateManager
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from storage.log import PartitionLog, Store
from tests.contract.benches import Bench
from tests.records.record_sets import batch
from tests.storage.entries import topic


@pytest.fixture
def partition(log: PartitionLog) -> Partition:
    return Partition("orders", 0, log, effective_config({}, Settings()), ProducerStateManager(10))


def send(partition: Partition, sequence: int, producer: int = 7) -> Any:
    """Append a batch of two records; return the awaitable."""
    records = batch(2, producer=(producer, 0, sequence))
    return partition.append_batch(records, check_batch(records, 11), 0)


async def reopened(partition: Partition, store: Store) -> Partition:
    """The partition, or if its log is fenced a new one restored from its snapshot and the log."""
    log = await store.log("orders", 0)
    if log is partition.log:
        return partition
    snapshots = ProducerSnapshots(store, 10, 1, lambda: 0, lambda work: None)
    for shard in range(store.shard_count):
        await snapshots.open_shard(shard, lambda topic_id: False)
    snapshots.keep_row(topic().topic_id, partition)
    producers, offset = snapshots.load(topic(), 0, log)
    again = Partition("orders", 0, log, effective_config({}, Settings()), producers)
    await snapshots.replay(topic().topic_id, again, ProducerRecovery(offset, 0))
    return again


async def is_retry_of(partition: Partition, sequence: int, base_offset: int) -> bool:
    """Whether a batch is recognized as the one stored at `base_offset`, and not stored again."""
    end_offset = partition.log.end_offset
    answer: AppendResult = await send(partition, sequence)
    return answer.base_offset == base_offset and partition.log.end_offset == end_offset


@ensureDeferred
async def test_refused_append_keeps_batches_of_other_producers(
    partition: Partition, store: Store, bench: Bench
) -> None:
    in_flight = send(partition, 0)
    with bench.full_queue(store), pytest.raises(KafkaError):
        await send(partition, 0, producer=8)
    assert (await in_flight).base_offset == 0
    assert await is_retry_of(partition, 0, 0)
    assert (await send(partition, 2)).base_offset == 2


@ensureDeferred
async def test_appends_behind_failed_one_fail_and_retries_are_stored_once(
    log: PartitionLog, partition: Partition, store: Store, bench: Bench
) -> None:
    """Each producer has a second batch in flight: it must not be stored without the first."""
    assert (await send(partition, 0)).base_offset == 0
    with bench.refusing_writes():
        failing = []
        for sequence, producer in ((2, 7), (0, 8), (4, 7), (2, 8)):
            # The second may be refused at once if the first has failed by then.
            with suppress(KafkaError):
                failing.append(send(partition, sequence, producer))
        assert len(failing) >= 2
        for one in failing:
            with pytest.raises(KafkaError):
                await one
    partition = await reopened(partition, store)
    assert (partition.log.end_offset, partition.log.next_offset) == (2, 2)
    # The second batch of each was never stored, so it is out of sequence.
    for sequence, producer in ((4, 7), (2, 8)):
        if producer in dict(partition.producers):
            with pytest.raises(KafkaError) as caught:
                await send(partition, sequence, producer)
            assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    retried = [
        await send(partition, sequence, producer)
        for sequence, producer in ((2, 7), (0, 8), (4, 7), (2, 8))
    ]
    assert [one.base_offset for one in retried] == [2, 4, 6, 8]
    assert await is_retry_of(partition, 4, 6)


@ensureDeferred
async def test_snapshot_after_refused_append_includes_batches_in_flight(
    partition: Partition, store: Store, bench: Bench
) -> None:
    in_flight = send(partition, 0)
    with bench.full_queue(store), pytest.raises(KafkaError):
        await send(partition, 0, producer=8)
    await in_flight
    snapshots = ProducerSnapshots(store, 10, 1, lambda: 0, lambda work: None)
    for shard in range(store.shard_count):
        await snapshots.open_shard(shard, lambda topic_id: False)
    await snapshots.save(topic().topic_id, partition)
    again = ProducerSnapshots(store, 10, 1, lambda: 0, lambda work: None)
    for shard in range(store.shard_count):
        await again.open_shard(shard, lambda topic_id: False)
    producers, offset = again.load(topic(), 0, partition.log)
    reopened = Partition("orders", 0, partition.log, effective_config({}, Settings()), producers)
    await again.replay(topic().topic_id, reopened, ProducerRecovery(offset, 0))
    assert await is_retry_of(reopened, 0, 0)


@ensureDeferred
async def test_batch_behind_refused_one_is_refused_immediately(
    partition: Partition, store: Store, bench: Bench
) -> None:
    """The producer is new: without a trace of the refused batch, the next would be accepted as
    first.
    """
    in_flight = send(partition, 0, producer=8)
    with bench.full_queue(store):
        refused = send(partition, 0)
    with pytest.raises(KafkaError) as caught:
        await send(partition, 2)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(KafkaError):
        await refused
    await in_flight
    assert [(await send(partition, sequence)).base_offset for sequence in (0, 2)] == [2, 4]


@ensureDeferred
async def test_late_awaited_refusal_keeps_newer_batches(
    partition: Partition, store: Store, bench: Bench
) -> None:
    in_flight = send(partition, 0, producer=8)
    with bench.full_queue(store):
        refused = [send(partition, 0), partition.append_batch(*_plain(), 0)]
    newer = send(partition, 0)
    for one in refused:
        with pytest.raises(KafkaError):
            await one
    await in_flight
    assert (await newer).base_offset == 2
    assert await is_retry_of(partition, 0, 2)


def _plain() -> tuple[memoryview, Any]:
    records = batch(2)
    return records, check_batch(records, 11)
