"""Format of the journal's segments: how entries are found again after a crash. No I/O.

A segment begins with a header and has a frame for each entry, without gaps. What follows the last
frame is not erased: zeros, parts of writes that failed, or frames of an earlier use of the file.

- `burst` numbers the writes and never decreases along the journal. A failed write also uses a
  number, so what it left has a lower one than the frame before it. `first_burst` of the segment
  tells frames of an earlier use.
- `durable_to` is the position up to which the segment was durable before the frame was written. A
  frame that says so proves that an unreadable frame before that position was damaged later.
  Otherwise an unreadable frame is a write that was interrupted, and the journal ends there.
- `mark` begins every frame, so that frames behind a damaged one are found. It is random and secret:
  a payload cannot contain a frame of its store.
- The header of a frame and its payload have separate checksums, so that a damaged payload can be
  attributed to its partition and offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from isal.isal_zlib import crc32

from storage.log import Buffer

SEGMENT_HEADER = Struct(">8s8sQQII")
"""Magic, mark of the store, `SegmentHeader`, CRC-32 of all before it."""

SEGMENT_MAGIC = b"kopgate1"

FRAME = Struct(">8sIIIQIIQQQq")
"""Mark, CRC-32 of what follows in the header, and `Frame`."""

START = Struct(">8sI")
FIELDS = Struct(">IIQIIQQQq")
"""The two parts of it: before and in the checksum."""

MARK_BYTES = 8

IS_LAST = 1
"""The last entry of an append. Those of an append are stored together or not at all."""

IS_PLACED = 2
"""The frame counts only if `entries` refers to it: a replacement, or moved from another segment."""


class SegmentHeader(NamedTuple):
    """`previous_end` is where the previous segment ends, all of it durable."""

    number: int
    first_burst: int
    previous_end: int


class Frame(NamedTuple):
    """The header of a frame: an entry of `size` bytes."""

    payload_crc: int
    size: int
    burst: int
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
    """The header of a segment; None if it is another store's or was never written."""
    if len(data) < SEGMENT_HEADER.size:
        return None
    magic, written_by, number, first_burst, previous_end, crc = SEGMENT_HEADER.unpack_from(data)
    if (
        magic != SEGMENT_MAGIC
        or written_by != mark
        or crc != crc32(data[: SEGMENT_HEADER.size - 4])
    ):
        return None
    return SegmentHeader(number, first_burst, previous_end)


def encode_frame(mark: bytes, frame: Frame) -> bytes:
    fields = FIELDS.pack(*frame)
    return START.pack(mark, crc32(fields)) + fields


def decode_frame(mark: bytes, data: Buffer, position: int = 0) -> Frame | None:
    """The header of the frame at `position`; None if there is none, or it is damaged."""
    if len(data) - position < FRAME.size:
        return None
    found, crc, *fields = FRAME.unpack_from(data, position)
    if found != mark or crc != crc32(
        memoryview(data)[position + START.size : position + FRAME.size]
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
    """The contents of a segment: frames and damage in order, the end, and the greatest number of a
    burst in the segment, also behind the end.
    """

    found: list[FrameAt | Damage]
    end: int
    last_burst: int
    greatest_burst: int


def parse(mark: bytes, data: Buffer, position: int, burst: int, durable_to: int = 0) -> Parsed:
    """The frames of a segment `data` from `position`, with at least the number `burst`.

    `durable_to` is a position up to which the segment is known to have been durable.
    """
    found: list[FrameAt | Damage] = []
    greatest = burst
    is_searched = False
    while True:
        following = _frame_at(mark, data, position, burst)
        if following is None or not following.is_intact:
            if not is_searched:
                is_searched = True
                for later in _search(mark, data, position, burst):
                    durable_to = max(durable_to, later.frame.durable_to)
                    greatest = max(greatest, later.frame.burst)
            if position >= min(durable_to, len(data)):
                return Parsed(found, position, burst, greatest)
        if following is None:
            following = next(_search(mark, data, position + 1, burst), None)
            if following is None or following.position >= durable_to:
                end = min(durable_to, len(data))
                following = _frame_at(mark, data, end, burst)
                found.append(Damage(position, end))
                if following is None:
                    return Parsed(found, end, burst, greatest)
                position = end
                continue
            found.append(Damage(position, following.position))
        found.append(following)
        burst = following.frame.burst
        greatest = max(greatest, burst)
        position = following.end


def _frame_at(mark: bytes, data: Buffer, position: int, burst: int) -> FrameAt | None:
    frame = decode_frame(mark, data, position)
    if frame is None or frame.burst < burst:
        return None
    return FrameAt(frame, position, has_payload(frame, data, position))


def _search(mark: bytes, data: Buffer, position: int, burst: int) -> Iterator[FrameAt]:
    """All frames from `position`, wherever they begin, with at least the number `burst`."""
    whole = data if isinstance(data, bytes | bytearray) else bytes(data)
    while (position := whole.find(mark, position)) >= 0:
        found = _frame_at(mark, data, position, burst)
        if found is None:
            position += 1
        else:
            yield found
            position = found.end if found.is_intact else position + 1
