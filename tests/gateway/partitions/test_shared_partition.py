"""A partition whose log assigns offsets itself and reports them when records are stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from twisted.internet.defer import Deferred, fail

from gateway.partitions.partition import Partition
from gateway.partitions.producer_state import ProducerStateManager
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import Entry, EntryTooLarge, Fenced, LogClosed, StorageFailed
from tests.fakes.broker import BrokerEnvironment, Started, open_environment
from tests.gateway.partitions.test_partition import LATER, send, send_old
from tests.records.record_sets import batch, old_set


class SharedLog:
    """A log that stores nothing: tests decide the offsets of in-flight appends."""

    leader_epoch = 0
    end_offset = 0
    next_offset = 1 << 62

    def __init__(self) -> None:
        self.waiting: list[tuple[Entry, Deferred[int]]] = []
        self.is_full = False

    def append(self, entries: Sequence[Entry]) -> Deferred[int]:
        if self.is_full:
            return fail(StorageFailed("too much is in flight"))
        (entry,) = entries
        assert entry.base_offset == self.next_offset
        self.next_offset = entry.last_offset + 1
        self.waiting.append((entry, Deferred()))
        return self.waiting[-1][1]

    def store(self, base_offset: int) -> None:
        self.arrive(base_offset)
        self.waiting.pop(0)[1].callback(base_offset)

    def arrive(self, base_offset: int) -> None:
        """Make the oldest in-flight batch visible, without ending its append."""
        entry = self.waiting[0][0]
        self.end_offset = base_offset + entry.last_offset - entry.base_offset + 1


@pytest.fixture
def log() -> SharedLog:
    return SharedLog()


@pytest.fixture
def partition(log: SharedLog) -> Partition:
    env: BrokerEnvironment = open_environment()
    env.topic()
    return Partition("orders", 0, log, env.partition().config, ProducerStateManager(10))


def offset(started: Started) -> int:
    return started.result.base_offset


def test_append_returns_offset_assigned_by_log(partition, log):
    sent = [send(partition, batch(3)), send_old(partition, old_set(2, magic=1))]
    log.store(17)
    log.store(40)
    assert [offset(one) for one in sent] == [17, 40]


def test_retry_returns_offset_assigned_by_log(partition, log):
    first = send(partition, batch(3, producer=(7, 0, 0)))
    during = send(partition, batch(3, producer=(7, 0, 0)))
    log.store(17)
    after = send(partition, batch(3, producer=(7, 0, 0)))
    assert [offset(one) for one in (first, during, after)] == [17, 17, 17]
    assert log.waiting == []


def test_in_flight_batches_of_one_producer_are_distinguished(partition, log):
    sent = [send(partition, batch(2, producer=(7, 0, 2 * number))) for number in range(5)]
    for base_offset in (5, 9, 11, 30, 32):
        log.store(base_offset)
    assert [offset(one) for one in sent] == [5, 9, 11, 30, 32]
    assert [
        offset(send(partition, batch(2, producer=(7, 0, 2 * number)))) for number in range(5)
    ] == [5, 9, 11, 30, 32]


def test_snapshot_has_only_assigned_offsets(partition, log):
    send(partition, batch(2, producer=(7, 0, 0)))
    log.store(5)
    send(partition, batch(2, producer=(7, 0, 2)))
    again = ProducerStateManager(10)
    assert again.load(partition.snapshot()) == 7
    assert [sent.base_offset for _, producer in again for sent in producer.batches] == [5]


def test_single_failure_does_not_fail_other_batches(partition, log):
    large = send(partition, batch(1, producer=(3, 0, 0)))
    send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(EntryTooLarge("large"))
    log.store(5)
    with pytest.raises(KafkaError) as caught:
        large.result  # noqa: B018 - reading it raises
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert offset(send(partition, batch(2, producer=(7, 0, 0)))) == 5
    send(partition, batch(1, producer=(7, 0, 2)))
    assert len(log.waiting) == 1


def test_in_flight_batch_is_stored_although_the_batch_before_it_fails(partition, log):
    """The limit of shared logs: Pulsar has the second batch when the first fails."""
    sent = [send(partition, batch(1, producer=(7, 0, sequence))) for sequence in (0, 1)]
    log.waiting.pop(0)[1].errback(EntryTooLarge("large"))
    log.store(5)
    assert (sent[0].failure.code, offset(sent[1])) == (ErrorCode.MESSAGE_TOO_LARGE, 5)
    with pytest.raises(KafkaError) as caught:
        send(partition, batch(1, producer=(7, 0, 0)))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert offset(send(partition, batch(1, producer=(7, 0, 1)))) == 5
    assert log.waiting == []
    send(partition, batch(1, producer=(7, 0, 2)))
    assert len(log.waiting) == 1


def test_batch_behind_one_that_is_refused_at_once_is_refused(partition, log):
    """Also before the first append is awaited. Only that batch is forgotten."""
    other, records = send(partition, batch(2, producer=(8, 0, 0))), batch(1, producer=(7, 0, 0))
    log.is_full = True
    refused = partition.append_batch(records, check_batch(records, 11), LATER)
    log.is_full = False
    with pytest.raises(KafkaError) as caught:
        send(partition, batch(1, producer=(7, 0, 1)))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    again = [send(partition, batch(1, producer=(7, 0, sequence))) for sequence in (0, 1)]
    for base_offset in (3, 5, 6):
        log.store(base_offset)
    assert [offset(one) for one in (other, *again)] == [3, 5, 6]
    assert Started(refused).failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert offset(send(partition, batch(1, producer=(7, 0, 0)))) == 5


def test_batch_with_unknown_outcome_is_not_treated_as_stored(partition, log):
    send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(Fenced("lost"))
    send(partition, batch(2, producer=(7, 0, 0)))
    assert len(log.waiting) == 1


def test_in_flight_batch_after_failed_one_stays_known(partition, log):
    send(partition, batch(1, producer=(3, 0, 0)))
    behind = send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(EntryTooLarge("large"))
    retry = send(partition, batch(2, producer=(7, 0, 0)))
    assert len(log.waiting) == 1
    log.store(5)
    assert [offset(behind), offset(retry)] == [5, 5]


def test_replay_starts_at_oldest_in_flight_batch(partition, log):
    send(partition, batch(2, producer=(7, 0, 0)))
    log.store(5)
    send(partition, batch(2, producer=(7, 0, 2)))
    send(partition, batch(2, producer=(8, 0, 0)))
    log.arrive(7)
    again = ProducerStateManager(10)
    assert again.load(partition.snapshot()) == 7
    log.store(7)
    assert again.load(partition.snapshot()) == 7
    log.store(9)
    assert again.load(partition.snapshot()) == 11


@pytest.mark.parametrize(
    "failure", [Fenced("not acknowledged in time"), LogClosed("the topic was terminated")]
)
def test_replay_covers_batch_with_unknown_outcome(partition, log, failure):
    """The batch is visible in the log, and then its acknowledgement fails."""
    send(partition, batch(2, producer=(7, 0, 0)))
    log.arrive(5)
    log.waiting.pop(0)[1].errback(failure)
    assert ProducerStateManager(10).load(partition.snapshot()) == 0


def test_replay_skips_batch_that_certainly_failed(partition, log):
    send(partition, batch(1))
    log.store(4)
    send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(EntryTooLarge("large"))
    assert ProducerStateManager(10).load(partition.snapshot()) == 5
