"""Replaced ranges: lookups, bytes saved, and pieces left when another range overlaps."""

from __future__ import annotations

import pytest

from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges, cut_out


def replaced(
    first: int, last: int, *, before: int = 0, hidden: int = 0, size: int = 0
) -> ReplacedRange:
    return ReplacedRange(first, last, before, hidden, size, messages=1, token=f"{first}")


RANGES = ReplacedRanges(
    [
        replaced(30, 39, hidden=50, size=20),
        replaced(10, 19, hidden=100, size=40),
        replaced(20, 29, size=5),
    ]
)


@pytest.mark.parametrize(
    ("offset", "first"), [(9, None), (10, 10), (19, 10), (20, 20), (39, 30), (40, None)]
)
def test_range_contains_its_first_and_last_offset(offset, first):
    found = RANGES.containing(offset)
    assert (found.first if found else None) == first


@pytest.mark.parametrize(("offset", "first"), [(0, 10), (10, 20), (29, 30), (30, None)])
def test_after_returns_first_range_beginning_after_offset(offset, first):
    found = RANGES.after(offset)
    assert (found.first if found else None) == first


def test_adjoining_ranges_form_group():
    ranges = ReplacedRanges([replaced(0, 4), replaced(5, 9), replaced(11, 12)])
    assert [[one.first for one in region] for region in ranges.contiguous_groups()] == [
        [0, 5],
        [11],
    ]


def test_trim_drops_earlier_ranges_and_updates_next_one():
    ranges = ReplacedRanges(
        [
            replaced(0, 4, before=7, hidden=3),
            replaced(5, 9, before=1, hidden=10),
            replaced(11, 12, before=30),
        ]
    )
    assert ranges.trim_before(4) == ([], [])
    dropped, added = ranges.trim_before(7)
    assert [one.first for one in dropped] == [0, 5]
    assert [(one.first, one.bytes_before, one.hidden_bytes) for one in added] == [(5, 10, 10)]
    dropped, added = ranges.trim_before(10)
    assert ([one.first for one in dropped], added) == ([0, 5], [])


def test_covered_until_returns_end_of_adjoining_ranges():
    ranges = ReplacedRanges([replaced(0, 4), replaced(5, 9), replaced(11, 12)])
    assert [ranges.covered_until(offset) for offset in (0, 7, 10, 12, 13)] == [10, 10, 10, 13, 13]
    assert [one.first for one in ranges.contiguous_from(2, 5)] == [0]
    assert [one.first for one in ranges.contiguous_from(2, 6)] == [0, 5]


@pytest.mark.parametrize(("size", "crowd"), [(0, [6, 7]), (1, [5, 6, 7]), (3, [0, 5, 6, 7])])
def test_small_neighbors_are_adjoining_and_small(size, crowd):
    ranges = ReplacedRanges(
        [
            replaced(0, 4, size=2),
            replaced(5, 5, size=1),
            replaced(6, 6),
            replaced(7, 7),
            replaced(9, 9),
        ]
    )
    assert [one.first for one in ranges.small_neighbors(size)] == crowd


def test_bytes_saved_are_hidden_less_shown_bytes():
    assert RANGES.bytes_saved == 85
    assert RANGES.size == 65


def test_overlapping_returns_ranges_sharing_an_offset():
    assert [one.first for one in RANGES.overlapping(19, 30)] == [10, 20, 30]
    assert RANGES.overlapping(40, 50) == []


SIZES = [(11, 1), (14, 2), (16, 4), (19, 8)]


@pytest.mark.parametrize(
    ("first", "last", "left", "rest"),
    [
        (0, 50, [], 100),
        (10, 19, [], 100),
        (15, 19, [(10, 14, 3, 100)], 0),
        (10, 14, [(15, 19, 12, 100)], 0),
        (12, 16, [(10, 11, 1, 100), (17, 19, 8, 0)], 0),
    ],
)
def test_pieces_of_cut_range_keep_shown_entries_and_hidden_bytes(first, last, left, rest):
    pieces, hidden = cut_out(replaced(10, 19, before=7, hidden=100, size=15), first, last, SIZES)
    assert [(one.first, one.last, one.size, one.hidden_bytes) for one in pieces] == left
    assert hidden == rest
    assert all((one.token, one.bytes_before) == ("10", 7) for one in pieces)


def test_updated_ranges_are_a_new_object():
    dropped = RANGES.containing(20)
    assert dropped
    after = RANGES.updated([dropped], [replaced(20, 24), replaced(25, 29)])
    assert [one.first for one in after] == [10, 20, 25, 30]
    assert len(RANGES) == 3
