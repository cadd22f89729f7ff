"""Reopening of fenced partitions: no duplicates, no endless waits, no busy loops."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from gateway.partitions.partition import AppendResult, Partition
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import StorageFailed
from tests.fakes.broker import BrokerEnvironment, Started, ended, open_environment
from tests.fakes.connection import events
from tests.gateway.handlers.fetch_requests import from_offset, request, rows, start_fetch
from tests.records.record_sets import batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
PRODUCER = 7


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders")
    return env


def sending(partition: Partition, sequence: int = -1, count: int = 1) -> Started:
    """Start appending a batch; with a sequence, from an idempotent producer."""
    records = batch(count) if sequence < 0 else batch(count, producer=(PRODUCER, 0, sequence))
    return Started(partition.append_batch(records, check_batch(records, 11), 0))


def opening(env: BrokerEnvironment) -> Started:
    return Started(env.broker.topics.partition("orders", 0))


def code(started: Started) -> ErrorCode:
    assert isinstance(started.failure, KafkaError)
    return started.failure.code


def fenced_in_flight(env: BrokerEnvironment, *sequences: int) -> list[Started]:
    """Appends of an idempotent producer that another writer fenced."""
    partition = env.partition()
    env.store.hold()
    under_way = [sending(partition, sequence) for sequence in sequences]
    env.store.fence("orders")
    env.store.release()
    return under_way


def test_fenced_append_fails_and_next_append_uses_new_log(
    env,
):
    first = env.partition()
    assert [code(one) for one in fenced_in_flight(env, 0)] == [NOT_LEADER]
    again = env.partition()
    assert again is not first
    assert sending(again, 0).result == AppendResult(0, -1)
    assert again.log.leader_epoch == first.log.leader_epoch


def test_fencing_is_logged_once_with_its_reason(env, caplog):
    fenced_in_flight(env, 0, 1)
    ((event, fields),) = events(caplog)
    assert event == "partition fenced, the next request reopens it"
    assert (fields["topic"], fields["partition"]) == ("orders", 0)
    assert "writer" in fields["reason"]


def test_retry_of_stored_fenced_append_is_a_duplicate(env):
    env.store.stores_fenced = True
    assert [code(one) for one in fenced_in_flight(env, 0, 1)] == [NOT_LEADER, NOT_LEADER]
    again = env.partition()
    assert [sending(again, 0).result, sending(again, 1).result] == [
        AppendResult(0, -1),
        AppendResult(1, -1),
    ]
    assert again.log.end_offset == 2
    assert sending(again, 2).result == AppendResult(2, -1)


def test_batch_after_fenced_append_is_out_of_order(env):
    fenced_in_flight(env, 0, 1)
    again = env.partition()
    with pytest.raises(KafkaError) as refused:
        sending(again, 2)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [sending(again, sequence).result.base_offset for sequence in (0, 1, 2)] == [0, 1, 2]


def test_reopened_log_is_replayed_from_known_state(env):
    partition = env.partition()
    sending(partition, 0)
    env.store.fence("orders")
    asked: list[int] = []
    assert partition.is_closed
    rows_read = env.store.medium.logs["orders", 0].entries
    again = env.partition()
    asked.append(again.unsaved_bytes)
    assert (asked, len(rows_read)) == ([0], 1)
    assert sending(again, 0).result == AppendResult(0, -1)


def test_snapshot_beyond_log_end_is_truncated(env):
    partition = env.partition()
    sending(partition, 0)
    sending(partition, 1)
    ended(env.broker.topics.save_all())
    ended(env.store.close())
    rows_left = env.store.medium.logs["orders", 0]
    del rows_left.entries[1:]
    rows_left.end_offset = 1
    again = open_environment(env.store.medium).partition()
    assert sending(again, 1).result == AppendResult(1, -1)


def test_fenced_read_discards_partition(env):
    partition = env.partition()
    env.store.fence("orders")
    assert code(Started(partition.read(0, 100))) is NOT_LEADER
    assert env.partition() is not partition


def test_waiting_consumer_reads_from_reopened_log(env):
    waiting = start_fetch(env, request(12, [from_offset(0)], max_wait_ms=500))
    env.store.stores_fenced = True
    fenced_in_flight(env, 0)
    assert rows(waiting.result)["orders", 0].error_code == 0
    assert (
        len(rows(start_fetch(env, request(12, [from_offset(0)])).result)["orders", 0].records) == 1
    )


def test_open_timeout_fails_request_but_opening_continues(env):
    env.store.slow_logs = Deferred()
    first, second = opening(env), opening(env)
    env.clock.advance(4.9)
    assert not first.is_done
    env.clock.advance(0.1)
    assert (code(first), code(second)) == (NOT_LEADER, NOT_LEADER)
    # A later request does not wait for the full timeout.
    assert code(opening(env)) is NOT_LEADER
    env.store.slow_logs.callback(None)
    assert env.store.logs_asked == 1
    assert opening(env).result.index == 0


def opening_attempts(env: BrokerEnvironment, seconds: float) -> int:
    """Count the openings of a log in this time, for a client that retries every 10 ms."""
    before = env.store.logs_asked
    for _ in range(round(seconds * 100)):
        opening(env)
        env.clock.advance(0.01)
    return env.store.logs_asked - before


def test_failed_opens_back_off_and_return_their_error(env):
    env.store.refuse_logs = StorageFailed("the broker is gone")
    assert code(opening(env)) is ErrorCode.KAFKA_STORAGE_ERROR
    # Immediately, after 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 s, and then every five seconds.
    assert opening_attempts(env, 10) == 7
    assert opening_attempts(env, 10) == 2
    assert code(opening(env)) is ErrorCode.KAFKA_STORAGE_ERROR
    env.store.refuse_logs = None
    env.clock.advance(5)
    assert opening(env).result.index == 0


def fence_repeatedly(env: BrokerEnvironment, seconds: float) -> None:
    """A client writes every 10 ms, and another gateway fences the partition each time."""
    for _ in range(round(seconds * 100)):
        started = opening(env)
        if started.failure is None:
            env.store.fence("orders")
            sending(started.result)
        env.clock.advance(0.01)


def test_gateways_fencing_each_other_back_off(env):
    fence_repeatedly(env, 20)
    assert env.store.logs_asked < 15


def test_partition_open_for_a_while_is_reopened_immediately(env):
    fence_repeatedly(env, 5)
    env.clock.advance(5)
    env.partition()
    env.clock.advance(5)
    env.store.fence("orders")
    sending(env.broker.topics.get_open_partition("orders", 0))
    assert opening(env).failure is None


def test_prefetched_partitions_open_concurrently_and_once(env):
    env.topic("bills", 3)
    env.store.slow_logs = Deferred()
    for index in (0, 1, 2, 0, 3, -1):
        env.broker.topics.prefetch("bills", index)
    env.broker.topics.prefetch("nothing", 0)
    assert env.store.logs_asked == 3
    env.store.slow_logs.callback(None)
    assert [env.broker.topics.get_open_partition("bills", index).index for index in range(3)] == [
        0,
        1,
        2,
    ]


def test_closed_log_is_discarded(env):
    partition: Any = env.partition()
    env.store._logs.pop(("orders", 0)).shut()
    assert partition.is_closed
    assert env.partition() is not partition


def test_unexpected_store_error_backs_off(env):
    env.store.refuse_logs = TypeError("a bug")
    assert isinstance(opening(env).failure, TypeError)
    assert opening_attempts(env, 10) == 7
    assert len(env.bugs) == 8
    assert code(opening(env)) is ErrorCode.KAFKA_STORAGE_ERROR
