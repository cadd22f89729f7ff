"""The space of what compaction and DeleteRecords took away at the beginning of a partition: its own topic need not have that any more.

In this order, so that a crash between any two steps loses nothing: all that can be read before an offset is in windows; that offset is noted in the
partition's row; Pulsar deletes whole ledgers before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from storage.pulsar.client.exclusive_producer import LogEnd
from storage.pulsar.client.topic_readers import StoredMessage
from storage.pulsar.compaction.range_merge import RangeMerger
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_rows import PartitionState

T = TypeVar("T")


class MessageSource(Protocol):
    """What is needed of a `PartitionReader`."""

    async def read(self, offset: int, end_offset: int, max_bytes: int) -> list[StoredMessage]: ...
    async def last(self) -> StoredMessage | None: ...


class TopicTrimmer(Protocol):
    """Deletes what is before a place in a topic of Pulsar, of that full name."""

    async def can_trim(self, topic: str, keep: Position) -> bool:
        """Whether there is something before `keep` that can be deleted. Raises StorageFailed."""
        ...

    async def trim(self, topic: str, keep: Position) -> None:
        """Delete it. Nothing from `keep` on goes by this, whatever happens. Raises StorageFailed, UnknownTopic."""
        ...


class SpaceReclaimer:
    """For one log. `bounds` gives its start and its end, and raises what the log does when it is over."""

    def __init__(
        self,
        topic: str,
        messages: MessageSource,
        merger: RangeMerger,
        partition: PartitionState,
        trimmer: TopicTrimmer,
        bounds: Callable[[], tuple[int, LogEnd]],
    ) -> None:
        self._topic = topic
        self._messages = messages
        self._merger = merger
        self._partition = partition
        self._trimmer = trimmer
        self._bounds = bounds

    async def reclaim(self) -> None:
        """`PartitionLog.reclaim`."""
        start, end = self._bounds()
        if not self._partition.replaced_ranges and start <= self._partition.row.trim_offset:
            return
        await self._merge()
        merge_end = await self._locked(
            lambda start, end: self._merger.merge_end(start, end.offset, end.bytes)
        )
        keep = await self._first_needed(merge_end, end)
        can_trim = keep is not None and await self._trimmer.can_trim(self._topic, keep.position)
        if not can_trim and not self._merger.is_near_limit:
            return
        while await self._locked(
            lambda start, end: self._merger.copy_gap(start, merge_end, end.offset, end.bytes)
        ):
            pass
        await self._merge()
        if (
            keep
            and can_trim
            and await self._locked(lambda start, end: self._store_trim_offset(start, keep))
        ):
            await self._trimmer.trim(self._topic, keep.position)

    async def _merge(self) -> None:
        while await self._locked(lambda start, end: self._merger.merge()):
            pass

    async def _first_needed(self, merge_end: int, end: LogEnd) -> StoredMessage | None:
        """The first message that is not wholly before `merge_end`. The last one is always needed: it says where the partition ends."""
        if merge_end >= end.offset:
            return await self._messages.last()
        found = await self._messages.read(merge_end, end.offset, 0)
        return found[0] if found else None

    async def _store_trim_offset(self, start: int, keep: StoredMessage) -> bool:
        """Whether nothing from `start` to that message is read from the topic; that is durable then."""
        row, first = self._partition.row, keep.header.base_offset
        if max(start, self._partition.replaced_ranges.covered_until(start)) < first:
            return False
        if first > row.trim_offset:
            await self._partition.change(trim_offset=first, trim_bytes=keep.header.bytes_before)
        return True

    async def _locked(self, step: Callable[[int, LogEnd], Awaitable[T]]) -> T:
        """One step, with nobody else changing the partition meanwhile. Between two steps others have their turn."""
        await self._partition.lock.acquire()
        try:
            return await step(*self._bounds())
        finally:
            self._partition.lock.release()
