"""The registry of topics: what is made, found, changed and deleted while others use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.partitions.partition import Partition
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.topic_names import check_name
from storage.log import StorageFailed, Topic
from tests.fakes.broker import House, Started, ended, open_house
from tests.gateway.sets import batch


@pytest.fixture
def house() -> House:
    return open_house()


def refusal(work: Any) -> ErrorCode:
    failure = Started(work).failure
    assert isinstance(failure, KafkaError)
    return failure.code


def reopened(house: House, **settings: Any) -> House:
    """Another broker on the same medium, as after a crash."""
    ended(house.store.close())
    return open_house(house.store.medium, **settings)


def send(partition: Partition, records: memoryview) -> Any:
    return ended(partition.append_batch(records, check_batch(records, 11), 0))


def widened(partitions: int) -> Callable[[Topic], Topic]:
    return lambda topic: replace(topic, partitions=partitions)


def configured(name: str, value: str) -> Callable[[Topic], Topic]:
    return lambda topic: replace(topic, configs={**topic.configs, name: value})


def test_a_topic_is_found_by_name_and_by_id(house):
    live = house.topic("orders", 3)
    topics = house.broker.topics
    assert topics.get("orders") is topics.get(live.topic.topic_id) is live
    assert topics.get("other") is topics.get(bytes(16)) is None
    assert (list(topics), len(topics), live.topic.partitions) == ([live], 1, 3)


def test_what_is_missing_has_its_own_code_for_names_and_for_ids(house):
    topics = house.broker.topics
    with pytest.raises(KafkaError) as by_name:
        topics.require("other")
    with pytest.raises(KafkaError) as by_id:
        topics.require(bytes(16))
    assert (by_name.value.code, by_id.value.code) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


def test_topics_are_there_after_a_restart(house):
    live = house.topic("orders", 2, retention_ms="1000")
    again = reopened(house).broker.topics.require("orders")
    assert again.topic == live.topic
    assert again.config.retention_ms == 1000


def test_a_name_that_is_taken_is_refused(house):
    house.topic("orders")
    assert refusal(house.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_name_that_is_being_taken_is_refused(house):
    house.store.hold()
    first = Started(house.broker.topics.create("orders", 1, {}))
    assert refusal(house.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS
    house.store.release()
    assert first.result.name == "orders"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n"])
def test_a_name_that_kafka_refuses_is_refused(house, name):
    assert refusal(house.broker.topics.create(name, 1, {})) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_that_collides_in_metrics_is_refused(house):
    house.topic("a.b")
    assert refusal(house.broker.topics.create("a_b", 1, {})) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249])
def test_a_name_that_kafka_takes_is_taken(name):
    check_name(name)


def test_asking_for_a_missing_topic_makes_it_once_for_all_who_ask(house):
    house.store.hold()
    asked = [Started(house.broker.topics.find_or_create("orders")) for _ in range(3)]
    house.store.release()
    assert len({id(one.result) for one in asked}) == 1
    assert ended(house.broker.topics.find_or_create("orders")) is asked[0].result


def test_a_made_topic_has_the_settings_number_of_partitions():
    house = open_house(num_partitions=7)
    assert ended(house.broker.topics.find_or_create("orders")).topic.partitions == 7


def test_a_client_that_goes_away_while_it_makes_a_topic_leaves_it_made(house):
    house.store.hold()
    gone = Started(house.broker.topics.find_or_create("orders"))
    other = Started(house.broker.topics.find_or_create("orders"))
    gone.cancel()
    house.store.release()
    assert other.result is house.broker.topics.require("orders")


def test_a_topic_that_cannot_be_made_is_told_to_all_who_wait_and_may_be_tried_again(house):
    house.store.hold()
    asked = [Started(house.broker.topics.find_or_create("orders")) for _ in range(2)]
    house.store.refuse_writes = True
    house.store.release()
    assert [one.failure.code for one in asked] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    house.store.refuse_writes = False
    assert ended(house.broker.topics.find_or_create("orders")).name == "orders"


def test_a_partition_is_opened_once_for_all_who_ask(house):
    house.topic("orders", 2)
    first = house.partition("orders", 1)
    assert house.partition("orders", 1) is first
    assert house.broker.topics.opened("orders", 1) is first
    assert house.broker.topics.opened("orders", 0) is None


@pytest.mark.parametrize("index", [-1, 2, 1 << 31])
def test_a_partition_that_is_not_there_is_unknown(house, index):
    house.topic("orders", 2)
    assert (
        refusal(house.broker.topics.partition("orders", index))
        is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert house.broker.topics.opened("orders", index) is None


class SlowLogs:
    """Keeps openings waiting, as a disk does."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        real, threads = house.store.log, house.threads

        async def log(topic: str, partition: int) -> Any:
            await threads.run(lambda: None)
            return await real(topic, partition)

        monkeypatch.setattr(house.store, "log", log)
        threads.hold()


def test_those_who_wait_for_an_opening_get_the_same_partition_in_their_order(house, monkeypatch):
    house.topic("orders")
    SlowLogs(house, monkeypatch)
    order: list[int] = []

    async def ask(n: int) -> Partition:
        partition = await house.broker.topics.partition("orders", 0)
        order.append(n)
        return partition

    asked = [Started(ask(n)) for n in range(4)]
    asked[0].cancel()
    house.threads.release()
    assert order == [1, 2, 3]
    assert len({id(one.result) for one in asked[1:]}) == 1


def test_a_topic_deleted_while_a_partition_opens_is_unknown(house, monkeypatch):
    live = house.topic("orders")
    SlowLogs(house, monkeypatch)
    asked = Started(house.broker.topics.partition("orders", 0))
    ended(house.broker.topics.delete(live))
    house.threads.release()
    assert asked.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_made_anew_while_a_partition_of_the_old_one_opens_is_not_taken_for_it(
    house, monkeypatch
):
    old = house.topic("orders")
    SlowLogs(house, monkeypatch)
    asked = Started(house.broker.topics.partition(old.topic.topic_id, 0))
    ended(house.broker.topics.delete(old))
    new = house.topic("orders")
    house.threads.release()
    assert asked.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (old.partitions, new.partitions) == ({}, {})
    assert not house.bugs


def test_an_opening_that_fails_is_told_and_may_be_tried_again(house, monkeypatch):
    house.topic("orders")
    real = house.store.log

    async def failing(topic: str, partition: int) -> Any:
        raise StorageFailed("the test said so")

    monkeypatch.setattr(house.store, "log", failing)
    assert refusal(house.broker.topics.partition("orders", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.setattr(house.store, "log", real)
    assert house.partition().log.end_offset == 0


def test_a_deleted_topic_is_gone_and_its_name_is_free(house):
    old = house.topic("orders")
    send(house.partition(), batch(3))
    ended(house.broker.topics.delete(old))
    assert house.broker.topics.get("orders") is house.broker.topics.get(old.topic.topic_id) is None
    new = house.topic("orders")
    assert new.topic.topic_id != old.topic.topic_id
    assert house.partition().log.end_offset == 0


def test_a_client_that_goes_away_while_it_deletes_leaves_the_topic_deleted(house):
    live = house.topic("orders")
    house.store.hold()
    Started(house.broker.topics.delete(live)).cancel()
    house.store.release()
    assert house.broker.topics.get("orders") is None
    assert house.topic("orders") is not live


def test_of_two_who_delete_a_topic_one_finds_it_gone(house):
    live = house.topic("orders")
    house.store.hold()
    both = [Started(house.broker.topics.delete(live)) for _ in range(2)]
    house.store.release()
    assert both[0].result is None
    assert both[1].failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deleting_what_was_deleted_does_not_touch_the_topic_made_since(house):
    old = house.topic("orders")
    ended(house.broker.topics.delete(old))
    new = house.topic("orders")
    assert refusal(house.broker.topics.delete(old)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert house.broker.topics.get("orders") is new


def test_a_topic_that_cannot_be_deleted_stays(house):
    live = house.topic("orders")
    house.store.refuse_writes = True
    assert refusal(house.broker.topics.delete(live)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert house.broker.topics.get("orders") is live


def test_configs_reach_open_partitions_at_once(house):
    live = house.topic("orders")
    partition = house.partition()
    ended(house.broker.topics.alter(live, configured("max.message.bytes", "77")))
    assert partition.config.max_message_bytes == live.config.max_message_bytes == 77
    assert reopened(house).broker.topics.require("orders").config.max_message_bytes == 77


def test_more_partitions_can_be_opened_and_the_configs_stay(house):
    live = house.topic("orders", 1, retention_ms="5")
    ended(house.broker.topics.alter(live, widened(3)))
    assert house.partition("orders", 2).index == 2
    assert dict(live.topic.configs) == {"retention.ms": "5"}


def test_changes_at_the_same_time_do_not_undo_each_other(house):
    live = house.topic("orders")
    house.store.hold()
    both = [
        Started(house.broker.topics.alter(live, widened(3))),
        Started(house.broker.topics.alter(live, configured("retention.ms", "5"))),
    ]
    house.store.release()
    assert [one.result for one in both] == [None, None]
    assert (live.topic.partitions, dict(live.topic.configs)) == (3, {"retention.ms": "5"})


def test_a_client_that_goes_away_while_it_changes_a_topic_leaves_it_changed(house):
    live = house.topic("orders")
    house.store.hold()
    Started(house.broker.topics.alter(live, widened(3))).cancel()
    house.store.release()
    assert live.topic.partitions == 3


def test_what_a_change_refuses_is_told_and_changes_nothing(house):
    live = house.topic("orders", 3)

    def refuse(topic: Topic) -> Topic:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS)

    assert refusal(house.broker.topics.alter(live, refuse)) is ErrorCode.INVALID_PARTITIONS
    ended(house.broker.topics.alter(live, widened(4)))
    assert live.topic.partitions == 4


def test_a_change_sees_what_the_one_before_it_left(house):
    live = house.topic("orders")
    house.store.hold()
    both = [
        Started(
            house.broker.topics.alter(
                live, lambda topic: replace(topic, partitions=topic.partitions + 1)
            )
        )
        for _ in range(2)
    ]
    house.store.release()
    assert all(one.is_done for one in both)
    assert live.topic.partitions == 3


def test_changing_a_topic_that_was_deleted_is_refused(house):
    live = house.topic("orders")
    ended(house.broker.topics.delete(live))
    assert (
        refusal(house.broker.topics.alter(live, widened(2))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_a_change_that_cannot_be_stored_does_not_stand_in_the_way_of_the_next(house):
    live = house.topic("orders")
    house.store.refuse_writes = True
    assert refusal(house.broker.topics.alter(live, widened(2))) is ErrorCode.KAFKA_STORAGE_ERROR
    house.store.refuse_writes = False
    ended(house.broker.topics.alter(live, widened(4)))
    assert live.topic.partitions == 4


def test_every_change_moves_the_version(house):
    topics = house.broker.topics
    versions = [topics.version]
    live = house.topic("orders")
    versions.append(topics.version)
    ended(topics.alter(live, widened(2)))
    versions.append(topics.version)
    ended(topics.delete(live))
    versions.append(topics.version)
    assert versions == sorted(set(versions))
