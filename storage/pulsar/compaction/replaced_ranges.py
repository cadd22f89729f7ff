"""Offset ranges of a partition that compaction has replaced.

The messages of a partition's own topic cannot be changed. Each range is served from a batch of
replacement entries in the partition's side topic instead.

Adjoining ranges form a contiguous group. Messages of the topic within a group are hidden, and those
at the beginning of the partition may be trimmed. A range begins and ends at entry boundaries of the
time when it was created, so no message and no entry lies partly in a range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import structs

ANY_TIMESTAMP = MAX_OFFSET = (1 << 63) - 1


class ReplacedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The range from offset `first` to `last`, both inclusive.

    - `bytes_before`: payload bytes of the topic before the group, if this is the group's first
      range.
    - `hidden_bytes`: payload bytes of the topic that are hidden; only the sum over a group is
      exact.
    - `size`: payload bytes of the replacement entries that are shown: those within the range.
    - `generation`, `ledger_id`, `entry_id`, `messages`, `token`: the batch of replacement entries.
      It has that number of messages from that position on, in the side topic of that generation,
      and each bears the token.
    - `max_timestamp`: no shown entry has a later timestamp.
    """

    first: int
    last: int
    bytes_before: int
    hidden_bytes: int
    size: int
    generation: int = 0
    ledger_id: int = -1
    entry_id: int = -1
    messages: int = 0
    token: str = ""
    max_timestamp: int = ANY_TIMESTAMP


class ReplacedRanges:
    """The ranges of one partition in offset order. Immutable; changes create a new object."""

    def __init__(self, ranges: Iterable[ReplacedRange] = ()) -> None:
        self._all = sorted(ranges, key=first_offset_of)

    def __iter__(self) -> Iterator[ReplacedRange]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bytes_saved(self) -> int:
        """Bytes of the topic that are hidden, less the bytes shown instead."""
        return sum(replaced.hidden_bytes - replaced.size for replaced in self._all)

    @property
    def size(self) -> int:
        """Bytes of the replacement entries that are shown."""
        return sum(replaced.size for replaced in self._all)

    def containing(self, offset: int) -> ReplacedRange | None:
        """The range that contains `offset`."""
        index = bisect_right(self._all, offset, key=first_offset_of) - 1
        return self._all[index] if index >= 0 and self._all[index].last >= offset else None

    def after(self, offset: int) -> ReplacedRange | None:
        """The first range that begins after `offset`."""
        index = bisect_right(self._all, offset, key=first_offset_of)
        return self._all[index] if index < len(self._all) else None

    def overlapping(self, first: int, last: int) -> list[ReplacedRange]:
        """The ranges that share an offset with `first` to `last`."""
        return [
            replaced for replaced in self._all if replaced.first <= last and replaced.last >= first
        ]

    def contiguous_groups(self) -> Iterator[list[ReplacedRange]]:
        """The contiguous groups, in order."""
        region: list[ReplacedRange] = []
        for replaced in self._all:
            if region and region[-1].last + 1 != replaced.first:
                yield region
                region = []
            region.append(replaced)
        if region:
            yield region

    def covered_until(self, offset: int) -> int:
        """The end of the contiguous ranges from `offset` on; `offset` if it is in no range."""
        chain = self.contiguous_from(offset, MAX_OFFSET)
        return chain[-1].last + 1 if chain else offset

    def contiguous_from(self, offset: int, end: int) -> list[ReplacedRange]:
        """The contiguous ranges from the one with `offset` to the one that reaches `end`."""
        found: list[ReplacedRange] = []
        while offset < end and (replaced := self.containing(offset)):
            found.append(replaced)
            offset = replaced.last + 1
        return found

    def trim_before(self, offset: int) -> tuple[list[ReplacedRange], list[ReplacedRange]]:
        """The ranges to drop and to add when the log start moves to `offset`.

        Ranges that end before it are dropped. If that leaves the rest of a group, its new first
        range gets the group's `bytes_before`.
        """
        dropped = [replaced for replaced in self._all if replaced.last < offset]
        following_range = self.containing(dropped[-1].last + 1) if dropped else None
        if following_range is None:
            return dropped, []
        region = next(region for region in self.contiguous_groups() if following_range in region)
        before = region[0].bytes_before + sum(
            replaced.hidden_bytes for replaced in region if replaced.last < offset
        )
        return [*dropped, following_range], [structs.replace(following_range, bytes_before=before)]

    def small_neighbors(self, size: int) -> list[ReplacedRange]:
        """The first two or more adjoining ranges that show at most `size` bytes together, or []."""
        for region in self.contiguous_groups():
            small: list[ReplacedRange] = []
            shown = 0
            for replaced in region:
                if small and shown + replaced.size > size:
                    if len(small) > 1:
                        return small
                    small, shown = [], 0
                small.append(replaced)
                shown += replaced.size
            if len(small) > 1:
                return small
        return []

    def updated(
        self, dropped: Iterable[ReplacedRange], added: Iterable[ReplacedRange]
    ) -> ReplacedRanges:
        """A copy with `added` in place of `dropped`."""
        left = {replaced.first: replaced for replaced in self._all}
        for replaced in dropped:
            del left[replaced.first]
        return ReplacedRanges([*left.values(), *added])


def first_offset_of(replaced: ReplacedRange) -> int:
    return replaced.first


def cut_out(
    replaced: ReplacedRange, first: int, last: int, sizes: Sequence[tuple[int, int]]
) -> tuple[list[ReplacedRange], int]:
    """Cut the offsets `first` to `last` out of a range.

    Returns the remaining pieces and the hidden bytes that none of them accounts for; the first
    piece keeps them. `sizes` has the last offset and payload bytes of each entry that the range
    shows.
    """
    pieces = []
    hidden = replaced.hidden_bytes
    for begin, end in ((replaced.first, first - 1), (last + 1, replaced.last)):
        if begin <= end and begin <= replaced.last and end >= replaced.first:
            shown = sum(size for offset, size in sizes if begin <= offset <= end)
            pieces.append(
                structs.replace(replaced, first=begin, last=end, hidden_bytes=hidden, size=shown)
            )
            hidden = 0
    return pieces, hidden
