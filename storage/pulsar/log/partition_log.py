"""`PartitionLog` on a Pulsar topic in the formats `kafka` and `mixed_kafka`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList

from storage.log import (
    LOG_CLOSED,
    Entry,
    LogClosed,
    LogStatus,
    OffsetOutOfRange,
    StorageError,
)
from storage.log_checks import check_readable, check_replacement
from storage.pulsar.client.compiled_client import LogState, compiled
from storage.pulsar.client.exclusive_producer import InFlightLimit, InFlightMessage, LogEnd
from storage.pulsar.compaction.overlay import Overlay
from storage.pulsar.compaction.range_merge import RangeMerger
from storage.pulsar.compaction.replacement import EntryReplacer
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.compaction.space_reclaim import SpaceReclaimer, TopicTrimmer
from storage.pulsar.log.append_queue import AppendQueue, OpenedPartition
from storage.pulsar.log.entries import PartitionEntries
from storage.pulsar.log.partition_reader import Position
from storage.pulsar.log.partition_rows import epoch_end_offset, replaced_range_row
from storage.tail import CachedTail, TailCache


class PulsarLog(LogState):
    """A `PartitionLog`.

    `on_end` is called once, with the reason, when the log was fenced or closed.
    """

    def __init__(
        self,
        opened: OpenedPartition,
        in_flight_limit: InFlightLimit,
        tail: TailCache,
        side_topics: SideTopics,
        trimmer: TopicTrimmer,
        on_end: Callable[[PulsarLog, StorageError], None],
    ) -> None:
        self.topic = opened.topic
        self.leader_epoch = opened.leader_epoch
        self.partition = opened.partition
        self._reader = opened.reader
        topic_entries = PartitionEntries(opened.reader)
        self._entries = Overlay(topic_entries, side_topics, opened.partition)
        settings = opened.client.settings
        self._replacer = EntryReplacer(
            opened.topic, topic_entries, self._entries, side_topics, opened.partition, settings
        )
        merger = RangeMerger(
            topic_entries, self._entries, self._replacer, opened.partition, settings
        )
        self._reclaimer = SpaceReclaimer(
            opened.topic, opened.reader, merger, opened.partition, trimmer, self._bounds
        )
        self.status = LogStatus()
        self._append_queue = AppendQueue(
            opened, in_flight_limit, self.status, self._on_stored, self._on_append_end
        )
        self._end = opened.end
        self._start_offset, self._start_bytes = opened.start
        self._cached_first_entry: Entry | None = None
        self._tail = tail
        self._resident = CachedTail()
        self._on_end = on_end

    @property
    def start_offset(self) -> int:
        return self._start_offset

    @property
    def end_offset(self) -> int:
        return self._end.offset

    @property
    def _end_bytes(self) -> int:
        return self._end.bytes

    @property
    def next_offset(self) -> int:
        return self._append_queue.next.offset

    @property
    def size(self) -> int:
        return self._end_bytes - self.partition.replaced_ranges.bytes_saved - self._start_bytes

    def append(self, entries: Sequence[Entry]) -> Awaitable[None]:
        return self._append_queue.append(entries)

    def _on_stored(self, messages: list[InFlightMessage]) -> None:
        """Handle acknowledged messages: update the log, notify watchers, then complete the appends.

        In this order, watchers and callers see the whole burst.
        """
        appended, add, resident = self._reader.appended, self._tail.add, self._resident
        for sent in messages:
            appended(sent.header, sent.position)
            for entry in sent.entries:
                add(resident, entry)
        self._end = messages[-1].end
        if self.status.watchers:
            self.status.notify()
        for sent in messages:
            sent.callback(None)

    if not TYPE_CHECKING and compiled:
        start_offset, end_offset = LogState.start_offset, LogState.end_offset
        _end_bytes = LogState._end_bytes
        next_offset, append = LogState.next_offset, LogState.append
        _on_stored = LogState._on_stored

    def _on_append_end(self, error: StorageError, left: list[InFlightMessage]) -> None:
        """End the log; `left` are the appends that were not acknowledged."""
        self._resident.clear()
        self._on_end(self, error)
        self.status.notify()
        Deferred.fromCoroutine(self._reader.close())
        for sent in left:
            sent.errback(error)

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        self.status.check_open()
        check_readable(offset, self._start_offset, self.end_offset)
        if offset == self.end_offset:
            return []
        return self._resident.read(offset, max_bytes)

    def read_run(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> None:
        """`PartitionLog.read_run`: entries are kept separately."""
        self.status.check_open()
        check_readable(offset, self._start_offset, self.end_offset)

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        resident = self.read_resident(offset, max_bytes)
        if resident is not None:
            return resident
        entries = await self._entries.read(offset, self.end_offset, max_bytes)
        self.status.check_open()
        if not entries or (
            entries[0].base_offset > offset
            and not self.partition.replaced_ranges.containing(offset)
        ):
            await self.update_start_offset()
        # The entries may have been deleted during the read.
        check_readable(offset, self._start_offset, self.end_offset)
        return entries

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        return await self._find(lambda start, end: self._entries.at_time(start, end, timestamp))

    async def latest_by_time(self) -> Entry | None:
        return await self._find(self._entries.latest)

    async def _find(self, search: Callable[[int, int], Awaitable[Entry | None]]) -> Entry | None:
        """The entry that `search` finds; searches again if the log start moved meanwhile."""
        while True:
            self.status.check_open()
            start = self._start_offset
            entry = await search(start, self.end_offset)
            self.status.check_open()
            if start == self._start_offset:
                return entry

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return epoch_end_offset(
            self._append_queue.epochs(self.end_offset, self._start_offset),
            leader_epoch,
            self.end_offset,
        )

    async def delete_before(self, offset: int) -> int:
        self.status.check_open()
        if offset > self.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is beyond the log end offset {self.end_offset}"
            )
        async with self.partition.lock:
            self.status.check_open()
            if offset > self._start_offset:
                await self._delete_before(offset)
        return self._start_offset

    async def _delete_before(self, offset: int) -> None:
        """Move the log start, and drop the replaced ranges that end before it."""
        partition = self.partition
        before = await self._entries.bytes_before(offset, self.end_offset, self._end_bytes)
        self.status.check_open()
        dropped, added = partition.replaced_ranges.trim_before(offset)
        before += sum(replaced.hidden_bytes - replaced.size for replaced in dropped) - sum(
            replaced.hidden_bytes - replaced.size for replaced in added
        )
        rows: dict[bytes, bytes | None] = dict.fromkeys(
            replaced_range_row(partition.key, replaced)[0] for replaced in dropped
        )
        rows.update(replaced_range_row(partition.key, replaced) for replaced in added)
        await partition.change(rows, start_offset=offset, start_bytes=before)
        partition.replaced_ranges = partition.replaced_ranges.updated(dropped, added)
        self._move_start(offset, before)

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        """`PartitionLog.retain`. Searches only if the first entry shows that something expires.

        The partition's lock is held from the search to the deletion, because other deletions and
        replacements change how many bytes remain.
        """
        self.status.check_open()
        await self.update_start_offset()
        async with self.partition.lock:
            self.status.check_open()
            offset = await self._retained_from(since, at_most_bytes)
            self.status.check_open()
            if offset > self._start_offset:
                await self._delete_before(offset)
        return self._start_offset

    async def _retained_from(self, since: int | None, at_most_bytes: int | None) -> int:
        start, end = self._start_offset, self._end
        front = await self._first_entry()
        kept: list[Entry | None] = []
        if front and since is not None and front.max_timestamp < since:
            kept.append(await self._entries.at_time(start, end.offset, since))
        if front and at_most_bytes is not None and self.size - len(front.payload) >= at_most_bytes:
            kept.append(
                await self._entries.after_bytes(
                    start,
                    end.offset,
                    end.bytes - self.partition.replaced_ranges.bytes_saved - at_most_bytes,
                )
            )
        return max((entry.base_offset if entry else end.offset for entry in kept), default=start)

    async def _first_entry(self) -> Entry | None:
        """The first readable entry; None if there is none."""
        start = self._start_offset
        if self._cached_first_entry is None or self._cached_first_entry.last_offset < start:
            found = await self._entries.read(start, self.end_offset, 1)
            # Cache only this entry for the next check. The read may have returned more.
            self._cached_first_entry = found[0] if found else None
        return self._cached_first_entry

    async def update_start_offset(self) -> None:
        """Move the log start past messages that Pulsar's own retention has deleted."""
        end = self._end
        first = await self._reader.first()
        self.status.check_open()
        base = first.header.base_offset if first else end.offset
        # Offsets below `trim_offset` were trimmed, but are still readable from the side topic.
        if base > self._start_offset and (base > self.partition.row.trim_offset or not first):
            before = await self._entries.bytes_before(base, end.offset, end.bytes)
            self.status.check_open()
            self._move_start(base, before)

    def _move_start(self, offset: int, bytes_before: int) -> None:
        if offset > self._start_offset:
            self._start_offset, self._start_bytes = offset, bytes_before
            self._reader.forget_before(offset)
            self.status.notify()

    @property
    def can_replace(self) -> bool:
        return True

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        self.status.check_open()
        check_replacement(first, last, entries)
        async with self.partition.lock:
            self.status.check_open()
            await self._replacer.replace(
                first, last, entries, self._start_offset, self.end_offset, self._end_bytes
            )
            self._resident.clear()
            self._cached_first_entry = None

    async def reclaim(self) -> None:
        self.status.check_open()
        await self._reclaimer.reclaim()

    async def idle(self) -> None:
        """Return when all appends have succeeded or failed."""
        await self._append_queue.idle()

    async def store_end_offset(self) -> None:
        """Set the reserved offset to the end offset.

        Call it after the last append. Raises StorageError.
        """
        if self._append_queue.has_stored_epoch and self.status.end_reason is None:
            await self.partition.change(reserved=self.end_offset)

    def close(self) -> Deferred[None]:
        """Close the log because the topic was deleted or the store is closing.

        Fires when the producer is closed.
        """
        return self._append_queue.end(LogClosed(LOG_CLOSED))

    def disconnect(self) -> Deferred[Any]:
        """As `close`. Fires when the readers are closed as well; no reader is opened any more."""
        return DeferredList([self.close(), self._reader.disconnect()])

    async def position_of(self, offset: int) -> Position | None:
        """The position in Pulsar's topic of the message with `offset`."""
        return await self._reader.position_of(offset)

    def watch(self, on_change: Callable[[], None]) -> None:
        self.status.watch(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        self.status.unwatch(on_change)

    def _bounds(self) -> tuple[int, LogEnd]:
        self.status.check_open()
        return self._start_offset, self._end
