"""Compaction as Kafka has it: of each key the last record stays, at its offset, and nothing is lost, brought back or invented on the way."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from gateway.handlers.list_offsets import find
from gateway.housekeeping import Housekeeping
from gateway.partitions.compaction import LogCleaner
from gateway.partitions.record_batch import check_batch
from storage.log import Entry, StorageFailed
from tests.compat.records import building
from tests.compat.records.building import Sample
from tests.compat.records.peers import read_with_kafka_python
from tests.fakes.broker import NOW, House, Started, ended, open_house
from tests.gateway.handlers import asking
from tests.gateway.partitions.compacted import (
    FETCH_VERSIONS,
    FORMATS,
    close,
    compact,
    consume,
    put,
    sizes,
    table,
    values,
)
from tests.gateway.sets import batch

HOUR = 3_600_000
TWO_TIMES = [Sample(0, 9_000, b"a", b"1"), Sample(1, 1_000, b"b", b"1")]


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


def test_an_unreadable_memory_costs_only_another_pass(house, caplog):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    compact(house)
    rows = house.store.medium.tables["compaction"]
    rows.update(dict.fromkeys(rows, b"junk"))
    put(house, (b"a", b"3"))
    close(house)
    again = open_house(reopened(house))
    with caplog.at_level(logging.WARNING):
        compact(again)
    assert values(consume(again)) == [(3, b"3")]
    assert [record.getMessage() for record in caplog.records] == [
        "unreadable note of how far compaction came"
    ]


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
    next_batch = batch([(b"z", b"1")], producer=(7, 0, 1))
    house.threads.hold()
    going = Started(LogCleaner(house.broker).round())
    house.store.hold()
    waiting = Started(
        house.partition().append_batch(next_batch, check_batch(next_batch, 11), house.now())
    )
    house.threads.release()
    house.store.refuse_writes = True
    house.store.release()
    house.store.refuse_writes = False
    assert waiting.failure is not None
    assert going.is_done
    compact(house)
    again = open_house(reopened(house))
    ((_, producer),) = again.partition().producers
    assert producer.sent[-1].last_sequence == 0


def test_unreadable_records_stay_as_they_are_and_so_do_the_tombstones(caplog):
    house = open_house()
    table(house, delete_retention_ms="0")
    partition = house.partition()
    put(house, (b"b", b"1"), (b"c", b"1"))
    broken = bytearray(batch([(b"a", b"1")]))
    broken[-1] ^= 1
    asking.store(partition, Entry(2, 2, 5, bytes(broken)))
    put(house, (b"a", None), (b"b", b"2"))
    for _ in range(3):
        close(house)
        with caplog.at_level(logging.WARNING):
            compact(house)
    entries = ended(partition.log.read(0, 1 << 20))
    assert bytes(entries[1].payload) == bytes(broken)
    assert values(consume(house, offset=3)) == [(3, None), (4, b"2")]
    assert [offset for offset, *_ in consume_only(entries[0])] == [1]
    assert {record.getMessage() for record in caplog.records} == {
        "some records cannot be read and were not compacted"
    }


def consume_only(entry: Entry) -> list[Any]:
    return read_with_kafka_python(bytes(entry.payload))


def test_the_time_index_points_at_records_that_are_there(house):
    put(house, (b"a", b"1"), timestamp=5_000)
    put(house, (b"b", b"1"), timestamp=1_000)
    put(house, (b"a", b"2"), timestamp=2_000)
    put(house, (b"c", b"1"), timestamp=6_000, producer=(7, 0, 0))
    put(house, (b"c", b"2"), timestamp=3_000)
    put(house, (b"z", b"1"), timestamp=500)
    compact(house)
    caller = house.caller(7)
    assert [ended(find(house.partition(), time, caller)) for time in (1_000, 1_500, 2_500, -3)] == [
        (1, 1_000),
        (2, 2_000),
        (4, 3_000),
        (4, 3_000),
    ]
    assert ended(find(house.partition(), 4_000, caller)) == (-1, -1)


@pytest.mark.parametrize(
    ("unit", "time"),
    [
        (building.message_set(TWO_TIMES, magic=1), 1_000),
        (building.wrapper(TWO_TIMES, building.GZIP, magic=1), 1_000),
        (building.batch(TWO_TIMES), 1_000),
        (building.message_set(TWO_TIMES, magic=0), 9_000),
    ],
    ids=["set", "wrapper", "batch", "format 0"],
)
def test_a_shrunk_entry_bears_the_time_of_what_is_left_or_else_of_its_arrival(house, unit, time):
    partition = house.partition()
    asking.store(partition, Entry(0, 1, 9_000, unit))
    put(house, (b"a", b"2"))
    close(house)
    compact(house)
    first = ended(partition.log.read(0, 1))[0]
    assert (first.base_offset, first.last_offset, first.max_timestamp) == (0, 1, time)
    assert values(consume(house)) == [(1, b"1"), (2, b"2")]


def test_records_deleted_while_a_piece_is_rewritten_stay_deleted(house):
    for value in (b"1", b"2", b"3"):
        put(house, (b"a", value), (b"b", value))
    close(house)
    house.threads.hold()
    going = Started(LogCleaner(house.broker).round())
    ended(house.partition().log.delete_before(5))
    house.threads.release()
    assert going.is_done
    assert house.partition().log.start_offset == 5
    assert values(consume(house)) == [(5, b"3")]
    compact(house)
    assert values(consume(house)) == [(5, b"3")]


@pytest.mark.parametrize("end", ["stop", "policy", "delete"])
def test_a_pass_is_broken_off_at_the_next_piece(house, end, caplog):
    for value in (b"1", b"2"):
        put(house, (b"a", value))
    close(house)
    before = sizes(house.partition())
    compaction = LogCleaner(house.broker, piece_bytes=1)
    house.threads.hold()
    going = Started(compaction.round())
    live = house.broker.topics.require("orders")
    if end == "stop":
        compaction.stop()
    elif end == "policy":
        ended(
            house.broker.topics.alter(
                live, lambda topic: replace(topic, configs={"cleanup.policy": "delete"})
            )
        )
    else:
        ended(house.broker.topics.delete(live))
    with caplog.at_level(logging.WARNING):
        house.threads.release()
    assert going.is_done
    assert going.failure is None
    assert caplog.records == []
    if end != "delete":
        assert sizes(house.partition()) == before


def test_appends_go_on_while_a_pass_is_made(house):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    house.threads.hold()
    going = Started(LogCleaner(house.broker).round())
    put(house, (b"a", b"3"))
    house.threads.release()
    assert going.is_done
    assert values(consume(house)) == [(1, b"2"), (3, b"3")]


def test_a_store_that_refuses_is_told_and_the_next_round_goes_on(house, caplog):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    house.store.refuse_writes = True
    with caplog.at_level(logging.WARNING):
        compact(house)
    assert [record.getMessage() for record in caplog.records] == ["compaction failed"]
    assert len(values(consume(house))) == 2
    house.store.refuse_writes = False
    compact(house)
    assert values(consume(house)) == [(1, b"2")]


def test_a_changed_piece_does_not_rewrite_its_neighbours(house, monkeypatch):
    for n in range(5):
        put(house, (b"key %d" % n, b"1"))
    put(house, (b"key 2", b"2"))
    close(house)
    log = house.partition().log
    real, ranges = log.replace, []

    async def noted(first: int, last: int, entries: Any) -> None:
        ranges.append((first, last, len(entries)))
        await real(first, last, entries)

    monkeypatch.setattr(log, "replace", noted)
    compact(house)
    assert ranges == [(2, 2, 0)]


def test_it_is_done_at_an_interval_of_its_own():
    house = open_house(log_cleaner_backoff_ms=1000)
    table(house)
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    keeping = Housekeeping(house.broker, house.background)
    keeping.start()
    house.clock.advance(1)
    assert values(consume(house)) == [(1, b"2")]
    put(house, (b"a", b"3"))
    close(house)
    house.clock.advance(1)
    assert values(consume(house)) == [(3, b"3")]
    keeping.stop()
    assert not house.clock.getDelayedCalls()


class Reads:
    """Counts what compaction asks of a log that costs I/O."""

    def __init__(self, log, monkeypatch):
        self.count = 0
        for name in ("entry_for_time", "read", "reclaim"):
            monkeypatch.setattr(log, name, self._counted(getattr(log, name)))

    def _counted(self, real):
        def call(*arguments):
            self.count += 1
            return real(*arguments)

        return call

    def of_round(self, compaction: LogCleaner) -> int:
        self.count = 0
        ended(compaction.round())
        return self.count


def test_an_idle_partition_is_read_again_only_when_something_changes(monkeypatch):
    house = open_house()
    live = table(house, segment_ms=str(HOUR), segment_bytes="1000000")
    for value in (b"1", b"2"):
        put(house, (b"a", value), timestamp=house.now())
    house.clock.advance(60)
    put(house, (b"a", b"3"), timestamp=house.now())
    compaction = LogCleaner(house.broker)
    reads = Reads(house.partition().log, monkeypatch)
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    # More records; another config; and then time alone.
    put(house, (b"b", b"1"), timestamp=house.now())
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    configs = {**live.topic.configs, "segment.bytes": "1000001"}
    ended(house.broker.topics.alter(live, lambda topic: replace(topic, configs=configs)))
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    assert [offset for offset, _ in values(consume(house))] == [0, 1, 2, 3]
    house.clock.advance(HOUR / 1000 - 60)
    assert reads.of_round(compaction) > 0
    # The third record of the key is younger than segment.ms.
    assert [offset for offset, _ in values(consume(house))] == [1, 2, 3]


def test_new_records_that_are_too_few_cost_no_reading(monkeypatch):
    house = open_house()
    table(house, min_cleanable_dirty_ratio="0.5")
    for n in range(10):
        put(house, (b"key %d" % n, b"1"))
    close(house)
    compaction = LogCleaner(house.broker)
    ended(compaction.round())
    reads = Reads(house.partition().log, monkeypatch)
    for _ in range(3):
        put(house, (b"key 1", b"2"))
        assert reads.of_round(compaction) == 0


def test_a_partition_whose_only_new_records_stay_is_read_again_at_the_interval_of_retention(
    house, monkeypatch
):
    put(house, (b"a", b"1"), (b"a", b"2"))
    compaction = LogCleaner(house.broker)
    reads = Reads(house.partition().log, monkeypatch)
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    house.clock.advance(house.broker.settings.log_retention_check_interval_ms / 1000)
    assert reads.of_round(compaction) > 0


def test_overdue_records_are_compacted_in_the_round_after_they_became_so():
    house = open_house()
    table(house, min_cleanable_dirty_ratio="1", max_compaction_lag_ms=str(HOUR))
    for value in (b"1", b"2"):
        put(house, (b"a", value), timestamp=house.now())
    close(house)
    compaction = LogCleaner(house.broker)
    for wait, left in ((0, 2), (HOUR / 1000 - 1, 2), (1.001, 1)):
        house.clock.advance(wait)
        ended(compaction.round())
        assert len(values(consume(house))) == left


def test_space_is_reclaimed_at_the_interval_of_retention(house, monkeypatch):
    compaction = LogCleaner(house.broker)
    log = house.partition().log
    calls = []
    real = log.reclaim

    def reclaim():
        calls.append(house.clock.seconds())
        return real()

    monkeypatch.setattr(log, "reclaim", reclaim)
    for _ in range(41):
        ended(compaction.round())
        house.clock.advance(15)
    assert calls == [0, 300, 600]


def test_the_reactor_gets_a_turn_between_many_idle_partitions(house, monkeypatch):
    monkeypatch.setattr("gateway.partitions.compaction.CHECKS_PER_TURN", 10)
    table(house, "wide", partitions=25)
    going = Started(LogCleaner(house.broker).round())
    assert not going.is_done
    house.clock.advance(0)
    assert going.is_done


def test_logs_that_nobody_has_opened_are_left_to_whoever_leads_them(house, monkeypatch):
    monkeypatch.setattr(type(house.store), "retains_by_itself", True)
    table(house, "bills")
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    compact(house)
    assert values(consume(house)) == [(1, b"2")]
    assert house.broker.topics.opened("bills", 0) is None


def test_what_the_store_cannot_replace_stays_and_that_is_said_once(house, caplog):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    house.partition().log.can_replace = False
    compaction = LogCleaner(house.broker)
    for _ in range(2):
        ended(compaction.round())
    assert values(consume(house)) == [(0, b"1"), (1, b"2")]
    assert caplog.text.count("this gateway does not compact the topic") == 1


def test_space_that_cannot_be_freed_keeps_nothing_from_being_compacted(house, monkeypatch, caplog):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)

    async def refuses():
        raise StorageFailed("no answer")

    monkeypatch.setattr(house.partition().log, "reclaim", refuses)
    compact(house)
    assert values(consume(house)) == [(1, b"2")]
    assert "space is not freed yet" in caplog.text


def test_a_log_that_is_found_finished_is_compacted_when_it_was_opened_anew(house, caplog):
    put(house, (b"a", b"1"), (b"a", b"2"))
    close(house)
    house.store.fence("orders")
    compaction = LogCleaner(house.broker)
    ended(compaction.round())
    assert "compaction failed" in caplog.text
    ended(compaction.round())
    assert values(consume(house)) == [(1, b"2")]


def test_a_policy_of_both_compacts_and_deletes():
    house = open_house(log_cleaner_backoff_ms=1000, log_retention_check_interval_ms=1000)
    table(house, cleanup_policy="compact,delete", retention_ms=str(HOUR))
    put(house, (b"old", b"1"), timestamp=NOW - 2 * HOUR)
    put(house, (b"a", b"1"), (b"a", b"2"), timestamp=NOW)
    put(house, (b"z", b"1"), timestamp=NOW)
    Housekeeping(house.broker, house.background).start()
    house.clock.advance(1)
    assert house.partition().log.start_offset == 1
    assert values(consume(house)) == [(2, b"2"), (3, b"1")]


def test_an_entry_that_the_newest_bytes_begin_in_the_middle_of_is_not_among_them():
    """As in a segment, which holds no part of a batch."""
    house = open_house()
    size = len(batch([(b"a", b"0")]))
    table(house, segment_bytes=str(2 * size - 1))
    for n in range(4):
        put(house, (b"a", b"%d" % n), timestamp=house.now())
    compact(house)
    assert [offset for offset, _ in values(consume(house))] == [2, 3]
