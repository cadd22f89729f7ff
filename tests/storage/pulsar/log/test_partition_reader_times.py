"""Searches by timestamp on a real broker, compared with hand-written expectations."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from tests.storage.pulsar.partition_topics import header, numbered, offsets

pytestmark = pytest.mark.peer

ALL = 1 << 30


def timed(times, size=10, greatest=-1):
    """One message per timestamp, with the greatest so far in its header."""
    written = []
    for offset, time in enumerate(times):
        greatest = max(greatest, time)
        written.append(
            (header(offset, time=time, before=offset * size, greatest=greatest), bytes(size))
        )
    return written


def found(stored):
    return stored.header.base_offset if stored else None


@ensureDeferred
async def test_first_message_at_timestamp_is_found_before_older_ones(partition, side):
    partition.write(timed([10, 30, 20, 30, 40, -1, 15]))
    reader = side.reader(partition)
    wanted = {-1: 0, 10: 0, 11: 1, 30: 1, 31: 4, 40: 4, 41: None}
    assert {time: found(await reader.at_time(time, 0, 7)) for time in wanted} == wanted
    assert found(await reader.latest(0, 7)) == 4


@ensureDeferred
async def test_search_before_position_does_not_hide_later_timestamps(partition, side):
    places = partition.write(timed([10, 20, 30]))
    reader = side.reader(partition)
    assert found(await reader.last(places[1])) == 0
    assert found(await reader.at_time(30, 0, 3)) == 2
    assert found(await reader.latest(0, 3)) == 2


@ensureDeferred
async def test_latest_returns_first_message_with_greatest_timestamp(partition, side):
    partition.write(timed([10, 40, 20, 40, 40]))
    assert found(await side.reader(partition).latest(0, 5)) == 1


@ensureDeferred
async def test_messages_without_timestamp_have_no_latest(partition, side):
    partition.write(timed([-1, -1]))
    reader = side.reader(partition)
    assert await reader.latest(0, 2) is None
    assert await reader.at_time(0, 0, 2) is None


@ensureDeferred
async def test_empty_partition_has_no_timestamps(partition, side):
    reader = side.reader(partition)
    assert await reader.at_time(0, 0, 0) is None
    assert await reader.latest(0, 0) is None


@ensureDeferred
async def test_search_is_limited_to_start_and_end_offset(partition, side):
    partition.write(timed([90, 10, 30, 20, 50]))
    reader = side.reader(partition)
    wanted = {5: 1, 11: 2, 31: None, 90: None}
    assert {time: found(await reader.at_time(time, 1, 4)) for time in wanted} == wanted
    assert found(await reader.latest(1, 4)) == 2


@ensureDeferred
async def test_message_that_straddles_start_is_found(partition, side):
    partition.write([(header(0, 9, time=50), b"a"), (header(10, 19, time=20, greatest=50), b"b")])
    reader = side.reader(partition)
    assert found(await reader.at_time(30, 5, 20)) == 0
    assert found(await reader.latest(5, 20)) == 0


@ensureDeferred
async def test_timestamp_of_trimmed_message_is_searched_in_the_rest(partition, side):
    times = [99, *[5] * 9, *[10, 30, 20, 40]]
    partition.write(timed(times)[:10])
    partition.roll()
    partition.write(timed(times)[10:])
    partition.trim()
    reader = side.reader(partition)
    wanted = {10: 10, 25: 11, 31: 13, 50: None}
    assert {time: found(await reader.at_time(time, 10, 14)) for time in wanted} == wanted
    assert found(await reader.latest(10, 14)) == 13


@ensureDeferred
async def test_distant_timestamp_is_found_with_few_lookups(partition, side):
    partition.write(
        [
            (header(offset, time=offset * 10, before=offset * 2000), bytes(2000))
            for offset in range(5000)
        ]
    )
    reader = side.reader(partition)
    assert found(await reader.at_time(37_761, 0, 5000)) == 3777
    # Lookups of the first and last message, five bisection steps from 10 MB to below 512 KiB, and
    # one read.
    assert side.client.readers <= 2 + 5 + 1


@ensureDeferred
async def test_scan_skips_messages_known_to_be_older(partition, side):
    reader = side.reader(partition)
    messages = timed([10, 20, 90, 30, 40], size=100_000)
    for (one, _), place in zip(messages, partition.write(messages), strict=True):
        reader.appended(one, place)
    seen = []

    def visit(stored):
        seen.append(stored)
        return False

    assert await reader.scan(0, 5, visit, ALL, since=lambda: 50) == 5
    assert 2 in offsets(seen)
    assert 0 not in offsets(seen)
    seen.clear()
    assert await reader.scan(3, 5, visit, ALL, since=lambda: 50) == 5
    assert offsets(seen) == []


@ensureDeferred
async def test_limited_scan_returns_offset_reached(partition, side):
    partition.write(numbered(0, 30, size=100_000))
    reader = side.reader(partition)
    seen = []
    reached = await reader.scan(0, 30, lambda stored: seen.append(stored) or False, 1)
    assert 0 < reached < 30
    assert offsets(seen) == list(range(reached))
