"""ListOffsets v0 as Kafka 0.8 answered it, the log counting as one segment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.handlers.list_offsets import EARLIEST, LATEST, offsets_before


def test_the_latest_is_the_end_and_then_the_beginning():
    assert offsets_before(LATEST, 10, start=3, end=9, last_before=None) == [9, 3]


def test_of_the_latest_one_is_asked_for_most_often():
    assert offsets_before(LATEST, 1, start=3, end=9, last_before=None) == [9]


def test_the_earliest_is_the_beginning():
    assert offsets_before(EARLIEST, 10, start=3, end=9, last_before=None) == [3]


def test_an_empty_log_has_one_offset():
    assert offsets_before(LATEST, 10, start=5, end=5, last_before=None) == [5]


def test_a_time_gives_what_was_written_up_to_it_and_then_the_beginning():
    assert offsets_before(1000, 10, start=3, end=9, last_before=6) == [6, 3]


def test_a_time_before_everything_gives_the_beginning():
    assert offsets_before(1000, 10, start=3, end=9, last_before=3) == [3]


@pytest.mark.parametrize("count", [0, -1, -2147483648])
def test_none_are_given_where_none_are_asked_for(count):
    assert offsets_before(LATEST, count, start=3, end=9, last_before=None) == []


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-5, 5),
    st.integers(0, 50),
    st.integers(0, 50),
    st.one_of(st.none(), st.integers(0, 50)),
)
def test_offsets_come_newest_first_without_repetition_and_lie_in_the_log(
    timestamp, count, start, length, last_before
):
    end = start + length
    last = None if last_before is None else min(start + last_before, end)
    found = offsets_before(timestamp, count, start=start, end=end, last_before=last)
    assert found == sorted(set(found), reverse=True)
    assert all(start <= offset <= end for offset in found)
    assert len(found) <= max(count, 0)
