"""What a restart recovers of idempotent producers: from a snapshot, from the log, or from both."""

from __future__ import annotations

from typing import Any

import pytest

from compat.records import check_message_set
from gateway.errors import ErrorCode, KafkaError
from gateway.partition import Partition
from gateway.producer_snapshots import SNAPSHOT_BYTES
from gateway.records import check_batch
from storage.log import StorageFailed
from tests.fakes.broker import House, Started, ended, open_house
from tests.gateway.sets import batch, old_set, pairs


@pytest.fixture
def house() -> House:
    return open_house()


def reopened(house: House) -> House:
    """Another broker on the same medium, as after a crash."""
    ended(house.store.close())
    return open_house(house.store.medium)


def send(partition: Partition, records: memoryview) -> Any:
    return ended(partition.append_batch(records, check_batch(records, 11), 0))


def is_known(partition: Partition, sequence: int, base_offset: int) -> bool:
    """The batch is recognised as the one stored at `base_offset`."""
    before = partition.log.end_offset
    return bool(send(partition, batch(1, producer=(7, 0, sequence))).base_offset == base_offset and partition.log.end_offset == before)


def test_without_a_snapshot_the_log_tells_it_all(house):
    house.topic("orders")
    partition = house.partition()
    for sequence in range(3):
        send(partition, batch(1, producer=(7, 0, sequence)))
        ended(partition.append_message_set(old_set(2, magic=0), _checked(old_set(2, magic=0)), 0))
    again = reopened(house).partition()
    assert is_known(again, 2, 6)
    assert send(again, batch(1, producer=(7, 0, 3))).base_offset == 9


def _checked(records: memoryview) -> Any:
    return check_message_set(records, max_decompressed_bytes=1 << 20)


def test_a_snapshot_and_what_was_sent_since_make_the_whole(house):
    house.topic("orders")
    partition = house.partition()
    for sequence in range(4):
        send(partition, batch(1, producer=(7, 0, sequence)))
        if sequence == 1:
            ended(house.broker.topics.save(partition))
    again = reopened(house).partition()
    assert all(is_known(again, sequence, sequence) for sequence in range(4))


def test_a_snapshot_keeps_producers_whose_records_retention_has_deleted(house):
    house.topic("orders")
    partition = house.partition()
    send(partition, batch(1, producer=(7, 0, 0)))
    ended(house.broker.topics.save(partition))
    ended(partition.log.delete_before(1))
    assert is_known(reopened(house).partition(), 0, 0)


def test_an_unreadable_snapshot_costs_only_the_reading_of_the_log(house):
    live = house.topic("orders")
    send(house.partition(), batch(1, producer=(7, 0, 0)))
    house.store.medium.tables["producers"][live.topic.topic_id + bytes(4)] = b"\xc1 nonsense"
    assert is_known(reopened(house).partition(), 0, 0)


def test_an_opening_that_fails_does_not_lose_the_snapshot(house, monkeypatch):
    house.topic("orders")
    partition = house.partition()
    send(partition, batch(1, producer=(7, 0, 0)))
    ended(house.broker.topics.save(partition))
    ended(partition.log.delete_before(1))
    send(partition, batch(1, producer=(7, 0, 1)))
    again = reopened(house)
    log = ended(again.store.log("orders", 0))
    real = log.read

    async def failing(offset: int, max_bytes: int) -> Any:
        raise StorageFailed("the test said so")

    monkeypatch.setattr(log, "read", failing)
    failure = Started(again.broker.topics.partition("orders", 0)).failure
    assert isinstance(failure, KafkaError)
    assert failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.setattr(log, "read", real)
    assert is_known(again.partition(), 0, 0)


def test_what_a_restart_had_to_read_counts_towards_the_next_snapshot(house):
    house.topic("orders")
    records = batch(5)
    send(house.partition(), records)
    assert reopened(house).partition().unsaved_bytes == len(records)


def test_a_log_whose_end_compaction_has_emptied_opens(house):
    house.topic("orders")
    partition = house.partition()
    send(partition, batch(5))
    ended(partition.log.replace(0, 4, []))
    assert reopened(house).partition().log.end_offset == 5


def test_a_snapshot_is_written_once_enough_has_come(house):
    house.topic("orders")
    partition = house.partition()
    send(partition, batch(1, producer=(7, 0, 0)))
    table = house.store.medium.tables["producers"]
    house.broker.topics.save_if_due(partition)
    assert not table
    partition.unsaved_bytes = SNAPSHOT_BYTES
    house.broker.topics.save_if_due(partition)
    assert (len(table), partition.unsaved_bytes) == (1, 0)


def test_only_one_snapshot_of_a_partition_is_written_at_a_time(house):
    house.topic("orders")
    partition = house.partition()
    partition.unsaved_bytes = SNAPSHOT_BYTES
    house.store.hold()
    house.broker.topics.save_if_due(partition)
    partition.unsaved_bytes = SNAPSHOT_BYTES
    house.broker.topics.save_if_due(partition)
    assert len(house.store._queue) == 1
    house.store.release()
    house.broker.topics.save_if_due(partition)
    assert partition.unsaved_bytes == 0


def test_a_snapshot_that_cannot_be_written_is_no_bug(house):
    house.topic("orders")
    partition = house.partition()
    partition.unsaved_bytes = SNAPSHOT_BYTES
    house.store.refuse_writes = True
    house.broker.topics.save_if_due(partition)
    assert not house.bugs


def test_a_shutdown_saves_what_has_changed_in_one_write(house):
    house.topic("orders", 20)
    for index in range(10):
        send(house.partition("orders", index), batch(pairs(1), producer=(7, 0, 0)))
    house.partition("orders", 11)
    house.store.hold()
    saving = Started(house.broker.topics.save_all())
    assert len(house.store._queue) == 1
    house.store.release()
    assert saving.is_done
    assert len(house.store.medium.tables["producers"]) == 10


def test_a_deleted_topic_takes_its_snapshots_along(house):
    live = house.topic("orders", 2)
    for index in range(2):
        partition = house.partition("orders", index)
        send(partition, batch(1, producer=(7, 0, 0)))
        ended(house.broker.topics.save(partition))
    ended(house.broker.topics.delete(live))
    assert not house.store.medium.tables["producers"]
    ended(house.broker.topics.save(partition))
    assert not house.store.medium.tables["producers"]
