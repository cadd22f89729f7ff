"""Iterates over the records of a set and verifies each one; every length is checked before use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from isal.isal_zlib import crc32

from records.errors import Fault, error_of
from records.layout import (
    CODEC_MASK,
    CRC_FROM,
    KEY_AT,
    LENGTH,
    LOG_OVERHEAD,
    MAX_INT64,
    MESSAGE_HEADER,
    MIN_INT64,
    NO_TIMESTAMP,
    OFFSET,
    SMALLEST,
    SMALLEST_RECORD,
    TIMESTAMP_AT,
    Buffer,
    Codec,
)  # fmt: skip

_MAX_VARINT = (1 << 32) - 1
_MAX_VARLONG = (1 << 64) - 1


class Message(NamedTuple):
    """Positions of a verified message and its parts. A null key or value has size -1."""

    start: int
    end: int
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int


def iterate_messages(messages: Buffer, magic: int, *, is_inner: bool) -> Iterator[Message]:
    """Verify and yield the messages of a set. `magic` -1 expects that of the first. Faults as in
    `scan`.
    """
    view = memoryview(messages)
    start = 0
    while start < len(view):
        if len(view) - start < LOG_OVERHEAD + SMALLEST[0]:
            raise error_of(Fault.TRUNCATED, start)
        offset, size, crc, found, attributes = MESSAGE_HEADER.unpack_from(view, start)
        if size < SMALLEST[0]:
            raise error_of(Fault.SIZE, start)
        if found > 1:
            raise error_of(Fault.MAGIC, start)
        if found != magic and magic >= 0:
            raise error_of(Fault.MIXED, start)
        magic = found
        if size < SMALLEST[magic]:
            raise error_of(Fault.SIZE, start)
        end = start + LOG_OVERHEAD + size
        if end > len(view):
            raise error_of(Fault.TRUNCATED, start)
        if crc32(view[start + CRC_FROM : end]) != crc:
            raise error_of(Fault.CHECKSUM, start)
        key_at, key_size = _field(view, start + KEY_AT[magic], end - LENGTH.size, start)
        value_at, value_size = _field(view, key_at + max(key_size, 0), end, start)
        if value_at + max(value_size, 0) != end:
            raise error_of(Fault.FIELDS, start)
        if attributes & CODEC_MASK > Codec.LZ4:
            raise error_of(Fault.CODEC, start)
        if is_inner and attributes & CODEC_MASK:
            raise error_of(Fault.NESTED, start)
        timestamp = OFFSET.unpack_from(view, start + TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
        yield Message(
            start, end, offset, magic, attributes, timestamp, key_at, key_size, value_at, value_size
        )
        start = end


def _field(view: memoryview, at: int, end: int, start: int) -> tuple[int, int]:
    """Return (position, size; -1 is null) of a field with a 4-byte length at `at`, which must end
    by `end`.
    """
    (size,) = LENGTH.unpack_from(view, at)
    at += LENGTH.size
    if size < -1 or max(size, 0) > end - at:
        raise error_of(Fault.FIELDS, start)
    return at, size


class BatchRecord(NamedTuple):
    """Positions of a verified magic-2 record and its parts. A null key or value has size -1."""

    start: int
    end: int
    offset: int
    timestamp: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int
    header_count: int
    headers_at: int


def iterate_records(
    records: Buffer,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    append_time: int | None,
) -> Iterator[BatchRecord]:
    """Verify and yield the records of an uncompressed magic-2 batch.

    There must be exactly `count` records that fill `records`, with ascending offsets. Raises
    CorruptRecords.
    """
    if count * SMALLEST_RECORD > len(records):
        raise error_of(Fault.COUNT, 0)
    position = 0
    previous = -1
    for _ in range(count):
        start = position
        if start == len(records):
            raise error_of(Fault.COUNT, start)
        size, position = _varint(records, position, len(records), start, fault=Fault.TRUNCATED)
        if size < SMALLEST_RECORD - 1:
            raise error_of(Fault.SIZE, start)
        if size > len(records) - position:
            raise error_of(Fault.TRUNCATED, start)
        end = position + size
        time_delta, position = _varlong(records, position + 1, end, start)
        timestamp = base_timestamp + time_delta if append_time is None else append_time
        if not MIN_INT64 <= timestamp <= MAX_INT64:
            raise error_of(Fault.TIMESTAMP, start)
        delta, position = _varint(records, position, end, start)
        if not previous < delta <= last_delta:
            raise error_of(Fault.OFFSET, start)
        previous = delta
        key_at, key_size = read_sized(records, position, end, start)
        value_at, value_size = read_sized(records, key_at + max(key_size, 0), end, start)
        header_count, position = _varint(records, value_at + max(value_size, 0), end, start)
        headers_at = position
        if header_count < 0:
            raise error_of(Fault.FIELDS, start)
        for _ in range(header_count):
            name_at, name_size = read_sized(records, position, end, start)
            if name_size < 0:
                raise error_of(Fault.FIELDS, start)
            at, value = read_sized(records, name_at + name_size, end, start)
            position = at + max(value, 0)
        if position != end:
            raise error_of(Fault.FIELDS, start)
        yield BatchRecord(
            start,
            end,
            base_offset + delta,
            timestamp,
            key_at,
            key_size,
            value_at,
            value_size,
            header_count,
            headers_at,
        )
    if position != len(records):
        raise error_of(Fault.COUNT, position)


def read_sized(records: Buffer, position: int, end: int, start: int) -> tuple[int, int]:
    """Return (position, size; -1 is null) of a field with a varint length, which must end by
    `end`.
    """
    size, position = _varint(records, position, end, start)
    if size < -1 or max(size, 0) > end - position:
        raise error_of(Fault.FIELDS, start)
    return position, size


def _varint(
    records: Buffer, position: int, end: int, start: int, *, fault: Fault = Fault.FIELDS
) -> tuple[int, int]:
    """Return (zigzag varint of at most 32 bits, its end)."""
    raw = shift = 0
    for at in range(position, min(position + 5, end)):
        byte = records[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw > _MAX_VARINT:
                break
            return raw >> 1 ^ -(raw & 1), at + 1
        shift += 7
    raise error_of(fault, start)


def _varlong(records: Buffer, position: int, end: int, start: int) -> tuple[int, int]:
    """Return (zigzag varint of at most 64 bits, its end)."""
    raw = shift = 0
    for at in range(position, min(position + 10, end)):
        byte = records[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw > _MAX_VARLONG:
                break
            return raw >> 1 ^ -(raw & 1), at + 1
        shift += 7
    raise error_of(Fault.FIELDS, start)
