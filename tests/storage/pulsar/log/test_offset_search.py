"""Numbering of a topic's entries across ledgers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.pulsar.admin.admin_api import InternalStats, Ledger
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.offset_search import Ledgers


def test_topic_without_ledgers_has_no_entries() -> None:
    assert len(Ledgers([])) == 0
    assert Ledgers([]).number(Position(3, 3)) == 0


def test_entries_are_numbered_across_ledgers() -> None:
    ledgers = Ledgers([(3, 2), (5, 0), (9, 3)])
    assert len(ledgers) == 5
    assert [ledgers.position(number) for number in range(5)] == [
        (3, 0),
        (3, 1),
        (9, 0),
        (9, 1),
        (9, 2),
    ]


def test_missing_position_has_number_of_next_entry() -> None:
    ledgers = Ledgers([(3, 2), (5, 0), (9, 3)])
    assert [
        ledgers.number(Position(*place))
        for place in [(1, 7), (3, -1), (3, 9), (4, 0), (5, 3), (9, 1), (9, 9), (11, 0)]
    ] == [
        *(0, 0, 2, 2, 2, 3, 5, 5),
    ]


def test_current_ledger_size_is_taken_from_separate_field() -> None:
    stats = InternalStats([Ledger(3, 2, 10), Ledger(9, 0, 0)], 4, 20, 6, 30, "9:3")
    assert len(Ledgers.of(stats)) == 6


def test_closed_last_ledger_is_counted_once() -> None:
    stats = InternalStats([Ledger(3, 2, 10), Ledger(9, 4, 20)], 4, 20, 6, 30, "9:3")
    assert len(Ledgers.of(stats)) == 6


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 3), max_size=9))
def test_number_and_position_are_inverse(counts) -> None:
    ledgers = Ledgers(sorted(counts.items()))
    assert [ledgers.number(ledgers.position(number)) for number in range(len(ledgers))] == list(
        range(sum(counts.values()))
    )
