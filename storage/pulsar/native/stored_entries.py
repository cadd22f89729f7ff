"""Stored entries of a partition in the format `pulsar`: found by offset and time, read in order."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, succeed

from storage.log import Entry, StorageError
from storage.plain_records import BatchFormat
from storage.pulsar.admin.admin_api import NotFound, PeekedEntry
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.client.topic_readers import ReaderSource
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.entry_search import EntryFinder
from storage.pulsar.native.message_offsets import START, IndexCounter
from storage.pulsar.native.native_reader import NativeReader, PackedEntry

MAX_CACHED_CURSORS = 4
"""Cached readers per partition, for sequential consumers behind the cached tail."""

MAX_CLOCK_SKEW_MS = 3_600_000
"""How far a producer's clock may be ahead of the broker's.

Searches by timestamp skip entries that were published longer before that timestamp.
"""

READER_QUEUE_MESSAGES = (8, 1000)
"""Smallest and largest prefetch of a reader.

Between them it is `reader_queue_bytes` divided by the average message size.
"""


@dataclass(eq=False, slots=True)
class ReadCursor:
    """A reader with its index counter and entries read ahead; it continues at `next_offset`."""

    reader: NativeReader
    counter: IndexCounter = field(default_factory=IndexCounter)
    buffered: deque[Entry] = field(default_factory=deque)
    next_offset: int = -1

    def take(self, max_bytes: int) -> list[Entry]:
        """As many entries as fit, and at least one, if there is one."""
        found: list[Entry] = []
        while self.buffered and (not found or len(self.buffered[0].payload) <= max_bytes):
            found.append(self.buffered.popleft())
            max_bytes -= len(found[-1].payload)
            self.next_offset = found[-1].last_offset + 1
        return found


class NativeEntries:
    """Reads and searches entries.

    `base` is the offset of the message with index 0. `last` is the position of the last known entry
    and is updated by the log's tail.
    """

    def __init__(
        self,
        client: PulsarClient,
        finder: EntryFinder,
        batch_format: BatchFormat,
        base: int,
        leader_epoch: int,
    ) -> None:
        self.client = client
        self.source = ReaderSource(client, finder.topic)
        """Opens all readers of the topic."""
        self.finder = finder
        self.batch_format = batch_format
        self.base = base
        self.leader_epoch = leader_epoch
        self.last = START
        self.average_bytes = 1024
        self._cursors: OrderedDict[ReadCursor, None] = OrderedDict()
        self._is_closed = False

    async def assign_offsets(self, counter: IndexCounter, packed: PackedEntry) -> Entry:
        """Return `packed` as an Entry with Kafka offsets.

        They are counted on from the previous entry, or from the index that the broker reports.
        """
        index = counter.next(packed.location)
        if index is None:
            index = await self.finder.index_of(packed.location.position)
            counter.anchor(packed.location.position, index)
        return self.stamp(packed, index)

    def stamp(self, packed: PackedEntry, index: int) -> Entry:
        """Return `packed` as an Entry; `index` is the broker's index of its last message."""
        last = self.base + index
        first = last - packed.location.messages + 1
        self.batch_format.stamp(packed.payload, first, self.leader_epoch)
        return Entry(first, last, packed.max_timestamp, packed.payload)

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """`PartitionLog.read`, limited to entries at or before the position `last`."""
        cursor = self._cursor_at(offset) or await self._open(offset)
        if cursor is None:
            return []
        self._cursors.pop(cursor, None)
        try:
            while not cursor.buffered and await self._read_on(cursor, offset, max_bytes):
                pass
        except BaseException:
            self._close(cursor)
            raise
        found = cursor.take(max_bytes)
        if found:
            self._cache(cursor)
        else:
            self._close(cursor)
        return found

    async def _read_on(self, cursor: ReadCursor, offset: int, max_bytes: int) -> bool:
        """Read more entries into the cursor; returns whether there were any."""
        last = self.last
        packed_entries = await self.client.run(lambda: cursor.reader.read(max(max_bytes, 1), last))
        for packed in packed_entries:
            entry = await self.assign_offsets(cursor.counter, packed)
            if entry.last_offset >= offset:
                cursor.buffered.append(entry)
        return bool(packed_entries)

    async def position_of(self, offset: int) -> Position | None:
        """The position of the entry with `offset`."""
        found = await self._find(offset)
        return found and found[0]

    async def offset_for_publish_time(self, timestamp: int) -> int | None:
        """The first offset at which records may reach `timestamp`; None if there are none."""
        entries = await self.finder.entries()
        found = await self.finder.first(
            entries, lambda one: one.publish_time >= timestamp - MAX_CLOCK_SKEW_MS
        )
        return None if found is None else self._first_offset(found[1])

    async def first_offset(self) -> int | None:
        """The first offset of the first existing entry with an index; None if there is none."""
        entries = await self.finder.entries()
        if not len(entries):
            return None
        try:
            peeked = await self.finder.peek(entries.position(0))
        except NotFound:
            peeked = None
        if peeked is None or peeked.index < 0:
            found = await self.finder.first(entries, lambda one: one.index >= 0)
            peeked = found[1] if found else None
        return None if peeked is None else self._first_offset(peeked)

    async def offset_for_bytes(self, at_most_bytes: int) -> int | None:
        """The first offset of the oldest ledger to keep so that at least `at_most_bytes` remain.

        Returns None if all ledgers must be kept. Whole ledgers are deleted, as Kafka deletes whole
        segments.
        """
        ledgers, size = await self.finder.sizes()
        entries = await self.finder.entries()
        last_deletable = None
        for ledger, ledger_size in ledgers:
            size -= ledger_size
            if size < at_most_bytes:
                break
            last_deletable = ledger
        if last_deletable is None:
            return None
        number = entries.number(Position(last_deletable + 1, 0))
        if number == len(entries):
            return None
        return self._first_offset(await self.finder.peek(entries.position(number)))

    async def close(self) -> None:
        """Close the readers; those in use are closed when their read ends."""
        await self._close_cached()

    async def disconnect(self) -> None:
        """Close the readers, and open no more. Returns when all are closed."""
        disconnected = self.source.disconnect()
        await self._close_cached()
        await disconnected

    def _close_cached(self) -> Deferred[Any]:
        self._is_closed = True
        cursors, self._cursors = list(self._cursors), OrderedDict()
        return DeferredList([self._close(cursor) for cursor in cursors])

    def _first_offset(self, peeked: PeekedEntry) -> int:
        return self.base + peeked.index - peeked.messages + 1

    def _cursor_at(self, offset: int) -> ReadCursor | None:
        return next((cursor for cursor in self._cursors if cursor.next_offset == offset), None)

    async def _open(self, offset: int) -> ReadCursor | None:
        found = await self._find(offset)
        if found is None:
            return None
        fewest, most = READER_QUEUE_MESSAGES
        queue = min(
            max(self.client.settings.reader_queue_bytes // self.average_bytes, fewest), most
        )
        return ReadCursor(NativeReader(self.source, self.batch_format, found[0], queue))

    async def _find(self, offset: int) -> tuple[Position, PeekedEntry] | None:
        entries = await self.finder.entries()
        return await self.finder.first(entries, lambda one: one.index >= offset - self.base)

    def _cache(self, cursor: ReadCursor) -> None:
        if self._is_closed:
            self._close(cursor)
            return
        self._cursors[cursor] = None
        while len(self._cursors) > MAX_CACHED_CURSORS:
            self._close(self._cursors.popitem(last=False)[0])

    def _close(self, cursor: ReadCursor) -> Deferred[None]:
        def failed(_: object) -> None:
            # Too many calls are queued: the reader is closed with its last reference.
            cursor.reader.drop()

        try:
            return self.client.run(cursor.reader.close).addErrback(failed)
        except StorageError:
            # The client is closed, and all its readers with it.
            cursor.reader.drop()
            return succeed(None)
