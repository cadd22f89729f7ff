"""Compaction as Kafka has it: of each key the last record stays, at its offset, and nothing is lost, brought back or invented on the way."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.compaction import Compaction
from tests.fakes.broker import House, Started, ended, open_house
from tests.gateway.compacted import FETCH_VERSIONS, FORMATS, close, compact, consume, put, sizes, table, values
from tests.gateway.sets import batch

HOUR = 3_600_000


@pytest.fixture
def house() -> House:
    house = open_house()
    table(house)
    return house


@pytest.mark.parametrize("written", FORMATS, ids=str)
def test_the_last_record_of_each_key_stays_at_its_offset(house, written):
    put(house, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), written=written)
    put(house, (b"b", b"2"), (b"c", b"1"), written=written)
    close(house)
    compact(house)
    for version in FETCH_VERSIONS:
        assert values(consume(house, version)) == [(2, b"2"), (3, b"2"), (4, b"1")]
        assert values(consume(house, version, offset=3)) == [(3, b"2"), (4, b"1")]


def test_formats_side_by_side_are_one_history(house):
    for n, written in enumerate(FORMATS):
        put(house, (b"k", b"%d" % n), (b"only here %d" % n, b"x"), written=written)
    close(house)
    compact(house)
    expected = [(2 * n + 1, b"x") for n in range(len(FORMATS))]
    expected.insert(-1, (2 * len(FORMATS) - 2, b"%d" % (len(FORMATS) - 1)))
    for version in FETCH_VERSIONS:
        assert values(consume(house, version)) == expected


def test_the_last_entry_is_left_alone(house):
    put(house, (b"a", b"1"))
    put(house, (b"b", b"1"), (b"b", b"2"))
    compact(house)
    assert values(consume(house)) == [(0, b"1"), (1, b"1"), (2, b"2")]


def test_the_newest_bytes_are_left_alone_while_they_are_young():
    house = open_house()
    size = len(batch([(b"a", b"0")]))
    table(house, segment_bytes=str(3 * size), segment_ms=str(HOUR))
    for n in range(6):
        put(house, (b"a", b"%d" % n), timestamp=house.now())
    compact(house)
    assert values(consume(house)) == [(n, b"%d" % n) for n in (2, 3, 4, 5)]
    house.clock.advance(HOUR / 1000)
    compact(house)
    assert values(consume(house)) == [(4, b"4"), (5, b"5")]


def test_younger_records_than_the_least_lag_are_left_alone():
    house = open_house()
    table(house, min_compaction_lag_ms=str(HOUR))
    for age in (3 * HOUR, 2 * HOUR, HOUR // 2, HOUR // 2, 0):
        put(house, (b"a", b"%d" % age), timestamp=house.now() - age)
    compact(house)
    assert [offset for offset, _ in values(consume(house))] == [1, 2, 3, 4]


def test_a_pass_waits_until_enough_is_dirty():
    house = open_house()
    table(house, min_cleanable_dirty_ratio="0.5")
    for n in range(4):
        put(house, (b"key %d" % n, b"1"))
    close(house)
    compact(house)
    put(house, (b"key 1", b"2"))
    close(house)
    compact(house)
    assert len(values(consume(house))) == 5
    for n in range(2, 6):
        put(house, (b"key %d" % n, b"2"))
    compact(house)
    assert [offset for offset, _ in values(consume(house))] == [0, 5, 7, 8, 9, 10]


def test_records_older_than_the_greatest_lag_are_compacted_however_few_they_are():
    house = open_house()
    table(house, min_cleanable_dirty_ratio="1", max_compaction_lag_ms=str(HOUR))
    put(house, (b"a", b"1"), timestamp=house.now())
    put(house, (b"a", b"2"), timestamp=house.now())
    close(house)
    compact(house)
    assert len(values(consume(house))) == 2
    house.clock.advance(HOUR / 1000 + 1)
    compact(house)
    assert values(consume(house)) == [(1, b"2")]


def test_a_tombstone_stays_for_its_time_after_the_pass_that_removed_what_it_deletes():
    house = open_house()
    table(house, delete_retention_ms=str(HOUR))
    put(house, (b"a", b"1"), (b"b", b"1"))
    put(house, (b"a", None))
    close(house)
    compact(house)
    assert values(consume(house)) == [(1, b"1"), (2, None)]
    house.clock.advance(HOUR / 1000 - 1)
    close(house)
    compact(house)
    assert values(consume(house)) == [(1, b"1"), (2, None)]
    # A 64th more: what the times of passes are rounded by.
    house.clock.advance(1 + HOUR / 64 / 1000)
    close(house)
    compact(house)
    assert values(consume(house)) == [(1, b"1")]


@pytest.mark.parametrize("written", [(0, 0), (1, 1), (2, 0)], ids=str)
def test_a_tombstone_without_retention_goes_with_the_second_pass(written):
    house = open_house()
    table(house, delete_retention_ms="0")
    put(house, (b"a", b"1"), written=written)
    put(house, (b"a", None), written=written)
    close(house)
    compact(house)
    assert values(consume(house)) == [(1, None)]
    close(house)
    compact(house)
    assert values(consume(house)) == []


def test_records_without_a_key_from_before_the_policy_go(house):
    put(house, (None, b"1"), (b"a", b"1"))
    close(house)
    compact(house)
    assert values(consume(house)) == [(1, b"1")]


def test_what_was_compacted_is_remembered(house):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    compact(house)
    again = open_house(reopened(house))
    compact(again)
    assert again.threads.calls == 0


def test_what_is_remembered_of_a_topic_goes_with_it(house):
    put(house, (b"a", b"1"))
    close(house)
    compact(house)
    assert len(house.store.medium.tables["compaction"]) == 1
    ended(house.broker.topics.delete(house.broker.topics.require("orders")))
    compact(house)
    assert house.store.medium.tables["compaction"] == {}


def test_a_new_topic_of_the_name_is_compacted_from_its_beginning(house):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    compact(house)
    ended(house.broker.topics.delete(house.broker.topics.require("orders")))
    table(house)
    put(house, (b"a", b"3"), (b"a", b"4"))
    close(house)
    compact(house)
    assert values(consume(house)) == [(1, b"4")]


def test_topics_of_other_policies_are_left_alone(house):
    house.topic("log", segment_bytes="14", min_cleanable_dirty_ratio="0")
    for topic in ("log", "orders"):
        put(house, (b"a", b"1"), (b"a", b"2"), topic=topic)
        close(house, topic)
    before = sizes(house.partition("log"))
    compact(house)
    assert sizes(house.partition("log")) == before
    assert sizes(house.partition("orders")) != before


def test_more_keys_than_a_pass_can_hold_take_more_passes(house):
    for value in (b"1", b"2"):
        for n in range(0, 12, 4):
            put(house, *((b"key %d" % (n + i), value) for i in range(4)))
    close(house)
    compact(house, max_keys=5, piece_bytes=1)
    assert values(consume(house)) == [(12 + n, b"2") for n in range(12)]


def test_keys_are_told_apart_whatever_their_length(house):
    keys = [b"", b"\0", *(bytes(n) for n in (15, 16, 17, 1000)), bytes(999) + b"\1"]
    put(house, *((key, b"1") for key in keys))
    put(house, *((key, b"2") for key in keys))
    close(house)
    compact(house)
    assert values(consume(house)) == [(len(keys) + n, b"2") for n in range(len(keys))]


def reopened(house: House) -> Any:
    """The medium of a house after a crash."""
    medium = house.store.medium
    medium.held_by = None
    return medium


def test_a_producers_last_batch_keeps_its_sequence_over_a_restart(house):
    put(house, (b"a", b"1"), (b"a", b"2"), producer=(7, 0, 0))
    put(house, (b"a", b"3"), (b"b", b"1"), (b"a", b"4"), producer=(7, 0, 2))
    put(house, (b"a", b"5"), (b"b", b"2"))
    close(house)
    compact(house)
    assert values(consume(house)) == [(5, b"5"), (6, b"2")]
    again = open_house(reopened(house))
    (found,) = list(again.partition().producers)
    assert (found[0], found[1].sent[-1].last_sequence, found[1].sent[-1].last_offset) == (7, 4, 4)
    put(again, (b"c", b"1"), producer=(7, 0, 5))
    close(again)
    compact(again)
    for version in FETCH_VERSIONS:
        assert values(consume(again, version)) == [(5, b"5"), (6, b"2"), (8, b"1")]
    assert 61 not in sizes(again.partition())


def test_a_batch_in_flight_does_not_cost_its_producer_the_one_before(house):
    put(house, (b"a", b"1"), producer=(7, 0, 0))
    put(house, (b"a", b"2"))
    close(house)
    house.partition()
    ended(house.broker.store.table("compaction"))
    records = batch([(b"z", b"1")], producer=(7, 0, 1))
    from gateway.records import check_batch

    house.threads.hold()
    going = Started(Compaction(house.broker).round())
    house.store.hold()
    waiting = Started(house.partition().append_batch(records, check_batch(records, 11), house.now()))
    house.threads.release()
    house.store.refuse_writes = True
    house.store.release()
    assert waiting.failure is not None
    house.store.refuse_writes = False
    assert going.is_done
    compact(house)
    assert house.partition().producers.check(check_batch(batch([(b"z", b"1")], producer=(7, 0, 1)), 11)) is None
    again = open_house(reopened(house))
    (found,) = list(again.partition().producers)
    assert found[1].sent[-1].last_sequence == 0
