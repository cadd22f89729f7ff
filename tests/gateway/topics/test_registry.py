"""The topic registry: concurrent creation, lookup, alteration and deletion of topics."""

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
from tests.records.record_sets import batch


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def refusal(work: Any) -> ErrorCode:
    failure = Started(work).failure
    assert isinstance(failure, KafkaError)
    return failure.code


def reopened(env: BrokerEnvironment, **settings: Any) -> BrokerEnvironment:
    """Return another broker on the same store, as after a crash."""
    ended(env.store.close())
    return open_environment(env.store.medium, **settings)


def send(partition: Partition, records: memoryview) -> Any:
    return ended(partition.append_batch(records, check_batch(records, 11), 0))


def widened(partitions: int) -> Callable[[Topic], Topic]:
    return lambda topic: replace(topic, partitions=partitions)


def configured(name: str, value: str) -> Callable[[Topic], Topic]:
    return lambda topic: replace(topic, configs={**topic.configs, name: value})


def test_topic_is_found_by_name_and_id(env):
    live = env.topic("orders", 3)
    topics = env.broker.topics
    assert topics.get("orders") is topics.get(live.topic.topic_id) is live
    assert topics.get("other") is topics.get(bytes(16)) is None
    assert (list(topics), len(topics), live.topic.partitions) == ([live], 1, 3)


def test_unknown_name_and_unknown_id_have_different_error_codes(env):
    topics = env.broker.topics
    with pytest.raises(KafkaError) as by_name:
        topics.require("other")
    with pytest.raises(KafkaError) as by_id:
        topics.require(bytes(16))
    assert (by_name.value.code, by_id.value.code) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


def test_topics_survive_restart(env):
    live = env.topic("orders", 2, retention_ms="1000")
    again = reopened(env).broker.topics.require("orders")
    assert again.topic == live.topic
    assert again.config.retention_ms == 1000


def test_create_with_existing_name_is_refused(env):
    env.topic("orders")
    assert refusal(env.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_create_while_same_name_is_being_created_is_refused(env):
    env.store.hold()
    first = Started(env.broker.topics.create("orders", 1, {}))
    assert refusal(env.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS
    env.store.release()
    assert first.result.name == "orders"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n"])
def test_invalid_topic_name_is_refused(env, name):
    assert refusal(env.broker.topics.create(name, 1, {})) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_colliding_topic_name_is_refused(env):
    env.topic("a.b")
    assert refusal(env.broker.topics.create("a_b", 1, {})) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249])
def test_valid_topic_name_is_accepted(name):
    check_name(name)


def test_concurrent_find_or_create_creates_topic_once(env):
    env.store.hold()
    asked = [Started(env.broker.topics.find_or_create("orders")) for _ in range(3)]
    env.store.release()
    assert len({id(one.result) for one in asked}) == 1
    assert ended(env.broker.topics.find_or_create("orders")) is asked[0].result


def test_auto_created_topic_has_default_partition_count():
    env = open_environment(num_partitions=7)
    assert ended(env.broker.topics.find_or_create("orders")).topic.partitions == 7


def test_cancelled_create_still_creates_topic(env):
    env.store.hold()
    gone = Started(env.broker.topics.find_or_create("orders"))
    other = Started(env.broker.topics.find_or_create("orders"))
    gone.cancel()
    env.store.release()
    assert other.result is env.broker.topics.require("orders")


def test_failed_create_fails_all_waiters_and_can_be_retried(env):
    env.store.hold()
    asked = [Started(env.broker.topics.find_or_create("orders")) for _ in range(2)]
    env.store.refuse_writes = True
    env.store.release()
    assert [one.failure.code for one in asked] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    env.store.refuse_writes = False
    assert ended(env.broker.topics.find_or_create("orders")).name == "orders"


def test_concurrent_requests_open_partition_once(env):
    env.topic("orders", 2)
    first = env.partition("orders", 1)
    assert env.partition("orders", 1) is first
    assert env.broker.topics.get_open_partition("orders", 1) is first
    assert env.broker.topics.get_open_partition("orders", 0) is None


@pytest.mark.parametrize("index", [-1, 2, 1 << 31])
def test_partition_index_out_of_range_is_unknown(env, index):
    env.topic("orders", 2)
    assert (
        refusal(env.broker.topics.partition("orders", index))
        is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert env.broker.topics.get_open_partition("orders", index) is None


class SlowLogs:
    """Delays openings, as a disk does."""

    def __init__(self, env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
        real, threads = env.store.log, env.threads

        async def log(topic: str, partition: int) -> Any:
            await threads.run(lambda: None)
            return await real(topic, partition)

        monkeypatch.setattr(env.store, "log", log)
        threads.hold()


def test_waiters_for_opening_get_same_partition_in_order(env, monkeypatch):
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


def test_topic_deleted_while_partition_opens_is_unknown(env, monkeypatch):
    live = env.topic("orders")
    SlowLogs(env, monkeypatch)
    asked = Started(env.broker.topics.partition("orders", 0))
    ended(env.broker.topics.delete(live))
    env.threads.release()
    assert asked.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_recreated_topic_does_not_get_partition_of_old_topic(env, monkeypatch):
    old = env.topic("orders")
    SlowLogs(env, monkeypatch)
    asked = Started(env.broker.topics.partition(old.topic.topic_id, 0))
    ended(env.broker.topics.delete(old))
    new = env.topic("orders")
    env.threads.release()
    assert asked.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (old.partitions, new.partitions) == ({}, {})
    assert not env.bugs


def test_failed_open_is_reported_and_can_be_retried(env, monkeypatch):
    env.topic("orders")
    real = env.store.log

    async def failing(topic: str, partition: int) -> Any:
        raise StorageFailed("the test said so")

    monkeypatch.setattr(env.store, "log", failing)
    assert refusal(env.broker.topics.partition("orders", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.setattr(env.store, "log", real)
    assert env.partition().log.end_offset == 0


def test_name_of_deleted_topic_can_be_reused(env):
    old = env.topic("orders")
    send(env.partition(), batch(3))
    ended(env.broker.topics.delete(old))
    assert env.broker.topics.get("orders") is env.broker.topics.get(old.topic.topic_id) is None
    new = env.topic("orders")
    assert new.topic.topic_id != old.topic.topic_id
    assert env.partition().log.end_offset == 0


def test_cancelled_delete_still_deletes_topic(env):
    live = env.topic("orders")
    env.store.hold()
    Started(env.broker.topics.delete(live)).cancel()
    env.store.release()
    assert env.broker.topics.get("orders") is None
    assert env.topic("orders") is not live


def test_second_concurrent_delete_gets_unknown_topic(env):
    live = env.topic("orders")
    env.store.hold()
    both = [Started(env.broker.topics.delete(live)) for _ in range(2)]
    env.store.release()
    assert both[0].result is None
    assert both[1].failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_delete_of_old_topic_leaves_recreated_topic(env):
    old = env.topic("orders")
    ended(env.broker.topics.delete(old))
    new = env.topic("orders")
    assert refusal(env.broker.topics.delete(old)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert env.broker.topics.get("orders") is new


def test_topic_stays_if_delete_fails(env):
    live = env.topic("orders")
    env.store.refuse_writes = True
    assert refusal(env.broker.topics.delete(live)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert env.broker.topics.get("orders") is live


def test_altered_configs_apply_to_open_partitions(env):
    live = env.topic("orders")
    partition = env.partition()
    ended(env.broker.topics.alter(live, configured("max.message.bytes", "77")))
    assert partition.config.max_message_bytes == live.config.max_message_bytes == 77
    assert reopened(env).broker.topics.require("orders").config.max_message_bytes == 77


def test_added_partitions_open_and_configs_stay(env):
    live = env.topic("orders", 1, retention_ms="5")
    ended(env.broker.topics.alter(live, widened(3)))
    assert env.partition("orders", 2).index == 2
    assert dict(live.topic.configs) == {"retention.ms": "5"}


def test_concurrent_alters_do_not_overwrite_each_other(env):
    live = env.topic("orders")
    env.store.hold()
    both = [
        Started(env.broker.topics.alter(live, widened(3))),
        Started(env.broker.topics.alter(live, configured("retention.ms", "5"))),
    ]
    env.store.release()
    assert [one.result for one in both] == [None, None]
    assert (live.topic.partitions, dict(live.topic.configs)) == (3, {"retention.ms": "5"})


def test_cancelled_alter_still_alters_topic(env):
    live = env.topic("orders")
    env.store.hold()
    Started(env.broker.topics.alter(live, widened(3))).cancel()
    env.store.release()
    assert live.topic.partitions == 3


def test_alter_that_raises_changes_nothing(env):
    live = env.topic("orders", 3)

    def refuse(topic: Topic) -> Topic:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS)

    assert refusal(env.broker.topics.alter(live, refuse)) is ErrorCode.INVALID_PARTITIONS
    ended(env.broker.topics.alter(live, widened(4)))
    assert live.topic.partitions == 4


def test_alter_sees_result_of_previous_alter(env):
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


def test_alter_of_deleted_topic_is_refused(env):
    live = env.topic("orders")
    ended(env.broker.topics.delete(live))
    assert (
        refusal(env.broker.topics.alter(live, widened(2))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_failed_alter_does_not_block_next_alter(env):
    live = env.topic("orders")
    env.store.refuse_writes = True
    assert refusal(env.broker.topics.alter(live, widened(2))) is ErrorCode.KAFKA_STORAGE_ERROR
    env.store.refuse_writes = False
    ended(env.broker.topics.alter(live, widened(4)))
    assert live.topic.partitions == 4


def test_every_change_increases_version(env):
    topics = env.broker.topics
    versions = [topics.version]
    live = env.topic("orders")
    versions.append(topics.version)
    ended(topics.alter(live, widened(2)))
    versions.append(topics.version)
    ended(topics.delete(live))
    versions.append(topics.version)
    assert versions == sorted(set(versions))
