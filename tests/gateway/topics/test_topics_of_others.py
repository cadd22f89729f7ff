"""Topics that somebody else makes, alters and deletes on the same medium."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.housekeeping import Housekeeping
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import Topic
from tests.fakes.broker import NOW, House, Started, ended, open_house
from tests.fakes.memory_store import MemoryStore
from tests.gateway.handlers.consuming import ask, at, request, rows

ID, OTHER = bytes(15) + b"\x01", bytes(15) + b"\x02"


@pytest.fixture
def house() -> House:
    return open_house()


def refusal(work: Any) -> ErrorCode:
    failure = Started(work).failure
    assert isinstance(failure, KafkaError)
    return failure.code


def test_a_topic_that_others_made_is_there(house):
    version = house.broker.topics.version
    house.store.outside([Topic("orders", ID, 2)])
    assert house.broker.topics.get("orders") is house.broker.topics.get(ID)
    assert house.partition("orders", 1).index == 1
    assert house.broker.topics.version > version


def test_a_topic_that_others_deleted_is_gone_and_its_consumers_are_told(house):
    live = house.topic("orders")
    waiting = ask(house, request(12, [at(0)], max_wait_ms=500))
    house.store.outside([])
    assert (list(house.broker.topics), house.broker.topics.get(live.topic.topic_id)) == ([], None)
    assert rows(waiting.result)["orders", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        refusal(house.broker.topics.partition("orders", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert refusal(house.broker.topics.delete(live)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_others_deleted_and_made_again_is_another_one(house):
    house.store.outside([Topic("orders", ID, 1)])
    before, partition = house.broker.topics.get("orders"), house.partition()
    house.store.outside([Topic("orders", OTHER, 1)])
    after = house.broker.topics.get("orders")
    assert (after.topic.topic_id, house.broker.topics.get(ID)) == (OTHER, None)
    assert (before.is_gone, house.partition() is partition, partition.is_closed) == (
        True,
        False,
        True,
    )


def test_what_others_altered_counts_at_once(house):
    house.store.outside([Topic("orders", ID, 1)])
    partition, version = house.partition(), house.broker.topics.version
    house.store.outside([Topic("orders", ID, 3, {"retention.ms": "5"})])
    assert house.partition() is partition
    assert (partition.config.retention_ms, house.partition("orders", 2).index) == (5, 2)
    assert house.broker.topics.version > version


def test_nothing_that_others_did_changes_nothing(house):
    house.topic("orders")
    version = house.broker.topics.version
    house.store.tell_topics()
    assert house.broker.topics.version == version


def test_what_others_change_while_a_change_of_our_own_is_under_way_is_seen_after_it(house):
    live = house.topic("orders")
    house.store.hold()
    altering = Started(house.broker.topics.alter(live, lambda topic: replace(topic, partitions=2)))
    house.store.outside([replace(live.topic, configs={"retention.ms": "5"})])
    assert live.config.retention_ms != 5
    house.store.refuse_writes = True
    house.store.release()
    assert isinstance(altering.failure, KafkaError)
    assert live.config.retention_ms == 5


def test_a_topic_that_others_were_faster_to_make_is_there_for_the_next_who_asks(house):
    house.store.hold()
    creating = Started(house.broker.topics.create("orders", 1, {}))
    house.store.outside([Topic("orders", ID, 4)])
    assert house.broker.topics.get("orders") is None
    house.store.release()
    assert creating.failure.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert house.broker.topics.get("orders").topic.partitions == 4
    assert refusal(house.broker.topics.create("orders", 1, {})) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_topic_that_goes_while_it_is_being_deleted_is_gone_once(house):
    live = house.topic("orders")
    house.store.hold()
    deleting = Started(house.broker.topics.delete(live))
    house.store.outside([Topic("orders", OTHER, 1)])
    house.store.outside([])
    house.store.release()
    assert deleting.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(house.broker.topics) == 0
    assert house.topic("orders").name == "orders"


def commit(house: House) -> None:
    ended(house.broker.offsets.commit("g", {("orders", 0): CommittedOffset(5, -1, "", NOW)}))


def passed(house: House, rounds: int) -> None:
    for _ in range(rounds):
        house.clock.advance(300)


def test_what_is_left_of_a_topic_that_others_deleted_goes_after_a_while(house):
    house.store.outside([Topic("orders", ID, 1)])
    house.partition()
    ended(house.broker.topics.save(house.partition()))
    commit(house)
    Housekeeping(house.broker, house.background).start()
    house.store.outside([])
    assert house.store.medium.tables["offsets"]
    passed(house, 2)
    assert (
        house.store.medium.tables["offsets"],
        house.store.medium.tables["producers"],
        house.bugs,
    ) == ({}, {}, [])
    assert not house.broker.offsets.has("g")


def test_a_topic_that_was_missed_for_a_moment_loses_nothing(house):
    house.store.outside([Topic("orders", ID, 1)])
    commit(house)
    Housekeeping(house.broker, house.background).start()
    house.store.outside([])
    house.store.outside([Topic("orders", ID, 1)])
    passed(house, 3)
    assert house.broker.offsets.get("g", "orders", 0).offset == 5


def test_what_is_acknowledged_while_its_topic_is_missed_for_a_moment_is_there_afterwards(
    house, shared
):
    house.store.outside([Topic("orders", ID, 1)])
    commit(house)
    house.store.hold()
    waiting = Started(
        house.broker.offsets.commit("g", {("orders", 0): CommittedOffset(9, -1, "", NOW)})
    )
    house.store.outside([])
    house.store.release()
    assert waiting.failure is None
    house.store.outside([Topic("orders", ID, 1)])
    assert house.broker.offsets.get("g", "orders", 0).offset == 9
    assert restarted(house).broker.offsets.get("g", "orders", 0).offset == 9


def test_what_is_acknowledged_while_its_topic_is_missed_goes_with_it(house):
    house.store.outside([Topic("orders", ID, 1)])
    Housekeeping(house.broker, house.background).start()
    house.store.hold()
    commits = [
        Started(
            house.broker.offsets.commit("g", {("orders", 0): CommittedOffset(offset, -1, "", NOW)})
        )
        for offset in (8, 9)
    ]
    house.store.outside([])
    house.store.release()
    assert [one.failure for one in commits] == [None, None]
    passed(house, 2)
    assert (house.store.medium.tables["offsets"], house.broker.offsets.has("g"), house.bugs) == (
        {},
        False,
        [],
    )


def test_topics_that_come_back_while_they_are_being_forgotten_keep_their_offsets(house):
    both = [Topic("orders", ID, 1), Topic("bills", OTHER, 1)]
    house.store.outside(both)
    for topic in both:
        ended(house.broker.topics.save(house.partition(topic.name)))
        ended(house.broker.offsets.commit("g", {(topic.name, 0): CommittedOffset(5, -1, "", NOW)}))
    Housekeeping(house.broker, house.background).start()
    house.store.outside([])
    house.store.hold()
    passed(house, 2)
    house.store.outside(both)
    house.store.release()
    assert {place: row.offset for place, row in house.broker.offsets.of_group("g").items()} == {
        ("orders", 0): 5,
        ("bills", 0): 5,
    }
    assert (
        len(house.store.medium.tables["offsets"]),
        len(house.store.medium.tables["producers"]),
        house.bugs,
    ) == (2, 1, [])


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is one that goes on without the gateway."""
    monkeypatch.setattr(MemoryStore, "retains_by_itself", True)


def restarted(house: House) -> House:
    ended(house.store.close())
    return open_house(house.store.medium)


def test_what_was_committed_for_a_topic_that_is_missing_at_the_start_is_there_when_it_comes_back(
    house, shared
):
    house.store.outside([Topic("orders", ID, 1)])
    commit(house)
    house.store.outside([])
    again = restarted(house)
    assert again.broker.offsets.get("g", "orders", 0) is None
    again.store.outside([Topic("orders", ID, 1)])
    assert again.broker.offsets.get("g", "orders", 0).offset == 5


def test_what_was_committed_for_a_topic_that_does_not_come_back_expires(house, shared):
    house.store.outside([Topic("orders", ID, 1), Topic("bills", OTHER, 1)])
    commit(house)
    ended(
        house.broker.offsets.commit("h", {("bills", 0): CommittedOffset(1, -1, "", NOW + 300_000)})
    )
    house.store.outside([])
    again = restarted(house)
    ended(again.broker.offsets.forget_orphans(NOW + 200_000))
    assert list(again.broker.offsets.groups()) == ["h"]
    assert len(again.store.medium.tables["offsets"]) == 1


def test_where_nobody_else_makes_topics_nothing_is_kept_for_one_that_is_gone(house):
    house.store.outside([Topic("orders", ID, 1)])
    commit(house)
    house.store.outside([])
    assert (len(restarted(house).broker.offsets), house.store.medium.tables["offsets"]) == (0, {})
