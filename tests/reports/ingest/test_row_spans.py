"""Which rows are there, against a set that has each of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reports.ingest.row_spans import RowSpan, RowSpans

SPANS = st.builds(
    lambda process, first, more: RowSpan(process, first, first + more),
    st.sampled_from("ab"),
    st.integers(0, 30),
    st.integers(0, 8),
)


def each(span):
    return {(span.process, number) for number in range(span.first, span.last + 1)}


@given(st.lists(SPANS, max_size=12), SPANS)
def test_what_is_there_is_what_was_added(added, asked):
    rows, wanted = RowSpans(added), set().union(*map(each, added))
    assert rows.covers(asked) == (each(asked) <= wanted)
    assert rows.overlaps(asked) == bool(each(asked) & wanted)


@given(st.lists(SPANS, max_size=12))
def test_spans_that_meet_are_one(added):
    spans = RowSpans(added).spans()
    assert set().union(*map(each, spans)) == set().union(*map(each, added))
    assert [
        (one, next_)
        for one, next_ in pairwise(spans)
        if one.process == next_.process and one.last + 1 >= next_.first
    ] == []


def test_of_a_span_with_gaps_no_row_is_certain_and_each_may_be_there():
    rows = RowSpans([RowSpan("a", 10, 20, is_whole=False)])
    assert (
        rows.covers(RowSpan("a", 12, 12)),
        rows.overlaps(RowSpan("a", 20, 25)),
        rows.overlaps(RowSpan("a", 21, 25)),
    ) == (False, True, False)
    assert (rows.overlaps(RowSpan("b", 12, 12)), rows.spans()) == (
        False,
        [RowSpan("a", 10, 20, is_whole=False)],
    )
