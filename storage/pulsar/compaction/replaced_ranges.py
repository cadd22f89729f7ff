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
    before: int
    hidden: int
    size: int
    generation: int = 0
    ledger_id: int = -1
    entry_id: int = -1
    messages: int = 0
    token: str = ""
    newest: int = ANY_TIMESTAMP


class ReplacedRanges:
    """Those of one partition, in the order of their windows. Never changed, only replaced as a whole."""

    def __init__(self, patches: Iterable[ReplacedRange] = ()) -> None:
        self._all = sorted(patches, key=first_offset_of)

    def __iter__(self) -> Iterator[ReplacedRange]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def savings(self) -> int:
        """By how much less can be read than the partition's own topic has."""
        return sum(patch.hidden - patch.size for patch in self._all)

    @property
    def size(self) -> int:
        """Bytes that are shown of runs."""
        return sum(patch.size for patch in self._all)

    def at(self, offset: int) -> ReplacedRange | None:
        """The one whose window `offset` is in."""
        index = bisect_right(self._all, offset, key=first_offset_of) - 1
        return self._all[index] if index >= 0 and self._all[index].last >= offset else None

    def behind(self, offset: int) -> ReplacedRange | None:
        """The first whose window begins behind `offset`."""
        index = bisect_right(self._all, offset, key=first_offset_of)
        return self._all[index] if index < len(self._all) else None

    def within(self, first: int, last: int) -> list[ReplacedRange]:
        """Those whose windows share an offset with that from `first` to `last`."""
        return [patch for patch in self._all if patch.first <= last and patch.last >= first]

    def regions(self) -> Iterator[list[ReplacedRange]]:
        """Windows that adjoin each other, together."""
        region: list[ReplacedRange] = []
        for patch in self._all:
            if region and region[-1].last + 1 != patch.first:
                yield region
                region = []
            region.append(patch)
        if region:
            yield region

    def covered(self, offset: int) -> int:
        """The offset up to which windows adjoin each other from `offset` on; itself where it is in none."""
        chain = self.chain(offset, MAX_OFFSET)
        return chain[-1].last + 1 if chain else offset

    def chain(self, offset: int, end: int) -> list[ReplacedRange]:
        """The windows that adjoin each other from the one with `offset` on, up to the one that reaches `end`."""
        found: list[ReplacedRange] = []
        while offset < end and (patch := self.at(offset)):
            found.append(patch)
            offset = patch.last + 1
        return found

    def cut(self, offset: int) -> tuple[list[ReplacedRange], list[ReplacedRange]]:
        """What goes and what comes when nothing before `offset` is read any more: the windows before it go; the next begins their region now."""
        gone = [patch for patch in self._all if patch.last < offset]
        heir = self.at(gone[-1].last + 1) if gone else None
        if heir is None:
            return gone, []
        region = next(region for region in self.regions() if heir in region)
        before = region[0].before + sum(patch.hidden for patch in region if patch.last < offset)
        return [*gone, heir], [structs.replace(heir, before=before)]

    def crowd(self, size: int) -> list[ReplacedRange]:
        """Several windows that adjoin each other and show no more than `size` bytes together, the first such; none where there are none."""
        for region in self.regions():
            crowd: list[ReplacedRange] = []
            shown = 0
            for patch in region:
                if crowd and shown + patch.size > size:
                    if len(crowd) > 1:
                        return crowd
                    crowd, shown = [], 0
                crowd.append(patch)
                shown += patch.size
            if len(crowd) > 1:
                return crowd
        return []

    def changed(
        self, gone: Iterable[ReplacedRange], come: Iterable[ReplacedRange]
    ) -> ReplacedRanges:
        """With `come` in place of `gone`."""
        left = {patch.first: patch for patch in self._all}
        for patch in gone:
            del left[patch.first]
        return ReplacedRanges([*left.values(), *come])


def first_offset_of(patch: ReplacedRange) -> int:
    return patch.first


def cut_out(
    patch: ReplacedRange, first: int, last: int, sizes: Sequence[tuple[int, int]]
) -> tuple[list[ReplacedRange], int]:
    """What is left of `patch` when the window from `first` to `last` is taken out of it, and how much it hid that nothing left of it accounts for.

    `sizes`: last offset and payload bytes of each entry that the patch shows. What it hid stays with the first piece that is left.
    """
    pieces = []
    hidden = patch.hidden
    for begin, end in ((patch.first, first - 1), (last + 1, patch.last)):
        if begin <= end and begin <= patch.last and end >= patch.first:
            shown = sum(size for offset, size in sizes if begin <= offset <= end)
            pieces.append(structs.replace(patch, first=begin, last=end, hidden=hidden, size=shown))
            hidden = 0
    return pieces, hidden
