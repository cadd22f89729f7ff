"""Reading a partition from a real broker: each message once and in order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from pytest_twisted import ensureDeferred

from storage.log import StorageFailed
from storage.pulsar.log.offset_index import Position
from tests.storage.pulsar.partition_topics import header, numbered, offsets

pytestmark = pytest.mark.peer

ALL = 1 << 30


@ensureDeferred
async def test_empty_topic_has_no_first_or_last_message(partition, side):
    reader = side.reader(partition)
    assert await reader.first() is None
    assert await reader.last() is None
    assert await reader.read(0, 0, ALL) == []


@ensureDeferred
async def test_messages_are_read_with_header_and_position(partition, side):
    places = partition.write(numbered(0, 3))
    found = await side.reader(partition).read(0, 3, ALL)
    assert [(one.header, one.payload) for one in found] == numbered(0, 3)
    assert [one.position for one in found] == places


@ensureDeferred
async def test_first_and_last_message_are_found(partition, side):
    partition.write(numbered(0, 5))
    reader = side.reader(partition)
    first, last = await reader.first(), await reader.last()
    assert offsets([first, last]) == [0, 4]
    assert last.payload == b"4 ........"


@ensureDeferred
async def test_read_starts_with_message_containing_offset(partition, side):
    partition.write([(header(0, 9), b"a"), (header(10, 19), b"b"), (header(20, 29), b"c")])
    reader = side.reader(partition)
    assert offsets(await reader.read(15, 30, ALL)) == [10, 20]
    assert offsets(await reader.read(9, 30, ALL)) == [0, 10, 20]


@ensureDeferred
async def test_read_ends_before_end_offset(partition, side):
    partition.write(numbered(0, 9))
    reader = side.reader(partition)
    assert offsets(await reader.read(0, 4, ALL)) == [0, 1, 2, 3]
    assert offsets(await reader.read(4, 7, ALL)) == [4, 5, 6]


@ensureDeferred
async def test_read_returns_up_to_max_bytes_but_at_least_one_message(partition, side):
    partition.write(numbered(0, 9, size=100))
    reader = side.reader(partition)
    assert offsets(await reader.read(0, 9, 0)) == [0]
    assert offsets(await reader.read(1, 9, 299)) == [1, 2]
    assert offsets(await reader.read(3, 9, 300)) == [3, 4, 5]
    assert offsets(await reader.read(6, 9, ALL)) == [6, 7, 8]


@ensureDeferred
async def test_read_spans_many_small_ledgers(partition, side):
    for begin in range(0, 30, 3):
        partition.write(numbered(begin, begin + 3))
        partition.roll()
    reader = side.reader(partition)
    assert offsets([await reader.first(), await reader.last()]) == [0, 29]
    assert offsets(await reader.read(0, 30, ALL)) == list(range(30))
    for offset in range(30):
        assert offsets(await side.reader(partition).read(offset, 30, 0)) == [offset]


@ensureDeferred
async def test_resent_messages_are_read_once_and_in_order(partition, side):
    partition.write([*numbered(0, 8), *numbered(5, 9)])
    for offset in range(9):
        assert offsets(await side.reader(partition).read(offset, 9, ALL)) == list(range(offset, 9))
    assert offsets([await side.reader(partition).last()]) == [8]


@ensureDeferred
async def test_late_messages_of_fenced_leader_are_skipped(partition, side):
    partition.write(
        [*numbered(0, 8, epoch=1), *numbered(5, 7, epoch=1), *numbered(7, 9, size=20, epoch=2)]
    )
    reader = side.reader(partition)
    reader.add_epoch(1, 0)
    reader.add_epoch(2, 7)
    found = await reader.read(0, 9, ALL)
    assert offsets(found) == list(range(9))
    assert [len(one.payload) for one in found] == [10] * 7 + [20] * 2
    assert offsets(await reader.read(8, 9, ALL)) == [8]


@ensureDeferred
async def test_late_messages_of_earlier_log_of_the_same_epoch_are_skipped(partition, side):
    late = [(replace(one, opening=1), payload) for one, payload in numbered(7, 9, size=20, epoch=1)]
    partition.write([*numbered(0, 8, epoch=1), *numbered(5, 7, epoch=1), *late])
    reader = side.reader(partition)
    reader.add_epoch(1, 0)
    reader.add_epoch(1, 7, 1)
    found = await reader.read(0, 9, ALL)
    assert [len(one.payload) for one in found] == [10] * 7 + [20] * 2


@ensureDeferred
async def test_last_message_is_end_of_interrupted_resend(partition, side):
    partition.write([*numbered(0, 8), *numbered(5, 7)])
    assert offsets([await side.reader(partition).last()]) == [6]


@ensureDeferred
async def test_foreign_messages_are_skipped_and_get_no_offset(partition, side, caplog):
    partition.write([None, None, *numbered(0, 2), None, *numbered(2, 4), None])
    reader = side.reader(partition)
    assert offsets([await reader.first(), await reader.last()]) == [0, 3]
    assert offsets(await reader.read(0, 4, ALL)) == [0, 1, 2, 3]
    assert caplog.text.count("not written by kopgate") == 1


@ensureDeferred
async def test_foreign_message_with_invalid_utf8_is_skipped(partition, side):
    partition.write_broken_text()
    partition.write(numbered(0, 2))
    partition.write_broken_text()
    reader = side.reader(partition)
    assert offsets([await reader.first(), await reader.last()]) == [0, 1]
    assert offsets(await reader.read(0, 2, ALL)) == [0, 1]


@ensureDeferred
async def test_foreign_batches_are_skipped(partition, side):
    partition.write([None] * 20, foreign_batches=True)
    partition.write(numbered(0, 4))
    partition.write([None] * 20, foreign_batches=True)
    partition.write(numbered(4, 6))
    partition.write([None] * 20, foreign_batches=True)
    reader = side.reader(partition)
    assert offsets([await reader.first(), await reader.last()]) == [0, 5]
    assert offsets(await reader.read(0, 6, ALL)) == list(range(6))


@ensureDeferred
async def test_topic_with_only_foreign_messages_is_empty(partition, side):
    partition.write([None] * 5)
    reader = side.reader(partition)
    assert await reader.first() is None
    assert await reader.last() is None


@ensureDeferred
async def test_last_message_is_found_before_many_foreign_ledgers(partition, side):
    partition.write(numbered(0, 2))
    for _ in range(4):
        partition.roll()
        partition.write([None] * 30)
    partition.roll()
    assert offsets([await side.reader(partition).last()]) == [1]


@ensureDeferred
async def test_too_many_foreign_messages_fail_naming_the_setting(partition, open_side):
    side = await open_side(foreign_messages=10)
    partition.write([*numbered(0, 1), *[None] * 30])
    with pytest.raises(StorageFailed, match="foreign_messages"):
        await side.reader(partition).last()
    assert offsets([await side.reader(partition).first()]) == [0]


@ensureDeferred
async def test_many_foreign_messages_at_both_ends_are_skipped(partition, side):
    partition.write([*[None] * 4200, *numbered(0, 2), *[None] * 4200])
    reader = side.reader(partition)
    assert offsets([await reader.first(), await reader.last()]) == [0, 1]
    assert offsets(await reader.read(1, 2, ALL)) == [1]


@ensureDeferred
async def test_empty_open_ledger_does_not_hide_earlier_entries(partition, side):
    partition.write(numbered(0, 2))
    partition.roll()
    partition.ledgers()
    assert offsets([await side.reader(partition).last()]) == [1]


@ensureDeferred
async def test_last_message_before_position_is_found(partition, side):
    places = [
        *partition.write(numbered(0, 2)),
        *partition.write([None, None]),
        *partition.write(numbered(2, 3)),
    ]
    reader = side.reader(partition)
    assert offsets([await reader.last(places[4]), await reader.last(places[1])]) == [1, 0]
    assert await reader.last(places[0]) is None
    assert await reader.last(Position(0, 0)) is None


@ensureDeferred
async def test_marker_is_last_message_but_is_not_read(partition, side):
    partition.write([*numbered(0, 2), (header(2, 1), b""), *numbered(2, 4), (header(4, 3), b"")])
    reader = side.reader(partition)
    last = await reader.last()
    assert (last.header.base_offset, last.header.last_offset) == (4, 3)
    assert offsets(await reader.read(0, 4, ALL)) == [0, 1, 2, 3]
    assert offsets(await side.reader(partition).read(2, 4, ALL)) == [2, 3]


@ensureDeferred
async def test_read_of_trimmed_offset_returns_next_message(partition, side):
    reader = side.reader(partition)
    for begin in (0, 5):
        messages = numbered(begin, begin + 5)
        note_all(reader, messages, partition.write(messages))
        partition.roll()
    partition.write(numbered(10, 12))
    partition.trim()
    assert offsets([await reader.first()]) == [10]
    assert offsets(await reader.read(3, 12, ALL)) == [10, 11]
    assert offsets(await side.reader(partition).read(3, 12, ALL)) == [10, 11]


@ensureDeferred
async def test_read_of_fully_trimmed_topic_is_empty(partition, side):
    reader = side.reader(partition)
    (place,) = partition.write(numbered(0, 1))
    reader.appended(header(0), place)
    partition.roll()
    partition.trim()
    assert await reader.read(0, 1, ALL) == []
    assert await reader.first() is None
    assert await reader.last() is None
    partition.write(numbered(1, 3))
    assert offsets(await reader.read(0, 3, ALL)) == [1, 2]


@ensureDeferred
async def test_distant_offset_is_found_with_few_lookups(partition, side):
    for begin in range(0, 5000, 1000):
        partition.write(numbered(begin, begin + 1000, size=2000))
        partition.roll()
    reader = side.reader(partition)
    assert offsets(await reader.read(3777, 5000, 0)) == [3777]
    # Lookups of the first and last message, five bisection steps from 10 MB to below 512 KiB, and
    # one read.
    assert side.client.readers <= 2 + 5 + 1
    opened = side.client.readers
    assert offsets(await reader.read(3600, 5000, 0)) == [3600]
    # Between 2500 and 3750, which are in the index by now.
    assert side.client.readers <= opened + 3 + 1


async def read_through(reader, end):
    found = []
    while not found or found[-1] + 1 < end:
        found += offsets(await reader.read(found[-1] + 1 if found else 0, end, 7_500))
    return found


def note_all(reader, messages, places):
    for (one, _), place in zip(messages, places, strict=True):
        reader.appended(one, place)


@ensureDeferred
async def test_sequential_reads_share_one_reader(partition, side):
    messages = numbered(0, 300, size=1000)
    reader = side.reader(partition)
    note_all(reader, messages, partition.write(messages))
    assert await read_through(reader, 300) == list(range(300))
    assert side.client.readers == 1


@ensureDeferred
async def test_reader_is_replaced_to_match_message_size(partition, open_side):
    side = await open_side(reader_queue_messages=1)
    messages = numbered(0, 300, size=1000)
    reader = side.reader(partition)
    note_all(reader, messages, partition.write(messages))
    assert await read_through(reader, 300) == list(range(300))
    assert side.client.readers == 2


@ensureDeferred
async def test_reader_continues_in_next_ledger(partition, side):
    partition.write(numbered(0, 3))
    reader = side.reader(partition)
    assert offsets(await reader.read(0, 3, ALL)) == [0, 1, 2]
    partition.roll()
    partition.write(numbered(3, 6))
    assert offsets(await reader.read(3, 6, ALL)) == [3, 4, 5]


@ensureDeferred
async def test_rest_of_message_is_read_without_new_reader(partition, side):
    partition.write([(header(0, 9), b"a"), (header(10, 19), b"b"), (header(20, 29), b"c")])
    reader = side.reader(partition)
    assert offsets(await reader.read(0, 30, 0)) == [0]
    assert offsets(await reader.read(4, 30, 0)) == [0]
    opened = side.client.readers
    assert offsets(await reader.read(9, 30, 2)) == [0, 10]
    assert offsets(await reader.read(15, 30, 2)) == [10, 20]
    assert side.client.readers == opened


@ensureDeferred
async def test_position_of_offset_is_returned(partition, side):
    places = partition.write(numbered(0, 3))
    reader = side.reader(partition)
    assert [await reader.position_of(offset) for offset in range(3)] == places


@ensureDeferred
async def test_scan_resumes_where_it_stopped(partition, side):
    partition.write(numbered(0, 50, size=1000))
    reader = side.reader(partition)
    seen = []

    def visit(stored):
        seen.append(stored.header.base_offset)
        return seen[-1] == 20

    assert await reader.scan(3, 50, visit, ALL) == 21
    assert await reader.scan(21, 50, visit, ALL) == 50
    assert seen == list(range(3, 50))


@ensureDeferred
async def test_message_at_byte_position_is_found_with_few_lookups(partition, side):
    partition.write(numbered(0, 5000, size=2000))
    reader = side.reader(partition)
    assert offsets([await reader.at_byte(3777 * 2000 + 1999, 0, 5000)]) == [3777]
    # Lookups of the first and last message, five bisection steps from 10 MB to below 512 KiB, and
    # one read.
    assert side.client.readers <= 2 + 5 + 1
    wanted = {(0, 0): 0, (1999, 0): 0, (2000, 0): 1, (2000, 7): 7, (9_999_999, 0): 4999}
    assert {
        (byte, start): offsets([await reader.at_byte(byte, start, 5000)])[0]
        for byte, start in wanted
    } == wanted
    assert await reader.at_byte(10_000_000, 0, 5000) is None
    assert await reader.at_byte(9_999_999, 0, 4000) is None


@ensureDeferred
async def test_trimmed_byte_position_maps_to_first_remaining_message(partition, side):
    partition.write(numbered(0, 5))
    partition.roll()
    partition.write(numbered(5, 9))
    partition.trim()
    assert offsets([await side.reader(partition).at_byte(17, 0, 9)]) == [5]
