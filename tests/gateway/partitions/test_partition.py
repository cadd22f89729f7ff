"""A partition: offsets, stamps, retries and failures of appends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compat.message_sets import check_message_set
from gateway.partitions.partition import Partition
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from records import read_header
from tests.examples import scaled
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment
from tests.records.peers import read_with_kafka_python
from tests.records.record_sets import TIME, batch, old_set

LATER = NOW + 5


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic()
    return env


@pytest.fixture
def partition(env: BrokerEnvironment) -> Partition:
    return env.partition()


def send(partition: Partition, records: memoryview, now: int = LATER) -> Started:
    """Start appending a v2 batch."""
    return Started(partition.append_batch(records, check_batch(records, 11), now))


def send_old(partition: Partition, records: memoryview, now: int = LATER) -> Started:
    return Started(
        partition.append_message_set(
            records, check_message_set(records, max_decompressed_bytes=1 << 20), now
        )
    )


def stored(partition: Partition) -> list[Any]:
    entries = ended(partition.read(partition.log.start_offset, 1 << 30))
    return [found for entry in entries for found in read_with_kafka_python(bytes(entry.payload))]


def test_offsets_continue_across_formats(partition):
    results = [
        send(partition, batch(3)).result,
        send_old(partition, old_set(2, magic=0)).result,
        send_old(partition, old_set(4, magic=1, codec=1)).result,
        send_old(partition, old_set(2, magic=0, codec=1)).result,
        send(partition, batch(1)).result,
    ]
    assert [result.base_offset for result in results] == [0, 3, 5, 9, 11]
    assert [found[0] for found in stored(partition)] == list(range(12))


def test_offsets_follow_order_of_calls(env, partition):
    env.store.hold()
    waiting = [
        send(partition, batch(2)),
        send_old(partition, old_set(3, magic=1)),
        send(partition, batch(1)),
    ]
    assert not any(one.is_done for one in waiting)
    env.store.release()
    assert [one.result.base_offset for one in waiting] == [0, 2, 5]


def test_append_returns_when_durable(env, partition):
    env.store.hold()
    waiting = send(partition, batch(1))
    assert (waiting.is_done, partition.log.end_offset) == (False, 0)
    env.store.release()
    assert (waiting.result.base_offset, partition.log.end_offset) == (0, 1)


def test_create_time_keeps_producer_timestamps(partition):
    assert send(partition, batch(2)).result.log_append_time == -1
    assert {(found[1], found[2]) for found in stored(partition)} == {(TIME, 0)}


def test_log_append_time_is_returned_and_stored(env):
    env.topic("stamped", message_timestamp_type="LogAppendTime")
    partition = env.partition("stamped")
    answers = [
        send(partition, batch(2)).result,
        send_old(partition, old_set(2, magic=1, codec=1)).result,
        send_old(partition, old_set(1, magic=1)).result,
    ]
    assert [answer.log_append_time for answer in answers] == [LATER] * 3
    assert {(found[1], found[2]) for found in stored(partition)} == {(LATER, 1)}


def test_format_0_has_no_log_append_time(env):
    env.topic("stamped", message_timestamp_type="LogAppendTime")
    assert send_old(env.partition("stamped"), old_set(2, magic=0)).result.log_append_time == -1


@pytest.mark.parametrize(
    ("records", "expected"), [(old_set(2, magic=1), TIME), (old_set(2, magic=0), LATER)]
)
def test_entry_timestamp_is_max_timestamp_or_arrival_time(partition, records, expected):
    send_old(partition, records)
    assert [entry.max_timestamp for entry in ended(partition.read(0, 1000))] == [expected]


def test_empty_message_set_is_accepted_and_appends_nothing(partition):
    assert send_old(partition, memoryview(bytearray())).result.base_offset == -1
    assert partition.log.next_offset == 0


def test_retry_returns_first_result_and_is_not_stored(partition):
    first = send(partition, batch(3, producer=(7, 0, 0))).result
    send(partition, batch(3, producer=(7, 0, 3)))
    assert send(partition, batch(3, producer=(7, 0, 0))).result == first
    assert partition.log.end_offset == 6


def test_retry_returns_log_append_time_of_first_attempt(env):
    env.topic("stamped", message_timestamp_type="LogAppendTime")
    partition = env.partition("stamped")
    send(partition, batch(1, producer=(7, 0, 0)), LATER)
    assert send(partition, batch(1, producer=(7, 0, 0)), LATER + 99).result.log_append_time == LATER


def test_retry_of_in_flight_batch_waits_for_it(env, partition):
    env.store.hold()
    waiting = [send(partition, batch(3, producer=(7, 0, 0))) for _ in range(3)]
    assert not any(one.is_done for one in waiting)
    env.store.release()
    assert [one.result.base_offset for one in waiting] == [0, 0, 0]
    assert partition.log.end_offset == 3


def test_retry_of_in_flight_batch_waits_beyond_producer_limit():
    env = open_environment(max_producer_ids_per_partition=1)
    env.topic()
    partition = env.partition()
    env.store.hold()
    waiting = [send(partition, batch(1, producer=(producer, 0, 0))) for producer in (7, 8, 7)]
    env.store.release()
    assert [one.result.base_offset for one in waiting] == [0, 1, 0]


def test_retry_of_failing_batch_fails(env, partition):
    env.store.hold()
    waiting = [send(partition, batch(3, producer=(7, 0, 0))) for _ in range(2)]
    env.store.refuse_writes = True
    env.store.release()
    assert [one.failure.code for one in waiting] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_retry_is_not_answered_by_failed_first_attempt(env, partition):
    """Two copies in one request: both are checked and queued before either of them runs."""
    env.store.refuse_writes = True
    copies = [batch(1, producer=(7, 0, 0)) for _ in range(2)]
    works = [partition.append_batch(records, check_batch(records, 11), LATER) for records in copies]
    assert [Started(work).failure.code for work in works] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_cancelled_waiter_does_not_affect_others(env, partition):
    env.store.hold()
    first, second, third = [send(partition, batch(1, producer=(7, 0, 0))) for _ in range(3)]
    second.cancel()
    env.store.release()
    assert (first.result, third.result.base_offset) == (third.result, 0)


def test_failed_append_fails_later_ones_and_frees_offsets(env, partition):
    send(partition, batch(2, producer=(7, 0, 0)))
    env.store.hold()
    waiting = [
        send(partition, batch(1, producer=(7, 0, 2))),
        send_old(partition, old_set(5, magic=1)),
        send(partition, batch(1, producer=(7, 0, 3))),
    ]
    env.store.refuse_writes = True
    env.store.release()
    assert [one.failure.code for one in waiting] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    env.store.refuse_writes = False
    again = [
        send(partition, batch(1, producer=(7, 0, sequence))).result.base_offset
        for sequence in (2, 3)
    ]
    assert again == [2, 3]


def test_batch_after_failed_batch_is_out_of_order(env, partition):
    env.store.refuse_writes = True
    send(partition, batch(1, producer=(7, 0, 0)))
    env.store.refuse_writes = False
    with pytest.raises(KafkaError) as caught:
        send(partition, batch(1, producer=(7, 0, 1)))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(partition, batch(1, producer=(7, 0, 0))).result.base_offset == 0


def test_batch_sent_after_failure_is_kept(env, partition):
    """A producer may have the next request ready when it receives the failure."""
    env.store.hold()
    answers: list[Started] = []
    records = batch(1, producer=(9, 0, 0))
    first = partition.append_batch(*_checked(batch(1, producer=(7, 0, 0))), LATER)
    second = partition.append_batch(*_checked(batch(1, producer=(8, 0, 0))), LATER)

    async def fail_then_send_another() -> None:
        with pytest.raises(KafkaError):
            await first
        env.store.refuse_writes = False
        answers.append(send(partition, records))

    chain, behind = Started(fail_then_send_another()), Started(second)
    env.store.refuse_writes = True
    env.store.release()
    assert chain.is_done
    assert behind.failure is not None
    retry = send(partition, batch(1, producer=(9, 0, 0)))
    if answers[0].failure is None:
        assert retry.result == answers[0].result
    assert partition.log.end_offset == 1


def _checked(records: memoryview) -> tuple[memoryview, Any]:
    return records, check_batch(records, 11)


def test_unexpected_store_error_fails_waiting_retry(env, partition, monkeypatch):
    env.store.hold()
    monkeypatch.setattr(env.store, "check_medium", lambda: 1 / 0)
    waiting = [send(partition, batch(1, producer=(7, 0, 0))) for _ in range(2)]
    env.store.release()
    assert [type(one.failure) for one in waiting] == [ZeroDivisionError] * 2


def test_append_to_deleted_topic_is_not_leader(env, partition):
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    assert partition.is_closed
    assert send(partition, batch(1)).failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert Started(partition.read(0, 10)).failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_is_closed_is_false_for_open_partition(partition):
    assert not partition.is_closed


def test_unsaved_bytes_counts_stored_bytes(partition):
    records = [batch(3), batch(5)]
    for one in records:
        send(partition, one)
    assert partition.unsaved_bytes == sum(map(len, records))


# Message sets that must be repacked


def large_set(mark: bytes, magic: int = 0) -> memoryview:
    """A compressed set of format 0, so with absolute inner offsets, that unpacks to more than
    `REPACK_IN_THREAD_BYTES`.
    """
    return old_set([(mark, b"." * 10_000) for _ in range(8)], magic=magic, codec=1)


def send_on_thread(env: BrokerEnvironment, partition: Partition, records: memoryview) -> Started:
    checked = check_message_set(records, max_decompressed_bytes=1 << 20)
    return Started(partition.append_message_set(records, checked, LATER, env.threads.run))


def test_large_set_is_packed_on_thread_and_small_one_inline(env, partition):
    assert send_on_thread(env, partition, large_set(b"a")).result.base_offset == 0
    assert env.threads.calls == 1
    assert send_on_thread(env, partition, old_set(3, magic=0, codec=1)).result.base_offset == 8
    assert env.threads.calls == 1
    assert [found[0] for found in stored(partition)] == list(range(11))


def test_large_set_with_relative_offsets_is_not_repacked(env, partition):
    assert send_on_thread(env, partition, large_set(b"a", magic=1)).is_done
    assert env.threads.calls == 0


def test_appends_wait_behind_set_being_packed(env, partition):
    env.threads.hold()
    under_way = [
        send_on_thread(env, partition, large_set(b"a")),
        send(partition, batch(2, producer=(7, 0, 0))),
        send_on_thread(env, partition, large_set(b"b")),
        send_old(partition, old_set(3, magic=1)),
        send(partition, batch(2, producer=(7, 0, 0))),
    ]
    assert not any(one.is_done for one in under_way)
    while env.threads._waiting:
        env.threads.release()
    assert [one.result.base_offset for one in under_way] == [0, 8, 10, 18, 8]
    assert [found[0] for found in stored(partition)] == list(range(21))
    assert send(partition, batch(1)).result.base_offset == 21


def test_set_is_repacked_if_earlier_append_fails(env, partition):
    env.store.hold()
    failing = send(partition, batch(5))
    env.threads.hold()
    packing = send_on_thread(env, partition, large_set(b"a"))
    env.store.refuse_writes = True
    env.store.release()
    env.store.refuse_writes = False
    env.threads.release()
    assert failing.failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert packing.result.base_offset == 0
    assert [found[0] for found in stored(partition)] == list(range(8))


def test_refused_queued_append_does_not_block_others(env, partition):
    send(partition, batch(1, producer=(7, 3, 0)))
    env.threads.hold()
    send_on_thread(env, partition, large_set(b"a"))
    fenced, good = (
        send(partition, batch(1, producer=(7, 2, 0))),
        send(partition, batch(1, producer=(7, 3, 1))),
    )
    env.threads.release()
    assert (fenced.failure.code, good.result.base_offset) == (ErrorCode.INVALID_PRODUCER_EPOCH, 9)


def test_failing_thread_does_not_block_queued_appends(env, partition):
    env.threads.hold()
    records = large_set(b"a")
    checked = check_message_set(records, max_decompressed_bytes=1 << 20)
    broken = Started(
        partition.append_message_set(
            records, checked, LATER, lambda *_: env.threads.run(lambda: 1 // 0)
        )
    )
    good = send(partition, batch(1))
    env.threads.release()
    assert (type(broken.failure), good.result.base_offset) == (ZeroDivisionError, 0)


def test_thousand_appends_can_wait_for_one_set(env, partition):
    env.threads.hold()
    send_on_thread(env, partition, large_set(b"a"))
    waiting = [send(partition, batch(1)) for _ in range(2000)]
    env.threads.release()
    assert [one.result.base_offset for one in waiting] == list(range(8, 2008))


def test_empty_range_is_skipped_from_any_offset_in_it(partition):
    partition.mark_empty(10, 20, 0)
    assert [partition.skip_empty(offset, 0) for offset in (9, 10, 19, 20)] == [9, 20, 20, 20]
    assert partition.skip_empty(10, 1) == 10


def test_empty_range_is_extended_or_replaced(partition):
    partition.mark_empty(10, 20, 1)
    partition.mark_empty(20, 30, 1)
    assert partition.skip_empty(12, 1) == 30
    partition.mark_empty(50, 60, 1)
    assert [partition.skip_empty(offset, 1) for offset in (12, 55)] == [12, 60]


class Producing(RuleBasedStateMachine):
    """Model test: two idempotent producers that retry, a plain one, and a failing store.

    Each record is stored once and in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.env = open_environment()
        self.env.topic()
        self.partition: Partition = self.env.partition()
        # By producer: unacknowledged batches as (sequence, count), and acknowledged ones with their
        # offsets.
        self.unanswered: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
        self.next: dict[int, int] = {1: 0, 2: 2147483640}
        self.answered: dict[tuple[int, int], int] = {}
        self.under_way: list[tuple[int, int, Started]] = []

    @rule(producer=st.integers(1, 2), count=st.integers(1, 4))
    def produce(self, producer: int, count: int) -> None:
        if len(self.unanswered[producer]) < 5:
            sequence = self.next[producer]
            self.next[producer] = (sequence + count) % (1 << 31)
            self.unanswered[producer].append((sequence, count))
            self._send(producer, sequence, count)

    @rule(producer=st.integers(1, 2))
    def retry(self, producer: int) -> None:
        """Resend all unacknowledged batches in order, as clients do."""
        for sequence, count in list(self.unanswered[producer]):
            self._send(producer, sequence, count)

    @rule(magic=st.sampled_from([0, 1]), count=st.integers(1, 3))
    def produce_plainly(self, magic: int, count: int) -> None:
        send_old(self.partition, old_set(count, magic=magic))

    @rule()
    def hold(self) -> None:
        self.env.store.hold()

    @rule(is_full=st.booleans())
    def fill(self, is_full: bool) -> None:
        """Refuse further appends immediately; those in flight continue."""
        self.env.store.is_full = is_full

    @rule(fails=st.booleans())
    def release(self, fails: bool) -> None:
        self.env.store.refuse_writes = fails
        self.env.store.release()
        self.env.store.refuse_writes = False
        self._collect()

    def _send(self, producer: int, sequence: int, count: int) -> None:
        try:
            self.under_way.append(
                (
                    producer,
                    sequence,
                    send(self.partition, batch(count, producer=(producer, 0, sequence))),
                )
            )
        except KafkaError:
            # Only possible if an earlier batch failed and was not resent yet.
            assert self.unanswered[producer][0][0] != sequence
        self._collect()

    def _collect(self) -> None:
        for producer, sequence, started in self.under_way:
            if started.is_done and started.failure is None:
                base = self.answered.setdefault((producer, sequence), started.result.base_offset)
                assert base == started.result.base_offset
                self.unanswered[producer] = [
                    one for one in self.unanswered[producer] if one[0] != sequence
                ]
        self.under_way = [one for one in self.under_way if not one[2].is_done]

    @invariant()
    def every_answered_batch_is_there_once_and_in_the_order_of_its_producer(self) -> None:
        entries = ended(self.partition.read(0, 1 << 30)) if self.partition.log.end_offset else []
        expected = 0
        seen: dict[tuple[int, int], int] = {}
        order: dict[int, list[int]] = {1: [], 2: []}
        for entry in entries:
            assert entry.base_offset == expected
            expected = entry.last_offset + 1
            if entry.payload[16] == 2:
                header = read_header(entry.payload)
                key = (header.producer_id, header.base_sequence)
                assert key not in seen
                seen[key] = entry.base_offset
                order[header.producer_id].append((header.base_sequence + 8) % (1 << 31))
        assert expected == self.partition.log.end_offset
        assert self.answered.items() <= seen.items()
        assert all(sequences == sorted(sequences) for sequences in order.values())


Producing.TestCase.settings = settings(
    max_examples=scaled(40), stateful_step_count=40, deadline=None
)
test_producing = Producing.TestCase
