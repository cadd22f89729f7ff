"""One pass of a fetch: limits, formats, and consumers that miss no record and always advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.coroutines import TimeSlices
from gateway.fetch import conversion, fetch_reader
from gateway.fetch.fetch_reader import FetchReader
from gateway.fetch.fetch_sessions import CachedPartition, FetchSession
from gateway.partitions.partition import Partition
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.fetch_codec import FetchPartition
from records import NoMemory
from storage.log import Entry
from tests.examples import scaled
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.fetch_requests import (
    LARGE,
    Consumed,
    consume,
    control_batch,
    from_offset,
    payload,
    request,
    rows,
    start_fetch,
    stored_entry,
)
from tests.records import sample_records
from tests.records.sample_records import GZIP, LZ4, NONE, SNAPPY, ZSTD, Sample


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic()
    return env


def put(env: BrokerEnvironment, *entries: Entry, index: int = 0) -> None:
    ended(append(env.partition(index=index).log, entries))


async def append(log: Any, entries: Sequence[Entry]) -> None:
    await log.append(entries)


def samples(base_offset: int, count: int, size: int = 20) -> list[Sample]:
    return [
        Sample(base_offset + n, 5, b"k%d" % (base_offset + n), b"v" * size) for n in range(count)
    ]


def messages(base_offset: int, count: int, magic: int, size: int = 20) -> Entry:
    return stored_entry(
        base_offset,
        base_offset + count - 1,
        sample_records.message_set(samples(base_offset, count, size), magic=magic),
    )


def wrapped(base_offset: int, count: int, magic: int, codec: int = GZIP) -> Entry:
    return stored_entry(
        base_offset,
        base_offset + count - 1,
        sample_records.wrapper(samples(base_offset, count), codec, magic=magic),
    )


def batched(base_offset: int, count: int, size: int = 20, codec: int = NONE) -> Entry:
    return stored_entry(
        base_offset,
        base_offset + count - 1,
        sample_records.batch(samples(base_offset, count, size), codec=codec),
    )


def fetch(
    env: BrokerEnvironment, version: int, *partitions: FetchPartition, max_bytes: int = LARGE
) -> list[Any]:
    """Return the rows in the order of the response."""
    response = start_fetch(env, request(version, partitions, max_bytes=max_bytes)).result
    return list(rows(response).values())


def fetch_one(env: BrokerEnvironment, version: int, offset: int, max_bytes: int = LARGE) -> Any:
    (row,) = fetch(env, version, from_offset(offset, max_bytes=max_bytes))
    return row


def offsets(row: Any, offset: int = 0) -> list[int]:
    return [found[0] for found in consume(payload(row), offset).records]


# Served records

NEW, OLD, OLDER = 12, 3, 1


@pytest.fixture(params=[True, False], ids=["joined", "separate"])
def _kept(request, env, monkeypatch):
    """Stores that return the batches of a read as one value, or do not."""
    if not request.param:
        monkeypatch.setattr(type(env.partition().log), "read_run", lambda *_, **__: None)


@pytest.mark.usefixtures("_kept")
@pytest.mark.parametrize("version", [4, 6, 11, 12, 15, 18])
def test_modern_consumer_gets_stored_bytes(env, version):
    stored = [batched(0, 2), batched(2, 3, codec=GZIP), batched(5, 3)]
    put(env, *stored)
    assert payload(fetch_one(env, version, 0)) == b"".join(one.payload for one in stored)


def test_batches_that_the_store_has_joined_are_sent_as_one_buffer(env):
    put(env, batched(0, 2), batched(2, 3))
    assert len(fetch_one(env, NEW, 0).records) == 1


def reads_of(log, monkeypatch):
    """Offsets that are read. A run of the store in memory is read once."""
    found = []
    real = type(log).read_resident

    def read(log, offset, max_bytes):
        found.append(offset)
        return real(log, offset, max_bytes)

    monkeypatch.setattr(type(log), "read_resident", read)
    return found


def test_run_that_is_not_sent_as_stored_is_not_read_again(env, monkeypatch):
    put(env, batched(0, 2), messages(2, 3, 1), batched(5, 3))
    reads = reads_of(env.partition().log, monkeypatch)
    assert offsets(fetch_one(env, NEW, 0)) == [*range(8)]
    assert reads == [0]


def fetch_two_that_do_not_fit(env):
    """Fetch a batch of each of two partitions with a limit of one and a half; return its size."""
    env.topic("two", 2)
    stored = batched(0, 2, size=100)
    for index in range(2):
        ended(append(env.partition("two", index).log, [stored]))
    size = len(stored.payload)
    asked = request(
        NEW, [from_offset(0), from_offset(0, 1)], topic="two", max_bytes=size + size // 2
    )
    first, second = rows(start_fetch(env, asked).result).values()
    assert (len(payload(first)), len(payload(second))) == (size, 0)
    return size


def test_batch_that_does_not_fit_behind_others_is_not_read(env, monkeypatch):
    runs, log_class = [], type(env.partition().log)
    real = log_class.read_run

    def read_run(*given, **named):
        runs.append(real(*given, **named))
        return runs[-1]

    monkeypatch.setattr(log_class, "read_run", read_run)
    reads = reads_of(env.partition().log, monkeypatch)
    size = fetch_two_that_do_not_fit(env)
    assert [len(run.payload) for run in runs] == [size, 0]
    assert reads == [0, 0]


@pytest.mark.parametrize("version", [OLD, OLDER])
def test_old_consumer_gets_the_messages_that_fit_of_a_batch_behind_others(env, version):
    env.topic("two", 2)
    for index in range(2):
        ended(append(env.partition("two", index).log, [batched(0, 10, size=100)]))
    partitions = [from_offset(0, max_bytes=500), from_offset(0, 1, max_bytes=500)]
    found = rows(start_fetch(env, request(version, partitions, topic="two")).result).values()
    first, second = (offsets(row) for row in found)
    assert first == second == [0, 1, 2]


def test_batch_that_takes_several_fetches_is_converted_once(env):
    put(env, batched(0, 20, size=100))
    found: list[int] = []
    while len(found) < 20:
        found += offsets(fetch_one(env, OLD, len(found), max_bytes=500), len(found))
    assert found == [*range(20)]
    assert env.broker.converter.conversions == 1


def begun(
    env: BrokerEnvironment, topic: str, *indexes: int, max_bytes: int = LARGE
) -> tuple[FetchReader, list[CachedPartition]]:
    """A reader of these partitions from their start."""
    asked = [from_offset(0, index) for index in indexes]
    session = FetchSession()
    partitions = [session.update((topic, one.index), one) for one in asked]
    wanted = request(NEW, asked, topic=topic, max_bytes=max_bytes)
    return FetchReader(env.caller(NEW), wanted, None, TimeSlices(env.clock)), partitions


@pytest.mark.usefixtures("_kept")
def test_time_slices_count_bytes_and_entries(env):
    """One row for the partition, one for each 32 KiB, one for each 64 entries."""
    put(env, *[batched(base, 1, size=1000) for base in range(130)])
    reader, partitions = begun(env, "orders", 0)
    assert reader.read_at_once(partitions)
    assert reader.slices.rows == 1 + 4 + 2


def test_time_slices_count_what_was_read_and_is_not_returned(env, monkeypatch):
    env.topic("two", 2)
    monkeypatch.setattr(Partition, "read_run", lambda *_, **__: None)
    stored = batched(0, 2, size=40_000)
    for index in range(2):
        ended(append(env.partition("two", index).log, [stored]))
    reader, partitions = begun(env, "two", 0, 1, max_bytes=len(stored.payload) * 3 // 2)
    assert reader.read_at_once(partitions) is None
    assert reader.slices.rows == 2 * (1 + 2)


@pytest.mark.usefixtures("_kept")
@pytest.mark.parametrize("count", [15, 16])
def test_partitions_that_take_more_than_a_slice_are_read_in_several_turns(env, count):
    """500 rows are a slice: 16 batches of 1 MiB are 512."""
    env.topic("two", 2)
    stored = batched(0, 1, size=1 << 20)
    entries = [stored_entry(base, base, stored.payload) for base in range(count)]
    for index in range(2):
        ended(append(env.partition("two", index).log, entries[: 1 if index else count]))
    asked = request(NEW, [from_offset(0), from_offset(0, 1)], topic="two")
    started = start_fetch(env, asked)
    assert started.is_done is (count == 15)
    env.clock.pump([0] * 5)
    first, second = rows(started.result).values()
    assert len(payload(first)) == count * len(stored.payload)
    assert len(payload(second)) == len(stored.payload)


def test_partition_that_gets_records_between_two_turns_is_read_as_well(env):
    env.topic("three", 3)
    logs = [env.partition("three", index).log for index in range(3)]
    everything = [from_offset(0, index) for index in range(3)]
    begun = start_fetch(env, request(NEW, everything, topic="three", session=(0, 0))).result
    stored = batched(0, 1, size=1 << 20)
    # 512 rows of a time slice of 500.
    ended(append(logs[0], [stored_entry(base, base, stored.payload) for base in range(16)]))
    ended(append(logs[1], [stored]))
    asked = request(NEW, everything[:1], topic="three", session=(begun.session_id, 1))
    started = start_fetch(env, asked)
    assert not started.is_done
    ended(append(logs[2], [stored]))
    env.clock.pump([0] * 5)
    sizes = {key[1]: len(payload(row)) for key, row in rows(started.result).items()}
    one = len(stored.payload)
    assert sizes == {0: 16 * one, 1: one, 2: one}


@pytest.mark.usefixtures("_kept")
@pytest.mark.parametrize("version", [4, 9, 10])
@pytest.mark.parametrize("other", [messages(2, 3, 1), batched(2, 3, codec=ZSTD)])
def test_one_batch_that_is_not_sent_as_stored_does_not_change_the_others(env, version, other):
    put(env, batched(0, 2), other, batched(5, 3))
    assert offsets(fetch_one(env, version, 0)) == [*range(8)]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_consumer_passes_compacted_end_of_old_set(env, version):
    gap = messages(0, 3, 1)
    put(env, stored_entry(0, 9, bytes(gap.payload)), batched(10, 2))
    assert offsets(fetch_one(env, version, 0)) == [0, 1, 2, 10, 11]
    assert offsets(fetch_one(env, version, 3), 3) == [10, 11]


def test_damaged_old_set_is_served_unchanged(env):
    damaged = bytearray(wrapped(3, 3, 1).payload)
    damaged[40:44] = b"oops"
    stored = [messages(0, 3, 0), stored_entry(3, 5, bytes(damaged)), batched(6, 2)]
    put(env, *stored)
    assert [bytes(piece) for piece in fetch_one(env, NEW, 3).records] == [
        bytes(one.payload) for one in stored[1:]
    ]


@pytest.mark.parametrize(
    ("version", "magics"),
    [(0, {0}), (1, {0}), (2, {0, 1}), (3, {0, 1}), (4, {2}), (9, {2}), (10, {2}), (18, {2})],
)
def test_consumers_get_format_2_or_the_format_of_their_fetch_version(env, version, magics):
    put(env, messages(0, 1, 0), messages(1, 1, 1), batched(2, 1))
    row = fetch_one(env, version, 0)
    assert {piece[16] for piece in row.records} == magics
    assert offsets(row) == [0, 1, 2]


def test_row_has_log_start_offset_and_high_watermark(env):
    put(env, batched(0, 3), batched(3, 4))
    ended(env.partition().log.delete_before(3))
    row = fetch_one(env, NEW, 5)
    assert (row.error_code, row.high_watermark, row.last_stable_offset, row.log_start_offset) == (
        0,
        7,
        7,
        3,
    )
    assert offsets(row, 5) == [5, 6]


def test_fetch_at_log_end_returns_no_records(env):
    put(env, batched(0, 3))
    row = fetch_one(env, NEW, 3)
    assert (row.error_code, list(row.records), row.high_watermark) == (0, [], 3)


@pytest.mark.parametrize("offset", [-1, 2, 8])
def test_offset_outside_log_is_out_of_range(env, offset):
    put(env, batched(0, 3), batched(3, 4))
    ended(env.partition().log.delete_before(3))
    row = fetch_one(env, NEW, offset)
    assert (row.error_code, row.high_watermark, row.log_start_offset, list(row.records)) == (
        ErrorCode.OFFSET_OUT_OF_RANGE,
        -1,
        -1,
        [],
    )


@pytest.mark.parametrize(("version", "topic", "code"), [
    (NEW, (
        "other"
    ), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, "other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (13, b"x" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
])  # fmt: skip
def test_missing_topic_is_unknown(env, version, topic, code):
    response = start_fetch(env, request(version, [from_offset(0)], topic=topic)).result
    assert [row.error_code for row in rows(response).values()] == [code]


def test_missing_partition_is_unknown_and_others_are_served(env):
    put(env, batched(0, 1))
    first, second = fetch(env, NEW, from_offset(0, index=7), from_offset(0))
    assert (first.error_code, second.error_code, offsets(second)) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        0,
        [0],
    )


def test_topics_are_found_by_id(env):
    live = env.topic("others")
    ended(append(env.partition("others").log, [batched(0, 2)]))
    response = start_fetch(env, request(13, [from_offset(0)], topic=live.topic.topic_id)).result
    assert offsets(rows(response)[live.topic.topic_id, 0]) == [0, 1]


@pytest.mark.parametrize(("asked", "code"), [(-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_newer_leader_epoch_is_unknown(env, asked, code):
    put(env, batched(0, 1))
    (row,) = fetch(env, NEW, FetchPartition(0, 0, LARGE, asked))
    assert row.error_code == code


@pytest.mark.parametrize(
    ("asked", "code"),
    [(2, ErrorCode.FENCED_LEADER_EPOCH), (3, 0), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_older_leader_epoch_is_fenced(env, asked, code):
    put(env, batched(0, 1))
    env.partition().log.leader_epoch = 3
    (row,) = fetch(env, NEW, FetchPartition(0, 0, LARGE, asked))
    assert row.error_code == code


def test_diverging_epoch_is_returned_for_truncated_log(env):
    put(env, batched(0, 3))
    (row,) = fetch(env, NEW, FetchPartition(0, 7, LARGE, -1, 0))
    assert (row.error_code, row.diverging, list(row.records)) == (0, (0, 3), [])


def test_matching_epoch_does_not_diverge(env):
    put(env, batched(0, 3))
    (row,) = fetch(env, NEW, FetchPartition(0, 1, LARGE, -1, 0))
    assert (row.diverging, offsets(row, 1)) == (None, [1, 2])


def test_unknown_last_fetched_epoch_is_out_of_range(env):
    put(env, batched(0, 3))
    (row,) = fetch(env, NEW, FetchPartition(0, 1, LARGE, -1, 5))
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("level", "aborted"), [(0, None), (1, ())])
def test_only_read_committed_gets_aborted_transactions(env, level, aborted):
    put(env, batched(0, 1))
    response = start_fetch(env, request(NEW, [from_offset(0)], isolation_level=level)).result
    assert [row.aborted for row in rows(response).values()] == [aborted]


# Limits


def sizes(*entries: Entry) -> int:
    return sum(len(one.payload) for one in entries)


@pytest.mark.usefixtures("_kept")
def test_whole_batches_are_returned_up_to_limit(env):
    stored = [batched(0, 3), batched(3, 3), batched(6, 3)]
    put(env, *stored)
    one, both = sizes(*stored[:1]), sizes(*stored[:2])
    assert [
        len(payload(fetch_one(env, NEW, 0, limit))) for limit in (both - 1, both, both + 1)
    ] == [one, both, both]


@pytest.mark.parametrize("limit", [-1, 0, 1])
@pytest.mark.parametrize("version", [0, 2, 3, 4, NEW])
def test_first_batch_is_returned_regardless_of_limit(env, version, limit):
    put(env, batched(0, 3, size=200))
    row = fetch_one(env, version, 0, limit)
    assert offsets(row) == ([0] if version < 4 else [0, 1, 2])


def test_only_first_partition_with_records_may_exceed_limit(env):
    env.topic("wide", 3)
    for index in (1, 2):
        ended(append(env.partition("wide", index).log, [batched(0, 3, size=200)]))
    response = start_fetch(
        env, request(NEW, [from_offset(0, n, 1) for n in range(3)], topic="wide")
    ).result
    assert [len(row.records) for row in rows(response).values()] == [0, 1, 0]


def test_request_limit_applies_to_all_partitions(env):
    env.topic("wide", 4)
    for index in range(4):
        ended(append(env.partition("wide", index).log, [batched(0, 3)]))
    limit = 2 * sizes(batched(0, 3)) + 1
    response = start_fetch(
        env, request(NEW, [from_offset(0, n) for n in range(4)], topic="wide", max_bytes=limit)
    ).result
    assert [len(row.records) for row in rows(response).values()] == [1, 1, 0, 0]


def test_fetch_max_bytes_limits_any_request():
    env = open_environment(fetch_max_bytes=1024)
    env.topic()
    put(env, *[batched(3 * n, 3, size=200) for n in range(4)])
    assert len(fetch_one(env, NEW, 0).records) == 1


@pytest.mark.parametrize(
    ("version", "expected"), [(0, [[0], [0]]), (1, [[0], [0]]), (2, [[0], [0]]), (3, [[0], []])]
)
def test_fetch_before_v3_returns_a_message_of_each_partition(env, version, expected):
    env.topic("wide", 2)
    for index in range(2):
        ended(append(env.partition("wide", index).log, [messages(0, 2, 0, size=300)]))
    response = start_fetch(
        env, request(version, [from_offset(0, n, 10) for n in range(2)], topic="wide")
    ).result
    assert [offsets(row) for row in rows(response).values()] == expected


# Cutting and converting


def test_message_set_is_cut_after_message_that_fits(env):
    put(env, messages(0, 5, 1))
    one = len(sample_records.message_set(samples(0, 1), magic=1))
    row = fetch_one(env, OLD, 1, 2 * one + 1)
    assert offsets(row, 1) == [1, 2]
    assert len(payload(row)) == 2 * one


def test_nothing_follows_truncated_entry(env):
    """A converted batch is larger than the stored one, so the entry after it was read, too, and
    might still fit.
    """
    put(env, batched(0, 10, size=10), messages(10, 1, 0, size=0))
    for limit in range(1, 600):
        found = offsets(fetch_one(env, OLDER, 0, limit))
        assert found == list(range(len(found)))
    assert len(found) == 11


def test_compressed_message_is_returned_whole_from_any_inner_offset(env):
    put(env, wrapped(0, 6, 1))
    row = fetch_one(env, OLD, 4, 1)
    assert len(row.records[0]) == sizes(wrapped(0, 6, 1))
    assert offsets(row, 4) == [4, 5]


@pytest.mark.parametrize("version", [OLD, OLDER])
def test_old_consumers_get_no_control_batches(env, version):
    put(env, batched(0, 1), control_batch(1), batched(2, 1), control_batch(3))
    row = fetch_one(env, version, 0)
    assert offsets(row) == [0, 2]
    assert offsets(fetch_one(env, version, 1, 1), 1) == [2]


def test_only_control_batches_give_old_consumer_no_records(
    env,
):
    put(env, batched(0, 1), control_batch(1))
    row = fetch_one(env, OLDER, 1)
    assert (row.error_code, list(row.records), row.high_watermark) == (0, [], 2)


def test_old_consumer_passes_more_control_batches_than_one_scan(env, monkeypatch):
    monkeypatch.setattr(fetch_reader, "MAX_EMPTY_READS", 2)
    monkeypatch.setattr(fetch_reader, "EMPTY_READ_BYTES", 300)
    put(env, *[control_batch(n) for n in range(50)], batched(50, 1))
    answers = [offsets(fetch_one(env, OLDER, 0)) for _ in range(50)]
    assert [50] in answers


def test_skipped_control_batches_are_not_read_again(env, monkeypatch):
    put(env, *[control_batch(n) for n in range(50)])
    fetch_one(env, OLDER, 0)
    reads = []
    log = env.partition().log
    real = log.read_resident
    monkeypatch.setattr(
        log, "read_resident", lambda offset, size: reads.append(offset) or real(offset, size)
    )
    assert list(fetch_one(env, OLDER, 0).records) == []
    assert [offset for offset in reads if offset < 50] == []


@pytest.mark.parametrize("version", [0, 2, 3])
def test_disabled_down_conversion_returns_unsupported_version(env, version):
    env.topic("modern", message_downconversion_enable="false")
    log = env.partition("modern").log
    ended(append(log, [messages(0, 1, 0), batched(1, 1)]))
    good = rows(start_fetch(env, request(version, [from_offset(0)], topic="modern")).result)[
        "modern", 0
    ]
    bad = rows(start_fetch(env, request(version, [from_offset(1)], topic="modern")).result)[
        "modern", 0
    ]
    assert (offsets(good), bad.error_code) == ([0], ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(("version", "codec"), [(4, GZIP), (9, GZIP), (10, ZSTD)])
def test_zstd_is_converted_to_gzip_before_fetch_v10(env, version, codec):
    stored = batched(0, 3, codec=ZSTD)
    put(env, stored)
    row = fetch_one(env, version, 0)
    assert (row.error_code, offsets(row), row.records[0][22] & 7) == (0, [0, 1, 2], codec)


def test_disabled_down_conversion_of_zstd_requires_fetch_v10(env):
    env.topic("modern", message_downconversion_enable="false")
    ended(append(env.partition("modern").log, [batched(0, 3), batched(3, 3, codec=ZSTD)]))
    good = rows(start_fetch(env, request(9, [from_offset(0)], topic="modern")).result)["modern", 0]
    bad = rows(start_fetch(env, request(9, [from_offset(3)], topic="modern")).result)["modern", 0]
    assert (offsets(good), bad.error_code) == ([0, 1, 2], ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert (
        rows(start_fetch(env, request(10, [from_offset(3)], topic="modern")).result)[
            "modern", 0
        ].error_code
        == 0
    )


def unreadable(first, count=3, **more):
    """Return a batch with a valid header and checksum but unreadable records."""
    return stored_entry(
        first,
        first + count - 1,
        sample_records.batch(samples(first, count), content=b"nonsense", count=count, **more),
    )


@pytest.mark.parametrize("version", [OLD, OLDER])
@pytest.mark.parametrize("codec", [NONE, LZ4])
def test_old_consumer_skips_unreadable_batch(env, version, codec):
    put(env, batched(0, 3), unreadable(3, codec=codec), batched(6, 1))
    assert offsets(fetch_one(env, version, 0)) == [0, 1, 2, 6]
    for offset in (3, 5):
        assert offsets(fetch_one(env, version, offset, 1), offset) == [6]


def test_modern_consumer_gets_unreadable_batch_unchanged(env):
    stored = unreadable(0)
    put(env, stored)
    assert list(fetch_one(env, NEW, 0).records) == [stored.payload]


def test_old_consumer_before_unreadable_batch_waits_for_more_records(
    env,
):
    put(env, batched(0, 1), unreadable(1))
    row = fetch_one(env, OLDER, 1)
    assert (row.error_code, list(row.records), row.high_watermark) == (0, [], 4)
    put(env, batched(4, 1))
    assert offsets(fetch_one(env, OLDER, 1), 1) == [4]


def test_out_of_memory_keeps_old_consumer_at_its_offset(env, monkeypatch):
    put(env, batched(0, 3, codec=ZSTD))
    failing = [NoMemory("no memory to decompress zstd")]
    monkeypatch.setattr(conversion, "convert_all", lambda payloads, *_: (failing, 0))
    assert fetch_one(env, OLDER, 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_closed_log_is_reported_before_registry_update(env):
    put(env, batched(0, 3))
    env.partition().log.shut()
    assert fetch_one(env, NEW, 3).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# All logs and consumers

CODECS = st.sampled_from([NONE, GZIP, SNAPPY, LZ4])


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[Entry, list[Sample]]]:
    """Generate entries of all formats, with gaps and empty or control batches, and records."""
    made: list[tuple[Entry, list[Sample]]] = []
    base = 0
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["v0", "v1", "v2", "control", "empty"]))
        gaps = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
        offset, found = base, []
        for gap in gaps:
            offset += gap
            found.append(
                Sample(
                    offset,
                    5,
                    draw(st.sampled_from([None, b"", b"key"])),
                    b"." * draw(st.integers(0, 60)),
                )
            )
            offset += 1
        last = offset - 1 + draw(st.integers(0, 2))
        codec = draw(CODECS)
        if kind == "control":
            made.append((control_batch(base), []))
            last = base
        elif kind == "empty":
            made.append(
                (
                    stored_entry(
                        base, last, sample_records.batch([], base_offset=base, last_offset=last)
                    ),
                    [],
                )
            )
        elif kind == "v2":
            raw = sample_records.batch(found, codec=codec, base_offset=base, last_offset=last)
            made.append((stored_entry(base, last, raw), found))
        else:
            magic = int(kind[1])
            last = found[-1].offset
            raw = (
                sample_records.wrapper(found, codec, magic=magic)
                if codec
                else sample_records.message_set(found, magic=magic)
            )
            made.append((stored_entry(base, last, raw), found))
        base = last + 1
    return made


@settings(max_examples=scaled(150), deadline=None)
@given(logs(), st.sampled_from([0, 1, 2, 3, 4, 9, 12]), st.data())
def test_every_consumer_gets_every_record_once_and_in_order(log, version, data):
    env = open_environment()
    env.topic()
    put(env, *[one for one, _ in log])
    expected = [(sample.offset, sample.key, sample.value) for _, found in log for sample in found]
    offset, received = 0, []
    end = env.partition().log.end_offset
    while True:
        limits = data.draw(
            st.tuples(st.integers(1, 400), st.integers(1, 400)), label="partition and request bytes"
        )
        (row,) = fetch(env, version, from_offset(offset, max_bytes=limits[0]), max_bytes=limits[1])
        assert row.error_code == 0
        raw = payload(row)
        got: Consumed = consume(raw, offset)
        received += got.records
        if got.next_offset == offset:
            assert not raw
            break
        offset = got.next_offset
        _check_whole(raw)
    assert received == expected
    if version >= 4:
        assert offset == end


def _check_whole(raw: bytes) -> None:
    """Parse message after message to the end: no trailing zeros, nothing truncated."""
    position = 0
    while position < len(raw):
        size = int.from_bytes(raw[position + 8 : position + 12], "big")
        assert size >= 14
        position += 12 + size
    assert position == len(raw)
