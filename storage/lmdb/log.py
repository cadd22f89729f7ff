"""A partition log in LMDB, used from the reactor thread: offsets, appends in flight, watchers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from twisted.internet.defer import Deferred

from storage.lmdb import changes, queries
from storage.lmdb.frames import LogState, cached_entries, compiled, find_run
from storage.lmdb.layout import LogRow, Row, Slot, slot_of
from storage.lmdb.write_burst import (
    Append,
    Burst,
    DurableLog,
    StoreAccess,
    Task,
)
from storage.log import (
    LOG_CLOSED,
    Entry,
    EntryRun,
    LogClosed,
    LogStatus,
    OffsetOutOfRange,
    StorageError,
    StorageFailed,
)
from storage.log_checks import check_append, check_readable, check_replacement
from storage.tail import CachedTail

SCAN_KEYS = 10_000
"""Keys scanned per read transaction, 10 to 30 ms. Growing the map, and so every write, waits for
running reads.
"""


MOST_AT_ONCE = 1 << 20
"""Payload bytes that are read in the reactor thread, from the page cache: some 0.3 ms."""

MOST_GAPS = 1 << 20
"""Bytes between them that are read with them; a gap that is not counts as `RUN_GAP` bytes."""

if compiled:
    compiled.limit_reads(MOST_AT_ONCE, MOST_GAPS, queries.MOST_ROWS)

READS_AHEAD = 16
MOST_ROWS_AHEAD = 4096
"""A sequential reader's next reads for which rows are found at once, and rows at most (256 KiB)."""


class RowsAhead(NamedTuple):
    """The rows of the entries that a sequential reader of a log reads.

    They are joined, without gaps, and begin with the entry at or after the offset `begin`.
    """

    begin: int
    rows: bytes


class LmdbLog(LogState):
    """A `PartitionLog`.

    A sequential reader's rows are found in advance, in a worker thread, so that the reactor thread
    can read from the page cache what they refer to. They stay true until an entry is replaced:
    entries that were deleted are before `start_offset`, and moved ones do not change. Rows of a
    segment that the cleaner has deleted are found again.

    Leader epochs are not stored: the store has a single writer process, so logs of different epochs
    never diverge.
    """

    def __init__(
        self, store: StoreAccess, durable: DurableLog, leader_epoch: int, name: str
    ) -> None:
        """`name` is that of the partition, for error messages."""
        self.leader_epoch = leader_epoch
        self._store = store
        self._name = name
        self._log_id = durable.log_id
        self.start_offset = durable.start_offset
        self.end_offset = self.next_offset = durable.end_offset
        self.size = durable.size
        self._cached_tail = CachedTail()
        self._ahead: RowsAhead | None = None
        self._read_from = self._read_to = -1
        """The range of the last read from the journal."""
        self._not_cached = -1
        """The offset of the last read that did not find everything in the page cache."""
        self._wanted = -1
        """The offset of the last `read_resident` for which rows were missing."""
        self._replacements = 0
        self._in_flight = 0
        self._failure = ""
        self.status = LogStatus()

    def append(self, entries: Sequence[Entry]) -> Awaitable[None]:
        """`PartitionLog.append`. Payloads are not copied; those that are not a small part of their
        buffer stay in the tail cache.
        """
        append = Append(self._log_id, entries, 0, self)
        try:
            if self.status.end_reason is not None:
                self.status.check_open()
            if self._failure:
                # The appends in flight fail one by one; the next offset is unknown until the last
                # has failed.
                raise StorageFailed(self._failure)
            next_offset = check_append(entries, self.next_offset)
            if entries:
                for entry in entries:
                    append.size += len(entry.payload)
                self._store.submit(append)
                self.next_offset = next_offset
                self._in_flight += 1
            else:
                append.callback(None)
        except StorageError as error:
            # Its traceback refers to this frame, and so to `append`.
            append.errback(error.with_traceback(None))
        return append

    if not TYPE_CHECKING and compiled:
        # Calls the other one unless it is the common case.
        append_any, append = append, compiled.append

    def append_completed(self, append: Append, error: Exception | None) -> None:
        """Apply the outcome of an append; `complete_appends` in `_appends.pxi` does the same."""
        self._in_flight -= 1
        if error is None:
            entries = append.entries
            self.end_offset = entries[-1].last_offset + 1
            self.size += append.size
            for entry in entries:
                self._store.tail.add(self._cached_tail, entry)
            self._store.mark_changed(self.status)
        elif isinstance(error, StorageFailed):
            self._failure = str(error)
        if self._in_flight == 0 and self._failure:
            self._failure = ""
            self.next_offset = self.end_offset

    def _read_tail(self, offset: int, max_bytes: int) -> list[Entry] | None:
        # Conditions before the checks: each Fetch calls this.
        if self.status.end_reason is not None:
            self.status.check_open()
        if not self.start_offset <= offset < self.end_offset:
            check_readable(offset, self.start_offset, self.end_offset)
            return []
        return self._cached_tail.read(offset, max_bytes)

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        resident = self._read_tail(offset, max_bytes)
        if resident is not None:
            return resident
        ahead = self._ahead
        run = None if ahead is None else self._read_ahead(ahead, offset, max_bytes)
        if run is not None:
            return run.entries()
        if offset != self._not_cached:
            self._wanted = offset
        return None

    if not TYPE_CHECKING and compiled:
        # Calls the other one unless the entries are in the tail cache.
        read_resident_any, read_resident = read_resident, compiled.read_log_resident

    def read_run(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True
    ) -> EntryRun | None:
        if self.status.end_reason is not None:
            self.status.check_open()
        if not self.start_offset <= offset <= self.end_offset:
            check_readable(offset, self.start_offset, self.end_offset)
        ahead = self._ahead
        if ahead is None or self._cached_tail.has(offset):
            return None
        return self._read_ahead(ahead, offset, max_bytes, at_least_one=at_least_one)

    if not TYPE_CHECKING and compiled:
        # Calls the other one if the log is closed or the offset is outside of it.
        read_run_any, read_run = read_run, compiled.read_log_run

    def _read_ahead(
        self, ahead: RowsAhead, offset: int, max_bytes: int, *, at_least_one: bool = True
    ) -> EntryRun | None:
        """Read from the page cache what the rows refer to."""
        if max_bytes > MOST_AT_ONCE or offset < ahead.begin or offset == self._not_cached:
            return None
        found = find_run(
            ahead.rows,
            offset,
            self.end_offset,
            max_bytes,
            MOST_AT_ONCE,
            MOST_GAPS,
            queries.MOST_ROWS,
        )
        if found is None:
            return None
        first, stop, segment, base_offset, last_offset, size = found
        if size > max_bytes and not at_least_one:
            return EntryRun(offset, offset - 1, 0, b"", list)
        payloads = self._store.read_cached(segment, ahead.rows, first, stop)
        if payloads is None:
            if self._store.has_segment(segment):
                self._not_cached = offset
            else:
                # The cleaner has moved the entries.
                self._drop_ahead()
            return None
        self._read_from, self._read_to = base_offset, last_offset + 1
        entries = partial(cached_entries, ahead.rows, first, stop, payloads)
        return EntryRun(base_offset, last_offset, stop - first, payloads, entries)

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        # Not from the page cache: a caller that reads a whole log would never wait, and so block
        # the reactor.
        resident = self._read_tail(offset, max_bytes)
        if resident is not None:
            return resident
        log_id, end, replacements = self._log_id, self.end_offset, self._replacements
        # A consumer of an older format may not have got all of what was read.
        is_sequential = self._read_from < offset <= self._read_to and max_bytes <= MOST_AT_ONCE
        finds_ahead = is_sequential and offset == self._wanted
        ahead: list[RowsAhead] = []

        def find(cursor: Any) -> list[Row]:
            rows = queries.read(cursor, log_id, offset, end, max_bytes)
            if finds_ahead:
                ahead[:] = _rows_ahead(cursor, log_id, offset, rows, end)
            return rows

        entries = await self._store.read_entries(log_id, find, self._name)
        self.status.check_open()
        # The entries may have been deleted during the read.
        check_readable(offset, self.start_offset, self.end_offset)
        if entries:
            self._read_from, self._read_to = entries[0].base_offset, entries[-1].last_offset + 1
        if ahead and replacements == self._replacements:
            self._ahead = ahead[0]
            self._store.keep_ahead(self, len(ahead[0].rows))
        return entries

    def _drop_ahead(self) -> None:
        self._store.keep_ahead(self, 0)
        self._ahead = None

    def forget_ahead(self) -> None:
        """Free the memory of the rows that were found in advance."""
        self._ahead = None

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        return await self._find(lambda start, end: self._slot_for_time(start, end, timestamp))

    async def latest_by_time(self) -> Entry | None:
        return await self._find(self._latest_slot)

    async def _slot_for_time(self, start: int, end: int, timestamp: int) -> Slot | None:
        found: Slot | None = None
        while start < end and found is None:
            scan = partial(
                queries.scan_for_time,
                log_id=self._log_id,
                start=start,
                end=end,
                timestamp=timestamp,
                most=SCAN_KEYS,
            )
            found, start = await self._query(scan)
        return found

    async def _latest_slot(self, start: int, end: int) -> Slot | None:
        greatest = await self._query(
            partial(queries.greatest_timestamp, log_id=self._log_id, start=start)
        )
        found = None if greatest < 0 else await self._slot_for_time(start, end, greatest)
        if greatest < 0 or found is not None:
            return found
        # The entry with the greatest timestamp was deleted: scan every key for the next greatest.
        while start < end:
            scan = partial(
                queries.scan_for_latest, log_id=self._log_id, start=start, end=end, most=SCAN_KEYS
            )
            later, start = await self._query(scan)
            if later is not None and (found is None or later.timestamp > found.timestamp):
                found = later
        return found

    async def _find(self, search: Callable[[int, int], Awaitable[Slot | None]]) -> Entry | None:
        """The entry that `search` finds; searches again if the start moved or the entry was
        deleted.
        """
        while True:
            self.status.check_open()
            start = self.start_offset
            slot = await search(start, self.end_offset)
            entry = None if slot is None else await self._entry_of(slot)
            if start == self.start_offset and (entry is None) is (slot is None):
                self.status.check_open()
                return entry

    async def _entry_of(self, slot: Slot) -> Entry | None:
        """The entry of `slot`; None if it was deleted or replaced."""

        def find(cursor: Any) -> list[Row]:
            row = queries.row_of_slot(cursor, slot)
            return [] if row is None else [row]

        entries = await self._store.read_entries(self._log_id, find, self._name)
        return entries[0] if entries else None

    def _query(self, query: Callable[[Any], Any]) -> Deferred[Any]:
        """Run `query` with a cursor on the entries in a worker thread."""
        return self._store.query_log(self._log_id, lambda cursor, _: query(cursor))

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        if 0 <= leader_epoch <= self.leader_epoch:
            return leader_epoch, self.end_offset
        return -1, -1

    async def delete_before(self, offset: int) -> int:
        self.status.check_open()
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end, {self.end_offset}")
        if offset > self.start_offset:
            await self._store.write(
                Task(
                    lambda burst: changes.move_start(burst, self._log_id, offset), self._start_moved
                )
            )
        return self.start_offset

    def _start_moved(self, start_and_size: tuple[int, int]) -> None:
        self.start_offset, self.size = start_and_size
        self._store.mark_changed(self.status)

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        self.status.check_open()
        log_id, start, end, size = self._log_id, self.start_offset, self.end_offset, self.size

        def find(cursor: Any, row: Callable[[], LogRow]) -> int:
            return queries.retained_from(
                cursor, log_id, start, end, row(), size, since, at_most_bytes
            )

        # This search only tells whether anything is to be deleted. The writer decides how much,
        # since compaction or another deletion may be queued before it.
        if await self._store.query_log(log_id, find) > start:
            await self._store.write(
                Task(
                    lambda burst: changes.retain(burst, log_id, since, at_most_bytes),
                    self._start_moved,
                )
            )
        return self.start_offset

    @property
    def can_replace(self) -> bool:
        return True

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        self.status.check_open()
        check_replacement(first, last, entries)
        size = sum(len(entry.payload) for entry in entries)

        def run(burst: Burst) -> int:
            return changes.replace_entries(burst, self._log_id, first, last, entries)

        await self._store.write(Task(run, self._replaced, size, writes_entries=True))

    def _replaced(self, size: int) -> None:
        self.size = size
        self._cached_tail.clear()
        # Rows that are being found now may be those from before.
        self._replacements += 1
        self._drop_ahead()

    async def reclaim(self) -> None:
        """Nothing to do: the writer frees deleted entries."""

    def watch(self, on_change: Callable[[], None]) -> None:
        self.status.watch(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        self.status.unwatch(on_change)

    def close(self) -> None:
        """Refuse all further calls: the topic was deleted or the store closed."""
        self.status.end(LogClosed(LOG_CLOSED))
        self._cached_tail.clear()
        self._drop_ahead()
        self.status.notify()


def _rows_ahead(
    cursor: Any, log_id: int, offset: int, rows: list[Row], end: int
) -> list[RowsAhead]:
    """These rows, which are those from `offset` on, and at most `READS_AHEAD` times as many more.

    None if there are entries of format 1 among them, which are in LMDB, or if the limit leaves no
    room for another read.
    """
    last = rows[-1] if rows else None
    most = min(len(rows) * READS_AHEAD, MOST_ROWS_AHEAD - len(rows))
    if not isinstance(last, bytes) or most < len(rows):
        return []
    following = slot_of(last).last_offset + 1
    rows = rows + queries.read(cursor, log_id, following, end, READS_AHEAD * MOST_AT_ONCE, most)
    if set(map(type, rows)) != {bytes}:
        return []
    return [RowsAhead(offset, b"".join(cast(list[bytes], rows)))]
