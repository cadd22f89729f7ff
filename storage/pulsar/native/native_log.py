"""`PartitionLog` on a topic shared with native clients (decision 017).

The broker assigns the offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, fail

from storage.bridge import SharedResult
from storage.log import (
    LOG_CLOSED,
    Entry,
    Fenced,
    LogClosed,
    LogStatus,
    OffsetOutOfRange,
    StorageError,
    StorageFailed,
)
from storage.log_checks import check_append, check_readable
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_rows import PartitionState, epoch_end_offset
from storage.pulsar.native.native_sender import NativeSender, PendingAppend
from storage.pulsar.native.stored_entries import NativeEntries
from storage.pulsar.native.tail_entries import TailEntries
from storage.pulsar.native.tail_reader import TailReader
from storage.tail import CachedTail, TailCache

logger = logging.getLogger(__name__)

FIRST_PROVISIONAL_OFFSET = 1 << 62
"""Appends in flight have provisional offsets from here on, which no record ever reaches."""

SCAN_BYTES = 1 << 20
"""Bytes per read in a search by timestamp."""


class LatestTimestampSearch:
    """Finds the entry with the greatest timestamp.

    Entries are scanned once, and again only if the found entry was deleted.
    """

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._reached = 0

    async def find(
        self, start_offset: int, scan: Callable[[int, Callable[[Entry], bool]], Awaitable[object]]
    ) -> Entry | None:
        """Return the entry; None if there is none from `start_offset` on.

        `scan(offset, call)` calls `call` with each entry from `offset` on.
        """
        if self._entry is None or self._entry.last_offset < start_offset:
            self._entry, self._reached = None, start_offset

        def look(entry: Entry) -> bool:
            if self._entry is None or entry.max_timestamp > self._entry.max_timestamp:
                self._entry = entry
            self._reached = entry.last_offset + 1
            return False

        await scan(max(self._reached, start_offset), look)
        return self._entry


@dataclass(frozen=True, slots=True)
class NativeLogBounds:
    """Offsets and size of a log when it was opened."""

    native_entries: NativeEntries
    first_offset: int
    end_offset: int
    size: int


class NativeLog:
    """Created by `native_opener.open_native_log`.

    Other writers are not fenced. All batches carry one leader epoch, the last one from before the
    topic was switched to this format: `leader_epoch`, that of this log, begins at the log end.
    """

    def __init__(
        self,
        opened: NativeLogBounds,
        partition: PartitionState,
        leader_epoch: int,
        tail_cache: TailCache,
        on_end: Callable[[NativeLog, StorageError], None],
    ) -> None:
        self._native_entries = native_entries = opened.native_entries
        self.topic = native_entries.finder.topic
        self.partition = partition
        self.leader_epoch = leader_epoch
        self._on_end = on_end
        self._tail_cache = tail_cache
        self._resident = CachedTail()
        self._start_offset = max(opened.first_offset, partition.row.start_offset)
        self._end_offset = max(opened.end_offset, self._start_offset)
        self._next_offset = FIRST_PROVISIONAL_OFFSET
        self._size = opened.size
        self.status = LogStatus()
        self.tail_entries = TailEntries(
            native_entries, self._on_entry, self.status.notify, self.end
        )
        self._latest_timestamp = LatestTimestampSearch()
        self._idle: list[Deferred[None]] = []
        self.sender: NativeSender | None = None
        self.tail: TailReader | None = None
        self._released: SharedResult[None] = SharedResult()

    @property
    def start_offset(self) -> int:
        return self._start_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def next_offset(self) -> int:
        return self._next_offset

    @property
    def size(self) -> int:
        return self._size

    def append(self, entries: Sequence[Entry]) -> Awaitable[int | None]:
        """`PartitionLog.append` of a log that assigns offsets.

        Each entry is stored atomically, but several entries are not one atomic step.
        """
        try:
            self.status.check_open()
            next_offset = check_append(entries, self._next_offset)
            if len(entries) != 1:
                raise StorageFailed("a topic in the format `pulsar` takes one batch per append")
            (entry,) = entries
            pending = PendingAppend(entry.payload, entry.last_offset - entry.base_offset + 1)
            assert self.sender
            self.sender.send(pending)
        except StorageError as error:
            return fail(error)
        self._next_offset = next_offset
        self.tail_entries.in_flight += 1
        pending.result.addBoth(self._append_finished)
        return _uncancelled(pending.result)

    def _append_finished(self, result: Any) -> Any:
        self.tail_entries.append_finished()
        if not self.tail_entries.in_flight:
            self._notify_idle()
        return result

    def _on_entry(self, position: Position, entry: Entry) -> None:
        if entry.base_offset < self._end_offset:
            # No offset may be used twice, whatever happened to the topic.
            self.end(
                Fenced(
                    f"an entry has offset {entry.base_offset}, below the log end offset "
                    f"{self._end_offset}"
                )
            )
            return
        self._native_entries.last = position
        self._tail_cache.add(self._resident, entry)
        self._end_offset = entry.last_offset + 1
        self._size += len(entry.payload)

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        resident = self.read_resident(offset, max_bytes)
        if resident is not None:
            return resident
        found = await self._native_entries.read(offset, max_bytes)
        if not found or found[0].base_offset > offset:
            await self._update_start_offset()
        # The entries may have been deleted during the read.
        self._check_offset(offset)
        return found

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        self._check_offset(offset)
        return [] if offset == self._end_offset else self._resident.read(offset, max_bytes)

    def read_run(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> None:
        """`PartitionLog.read_run`: entries are kept separately."""
        self._check_offset(offset)

    def _check_offset(self, offset: int) -> None:
        self.status.check_open()
        check_readable(offset, self._start_offset, self._end_offset)

    async def _update_start_offset(self) -> None:
        """Move the log start past messages that Pulsar's own retention has deleted."""
        first = await self._native_entries.first_offset()
        start = self._end_offset if first is None else min(first, self._end_offset)
        if start > self._start_offset:
            self._start_offset = start
            self.status.notify()

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        """`PartitionLog.entry_for_time`.

        Does not find records that were published more than an hour before their own timestamp.
        """
        offset = await self._native_entries.offset_for_publish_time(timestamp)
        return (
            None
            if offset is None
            else await self._scan(offset, lambda entry: entry.max_timestamp >= timestamp)
        )

    async def latest_by_time(self) -> Entry | None:
        return await self._latest_timestamp.find(self._start_offset, self._scan)

    async def _scan(self, offset: int, is_enough: Callable[[Entry], bool]) -> Entry | None:
        """The first entry from `offset` on for which `is_enough` returns True."""
        while offset < self._end_offset:
            found = await self.read(max(offset, self._start_offset), SCAN_BYTES)
            for entry in found:
                if is_enough(entry):
                    return entry
            if not found:
                break
            offset = found[-1].last_offset + 1
        return None

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        epochs = self.partition.row.epochs or ((0, 0),)
        if self.leader_epoch > epochs[-1][0]:
            epochs = (*epochs, (self.leader_epoch, self._end_offset))
        return epoch_end_offset(epochs, leader_epoch, self._end_offset)

    async def delete_before(self, offset: int) -> int:
        """`PartitionLog.delete_before`. Pulsar frees the space according to its own retention."""
        self.status.check_open()
        if offset > self._end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is beyond the log end offset {self._end_offset}"
            )
        if offset > self._start_offset:
            await self.partition.change(start_offset=offset)
            self._start_offset = max(self._start_offset, offset)
            self.status.notify()
        return self._start_offset

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        """`PartitionLog.retain`; by size, whole ledgers are deleted.

        Also moves the log start past messages that Pulsar has deleted.
        """
        await self._update_start_offset()
        start = self._start_offset
        if since is not None and start < self._end_offset:
            young = await self.entry_for_time(since)
            start = max(start, self._end_offset if young is None else young.base_offset)
        if at_most_bytes is not None and start < self._end_offset:
            start = max(start, await self._native_entries.offset_for_bytes(at_most_bytes) or 0)
        return await self.delete_before(start)

    @property
    def can_replace(self) -> bool:
        return False

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        """Not supported: Pulsar compacts these topics, and keeps the original messages.

        Raises StorageFailed.
        """
        raise StorageFailed(
            "topics in the format `pulsar` are compacted by Pulsar, not by the gateway"
        )

    async def reclaim(self) -> None:
        """Nothing to do: no entries are replaced here."""

    def watch(self, on_change: Callable[[], None]) -> None:
        self.status.watch(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        self.status.unwatch(on_change)

    def end(self, error: StorageError) -> Deferred[None]:
        """End the log: fail appends in flight and all later calls.

        Fires when the client library has released the producer and the cached readers.
        """
        if self.status.end_reason is None:
            self.status.end(error)
            self._resident.clear()
            self.tail_entries.end(error)
            Deferred.fromCoroutine(self._release(error)).addCallbacks(
                self._released.succeed, lambda failure: self._released.fail(failure.value)
            )
            self._on_end(self, error)
            self.status.notify()
            self._notify_idle()
        return Deferred.fromCoroutine(self._released.wait())

    async def _release(self, error: StorageError) -> None:
        if self.sender:
            self.partition.producer_released = closed = self.sender.end(error)
            await closed
        try:
            if self.tail:
                await self.tail.close()
            await self._native_entries.close()
        except StorageError as failure:
            logger.debug("closing readers of %s failed: %s", self.topic, failure)

    def close(self) -> Deferred[None]:
        """Close the log because the topic was deleted or the store is closing."""
        return self.end(LogClosed(LOG_CLOSED))

    def disconnect(self) -> Deferred[Any]:
        """As `close`. Fires when all readers are closed; no reader is opened any more."""
        disconnected = Deferred.fromCoroutine(self._native_entries.disconnect())
        return DeferredList([self.close(), disconnected], consumeErrors=True)

    async def idle(self) -> None:
        """Return when all appends have succeeded or failed."""
        if self.tail_entries.in_flight and self.status.end_reason is None:
            result: Deferred[None] = Deferred()
            self._idle.append(result)
            await result

    async def store_end_offset(self) -> None:
        """Set the reserved offset to the end offset, needed once Pulsar has deleted all messages.

        Raises StorageError.
        """
        if self.status.end_reason is None and self.partition.row.reserved != self._end_offset:
            await self.partition.change(reserved=self._end_offset)

    async def position_of(self, offset: int) -> Position | None:
        """The position in Pulsar's topic of the entry with `offset`."""
        return await self._native_entries.position_of(offset)

    def _notify_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            waiter.callback(None)


def _uncancelled(original: Deferred[int]) -> Deferred[int]:
    """A copy of `original` for the caller, who may cancel it without affecting the append."""
    mine: Deferred[int] = Deferred()

    def tell(result: Any) -> None:
        if not mine.called:
            mine.callback(result)

    original.addBoth(tell)
    return mine
