"""Frees space, a bounded amount at a time: rows of deleted entries, then segments of the journal.

A segment without entries is deleted. One with few entries is cleaned: they are moved to the end of
the journal. A segment is cleaned if less than half of what was written to it is left, so the
journal takes at most about twice the space of its entries, and an entry is moved at most about once
per time that as many bytes were deleted.
"""

from __future__ import annotations

from storage.lmdb.frames import FRAME, TABLES_LOG_ID, decode_frame, has_payload
from storage.lmdb.journal import Journal
from storage.lmdb.layout import SLOT_PREFIX, U64, Slot, key_of, slot_of
from storage.lmdb.write_burst import Burst, WriterState
from storage.log import Entry


def free_entries(burst: Burst, log_id: int, below: int, at_most: int) -> int:
    """Free up to `at_most` entries wholly below the offset `below`.

    Returns how many less than `at_most` there were; 0 if some may be left. The marker in `freeing`
    is deleted with the last of them.
    """
    first = SLOT_PREFIX.pack(log_id, 0)
    with burst.txn.cursor(db=burst.databases["entries"]) as cursor:
        cursor.set_range(first)
        for freed in range(at_most):
            # After deleting the last key of a page the cursor may be unpositioned.
            key = cursor.key() or (cursor.set_range(first) and cursor.key())
            slot = slot_of(key) if key else None
            if slot is None or slot.log_id != log_id or slot.last_offset >= below:
                burst.txn.delete(U64.pack(log_id), db=burst.databases["freeing"])
                return at_most - freed
            cursor.delete()
            burst.segments.remove(slot)
    return 0


def segment_to_clean(state: WriterState) -> int | None:
    """The segment with the smallest part of live bytes, if one has few."""

    def part(segment: int) -> float:
        use = state.segments[segment]
        return use.live_bytes / use.written_bytes

    return min(state.sparse, key=part, default=None)


def move_entries(burst: Burst, journal: Journal, segment: int, at: int, at_most: int) -> int | None:
    """Move the entries in about `at_most` bytes of a segment from `at` to the end of the journal.

    Returns where to continue, or None after the last frame. A damaged entry is not moved. Raises
    OSError.
    """
    data = journal.read_pages(segment, at, at_most)
    position = 0
    while (frame := decode_frame(journal.mark, segment, at + position, data, position)) is not None:
        end = position + FRAME.size + frame.size
        if end > len(data):
            if position:
                return at + position
            data = journal.read_pages(segment, at, end)
        # Frames with table rows have none, and a segment may have hundreds of thousands of them.
        has_slot = frame.log_id != TABLES_LOG_ID
        slot = _slot_at(burst, frame.log_id, frame.base_offset) if has_slot else None
        is_live = slot is not None and (slot.segment, slot.at) == (segment, at + position)
        if slot and is_live and has_payload(frame, data, position):
            payload = data[position + FRAME.size : end]
            entry = Entry(slot.base_offset, slot.last_offset, slot.timestamp, payload)
            moved = burst.place(slot.log_id, entry, slot.running_timestamp, slot.position)
            burst.txn.delete(key_of(slot), db=burst.databases["entries"])
            burst.txn.put(key_of(moved), b"", db=burst.databases["entries"])
            burst.segments.remove(slot)
        position = end
    following = data.find(journal.mark, position + 1)
    if following >= 0:
        return at + following
    # The rest of the last frame may be beyond the data.
    following = max(len(data) - FRAME.size + 1, position, 1)
    return None if len(data) < at_most else at + following


def _slot_at(burst: Burst, log_id: int, base_offset: int) -> Slot | None:
    with burst.txn.cursor(db=burst.databases["entries"]) as cursor:
        if cursor.set_range(SLOT_PREFIX.pack(log_id, base_offset)):
            slot = slot_of(cursor.key())
            if (slot.log_id, slot.base_offset) == (log_id, base_offset):
                return slot
    return None
