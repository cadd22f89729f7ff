"""Numbering of a topic's entries across ledgers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.pulsar.admin.admin_api import InternalStats, Ledger
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.offset_search import EntryNumbering


def test_topic_without_ledgers_has_no_entries() -> None:
    assert len(EntryNumbering([])) == 0
    assert EntryNumbering([]).number(Position(3, 3)) == 0


def test_entries_are_numbered_across_ledgers() -> None:
    entries = EntryNumbering([(3, 2), (5, 0), (9, 3)])
    assert len(entries) == 5
    assert [entries.position(number) for number in range(5)] == [
        (3, 0),
        (3, 1),
        (9, 0),
        (9, 1),
        (9, 2),
    ]


def test_missing_position_has_number_of_next_entry() -> None:
    entries = EntryNumbering([(3, 2), (5, 0), (9, 3)])
    assert [
        entries.number(Position(*place))
        for place in [(1, 7), (3, -1), (3, 9), (4, 0), (5, 3), (9, 1), (9, 9), (11, 0)]
    ] == [
        *(0, 0, 2, 2, 2, 3, 5, 5),
    ]


def test_current_ledger_size_is_taken_from_separate_field() -> None:
    stats = InternalStats([Ledger(3, 2, 10), Ledger(9, 0, 0)], 4, 20, 6, 30, "9:3")
    assert len(EntryNumbering.of(stats)) == 6


def test_closed_last_ledger_is_counted_once() -> None:
    stats = InternalStats([Ledger(3, 2, 10), Ledger(9, 4, 20)], 4, 20, 6, 30, "9:3")
    assert len(EntryNumbering.of(stats)) == 6


def stats(*sizes: int) -> InternalStats:
    ledgers = [
        Ledger(10 + 5 * number, entries, 0) for number, entries in enumerate((*sizes[:-1], 0))
    ]
    return InternalStats(ledgers, sizes[-1], 0, sum(sizes), 0, "")


def test_entries_of_statistics_are_numbered_across_ledgers():
    entries = EntryNumbering.of(stats(2, 0, 3, 1))
    positions = [entries.position(number) for number in range(len(entries))]
    assert positions == [(10, 0), (10, 1), (20, 0), (20, 1), (20, 2), (25, 0)]
    assert [entries.number(position) for position in positions] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("position", "number"),
    [((0, 7), 0), ((10, 2), 2), ((12, 0), 2), ((15, 0), 2), ((25, 1), 6), ((30, 0), 6)],
)
def test_missing_position_in_statistics_has_number_of_next_entry(position, number):
    assert EntryNumbering.of(stats(2, 0, 3, 1)).number(Position(*position)) == number


def test_statistics_without_ledgers_have_no_entries():
    assert len(EntryNumbering.of(InternalStats([], 0, 0, 0, 0, "-1:-1"))) == 0


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 3), max_size=9))
def test_number_and_position_are_inverse(counts) -> None:
    entries = EntryNumbering(sorted(counts.items()))
    assert [entries.number(entries.position(number)) for number in range(len(entries))] == list(
        range(sum(counts.values()))
    )
