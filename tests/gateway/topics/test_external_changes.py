"""Topics created, altered and deleted externally in the same store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.housekeeping import Housekeeping
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import Topic
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment
from tests.fakes.memory_store import MemoryStore
from tests.gateway.handlers.fetch_requests import from_offset, request, rows, start_fetch

ID, OTHER = bytes(15) + b"\x01", bytes(15) + b"\x02"


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def refusal(work: Any) -> ErrorCode:
    failure = Started(work).failure
    assert isinstance(failure, KafkaError)
    return failure.code


def test_externally_created_topic_is_found(env):
    version = env.broker.topics.version
    env.store.outside([Topic("orders", ID, 2)])
    assert env.broker.topics.get("orders") is env.broker.topics.get(ID)
    assert env.partition("orders", 1).index == 1
    assert env.broker.topics.version > version


def test_externally_deleted_topic_is_unknown_and_closed(env):
    live = env.topic("orders")
    waiting = start_fetch(env, request(12, [from_offset(0)], max_wait_ms=500))
    env.store.outside([])
    assert (list(env.broker.topics), env.broker.topics.get(live.topic.topic_id)) == ([], None)
    assert rows(waiting.result)["orders", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(env.broker.topics.partition("orders", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(env.broker.topics.delete(live)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_externally_recreated_topic_replaces_old_one(env):
    env.store.outside([Topic("orders", ID, 1)])
    before, partition = env.broker.topics.get("orders"), env.partition()
    env.store.outside([Topic("orders", OTHER, 1)])
    after = env.broker.topics.get("orders")
    assert (after.topic.topic_id, env.broker.topics.get(ID)) == (OTHER, None)
    assert (before.is_deleted, env.partition() is partition, partition.is_closed) == (
        True,
        False,
        True,
    )


def test_external_alter_applies_immediately(env):
    env.store.outside([Topic("orders", ID, 1)])
    partition, version = env.partition(), env.broker.topics.version
    env.store.outside([Topic("orders", ID, 3, {"retention.ms": "5"})])
    assert env.partition() is partition
    assert (partition.config.retention_ms, env.partition("orders", 2).index) == (5, 2)
    assert env.broker.topics.version > version


def test_notification_without_change_keeps_version(env):
    env.topic("orders")
    version = env.broker.topics.version
    env.store.tell_topics()
    assert env.broker.topics.version == version


def test_external_change_during_local_alter_is_applied_after_it(env):
    live = env.topic("orders")
    env.store.hold()
    altering = Started(env.broker.topics.alter(live, lambda topic: replace(topic, partitions=2)))
    env.store.outside([replace(live.topic, configs={"retention.ms": "5"})])
    assert live.config.retention_ms != 5
    env.store.refuse_writes = True
    env.store.release()
    assert isinstance(altering.failure, KafkaError)
    assert live.config.retention_ms == 5


def test_topic_created_externally_first_is_found_afterwards(env):
    env.store.hold()
    creating = Started(env.broker.topics.create("orders", 1, {}))
    env.store.outside([Topic("orders", ID, 4)])
    assert env.broker.topics.get("orders") is None
    env.store.release()
    assert creating.failure.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert env.broker.topics.get("orders").topic.partitions == 4
    assert refusal(env.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_topic_deleted_externally_during_delete_is_dropped_once(env):
    live = env.topic("orders")
    env.store.hold()
    deleting = Started(env.broker.topics.delete(live))
    env.store.outside([Topic("orders", OTHER, 1)])
    env.store.outside([])
    env.store.release()
    assert deleting.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(env.broker.topics) == 0
    assert env.topic("orders").name == "orders"


def commit(env: BrokerEnvironment) -> None:
    ended(env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(5, -1, "", NOW)}))


def passed(env: BrokerEnvironment, rounds: int) -> None:
    for _ in range(rounds):
        env.clock.advance(300)


def test_state_of_externally_deleted_topic_expires(env):
    env.store.outside([Topic("orders", ID, 1)])
    env.partition()
    ended(env.broker.topics.save(env.partition()))
    commit(env)
    Housekeeping(env.broker, env.background).start()
    env.store.outside([])
    assert env.store.medium.tables["offsets"]
    passed(env, 2)
    assert (
        env.store.medium.tables["offsets"],
        env.store.medium.tables["producers"],
        env.bugs,
    ) == ({}, {}, [])
    assert not env.broker.offsets.has("g")


def test_state_of_topic_deleted_by_another_gateway_is_deleted_at_once(env):
    env.store.outside([Topic("orders", ID, 1)])
    env.partition()
    ended(env.broker.topics.save(env.partition()))
    commit(env)
    Housekeeping(env.broker, env.background).start()
    env.store.deleted_by_gateway("orders")
    assert (
        env.store.medium.tables["offsets"],
        env.store.medium.tables["producers"],
        env.bugs,
    ) == ({}, {}, [])
    assert not env.broker.offsets.has("g")
    assert not env.broker.topics.may_reappear(ID)


def test_offsets_of_topic_created_again_with_the_same_id_are_kept(env):
    env.store.outside([Topic("orders", ID, 1)])
    commit(env)
    Housekeeping(env.broker, env.background).start()
    env.store.hold()
    env.store.deleted_by_gateway("orders")
    env.store.deleted_ids.clear()
    env.store.outside([Topic("orders", ID, 1)])
    assert env.broker.offsets.get("g", "orders", 0) is None
    again = Started(env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(1, -1, "", 0)}))
    env.store.release()
    assert again.failure is None
    assert env.broker.offsets.get("g", "orders", 0).offset == 1
    assert (len(env.store.medium.tables["offsets"]), env.bugs) == (1, [])


def test_topic_missing_briefly_keeps_offsets(env):
    env.store.outside([Topic("orders", ID, 1)])
    commit(env)
    Housekeeping(env.broker, env.background).start()
    env.store.outside([])
    env.store.outside([Topic("orders", ID, 1)])
    passed(env, 3)
    assert env.broker.offsets.get("g", "orders", 0).offset == 5


def test_commit_while_topic_is_missing_briefly_is_kept(env, shared):
    env.store.outside([Topic("orders", ID, 1)])
    commit(env)
    env.store.hold()
    waiting = Started(
        env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(9, -1, "", NOW)})
    )
    env.store.outside([])
    env.store.release()
    assert waiting.failure is None
    env.store.outside([Topic("orders", ID, 1)])
    assert env.broker.offsets.get("g", "orders", 0).offset == 9
    assert restarted(env).broker.offsets.get("g", "orders", 0).offset == 9


def test_commit_while_topic_is_missing_expires_with_topic(env):
    env.store.outside([Topic("orders", ID, 1)])
    Housekeeping(env.broker, env.background).start()
    env.store.hold()
    commits = [
        Started(
            env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(offset, -1, "", NOW)})
        )
        for offset in (8, 9)
    ]
    env.store.outside([])
    env.store.release()
    assert [one.failure for one in commits] == [None, None]
    passed(env, 2)
    assert (env.store.medium.tables["offsets"], env.broker.offsets.has("g"), env.bugs) == (
        {},
        False,
        [],
    )


def test_topics_that_reappear_during_cleanup_keep_offsets(env):
    both = [Topic("orders", ID, 1), Topic("bills", OTHER, 1)]
    env.store.outside(both)
    for topic in both:
        ended(env.broker.topics.save(env.partition(topic.name)))
        ended(env.broker.offsets.commit("g", {(topic.name, 0): CommittedOffset(5, -1, "", NOW)}))
    Housekeeping(env.broker, env.background).start()
    env.store.outside([])
    env.store.hold()
    passed(env, 2)
    env.store.outside(both)
    env.store.release()
    assert {place: row.offset for place, row in env.broker.offsets.of_group("g").items()} == {
        ("orders", 0): 5,
        ("bills", 0): 5,
    }
    assert (
        len(env.store.medium.tables["offsets"]),
        len(env.store.medium.tables["producers"]),
        env.bugs,
    ) == (2, 1, [])


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store one that applies retention without the gateway."""
    monkeypatch.setattr(MemoryStore, "retains_by_itself", True)


def restarted(env: BrokerEnvironment) -> BrokerEnvironment:
    ended(env.store.close())
    return open_environment(env.store.medium)


def test_offsets_of_topic_missing_at_start_return_with_topic(env, shared):
    env.store.outside([Topic("orders", ID, 1)])
    commit(env)
    env.store.outside([])
    again = restarted(env)
    assert again.broker.offsets.get("g", "orders", 0) is None
    again.store.outside([Topic("orders", ID, 1)])
    assert again.broker.offsets.get("g", "orders", 0).offset == 5


def test_offsets_of_topic_missing_at_start_expire(env, shared):
    env.store.outside([Topic("orders", ID, 1), Topic("bills", OTHER, 1)])
    commit(env)
    ended(env.broker.offsets.commit("h", {("bills", 0): CommittedOffset(1, -1, "", NOW + 300_000)}))
    env.store.outside([])
    again = restarted(env)
    ended(again.broker.offsets.delete_orphans(NOW + 200_000))
    assert list(again.broker.offsets.groups()) == ["h"]
    assert len(again.store.medium.tables["offsets"]) == 1


def test_exclusive_store_drops_offsets_of_missing_topic(env):
    env.store.outside([Topic("orders", ID, 1)])
    commit(env)
    env.store.outside([])
    assert (len(restarted(env).broker.offsets), env.store.medium.tables["offsets"]) == (0, {})
