"""The leader of a partition that others write to as well: its log gives the offsets out, and tells them when the records are stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from twisted.internet.defer import Deferred

from gateway.partitions.partition import Partition
from gateway.partitions.producer_state import ProducerStateManager
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import Entry, EntryTooLarge, Fenced, LogClosed
from tests.fakes.broker import BrokerEnvironment, Started, open_environment
from tests.gateway.partitions.test_partition import send, send_old
from tests.gateway.sets import batch, old_set


class SharedLog:
    """A log that stores nothing: a test says which offset what is in flight has got."""

    leader_epoch = 0
    end_offset = 0
    next_offset = 1 << 62

    def __init__(self) -> None:
        self.waiting: list[tuple[Entry, Deferred[int]]] = []

    def append(self, entries: Sequence[Entry]) -> Deferred[int]:
        (entry,) = entries
        assert entry.base_offset == self.next_offset
        self.next_offset = entry.last_offset + 1
        self.waiting.append((entry, Deferred()))
        return self.waiting[-1][1]

    def store(self, base_offset: int) -> None:
        self.arrive(base_offset)
        self.waiting.pop(0)[1].callback(base_offset)

    def arrive(self, base_offset: int) -> None:
        """The oldest batch in flight is visible; its append has not ended."""
        entry = self.waiting[0][0]
        self.end_offset = base_offset + entry.last_offset - entry.base_offset + 1


@pytest.fixture
def log() -> SharedLog:
    return SharedLog()


@pytest.fixture
def partition(log: SharedLog) -> Partition:
    env: BrokerEnvironment = open_environment()
    env.topic()
    return Partition("orders", 0, log, env.partition().config, ProducerStateManager(10))  # type: ignore[arg-type]


def offset(started: Started) -> int:
    return started.result.base_offset


def test_the_answer_bears_the_offset_that_the_log_gave(partition, log):
    sent = [send(partition, batch(3)), send_old(partition, old_set(2, magic=1))]
    log.store(17)
    log.store(40)
    assert [offset(one) for one in sent] == [17, 40]


def test_a_retry_is_answered_with_the_offset_that_the_log_gave(partition, log):
    first = send(partition, batch(3, producer=(7, 0, 0)))
    during = send(partition, batch(3, producer=(7, 0, 0)))
    log.store(17)
    after = send(partition, batch(3, producer=(7, 0, 0)))
    assert [offset(one) for one in (first, during, after)] == [17, 17, 17]
    assert log.waiting == []


def test_batches_in_flight_of_one_producer_are_told_apart(partition, log):
    sent = [send(partition, batch(2, producer=(7, 0, 2 * number))) for number in range(5)]
    for base_offset in (5, 9, 11, 30, 32):
        log.store(base_offset)
    assert [offset(one) for one in sent] == [5, 9, 11, 30, 32]
    assert [
        offset(send(partition, batch(2, producer=(7, 0, 2 * number)))) for number in range(5)
    ] == [5, 9, 11, 30, 32]


def test_a_snapshot_holds_real_offsets_only(partition, log):
    send(partition, batch(2, producer=(7, 0, 0)))
    log.store(5)
    send(partition, batch(2, producer=(7, 0, 2)))
    again = ProducerStateManager(10)
    assert again.load(partition.snapshot()) == 7
    assert [sent.base_offset for _, producer in again for sent in producer.batches] == [5]


def test_what_fails_alone_takes_no_other_batch_along(partition, log):
    large = send(partition, batch(1, producer=(3, 0, 0)))
    send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(EntryTooLarge("large"))
    log.store(5)
    with pytest.raises(KafkaError) as caught:
        large.result  # noqa: B018
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert offset(send(partition, batch(2, producer=(7, 0, 0)))) == 5
    send(partition, batch(1, producer=(7, 0, 2)))
    assert len(log.waiting) == 1


def test_what_is_lost_to_view_is_not_taken_for_stored(partition, log):
    send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(Fenced("lost"))
    send(partition, batch(2, producer=(7, 0, 0)))
    assert len(log.waiting) == 1


def test_what_is_in_flight_behind_a_batch_that_failed_alone_stays_known(partition, log):
    send(partition, batch(1, producer=(3, 0, 0)))
    behind = send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(EntryTooLarge("large"))
    retry = send(partition, batch(2, producer=(7, 0, 0)))
    assert len(log.waiting) == 1
    log.store(5)
    assert [offset(behind), offset(retry)] == [5, 5]


def test_a_snapshot_is_replayed_from_where_the_oldest_batch_in_flight_may_lie(partition, log):
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
def test_a_batch_whose_outcome_is_unknown_is_looked_for_in_the_log(partition, log, failure):
    """It has arrived at the tail, so the log ends behind it, and then its acknowledgement fails."""
    send(partition, batch(2, producer=(7, 0, 0)))
    log.arrive(5)
    log.waiting.pop(0)[1].errback(failure)
    assert ProducerStateManager(10).load(partition.snapshot()) == 0


def test_what_was_certainly_not_stored_is_not_looked_for_in_the_log(partition, log):
    send(partition, batch(1))
    log.store(4)
    send(partition, batch(2, producer=(7, 0, 0)))
    log.waiting.pop(0)[1].errback(EntryTooLarge("large"))
    assert ProducerStateManager(10).load(partition.snapshot()) == 5
