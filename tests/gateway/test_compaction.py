"""Log compaction keeps the last record of each key at its offset, and loses or adds nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from gateway.compaction import LogCleaner
from gateway.handlers.list_offsets import find_offset
from gateway.housekeeping import Housekeeping
from gateway.partitions.record_batch import check_batch
from storage.log import Entry, StorageFailed
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment
from tests.gateway.handlers import handler_calls
from tests.gateway.partitions.compacted_topic import (
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
from tests.records import sample_records
from tests.records.peers import read_with_kafka_python
from tests.records.record_sets import batch
from tests.records.sample_records import Sample

HOUR = 3_600_000
TWO_TIMES = [Sample(0, 9_000, b"a", b"1"), Sample(1, 1_000, b"b", b"1")]


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    table(env)
    return env


@pytest.mark.parametrize("written", FORMATS, ids=str)
def test_last_record_of_each_key_stays_at_its_offset(env, written):
    put(env, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), written=written)
    put(env, (b"b", b"2"), (b"c", b"1"), written=written)
    close(env)
    compact(env)
    for version in FETCH_VERSIONS:
        assert values(consume(env, version)) == [(2, b"2"), (3, b"2"), (4, b"1")]
        assert values(consume(env, version, offset=3)) == [(3, b"2"), (4, b"1")]


def test_keys_are_compacted_across_formats(env):
    for n, written in enumerate(FORMATS):
        put(env, (b"k", b"%d" % n), (b"only here %d" % n, b"x"), written=written)
    close(env)
    compact(env)
    expected = [(2 * n + 1, b"x") for n in range(len(FORMATS))]
    expected.insert(-1, (2 * len(FORMATS) - 2, b"%d" % (len(FORMATS) - 1)))
    for version in FETCH_VERSIONS:
        assert values(consume(env, version)) == expected


def test_last_entry_is_not_compacted(env):
    put(env, (b"a", b"1"))
    put(env, (b"b", b"1"), (b"b", b"2"))
    compact(env)
    assert values(consume(env)) == [(0, b"1"), (1, b"1"), (2, b"2")]


def test_newest_segment_bytes_are_not_compacted_before_segment_ms():
    env = open_environment()
    size = len(batch([(b"a", b"0")]))
    table(env, segment_bytes=str(3 * size), segment_ms=str(HOUR))
    for n in range(6):
        put(env, (b"a", b"%d" % n), timestamp=env.now())
    compact(env)
    assert values(consume(env)) == [(n, b"%d" % n) for n in (2, 3, 4, 5)]
    env.clock.advance(HOUR / 1000)
    compact(env)
    assert values(consume(env)) == [(4, b"4"), (5, b"5")]


def test_records_within_min_compaction_lag_are_not_compacted():
    env = open_environment()
    table(env, min_compaction_lag_ms=str(HOUR))
    for age in (3 * HOUR, 2 * HOUR, HOUR // 2, HOUR // 2, 0):
        put(env, (b"a", b"%d" % age), timestamp=env.now() - age)
    compact(env)
    assert [offset for offset, _ in values(consume(env))] == [1, 2, 3, 4]


def test_pass_waits_for_min_cleanable_dirty_ratio():
    env = open_environment()
    table(env, min_cleanable_dirty_ratio="0.5")
    for n in range(4):
        put(env, (b"key %d" % n, b"1"))
    close(env)
    compact(env)
    put(env, (b"key 1", b"2"))
    close(env)
    compact(env)
    assert len(values(consume(env))) == 5
    for n in range(2, 6):
        put(env, (b"key %d" % n, b"2"))
    compact(env)
    assert [offset for offset, _ in values(consume(env))] == [0, 5, 7, 8, 9, 10]


def test_records_beyond_max_compaction_lag_are_always_compacted():
    env = open_environment()
    table(env, min_cleanable_dirty_ratio="1", max_compaction_lag_ms=str(HOUR))
    put(env, (b"a", b"1"), timestamp=env.now())
    put(env, (b"a", b"2"), timestamp=env.now())
    close(env)
    compact(env)
    assert len(values(consume(env))) == 2
    env.clock.advance(HOUR / 1000 + 1)
    compact(env)
    assert values(consume(env)) == [(1, b"2")]


def test_tombstone_stays_for_delete_retention_after_pass():
    env = open_environment()
    table(env, delete_retention_ms=str(HOUR))
    put(env, (b"a", b"1"), (b"b", b"1"))
    put(env, (b"a", None))
    close(env)
    compact(env)
    assert values(consume(env)) == [(1, b"1"), (2, None)]
    env.clock.advance(HOUR / 1000 - 1)
    close(env)
    compact(env)
    assert values(consume(env)) == [(1, b"1"), (2, None)]
    # 1/64 more, since the times of passes are rounded up by that much.
    env.clock.advance(1 + HOUR / 64 / 1000)
    close(env)
    compact(env)
    assert values(consume(env)) == [(1, b"1")]


@pytest.mark.parametrize("written", [(0, 0), (1, 1), (2, 0)], ids=str)
def test_tombstone_without_retention_is_removed_by_second_pass(written):
    env = open_environment()
    table(env, delete_retention_ms="0")
    put(env, (b"a", b"1"), written=written)
    put(env, (b"a", None), written=written)
    close(env)
    compact(env)
    assert values(consume(env)) == [(1, None)]
    close(env)
    compact(env)
    assert values(consume(env)) == []


def test_records_without_key_are_removed(env):
    put(env, (None, b"1"), (b"a", b"1"))
    close(env)
    compact(env)
    assert values(consume(env)) == [(1, b"1")]


def test_checkpoint_survives_restart(env):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    compact(env)
    again = open_environment(reopened(env))
    compact(again)
    assert again.threads.calls == 0


def test_unreadable_checkpoint_causes_full_pass(env, caplog):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    compact(env)
    rows = env.store.medium.tables["compaction"]
    rows.update(dict.fromkeys(rows, b"junk"))
    put(env, (b"a", b"3"))
    close(env)
    again = open_environment(reopened(env))
    with caplog.at_level(logging.WARNING):
        compact(again)
    assert values(consume(again)) == [(3, b"3")]
    assert [record.getMessage() for record in caplog.records] == [
        "compaction checkpoint unreadable, compacting the whole log"
    ]


def test_checkpoint_is_deleted_with_topic(env):
    put(env, (b"a", b"1"))
    close(env)
    compact(env)
    assert len(env.store.medium.tables["compaction"]) == 1
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    compact(env)
    assert env.store.medium.tables["compaction"] == {}


def test_recreated_topic_is_compacted_from_its_start(env):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    compact(env)
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    table(env)
    put(env, (b"a", b"3"), (b"a", b"4"))
    close(env)
    compact(env)
    assert values(consume(env)) == [(1, b"4")]


def test_topics_without_compact_policy_are_not_compacted(env):
    env.topic("log", segment_bytes="14", min_cleanable_dirty_ratio="0")
    for topic in ("log", "orders"):
        put(env, (b"a", b"1"), (b"a", b"2"), topic=topic)
        close(env, topic)
    before = sizes(env.partition("log"))
    compact(env)
    assert sizes(env.partition("log")) == before
    assert sizes(env.partition("orders")) != before


def test_more_keys_than_limit_take_several_passes(env):
    for value in (b"1", b"2"):
        for n in range(0, 12, 4):
            put(env, *((b"key %d" % (n + i), value) for i in range(4)))
    close(env)
    compact(env, max_keys=5, chunk_bytes=1)
    assert values(consume(env)) == [(12 + n, b"2") for n in range(12)]


def test_keys_of_any_length_are_distinguished(env):
    keys = [b"", b"\0", *(bytes(n) for n in (15, 16, 17, 1000)), bytes(999) + b"\1"]
    put(env, *((key, b"1") for key in keys))
    put(env, *((key, b"2") for key in keys))
    close(env)
    compact(env)
    assert values(consume(env)) == [(len(keys) + n, b"2") for n in range(len(keys))]


def reopened(env: BrokerEnvironment) -> Any:
    """Return another broker on the same store, as after a crash."""
    medium = env.store.medium
    medium.held_by = None
    return medium


def test_last_batch_of_producer_keeps_sequence_after_restart(env):
    put(env, (b"a", b"1"), (b"a", b"2"), producer=(7, 0, 0))
    put(env, (b"a", b"3"), (b"b", b"1"), (b"a", b"4"), producer=(7, 0, 2))
    put(env, (b"a", b"5"), (b"b", b"2"))
    close(env)
    compact(env)
    assert values(consume(env)) == [(5, b"5"), (6, b"2")]
    again = open_environment(reopened(env))
    (found,) = list(again.partition().producers)
    assert (found[0], found[1].batches[-1].last_sequence, found[1].batches[-1].last_offset) == (
        7,
        4,
        4,
    )
    put(again, (b"c", b"1"), producer=(7, 0, 5))
    close(again)
    compact(again)
    for version in FETCH_VERSIONS:
        assert values(consume(again, version)) == [(5, b"5"), (6, b"2"), (8, b"1")]
    assert 61 not in sizes(again.partition())


def test_in_flight_batch_preserves_producers_last_durable_batch(env):
    put(env, (b"a", b"1"), producer=(7, 0, 0))
    put(env, (b"a", b"2"))
    close(env)
    next_batch = batch([(b"z", b"1")], producer=(7, 0, 1))
    env.threads.hold()
    going = Started(LogCleaner(env.broker).run_once())
    env.store.hold()
    waiting = Started(
        env.partition().append_batch(next_batch, check_batch(next_batch, 11), env.now())
    )
    env.threads.release()
    env.store.refuse_writes = True
    env.store.release()
    env.store.refuse_writes = False
    assert waiting.failure is not None
    assert going.is_done
    compact(env)
    again = open_environment(reopened(env))
    ((_, producer),) = again.partition().producers
    assert producer.batches[-1].last_sequence == 0


def test_unreadable_records_and_tombstones_stay(caplog):
    env = open_environment()
    table(env, delete_retention_ms="0")
    partition = env.partition()
    put(env, (b"b", b"1"), (b"c", b"1"))
    broken = bytearray(batch([(b"a", b"1")]))
    broken[-1] ^= 1
    handler_calls.append_entries(partition, Entry(2, 2, 5, bytes(broken)))
    put(env, (b"a", None), (b"b", b"2"))
    for _ in range(3):
        close(env)
        with caplog.at_level(logging.WARNING):
            compact(env)
    entries = ended(partition.log.read(0, 1 << 20))
    assert bytes(entries[1].payload) == bytes(broken)
    assert values(consume(env, offset=3)) == [(3, None), (4, b"2")]
    assert [offset for offset, *_ in consume_only(entries[0])] == [1]
    assert {record.getMessage() for record in caplog.records} == {
        "unreadable records kept, not compacted"
    }


def test_damaged_entries_stay_and_the_others_are_compacted(env, caplog):
    for value in (b"1", b"2", b"3"):
        put(env, (b"a", value), (value, b"x"))
    close(env)
    assert damaged_and_compacted(env, 2) == [(1, b"x"), (2, b"2"), (3, b"x"), (4, b"3"), (5, b"x")]
    put(env, (b"a", b"4"))
    close(env)
    # What an earlier pass has left is read, too.
    assert damaged_and_compacted(env, 0) == [(1, b"x"), (3, b"x"), (5, b"x"), (7, b"4")]
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert lines == ["unreadable records kept, not compacted"] * 2


def damaged_and_compacted(env: BrokerEnvironment, offset: int) -> list[tuple[int, bytes | None]]:
    """Compact while the entry at `offset` cannot be read, and return what is left."""
    (rows,) = env.store.medium.logs.values()
    rows.damaged = {offset}
    compact(env)
    rows.damaged = set()
    return values(consume(env))


def test_tombstones_stay_while_an_entry_is_damaged() -> None:
    """It may have a value that they delete."""
    env = open_environment()
    table(env, delete_retention_ms="0")
    put(env, (b"a", b"1"))
    put(env, (b"a", None))
    for _ in range(3):
        close(env)
        damaged_and_compacted(env, 0)
        env.clock.advance(1)
    assert damaged_and_compacted(env, 0)[:2] == [(0, b"1"), (1, None)]


@pytest.mark.parametrize("lag", ["min", "max"])
def test_age_of_a_damaged_entry_is_known(lag):
    env = open_environment()
    limits = {f"{lag}_compaction_lag_ms": str(HOUR)}
    table(env, min_cleanable_dirty_ratio="0" if lag == "min" else "1", **limits)
    for value in (b"1", b"2", b"3"):
        put(env, (b"a", value), timestamp=env.now())
    close(env)
    (rows,) = env.store.medium.logs.values()
    rows.damaged = {0}
    env.clock.advance(HOUR / 1000 + 1)
    if lag == "min":
        put(env, (b"b", b"new"), timestamp=env.now())
    compact(env)
    rows.damaged = set()
    assert [value for _, value in values(consume(env))][:2] == [b"1", b"3"]


def consume_only(entry: Entry) -> list[Any]:
    return read_with_kafka_python(bytes(entry.payload))


def test_time_index_points_to_existing_records(env):
    put(env, (b"a", b"1"), timestamp=5_000)
    put(env, (b"b", b"1"), timestamp=1_000)
    put(env, (b"a", b"2"), timestamp=2_000)
    put(env, (b"c", b"1"), timestamp=6_000, producer=(7, 0, 0))
    put(env, (b"c", b"2"), timestamp=3_000)
    put(env, (b"z", b"1"), timestamp=500)
    compact(env)
    caller = env.caller(7)
    assert [
        ended(find_offset(env.partition(), time, caller)) for time in (1_000, 1_500, 2_500, -3)
    ] == [
        (1, 1_000),
        (2, 2_000),
        (4, 3_000),
        (4, 3_000),
    ]
    assert ended(find_offset(env.partition(), 4_000, caller)) == (-1, -1)


@pytest.mark.parametrize(
    ("unit", "time"),
    [
        (sample_records.message_set(TWO_TIMES, magic=1), 1_000),
        (sample_records.wrapper(TWO_TIMES, sample_records.GZIP, magic=1), 1_000),
        (sample_records.batch(TWO_TIMES), 1_000),
        (sample_records.message_set(TWO_TIMES, magic=0), 9_000),
    ],
    ids=["set", "wrapper", "batch", "format 0"],
)
def test_rewritten_entry_has_max_timestamp_of_remaining_records(env, unit, time):
    partition = env.partition()
    handler_calls.append_entries(partition, Entry(0, 1, 9_000, unit))
    put(env, (b"a", b"2"))
    close(env)
    compact(env)
    first = ended(partition.log.read(0, 1))[0]
    assert (first.base_offset, first.last_offset, first.max_timestamp) == (0, 1, time)
    assert values(consume(env)) == [(1, b"1"), (2, b"2")]


def test_records_deleted_during_rewrite_stay_deleted(env):
    for value in (b"1", b"2", b"3"):
        put(env, (b"a", value), (b"b", value))
    close(env)
    env.threads.hold()
    going = Started(LogCleaner(env.broker).run_once())
    ended(env.partition().log.delete_before(5))
    env.threads.release()
    assert going.is_done
    assert env.partition().log.start_offset == 5
    assert values(consume(env)) == [(5, b"3")]
    compact(env)
    assert values(consume(env)) == [(5, b"3")]


@pytest.mark.parametrize("end", ["stop", "policy", "delete"])
def test_stop_ends_pass_after_current_chunk(env, end, caplog):
    for value in (b"1", b"2"):
        put(env, (b"a", value))
    close(env)
    before = sizes(env.partition())
    compaction = LogCleaner(env.broker, chunk_bytes=1)
    env.threads.hold()
    going = Started(compaction.run_once())
    live = env.broker.topics.require("orders")
    if end == "stop":
        compaction.stop()
    elif end == "policy":
        ended(
            env.broker.topics.alter(
                live, lambda topic: replace(topic, configs={"cleanup.policy": "delete"})
            )
        )
    else:
        ended(env.broker.topics.delete(live))
    with caplog.at_level(logging.WARNING):
        env.threads.release()
    assert going.is_done
    assert going.failure is None
    assert caplog.records == []
    if end != "delete":
        assert sizes(env.partition()) == before


def test_appends_continue_during_pass(env):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    env.threads.hold()
    going = Started(LogCleaner(env.broker).run_once())
    put(env, (b"a", b"3"))
    env.threads.release()
    assert going.is_done
    assert values(consume(env)) == [(1, b"2"), (3, b"3")]


def test_storage_error_is_logged_and_next_run_continues(env, caplog):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    env.store.refuse_writes = True
    with caplog.at_level(logging.WARNING):
        compact(env)
    assert [record.getMessage() for record in caplog.records] == [
        "compaction failed, retried by the next run"
    ]
    assert len(values(consume(env))) == 2
    env.store.refuse_writes = False
    compact(env)
    assert values(consume(env)) == [(1, b"2")]


def test_unchanged_entries_are_not_rewritten(env, monkeypatch):
    for n in range(5):
        put(env, (b"key %d" % n, b"1"))
    put(env, (b"key 2", b"2"))
    close(env)
    log = env.partition().log
    real, ranges = log.replace, []

    async def noted(first: int, last: int, entries: Any) -> None:
        ranges.append((first, last, len(entries)))
        await real(first, last, entries)

    monkeypatch.setattr(log, "replace", noted)
    compact(env)
    assert ranges == [(2, 2, 0)]


def test_compaction_runs_at_cleaner_backoff_interval():
    env = open_environment(log_cleaner_backoff_ms=1000)
    table(env)
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    keeping = Housekeeping(env.broker, env.background)
    keeping.start()
    env.clock.advance(1)
    assert values(consume(env)) == [(1, b"2")]
    put(env, (b"a", b"3"))
    close(env)
    env.clock.advance(1)
    assert values(consume(env)) == [(3, b"3")]
    keeping.stop()
    assert not env.clock.getDelayedCalls()


class Reads:
    """Counts the reads that compaction requests of a log."""

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
        ended(compaction.run_once())
        return self.count


def test_idle_partition_is_read_only_after_a_change(monkeypatch):
    env = open_environment()
    live = table(env, segment_ms=str(HOUR), segment_bytes="1000000")
    for value in (b"1", b"2"):
        put(env, (b"a", value), timestamp=env.now())
    env.clock.advance(60)
    put(env, (b"a", b"3"), timestamp=env.now())
    compaction = LogCleaner(env.broker)
    reads = Reads(env.partition().log, monkeypatch)
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    # New records, a changed config, and then only time.
    put(env, (b"b", b"1"), timestamp=env.now())
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    configs = {**live.topic.configs, "segment.bytes": "1000001"}
    ended(env.broker.topics.alter(live, lambda topic: replace(topic, configs=configs)))
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    assert [offset for offset, _ in values(consume(env))] == [0, 1, 2, 3]
    env.clock.advance(HOUR / 1000 - 60)
    assert reads.of_round(compaction) > 0
    # The third record of the key is younger than segment.ms.
    assert [offset for offset, _ in values(consume(env))] == [1, 2, 3]


def test_too_few_dirty_bytes_cause_no_reads(monkeypatch):
    env = open_environment()
    table(env, min_cleanable_dirty_ratio="0.5")
    for n in range(10):
        put(env, (b"key %d" % n, b"1"))
    close(env)
    compaction = LogCleaner(env.broker)
    ended(compaction.run_once())
    reads = Reads(env.partition().log, monkeypatch)
    for _ in range(3):
        put(env, (b"key 1", b"2"))
        assert reads.of_round(compaction) == 0


def test_partition_without_cleanable_entries_is_retried_at_retention_interval(env, monkeypatch):
    put(env, (b"a", b"1"), (b"a", b"2"))
    compaction = LogCleaner(env.broker)
    reads = Reads(env.partition().log, monkeypatch)
    assert reads.of_round(compaction) > 0
    assert reads.of_round(compaction) == 0
    env.clock.advance(env.broker.settings.log_retention_check_interval_ms / 1000)
    assert reads.of_round(compaction) > 0


def test_overdue_records_are_compacted_by_next_run():
    env = open_environment()
    table(env, min_cleanable_dirty_ratio="1", max_compaction_lag_ms=str(HOUR))
    for value in (b"1", b"2"):
        put(env, (b"a", value), timestamp=env.now())
    close(env)
    compaction = LogCleaner(env.broker)
    for wait, left in ((0, 2), (HOUR / 1000 - 1, 2), (1.001, 1)):
        env.clock.advance(wait)
        ended(compaction.run_once())
        assert len(values(consume(env))) == left


def test_space_is_reclaimed_at_retention_interval(env, monkeypatch):
    compaction = LogCleaner(env.broker)
    log = env.partition().log
    calls = []
    real = log.reclaim

    def reclaim():
        calls.append(env.clock.seconds())
        return real()

    monkeypatch.setattr(log, "reclaim", reclaim)
    for _ in range(41):
        ended(compaction.run_once())
        env.clock.advance(15)
    assert calls == [0, 300, 600]


def test_run_over_many_idle_partitions_yields_to_reactor(env, monkeypatch):
    monkeypatch.setattr("gateway.compaction.CHECKS_PER_TURN", 10)
    table(env, "wide", partitions=25)
    going = Started(LogCleaner(env.broker).run_once())
    assert not going.is_done
    env.clock.advance(0)
    assert going.is_done


def test_unopened_logs_of_shared_store_are_not_opened(env, monkeypatch):
    monkeypatch.setattr(type(env.store), "retains_by_itself", True)
    table(env, "bills")
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    compact(env)
    assert values(consume(env)) == [(1, b"2")]
    assert env.broker.topics.get_open_partition("bills", 0) is None


def test_log_without_replace_is_skipped_and_logged_once(env, caplog):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    env.partition().log.can_replace = False
    compaction = LogCleaner(env.broker)
    for _ in range(2):
        ended(compaction.run_once())
    assert values(consume(env)) == [(0, b"1"), (1, b"2")]
    assert caplog.text.count("topic not compacted") == 1


def test_failed_reclaim_does_not_prevent_compaction(env, monkeypatch, caplog):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)

    async def refuses():
        raise StorageFailed("no answer")

    monkeypatch.setattr(env.partition().log, "reclaim", refuses)
    compact(env)
    assert values(consume(env)) == [(1, b"2")]
    assert "space not reclaimed" in caplog.text


def test_fenced_log_is_compacted_after_reopening(env, caplog):
    put(env, (b"a", b"1"), (b"a", b"2"))
    close(env)
    env.store.fence("orders")
    compaction = LogCleaner(env.broker)
    ended(compaction.run_once())
    assert "compaction failed" in caplog.text
    ended(compaction.run_once())
    assert values(consume(env)) == [(1, b"2")]


def test_policy_compact_delete_does_both():
    env = open_environment(log_cleaner_backoff_ms=1000, log_retention_check_interval_ms=1000)
    table(env, cleanup_policy="compact,delete", retention_ms=str(HOUR))
    put(env, (b"old", b"1"), timestamp=NOW - 2 * HOUR)
    put(env, (b"a", b"1"), (b"a", b"2"), timestamp=NOW)
    put(env, (b"z", b"1"), timestamp=NOW)
    Housekeeping(env.broker, env.background).start()
    env.clock.advance(1)
    assert env.partition().log.start_offset == 1
    assert values(consume(env)) == [(2, b"2"), (3, b"1")]


def test_entry_crossing_segment_bytes_is_compacted():
    """As in Kafka, where a segment holds whole batches."""
    env = open_environment()
    size = len(batch([(b"a", b"0")]))
    table(env, segment_bytes=str(2 * size - 1))
    for n in range(4):
        put(env, (b"a", b"%d" % n), timestamp=env.now())
    compact(env)
    assert [offset for offset, _ in values(consume(env))] == [2, 3]
