"""Row spans, compared with a set of single rows."""

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
def test_spans_contain_exactly_the_added_rows(added, asked):
    rows, wanted = RowSpans(added), set().union(*map(each, added))
    assert rows.covers(asked) == (each(asked) <= wanted)
    assert rows.overlaps(asked) == bool(each(asked) & wanted)


@given(st.lists(SPANS, max_size=12))
def test_adjacent_spans_are_merged(added):
    spans = RowSpans(added).spans()
    assert set().union(*map(each, spans)) == set().union(*map(each, added))
    assert [
        (one, next_)
        for one, next_ in pairwise(spans)
        if one.process == next_.process and one.last + 1 >= next_.first
    ] == []


def test_span_with_gaps_overlaps_but_covers_nothing():
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
