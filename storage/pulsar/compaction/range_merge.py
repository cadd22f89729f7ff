"""Windows that compaction made, brought together at the beginning of a partition, so that its own topic need not have that part any more.

What lies between two windows and was never replaced goes into a window of its own: its entries are copied. That is worth it where more can be deleted
for it than is written. Small windows that adjoin each other become one. Readers see no difference by either.
"""

from __future__ import annotations

from storage.log import StorageFailed
from storage.pulsar.compaction.overlay import Overlay
from storage.pulsar.compaction.replacement import EntryReplacer, RangeExtent
from storage.pulsar.log.entries import PartitionEntries
from storage.pulsar.log.partition_rows import PartitionState
from storage.pulsar.settings import MIB, PulsarSettings

COPY_BYTES = 4 * MIB
"""What is copied in one step, and what a window shows where several become one: a run is read as a whole."""

MIN_RANGES = 64
MAX_RANGE_EXCESS = 4
"""Windows are brought together when there are more of them than this, and so many times more than their bytes need: no byte is copied for it often."""


class RangeMerger:
    """For one log; each step within `PartitionState.turn`."""

    def __init__(
        self,
        plain: PartitionEntries,
        overlay: Overlay,
        replacing: EntryReplacer,
        partition: PartitionState,
        settings: PulsarSettings,
    ) -> None:
        self._plain = plain
        self._overlay = overlay
        self._replacing = replacing
        self._partition = partition
        self._most_windows = settings.compacted_windows

    @property
    def is_urgent(self) -> bool:
        """There are so many windows that compaction is soon refused more."""
        return len(self._partition.patches) > self._most_windows // 2

    async def target(self, start: int, end: int, end_bytes: int) -> int:
        """The offset up to which it is worth it to have everything from `start` on in windows."""
        row, patches = self._partition.row, self._partition.patches
        position = 0 if patches.at(start) else await self._plain.bytes_before(start, end, end_bytes)
        copied, target = 0, max(start, row.freed)
        for region in patches.regions():
            if region[-1].last < start:
                continue
            if region[0].first > start:
                copied += region[0].before - position
            position = region[0].before + sum(patch.hidden for patch in region)
            if self.is_urgent or copied <= (position - row.freed_bytes) // 2:
                target = max(target, region[-1].last + 1)
        return target

    async def adopt(self, start: int, target: int, end: int, end_bytes: int) -> bool:
        """Copy the first piece from `start` to `target` that is in no window; whether there was one. Raises StorageFailed."""
        patches = self._partition.patches
        covered = patches.covered(start)
        if covered >= target:
            return False
        following = patches.behind(covered)
        stop = min(target, following.first) if following else target
        entries = await self._plain.read(covered, end, COPY_BYTES)
        if not entries:
            raise StorageFailed(
                f"nothing was found from offset {covered} on, though there must be something"
            )
        shown = [entry for entry in entries if entry.base_offset < stop]
        first = min(covered, shown[0].base_offset) if shown else covered
        last = shown[-1].last_offset if len(shown) == len(entries) else stop - 1
        before = await self._plain.bytes_before(first, end, end_bytes)
        hidden = sum(len(entry.payload) for entry in shown)
        await self._replacing.show((), (), RangeExtent(first, last, before, hidden), shown)
        return True

    async def merge(self) -> bool:
        """Make one window of several where there are too many; whether it was done. Raises StorageFailed."""
        patches = self._partition.patches
        if (
            len(patches) <= MIN_RANGES + MAX_RANGE_EXCESS * patches.size // COPY_BYTES
            and not self.is_urgent
        ):
            return False
        crowd = patches.crowd(COPY_BYTES)
        if not crowd:
            return False
        entries = [entry for patch in crowd for entry in await self._overlay.shown(patch)]
        window = RangeExtent(
            crowd[0].first, crowd[-1].last, crowd[0].before, sum(patch.hidden for patch in crowd)
        )
        await self._replacing.show(crowd, (), window, entries)
        return True
