"""Messages by their time on a real broker, against what is written down by hand."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from tests.storage.pulsar.partition_topics import header, numbered, offsets

pytestmark = pytest.mark.peer

ALL = 1 << 30


def timed(times, size=10, greatest=-1):
    """A message for each time, with the greatest so far as a store writes it."""
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
async def test_the_first_message_that_reaches_a_time_is_found_though_later_ones_are_older(
    partition, side
):
    partition.write(timed([10, 30, 20, 30, 40, -1, 15]))
    reader = side.reader(partition)
    wanted = {-1: 0, 10: 0, 11: 1, 30: 1, 31: 4, 40: 4, 41: None}
    assert {time: found(await reader.at_time(time, 0, 7)) for time in wanted} == wanted
    assert found(await reader.latest(0, 7)) == 4


@ensureDeferred
async def test_a_look_at_what_came_before_a_place_hides_no_later_time(partition, side):
    places = partition.write(timed([10, 20, 30]))
    reader = side.reader(partition)
    assert found(await reader.last(places[1])) == 0
    assert found(await reader.at_time(30, 0, 3)) == 2
    assert found(await reader.latest(0, 3)) == 2


@ensureDeferred
async def test_the_greatest_time_is_that_of_the_first_message_that_bears_it(partition, side):
    partition.write(timed([10, 40, 20, 40, 40]))
    assert found(await side.reader(partition).latest(0, 5)) == 1


@ensureDeferred
async def test_messages_without_a_time_have_no_latest(partition, side):
    partition.write(timed([-1, -1]))
    reader = side.reader(partition)
    assert await reader.latest(0, 2) is None
    assert await reader.at_time(0, 0, 2) is None


@ensureDeferred
async def test_an_empty_partition_has_no_times(partition, side):
    reader = side.reader(partition)
    assert await reader.at_time(0, 0, 0) is None
    assert await reader.latest(0, 0) is None


@ensureDeferred
async def test_what_lies_before_the_start_or_at_the_end_is_not_found(partition, side):
    partition.write(timed([90, 10, 30, 20, 50]))
    reader = side.reader(partition)
    wanted = {5: 1, 11: 2, 31: None, 90: None}
    assert {time: found(await reader.at_time(time, 1, 4)) for time in wanted} == wanted
    assert found(await reader.latest(1, 4)) == 2


@ensureDeferred
async def test_a_message_that_straddles_the_start_counts(partition, side):
    partition.write([(header(0, 9, time=50), b"a"), (header(10, 19, time=20, greatest=50), b"b")])
    reader = side.reader(partition)
    assert found(await reader.at_time(30, 5, 20)) == 0
    assert found(await reader.latest(5, 20)) == 0


@ensureDeferred
async def test_a_time_whose_message_the_broker_has_trimmed_is_looked_for_in_what_is_left(
    partition, side
):
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
async def test_a_time_far_away_is_found_with_few_looks(partition, side):
    partition.write(
        [
            (header(offset, time=offset * 10, before=offset * 2000), bytes(2000))
            for offset in range(5000)
        ]
    )
    reader = side.reader(partition)
    assert found(await reader.at_time(37_761, 0, 5000)) == 3777
    # The first message, the last one, looks at a half of 10 MB, of 5 MB and so on until less than 512 KiB are left, and the reading.
    assert side.session.readers <= 2 + 5 + 1


@ensureDeferred
async def test_a_scan_leaves_out_what_is_known_to_be_older(partition, side):
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
async def test_a_scan_that_may_look_at_no_more_says_how_far_it_came(partition, side):
    partition.write(numbered(0, 30, size=100_000))
    reader = side.reader(partition)
    seen = []
    reached = await reader.scan(0, 30, lambda stored: seen.append(stored) or False, 1)
    assert 0 < reached < 30
    assert offsets(seen) == list(range(reached))
