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
from tests.fakes.broker import BrokerEnvironment, Started, ended, open_environment
from tests.gateway.sets import batch


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def refusal(work: Any) -> ErrorCode:
    failure = Started(work).failure
    assert isinstance(failure, KafkaError)
    return failure.code


def reopened(env: BrokerEnvironment, **settings: Any) -> BrokerEnvironment:
    """Another broker on the same medium, as after a crash."""
    ended(env.store.close())
    return open_environment(env.store.medium, **settings)


def send(partition: Partition, records: memoryview) -> Any:
    return ended(partition.append_batch(records, check_batch(records, 11), 0))


def widened(partitions: int) -> Callable[[Topic], Topic]:
    return lambda topic: replace(topic, partitions=partitions)


def configured(name: str, value: str) -> Callable[[Topic], Topic]:
    return lambda topic: replace(topic, configs={**topic.configs, name: value})


def test_a_topic_is_found_by_name_and_by_id(env):
    live = env.topic("orders", 3)
    topics = env.broker.topics
    assert topics.get("orders") is topics.get(live.topic.topic_id) is live
    assert topics.get("other") is topics.get(bytes(16)) is None
    assert (list(topics), len(topics), live.topic.partitions) == ([live], 1, 3)


def test_what_is_missing_has_its_own_code_for_names_and_for_ids(env):
    topics = env.broker.topics
    with pytest.raises(KafkaError) as by_name:
        topics.require("other")
    with pytest.raises(KafkaError) as by_id:
        topics.require(bytes(16))
    assert (by_name.value.code, by_id.value.code) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


def test_topics_are_there_after_a_restart(env):
    live = env.topic("orders", 2, retention_ms="1000")
    again = reopened(env).broker.topics.require("orders")
    assert again.topic == live.topic
    assert again.config.retention_ms == 1000


def test_a_name_that_is_taken_is_refused(env):
    env.topic("orders")
    assert refusal(env.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_name_that_is_being_taken_is_refused(env):
    env.store.hold()
    first = Started(env.broker.topics.create("orders", 1, {}))
    assert refusal(env.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS
    env.store.release()
    assert first.result.name == "orders"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n"])
def test_a_name_that_kafka_refuses_is_refused(env, name):
    assert refusal(env.broker.topics.create(name, 1, {})) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_that_collides_in_metrics_is_refused(env):
    env.topic("a.b")
    assert refusal(env.broker.topics.create("a_b", 1, {})) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249])
def test_a_name_that_kafka_takes_is_taken(name):
    check_name(name)


def test_asking_for_a_missing_topic_makes_it_once_for_all_who_ask(env):
    env.store.hold()
    asked = [Started(env.broker.topics.find_or_create("orders")) for _ in range(3)]
    env.store.release()
    assert len({id(one.result) for one in asked}) == 1
    assert ended(env.broker.topics.find_or_create("orders")) is asked[0].result


def test_a_made_topic_has_the_settings_number_of_partitions():
    env = open_environment(num_partitions=7)
    assert ended(env.broker.topics.find_or_create("orders")).topic.partitions == 7


def test_a_client_that_goes_away_while_it_makes_a_topic_leaves_it_made(env):
    env.store.hold()
    gone = Started(env.broker.topics.find_or_create("orders"))
    other = Started(env.broker.topics.find_or_create("orders"))
    gone.cancel()
    env.store.release()
    assert other.result is env.broker.topics.require("orders")


def test_a_topic_that_cannot_be_made_is_told_to_all_who_wait_and_may_be_tried_again(env):
    env.store.hold()
    asked = [Started(env.broker.topics.find_or_create("orders")) for _ in range(2)]
    env.store.refuse_writes = True
    env.store.release()
    assert [one.failure.code for one in asked] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    env.store.refuse_writes = False
    assert ended(env.broker.topics.find_or_create("orders")).name == "orders"


def test_a_partition_is_opened_once_for_all_who_ask(env):
    env.topic("orders", 2)
    first = env.partition("orders", 1)
    assert env.partition("orders", 1) is first
    assert env.broker.topics.get_open_partition("orders", 1) is first
    assert env.broker.topics.get_open_partition("orders", 0) is None


@pytest.mark.parametrize("index", [-1, 2, 1 << 31])
def test_a_partition_that_is_not_there_is_unknown(env, index):
    env.topic("orders", 2)
    assert (
        refusal(env.broker.topics.partition("orders", index))
        is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert env.broker.topics.get_open_partition("orders", index) is None


class SlowLogs:
    """Keeps openings waiting, as a disk does."""

    def __init__(self, env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
        real, threads = env.store.log, env.threads

        async def log(topic: str, partition: int) -> Any:
            await threads.run(lambda: None)
            return await real(topic, partition)

        monkeypatch.setattr(env.store, "log", log)
        threads.hold()


def test_those_who_wait_for_an_opening_get_the_same_partition_in_their_order(env, monkeypatch):
    env.topic("orders")
    SlowLogs(env, monkeypatch)
    order: list[int] = []

    async def ask(n: int) -> Partition:
        partition = await env.broker.topics.partition("orders", 0)
        order.append(n)
        return partition

    asked = [Started(ask(n)) for n in range(4)]
    asked[0].cancel()
    env.threads.release()
    assert order == [1, 2, 3]
    assert len({id(one.result) for one in asked[1:]}) == 1


def test_a_topic_deleted_while_a_partition_opens_is_unknown(env, monkeypatch):
    live = env.topic("orders")
    SlowLogs(env, monkeypatch)
    asked = Started(env.broker.topics.partition("orders", 0))
    ended(env.broker.topics.delete(live))
    env.threads.release()
    assert asked.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_made_anew_while_a_partition_of_the_old_one_opens_is_not_taken_for_it(
    env, monkeypatch
):
    old = env.topic("orders")
    SlowLogs(env, monkeypatch)
    asked = Started(env.broker.topics.partition(old.topic.topic_id, 0))
    ended(env.broker.topics.delete(old))
    new = env.topic("orders")
    env.threads.release()
    assert asked.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (old.partitions, new.partitions) == ({}, {})
    assert not env.bugs


def test_an_opening_that_fails_is_told_and_may_be_tried_again(env, monkeypatch):
    env.topic("orders")
    real = env.store.log

    async def failing(topic: str, partition: int) -> Any:
        raise StorageFailed("the test said so")

    monkeypatch.setattr(env.store, "log", failing)
    assert refusal(env.broker.topics.partition("orders", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.setattr(env.store, "log", real)
    assert env.partition().log.end_offset == 0


def test_a_deleted_topic_is_gone_and_its_name_is_free(env):
    old = env.topic("orders")
    send(env.partition(), batch(3))
    ended(env.broker.topics.delete(old))
    assert env.broker.topics.get("orders") is env.broker.topics.get(old.topic.topic_id) is None
    new = env.topic("orders")
    assert new.topic.topic_id != old.topic.topic_id
    assert env.partition().log.end_offset == 0


def test_a_client_that_goes_away_while_it_deletes_leaves_the_topic_deleted(env):
    live = env.topic("orders")
    env.store.hold()
    Started(env.broker.topics.delete(live)).cancel()
    env.store.release()
    assert env.broker.topics.get("orders") is None
    assert env.topic("orders") is not live


def test_of_two_who_delete_a_topic_one_finds_it_gone(env):
    live = env.topic("orders")
    env.store.hold()
    both = [Started(env.broker.topics.delete(live)) for _ in range(2)]
    env.store.release()
    assert both[0].result is None
    assert both[1].failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deleting_what_was_deleted_does_not_touch_the_topic_made_since(env):
    old = env.topic("orders")
    ended(env.broker.topics.delete(old))
    new = env.topic("orders")
    assert refusal(env.broker.topics.delete(old)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert env.broker.topics.get("orders") is new


def test_a_topic_that_cannot_be_deleted_stays(env):
    live = env.topic("orders")
    env.store.refuse_writes = True
    assert refusal(env.broker.topics.delete(live)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert env.broker.topics.get("orders") is live


def test_configs_reach_open_partitions_at_once(env):
    live = env.topic("orders")
    partition = env.partition()
    ended(env.broker.topics.alter(live, configured("max.message.bytes", "77")))
    assert partition.config.max_message_bytes == live.config.max_message_bytes == 77
    assert reopened(env).broker.topics.require("orders").config.max_message_bytes == 77


def test_more_partitions_can_be_opened_and_the_configs_stay(env):
    live = env.topic("orders", 1, retention_ms="5")
    ended(env.broker.topics.alter(live, widened(3)))
    assert env.partition("orders", 2).index == 2
    assert dict(live.topic.configs) == {"retention.ms": "5"}


def test_changes_at_the_same_time_do_not_undo_each_other(env):
    live = env.topic("orders")
    env.store.hold()
    both = [
        Started(env.broker.topics.alter(live, widened(3))),
        Started(env.broker.topics.alter(live, configured("retention.ms", "5"))),
    ]
    env.store.release()
    assert [one.result for one in both] == [None, None]
    assert (live.topic.partitions, dict(live.topic.configs)) == (3, {"retention.ms": "5"})


def test_a_client_that_goes_away_while_it_changes_a_topic_leaves_it_changed(env):
    live = env.topic("orders")
    env.store.hold()
    Started(env.broker.topics.alter(live, widened(3))).cancel()
    env.store.release()
    assert live.topic.partitions == 3


def test_what_a_change_refuses_is_told_and_changes_nothing(env):
    live = env.topic("orders", 3)

    def refuse(topic: Topic) -> Topic:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS)

    assert refusal(env.broker.topics.alter(live, refuse)) is ErrorCode.INVALID_PARTITIONS
    ended(env.broker.topics.alter(live, widened(4)))
    assert live.topic.partitions == 4


def test_a_change_sees_what_the_one_before_it_left(env):
    live = env.topic("orders")
    env.store.hold()
    both = [
        Started(
            env.broker.topics.alter(
                live, lambda topic: replace(topic, partitions=topic.partitions + 1)
            )
        )
        for _ in range(2)
    ]
    env.store.release()
    assert all(one.is_done for one in both)
    assert live.topic.partitions == 3


def test_changing_a_topic_that_was_deleted_is_refused(env):
    live = env.topic("orders")
    ended(env.broker.topics.delete(live))
    assert (
        refusal(env.broker.topics.alter(live, widened(2))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_a_change_that_cannot_be_stored_does_not_stand_in_the_way_of_the_next(env):
    live = env.topic("orders")
    env.store.refuse_writes = True
    assert refusal(env.broker.topics.alter(live, widened(2))) is ErrorCode.KAFKA_STORAGE_ERROR
    env.store.refuse_writes = False
    ended(env.broker.topics.alter(live, widened(4)))
    assert live.topic.partitions == 4


def test_every_change_moves_the_version(env):
    topics = env.broker.topics
    versions = [topics.version]
    live = env.topic("orders")
    versions.append(topics.version)
    ended(topics.alter(live, widened(2)))
    versions.append(topics.version)
    ended(topics.delete(live))
    versions.append(topics.version)
    assert versions == sorted(set(versions))
