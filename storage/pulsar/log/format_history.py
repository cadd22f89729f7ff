"""One log for a partition whose entry format was switched.

Each earlier range of offsets is read in its own format; the newest range is appended to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred, DeferredList

from storage.log import Entry, LogStatus, PartitionLog, StorageFailed
from storage.log_checks import check_readable
from storage.pulsar.log.format_ranges import FormatRangeReader
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_rows import PartitionState


class PulsarPartitionLog(PartitionLog, Protocol):
    """A `PartitionLog` with what `PulsarStore` needs in addition."""

    topic: str
    partition: PartitionState
    status: LogStatus

    async def idle(self) -> None: ...
    async def store_end_offset(self) -> None: ...
    def close(self) -> Deferred[None]: ...
    def disconnect(self) -> Deferred[Any]:
        """As `close`. Fires once nothing of this log is connected to the topic.

        A producer or reader that connects to a deleted topic would create it again.
        """
        ...

    async def position_of(self, offset: int) -> Position | None: ...


class MultiFormatLog:
    """A `PartitionLog` over the ranges of a partition with several entry formats.

    `current` begins where the last of `range_readers` ends. `start_offset` is the first offset that
    still exists in any range.
    """

    def __init__(
        self,
        range_readers: Sequence[FormatRangeReader],
        current: PulsarPartitionLog,
        start_offset: int,
    ) -> None:
        self.topic = current.topic
        self.partition = current.partition
        self._range_readers = range_readers
        self._current = current
        self._start_offset = start_offset
        self._current_offset = range_readers[-1].end_offset
        self.status = current.status

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

    def append(self, entries: Sequence[Entry]) -> Awaitable[int | None]:
        return self._current.append(entries)

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        if offset >= self._current_offset:
            return self._current.read_resident(offset, max_bytes)
        self.status.check_open()
        check_readable(offset, self._start_offset, self.end_offset)
        return None

    def read_run(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> None:
        """`PartitionLog.read_run`: entries are kept separately."""
        self.status.check_open()
        check_readable(offset, self._start_offset, self.end_offset)

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        resident = self.read_resident(offset, max_bytes)
        if resident is not None:
            return resident
        for range_reader in self._range_readers:
            if offset < range_reader.end_offset:
                found = await range_reader.read(offset, max_bytes)
                if found is not None:
                    return found
                offset = range_reader.end_offset
        return await self._current.read(offset, max_bytes) if offset < self.end_offset else []

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        start = self._start_offset
        for range_reader in self._range_readers:
            if start < range_reader.end_offset and (
                found := await range_reader.at_time(
                    max(start, range_reader.first_offset), timestamp
                )
            ):
                return found
        return await self._current.entry_for_time(timestamp)

    async def latest_by_time(self) -> Entry | None:
        start = self._start_offset
        found = [
            await range_reader.latest(max(start, range_reader.first_offset))
            for range_reader in self._range_readers
            if start < range_reader.end_offset
        ]
        found.append(await self._current.latest_by_time())
        # The first of the entries with the greatest timestamp.
        return max(
            (entry for entry in found if entry), key=lambda entry: entry.max_timestamp, default=None
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return self._current.end_offset_for_epoch(leader_epoch)

    async def delete_before(self, offset: int) -> int:
        self.status.check_open()
        if offset > self._current_offset:
            self._start_offset = max(self._start_offset, await self._current.delete_before(offset))
        elif offset > self._start_offset:
            await self.partition.change(start_offset=offset)
            self._start_offset = max(self._start_offset, offset)
            self.status.notify()
        return self.start_offset

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        """`PartitionLog.retain`. Only bytes of the current range count for `at_most_bytes`."""
        start = await first_available_offset(self._range_readers, self._current)
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
        """A partition with several entry formats is not compacted."""
        return False

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        raise StorageFailed("a partition with several entry formats is not compacted")

    async def reclaim(self) -> None:
        """Nothing to do: no entries are replaced here."""

    def watch(self, on_change: Callable[[], None]) -> None:
        self.status.watch(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        self.status.unwatch(on_change)

    async def idle(self) -> None:
        await self._current.idle()

    async def store_end_offset(self) -> None:
        await self._current.store_end_offset()

    def close(self) -> Deferred[None]:
        return self._current.close()

    def disconnect(self) -> Deferred[Any]:
        readers = [Deferred.fromCoroutine(one.disconnect()) for one in self._range_readers]
        return DeferredList([self._current.disconnect(), *readers], consumeErrors=True)

    async def position_of(self, offset: int) -> Position | None:
        for range_reader in self._range_readers:
            if offset < range_reader.end_offset:
                return await range_reader.position_of(offset)
        return await self._current.position_of(offset)


async def first_available_offset(
    range_readers: Sequence[FormatRangeReader], current: PulsarPartitionLog
) -> int:
    """The first offset that still exists in Pulsar."""
    for range_reader in range_readers:
        offset = await range_reader.start()
        if offset is not None:
            return offset
    return max(current.start_offset, range_readers[-1].end_offset)
