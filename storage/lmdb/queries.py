"""Searches with a cursor on the `entries` database. A payload is read only when returned.

They run within a transaction, in a worker thread or the writer thread. A cursor without the flag
`buffers` returns copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from storage.lmdb.layout import LOG_ROW, SLOT_FIELDS, SLOT_PREFIX, U64, LogRow, Slot, slot_of
from storage.log import Entry


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


def entry_at_cursor(cursor: Any, slot: Slot) -> Entry:
    """The entry at the cursor."""
    return Entry(slot.base_offset, slot.last_offset, slot.timestamp, cursor.value())


def entry_of_slot(cursor: Any, slot: Slot) -> Entry | None:
    """The entry of `slot`, wherever the cursor is; None if it was deleted or replaced."""
    if (
        not cursor.set_range(SLOT_PREFIX.pack(slot.log_id, slot.base_offset))
        or slot_of(cursor.key()) != slot
    ):
        return None
    return entry_at_cursor(cursor, slot)


def read(cursor: Any, log_id: int, offset: int, end: int, max_bytes: int) -> list[Entry]:
    """`PartitionLog.read`, up to `end`. The hot loop of disk reads: no generator, no `Slot`."""
    entries: list[Entry] = []
    room = max_bytes
    if slot_at(cursor, log_id, offset):
        for key in cursor.iternext(True, False):
            its_log, base, last, timestamp, size = SLOT_FIELDS.unpack(key)
            room -= size
            if its_log != log_id or base >= end or (entries and room < 0):
                break
            entries.append(Entry(base, last, timestamp, cursor.value()))
    return entries


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
