"""ListOffsets v0 as in Kafka 0.8, with the log as one segment, and OffsetCommit v1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.old_requests import EARLIEST, LATEST, committed_at, offsets_before


def test_latest_returns_end_then_start():
    assert offsets_before(LATEST, 10, start=3, end=9, last_before=None) == [9, 3]


def test_latest_with_one_offset_returns_end():
    assert offsets_before(LATEST, 1, start=3, end=9, last_before=None) == [9]


def test_earliest_returns_start():
    assert offsets_before(EARLIEST, 10, start=3, end=9, last_before=None) == [3]


def test_empty_log_returns_one_offset():
    assert offsets_before(LATEST, 10, start=5, end=5, last_before=None) == [5]


def test_timestamp_returns_end_of_older_records_then_start():
    assert offsets_before(1000, 10, start=3, end=9, last_before=6) == [6, 3]


def test_timestamp_before_all_records_returns_start():
    assert offsets_before(1000, 10, start=3, end=9, last_before=3) == [3]


@pytest.mark.parametrize("count", [0, -1, -2147483648])
def test_zero_max_offsets_returns_nothing(count):
    assert offsets_before(LATEST, count, start=3, end=9, last_before=None) == []


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-5, 5),
    st.integers(0, 50),
    st.integers(0, 50),
    st.one_of(st.none(), st.integers(0, 50)),
)
def test_offsets_are_descending_distinct_and_within_the_log(
    timestamp, count, start, length, last_before
):
    end = start + length
    last = None if last_before is None else min(start + last_before, end)
    found = offsets_before(timestamp, count, start=start, end=end, last_before=last)
    assert found == sorted(set(found), reverse=True)
    assert all(start <= offset <= end for offset in found)
    assert len(found) <= max(count, 0)


def test_commit_timestamp_of_client_is_used():
    assert committed_at(1000, now=5000) == 1000
    assert committed_at(0, now=5000) == 0


def test_missing_commit_timestamp_means_now():
    assert committed_at(-1, now=5000) == 5000
