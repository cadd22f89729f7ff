"""Partitions whose log is finished are opened anew: nothing is stored twice, nobody waits for ever, and nothing spins."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from gateway.partitions.partition import AppendResult, Partition
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.registry import Topics
from storage.log import StorageFailed
from tests.fakes.broker import BrokerEnvironment, Started, ended, open_environment
from tests.gateway.handlers.fetch_requests import from_offset, request, rows, start_fetch
from tests.gateway.sets import batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
PRODUCER = 7


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders")
    return env


def sending(partition: Partition, sequence: int = -1, count: int = 1) -> Started:
    """A batch on its way, of an idempotent producer where it has a sequence."""
    records = batch(count) if sequence < 0 else batch(count, producer=(PRODUCER, 0, sequence))
    return Started(partition.append_batch(records, check_batch(records, 11), 0))


def opening(env: BrokerEnvironment) -> Started:
    return Started(env.broker.topics.partition("orders", 0))


def code(started: Started) -> ErrorCode:
    assert isinstance(started.failure, KafkaError)
    return started.failure.code


def fenced_in_flight(env: BrokerEnvironment, *sequences: int) -> list[Started]:
    """Appends of an idempotent producer that another writer came between."""
    partition = env.partition()
    env.store.hold()
    under_way = [sending(partition, sequence) for sequence in sequences]
    env.store.fence("orders")
    env.store.release()
    return under_way


def test_an_append_that_is_fenced_says_that_there_is_another_leader_and_the_next_one_goes_to_a_new_log(
    env,
):
    first = env.partition()
    assert [code(one) for one in fenced_in_flight(env, 0)] == [NOT_LEADER]
    again = env.partition()
    assert again is not first
    assert sending(again, 0).result == AppendResult(0, -1)
    assert again.log.leader_epoch == 1


def test_a_retry_of_a_fenced_append_that_was_stored_is_not_stored_twice(env):
    env.store.stores_fenced = True
    assert [code(one) for one in fenced_in_flight(env, 0, 1)] == [NOT_LEADER, NOT_LEADER]
    again = env.partition()
    assert [sending(again, 0).result, sending(again, 1).result] == [
        AppendResult(0, -1),
        AppendResult(1, -1),
    ]
    assert again.log.end_offset == 2
    assert sending(again, 2).result == AppendResult(2, -1)


def test_after_a_fenced_append_a_later_one_of_the_same_producer_does_not_take_its_place(env):
    fenced_in_flight(env, 0, 1)
    again = env.partition()
    with pytest.raises(KafkaError) as refused:
        sending(again, 2)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [sending(again, sequence).result.base_offset for sequence in (0, 1, 2)] == [0, 1, 2]


def test_a_log_that_is_opened_anew_is_read_from_where_it_was_known(env):
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


def test_a_snapshot_that_claims_more_than_the_log_has_is_cut_to_it(env):
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


def test_a_read_that_is_fenced_gives_the_partition_up(env):
    partition = env.partition()
    env.store.fence("orders")
    assert code(Started(partition.read(0, 100))) is NOT_LEADER
    assert env.partition() is not partition


def test_a_waiting_consumer_is_woken_and_answered_from_the_new_log(env):
    waiting = start_fetch(env, request(12, [from_offset(0)], max_wait_ms=500))
    env.store.stores_fenced = True
    fenced_in_flight(env, 0)
    assert rows(waiting.result)["orders", 0].error_code == 0
    assert (
        len(rows(start_fetch(env, request(12, [from_offset(0)])).result)["orders", 0].records) == 1
    )


def test_the_last_epoch_is_told_until_there_is_a_new_one_and_what_was_kept_of_it_is_not_told_again(
    env,
):
    topics: Topics = env.broker.topics
    live = topics.require("orders")
    env.partition()
    version = topics.opener.version
    env.store.fence("orders")
    assert (topics.opener.leader_epoch(live, 0), topics.opener.version) == (0, version)
    assert live.partitions[0].is_closed
    env.partition()
    assert (topics.opener.leader_epoch(live, 0), topics.opener.version) == (1, version + 1)


def test_of_a_medium_that_others_may_have_led_the_epoch_is_unknown_until_a_partition_is_open(
    env, monkeypatch
):
    monkeypatch.setattr(type(env.store), "retains_by_itself", True)
    other = open_environment()
    live = other.topic("orders")
    opener = other.broker.topics.opener
    assert opener.leader_epoch(live, 0) == -1
    before = opener.version
    other.partition()
    assert (opener.leader_epoch(live, 0), opener.version) == (0, before + 1), (
        "librdkafka says 0 for what it does not know, and must hear better"
    )


def test_an_opening_that_takes_too_long_is_not_waited_for_and_goes_on(env):
    env.store.slow_logs = Deferred()
    first, second = opening(env), opening(env)
    env.clock.advance(4.9)
    assert not first.is_done
    env.clock.advance(0.1)
    assert (code(first), code(second)) == (NOT_LEADER, NOT_LEADER)
    # Who comes later does not wait for as long again.
    assert code(opening(env)) is NOT_LEADER
    env.store.slow_logs.callback(None)
    assert env.store.logs_asked == 1
    assert opening(env).result.index == 0


def tries(env: BrokerEnvironment, seconds: float) -> int:
    """How often the store is asked for a log within that time by a client that asks every ten milliseconds."""
    before = env.store.logs_asked
    for _ in range(round(seconds * 100)):
        opening(env)
        env.clock.advance(0.01)
    return env.store.logs_asked - before


def test_a_partition_that_cannot_be_opened_is_tried_ever_more_rarely_and_clients_hear_why(env):
    env.store.refuse_logs = StorageFailed("the broker is gone")
    assert code(opening(env)) is ErrorCode.KAFKA_STORAGE_ERROR
    # At once, after 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 s, and then every five.
    assert tries(env, 10) == 7
    assert tries(env, 10) == 2
    assert code(opening(env)) is ErrorCode.KAFKA_STORAGE_ERROR
    env.store.refuse_logs = None
    env.clock.advance(5)
    assert opening(env).result.index == 0


def lose_again_and_again(env: BrokerEnvironment, seconds: float) -> None:
    """A client writes every ten milliseconds, and somebody else takes the partition each time."""
    for _ in range(round(seconds * 100)):
        started = opening(env)
        if started.failure is None:
            env.store.fence("orders")
            sending(started.result)
        env.clock.advance(0.01)


def test_two_that_take_a_partition_from_each_other_do_so_ever_more_rarely(env):
    lose_again_and_again(env, 20)
    assert env.store.logs_asked < 15


def test_a_partition_that_was_led_for_a_while_is_taken_back_at_once(env):
    lose_again_and_again(env, 5)
    env.clock.advance(5)
    env.partition()
    env.clock.advance(5)
    env.store.fence("orders")
    sending(env.broker.topics.get_open_partition("orders", 0))
    assert opening(env).failure is None


def test_partitions_that_will_be_asked_for_open_at_the_same_time_and_once(env):
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


def test_a_log_that_was_closed_is_given_up_as_well(env):
    partition: Any = env.partition()
    env.store._logs.pop(("orders", 0)).shut()
    assert partition.is_closed
    assert env.partition() is not partition


def test_a_bug_of_the_store_does_not_fill_the_log(env):
    env.store.refuse_logs = TypeError("a bug")
    assert isinstance(opening(env).failure, TypeError)
    assert tries(env, 10) == 7
    assert len(env.bugs) == 8
    assert code(opening(env)) is ErrorCode.KAFKA_STORAGE_ERROR
