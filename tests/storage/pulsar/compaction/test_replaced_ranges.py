"""Windows that compaction has replaced: where they are, what they save, what is left of one when another comes."""

from __future__ import annotations

import pytest

from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges, cut_out


def patch(
    first: int, last: int, *, before: int = 0, hidden: int = 0, size: int = 0
) -> ReplacedRange:
    return ReplacedRange(first, last, before, hidden, size, messages=1, token=f"{first}")


PATCHES = ReplacedRanges(
    [patch(30, 39, hidden=50, size=20), patch(10, 19, hidden=100, size=40), patch(20, 29, size=5)]
)


@pytest.mark.parametrize(
    ("offset", "first"), [(9, None), (10, 10), (19, 10), (20, 20), (39, 30), (40, None)]
)
def test_a_window_has_its_first_and_its_last_offset(offset, first):
    found = PATCHES.at(offset)
    assert (found.first if found else None) == first


@pytest.mark.parametrize(("offset", "first"), [(0, 10), (10, 20), (29, 30), (30, None)])
def test_the_next_window_begins_behind_the_offset(offset, first):
    found = PATCHES.behind(offset)
    assert (found.first if found else None) == first


def test_windows_that_adjoin_are_a_region():
    patches = ReplacedRanges([patch(0, 4), patch(5, 9), patch(11, 12)])
    assert [[one.first for one in region] for region in patches.regions()] == [[0, 5], [11]]


def test_windows_before_the_start_go_and_the_next_begins_their_region():
    patches = ReplacedRanges(
        [
            patch(0, 4, before=7, hidden=3),
            patch(5, 9, before=1, hidden=10),
            patch(11, 12, before=30),
        ]
    )
    assert patches.cut(4) == ([], [])
    gone, come = patches.cut(7)
    assert [one.first for one in gone] == [0, 5]
    assert [(one.first, one.before, one.hidden) for one in come] == [(5, 10, 10)]
    gone, come = patches.cut(10)
    assert ([one.first for one in gone], come) == ([0, 5], [])


def test_what_adjoins_from_an_offset_on_is_covered():
    patches = ReplacedRanges([patch(0, 4), patch(5, 9), patch(11, 12)])
    assert [patches.covered(offset) for offset in (0, 7, 10, 12, 13)] == [10, 10, 10, 13, 13]
    assert [one.first for one in patches.chain(2, 5)] == [0]
    assert [one.first for one in patches.chain(2, 6)] == [0, 5]


@pytest.mark.parametrize(("size", "crowd"), [(0, [6, 7]), (1, [5, 6, 7]), (3, [0, 5, 6, 7])])
def test_a_crowd_adjoins_and_shows_little(size, crowd):
    patches = ReplacedRanges(
        [patch(0, 4, size=2), patch(5, 5, size=1), patch(6, 6), patch(7, 7), patch(9, 9)]
    )
    assert [one.first for one in patches.crowd(size)] == crowd


def test_savings_are_what_is_hidden_less_what_is_shown():
    assert PATCHES.savings == 85
    assert PATCHES.size == 65


def test_windows_that_share_an_offset_are_within():
    assert [one.first for one in PATCHES.within(19, 30)] == [10, 20, 30]
    assert PATCHES.within(40, 50) == []


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
def test_what_is_left_of_a_window_shows_what_lies_in_it_and_hides_all_that_it_hid(
    first, last, left, rest
):
    pieces, hidden = cut_out(patch(10, 19, before=7, hidden=100, size=15), first, last, SIZES)
    assert [(one.first, one.last, one.size, one.hidden) for one in pieces] == left
    assert hidden == rest
    assert all((one.token, one.before) == ("10", 7) for one in pieces)


def test_changed_patches_are_others():
    gone = PATCHES.at(20)
    assert gone
    after = PATCHES.changed([gone], [patch(20, 24), patch(25, 29)])
    assert [one.first for one in after] == [10, 20, 25, 30]
    assert len(PATCHES) == 3
