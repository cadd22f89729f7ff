"""What compaction has replaced in a partition: windows of offsets, each served from a run of messages in the partition's side topic.

The messages of the partition's own topic cannot be changed. One that lies within windows that adjoin each other (a region) is hidden, and where all
before an offset are, they may be deleted. A window begins and ends where entries that could be read did when it was made, so no message and no entry of
a run lies in it by half.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import structs

ANY_TIMESTAMP = MAX_OFFSET = (1 << 63) - 1


class ReplacedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The window from `first` to `last`. Its run: `messages` of them from (`ledger_id`, `entry_id`) on, which bear `token`, in the side topic of
    that `generation`; of its entries those are shown that lie within the window, `size` bytes of payload.

    `before`: the payload that the partition's own topic has before the region, where the window is the region's first. `hidden`: the payload that
    the region hides, summed over its windows. `newest`: nothing that the window shows bears a later timestamp.
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
    """Those of one partition, in the order of their windows. Never changed, only replaced as a whole."""

    def __init__(self, ranges: Iterable[ReplacedRange] = ()) -> None:
        self._all = sorted(ranges, key=first_offset_of)

    def __iter__(self) -> Iterator[ReplacedRange]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bytes_saved(self) -> int:
        """By how much less can be read than the partition's own topic has."""
        return sum(replaced.hidden_bytes - replaced.size for replaced in self._all)

    @property
    def size(self) -> int:
        """Bytes that are shown of runs."""
        return sum(replaced.size for replaced in self._all)

    def containing(self, offset: int) -> ReplacedRange | None:
        """The one whose window `offset` is in."""
        index = bisect_right(self._all, offset, key=first_offset_of) - 1
        return self._all[index] if index >= 0 and self._all[index].last >= offset else None

    def after(self, offset: int) -> ReplacedRange | None:
        """The first whose window begins behind `offset`."""
        index = bisect_right(self._all, offset, key=first_offset_of)
        return self._all[index] if index < len(self._all) else None

    def overlapping(self, first: int, last: int) -> list[ReplacedRange]:
        """Those whose windows share an offset with that from `first` to `last`."""
        return [
            replaced for replaced in self._all if replaced.first <= last and replaced.last >= first
        ]

    def contiguous_groups(self) -> Iterator[list[ReplacedRange]]:
        """Windows that adjoin each other, together."""
        region: list[ReplacedRange] = []
        for replaced in self._all:
            if region and region[-1].last + 1 != replaced.first:
                yield region
                region = []
            region.append(replaced)
        if region:
            yield region

    def covered_until(self, offset: int) -> int:
        """The offset up to which windows adjoin each other from `offset` on; itself where it is in none."""
        chain = self.contiguous_from(offset, MAX_OFFSET)
        return chain[-1].last + 1 if chain else offset

    def contiguous_from(self, offset: int, end: int) -> list[ReplacedRange]:
        """The windows that adjoin each other from the one with `offset` on, up to the one that reaches `end`."""
        found: list[ReplacedRange] = []
        while offset < end and (replaced := self.containing(offset)):
            found.append(replaced)
            offset = replaced.last + 1
        return found

    def trim_before(self, offset: int) -> tuple[list[ReplacedRange], list[ReplacedRange]]:
        """What goes and what comes when nothing before `offset` is read any more: the windows before it go; the next begins their region now."""
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
        """Several windows that adjoin each other and show no more than `size` bytes together, the first such; none where there are none."""
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
        """With `added` in place of `dropped`."""
        left = {replaced.first: replaced for replaced in self._all}
        for replaced in dropped:
            del left[replaced.first]
        return ReplacedRanges([*left.values(), *added])


def first_offset_of(replaced: ReplacedRange) -> int:
    return replaced.first


def cut_out(
    replaced: ReplacedRange, first: int, last: int, sizes: Sequence[tuple[int, int]]
) -> tuple[list[ReplacedRange], int]:
    """What is left of `replaced` when the window from `first` to `last` is taken out of it, and how much it hid that nothing left of it accounts for.

    `sizes`: last offset and payload bytes of each entry that the patch shows. What it hid stays with the first piece that is left.
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
