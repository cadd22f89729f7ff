"""A partition whose entry format was switched, as one log: what was written before is read as what it is, and the newest stretch is written to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred

from storage.log import Entry, OffsetOutOfRange, PartitionLog, StorageFailed
from storage.pulsar.log.format_ranges import FormatRangeReader
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_rows import PartitionState


class PulsarPartitionLog(PartitionLog, Protocol):
    """What the store on Pulsar needs of a log beyond what it hands out."""

    topic: str
    partition: PartitionState

    @property
    def is_over(self) -> bool: ...
    async def idle(self) -> None: ...
    async def note_end(self) -> None: ...
    def shut(self) -> Deferred[None]: ...
    async def position_of(self, offset: int) -> Position | None: ...


class MultiFormatLog:
    """A `PartitionLog`. `current` begins where the last of `pasts` ends; `start_offset` is the first that is still there of all of them."""

    def __init__(
        self, pasts: Sequence[FormatRangeReader], current: PulsarPartitionLog, start_offset: int
    ) -> None:
        self.topic = current.topic
        self.partition = current.partition
        self._pasts = pasts
        self._current = current
        self._start_offset = start_offset
        self._current_offset = pasts[-1].end_offset
        self._watchers: list[Callable[[], None]] = []

    @property
    def leader_epoch(self) -> int:
        return self._current.leader_epoch

    @property
    def start_offset(self) -> int:
        return (
            max(self._start_offset, self._current.start_offset)
            if self._start_offset >= self._current_offset
            else self._start_offset
        )

    @property
    def end_offset(self) -> int:
        return self._current.end_offset

    @property
    def next_offset(self) -> int:
        return self._current.next_offset

    @property
    def size(self) -> int:
        return self._current.size

    @property
    def is_over(self) -> bool:
        return self._current.is_over

    def append(self, entries: Sequence[Entry]) -> Awaitable[int | None]:
        return self._current.append(entries)

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        if offset >= self._current_offset:
            return self._current.read_resident(offset, max_bytes)
        # Raises what a log that is over raises.
        self._current.read_resident(self.end_offset, 0)
        if offset < self._start_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not within {self._start_offset} to {self.end_offset}"
            )
        return None

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        resident = self.read_resident(offset, max_bytes)
        if resident is not None:
            return resident
        for past in self._pasts:
            if offset < past.end_offset:
                found = await past.read(offset, max_bytes)
                if found is not None:
                    return found
                offset = past.end_offset
        return await self._current.read(offset, max_bytes) if offset < self.end_offset else []

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        start = self._start_offset
        for past in self._pasts:
            if start < past.end_offset and (
                found := await past.at_time(max(start, past.first_offset), timestamp)
            ):
                return found
        return await self._current.entry_for_time(timestamp)

    async def latest_by_time(self) -> Entry | None:
        start = self._start_offset
        found = [
            await past.latest(max(start, past.first_offset))
            for past in self._pasts
            if start < past.end_offset
        ]
        found.append(await self._current.latest_by_time())
        # The first of those that bear it.
        return max(
            (entry for entry in found if entry), key=lambda entry: entry.max_timestamp, default=None
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return self._current.end_offset_for_epoch(leader_epoch)

    async def delete_before(self, offset: int) -> int:
        self._current.read_resident(self.end_offset, 0)
        if offset > self._current_offset:
            self._start_offset = max(self._start_offset, await self._current.delete_before(offset))
        elif offset > self._start_offset:
            await self.partition.change(start_offset=offset)
            self._start_offset = max(self._start_offset, offset)
            for on_change in tuple(self._watchers):
                on_change()
        return self.start_offset

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        """`PartitionLog.retain`; by bytes only what is behind the last switch counts."""
        start = await first_offset(self._pasts, self._current)
        if since is not None:
            young = await self.entry_for_time(since)
            start = max(start, young.base_offset if young else self.end_offset)
        if at_most_bytes is not None and self._current.size >= at_most_bytes:
            start = max(start, self._current_offset)
        await self.delete_before(start)
        if self._start_offset >= self._current_offset:
            await self._current.retain(since=since, at_most_bytes=at_most_bytes)
        return self.start_offset

    @property
    def can_replace(self) -> bool:
        """Of what is in several formats nothing is compacted."""
        return False

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        raise StorageFailed(
            "a partition that was written in several entry formats is not compacted"
        )

    async def reclaim(self) -> None:
        """Nothing is replaced here."""

    def watch(self, on_change: Callable[[], None]) -> None:
        self._watchers.append(on_change)
        self._current.watch(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        if on_change in self._watchers:
            self._watchers.remove(on_change)
        self._current.unwatch(on_change)

    async def idle(self) -> None:
        await self._current.idle()

    async def note_end(self) -> None:
        await self._current.note_end()

    def shut(self) -> Deferred[None]:
        return self._current.shut()

    async def position_of(self, offset: int) -> Position | None:
        for past in self._pasts:
            if offset < past.end_offset:
                return await past.position_of(offset)
        return await self._current.position_of(offset)


async def first_offset(pasts: Sequence[FormatRangeReader], current: PulsarPartitionLog) -> int:
    """The first offset that Pulsar still has."""
    for past in pasts:
        offset = await past.start()
        if offset is not None:
            return offset
    return max(current.start_offset, pasts[-1].end_offset)
