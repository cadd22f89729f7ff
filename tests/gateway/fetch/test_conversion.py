"""Conversion: off the reactor thread, shared by all consumers, with a bounded cache."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from gateway.fetch import conversion, conversion_calls, entry_loops
from gateway.fetch.conversion import (
    ENTRY_OVERHEAD,
    ConversionBudget,
    Converter,
    SourcePartition,
)
from gateway.fetch.conversion_calls import V2_WITH_ZSTD, V2_WITHOUT_ZSTD, RunKey
from gateway.protocol.errors import ErrorCode
from records import NoMemory, kernel, read_header, stamp_batch
from storage.log import Entry
from tests.fakes.broker import Started, Threads, ended
from tests.records import sample_records
from tests.records.peers import read_with_kafka_python
from tests.records.record_sets import TIME, batch, old_set
from tests.records.sample_records import Sample

SOURCE = SourcePartition("t", b"t" * 16, 0)


@pytest.fixture
def threads() -> Threads:
    return Threads()


def converter(threads: Threads, cache_bytes: int = 1 << 20) -> Converter:
    return Converter(threads.run_for, cache_bytes=cache_bytes, max_decompressed_bytes=1 << 20)


@pytest.fixture
def one(threads: Threads) -> Converter:
    return converter(threads)


def stored(base_offset: int = 0, records: int = 3) -> Entry:
    payload = batch(records)
    stamp_batch(payload, base_offset, 0, None)
    return Entry(base_offset, base_offset + records - 1, TIME, bytes(payload))


def as_stored(payload: bytes) -> Entry:
    return Entry(0, 0, TIME, payload)


@pytest.mark.parametrize("magic", [0, 1])
def test_batch_is_converted_to_consumer_format(one, magic):
    (converted,) = ended(one.convert(SOURCE, [stored(7)], magic))
    assert converted[16] == magic
    assert [(found[0], found[3]) for found in read_with_kafka_python(bytes(converted))] == [
        (7 + n, b"k%d" % n) for n in range(3)
    ]


def test_readable_payload_is_returned_unchanged(one, threads):
    entry = as_stored(bytes(old_set(3, magic=0)))
    (same,) = ended(one.convert(SOURCE, [entry], 1))
    assert same is entry.payload
    assert threads.calls == 0


def test_control_batch_is_empty_without_conversion(one, threads):
    control = sample_records.batch(
        [Sample(0, TIME, b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=0x30, producer=(1, 0, -1)
    )
    assert read_header(control).is_control
    assert ended(one.convert(SOURCE, [as_stored(control)], 0)) == [b""]
    assert threads.calls == 0


def test_entries_are_converted_in_one_call_and_in_order(one, threads):
    entries = [stored(0), as_stored(bytes(old_set(1, magic=0))), stored(3), stored(6)]
    results = ended(one.convert(SOURCE, entries, 0))
    assert [read_with_kafka_python(bytes(result))[0][0] for result in results] == [0, 0, 3, 6]
    assert threads.calls == 1


def test_second_consumer_gets_cached_result(one, threads):
    first = ended(one.convert(SOURCE, [stored()], 1))
    assert ended(one.convert(SOURCE, [stored()], 1))[0] is first[0]
    assert (threads.calls, one.conversions) == (1, 1)


def test_empty_result_is_cached(one, threads):
    """A batch that compaction emptied."""
    empty = sample_records.batch([], base_offset=5, last_offset=9)
    for _ in range(3):
        assert ended(one.convert(SOURCE, [Entry(5, 9, TIME, empty)], 1)) == [b""]
    assert threads.calls == 1
    assert one.cached_bytes == ENTRY_OVERHEAD


@pytest.mark.parametrize(
    ("topic", "partition", "base_offset", "records", "magic"),
    [
        (b"u" * 16, 0, 0, 3, 1),
        (b"t" * 16, 1, 0, 3, 1),
        (b"t" * 16, 0, 9, 3, 1),
        (b"t" * 16, 0, 0, 4, 1),
        (b"t" * 16, 0, 0, 3, 0),
    ],
    ids=["topic", "partition", "offset", "size", "format"],
)
def test_cache_key_includes_entry_and_format(one, topic, partition, base_offset, records, magic):
    ended(one.convert(SOURCE, [stored()], 1))
    ended(
        one.convert(SourcePartition("t", topic, partition), [stored(base_offset, records)], magic)
    )
    assert one.conversions == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda value: sample_records.batch([Sample(0, TIME, b"k", value)]),
        lambda value: sample_records.message_set(
            [Sample(0, TIME, b"first", b"same"), Sample(1, TIME, b"k", value)], magic=1
        ),
    ],
    ids=["batch", "message set"],
)
def test_compacted_entry_of_same_size_has_other_cache_key(one, make):
    for value in (b"before", b"behind"):
        (converted,) = ended(one.convert(SOURCE, [as_stored(make(value))], 0))
        assert read_with_kafka_python(bytes(converted))[-1][4] == value


def test_concurrent_consumers_share_one_conversion(one, threads):
    threads.hold()
    consumers = [Started(one.convert(SOURCE, [stored()], 1)) for _ in range(5)]
    threads.release()
    assert len({id(consumer.result[0]) for consumer in consumers}) == 1
    assert one.conversions == 1


def test_overlapping_consumers_share_common_entries(one, threads):
    threads.hold()
    one_to_two = Started(one.convert(SOURCE, [stored(0), stored(3)], 1))
    two_to_three = Started(one.convert(SOURCE, [stored(3), stored(6)], 1))
    threads.release()
    assert one_to_two.result[1] is two_to_three.result[0]
    assert one.conversions == 3


@pytest.mark.parametrize("who", [0, 1])
def test_cancelled_consumer_does_not_cancel_conversion_of_others(one, threads, who):
    threads.hold()
    consumers = [Started(one.convert(SOURCE, [stored()], 1)) for _ in range(2)]
    consumers[who].cancel()
    threads.release()
    assert consumers[1 - who].result[0][16] == 1
    assert consumers[who].failure is not None


def broken(base_offset: int = 3) -> Entry:
    payload = bytearray(stored(base_offset).payload)
    payload[-1] ^= 1
    return Entry(base_offset, base_offset + 2, TIME, bytes(payload))


def logged_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_unreadable_entry_is_empty_and_others_are_converted(one):
    good, bad, also_good = ended(one.convert(SOURCE, [stored(0), broken(), stored(6)], 0))
    assert (good[16], bad, also_good[16]) == (0, b"", 0)


@pytest.mark.parametrize(
    ("magic", "given"), [(0, False), (1, False), (V2_WITHOUT_ZSTD, True), (V2_WITH_ZSTD, True)]
)
@pytest.mark.parametrize("size", [17, 22])
def test_batch_shorter_than_its_attributes_is_empty_or_unchanged(one, size, magic, given):
    """A Pulsar client can write one with the properties of the gateway's messages."""
    short = as_stored(bytes(stored().payload[:size]))
    assert ended(one.convert(SOURCE, [short], magic)) == [short.payload if given else b""]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_unreadable_entry_is_logged_once(threads, caplog, cache_bytes):
    one = converter(threads, cache_bytes)
    with caplog.at_level(logging.WARNING):
        for magic in (0, 1, 0):
            ended(one.convert(SOURCE, [broken()], magic))
    (record,) = caplog.records
    assert logged_messages(caplog) == ["unreadable records skipped for old consumers"]
    assert record.fields == {
        "topic": "t",
        "partition": 0,
        "first_offset": 3,
        "last_offset": 5,
        "reason": "record batch checksum does not match",
    }


def test_memory_of_logged_entries_is_bounded(threads, caplog, monkeypatch):
    monkeypatch.setattr(conversion, "MAX_REPORTED_UNREADABLE", 2)
    one = converter(threads, 0)
    with caplog.at_level(logging.WARNING):
        for base_offset in (0, 10, 20, 20, 0):
            ended(one.convert(SOURCE, [broken(base_offset)], 1))
    assert len(logged_messages(caplog)) == 4


@pytest.mark.parametrize("codec", [sample_records.GZIP, sample_records.LZ4])
def test_decompression_bomb_is_empty_and_log_names_setting(threads, caplog, codec):
    bomb = sample_records.batch([Sample(0, TIME, None, bytes(2 << 20))], codec=codec)
    with caplog.at_level(logging.WARNING):
        assert ended(converter(threads).convert(SOURCE, [as_stored(bomb)], 1)) == [b""]
    (event,) = logged_messages(caplog)
    assert "max_decompressed_bytes" in event


def test_unreadable_zstd_is_empty_for_old_consumers(one):
    bad = bytearray(
        sample_records.batch([Sample(0, TIME, None, b"v" * 100)], codec=sample_records.ZSTD)
    )
    bad[-1] ^= 1
    assert ended(one.convert(SOURCE, [as_stored(bytes(bad))], 2)) == [b""]


def test_out_of_memory_is_a_retriable_error(threads, caplog):
    failures = [NoMemory("no memory to decompress gzip")]

    def run_for(owner, function, *arguments):
        return (
            threads.run(lambda: ([failures.pop()], 0))
            if failures
            else threads.run(function, *arguments)
        )

    one = Converter(run_for, cache_bytes=1 << 20, max_decompressed_bytes=1 << 20)
    with caplog.at_level(logging.WARNING):
        (refused,) = ended(one.convert(SOURCE, [stored()], 1))
    assert refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert logged_messages(caplog) == []
    assert ended(one.convert(SOURCE, [stored()], 1))[0][16] == 1


def test_unexpected_error_fails_all_waiters_and_is_retried(threads):
    broken = [True]

    def run_for(owner, function, *arguments):
        return threads.run(lambda: 1 // 0) if broken[0] else threads.run(function, *arguments)

    one = Converter(run_for, cache_bytes=1 << 20, max_decompressed_bytes=1 << 20)
    threads.hold()
    consumers = [Started(one.convert(SOURCE, [stored()], 1)) for _ in range(2)]
    threads.release()
    assert [type(consumer.failure) for consumer in consumers] == [ZeroDivisionError] * 2
    broken[0] = False
    assert ended(one.convert(SOURCE, [stored()], 1))[0][16] == 1


def test_cache_evicts_least_recently_used_beyond_limit(threads):
    size = len(ended(converter(threads).convert(SOURCE, [stored()], 1))[0]) + ENTRY_OVERHEAD
    one = converter(threads, cache_bytes=2 * size)
    for base_offset in (0, 10, 0, 20, 0, 10):
        ended(one.convert(SOURCE, [stored(base_offset)], 1))
        assert one.cached_bytes <= 2 * size
    # 0 was used most recently each time; 10 was evicted for 20.
    assert one.conversions == 4


def test_without_cache_every_fetch_converts(threads):
    one = converter(threads, cache_bytes=0)
    for _ in range(2):
        ended(one.convert(SOURCE, [stored()], 1))
    assert (one.conversions, one.cached_bytes) == (2, 0)


def expensive(monkeypatch):
    """Each call exhausts the conversion budget of a fetch."""
    monkeypatch.setattr(conversion_calls, "FETCH_CPU_US", -1)
    monkeypatch.setattr(conversion_calls, "MAX_CALL_BYTES", 1)


def entries_at(*offsets: int) -> list[Entry]:
    return [stored(offset) for offset in offsets]


def test_exhausted_budget_leaves_rest_to_next_fetch(one, monkeypatch):
    budget = ConversionBudget()
    expensive(monkeypatch)
    entries = entries_at(0, 10, 20)
    assert len(ended(one.convert(SOURCE, entries, 1, budget=budget))) == 1
    assert one.conversions == 1
    monkeypatch.undo()
    assert len(ended(one.convert(SOURCE, entries, 1, budget=ConversionBudget()))) == 3


def test_exhausted_budget_returns_only_cached_results(one, monkeypatch):
    budget = ConversionBudget()
    budget.left_us = 0
    ended(one.convert(SOURCE, entries_at(0), 1))
    assert len(ended(one.convert(SOURCE, entries_at(0, 10), 1, budget=budget))) == 1
    assert ended(one.convert(SOURCE, entries_at(10), 1, budget=budget)) == []
    assert one.conversions == 1


def test_entries_omitted_by_other_job_are_converted(one, threads, monkeypatch):
    threads.hold()
    first = Started(one.convert(SOURCE, entries_at(0, 10), 1))
    second = Started(one.convert(SOURCE, entries_at(10, 20), 1))
    expensive(monkeypatch)
    threads.release()
    assert (len(first.result), len(second.result)) == (1, 1)


def test_job_without_waiters_is_cancelled(one, threads):
    threads.hold()
    consumers = [Started(one.convert(SOURCE, [stored()], 1)) for _ in range(2)]
    consumers[0].cancel()
    again = Started(one.convert(SOURCE, [stored()], 1))
    assert threads.calls == 1
    for consumer in (consumers[1], again):
        consumer.cancel()
    threads.release()
    assert one.conversions == 0
    assert len(ended(one.convert(SOURCE, [stored()], 1))) == 1
    assert one.conversions == 1


def short_converter(threads: Threads, cache_bytes: int = 1 << 20) -> Converter:
    return Converter(
        threads.run_for,
        cache_bytes=cache_bytes,
        max_decompressed_bytes=1 << 20,
        converts_at_once=True,
    )


def test_short_conversion_uses_no_thread(one, threads):
    entries = [stored(0), broken(), stored(6)]
    expected = ended(one.convert(SOURCE, entries, 1))
    calls = threads.calls
    short = short_converter(threads)
    for _ in range(2):
        assert ended(short.convert(SOURCE, entries, 1)) == expected
    assert (threads.calls, short.conversions) == (calls, 2)


@pytest.mark.parametrize("limit", ["AT_ONCE_BYTES", "AT_ONCE_RECORDS"])
def test_longer_conversions_of_one_fetch_use_a_thread(threads, monkeypatch, limit):
    size = {"AT_ONCE_BYTES": len(stored().payload), "AT_ONCE_RECORDS": 3}[limit]
    monkeypatch.setattr(conversion, limit, 2 * size)
    one, budget = short_converter(threads), ConversionBudget()
    ended(one.convert(SOURCE, entries_at(0, 10), 1, budget=budget))
    assert threads.calls == 0
    ended(one.convert(SOURCE, entries_at(20), 1, budget=budget))
    assert threads.calls == 1
    ended(one.convert(SOURCE, entries_at(30, 40, 50), 1, budget=ConversionBudget()))
    assert threads.calls == 2


@pytest.mark.parametrize(
    ("payload", "magic"),
    [
        (sample_records.batch([Sample(0, TIME, None, b"v")], codec=sample_records.GZIP), 1),
        (bytes(old_set(3, magic=1)), 0),
        (bytes(old_set(3, magic=1)), V2_WITH_ZSTD),
    ],
    ids=["compressed", "message set", "up-conversion"],
)
def test_other_conversions_use_a_thread(threads, payload, magic):
    ended(short_converter(threads).convert(SOURCE, [as_stored(bytes(payload))], magic))
    assert threads.calls == 1


def test_short_conversion_gets_entries_of_a_running_job_from_it(threads, monkeypatch):
    one = short_converter(threads)
    threads.hold()
    monkeypatch.setattr(conversion, "AT_ONCE_BYTES", 0)
    first = Started(one.convert(SOURCE, entries_at(0), 1))
    monkeypatch.undo()
    second = Started(one.convert(SOURCE, entries_at(0, 10), 1))
    assert (threads.calls, one.conversions) == (1, 1)
    threads.release()
    assert second.result[0] is first.result[0]
    assert (threads.calls, one.conversions) == (1, 2)


def test_entry_is_converted_again_after_a_bug_in_a_short_conversion(threads, monkeypatch):
    one = short_converter(threads)
    monkeypatch.setattr(conversion_calls, "down_convert_all", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ended(one.convert(SOURCE, [stored()], 1))
    monkeypatch.undo()
    assert ended(one.convert(SOURCE, [stored()], 1))[0][16] == 1


# Long runs


@dataclass
class LongRun:
    """A run of batches in lz4 with three records each, and its consumers."""

    one: Converter
    payloads: list[bytes] = field(default_factory=lambda: [in_lz4(base) for base in (0, 9)])
    budget: ConversionBudget = field(default_factory=ConversionBudget)
    #: CPU times that the consumers were charged.
    spent: list[int] = field(default_factory=list)

    @property
    def key(self) -> RunKey:
        mark = entry_loops.run_mark(self.payloads, 1, 1 << 62, kernel.PACKED_CODECS)
        assert mark is not None
        return RunKey(b"t" * 16, 0, mark, 1, 1, 1 << 20, False)

    def start(self) -> Started:
        return Started(
            self.one.convert_long_run(self.key, self.payloads, self.spent.append, self.budget)
        )


def in_lz4(base_offset: int) -> bytes:
    samples = [Sample(base_offset + n, TIME, None, b"v" * 50) for n in range(3)]
    return bytes(sample_records.batch(samples, codec=sample_records.LZ4))


@pytest.fixture
def run(one: Converter) -> LongRun:
    if not kernel.PACKED_CODECS >> sample_records.LZ4 & 1:
        pytest.skip("the kernel does not convert lz4")
    return LongRun(one)


@pytest.fixture
def _slow_clock(monkeypatch):
    """Each reading of a thread's CPU clock is 5 ms after the last one."""
    readings = itertools.count(step=5_000_000)
    monkeypatch.setattr(conversion_calls, "thread_time_ns", lambda: next(readings))


def test_long_run_is_converted_in_another_thread_and_cached(run, threads):
    found = run.start().result
    assert [record[0] for record in read_with_kafka_python(found.messages)] == [0, 1, 2, 9, 10, 11]
    assert found.counts == (2, 6, sum(map(len, run.payloads)))
    assert run.start().result is run.one.cached_run(run.key) is found
    assert (threads.calls, run.one.conversions) == (1, 2)
    assert run.one.cached_bytes == len(found.messages) + ENTRY_OVERHEAD


@pytest.mark.parametrize("name", RunKey._fields)
def test_cached_run_is_for_the_same_batches_and_request(run, name):
    run.start()
    value = getattr(run.key, name)
    other = b"u" * 16 if name == "topic_id" else not value if value is False else value + 1
    assert run.one.cached_run(run.key._replace(**{name: other})) is None


@pytest.mark.usefixtures("_slow_clock")
def test_concurrent_consumers_share_one_long_run_and_the_first_is_charged(run, threads):
    threads.hold()
    consumers = [run.start() for _ in range(5)]
    threads.release()
    assert len({id(consumer.result) for consumer in consumers}) == 1
    assert (threads.calls, run.one.conversions) == (1, 2)
    assert len(run.spent) == 1
    assert run.spent[0] >= 5000
    assert run.budget.left_us == ConversionBudget().left_us - run.spent[0]


@pytest.mark.parametrize("who", [0, 1])
def test_cancelled_consumer_does_not_cancel_long_run_of_others(run, threads, who):
    threads.hold()
    consumers = [run.start() for _ in range(2)]
    consumers[who].cancel()
    threads.release()
    assert consumers[1 - who].result.counts[0] == 2
    assert consumers[who].failure is not None


def test_long_run_without_waiters_is_cancelled(run, threads):
    threads.hold()
    consumers = [run.start() for _ in range(2)]
    for consumer in consumers:
        consumer.cancel()
    again = run.start()
    threads.release()
    assert (threads.calls, run.one.conversions) == (2, 2)
    assert again.result.counts[0] == 2


def damaged(payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


@pytest.mark.usefixtures("_slow_clock")
def test_long_run_with_unreadable_batch_is_tried_once_and_charged(run, threads):
    run.payloads[1] = damaged(run.payloads[1])
    for _ in range(2):
        assert not run.start().result.messages
    assert (threads.calls, run.one.conversions, run.one.cached_bytes) == (1, 0, ENTRY_OVERHEAD)
    assert len(run.spent) == 1
    assert run.spent[0] >= 5000


@pytest.mark.usefixtures("_slow_clock")
def test_long_run_without_memory_is_charged_and_not_cached(run, threads, monkeypatch):
    def down_run(*_: object) -> NoReturn:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "down_run", down_run)
        assert run.start().result is None
    assert (run.one.cached_bytes, run.one.conversions, len(run.spent)) == (0, 0, 1)
    assert run.start().result.counts[0] == 2
    assert threads.calls == 2


@pytest.mark.usefixtures("_slow_clock")
def test_long_run_with_unreadable_batch_leaves_time_to_convert_a_batch(run):
    run.payloads[1] = damaged(run.payloads[1])
    run.budget.left_us = 1000
    run.start()
    assert run.spent[0] >= 5000
    assert run.budget.left_us > 0


def test_long_run_is_not_begun_with_an_exhausted_budget(run, threads):
    run.budget.left_us = 0
    assert run.start().result is None
    assert (threads.calls, run.spent) == (0, [])


def test_long_runs_and_entries_are_evicted_from_one_cache(run, threads):
    size = len(run.start().result.messages) + ENTRY_OVERHEAD
    run.one = one = converter(threads, cache_bytes=size)
    ended(one.convert(SOURCE, [stored()], 1))
    run.start()
    assert one.cached_bytes == size
    ended(one.convert(SOURCE, [stored()], 1))
    assert one.cached_run(run.key) is None
    assert 0 < one.cached_bytes < size
