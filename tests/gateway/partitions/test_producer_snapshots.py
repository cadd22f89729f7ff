"""Recovery of idempotent producers after a restart, from a snapshot, the log, or both."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from compat.message_sets import check_message_set
from gateway.coroutines import TimeSlices
from gateway.partitions import producer_snapshots
from gateway.partitions.partition import Partition
from gateway.partitions.producer_snapshots import SNAPSHOT_BYTES
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import StorageFailed
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment
from tests.records.record_sets import batch, old_set, pairs

DAY_MS = 24 * 3_600_000


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def reopened(env: BrokerEnvironment) -> BrokerEnvironment:
    """Return another broker on the same store, as after a crash."""
    ended(env.store.close())
    return open_environment(env.store.medium)


def send(partition: Partition, records: memoryview) -> Any:
    return ended(partition.append_batch(records, check_batch(records, 11), 0))


def is_known(partition: Partition, sequence: int, base_offset: int) -> bool:
    """Assert that the batch is recognized as the one stored at `base_offset`."""
    before = partition.log.end_offset
    return bool(
        send(partition, batch(1, producer=(7, 0, sequence))).base_offset == base_offset
        and partition.log.end_offset == before
    )


def test_producers_are_recovered_from_log_without_snapshot(env):
    env.topic("orders")
    partition = env.partition()
    for sequence in range(3):
        send(partition, batch(1, producer=(7, 0, sequence)))
        ended(partition.append_message_set(old_set(2, magic=0), _checked(old_set(2, magic=0)), 0))
    again = reopened(env).partition()
    assert is_known(again, 2, 6)
    assert send(again, batch(1, producer=(7, 0, 3))).base_offset == 9


def _checked(records: memoryview) -> Any:
    return check_message_set(records, max_decompressed_bytes=1 << 20)


def test_producers_are_recovered_from_snapshot_and_newer_log(env):
    env.topic("orders")
    partition = env.partition()
    for sequence in range(4):
        send(partition, batch(1, producer=(7, 0, sequence)))
        if sequence == 1:
            ended(env.broker.topics.save(partition))
    again = reopened(env).partition()
    assert all(is_known(again, sequence, sequence) for sequence in range(4))


def test_snapshot_keeps_producers_whose_records_were_deleted(env):
    env.topic("orders")
    partition = env.partition()
    send(partition, batch(1, producer=(7, 0, 0)))
    ended(env.broker.topics.save(partition))
    ended(partition.log.delete_before(1))
    assert is_known(reopened(env).partition(), 0, 0)


def test_unreadable_snapshot_causes_full_replay(env):
    live = env.topic("orders")
    send(env.partition(), batch(1, producer=(7, 0, 0)))
    env.store.medium.tables["producers"][live.topic.topic_id + bytes(4)] = b"\xc1 nonsense"
    assert is_known(reopened(env).partition(), 0, 0)


class Reads:
    """Reads of the log `orders` that a test delays or fails; `offsets` are the requested ones."""

    def __init__(self, env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
        log = ended(env.store.log("orders", 0))
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


def damage(env: BrokerEnvironment, *offsets: int, by_checksum: bool = True) -> None:
    """From now on, the entries at these offsets cannot be read, and all others can."""
    (rows,) = env.store.medium.logs.values()
    rows.damaged, rows.failing = set(), set()
    (rows.damaged if by_checksum else rows.failing).update(offsets)


def filled(env: BrokerEnvironment, count: int = 4) -> None:
    env.topic("orders")
    for sequence in range(count):
        send(env.partition(), batch(1, producer=(7, 0, sequence), timestamp=NOW))


def test_read_error_keeps_snapshot(env, monkeypatch):
    filled(env, 1)
    partition = env.partition()
    ended(env.broker.topics.save(partition))
    ended(partition.log.delete_before(1))
    send(partition, batch(1, producer=(7, 0, 1)))
    again = reopened(env)
    reads = Reads(again, monkeypatch)
    reads.fails_at = 1
    failure = Started(again.broker.topics.opener.wait_for_recovery(again.partition())).failure
    assert isinstance(failure, KafkaError)
    assert failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    reads.fails_at = -1
    assert is_known(again.partition(), 0, 0)


def test_replay_resumes_after_read_error(env, monkeypatch):
    filled(env)
    again = reopened(env)
    reads = Reads(again, monkeypatch)
    reads.fails_at = 2
    first = again.partition()
    reads.fails_at = -1
    second = again.partition()
    assert first is not second
    assert reads.offsets == [0, 1, 2, 2, 3]
    assert all(is_known(second, sequence, sequence) for sequence in range(4))


def test_damaged_entries_are_left_out_of_the_replay(env, monkeypatch, caplog):
    """Then any sequence is accepted, as that of an unknown producer."""
    env.topic("orders")
    for producer, sequence in ((7, 0), (8, 0), (8, 1), (7, 1), (9, 0)):
        send(env.partition(), batch(1, producer=(producer, 0, sequence), timestamp=NOW))
    again = reopened(env)
    reads = Reads(again, monkeypatch)
    damage(again, 1, 2)
    partition = again.partition()
    assert partition is again.partition()
    assert reads.offsets == [0, 1, 2, 3, 4]
    assert [producer_id for producer_id, _ in partition.producers] == [7, 9]
    assert is_known(partition, 1, 3)
    assert send(partition, batch(1, producer=(8, 0, 2))).base_offset == 5
    (line,) = (one for one in caplog.records if one.levelname == "WARNING")
    found = line.fields
    assert (found["entries"], found["first_offset"], found["last_offset"]) == (2, 1, 2)


def test_entries_behind_a_damaged_one_are_read_one_by_one(env, monkeypatch):
    """They may be damaged, too: a large read for each would take long."""
    filled(env, 6)
    again = reopened(env)
    log, sizes = ended(again.store.log("orders", 0)), []
    read = log.read

    async def recorded(offset: int, max_bytes: int) -> Any:
        sizes.append((offset, max_bytes > 1))
        return await read(offset, max_bytes)

    monkeypatch.setattr(log, "read", recorded)
    damage(again, 1, 2)
    again.partition()
    assert sizes == [(0, True), (1, True), (2, False), (3, False), (4, True)]


def test_damaged_entry_is_not_read_by_the_next_replay(env, monkeypatch):
    filled(env)
    again = reopened(env)
    monkeypatch.setattr(producer_snapshots, "_REPLAY_BYTES", 1)
    damage(again, 2)
    again.partition()
    third = reopened(again)
    reads = Reads(third, monkeypatch)
    assert is_known(third.partition(), 3, 3)
    assert reads.offsets == []


@pytest.mark.parametrize("seconds", [1, 28])
def test_disk_that_works_again_in_time_loses_no_producer(env, monkeypatch, seconds):
    filled(env)
    again = reopened(env)
    Reads(again, monkeypatch)
    damage(again, 2, 3, by_checksum=False)
    partition = again.partition()
    again.clock.pump([1] * seconds)
    damage(again)
    again.clock.pump([1])
    assert all(is_known(partition, sequence, sequence) for sequence in range(4))


def test_entries_that_the_disk_cannot_read_are_left_out_after_some_reads(env, monkeypatch):
    """The next ones are not read as often."""
    filled(env, 5)
    again = reopened(env)
    reads = Reads(again, monkeypatch)
    damage(again, 1, 3, by_checksum=False)
    partition = again.partition()
    again.clock.pump([1] * 40)
    assert reads.offsets == [0, *[1] * 30, 2, *[3] * 3, 4]
    assert is_known(partition, 4, 4)


def test_large_log_is_replayed_from_a_damaged_entry_on(env, monkeypatch):
    filled(env, 0)
    old = NOW - DAY_MS - 1
    for producer, timestamp in ((6, old), (7, old), (8, NOW), (9, NOW)):
        send(env.partition(), batch(1, producer=(producer, 0, 5), timestamp=timestamp))
    again = reopened(env)
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BYTES", 100)
    reads = Reads(again, monkeypatch)
    damage(again, 2)
    partition = again.partition()
    assert reads.offsets == [2, 3]
    assert [producer_id for producer_id, _ in partition.producers] == [9]


def test_long_replay_saves_snapshots(env, monkeypatch):
    filled(env)
    again = reopened(env)
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BYTES", 1)
    reads = Reads(again, monkeypatch)
    reads.fails_at = 3
    again.partition()
    third = reopened(again)
    reads = Reads(third, monkeypatch)
    assert is_known(third.partition(), 2, 2)
    assert reads.offsets == [3]


def test_large_log_without_snapshot_is_replayed_within_expiration(env, monkeypatch):
    filled(env, 0)
    for producer, timestamp in ((7, NOW - DAY_MS - 1), (8, NOW - DAY_MS + 1), (9, NOW)):
        send(env.partition(), batch(1, producer=(producer, 0, 5), timestamp=timestamp))
    again = reopened(env)
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BYTES", 100)
    reads = Reads(again, monkeypatch)
    assert [producer_id for producer_id, _ in again.partition().producers] == [8, 9]
    assert reads.offsets == [1, 2]


def test_recovery_blocks_only_idempotent_appends(env, monkeypatch):
    filled(env)
    again = reopened(env)
    reads = Reads(again, monkeypatch)
    reads.held = held = Deferred()
    partition = again.partition()
    assert send(partition, batch(1)).base_offset == 4
    waiting = [Started(again.broker.topics.opener.wait_for_recovery(partition)) for _ in range(2)]
    assert not any(one.is_done for one in waiting)
    reads.held = None
    held.callback(None)
    assert all(one.is_done and one.failure is None for one in waiting)
    assert is_known(partition, 3, 3)


def test_waiting_for_recovery_times_out_with_retriable_error(env, monkeypatch):
    filled(env)
    again = reopened(env)
    Reads(again, monkeypatch).held = Deferred()
    partition = again.partition()
    waiting = Started(again.broker.topics.opener.wait_for_recovery(partition))
    again.clock.advance(again.broker.settings.partition_open_timeout_ms / 1000)
    late = Started(again.broker.topics.opener.wait_for_recovery(partition))
    failures = [waiting.failure, late.failure]
    assert [isinstance(one, KafkaError) and one.code for one in failures] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    ] * 2


def test_snapshot_during_recovery_covers_only_replayed_part(env, monkeypatch):
    filled(env)
    again = reopened(env)
    Reads(again, monkeypatch).held = Deferred()
    partition = again.partition()
    send(partition, batch(1))
    ended(again.broker.topics.save(partition))
    third = reopened(again)
    assert all(is_known(third.partition(), sequence, sequence) for sequence in range(4))


def test_replay_skips_entries_deleted_by_retention(env, monkeypatch):
    filled(env)
    again = reopened(env)
    reads = Reads(again, monkeypatch)
    reads.held = held = Deferred()
    partition = again.partition()
    ended(partition.log.delete_before(2))
    reads.held = None
    held.callback(None)
    assert is_known(partition, 3, 3)
    assert not again.bugs


def test_reappearing_topic_keeps_producers(env, monkeypatch):
    filled(env)
    topic = env.broker.topics.get("orders").topic
    ended(env.partition().log.delete_before(4))
    env.store.unlisted()
    assert env.broker.topics.get("orders") is None
    env.store.outside([topic])
    reads = Reads(env, monkeypatch)
    assert is_known(env.partition(), 3, 3)
    assert reads.offsets == []


def test_replayed_bytes_count_as_unsaved(env):
    env.topic("orders")
    records = batch(5)
    send(env.partition(), records)
    assert reopened(env).partition().unsaved_bytes == len(records)


def test_log_with_compacted_end_opens(env):
    env.topic("orders")
    partition = env.partition()
    send(partition, batch(5))
    ended(partition.log.replace(0, 4, []))
    assert reopened(env).partition().log.end_offset == 5


def test_snapshot_is_written_after_snapshot_bytes(env):
    env.topic("orders")
    partition = env.partition()
    send(partition, batch(1, producer=(7, 0, 0)))
    table = env.store.medium.tables["producers"]
    env.broker.topics.save_if_due(partition)
    assert not table
    partition.unsaved_bytes = SNAPSHOT_BYTES
    env.broker.topics.save_if_due(partition)
    assert (len(table), partition.unsaved_bytes) == (1, 0)


def test_snapshot_is_written_after_snapshot_batches(env, monkeypatch):
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BATCHES", 3)
    monkeypatch.setattr(producer_snapshots, "BATCHES_PER_PRODUCER", 1)
    env.topic("orders")
    partition = env.partition()
    table = env.store.medium.tables["producers"]
    written = []
    for sequence in range(7):
        send(partition, batch(1, producer=(7, 0, sequence)))
        env.broker.topics.save_if_due(partition)
        written.append((len(table), partition.unsaved_batches))
    assert written == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 0), (1, 1)]


def test_snapshot_of_many_producers_is_written_after_more_batches(env, monkeypatch):
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BATCHES", 1)
    env.topic("orders")
    partition = env.partition()
    saved = []
    for number in range(2 * producer_snapshots.BATCHES_PER_PRODUCER + 1):
        send(partition, batch(1, producer=(number % 2, 0, number // 2)))
        if number:
            env.broker.topics.save_if_due(partition)
        saved.append(partition.unsaved_batches == 0)
    assert saved.index(True) == 2 * producer_snapshots.BATCHES_PER_PRODUCER - 1


def test_long_replay_of_small_batches_saves_snapshots(env, monkeypatch):
    filled(env)
    again = reopened(env)
    monkeypatch.setattr(producer_snapshots, "SNAPSHOT_BATCHES", 1)
    monkeypatch.setattr(producer_snapshots, "BATCHES_PER_PRODUCER", 0)
    reads = Reads(again, monkeypatch)
    reads.fails_at = 3
    again.partition()
    third = reopened(again)
    reads = Reads(third, monkeypatch)
    assert is_known(third.partition(), 2, 2)
    assert reads.offsets == [3]


def test_one_snapshot_per_partition_is_written_at_a_time(env):
    env.topic("orders")
    partition = env.partition()
    partition.unsaved_bytes = SNAPSHOT_BYTES
    env.store.hold()
    env.broker.topics.save_if_due(partition)
    partition.unsaved_bytes = SNAPSHOT_BYTES
    env.broker.topics.save_if_due(partition)
    assert len(env.store._queue) == 1
    env.store.release()
    env.broker.topics.save_if_due(partition)
    assert partition.unsaved_bytes == 0


def test_failed_snapshot_write_is_only_logged(env):
    env.topic("orders")
    partition = env.partition()
    partition.unsaved_bytes = SNAPSHOT_BYTES
    env.store.refuse_writes = True
    env.broker.topics.save_if_due(partition)
    assert not env.bugs


def test_save_all_writes_changed_states_together(env):
    env.topic("orders", 20)
    for index in range(10):
        send(env.partition("orders", index), batch(pairs(1), producer=(7, 0, 0)))
    env.partition("orders", 11)
    env.store.hold()
    saving = Started(env.broker.topics.save_all())
    assert len(env.store._queue) == 1
    env.store.release()
    assert saving.is_done
    assert len(env.store.medium.tables["producers"]) == 10


def test_opened_shard_drops_snapshots_of_deleted_topics(env, caplog):
    env.topic("orders")
    send(env.partition(), batch(1, producer=(7, 0, 0)))
    ended(env.broker.topics.save(env.partition()))
    (key,) = env.store.medium.tables["producers"]
    topics = env.broker.topics
    env.store.medium.tables["producers"][b"unknown" + bytes(13)] = b"row"
    env.store.deleted_ids.add(key[:16])
    env.store.refuse_writes = True
    ended(topics.open_shard(0, TimeSlices(env.clock)))
    assert "not deleted" in caplog.text
    env.store.refuse_writes = False
    ended(topics.open_shard(0, TimeSlices(env.clock)))
    assert list(env.store.medium.tables["producers"]) == [b"unknown" + bytes(13)]


def test_snapshots_are_deleted_with_topic(env):
    live = env.topic("orders", 2)
    for index in range(2):
        partition = env.partition("orders", index)
        send(partition, batch(1, producer=(7, 0, 0)))
        ended(env.broker.topics.save(partition))
    ended(env.broker.topics.delete(live))
    assert not env.store.medium.tables["producers"]
    ended(env.broker.topics.save(partition))
    assert not env.store.medium.tables["producers"]
