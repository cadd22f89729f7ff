"""Searches with a cursor on the `entries` database. They read keys only.

They run within a transaction, in a worker thread or the writer thread. In a worker thread rows may
be pending that LMDB does not have yet: then the cursor is a `LogCursor`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat, takewhile
from typing import Any

from storage.lmdb.frames import compiled
from storage.lmdb.layout import LOG_ROW, SLOT_PREFIX, U64, LogRow, Row, Slot, key_of, slot_of
from storage.log import Entry

MOST_ROWS = 10_000
"""Rows that one read returns. Very small entries take more time than their bytes show."""


class LogCursor:
    """A cursor on the rows of one log: those of LMDB, and pending ones behind them.

    It has the methods of LMDB's cursor that the searches use. `pending` are keys in order, all
    greater than those that LMDB has of this log.
    """

    def __init__(self, cursor: Any, log_id: int, pending: Sequence[bytes]) -> None:
        self._cursor = cursor
        self._log_id = log_id
        self._pending = pending
        self._index = -1
        """The position in `_pending`; -1 while LMDB's cursor is used."""

    def key(self) -> bytes:
        return self._pending[self._index] if self._index >= 0 else bytes(self._cursor.key())

    def value(self) -> bytes:
        return b"" if self._index >= 0 else bytes(self._cursor.value())

    def set_range(self, key: bytes) -> bool:
        self._index = -1
        if self._cursor.set_range(key) and self._is_of_log():
            return True
        return self._go_to(bisect_left(self._pending, key))

    def next(self) -> bool:
        if self._index >= 0:
            return self._go_to(self._index + 1)
        return (self._cursor.next() and self._is_of_log()) or self._go_to(0)

    def iternext(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from the current one on.

        The cursor's position is undefined afterwards.
        """
        # No Python code for each row: a sequential reader's next rows are some thousand.
        pending = zip(islice(self._pending, max(self._index, 0), None), repeat(b""))
        if self._index >= 0:
            return pending
        # As tuples, the keys of this log are less than this.
        following = (SLOT_PREFIX.pack(self._log_id + 1, 0),)
        return chain(takewhile(following.__gt__, self._cursor.iternext()), pending)

    def prev(self) -> bool:
        if self._index > 0:
            self._index -= 1
            return True
        if self._index == 0:
            self._index = -1
            return self._last_of_lmdb()
        return bool(self._cursor.prev())

    def last(self) -> bool:
        return self._go_to(len(self._pending) - 1) or self._last_of_lmdb()

    def _go_to(self, index: int) -> bool:
        is_there = 0 <= index < len(self._pending)
        self._index = index if is_there else -1
        return is_there

    def _is_of_log(self) -> bool:
        """Whether LMDB's cursor is within the log or before it."""
        return bool(SLOT_PREFIX.unpack_from(self._cursor.key())[0] <= self._log_id)

    def _last_of_lmdb(self) -> bool:
        following = SLOT_PREFIX.pack(self._log_id + 1, 0)
        cursor = self._cursor
        return bool(cursor.prev() if cursor.set_range(following) else cursor.last())


def slot_at(cursor: Any, log_id: int, offset: int) -> Slot | None:
    """The slot that contains `offset`, or the next one; the cursor is left on it."""
    following = None
    if cursor.set_range(SLOT_PREFIX.pack(log_id, offset)):
        slot = slot_of(cursor.key())
        if slot.log_id == log_id:
            if slot.base_offset == offset:
                return slot
            following = slot
        has_previous = cursor.prev()
    else:
        has_previous = cursor.last()
    if has_previous:
        slot = slot_of(cursor.key())
        if slot.log_id == log_id and slot.last_offset >= offset:
            return slot
    if following:
        cursor.set_range(SLOT_PREFIX.pack(log_id, following.base_offset))
    return following


def last_slot(cursor: Any, log_id: int) -> Slot | None:
    """The last slot of the log."""
    if cursor.prev() if cursor.set_range(SLOT_PREFIX.pack(log_id + 1, 0)) else cursor.last():
        slot = slot_of(cursor.key())
        if slot.log_id == log_id:
            return slot
    return None


def slots_from(cursor: Any, log_id: int, offset: int, end: int) -> Iterator[Slot]:
    """Slots from the one at `offset` that begin below `end`; the cursor is on each yielded slot."""
    slot = slot_at(cursor, log_id, offset)
    while slot and slot.log_id == log_id and slot.base_offset < end:
        yield slot
        slot = slot_of(cursor.key()) if cursor.next() else None


def bisect_slots(
    cursor: Any, log_id: int, low: int, high: int, is_reached: Callable[[Slot], bool]
) -> Slot | None:
    """The first slot that reaches `low` and begins below `high` for which `is_reached` holds.

    Bisection: `is_reached` must also hold for all later slots.
    """
    found = None
    while low < high:
        middle = (low + high) // 2
        slot = slot_at(cursor, log_id, middle)
        if slot is None or slot.base_offset >= high:
            high = middle
        elif is_reached(slot):
            found = slot
            high = min(middle, slot.base_offset)
        else:
            low = slot.last_offset + 1
    return found


def row_of_slot(cursor: Any, slot: Slot) -> Row | None:
    """The row of `slot`, wherever the cursor is; None if it was deleted or replaced.

    It may have been moved within the journal.
    """
    if not cursor.set_range(SLOT_PREFIX.pack(slot.log_id, slot.base_offset)):
        return None
    found = slot_of(cursor.key())
    if found[:7] != slot[:7]:
        return None
    return key_of(found) if found.segment else _inline_entry(found, bytes(cursor.value()))


def read(
    cursor: Any, log_id: int, offset: int, end: int, max_bytes: int, most: int = MOST_ROWS
) -> list[Row]:
    """The rows of `PartitionLog.read`, up to `end`, at most `most`."""
    if slot_at(cursor, log_id, offset) is None:
        return []
    return rows_from(cursor.iternext(), log_id, end, max_bytes, most)


def take_rows(
    items: Iterable[tuple[bytes, bytes]], log_id: int, end: int, max_bytes: int, most: int
) -> list[Row]:
    """The rows of keys and values, while they are of the log and begin below `end`.

    At most `most`, with at most `max_bytes` of payload unless the first has more.
    """
    rows: list[Row] = []
    for key, value in items:
        slot = slot_of(key)
        if slot.log_id != log_id or slot.base_offset >= end:
            break
        max_bytes -= slot.size
        if (rows and max_bytes < 0) or len(rows) >= most:
            break
        rows.append(key if slot.segment else _inline_entry(slot, value))
    return rows


# The compiled function, or the one above, which is the reference.
rows_from: Callable[..., list[Row]] = compiled.take_rows if compiled else take_rows


def _inline_entry(slot: Slot, payload: bytes) -> Entry:
    return Entry(slot.base_offset, slot.last_offset, slot.timestamp, payload)


def slot_for_time(cursor: Any, log_id: int, start: int, end: int, timestamp: int) -> Slot | None:
    """The first slot from `start` to `end` whose own timestamp is at least `timestamp`."""
    return scan_for_time(cursor, log_id, start, end, timestamp, end - start)[0]


def scan_for_time(
    cursor: Any, log_id: int, start: int, end: int, timestamp: int, most: int
) -> tuple[Slot | None, int]:
    """As `slot_for_time`, limited to `most` keys; also returns where to continue, or `end`.

    Bisection finds where the log first reached `timestamp`. If that entry was deleted or compacted
    away, a later one may have such a timestamp, so the scan continues from there.
    """
    reached = bisect_slots(
        cursor, log_id, start, end, lambda slot: slot.running_timestamp >= timestamp
    )
    if reached is None:
        return None, end
    for count, slot in enumerate(slots_from(cursor, log_id, reached.base_offset, end), 1):
        if slot.timestamp >= timestamp:
            return slot, end
        if count == most:
            return None, slot.last_offset + 1
    return None, end


def greatest_timestamp(cursor: Any, log_id: int, start: int) -> int:
    """An upper bound of the timestamps from `start`; -1 if there is no entry.

    The entry that had it may be deleted.
    """
    last = last_slot(cursor, log_id)
    return -1 if last is None or last.last_offset < start else last.running_timestamp


def scan_for_latest(
    cursor: Any, log_id: int, start: int, end: int, most: int
) -> tuple[Slot | None, int]:
    """Of the first `most` slots from `start`, the first one with the greatest timestamp.

    Also returns where to continue, as `scan_for_time`.
    """
    found: Slot | None = None
    for count, slot in enumerate(slots_from(cursor, log_id, start, end), 1):
        if slot.timestamp > (found.timestamp if found else -1):
            found = slot
        if count == most:
            return found, slot.last_offset + 1
    return found, end


def slot_within_bytes(
    cursor: Any, log_id: int, start: int, end: int, row: LogRow, size: int, limit: int
) -> Slot | None:
    """The first slot kept when a log of `size` bytes is cut to `limit` bytes.

    Whole entries are kept, so that at least `limit` bytes remain.
    """
    if size < limit:
        return slot_at(cursor, log_id, start)
    if start < row.compacted_to:
        excess = size - limit
        for slot in slots_from(cursor, log_id, start, end):
            if slot.size > excess:
                return slot
            excess -= slot.size
        return None
    last = last_slot(cursor, log_id)
    floor = (last.position if last else 0) - limit
    return bisect_slots(cursor, log_id, start, end, lambda slot: slot.position > floor)


def retained_from(
    cursor: Any,
    log_id: int,
    start: int,
    end: int,
    row: LogRow,
    size: int,
    since: int | None,
    at_most_bytes: int | None,
) -> int:
    """The start of a log of `size` bytes from `start` to `end` after `PartitionLog.retain`.

    Returns `start` if nothing is deleted.
    """
    first = slot_at(cursor, log_id, start)
    if first is None or first.base_offset >= end:
        return start
    kept: list[Slot | None] = []
    if since is not None:
        kept.append(slot_for_time(cursor, log_id, start, end, since))
    if at_most_bytes is not None:
        kept.append(slot_within_bytes(cursor, log_id, start, end, row, size, at_most_bytes))
    return max((slot.base_offset if slot else end for slot in kept if slot != first), default=start)


def log_row(txn: Any, database: Any, log_id: int) -> LogRow:
    value = txn.get(U64.pack(log_id), db=database)
    return LogRow() if value is None else LogRow._make(LOG_ROW.unpack(value))
