"""The entries of a topic by number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.pulsar.admin.admin_api import InternalStats, Ledger
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.offset_search import Ledgers


def test_a_topic_without_ledgers_has_no_entries() -> None:
    assert len(Ledgers([])) == 0
    assert Ledgers([]).number(Position(3, 3)) == 0


def test_entries_are_numbered_through_all_ledgers() -> None:
    ledgers = Ledgers([(3, 2), (5, 0), (9, 3)])
    assert len(ledgers) == 5
    assert [ledgers.position(number) for number in range(5)] == [
        (3, 0),
        (3, 1),
        (9, 0),
        (9, 1),
        (9, 2),
    ]


def test_a_place_that_is_gone_or_not_there_yet_has_the_number_of_the_next() -> None:
    ledgers = Ledgers([(3, 2), (5, 0), (9, 3)])
    assert [
        ledgers.number(Position(*place))
        for place in [(1, 7), (3, -1), (3, 9), (4, 0), (5, 3), (9, 1), (9, 9), (11, 0)]
    ] == [
        *(0, 0, 2, 2, 2, 3, 5, 5),
    ]


def test_the_ledger_that_is_written_to_has_the_entries_that_are_told_apart() -> None:
    stats = InternalStats([Ledger(3, 2, 10), Ledger(9, 0, 0)], 4, 20, 6, 30, "9:3")
    assert len(Ledgers.of(stats)) == 6


def test_the_last_ledger_is_counted_once_where_it_is_closed() -> None:
    stats = InternalStats([Ledger(3, 2, 10), Ledger(9, 4, 20)], 4, 20, 6, 30, "9:3")
    assert len(Ledgers.of(stats)) == 6


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 3), max_size=9))
def test_a_number_and_a_place_are_each_others(counts) -> None:
    ledgers = Ledgers(sorted(counts.items()))
    assert [ledgers.number(ledgers.position(number)) for number in range(len(ledgers))] == list(
        range(sum(counts.values()))
    )
