"""Merges replaced ranges at the beginning of a partition, so that its topic can be trimmed there.

Entries between two ranges that were never replaced are copied into a range of their own, if more
bytes can be deleted than are copied. Small adjoining ranges become one. Neither changes what
readers see.
"""

from __future__ import annotations

from storage.log import StorageFailed
from storage.pulsar.compaction.overlay import Overlay
from storage.pulsar.compaction.replacement import EntryReplacer, RangeExtent
from storage.pulsar.log.entries import PartitionEntries
from storage.pulsar.log.partition_rows import PartitionState
from storage.pulsar.settings import MIB, PulsarSettings

COPY_BYTES = 4 * MIB
"""Bytes copied in one step, and largest size of a merged range.

A batch of replacement entries is read as a whole, so it must not be large.
"""

MIN_RANGES = 64
MAX_RANGE_EXCESS = 4
"""Limits above which ranges are merged.

These are MIN_RANGES, plus MAX_RANGE_EXCESS for each COPY_BYTES in the ranges, so that a byte is
copied only a few times.
"""


class RangeMerger:
    """For one log. Call each step while holding `PartitionState.lock`."""

    def __init__(
        self,
        topic_entries: PartitionEntries,
        overlay: Overlay,
        replacer: EntryReplacer,
        partition: PartitionState,
        settings: PulsarSettings,
    ) -> None:
        self._topic_entries = topic_entries
        self._overlay = overlay
        self._replacer = replacer
        self._partition = partition
        self._max_ranges = settings.compacted_windows

    @property
    def is_near_limit(self) -> bool:
        """Whether half of `compacted_windows` is in use; compaction is refused when all are."""
        return len(self._partition.replaced_ranges) > self._max_ranges // 2

    async def merge_end(self, start: int, end: int, end_bytes: int) -> int:
        """The offset up to which it pays to have everything from `start` on in replaced ranges."""
        row, ranges = self._partition.row, self._partition.replaced_ranges
        position = (
            0
            if ranges.containing(start)
            else await self._topic_entries.bytes_before(start, end, end_bytes)
        )
        copied, merge_end = 0, max(start, row.trim_offset)
        for region in ranges.contiguous_groups():
            if region[-1].last < start:
                continue
            if region[0].first > start:
                copied += region[0].bytes_before - position
            position = region[0].bytes_before + sum(replaced.hidden_bytes for replaced in region)
            if self.is_near_limit or copied <= (position - row.trim_bytes) // 2:
                merge_end = max(merge_end, region[-1].last + 1)
        return merge_end

    async def copy_gap(self, start: int, merge_end: int, end: int, end_bytes: int) -> bool:
        """Copy the first piece between `start` and `merge_end` that is in no range.

        Returns whether there was one. Raises StorageFailed.
        """
        ranges = self._partition.replaced_ranges
        covered_until = ranges.covered_until(start)
        if covered_until >= merge_end:
            return False
        following = ranges.after(covered_until)
        stop = min(merge_end, following.first) if following else merge_end
        entries = await self._topic_entries.read(covered_until, end, COPY_BYTES)
        if not entries:
            raise StorageFailed(
                f"no entry found from offset {covered_until} on, though one must exist"
            )
        shown = [entry for entry in entries if entry.base_offset < stop]
        first = min(covered_until, shown[0].base_offset) if shown else covered_until
        last = shown[-1].last_offset if len(shown) == len(entries) else stop - 1
        before = await self._topic_entries.bytes_before(first, end, end_bytes)
        hidden = sum(len(entry.payload) for entry in shown)
        await self._replacer.publish((), (), RangeExtent(first, last, before, hidden), shown)
        return True

    async def merge(self) -> bool:
        """Merge some adjoining ranges if there are too many; returns whether it did.

        Raises StorageFailed.
        """
        ranges = self._partition.replaced_ranges
        if (
            len(ranges) <= MIN_RANGES + MAX_RANGE_EXCESS * ranges.size // COPY_BYTES
            and not self.is_near_limit
        ):
            return False
        small = ranges.small_neighbors(COPY_BYTES)
        if not small:
            return False
        entries = [
            entry for replaced in small for entry in await self._overlay.entries_in(replaced)
        ]
        extent = RangeExtent(
            small[0].first,
            small[-1].last,
            small[0].bytes_before,
            sum(replaced.hidden_bytes for replaced in small),
        )
        await self._replacer.publish(small, (), extent, entries)
        return True
