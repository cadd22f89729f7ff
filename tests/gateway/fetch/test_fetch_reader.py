"""What one reading gives: limits, formats, and that no consumer ever misses a record or sticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat.records import NoMemory
from gateway.fetch import conversion, fetch_reader
from gateway.fetch.fetch_reader import check_epoch
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.fetch_codec import FetchPartition
from storage.log import Entry
from tests.compat.records import building
from tests.compat.records.building import GZIP, LZ4, NONE, SNAPPY, ZSTD, Sample
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
        building.message_set(samples(base_offset, count, size), magic=magic),
    )


def wrapped(base_offset: int, count: int, magic: int, codec: int = GZIP) -> Entry:
    return stored_entry(
        base_offset,
        base_offset + count - 1,
        building.wrapper(samples(base_offset, count), codec, magic=magic),
    )


def batched(base_offset: int, count: int, size: int = 20, codec: int = NONE) -> Entry:
    return stored_entry(
        base_offset,
        base_offset + count - 1,
        building.batch(samples(base_offset, count, size), codec=codec),
    )


def fetch(
    env: BrokerEnvironment, version: int, *partitions: FetchPartition, max_bytes: int = LARGE
) -> list[Any]:
    """The rows in the order answered."""
    response = start_fetch(env, request(version, partitions, max_bytes=max_bytes)).result
    return list(rows(response).values())


def fetch_one(env: BrokerEnvironment, version: int, offset: int, max_bytes: int = LARGE) -> Any:
    (row,) = fetch(env, version, from_offset(offset, max_bytes=max_bytes))
    return row


def offsets(row: Any, offset: int = 0) -> list[int]:
    return [found[0] for found in consume(payload(row), offset).records]


# What is served

NEW, OLD, OLDER = 12, 3, 1


@pytest.mark.parametrize("version", [4, 6, 11, 12, 15, 18])
def test_a_consumer_of_today_gets_the_bytes_as_they_are_stored(env, version):
    stored = [batched(0, 2), batched(2, 3, codec=GZIP), batched(5, 3)]
    put(env, *stored)
    assert [bytes(piece) for piece in fetch_one(env, version, 0).records] == [
        bytes(one.payload) for one in stored
    ]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_consumer_gets_past_what_compaction_took_at_the_end_of_an_older_set(env, version):
    gap = messages(0, 3, 1)
    put(env, stored_entry(0, 9, bytes(gap.payload)), batched(10, 2))
    assert offsets(fetch_one(env, version, 0)) == [0, 1, 2, 10, 11]
    assert offsets(fetch_one(env, version, 3), 3) == [10, 11]


def test_a_damaged_set_of_an_older_format_is_served_as_it_is(env):
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
def test_a_consumer_gets_no_format_newer_than_its_own_and_whoever_knows_format_2_nothing_else(
    env, version, magics
):
    put(env, messages(0, 1, 0), messages(1, 1, 1), batched(2, 1))
    row = fetch_one(env, version, 0)
    assert {piece[16] for piece in row.records} == magics
    assert offsets(row) == [0, 1, 2]


def test_the_row_tells_where_the_log_begins_and_ends(env):
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


def test_at_the_end_there_is_nothing_and_no_error(env):
    put(env, batched(0, 3))
    row = fetch_one(env, NEW, 3)
    assert (row.error_code, list(row.records), row.high_watermark) == (0, [], 3)


@pytest.mark.parametrize("offset", [-1, 2, 8])
def test_an_offset_outside_the_log_is_out_of_range(env, offset):
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
    (NEW, "other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, "other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (13, b"x" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
])  # fmt: skip
def test_a_topic_that_is_not_there_is_unknown(env, version, topic, code):
    response = start_fetch(env, request(version, [from_offset(0)], topic=topic)).result
    assert [row.error_code for row in rows(response).values()] == [code]


def test_a_partition_that_is_not_there_is_unknown_and_the_others_are_served(env):
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
def test_a_leader_epoch_that_is_ahead_is_unknown(env, asked, code):
    put(env, batched(0, 1))
    (row,) = fetch(env, NEW, FetchPartition(0, 0, LARGE, asked))
    assert row.error_code == code


def test_a_leader_epoch_that_is_past_is_fenced():
    with pytest.raises(Exception, match="FENCED_LEADER_EPOCH"):
        check_epoch(3, 4)


def test_a_log_that_ends_before_the_consumers_offset_is_told_where_it_diverges(env):
    put(env, batched(0, 3))
    (row,) = fetch(env, NEW, FetchPartition(0, 7, LARGE, -1, 0))
    assert (row.error_code, row.diverging, list(row.records)) == (0, (0, 3), [])


def test_an_epoch_that_agrees_diverges_in_nothing(env):
    put(env, batched(0, 3))
    (row,) = fetch(env, NEW, FetchPartition(0, 1, LARGE, -1, 0))
    assert (row.diverging, offsets(row, 1)) == (None, [1, 2])


def test_an_epoch_that_never_was_is_out_of_range(env):
    put(env, batched(0, 3))
    (row,) = fetch(env, NEW, FetchPartition(0, 1, LARGE, -1, 5))
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("level", "aborted"), [(0, None), (1, ())])
def test_only_read_committed_is_told_of_aborted_transactions(env, level, aborted):
    put(env, batched(0, 1))
    response = start_fetch(env, request(NEW, [from_offset(0)], isolation_level=level)).result
    assert [row.aborted for row in rows(response).values()] == [aborted]


# Limits


def sizes(*entries: Entry) -> int:
    return sum(len(one.payload) for one in entries)


def test_as_many_whole_batches_are_given_as_fit(env):
    stored = [batched(0, 3), batched(3, 3), batched(6, 3)]
    put(env, *stored)
    both = sizes(*stored[:2])
    assert [len(fetch_one(env, NEW, 0, limit).records) for limit in (both - 1, both, both + 1)] == [
        1,
        2,
        2,
    ]


@pytest.mark.parametrize("limit", [-1, 0, 1])
@pytest.mark.parametrize("version", [0, 2, 3, 4, NEW])
def test_the_first_batch_or_message_is_given_however_small_the_limit(env, version, limit):
    put(env, batched(0, 3, size=200))
    row = fetch_one(env, version, 0, limit)
    assert offsets(row) == ([0] if version < 4 else [0, 1, 2])


def test_only_the_first_partition_with_records_may_pass_the_limit(env):
    env.topic("wide", 3)
    for index in (1, 2):
        ended(append(env.partition("wide", index).log, [batched(0, 3, size=200)]))
    response = start_fetch(
        env, request(NEW, [from_offset(0, n, 1) for n in range(3)], topic="wide")
    ).result
    assert [len(row.records) for row in rows(response).values()] == [0, 1, 0]


def test_the_requests_own_limit_holds_over_all_partitions(env):
    env.topic("wide", 4)
    for index in range(4):
        ended(append(env.partition("wide", index).log, [batched(0, 3)]))
    limit = 2 * sizes(batched(0, 3)) + 1
    response = start_fetch(
        env, request(NEW, [from_offset(0, n) for n in range(4)], topic="wide", max_bytes=limit)
    ).result
    assert [len(row.records) for row in rows(response).values()] == [1, 1, 0, 0]


def test_the_gateways_own_limit_holds_whatever_is_asked():
    env = open_environment(fetch_max_bytes=1024)
    env.topic()
    put(env, *[batched(3 * n, 3, size=200) for n in range(4)])
    assert len(fetch_one(env, NEW, 0).records) == 1


@pytest.mark.parametrize(
    ("version", "expected"), [(0, [[0], [0]]), (1, [[0], [0]]), (2, [[0], [0]]), (3, [[0], []])]
)
def test_very_old_consumers_get_one_message_of_each_partition_for_nothing_tells_them_that_they_may_be_left_without(
    env, version, expected
):
    env.topic("wide", 2)
    for index in range(2):
        ended(append(env.partition("wide", index).log, [messages(0, 2, 0, size=300)]))
    response = start_fetch(
        env, request(version, [from_offset(0, n, 10) for n in range(2)], topic="wide")
    ).result
    assert [offsets(row) for row in rows(response).values()] == expected


# Cutting and converting


def test_a_set_is_cut_at_a_message_that_fits(env):
    put(env, messages(0, 5, 1))
    one = len(building.message_set(samples(0, 1), magic=1))
    row = fetch_one(env, OLD, 1, 2 * one + 1)
    assert offsets(row, 1) == [1, 2]
    assert len(payload(row)) == 2 * one


def test_nothing_follows_what_was_cut_short(env):
    """Converted, a batch is larger than stored, so that the entry behind it was read with it and might still fit."""
    put(env, batched(0, 10, size=10), messages(10, 1, 0, size=0))
    for limit in range(1, 600):
        found = offsets(fetch_one(env, OLDER, 0, limit))
        assert found == list(range(len(found)))
    assert len(found) == 11


def test_a_compressed_message_is_given_whole_from_any_offset_within(env):
    put(env, wrapped(0, 6, 1))
    row = fetch_one(env, OLD, 4, 1)
    assert len(row.records[0]) == sizes(wrapped(0, 6, 1))
    assert offsets(row, 4) == [4, 5]


@pytest.mark.parametrize("version", [OLD, OLDER])
def test_old_consumers_never_see_control_batches(env, version):
    put(env, batched(0, 1), control_batch(1), batched(2, 1), control_batch(3))
    row = fetch_one(env, version, 0)
    assert offsets(row) == [0, 2]
    assert offsets(fetch_one(env, version, 1, 1), 1) == [2]


def test_an_old_consumer_behind_which_there_are_only_control_batches_gets_nothing_and_no_error(
    env,
):
    put(env, batched(0, 1), control_batch(1))
    row = fetch_one(env, OLDER, 1)
    assert (row.error_code, list(row.records), row.high_watermark) == (0, [], 2)


def test_an_old_consumer_gets_over_more_control_batches_than_one_request_looks_at(env, monkeypatch):
    monkeypatch.setattr(fetch_reader, "MAX_EMPTY_READS", 2)
    monkeypatch.setattr(fetch_reader, "EMPTY_READ_BYTES", 300)
    put(env, *[control_batch(n) for n in range(50)], batched(50, 1))
    answers = [offsets(fetch_one(env, OLDER, 0)) for _ in range(50)]
    assert [50] in answers


def test_control_batches_passed_over_once_are_not_read_again(env, monkeypatch):
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
def test_where_down_conversion_is_forbidden_newer_records_are_an_unsupported_version(env, version):
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
def test_zstd_becomes_gzip_below_fetch_10(env, version, codec):
    stored = batched(0, 3, codec=ZSTD)
    put(env, stored)
    row = fetch_one(env, version, 0)
    assert (row.error_code, offsets(row), row.records[0][22] & 7) == (0, [0, 1, 2], codec)


def test_where_conversion_is_forbidden_zstd_needs_fetch_10(env):
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
    """What is stored of a batch whose header and checksum are right, and whose records are not."""
    return stored_entry(
        first,
        first + count - 1,
        building.batch(samples(first, count), content=b"nonsense", count=count, **more),
    )


@pytest.mark.parametrize("version", [OLD, OLDER])
@pytest.mark.parametrize("codec", [NONE, LZ4])
def test_old_consumers_are_carried_past_a_batch_that_cannot_be_read(env, version, codec):
    put(env, batched(0, 3), unreadable(3, codec=codec), batched(6, 1))
    assert offsets(fetch_one(env, version, 0)) == [0, 1, 2, 6]
    for offset in (3, 5):
        assert offsets(fetch_one(env, version, offset, 1), offset) == [6]


def test_a_consumer_of_today_gets_an_unreadable_batch_as_it_is_stored(env):
    stored = unreadable(0)
    put(env, stored)
    assert list(fetch_one(env, NEW, 0).records) == [stored.payload]


def test_an_old_consumer_behind_which_there_is_only_an_unreadable_batch_gets_nothing_and_no_error_until_more_comes(
    env,
):
    put(env, batched(0, 1), unreadable(1))
    row = fetch_one(env, OLDER, 1)
    assert (row.error_code, list(row.records), row.high_watermark) == (0, [], 4)
    put(env, batched(4, 1))
    assert offsets(fetch_one(env, OLDER, 1), 1) == [4]


def test_without_memory_to_convert_it_an_old_consumer_stays_where_it_is(env, monkeypatch):
    put(env, batched(0, 3))
    failing = [NoMemory("no memory to decompress lz4")]
    monkeypatch.setattr(conversion, "_convert_all", lambda payloads, *_: (failing, 0))
    assert fetch_one(env, OLDER, 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_deleted_topic_is_told_of_before_the_registry_knows(env):
    put(env, batched(0, 3))
    env.partition().log.shut()
    assert fetch_one(env, NEW, 3).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# Whatever the log, whoever the consumer

CODECS = st.sampled_from([NONE, GZIP, SNAPPY, LZ4])


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[Entry, list[Sample]]]:
    """Entries of all formats end to end, with gaps, empty batches and control batches, each with what exists in it."""
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
                        base, last, building.batch([], base_offset=base, last_offset=last)
                    ),
                    [],
                )
            )
        elif kind == "v2":
            raw = building.batch(found, codec=codec, base_offset=base, last_offset=last)
            made.append((stored_entry(base, last, raw), found))
        else:
            magic = int(kind[1])
            last = found[-1].offset
            raw = (
                building.wrapper(found, codec, magic=magic)
                if codec
                else building.message_set(found, magic=magic)
            )
            made.append((stored_entry(base, last, raw), found))
        base = last + 1
    return made


@settings(max_examples=150, deadline=None)
@given(logs(), st.sampled_from([0, 1, 2, 3, 4, 9, 12]), st.data())
def test_every_record_arrives_once_and_in_order_at_every_consumer_that_keeps_fetching(
    log, version, data
):
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
    """Message after message to the very end: no trailer of zeros, nothing cut off."""
    position = 0
    while position < len(raw):
        size = int.from_bytes(raw[position + 8 : position + 12], "big")
        assert size >= 14
        position += 12 + size
    assert position == len(raw)
