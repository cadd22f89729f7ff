"""Frees space at the beginning of a partition's topic after compaction or DeleteRecords.

The order of steps makes a crash harmless: first everything readable before an offset is in replaced
ranges; then that offset is stored in the partition's row; then Pulsar deletes whole ledgers before
it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from storage.pulsar.client.exclusive_producer import LogEnd
from storage.pulsar.client.stored_messages import StoredMessage
from storage.pulsar.compaction.range_merge import RangeMerger
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_rows import PartitionState

T = TypeVar("T")


class MessageSource(Protocol):
    """The methods used of a `PartitionReader`."""

    async def read(self, offset: int, end_offset: int, max_bytes: int) -> list[StoredMessage]: ...
    async def last(self) -> StoredMessage | None: ...


class TopicTrimmer(Protocol):
    """Trims a Pulsar topic, given by its full name."""

    async def can_trim(self, topic: str, keep: Position) -> bool:
        """Whether `trim` would delete a ledger. Raises StorageFailed."""
        ...

    async def trim(self, topic: str, keep: Position) -> None:
        """Delete the ledgers that lie wholly before the position `keep`.

        Nothing at or after it is deleted. Raises StorageFailed, UnknownTopic.
        """
        ...


class SpaceReclaimer:
    """Frees the space of one log.

    `bounds` returns its start offset and end, and raises if the log has ended.
    """

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
        """The first message that is not completely before `merge_end`.

        The last message is always needed, because it stores the end offset.
        """
        if merge_end >= end.offset:
            return await self._messages.last()
        found = await self._messages.read(merge_end, end.offset, 0)
        return found[0] if found else None

    async def _store_trim_offset(self, start: int, keep: StoredMessage) -> bool:
        """Store the trim offset, if everything before `keep` is readable from replaced ranges.

        Returns False if it is not.
        """
        row, first = self._partition.row, keep.header.base_offset
        if max(start, self._partition.replaced_ranges.covered_until(start)) < first:
            return False
        if first > row.trim_offset:
            await self._partition.change(trim_offset=first, trim_bytes=keep.header.bytes_before)
        return True

    async def _locked(self, step: Callable[[int, LogEnd], Awaitable[T]]) -> T:
        """Run one step while holding the partition's lock.

        Other changes may happen between steps.
        """
        async with self._partition.lock:
            return await step(*self._bounds())
