"""The rows that are in the tables. A row is identified by its gateway process and its sequence
number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows `first` to `last` of a process: all of them if `is_whole`, otherwise some."""

    process: str
    first: int
    last: int
    is_whole: bool = True

    def overlaps(self, other: RowSpan) -> bool:
        return (
            self.process == other.process and self.first <= other.last and other.first <= self.last
        )


class RowSpans:
    """A set of rows. Adjacent whole spans are merged, so that a long-running process stays one
    span.
    """

    def __init__(self, spans: Iterable[RowSpan] = ()) -> None:
        self._whole: dict[str, list[tuple[int, int]]] = {}
        self._some: dict[str, list[RowSpan]] = {}
        for span in spans:
            self.add(span)

    def add(self, span: RowSpan) -> None:
        if not span.is_whole:
            self._some.setdefault(span.process, []).append(span)
            return
        spans = self._whole.setdefault(span.process, [])
        begin = bisect_left(spans, span.first - 1, key=lambda known: known[1])
        end = bisect_right(spans, span.last + 1, key=lambda known: known[0])
        first = min(span.first, spans[begin][0]) if begin < end else span.first
        last = max(span.last, spans[end - 1][1]) if begin < end else span.last
        del spans[begin:end]
        insort(spans, (first, last))

    def covers(self, span: RowSpan) -> bool:
        """Whether all rows of the span are certainly in the set."""
        spans = self._whole.get(span.process, [])
        place = bisect_left(spans, span.last, key=lambda known: known[1])
        return place < len(spans) and spans[place][0] <= span.first

    def overlaps(self, span: RowSpan) -> bool:
        """Whether a row of the span may be in the set."""
        spans = self._whole.get(span.process, [])
        place = bisect_left(spans, span.first, key=lambda known: known[1])
        return (place < len(spans) and spans[place][0] <= span.last) or any(
            span.overlaps(known) for known in self._some.get(span.process, [])
        )

    def spans(self) -> list[RowSpan]:
        whole = [
            RowSpan(process, *ends) for process, spans in self._whole.items() for ends in spans
        ]
        return sorted(
            [*whole, *(span for spans in self._some.values() for span in spans)],
            key=lambda span: (span.process, span.first),
        )
