"""Replaces entries: writes replacements to the side topic, then shows them with one put of rows."""

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
    """Offsets, `bytes_before` and `hidden_bytes` of a new `ReplacedRange`."""

    first: int
    last: int
    bytes_before: int
    hidden_bytes: int


class EntryReplacer:
    """Replaces entries of one log. Hold `PartitionState.lock` during each call."""

    def __init__(
        self,
        topic: str,
        topic_entries: PartitionEntries,
        overlay: Overlay,
        side_topics: SideTopics,
        partition: PartitionState,
        settings: PulsarSettings,
    ) -> None:
        self._topic = topic
        self._topic_entries = topic_entries
        self._overlay = overlay
        self._side_topics = side_topics
        self._partition = partition
        self._settings = settings
        self._side_topic_exists = False

    async def replace(
        self, first: int, last: int, entries: Sequence[Entry], start: int, end: int, end_bytes: int
    ) -> None:
        """`PartitionLog.replace`. Raises StorageFailed, EntryTooLarge.

        The log is readable from `start` to `end`; its topic has `end_bytes` before `end`.
        """
        kept = [entry for entry in entries if entry.last_offset >= start]
        readable = await self._readable(max(first, start), first, last, end)
        if not readable and not kept:
            return
        ranges = self._partition.replaced_ranges
        begin = min(one[0] for one in [*readable, *((entry.base_offset,) for entry in kept)])
        stop = max([one[1] for one in readable] + [entry.last_offset for entry in kept])
        inside = ranges.containing(begin)
        before = (
            inside.bytes_before
            if inside
            else await self._topic_entries.bytes_before(begin, end, end_bytes)
        )
        hidden = sum(size for base, _, size in readable if not ranges.containing(base))
        dropped, added = ranges.overlapping(begin, stop), []
        for replaced in dropped:
            sizes = [
                (entry.last_offset, len(entry.payload))
                for entry in await self._overlay.entries_in(replaced)
            ]
            pieces, rest = cut_out(replaced, begin, stop, sizes)
            added += pieces
            hidden += rest
        if len(ranges) + len(added) + 1 - len(dropped) > self._settings.compacted_windows:
            raise StorageFailed(
                f"the partition has {len(ranges)} replaced ranges, the limit of compaction "
                "(compacted_windows)"
            )
        await self.publish(dropped, added, RangeExtent(begin, stop, before, hidden), kept)

    async def publish(
        self,
        dropped: Sequence[ReplacedRange],
        added: Sequence[ReplacedRange],
        extent: RangeExtent,
        entries: Sequence[Entry],
    ) -> None:
        """In one atomic step, show `entries` in `extent`, and replace `dropped` by `added`.

        Raises StorageFailed, EntryTooLarge.
        """
        generation = self._partition.row.generation
        await self._ensure_side_topic(generation)
        written = await self._side_topics.write(
            self._partition.key, generation, extent.first, extent.last, entries
        )
        replaced = structs.replace(
            written, bytes_before=extent.bytes_before, hidden_bytes=extent.hidden_bytes
        )
        await self._store_ranges(
            dropped, [*added, replaced], written=self._partition.row.written + written.size
        )
        if (
            self._partition.row.written
            > 2 * self._partition.replaced_ranges.size + self._settings.compacted_garbage_bytes
        ):
            await self._rewrite_side_topic()

    async def _readable(
        self, offset: int, first: int, last: int, end: int
    ) -> list[tuple[int, int, int]]:
        """Base offset, last offset and size of the entries within the range, from `offset` on."""
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

    async def _ensure_side_topic(self, generation: int) -> None:
        if not self._side_topic_exists:
            await self._side_topics.create(self._partition.key, generation)
            self._side_topic_exists = True

    async def _store_ranges(
        self, dropped: Sequence[ReplacedRange], added: Sequence[ReplacedRange], **fields: int
    ) -> None:
        """Store the change in one put."""
        rows: dict[bytes, bytes | None] = {}
        for replaced in dropped:
            rows[replaced_range_row(self._partition.key, replaced)[0]] = None
        rows.update(replaced_range_row(self._partition.key, replaced) for replaced in added)
        await self._partition.change(rows, **fields)
        self._partition.replaced_ranges = self._partition.replaced_ranges.updated(dropped, added)

    async def _rewrite_side_topic(self) -> None:
        """Copy the shown entries to a new side topic and delete the old, mostly obsolete one."""
        key, old = self._partition.key, self._partition.row.generation
        try:
            await self._side_topics.create(key, old + 1)
            ranges = list(self._partition.replaced_ranges)
            added = []
            for replaced in ranges:
                written = await self._side_topics.write(
                    key,
                    old + 1,
                    replaced.first,
                    replaced.last,
                    await self._overlay.entries_in(replaced),
                )
                added.append(
                    structs.replace(
                        written,
                        bytes_before=replaced.bytes_before,
                        hidden_bytes=replaced.hidden_bytes,
                    )
                )
            await self._store_ranges(
                ranges, added, generation=old + 1, written=sum(replaced.size for replaced in added)
            )
            await self._side_topics.delete(key, old)
        except StorageError as error:
            logger.warning(
                "rewriting the side topic of %s failed: %s; the old one stays in use",
                self._topic,
                error,
            )
