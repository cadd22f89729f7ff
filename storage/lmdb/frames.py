"""Format of the journal's segments: how entries are found again after a crash. No I/O, except
`read_run`.

A segment begins with a header and has a frame for each entry, and for the table rows of a burst,
without gaps. What follows the last frame is zeros or a write that was interrupted.

- `durable_to` is the position up to which the segment was durable before the frame was written. A
  frame that says so proves that an unreadable frame before that position was damaged later.
  Otherwise an unreadable frame is a write that was interrupted, and the journal ends there.
- `mark` begins every frame, so that frames behind a damaged one are found. It is random and secret.
  The checksum of a frame's header covers its place, too. So a payload cannot contain a frame of its
  store, not even if it is a copy of a segment.
- The header of a frame and its payload have separate checksums, so that a damaged payload can be
  attributed to its partition and offset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from isal.isal_zlib import crc32

from storage.bridge import Completion
from storage.lmdb.layout import SLOT, Row, Slot, slot_of
from storage.log import Buffer, Entry, StorageError, StorageFailed
from storage.log import compiled as compiled_log

SEGMENT_HEADER = Struct(">8s8sQQII")
"""Magic, mark of the store, `SegmentHeader`, CRC-32 of all before it."""

SEGMENT_MAGIC = b"kopgate1"

FRAME = Struct(">8sIIIIIQQQq")
"""Mark, CRC-32 of the place and of what follows in the header, and `Frame`."""

START = Struct(">8sI")
FIELDS = Struct(">IIIIQQQq")
"""The two parts of it: before and in the checksum."""

PLACE = Struct(">QI")
"""What the checksum begins with: the segment and the position of the frame."""

MARK_BYTES = 8

IS_LAST = 1
"""The last entry of an append. Those of an append are stored together or not at all."""

IS_PLACED = 2
"""The frame counts only if `entries` refers to it: a replacement, or moved from another segment."""

TABLES_LOG_ID = 0
"""The log id of frames with table rows; no log has it. As offsets they have their number.

All writes of table rows are numbered, also those that have no frame: see `Burst.table_rows`.
"""

TABLE_ROW = Struct(">II")
"""Before a row in such a frame: the length of its key, and of its value or `DELETED`."""

DELETED = (1 << 32) - 1

MAX_OFFSET = (1 << 63) - 1
"""Exclusive limit of `last_offset`: the log end offset must fit in Kafka's int64."""


class SegmentHeader(NamedTuple):
    """`previous_end` is where the segment `previous` ends, all of it durable. What that has behind
    it does not belong to the journal.
    """

    number: int
    previous: int
    previous_end: int


class Frame(NamedTuple):
    """The header of a frame: an entry of `size` bytes."""

    payload_crc: int
    size: int
    durable_to: int
    flags: int
    log_id: int
    base_offset: int
    last_offset: int
    timestamp: int


def encode_segment_header(mark: bytes, header: SegmentHeader) -> bytes:
    fields = SEGMENT_HEADER.pack(SEGMENT_MAGIC, mark, *header, 0)
    return fields[:-4] + crc32(fields[:-4]).to_bytes(4, "big")


def decode_segment_header(mark: bytes, data: bytes) -> SegmentHeader | None:
    """The header of a segment; None if it is another store's, damaged, or was never written."""
    if len(data) < SEGMENT_HEADER.size:
        return None
    magic, written_by, number, previous, previous_end, crc = SEGMENT_HEADER.unpack_from(data)
    if (
        magic != SEGMENT_MAGIC
        or written_by != mark
        or crc != crc32(data[: SEGMENT_HEADER.size - 4])
    ):
        return None
    return SegmentHeader(number, previous, previous_end)


def encode_frame(mark: bytes, segment: int, at: int, frame: Frame) -> bytes:
    fields = FIELDS.pack(*frame)
    return START.pack(mark, crc32(fields, crc32(PLACE.pack(segment, at)))) + fields


def encode_table_rows(rows: Mapping[bytes, bytes | None]) -> bytes:
    """The payload of a frame with table rows; None deletes a row."""
    parts: list[bytes] = []
    for key, value in rows.items():
        size = DELETED if value is None else len(value)
        parts += TABLE_ROW.pack(len(key), size), key, value or b""
    return b"".join(parts)


def decode_table_rows(payload: bytes) -> dict[bytes, bytes | None] | None:
    """The rows in the payload of a frame; None if it is malformed in spite of its checksum."""
    rows: dict[bytes, bytes | None] = {}
    position = 0
    while position + TABLE_ROW.size <= len(payload):
        key_size, size = TABLE_ROW.unpack_from(payload, position)
        start = position + TABLE_ROW.size + key_size
        position = start if size == DELETED else start + size
        rows[payload[start - key_size : start]] = (
            None if size == DELETED else payload[start:position]
        )
    return rows if position == len(payload) else None


def encode_append(
    mark: bytes,
    segment: int,
    at: int,
    durable_to: int,
    log_id: int,
    entries: Sequence[Entry],
    running: int,
    position: int,
) -> tuple[list[Buffer], list[bytes], int, int, int]:
    """Encode the frames of an append from the position `at` on, and the rows of its entries.

    `running` and `position` are those of the log before the append, see `Slot`. Returns a list in
    which each header is followed by its payload, the rows, and the new `at`, `running` and
    `position`.
    """
    buffers: list[Buffer] = []
    rows = []
    for entry in entries:
        payload, timestamp = entry.payload, entry.max_timestamp
        size = len(payload)
        frame = Frame(
            crc32(payload),
            size,
            durable_to,
            IS_LAST if entry is entries[-1] else 0,
            log_id,
            entry.base_offset,
            entry.last_offset,
            timestamp,
        )
        buffers += encode_frame(mark, segment, at, frame), payload
        position += size
        running = max(running, timestamp)
        rows.append(
            SLOT.pack(
                log_id,
                entry.base_offset,
                entry.last_offset,
                timestamp,
                running,
                position,
                size,
                segment,
                at,
            )
        )
        at += FRAME.size + size
    return buffers, rows, at, running, position


class EncodedAppend(Protocol):
    """An append of a burst."""

    log_id: int
    entries: Sequence[Entry]
    size: int


class EndOfLog(Protocol):
    """The end of a log as changed by the burst."""

    end_offset: int
    running_timestamp: int
    position: int
    size: int


GAP = "an append before this one failed, so its offsets would leave a gap"


def encode_appends(
    mark: bytes,
    segment: int,
    at: int,
    durable_to: int,
    logs: Mapping[int, EndOfLog],
    find_log: Callable[[int], EndOfLog],
    appends: Iterable[EncodedAppend],
    buffers: list[Buffer],
    rows: list[tuple[int, list[bytes]]],
) -> tuple[int, list[tuple[Any, None, Exception | None]]]:
    """Encode the appends of a burst in order. The compiled function has the same name.

    The frames are added to `buffers`; for each append its log id and rows are added to `rows`, and
    its log in `logs` is changed. `find_log` returns a log that `logs` does not have, or raises
    StorageError. Returns the new `at`, and for each append itself, None, and the reason if it was
    refused.
    """
    outcomes: list[tuple[Any, None, Exception | None]] = []
    for append in appends:
        refusal = None
        try:
            log_id, entries = append.log_id, append.entries
            log = logs.get(log_id) or find_log(log_id)
            if entries[0].base_offset != log.end_offset:
                raise StorageFailed(GAP)
            frames, keys, at, log.running_timestamp, log.position = encode_append(
                mark,
                segment,
                at,
                durable_to,
                log_id,
                entries,
                log.running_timestamp,
                log.position,
            )
            buffers += frames
            rows.append((log_id, keys))
            log.end_offset = entries[-1].last_offset + 1
            log.size += append.size
        except StorageError as error:
            # Its traceback would refer to this frame, and so to `outcomes`.
            refusal = error.with_traceback(None)
        outcomes.append((append, None, refusal))
    return at, outcomes


def decode_frame(
    mark: bytes, segment: int, at: int, data: Buffer, position: int = 0
) -> Frame | None:
    """The header of the frame at `position` of `data`, which is at `at` of the segment.

    None if there is none, or it is damaged.
    """
    if len(data) - position < FRAME.size:
        return None
    found, crc, *fields = FRAME.unpack_from(data, position)
    if found != mark or crc != crc32(
        memoryview(data)[position + START.size : position + FRAME.size],
        crc32(PLACE.pack(segment, at)),
    ):
        return None
    return Frame._make(fields)


def has_payload(frame: Frame, data: Buffer, position: int) -> bool:
    """Whether the payload of the frame at `position` is complete and undamaged."""
    start = position + FRAME.size
    payload = memoryview(data)[start : start + frame.size]
    return len(payload) == frame.size and crc32(payload) == frame.payload_crc


class FrameAt(NamedTuple):
    """A frame and its position; `is_intact` is whether its payload is undamaged."""

    frame: Frame
    position: int
    is_intact: bool

    @property
    def end(self) -> int:
        return self.position + FRAME.size + self.frame.size


class Damage(NamedTuple):
    """Bytes that were durable and cannot be read."""

    position: int
    end: int


class Parsed(NamedTuple):
    """The contents of a segment: frames and damage in order, and the end."""

    found: list[FrameAt | Damage]
    end: int


def parse(mark: bytes, segment: int, data: Buffer, position: int, durable_to: int = 0) -> Parsed:
    """The frames of a segment, whose contents are `data`, from `position`.

    `durable_to` is a position up to which the segment is known to have been durable.
    """
    found: list[FrameAt | Damage] = []
    is_searched = False
    while True:
        following = _frame_at(mark, segment, data, position)
        if following is None or not following.is_intact:
            if not is_searched:
                is_searched = True
                for later in search(mark, segment, data, position):
                    durable_to = max(durable_to, later.frame.durable_to)
            if position >= durable_to:
                return Parsed(found, position)
        if following is None:
            following = next(search(mark, segment, data, position + 1), None)
            if following is None or following.position >= durable_to:
                found.append(Damage(position, durable_to))
                position = durable_to
                continue
            found.append(Damage(position, following.position))
        found.append(following)
        position = following.end


def _frame_at(mark: bytes, segment: int, data: Buffer, position: int) -> FrameAt | None:
    frame = decode_frame(mark, segment, position, data, position)
    if frame is None or not frame.base_offset <= frame.last_offset < MAX_OFFSET:
        return None
    return FrameAt(frame, position, has_payload(frame, data, position))


def search(mark: bytes, segment: int, data: Buffer, position: int) -> Iterator[FrameAt]:
    """All frames from `position`, wherever they begin."""
    whole = data if isinstance(data, bytes | bytearray) else bytes(data)
    while (position := whole.find(mark, position)) >= 0:
        found = _frame_at(mark, segment, data, position)
        if found is None:
            position += 1
        else:
            yield found
            position = found.end if found.is_intact else position + 1


def adjacent(
    rows: list[Row], first: int, largest_gap: int, largest_read: int
) -> tuple[int, int, int, int]:
    """Find the rows whose frames follow closely enough to be read together with that of
    `rows[first]`.

    There are at most `largest_gap` bytes between two of the frames. Returns the index of the first
    row that is not one of them, and what is read: segment, position, and length.
    """
    row = rows[first]
    assert isinstance(row, bytes)
    if len(row) != SLOT.size:
        raise ValueError(f"the row of a frame has {SLOT.size} bytes")
    *_, size, segment, start = SLOT.unpack(row)
    end = start + FRAME.size + size
    for number in range(first + 1, len(rows)):
        row = rows[number]
        if not isinstance(row, bytes):
            return number, segment, start, end - start
        slot = slot_of(row)
        if (
            slot.segment != segment
            or not 0 <= slot.at - end <= largest_gap
            or slot.at + slot.size - start > largest_read
        ):
            return number, segment, start, end - start
        end = slot.at + FRAME.size + slot.size
    return len(rows), segment, start, end - start


def read_frames(mark: bytes, at: int, data: bytes, rows: list[bytes]) -> list[Entry]:
    """The entries of `rows`, up to the first that is damaged or not where its row says.

    `data` is at the position `at` of their segment. Payloads are views of it unless that would keep
    more than 8/7 of their size in memory.
    """
    found = []
    for row in rows:
        slot = Slot._make(SLOT.unpack(row))
        start = slot.at - at
        frame = decode_frame(mark, slot.segment, slot.at, data, start) if start >= 0 else None
        if (
            frame is None
            or (frame.log_id, frame.base_offset, frame.last_offset, frame.size)
            != (slot.log_id, slot.base_offset, slot.last_offset, slot.size)
            or not has_payload(frame, data, start)
        ):
            break
        found.append(slot)
    are_copied = sum(slot.size for slot in found) * 8 < len(data) * 7
    whole = memoryview(data)
    entries = []
    for slot in found:
        start = slot.at - at + FRAME.size
        payload = whole[start : start + slot.size]
        entries.append(
            Entry(
                slot.base_offset,
                slot.last_offset,
                slot.timestamp,
                bytes(payload) if are_copied else payload,
            )
        )
    return entries


READ_CACHED: int | None = getattr(os, "RWF_NOWAIT", None)
"""The flag of Linux for reads of what the page cache has."""


RUN_GAP = 2048
"""Longer gaps between the frames of a run are not read: another system call costs less."""


def select_run(
    rows: bytes,
    offset: int,
    end: int,
    max_bytes: int,
    most_bytes: int,
    most_gaps: int,
    most: int,
) -> tuple[int, int, int, int, int, int] | None:
    """Select what `PartitionLog.read` returns, up to `end`, from consecutive rows of a log.

    `rows` are those of frames, joined. At most `most` are selected, with at most `most_gaps` bytes
    between their frames, at least one; a gap that is not read counts as `RUN_GAP` bytes. Returns
    the index of the first one, the index behind the last one, their segment, the first and last
    offset, and the size of the payloads. None if they are in several segments or have more than
    `most_bytes`, or if more rows are needed.
    """
    count = len(rows) // SLOT.size
    slots = [_joined_slot(rows, number) for number in range(count)]
    first = next((n for n, slot in enumerate(slots) if slot.last_offset >= offset), count)
    if first == count or slots[first].base_offset >= end:
        return None
    size, gaps, number, behind = 0, 0, first, slots[first].at
    while number < count and number - first < most:
        slot = slots[number]
        if slot.base_offset >= end or (number > first and size + slot.size > max_bytes):
            break
        if slot.segment != slots[first].segment or size + slot.size > most_bytes:
            return None
        gap = slot.at - behind
        gaps += gap if 0 <= gap <= RUN_GAP else RUN_GAP
        if gaps > most_gaps:
            break
        behind = slot.at + FRAME.size + slot.size
        size += slot.size
        number += 1
    last_offset = slots[number - 1].last_offset
    if number == count and last_offset + 1 < end:
        return None
    return first, number, slots[first].segment, slots[first].base_offset, last_offset, size


def _joined_slot(rows: bytes, number: int) -> Slot:
    return slot_of(rows[number * SLOT.size : (number + 1) * SLOT.size])


def read_run(descriptor: int, mark: bytes, rows: bytes, first: int, stop: int) -> bytes | None:
    """Read the payloads of some of the joined rows from a segment, without waiting for the medium.

    They are in the segment that is open as `descriptor`. Returns them joined; None if they are not
    all in the page cache, or one is damaged or not where its row says.
    """
    if READ_CACHED is None:
        return None
    payloads = []
    for number in range(first, stop):
        row = rows[number * SLOT.size : (number + 1) * SLOT.size]
        slot = slot_of(row)
        frame = bytearray(FRAME.size + slot.size)
        try:
            if os.preadv(descriptor, [frame], slot.at, READ_CACHED) < len(frame):
                return None
        except OSError:
            return None
        if not read_frames(mark, slot.at, bytes(frame), [row]):
            return None
        payloads.append(frame[FRAME.size :])
    return b"".join(payloads)


def entries_of(rows: bytes, first: int, stop: int, payloads: bytes) -> list[Entry]:
    """The entries of what `read_run` has returned; their payloads are views of it."""
    whole, at = memoryview(payloads), 0
    entries = []
    for number in range(first, stop):
        slot = _joined_slot(rows, number)
        payload = whole[at : at + slot.size]
        at += slot.size
        entries.append(Entry(slot.base_offset, slot.last_offset, slot.timestamp, payload))
    return entries


_INTERFACE = 14
"""Expected INTERFACE of the compiled module; incremented when one of its functions changes."""

compiled: Any = None
"""The module with the same functions compiled, if it is available."""

if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import storage.lmdb._frames as _frames
    except ImportError:
        pass
    else:
        # All modules for an append are compiled, or none.
        if (
            _frames.INTERFACE == _INTERFACE
            and issubclass(_frames.Append, Completion)
            and compiled_log is not None
        ):
            compiled = _frames

# Bases of the classes whose state compiled code uses: they have the attributes in C fields.
if TYPE_CHECKING or compiled is None:

    class JournalState: ...

    class LogState: ...

    class PendingState: ...

    class SegmentState: ...

    class StoreState: ...

else:
    JournalState, LogState = compiled.JournalState, compiled.LogState
    PendingState = compiled.PendingState
    SegmentState, StoreState = compiled.SegmentState, compiled.StoreState

# The compiled functions, or those above, which are the reference.
append_frames: Callable[..., tuple[int, list[tuple[Any, None, Exception | None]]]] = (
    compiled.encode_appends if compiled else encode_appends
)
find_adjacent: Callable[..., tuple[int, int, int, int]] = (
    compiled.adjacent if compiled else adjacent
)
entries_in: Callable[..., list[Entry]] = compiled.read_frames if compiled else read_frames
find_run: Callable[..., tuple[int, int, int, int, int, int] | None] = (
    compiled.select_run if compiled else select_run
)
read_cached: Callable[..., bytes | None] = compiled.read_run if compiled else read_run
cached_entries: Callable[..., list[Entry]] = compiled.entries_of if compiled else entries_of
