"""The offset index, compared with a plain list of all messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import (
    INITIAL_SPACING,
    IndexEntry,
    OffsetIndex,
    Position,
    index_entry,
)

Message = tuple[Header, Position]


def messages(*sizes: int, times: list[int] | None = None, records: int = 1) -> list[Message]:
    """A partition of messages with these sizes in one ledger."""
    made: list[Message] = []
    before = 0
    greatest = -1
    for number, size in enumerate(sizes):
        time = times[number] if times else -1
        greatest = max(greatest, time)
        made.append(
            (
                Header(number * records, (number + 1) * records - 1, time, before, 0, greatest),
                Position(7, number),
            )
        )
        before += size
    return made


def appended(limit: int, partition: list[Message]) -> OffsetIndex:
    index = OffsetIndex(limit)
    for header, position in partition:
        index.appended(header, position)
    return index


def test_empty_index_has_no_entries() -> None:
    index = OffsetIndex(10)
    assert index.floor(0) is None
    assert index.above(0) is None
    assert index.skip_older(5, 1) == 5


def test_floor_returns_last_entry_at_or_before_offset() -> None:
    index = appended(10, messages(INITIAL_SPACING, INITIAL_SPACING, records=10))
    first, second = (
        IndexEntry(0, Position(7, 0), 0, -1),
        IndexEntry(10, Position(7, 1), INITIAL_SPACING, -1),
    )
    assert [index.floor(offset) for offset in (-1, 0, 9, 10, 999)] == [
        None,
        first,
        first,
        second,
        second,
    ]
    assert [index.above(offset) for offset in (-1, 0, 9, 10, 999)] == [
        first,
        second,
        second,
        None,
        None,
    ]


def test_small_messages_share_an_index_entry() -> None:
    assert len(appended(100, messages(*[INITIAL_SPACING // 4] * 9))) == 3


def test_full_index_drops_every_second_entry_and_doubles_spacing() -> None:
    index = appended(4, messages(*[INITIAL_SPACING] * 5))
    assert [index.floor(offset) for offset in (1, 3, 5)] == [
        IndexEntry(0, Position(7, 0), 0, -1),
        IndexEntry(2, Position(7, 2), 2 * INITIAL_SPACING, -1),
        IndexEntry(4, Position(7, 4), 4 * INITIAL_SPACING, -1),
    ]
    index.appended(Header(5, 5, -1, 5 * INITIAL_SPACING, 0), Position(7, 5))
    assert len(index) == 3
    index.appended(Header(6, 6, -1, 6 * INITIAL_SPACING, 0), Position(7, 6))
    assert len(index) == 4


def test_forget_before_keeps_entry_of_straddling_message() -> None:
    index = appended(10, messages(*[INITIAL_SPACING] * 3, records=10))
    index.forget_before(15)
    assert index.floor(9) is None
    assert index.floor(15) == IndexEntry(10, Position(7, 1), INITIAL_SPACING, -1)


def test_skip_older_stops_at_first_segment_that_may_have_timestamp() -> None:
    index = appended(10, messages(*[INITIAL_SPACING] * 4, times=[10, 30, 20, 40]))
    assert [index.skip_older(0, time) for time in (10, 11, 30, 31, 40, 41)] == [0, 1, 1, 3, 3, 4]


def test_skip_older_does_not_skip_segment_with_gap() -> None:
    index = appended(10, messages(INITIAL_SPACING, times=[10]))
    index.appended(Header(9, 9, 20, 9 * INITIAL_SPACING, 0), Position(8, 0))
    assert index.skip_older(0, 15) == 0
    assert index.skip_older(9, 25) == 10


def test_skip_older_skips_messages_found_by_gapless_scan() -> None:
    partition = messages(*[INITIAL_SPACING] * 4, times=[10, 30, 20, 40])
    index = OffsetIndex(10)
    index.found(*partition[0])
    index.found(*partition[3])
    assert index.skip_older(0, 99) == 0
    index.scanned(0, partition[:2])
    assert index.skip_older(0, 99) == 1
    index.scanned(2, partition[2:])
    assert index.skip_older(0, 99) == 4


def test_entries_around_timestamp_are_found() -> None:
    partition = messages(*[INITIAL_SPACING] * 4, times=[10, 30, 20, 40])
    index = appended(10, partition)
    marks = [index_entry(*message) for message in partition]
    assert [index.before_time(time) for time in (10, 11, 31, 41)] == [
        None,
        marks[0],
        marks[2],
        marks[3],
    ]
    assert [index.at_time(time) for time in (10, 11, 31, 41)] == [
        marks[0],
        marks[1],
        marks[3],
        None,
    ]


def test_entries_around_byte_position_are_found() -> None:
    partition = messages(*[INITIAL_SPACING] * 3)
    index = appended(10, partition)
    marks = [index_entry(*message) for message in partition]
    numbers = (0, INITIAL_SPACING - 1, INITIAL_SPACING, 9 * INITIAL_SPACING)
    assert [index.before_byte(number) for number in numbers] == [
        marks[0],
        marks[0],
        marks[1],
        marks[2],
    ]
    assert [index.after_byte(number) for number in numbers] == [marks[1], marks[1], marks[2], None]


def test_marker_is_not_indexed() -> None:
    index = OffsetIndex(10)
    index.appended(Header(0, -1, -1, 0, 0), Position(7, 0))
    assert index.floor(0) is None


def test_scan_that_starts_within_segment_does_not_cover_its_start() -> None:
    partition = messages(*[1] * 4, times=[90, 30, 20, 40])
    index = OffsetIndex(10)
    index.found(*partition[0])
    index.found(Header(4, 4, 40, 4 + INITIAL_SPACING, 0), Position(7, 4))
    index.scanned(1, partition[1:])
    assert index.skip_older(0, 50) == 0


sizes = st.lists(st.integers(0, 4), min_size=1, max_size=60)
ways = st.lists(
    st.tuples(
        st.sampled_from(["append", "find", "walk", "forget"]),
        st.integers(0, 60),
        st.integers(0, 20),
    ),
    max_size=30,
)


@given(st.integers(2, 12), sizes, st.data(), ways)
def test_index_is_correct_after_any_sequence_of_messages(limit, sizes, data, ways) -> None:
    times = data.draw(st.lists(st.integers(-1, 9), min_size=len(sizes), max_size=len(sizes)))
    partition = messages(*[size * INITIAL_SPACING // 2 for size in sizes], times=times, records=3)
    index, end, start = OffsetIndex(limit), 0, 0
    for way, number, count in ways:
        seen = partition[:end]
        if way == "append":
            for message in partition[end : end + count]:
                index.appended(*message)
            end = min(len(partition), end + count)
        elif way == "find" and seen:
            index.found(*seen[number % end])
        elif way == "walk" and seen[number:]:
            index.scanned(seen[number][0].base_offset, seen[number : number + count])
        elif way == "forget":
            index.forget_before(number)
            start = max(start, number)
        assert len(index) <= limit
        places = {
            header.base_offset: index_entry(header, position)
            for header, position in partition[:end]
        }
        for offset in range(start, 3 * end + 2):
            floor, above = index.floor(offset), index.above(offset)
            assert floor is None or floor == places[floor.offset]
            assert floor is None or floor.offset <= offset
            assert above is None or above == places[above.offset]
            assert above is None or above.offset > offset
            for time in (-1, 3, 9, 10):
                passed = index.skip_older(offset, time)
                assert offset <= passed
                assert [
                    header
                    for header, _ in partition[:end]
                    if offset <= header.base_offset < passed and header.max_timestamp >= time
                ] == []


@given(st.integers(2, 12), sizes)
def test_index_of_appended_messages_keeps_first_message(limit, sizes) -> None:
    index = appended(limit, messages(*[size * INITIAL_SPACING for size in sizes]))
    assert index.floor(0) == IndexEntry(0, Position(7, 0), 0, -1)


@given(st.integers(2, 12), sizes, st.data())
def test_index_of_appended_messages_skips_all_for_missing_timestamp(limit, sizes, data) -> None:
    times = data.draw(st.lists(st.integers(-1, 9), min_size=len(sizes), max_size=len(sizes)))
    index = appended(limit, messages(*[size * INITIAL_SPACING for size in sizes], times=times))
    assert index.skip_older(0, 10) == len(sizes)
