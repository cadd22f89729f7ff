"""Finding entries with a cursor on the `entries` database. Keys are read first; a payload is touched only when it is handed out.

All of it runs within a transaction, in a reader's thread or the writer's. A cursor without the flag `buffers` hands out copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from storage.lmdb.layout import LOG_ROW, SLOT_FIELDS, SLOT_PREFIX, U64, LogRow, Slot, slot_of
from storage.log import Entry


def slot_at(cursor: Any, log_id: int, offset: int) -> Slot | None:
    """The entry that contains `offset`, or the next one after it; the cursor stands on it then."""
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
    """The last entry of the log."""
    if cursor.prev() if cursor.set_range(SLOT_PREFIX.pack(log_id + 1, 0)) else cursor.last():
        slot = slot_of(cursor.key())
        if slot.log_id == log_id:
            return slot
    return None


def slots_from(cursor: Any, log_id: int, offset: int, end: int) -> Iterator[Slot]:
    """Slots from the one at `offset` on that begin below `end`; the cursor stands on each while it is looked at."""
    slot = slot_at(cursor, log_id, offset)
    while slot and slot.log_id == log_id and slot.base_offset < end:
        yield slot
        slot = slot_of(cursor.key()) if cursor.next() else None


def bisect_slots(
    cursor: Any, log_id: int, low: int, high: int, is_reached: Callable[[Slot], bool]
) -> Slot | None:
    """The first slot that reaches to `low` and begins below `high` of which `is_reached` holds, by bisection: it must hold of all later ones too."""
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
    """The entry that the cursor stands on."""
    return Entry(slot.base_offset, slot.last_offset, slot.timestamp, cursor.value())


def entry_of_slot(cursor: Any, slot: Slot) -> Entry | None:
    """The entry of `slot`, wherever the cursor stands; None where it was deleted or replaced."""
    if (
        not cursor.set_range(SLOT_PREFIX.pack(slot.log_id, slot.base_offset))
        or slot_of(cursor.key()) != slot
    ):
        return None
    return entry_at_cursor(cursor, slot)


def read(cursor: Any, log_id: int, offset: int, end: int, max_bytes: int) -> list[Entry]:
    """`PartitionLog.read`, up to `end`. The hot loop of every read from the file: no generator, no `Slot`."""
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
    """The first slot within `start` and `end` whose own timestamp is at least `timestamp`."""
    return scan_for_time(cursor, log_id, start, end, timestamp, end - start)[0]


def scan_for_time(
    cursor: Any, log_id: int, start: int, end: int, timestamp: int, most: int
) -> tuple[Slot | None, int]:
    """As `slot_for_time`, but reading on over `most` keys only; and where to go on, `end` when there is nothing left.

    The bisection finds where the log had first seen such a timestamp. Where that entry was deleted or compacted away, a later one may bear it
    (or none), and the keys are read on from there.
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
    """No slot from `start` on has a greater one; it may have gone with what was deleted. -1 where there is none."""
    last = last_slot(cursor, log_id)
    return -1 if last is None or last.last_offset < start else last.running_timestamp


def scan_for_latest(
    cursor: Any, log_id: int, start: int, end: int, most: int
) -> tuple[Slot | None, int]:
    """Of the first `most` slots from `start` on, the first with the greatest timestamp of its own; and where to go on, as `scan_for_time`."""
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
    """The slot that a log of `size` bytes starts with when it is cut from `start` on to `limit` bytes, or as little more as whole entries allow."""
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
    """Where a log of `size` bytes from `start` to `end` starts after `PartitionLog.retain`; `start` where nothing goes."""
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
