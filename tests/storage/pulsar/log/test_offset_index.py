"""Where offsets are, against a plain list of all messages."""

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
    """A partition of messages of these sizes in one ledger."""
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


def test_an_empty_index_knows_no_place() -> None:
    index = OffsetIndex(10)
    assert index.floor(0) is None
    assert index.above(0) is None
    assert index.skip_older(5, 1) == 5


def test_a_place_is_found_for_any_offset_at_or_after_it() -> None:
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


def test_small_messages_share_a_mark() -> None:
    assert len(appended(100, messages(*[INITIAL_SPACING // 4] * 9))) == 3


def test_when_it_is_full_every_second_mark_goes_and_the_next_are_twice_as_far_apart() -> None:
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


def test_the_mark_before_what_is_forgotten_stays_for_the_entry_that_straddles() -> None:
    index = appended(10, messages(*[INITIAL_SPACING] * 3, records=10))
    index.forget_before(15)
    assert index.floor(9) is None
    assert index.floor(15) == IndexEntry(10, Position(7, 1), INITIAL_SPACING, -1)


def test_stretches_that_were_appended_here_are_passed_over_up_to_the_first_that_may_hold_the_time() -> (
    None
):
    index = appended(10, messages(*[INITIAL_SPACING] * 4, times=[10, 30, 20, 40]))
    assert [index.skip_older(0, time) for time in (10, 11, 30, 31, 40, 41)] == [0, 1, 1, 3, 3, 4]


def test_a_stretch_with_a_gap_in_it_is_not_passed_over() -> None:
    index = appended(10, messages(INITIAL_SPACING, times=[10]))
    index.appended(Header(9, 9, 20, 9 * INITIAL_SPACING, 0), Position(8, 0))
    assert index.skip_older(0, 15) == 0
    assert index.skip_older(9, 25) == 10


def test_what_was_only_met_while_reading_is_passed_over_when_it_was_walked_through() -> None:
    partition = messages(*[INITIAL_SPACING] * 4, times=[10, 30, 20, 40])
    index = OffsetIndex(10)
    index.found(*partition[0])
    index.found(*partition[3])
    assert index.skip_older(0, 99) == 0
    index.scanned(0, partition[:2])
    assert index.skip_older(0, 99) == 1
    index.scanned(2, partition[2:])
    assert index.skip_older(0, 99) == 4


def test_the_marks_on_both_sides_of_a_time_are_found() -> None:
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


def test_the_marks_on_both_sides_of_a_byte_are_found() -> None:
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


def test_a_message_that_takes_no_offset_has_no_place() -> None:
    index = OffsetIndex(10)
    index.appended(Header(0, -1, -1, 0, 0), Position(7, 0))
    assert index.floor(0) is None


def test_a_walk_that_begins_in_a_stretch_says_nothing_of_its_beginning() -> None:
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
def test_whatever_was_seen_a_place_is_true_and_nothing_that_matters_is_passed_over(
    limit, sizes, data, ways
) -> None:
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
def test_where_everything_was_appended_here_the_first_message_stays_known(limit, sizes) -> None:
    index = appended(limit, messages(*[size * INITIAL_SPACING for size in sizes]))
    assert index.floor(0) == IndexEntry(0, Position(7, 0), 0, -1)


@given(st.integers(2, 12), sizes, st.data())
def test_where_everything_was_appended_here_nothing_needs_to_be_looked_through_for_a_time_that_is_not_there(
    limit, sizes, data
) -> None:
    times = data.draw(st.lists(st.integers(-1, 9), min_size=len(sizes), max_size=len(sizes)))
    index = appended(limit, messages(*[size * INITIAL_SPACING for size in sizes], times=times))
    assert index.skip_older(0, 10) == len(sizes)
