"""Readers of the earlier ranges of a partition whose entry format was switched.

Kafka batches (`mixed_kafka` and `kafka`) carry their offsets. Native messages have the broker's
index; a native range stores the difference between index and offset.
"""

from __future__ import annotations

from typing import Protocol

from storage.log import Entry
from storage.pulsar.compaction.overlay import Overlay
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.log.entries import PartitionEntries
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_reader import PartitionReader
from storage.pulsar.log.partition_rows import FormatRange, PartitionState
from storage.pulsar.native.stored_entries import NativeEntries

SCAN_BYTES = 1 << 20


class FormatRangeReader(Protocol):
    """Reads a range that is no longer written to: `first_offset` to before `end_offset`."""

    first_offset: int
    end_offset: int

    async def start(self) -> int | None:
        """The first offset that still exists; None if none does."""
        ...

    async def read(self, offset: int, max_bytes: int) -> list[Entry] | None:
        """`PartitionLog.read`; None if the rest of the range is empty.

        Returns [] if the search for the next entry takes too long; the next call continues it.
        """
        ...

    async def at_time(self, offset: int, timestamp: int) -> Entry | None: ...
    async def latest(self, offset: int) -> Entry | None: ...
    async def position_of(self, offset: int) -> Position | None: ...
    async def close(self) -> None: ...
    async def disconnect(self) -> None:
        """Close the readers, and open no more. Returns when all are closed."""
        ...


class KafkaRangeReader:
    """Reads a range of Kafka batches, with the changes by compaction."""

    def __init__(
        self,
        format_range: FormatRange,
        end_offset: int,
        reader: PartitionReader,
        partition: PartitionState,
        side_topics: SideTopics,
    ) -> None:
        self.first_offset = format_range.first_offset
        self.end_offset = end_offset
        self._reader = reader
        self._partition = partition
        self._entries = Overlay(PartitionEntries(reader), side_topics, partition)

    async def start(self) -> int | None:
        first = await self._reader.first()
        if first and first.header.base_offset <= self._partition.row.trim_offset:
            return self.first_offset
        offset = max(first.header.base_offset, self.first_offset) if first else self.end_offset
        return offset if offset < self.end_offset else None

    async def read(self, offset: int, max_bytes: int) -> list[Entry] | None:
        found = await self._entries.read(offset, self.end_offset, max_bytes)
        if found:
            return found
        offset = self._partition.replaced_ranges.covered_until(offset)
        if (
            offset >= self.end_offset
            or await self._reader.scan(offset, self.end_offset, lambda native_entries: True, 1)
            >= self.end_offset
        ):
            return None
        return []

    async def at_time(self, offset: int, timestamp: int) -> Entry | None:
        return await self._entries.at_time(offset, self.end_offset, timestamp)

    async def latest(self, offset: int) -> Entry | None:
        return await self._entries.latest(offset, self.end_offset)

    async def position_of(self, offset: int) -> Position | None:
        return await self._reader.position_of(offset)

    async def close(self) -> None:
        await self._reader.close()

    async def disconnect(self) -> None:
        await self._reader.disconnect()


class NativeRangeReader:
    """Reads a range of native messages."""

    def __init__(
        self, format_range: FormatRange, end_offset: int, native_entries: NativeEntries
    ) -> None:
        self.first_offset = format_range.first_offset
        self.end_offset = end_offset
        self._native_entries = native_entries

    async def start(self) -> int | None:
        first = await self._native_entries.first_offset()
        offset = self.end_offset if first is None else max(first, self.first_offset)
        return offset if offset < self.end_offset else None

    async def read(self, offset: int, max_bytes: int) -> list[Entry] | None:
        return [
            entry
            for entry in await self._native_entries.read(offset, max_bytes)
            if entry.base_offset < self.end_offset
        ] or None

    async def at_time(self, offset: int, timestamp: int) -> Entry | None:
        published = await self._native_entries.offset_for_publish_time(timestamp)
        offset = self.end_offset if published is None else max(offset, published)
        while found := await self._read_on(offset):
            for entry in found:
                if entry.max_timestamp >= timestamp:
                    return entry
            offset = found[-1].last_offset + 1
        return None

    async def latest(self, offset: int) -> Entry | None:
        best: Entry | None = None
        while found := await self._read_on(offset):
            best = max([*([best] if best else []), *found], key=lambda entry: entry.max_timestamp)
            offset = found[-1].last_offset + 1
        return best

    async def _read_on(self, offset: int) -> list[Entry]:
        return (await self.read(offset, SCAN_BYTES) or []) if offset < self.end_offset else []

    async def position_of(self, offset: int) -> Position | None:
        return await self._native_entries.position_of(offset)

    async def close(self) -> None:
        await self._native_entries.close()

    async def disconnect(self) -> None:
        await self._native_entries.disconnect()
