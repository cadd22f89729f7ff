"""A partition's entries after compaction.

Entries of replaced ranges are read from the side topic, all others from the partition's own topic.
"""

from __future__ import annotations

from storage.log import Entry
from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.log.entries import SCAN_BYTES, PartitionEntries, limit_entries
from storage.pulsar.log.partition_rows import PartitionState


class Overlay:
    """`PartitionEntries` with the replaced ranges of `partition` laid over them.

    Byte positions count readable bytes, not those in the topic.
    """

    def __init__(
        self, topic_entries: PartitionEntries, side_topics: SideTopics, partition: PartitionState
    ) -> None:
        self._topic_entries = topic_entries
        self._side_topics = side_topics
        self._partition = partition

    @property
    def replaced_ranges(self) -> ReplacedRanges:
        return self._partition.replaced_ranges

    async def read(self, offset: int, end: int, max_bytes: int) -> list[Entry]:
        """`PartitionLog.read`, limited to offsets below `end`.

        Reads again if the replaced ranges changed meanwhile, so that a result never mixes two
        states.
        """
        while self.replaced_ranges:
            ranges = self.replaced_ranges
            try:
                found = await self._read(ranges, offset, end, max_bytes)
            except Exception:
                if self.replaced_ranges is ranges:
                    raise
            else:
                if self.replaced_ranges is ranges:
                    return found
        return await self._topic_entries.read(offset, end, max_bytes)

    async def _read(
        self, ranges: ReplacedRanges, offset: int, end: int, max_bytes: int
    ) -> list[Entry]:
        found: list[Entry] = []
        remaining = max_bytes
        while offset < end and (remaining >= 0 or not found):
            replaced = ranges.containing(offset)
            if replaced:
                some, reached = await self.entries_in(replaced), replaced.last + 1
            else:
                some, reached = await self._between(ranges, offset, end, max(remaining, 1))
                if reached == offset:
                    break
            kept = limit_entries(
                [*found, *some], found[0].base_offset if found else offset, max_bytes
            )
            if len(kept) < len(found) + sum(entry.last_offset >= offset for entry in some):
                return kept
            found, offset = kept, reached
            remaining = max_bytes - sum(len(entry.payload) for entry in found)
        return found

    async def _between(
        self, ranges: ReplacedRanges, offset: int, end: int, max_bytes: int
    ) -> tuple[list[Entry], int]:
        """Entries of the topic up to the next replaced range, and the offset that they reach.

        Reads past the beginning of that range to be sure that no entry before it is missing.
        """
        following = ranges.after(offset)
        stop = min(end, following.first) if following else end
        entries = await self._topic_entries.read(offset, end, max_bytes)
        shown = [entry for entry in entries if entry.base_offset < stop]
        if not entries:
            return [], offset
        reached = shown[-1].last_offset + 1 if shown else stop
        return shown, stop if len(shown) < len(entries) else reached

    async def entries_in(self, replaced: ReplacedRange) -> list[Entry]:
        """The replacement entries of a range."""
        return await self._side_topics.read(self._partition.key, replaced)

    async def at_time(self, start: int, end: int, timestamp: int) -> Entry | None:
        """The first entry with a `max_timestamp` of at least `timestamp`.

        A replacement never has a later timestamp than the entries it replaced, so no entry before
        the one found in the topic can match.
        """
        while True:
            trim_offset = self._partition.row.trim_offset
            found = await self._at_time(start, end, trim_offset, timestamp)
            if self._partition.row.trim_offset == trim_offset:
                return found

    async def _at_time(
        self, start: int, end: int, trim_offset: int, timestamp: int
    ) -> Entry | None:
        for replaced in self.replaced_ranges.contiguous_from(start, trim_offset):
            if replaced.max_timestamp >= timestamp and (
                found := await self._first_since(
                    max(start, replaced.first), replaced.last + 1, timestamp
                )
            ):
                return found
            start = replaced.last + 1
        found = await self._topic_entries.at_time(start, end, timestamp)
        if found is None or not self.replaced_ranges:
            return found
        hiding = self.replaced_ranges.containing(found.base_offset)
        return await self._first_since(
            max(start, hiding.first if hiding else found.base_offset), end, timestamp
        )

    async def _first_since(self, offset: int, end: int, timestamp: int) -> Entry | None:
        """The first entry from `offset` on that is not before `timestamp`; reads all entries."""
        while offset < end and (entries := await self.read(offset, end, SCAN_BYTES)):
            for entry in entries:
                if entry.max_timestamp >= timestamp:
                    return entry
            offset = entries[-1].last_offset + 1
        return None

    async def latest(self, start: int, end: int) -> Entry | None:
        """The first entry with the greatest `max_timestamp`; None if no entry has a timestamp."""
        while True:
            trim_offset = self._partition.row.trim_offset
            found = await self._latest(start, end, trim_offset)
            if self._partition.row.trim_offset == trim_offset:
                return found

    async def _latest(self, start: int, end: int, trim_offset: int) -> Entry | None:
        best: Entry | None = None
        for replaced in self.replaced_ranges.contiguous_from(start, trim_offset):
            if replaced.max_timestamp > (best.max_timestamp if best else -1):
                best = await self._latest_from(max(start, replaced.first), replaced.last + 1, best)
            start = replaced.last + 1
        newest = await self._topic_entries.latest(start, end)
        if newest and self.replaced_ranges.overlapping(newest.base_offset, newest.last_offset):
            return await self._latest_from(start, end, best)
        return (
            newest
            if newest and newest.max_timestamp > (best.max_timestamp if best else -1)
            else best
        )

    async def _latest_from(self, offset: int, end: int, best: Entry | None) -> Entry | None:
        """The first newest entry from `offset` on, `best` if none is newer; reads all entries."""
        while offset < end and (entries := await self.read(offset, end, SCAN_BYTES)):
            for entry in entries:
                if entry.max_timestamp > (best.max_timestamp if best else -1):
                    best = entry
            offset = entries[-1].last_offset + 1
        return best

    async def bytes_before(self, offset: int, end: int, end_bytes: int) -> int:
        """Readable bytes before the entry that contains `offset`, or before the next one.

        `end_bytes` is the number of bytes in the topic before `end`.
        """
        saved = 0
        for region in self.replaced_ranges.contiguous_groups():
            if region[0].first > offset:
                break
            if region[-1].last < offset:
                saved += sum(replaced.hidden_bytes - replaced.size for replaced in region)
                continue
            before = region[0].bytes_before - saved
            for replaced in region:
                if replaced.last >= offset:
                    return before + sum(
                        len(entry.payload)
                        for entry in await self.entries_in(replaced)
                        if entry.last_offset < offset
                    )
                before += replaced.size
        return await self._topic_entries.bytes_before(offset, end, end_bytes) - saved

    async def after_bytes(self, start: int, end: int, position: int) -> Entry | None:
        """The first entry from `start` on that ends after the first `position` readable bytes."""
        saved = 0
        for region in self.replaced_ranges.contiguous_groups():
            if region[-1].last >= start:
                before = region[0].bytes_before - saved
                if before > position:
                    return await self._topic_entries.after_bytes(
                        start, region[0].first, position + saved
                    )
                for replaced in region:
                    if before + replaced.size > position and replaced.last >= start:
                        for entry in await self.entries_in(replaced):
                            before += len(entry.payload)
                            if before > position and entry.last_offset >= start:
                                return entry
                    else:
                        before += replaced.size
            saved += sum(replaced.hidden_bytes - replaced.size for replaced in region)
        return await self._topic_entries.after_bytes(start, end, position + saved)
