"""Compaction's step on a partition: entries written to its side topic, and one put of rows that shows them in place of others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from storage.log import Entry, StorageError, StorageFailed
from storage.pulsar.compaction.overlay import Overlay
from storage.pulsar.compaction.replaced_ranges import ReplacedRange, cut_out
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.log.entries import SCAN_BYTES, PartitionEntries
from storage.pulsar.log.partition_rows import PartitionState, replaced_range_row
from storage.pulsar.settings import PulsarSettings

logger = logging.getLogger(__name__)


class RangeExtent(NamedTuple):
    """What a patch says of it."""

    first: int
    last: int
    before: int
    hidden: int


class EntryReplacer:
    """For one log; one step at a time, within `PartitionState.turn`."""

    def __init__(
        self,
        plain: PartitionEntries,
        overlay: Overlay,
        runs: SideTopics,
        partition: PartitionState,
        settings: PulsarSettings,
    ) -> None:
        self._plain = plain
        self._overlay = overlay
        self._runs = runs
        self._partition = partition
        self._settings = settings
        self._is_made = False

    async def replace(
        self, first: int, last: int, entries: Sequence[Entry], start: int, end: int, end_bytes: int
    ) -> None:
        """`PartitionLog.replace` of a log that is read from `start` to `end`, with `end_bytes` in its topic. Raises StorageFailed, EntryTooLarge."""
        kept = [entry for entry in entries if entry.last_offset >= start]
        removed = await self._readable(max(first, start), first, last, end)
        if not removed and not kept:
            return
        patches = self._partition.patches
        begin = min(one[0] for one in [*removed, *((entry.base_offset,) for entry in kept)])
        stop = max([one[1] for one in removed] + [entry.last_offset for entry in kept])
        inside = patches.at(begin)
        before = inside.before if inside else await self._plain.bytes_before(begin, end, end_bytes)
        hidden = sum(size for base, _, size in removed if not patches.at(base))
        gone, come = patches.within(begin, stop), []
        for patch in gone:
            sizes = [
                (entry.last_offset, len(entry.payload))
                for entry in await self._overlay.shown(patch)
            ]
            pieces, rest = cut_out(patch, begin, stop, sizes)
            come += pieces
            hidden += rest
        if len(patches) + len(come) + 1 - len(gone) > self._settings.compacted_windows:
            raise StorageFailed(
                f"compaction has replaced {len(patches)} pieces of this partition already (compacted_windows)"
            )
        await self.show(gone, come, RangeExtent(begin, stop, before, hidden), kept)

    async def show(
        self,
        gone: Sequence[ReplacedRange],
        come: Sequence[ReplacedRange],
        window: RangeExtent,
        entries: Sequence[Entry],
    ) -> None:
        """From one durable step on `entries` are what is in the window; beside it `come` is in place of `gone`. Raises StorageFailed, EntryTooLarge."""
        generation = self._partition.row.generation
        await self._make(generation)
        written = await self._runs.write(
            self._partition.key, generation, window.first, window.last, entries
        )
        patch = structs.replace(written, before=window.before, hidden=window.hidden)
        await self._show(gone, [*come, patch], written=self._partition.row.written + written.size)
        if (
            self._partition.row.written
            > 2 * self._partition.patches.size + self._settings.compacted_garbage_bytes
        ):
            await self._renew()

    async def _readable(
        self, offset: int, first: int, last: int, end: int
    ) -> list[tuple[int, int, int]]:
        """Base offset, last offset and size of each entry from `offset` on that lies wholly between `first` and `last`."""
        found: list[tuple[int, int, int]] = []
        while offset < min(last + 1, end) and (
            entries := await self._overlay.read(offset, end, SCAN_BYTES)
        ):
            found += (
                (entry.base_offset, entry.last_offset, len(entry.payload))
                for entry in entries
                if first <= entry.base_offset and entry.last_offset <= last
            )
            offset = entries[-1].last_offset + 1
        return found

    async def _make(self, generation: int) -> None:
        if not self._is_made:
            await self._runs.make(self._partition.key, generation)
            self._is_made = True

    async def _show(
        self, gone: Sequence[ReplacedRange], come: Sequence[ReplacedRange], **fields: int
    ) -> None:
        """The one durable step."""
        rows: dict[bytes, bytes | None] = {}
        for patch in gone:
            rows[replaced_range_row(self._partition.key, patch)[0]] = None
        rows.update(replaced_range_row(self._partition.key, patch) for patch in come)
        await self._partition.change(rows, **fields)
        self._partition.patches = self._partition.patches.changed(gone, come)

    async def _renew(self) -> None:
        """Most of the side topic is shown no more: what is goes into a new one, and the old one is deleted."""
        key, old = self._partition.key, self._partition.row.generation
        try:
            await self._runs.make(key, old + 1)
            patches = list(self._partition.patches)
            come = []
            for patch in patches:
                written = await self._runs.write(
                    key, old + 1, patch.first, patch.last, await self._overlay.shown(patch)
                )
                come.append(structs.replace(written, before=patch.before, hidden=patch.hidden))
            await self._show(
                patches, come, generation=old + 1, written=sum(patch.size for patch in come)
            )
            await self._runs.drop(key, old)
        except StorageError as error:
            logger.warning("what compaction left over was not cleared away: %s", error)
