"""Reading stored units of any format: by record, from an offset, or from a timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compat.message_sets.wrappers import DecompressionBudget, Wrapper, segments
from records import codecs, kernel
from records.codecs import MAX_DECOMPRESSED_BYTES
from records.iteration import BatchRecord, iterate_messages, iterate_records, read_sized
from records.layout import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    magic_of,
    read_batch,
)  # fmt: skip

NO_TIMESTAMP_TYPE = -1


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """One record.

    `timestamp` is in ms, -1 if there is none. `timestamp_type` is 0 (CreateTime), 1 (LogAppendTime)
    or -1 (magic 0). Header names are bytes, because producers need not write UTF-8.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = field(default=())
    timestamp_type: int = CREATE_TIME


def read_records(
    payload: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[DecodedRecord]:
    """Yield every record of a stored unit in offset order, including the markers of a control
    batch.

    Raises CorruptRecords, InvalidRecords, UnsupportedCodec and RecordsTooLarge while iterating.
    """
    if magic_of(payload) == 2:
        batch = read_batch(payload)
        content = _content(payload, batch, max_decompressed_bytes)
        timestamp_type = CREATE_TIME if batch.append_time is None else LOG_APPEND_TIME
        for found in _walk(content, batch):
            key = _part(content, found.key_at, found.key_size)
            value = _part(content, found.value_at, found.value_size)
            yield DecodedRecord(
                found.offset, found.timestamp, key, value, _headers(content, found), timestamp_type
            )
    else:
        yield from _records_of_messages(payload, max_decompressed_bytes)


def first_at_or_after(
    payload: Buffer, timestamp: int, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with at least this timestamp (ms), or None.

    Raises like `read_records`.
    """
    if magic_of(payload) == 2:
        batch = read_batch(payload)
        content = _content(payload, batch, max_decompressed_bytes)
        for found in _walk(content, batch):
            if found.timestamp >= timestamp:
                return found.offset, found.timestamp
        return None
    for record in _records_of_messages(payload, max_decompressed_bytes):
        if record.timestamp_type != NO_TIMESTAMP_TYPE and record.timestamp >= timestamp:
            return record.offset, record.timestamp
    return None


def cut(payload: Buffer, offset: int, max_bytes: int) -> memoryview:
    """Return the part of a unit that answers a fetch: whole messages from the one that contains
    `offset`.

    As many as fit in `max_bytes`, but at least one; empty if all are before `offset`. A magic-2
    batch is returned whole or not at all. Raises CorruptRecords and InvalidRecords.
    """
    view = memoryview(payload)
    if not len(view):
        return view
    if magic_of(view) == 2:
        batch = read_batch(view)
        # A batch converted from a message set ends with its last message, even if compaction
        # removed the offsets after it.
        return view if offset <= batch.base_offset + batch.last_offset_delta else view[:0]
    start, end = kernel.cut(view, offset, max_bytes)
    return view[start:end]


def _records_of_messages(payload: Buffer, limit: int) -> Iterator[DecodedRecord]:
    view = memoryview(payload)
    for segment in segments(payload, DecompressionBudget(limit)):
        wrapper = segment if isinstance(segment, Wrapper) else None
        messages: Buffer = view[segment] if isinstance(segment, slice) else segment.inner
        shift = wrapper.shift if wrapper else 0
        append_time = wrapper.append_time if wrapper else None
        for message in iterate_messages(messages, -1, is_inner=True):
            if message.magic == 0:
                timestamp, timestamp_type = NO_TIMESTAMP, NO_TIMESTAMP_TYPE
            elif append_time is not None:
                timestamp, timestamp_type = append_time, LOG_APPEND_TIME
            else:
                is_append_time = wrapper is None and message.attributes & APPEND_TIME_BIT
                timestamp, timestamp_type = (
                    message.timestamp,
                    LOG_APPEND_TIME if is_append_time else CREATE_TIME,
                )
            key = _part(messages, message.key_at, message.key_size)
            value = _part(messages, message.value_at, message.value_size)
            yield DecodedRecord(message.offset + shift, timestamp, key, value, (), timestamp_type)


def _content(payload: Buffer, batch: BatchHeader, limit: int) -> Buffer:
    """The batch's records, decompressed."""
    content = memoryview(payload)[BATCH_OVERHEAD:]
    return codecs.decompress(batch.codec, content, limit) if batch.codec else content


def _walk(content: Buffer, batch: BatchHeader) -> Iterator[BatchRecord]:
    return iterate_records(
        content,
        batch.records,
        batch.base_offset,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.append_time,
    )


def _part(content: Buffer, at: int, size: int) -> bytes | None:
    return None if size < 0 else bytes(content[at : at + size])


def _headers(content: Buffer, record: BatchRecord) -> tuple[tuple[bytes, bytes | None], ...]:
    """The headers of a verified record."""
    headers: list[tuple[bytes, bytes | None]] = []
    position = record.headers_at
    for _ in range(record.header_count):
        at, size = read_sized(content, position, len(content), 0)
        name = bytes(content[at : at + size])
        at, value_size = read_sized(content, at + size, len(content), 0)
        headers.append((name, _part(content, at, value_size)))
        position = at + max(value_size, 0)
    return tuple(headers)
