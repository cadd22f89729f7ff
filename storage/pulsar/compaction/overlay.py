"""The entries of a partition as compaction left them: what it replaced is read from the side topic, everything else from the partition's own."""

from __future__ import annotations

from storage.log import Entry
from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.log.entries import SCAN_BYTES, PartitionEntries, limit_entries
from storage.pulsar.log.partition_rows import PartitionState


class Overlay:
    """`PartitionEntries`, with the patches of `partition`. Positions count the bytes that can be read, not those of the topic."""

    def __init__(
        self, plain: PartitionEntries, runs: SideTopics, partition: PartitionState
    ) -> None:
        self._plain = plain
        self._runs = runs
        self._partition = partition

    @property
    def patches(self) -> ReplacedRanges:
        return self._partition.patches

    async def read(self, offset: int, end: int, max_bytes: int) -> list[Entry]:
        """`PartitionLog.read`, nothing at or above `end`. Once more where the patches were replaced meanwhile: never a mixture."""
        while self.patches:
            patches = self.patches
            try:
                found = await self._read(patches, offset, end, max_bytes)
            except Exception:
                if self.patches is patches:
                    raise
            else:
                if self.patches is patches:
                    return found
        return await self._plain.read(offset, end, max_bytes)

    async def _read(
        self, patches: ReplacedRanges, offset: int, end: int, max_bytes: int
    ) -> list[Entry]:
        found: list[Entry] = []
        room = max_bytes
        while offset < end and (room >= 0 or not found):
            patch = patches.at(offset)
            if patch:
                some, reached = await self.shown(patch), patch.last + 1
            else:
                some, reached = await self._between(patches, offset, end, max(room, 1))
                if reached == offset:
                    break
            kept = limit_entries(
                [*found, *some], found[0].base_offset if found else offset, max_bytes
            )
            if len(kept) < len(found) + sum(entry.last_offset >= offset for entry in some):
                return kept
            found, offset = kept, reached
            room = max_bytes - sum(len(entry.payload) for entry in found)
        return found

    async def _between(
        self, patches: ReplacedRanges, offset: int, end: int, max_bytes: int
    ) -> tuple[list[Entry], int]:
        """Entries of the topic that no patch hides, up to the next patch, and the offset up to which all of them are here.

        It is read past the patch's beginning, so that it is certain that nothing is left before it.
        """
        following = patches.behind(offset)
        stop = min(end, following.first) if following else end
        entries = await self._plain.read(offset, end, max_bytes)
        shown = [entry for entry in entries if entry.base_offset < stop]
        if not entries:
            return [], offset
        reached = shown[-1].last_offset + 1 if shown else stop
        return shown, stop if len(shown) < len(entries) else reached

    async def shown(self, patch: ReplacedRange) -> list[Entry]:
        """The entries in the patch's window."""
        return await self._runs.read(self._partition.key, patch)

    async def at_time(self, start: int, end: int, timestamp: int) -> Entry | None:
        """The first with a `max_timestamp` of at least `timestamp`. What replaced others bears no later one, so none can be before theirs."""
        while True:
            freed = self._partition.row.freed
            found = await self._at_time(start, end, freed, timestamp)
            if self._partition.row.freed == freed:
                return found

    async def _at_time(self, start: int, end: int, freed: int, timestamp: int) -> Entry | None:
        for patch in self.patches.chain(start, freed):
            if patch.newest >= timestamp and (
                found := await self._first_since(max(start, patch.first), patch.last + 1, timestamp)
            ):
                return found
            start = patch.last + 1
        found = await self._plain.at_time(start, end, timestamp)
        if found is None or not self.patches:
            return found
        hiding = self.patches.at(found.base_offset)
        return await self._first_since(
            max(start, hiding.first if hiding else found.base_offset), end, timestamp
        )

    async def _first_since(self, offset: int, end: int, timestamp: int) -> Entry | None:
        """The first from `offset` on with such a time, by a look at every entry."""
        while offset < end and (entries := await self.read(offset, end, SCAN_BYTES)):
            for entry in entries:
                if entry.max_timestamp >= timestamp:
                    return entry
            offset = entries[-1].last_offset + 1
        return None

    async def latest(self, start: int, end: int) -> Entry | None:
        """The first with the greatest `max_timestamp`; None where none has one."""
        while True:
            freed = self._partition.row.freed
            found = await self._latest(start, end, freed)
            if self._partition.row.freed == freed:
                return found

    async def _latest(self, start: int, end: int, freed: int) -> Entry | None:
        best: Entry | None = None
        for patch in self.patches.chain(start, freed):
            if patch.newest > (best.max_timestamp if best else -1):
                best = await self._newest(max(start, patch.first), patch.last + 1, best)
            start = patch.last + 1
        newest = await self._plain.latest(start, end)
        if newest and self.patches.within(newest.base_offset, newest.last_offset):
            return await self._newest(start, end, best)
        return (
            newest
            if newest and newest.max_timestamp > (best.max_timestamp if best else -1)
            else best
        )

    async def _newest(self, offset: int, end: int, best: Entry | None) -> Entry | None:
        """The first from `offset` on with the greatest time, by a look at every entry; `best` where none is later."""
        while offset < end and (entries := await self.read(offset, end, SCAN_BYTES)):
            for entry in entries:
                if entry.max_timestamp > (best.max_timestamp if best else -1):
                    best = entry
            offset = entries[-1].last_offset + 1
        return best

    async def bytes_before(self, offset: int, end: int, end_bytes: int) -> int:
        """What can be read before the entry that contains `offset`, or before the next one; `end_bytes` of the topic lie before `end`."""
        saved = 0
        for region in self.patches.regions():
            if region[0].first > offset:
                break
            if region[-1].last < offset:
                saved += sum(patch.hidden - patch.size for patch in region)
                continue
            before = region[0].before - saved
            for patch in region:
                if patch.last >= offset:
                    return before + sum(
                        len(entry.payload)
                        for entry in await self.shown(patch)
                        if entry.last_offset < offset
                    )
                before += patch.size
        return await self._plain.bytes_before(offset, end, end_bytes) - saved

    async def behind_bytes(self, start: int, end: int, position: int) -> Entry | None:
        """The first, from `start` on, with more than `position` readable bytes before its end."""
        saved = 0
        for region in self.patches.regions():
            if region[-1].last >= start:
                before = region[0].before - saved
                if before > position:
                    return await self._plain.behind_bytes(start, region[0].first, position + saved)
                for patch in region:
                    if before + patch.size > position and patch.last >= start:
                        for entry in await self.shown(patch):
                            before += len(entry.payload)
                            if before > position and entry.last_offset >= start:
                                return entry
                    else:
                        before += patch.size
            saved += sum(patch.hidden - patch.size for patch in region)
        return await self._plain.behind_bytes(start, end, position + saved)
