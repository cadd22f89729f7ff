"""What a restart recovers of idempotent producers: from a snapshot, from the log, or from both."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from compat.records import check_message_set
from gateway.partitions import producer_snapshots
from gateway.partitions.partition import Partition
from gateway.partitions.producer_snapshots import SNAPSHOT_BYTES
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import StorageFailed
from tests.fakes.broker import NOW, House, Started, ended, open_house
from tests.gateway.sets import batch, old_set, pairs

DAY_MS = 24 * 3_600_000


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
    return bool(
        send(partition, batch(1, producer=(7, 0, sequence))).base_offset == base_offset
        and partition.log.end_offset == before
    )


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


class Reads:
    """Reads of the log `orders` that a test holds back or lets fail; `offsets` are those that were asked for."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        log = ended(house.store.log("orders", 0))
        self.offsets: list[int] = []
        self.fails_at = -1
        self.held: Deferred[None] | None = None
        self._read = log.read
        monkeypatch.setattr(log, "read", self)
        # One entry at a time.
        monkeypatch.setattr(producer_snapshots, "_REPLAY_BYTES", 1)

    async def __call__(self, offset: int, max_bytes: int) -> Any:
        self.offsets.append(offset)
        if self.held is not None:
            await self.held
        if offset == self.fails_at:
            raise StorageFailed("the test said so")
        return await self._read(offset, max_bytes)


def filled(house: House, count: int = 4) -> None:
    house.topic("orders")
    for sequence in range(count):
        send(house.partition(), batch(1, producer=(7, 0, sequence), timestamp=NOW))


def test_a_read_error_does_not_lose_the_snapshot(house, monkeypatch):
    filled(house, 1)
    partition = house.partition()
    ended(house.broker.topics.save(partition))
    ended(partition.log.delete_before(1))
    send(partition, batch(1, producer=(7, 0, 1)))
    again = reopened(house)
    reads = Reads(again, monkeypatch)
    reads.fails_at = 1
    failure = Started(again.broker.topics.leading.recovered(again.partition())).failure
    assert isinstance(failure, KafkaError)
    assert failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    reads.fails_at = -1
    assert is_known(again.partition(), 0, 0)


def test_after_a_read_error_the_log_is_read_from_where_it_had_come_to(house, monkeypatch):
    filled(house)
    again = reopened(house)
    reads = Reads(again, monkeypatch)
    reads.fails_at = 2
    first = again.partition()
    reads.fails_at = -1
    second = again.partition()
    assert first is not second
    assert reads.offsets == [0, 1, 2, 2, 3]
    assert all(is_known(second, sequence, sequence) for sequence in range(4))


def test_a_log_that_is_read_anew_is_saved_at_steps(house, monkeypatch):
    filled(house)
    again = reopened(house)
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BYTES", 1)
    reads = Reads(again, monkeypatch)
    reads.fails_at = 3
    again.partition()
    third = reopened(again)
    reads = Reads(third, monkeypatch)
    assert is_known(third.partition(), 2, 2)
    assert reads.offsets == [3]


def test_of_a_large_log_without_a_snapshot_only_what_producers_may_be_known_from_is_read(
    house, monkeypatch
):
    filled(house, 0)
    for producer, timestamp in ((7, NOW - DAY_MS - 1), (8, NOW - DAY_MS + 1), (9, NOW)):
        send(house.partition(), batch(1, producer=(producer, 0, 5), timestamp=timestamp))
    again = reopened(house)
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BYTES", 100)
    reads = Reads(again, monkeypatch)
    assert [producer_id for producer_id, _ in again.partition().producers] == [8, 9]
    assert reads.offsets == [1, 2]


def test_while_producers_are_recovered_only_their_own_requests_wait(house, monkeypatch):
    filled(house)
    again = reopened(house)
    reads = Reads(again, monkeypatch)
    reads.held = held = Deferred()
    partition = again.partition()
    assert send(partition, batch(1)).base_offset == 4
    waiting = [Started(again.broker.topics.leading.recovered(partition)) for _ in range(2)]
    assert not any(one.is_done for one in waiting)
    reads.held = None
    held.callback(None)
    assert all(one.is_done and one.failure is None for one in waiting)
    assert is_known(partition, 3, 3)


def test_what_waits_for_producers_is_told_to_come_again_at_its_time(house, monkeypatch):
    filled(house)
    again = reopened(house)
    Reads(again, monkeypatch).held = Deferred()
    partition = again.partition()
    waiting = Started(again.broker.topics.leading.recovered(partition))
    again.clock.advance(again.broker.settings.partition_open_timeout_ms / 1000)
    late = Started(again.broker.topics.leading.recovered(partition))
    failures = [waiting.failure, late.failure]
    assert [isinstance(one, KafkaError) and one.code for one in failures] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    ] * 2


def test_a_snapshot_taken_while_producers_are_recovered_claims_no_more_than_was_read(
    house, monkeypatch
):
    filled(house)
    again = reopened(house)
    Reads(again, monkeypatch).held = Deferred()
    partition = again.partition()
    send(partition, batch(1))
    ended(again.broker.topics.save(partition))
    third = reopened(again)
    assert all(is_known(third.partition(), sequence, sequence) for sequence in range(4))


def test_retention_may_delete_what_was_about_to_be_read(house, monkeypatch):
    filled(house)
    again = reopened(house)
    reads = Reads(again, monkeypatch)
    reads.held = held = Deferred()
    partition = again.partition()
    ended(partition.log.delete_before(2))
    reads.held = None
    held.callback(None)
    assert is_known(partition, 3, 3)
    assert not again.bugs


def test_a_topic_that_comes_back_to_the_list_of_topics_keeps_its_producers(house, monkeypatch):
    filled(house)
    topic = house.broker.topics.get("orders").topic
    ended(house.partition().log.delete_before(4))
    house.store.unlisted()
    assert house.broker.topics.get("orders") is None
    house.store.outside([topic])
    reads = Reads(house, monkeypatch)
    assert is_known(house.partition(), 3, 3)
    assert reads.offsets == []


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
