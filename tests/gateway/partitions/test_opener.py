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
from tests.fakes.broker import House, Started, ended, open_house
from tests.gateway.handlers.consuming import ask, at, request, rows
from tests.gateway.sets import batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
PRODUCER = 7


@pytest.fixture
def house() -> House:
    house = open_house()
    house.topic("orders")
    return house


def sending(partition: Partition, sequence: int = -1, count: int = 1) -> Started:
    """A batch on its way, of an idempotent producer where it has a sequence."""
    records = batch(count) if sequence < 0 else batch(count, producer=(PRODUCER, 0, sequence))
    return Started(partition.append_batch(records, check_batch(records, 11), 0))


def opening(house: House) -> Started:
    return Started(house.broker.topics.partition("orders", 0))


def code(started: Started) -> ErrorCode:
    assert isinstance(started.failure, KafkaError)
    return started.failure.code


def fenced_in_flight(house: House, *sequences: int) -> list[Started]:
    """Appends of an idempotent producer that another writer came between."""
    partition = house.partition()
    house.store.hold()
    under_way = [sending(partition, sequence) for sequence in sequences]
    house.store.fence("orders")
    house.store.release()
    return under_way


def test_an_append_that_is_fenced_says_that_there_is_another_leader_and_the_next_one_goes_to_a_new_log(
    house,
):
    first = house.partition()
    assert [code(one) for one in fenced_in_flight(house, 0)] == [NOT_LEADER]
    again = house.partition()
    assert again is not first
    assert sending(again, 0).result == AppendResult(0, -1)
    assert again.log.leader_epoch == 1


def test_a_retry_of_a_fenced_append_that_was_stored_is_not_stored_twice(house):
    house.store.stores_fenced = True
    assert [code(one) for one in fenced_in_flight(house, 0, 1)] == [NOT_LEADER, NOT_LEADER]
    again = house.partition()
    assert [sending(again, 0).result, sending(again, 1).result] == [
        AppendResult(0, -1),
        AppendResult(1, -1),
    ]
    assert again.log.end_offset == 2
    assert sending(again, 2).result == AppendResult(2, -1)


def test_after_a_fenced_append_a_later_one_of_the_same_producer_does_not_take_its_place(house):
    fenced_in_flight(house, 0, 1)
    again = house.partition()
    with pytest.raises(KafkaError) as refused:
        sending(again, 2)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [sending(again, sequence).result.base_offset for sequence in (0, 1, 2)] == [0, 1, 2]


def test_a_log_that_is_opened_anew_is_read_from_where_it_was_known(house):
    partition = house.partition()
    sending(partition, 0)
    house.store.fence("orders")
    asked: list[int] = []
    assert partition.is_closed
    rows_read = house.store.medium.logs["orders", 0].entries
    again = house.partition()
    asked.append(again.unsaved_bytes)
    assert (asked, len(rows_read)) == ([0], 1)
    assert sending(again, 0).result == AppendResult(0, -1)


def test_a_snapshot_that_claims_more_than_the_log_has_is_cut_to_it(house):
    partition = house.partition()
    sending(partition, 0)
    sending(partition, 1)
    ended(house.broker.topics.save_all())
    ended(house.store.close())
    rows_left = house.store.medium.logs["orders", 0]
    del rows_left.entries[1:]
    rows_left.end_offset = 1
    again = open_house(house.store.medium).partition()
    assert sending(again, 1).result == AppendResult(1, -1)


def test_a_read_that_is_fenced_gives_the_partition_up(house):
    partition = house.partition()
    house.store.fence("orders")
    assert code(Started(partition.read(0, 100))) is NOT_LEADER
    assert house.partition() is not partition


def test_a_waiting_consumer_is_woken_and_answered_from_the_new_log(house):
    waiting = ask(house, request(12, [at(0)], max_wait_ms=500))
    house.store.stores_fenced = True
    fenced_in_flight(house, 0)
    assert rows(waiting.result)["orders", 0].error_code == 0
    assert len(rows(ask(house, request(12, [at(0)])).result)["orders", 0].records) == 1


def test_the_last_epoch_is_told_until_there_is_a_new_one_and_what_was_kept_of_it_is_not_told_again(
    house,
):
    topics: Topics = house.broker.topics
    live = topics.require("orders")
    house.partition()
    version = topics.leading.version
    house.store.fence("orders")
    assert (topics.leading.epoch_of(live, 0), topics.leading.version) == (0, version)
    assert live.partitions[0].is_closed
    house.partition()
    assert (topics.leading.epoch_of(live, 0), topics.leading.version) == (1, version + 1)


def test_of_a_medium_that_others_may_have_led_the_epoch_is_unknown_until_a_partition_is_open(
    house, monkeypatch
):
    monkeypatch.setattr(type(house.store), "retains_by_itself", True)
    other = open_house()
    live = other.topic("orders")
    leading = other.broker.topics.leading
    assert leading.epoch_of(live, 0) == -1
    before = leading.version
    other.partition()
    assert (leading.epoch_of(live, 0), leading.version) == (0, before + 1), (
        "librdkafka says 0 for what it does not know, and must hear better"
    )


def test_an_opening_that_takes_too_long_is_not_waited_for_and_goes_on(house):
    house.store.slow_logs = Deferred()
    first, second = opening(house), opening(house)
    house.clock.advance(4.9)
    assert not first.is_done
    house.clock.advance(0.1)
    assert (code(first), code(second)) == (NOT_LEADER, NOT_LEADER)
    # Who comes later does not wait for as long again.
    assert code(opening(house)) is NOT_LEADER
    house.store.slow_logs.callback(None)
    assert house.store.logs_asked == 1
    assert opening(house).result.index == 0


def tries(house: House, seconds: float) -> int:
    """How often the store is asked for a log within that time by a client that asks every ten milliseconds."""
    before = house.store.logs_asked
    for _ in range(round(seconds * 100)):
        opening(house)
        house.clock.advance(0.01)
    return house.store.logs_asked - before


def test_a_partition_that_cannot_be_opened_is_tried_ever_more_rarely_and_clients_hear_why(house):
    house.store.refuse_logs = StorageFailed("the broker is gone")
    assert code(opening(house)) is ErrorCode.KAFKA_STORAGE_ERROR
    # At once, after 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 s, and then every five.
    assert tries(house, 10) == 7
    assert tries(house, 10) == 2
    assert code(opening(house)) is ErrorCode.KAFKA_STORAGE_ERROR
    house.store.refuse_logs = None
    house.clock.advance(5)
    assert opening(house).result.index == 0


def lose_again_and_again(house: House, seconds: float) -> None:
    """A client writes every ten milliseconds, and somebody else takes the partition each time."""
    for _ in range(round(seconds * 100)):
        started = opening(house)
        if started.failure is None:
            house.store.fence("orders")
            sending(started.result)
        house.clock.advance(0.01)


def test_two_that_take_a_partition_from_each_other_do_so_ever_more_rarely(house):
    lose_again_and_again(house, 20)
    assert house.store.logs_asked < 15


def test_a_partition_that_was_led_for_a_while_is_taken_back_at_once(house):
    lose_again_and_again(house, 5)
    house.clock.advance(5)
    house.partition()
    house.clock.advance(5)
    house.store.fence("orders")
    sending(house.broker.topics.opened("orders", 0))
    assert opening(house).failure is None


def test_partitions_that_will_be_asked_for_open_at_the_same_time_and_once(house):
    house.topic("bills", 3)
    house.store.slow_logs = Deferred()
    for index in (0, 1, 2, 0, 3, -1):
        house.broker.topics.open_soon("bills", index)
    house.broker.topics.open_soon("nothing", 0)
    assert house.store.logs_asked == 3
    house.store.slow_logs.callback(None)
    assert [house.broker.topics.opened("bills", index).index for index in range(3)] == [0, 1, 2]


def test_a_log_that_was_closed_is_given_up_as_well(house):
    partition: Any = house.partition()
    house.store._logs.pop(("orders", 0)).shut()
    assert partition.is_closed
    assert house.partition() is not partition


def test_a_bug_of_the_store_does_not_fill_the_log(house):
    house.store.refuse_logs = TypeError("a bug")
    assert isinstance(opening(house).failure, TypeError)
    assert tries(house, 10) == 7
    assert len(house.bugs) == 8
    assert code(opening(house)) is ErrorCode.KAFKA_STORAGE_ERROR
