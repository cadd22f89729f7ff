"""Idempotent producers as in Kafka 3.9 (ProducerStateManager, ProducerAppendInfo,
ProducerStateEntry).
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.partitions.producer_state import BatchMetadata, ProducerStateManager
from gateway.protocol.errors import ErrorCode, KafkaError
from records import BatchHeader
from tests.examples import scaled

ANY_TIME = 1000
LARGEST = 2147483647


def batch(
    sequence: int,
    count: int = 1,
    *,
    producer: int = 7,
    epoch: int = 0,
    base_offset: int = 0,
    append_time: int | None = None,
) -> BatchHeader:
    attributes, timestamp = (0, 5) if append_time is None else (0x08, append_time)
    return BatchHeader(
        base_offset=base_offset,
        leader_epoch=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
        size=100,
    )


class GrowingLog:
    """Producer state with a growing log; all is durable unless `durable_end` is held back."""

    def __init__(self, limit: int = 1000) -> None:
        self.producers = ProducerStateManager(limit)
        self.end = self.durable_end = 0

    def add(self, one: BatchHeader, *, durable: bool = True) -> int:
        assert self.producers.check(one) is None
        self.producers.append(one, self.end, -1, self.durable_end, ANY_TIME)
        base, self.end = self.end, self.end + one.count
        if durable:
            self.durable_end = self.end
        return base

    def twin(self, one: BatchHeader) -> BatchMetadata:
        found = self.producers.check(one)
        assert found is not None
        return found

    def refusal(self, one: BatchHeader) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.producers.check(one)
        return caught.value.code


@pytest.fixture
def log() -> GrowingLog:
    return GrowingLog()


def test_unknown_producer_may_start_with_any_sequence(log):
    log.add(batch(57, 3))
    log.add(batch(60))


def test_sequence_gap_is_out_of_order(log):
    log.add(batch(0, 3))
    assert log.refusal(batch(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_overlapping_batch_is_out_of_order(log):
    log.add(batch(0, 3))
    assert log.refusal(batch(1, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.refusal(batch(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_wraps_to_zero_after_maximum(log):
    log.add(batch(LARGEST - 1, 2))
    assert log.refusal(batch(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.add(batch(0, 2))
    assert log.twin(batch(LARGEST - 1, 2)).base_offset == 0


def test_sequence_may_wrap_within_batch(log):
    log.add(batch(LARGEST, 3))
    assert log.twin(batch(LARGEST, 3)).last_sequence == 1
    log.add(batch(2))


def test_retry_of_any_of_last_five_batches_is_a_duplicate(log):
    bases = [log.add(batch(3 * n, 3)) for n in range(5)]
    assert [log.twin(batch(3 * n, 3)).base_offset for n in range(5)] == bases == [0, 3, 6, 9, 12]


def test_sixth_last_batch_is_forgotten(log):
    for n in range(6):
        log.add(batch(n))
    assert log.refusal(batch(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.twin(batch(1)).base_offset == 1


def test_all_in_flight_batches_are_remembered(log):
    for n in range(9):
        log.add(batch(n), durable=False)
    assert log.twin(batch(0)).base_offset == 0


def test_older_producer_epoch_is_fenced(log):
    log.add(batch(0, epoch=3))
    assert log.refusal(batch(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.refusal(batch(0, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_newer_producer_epoch_starts_at_sequence_zero(log):
    log.add(batch(0, 5, epoch=3))
    assert log.refusal(batch(5, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.add(batch(0, 5, epoch=4))
    log.add(batch(5, epoch=4))


def test_same_sequence_in_newer_epoch_is_not_a_duplicate(log):
    log.add(batch(0, epoch=3))
    assert log.add(batch(0, epoch=4)) == 1
    assert log.twin(batch(0, epoch=4)).base_offset == 1


def test_producers_are_independent(log):
    log.add(batch(0, producer=1))
    log.add(batch(0, producer=2))
    log.add(batch(1, producer=1))
    assert log.refusal(batch(0, 2, producer=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_failed_batch_is_expected_again(log):
    log.add(batch(0))
    log.add(batch(1), durable=False)
    log.add(batch(2), durable=False)
    log.producers.rewind(1)
    assert log.refusal(batch(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.producers.check(batch(1)) is None


def test_batch_after_failed_first_batch_is_out_of_order(log):
    log.add(batch(10, 2), durable=False)
    log.producers.rewind(0)
    assert log.refusal(batch(12)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.producers.check(batch(10, 2)) is None


def test_failure_in_new_epoch_keeps_old_epoch(log):
    log.add(batch(0, epoch=1))
    log.add(batch(0, epoch=2), durable=False)
    log.producers.rewind(1)
    assert log.twin(batch(0, epoch=1)).base_offset == 0
    assert log.producers.check(batch(0, epoch=2)) is None


def test_rewind_keeps_other_producers(log):
    log.add(batch(0, producer=1))
    log.add(batch(0, producer=2), durable=False)
    log.producers.rewind(1)
    assert log.twin(batch(0, producer=1)).base_offset == 0


def test_expired_producer_is_forgotten():
    producers = ProducerStateManager(10)
    producers.append(batch(0, producer=1), 0, -1, 0, 100)
    producers.append(batch(0, producer=2), 1, -1, 1, 200)
    producers.expire(200)
    assert [producer_id for producer_id, _ in producers] == [2]
    assert producers.check(batch(99, producer=1)) is None


def test_least_recently_active_producer_is_evicted():
    log = GrowingLog(limit=3)
    for producer in (1, 2, 3):
        log.add(batch(0, producer=producer))
    log.add(batch(1, producer=1))
    log.add(batch(0, producer=4))
    assert [producer_id for producer_id, _ in log.producers] == [3, 1, 4]


def test_producer_with_in_flight_batch_is_not_evicted():
    log = GrowingLog(limit=2)
    log.add(batch(0, producer=1), durable=False)
    for producer in (2, 3):
        log.add(batch(0, producer=producer), durable=False)
    assert [producer_id for producer_id, _ in log.producers] == [1, 2, 3]
    assert log.twin(batch(0, producer=1)).base_offset == 0
    log.durable_end = log.end
    log.add(batch(0, producer=4))
    assert [producer_id for producer_id, _ in log.producers] == [3, 4]


def test_only_failed_batch_is_removed():
    log = GrowingLog()
    log.add(batch(0))
    for sequence in (1, 2):
        log.add(batch(sequence), durable=False)
    log.producers.remove_failed(7, 1)
    assert log.twin(batch(0)).base_offset == 0
    assert log.twin(batch(2)).base_offset == 2


def test_first_batch_is_expected_after_all_failed():
    log = GrowingLog()
    for sequence in (10, 11, 12):
        log.add(batch(sequence), durable=False)
    for base_offset in range(3):
        log.producers.remove_failed(7, base_offset)
    assert [log.refusal(batch(sequence)) for sequence in (11, 12, 13)] == [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    ] * 3
    assert log.producers.check(batch(10)) is None


def test_replayed_batch_already_in_snapshot_is_not_added_again():
    log = GrowingLog()
    sent = [batch(sequence, base_offset=sequence) for sequence in range(8)]
    for one in sent:
        log.add(one)
    again = ProducerStateManager(10)
    again.load(log.producers.snapshot(8, 1))
    for one in sent[1:]:
        again.replay(one, ANY_TIME)
    assert again.check(batch(8)) is None
    assert [kept.base_offset for _, producer in again for kept in producer.batches] == [
        3,
        4,
        5,
        6,
        7,
    ]


def test_snapshot_holds_durable_batches_and_their_end():
    log = GrowingLog()
    log.add(batch(0, 2))
    log.add(batch(2), durable=False)
    again = ProducerStateManager(10)
    assert again.load(log.producers.snapshot(2)) == 2
    assert again.check(batch(0, 2)) == BatchMetadata(0, 0, 1, 0, 1)
    assert again.check(batch(2)) is None


def test_snapshot_keeps_order_of_last_use():
    log = GrowingLog()
    for producer in (3, 1, 2, 3):
        log.add(batch(1 if producer == 3 and log.end else 0, producer=producer))
    again = ProducerStateManager(3)
    again.load(log.producers.snapshot(log.end))
    again.append(batch(0, producer=9), 4, -1, 4, ANY_TIME)
    assert [producer_id for producer_id, _ in again] == [2, 3, 9]


def test_lowered_limit_applies_to_loaded_snapshot():
    log = GrowingLog()
    for producer in range(20):
        log.add(batch(0, producer=producer))
    again = ProducerStateManager(5)
    again.load(log.producers.snapshot(log.end))
    assert [producer_id for producer_id, _ in again] == [15, 16, 17, 18, 19]


@given(st.binary(max_size=50))
def test_malformed_snapshot_is_refused(raw):
    with pytest.raises(msgspec.MsgspecError):
        ProducerStateManager(10).load(b"\xc1" + raw)


def test_replayed_batch_keeps_log_append_time():
    producers = ProducerStateManager(10)
    producers.replay(batch(0, base_offset=5, append_time=777), ANY_TIME)
    producers.replay(batch(0, producer=8, base_offset=6), ANY_TIME)
    assert [producers.check(batch(0, producer=producer)) for producer in (7, 8)] == [
        BatchMetadata(0, 0, 0, 5, 5, 777),
        BatchMetadata(0, 0, 0, 6, 6, -1),
    ]


def test_replayed_batch_without_producer_id_is_ignored():
    producers = ProducerStateManager(10)
    producers.replay(batch(-1, producer=-1, epoch=-1), ANY_TIME)
    assert len(producers) == 0


class RecoveryMachine(RuleBasedStateMachine):
    """Model test: a snapshot and the log after it recover the state of all durable batches."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = ProducerStateManager(1000)
        self.log: list[BatchHeader] = []
        self.in_flight: list[BatchHeader] = []
        self.saved = ProducerStateManager(1000).snapshot(0)

    @property
    def durable_end(self) -> int:
        return self.log[-1].base_offset + self.log[-1].count if self.log else 0

    @rule(
        producer=st.integers(1, 3),
        epoch=st.integers(0, 2),
        sequence=st.sampled_from([None, 0, 1, 5, LARGEST]),
        count=st.integers(1, 3),
    )
    def send(self, producer: int, epoch: int, sequence: int | None, count: int) -> None:
        """Send a batch; if `sequence` is None, the expected one."""
        if sequence is None:
            known = dict(self.producers).get(producer)
            last = known.batches[-1] if known else None
            sequence = (
                (last.last_sequence + 1) % (LARGEST + 1) if last and last.epoch == epoch else 0
            )
        sent = batch(sequence, count, producer=producer, epoch=epoch)
        try:
            twin = self.producers.check(sent)
        except KafkaError:
            return
        if twin is None:
            last_in_flight = self.in_flight[-1] if self.in_flight else None
            end = (
                last_in_flight.base_offset + last_in_flight.count
                if last_in_flight
                else self.durable_end
            )
            sent = msgspec.structs.replace(sent, base_offset=end)
            self.producers.append(sent, end, -1, self.durable_end, ANY_TIME)
            self.in_flight.append(sent)

    @precondition(lambda self: self.in_flight)
    @rule()
    def land(self) -> None:
        self.log.append(self.in_flight.pop(0))

    @rule()
    def lose(self) -> None:
        self.in_flight.clear()
        self.producers.rewind(self.durable_end)

    @rule()
    def fail(self) -> None:
        failed, self.in_flight = self.in_flight, []
        for one in failed:
            self.producers.remove_failed(one.producer_id, one.base_offset)

    @rule(overlap=st.integers(0, 8))
    def save(self, overlap: int) -> None:
        """Take a snapshot; the log is replayed from some batches before its end."""
        replay_from = (
            self.log[-overlap].base_offset if 0 < overlap <= len(self.log) else self.durable_end
        )
        self.saved = self.producers.snapshot(self.durable_end, replay_from)

    @invariant()
    def a_crash_forgets_nothing_that_is_durable(self) -> None:
        again = ProducerStateManager(1000)
        begin = again.load(self.saved)
        for stored in self.log:
            if stored.base_offset >= begin:
                again.replay(stored, ANY_TIME)
        recovered = dict(again)
        for producer_id, producer in self.producers:
            durable = [
                sent for sent in producer.batches if 0 <= sent.last_offset < self.durable_end
            ]
            if durable:
                last = [sent for sent in recovered[producer_id].batches if sent.last_offset >= 0]
                assert last[-len(durable[-5:]) :] == durable[-5:]

    @invariant()
    def the_last_five_durable_batches_of_a_producer_are_known_unless_a_failure_cut_them(
        self,
    ) -> None:
        for producer_id, producer in self.producers:
            mine = [stored for stored in self.log if stored.producer_id == producer_id]
            if mine:
                assert producer.batches[-1].last_offset >= mine[-1].base_offset + mine[-1].count - 1

    @invariant()
    def memory_is_bounded(self) -> None:
        for _, producer in self.producers:
            assert len(producer.batches) <= 5 + len(self.in_flight) + 1


RecoveryMachine.TestCase.settings = settings(
    max_examples=scaled(30), stateful_step_count=40, deadline=None
)
test_recovery = RecoveryMachine.TestCase
