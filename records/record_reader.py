"""Reading the records of a batch: all of them, or the first from a timestamp on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from records import codecs
from records.batch import HEADER_BYTES, BatchHeader, read_batch
from records.codecs import MAX_DECOMPRESSED_BYTES
from records.iteration import BatchRecord, iterate_records, read_sized
from records.layout import CREATE_TIME, LOG_APPEND_TIME, Buffer, peek_magic


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
    """Yield every record of a batch, including the markers of a control batch.

    Raises CorruptRecords, UnsupportedCodec and RecordsTooLarge while iterating.
    """
    batch = read_batch(payload)
    content = read_content(payload, batch, max_decompressed_bytes)
    timestamp_type = CREATE_TIME if batch.append_time is None else LOG_APPEND_TIME
    for found in _iterate(content, batch):
        key = field_at(content, found.key_at, found.key_size)
        value = field_at(content, found.value_at, found.value_size)
        yield DecodedRecord(
            found.offset, found.timestamp, key, value, _headers(content, found), timestamp_type
        )


def first_at_or_after(
    payload: Buffer, timestamp: int, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with at least this timestamp (ms), or None.

    Raises CorruptRecords, UnsupportedCodec and RecordsTooLarge.
    """
    batch = read_batch(payload)
    for found in _iterate(read_content(payload, batch, max_decompressed_bytes), batch):
        if found.timestamp >= timestamp:
            return found.offset, found.timestamp
    return None


def cut(payload: Buffer, offset: int, max_bytes: int) -> memoryview:
    """Return a batch whole, or empty if all its records are before `offset`.

    `max_bytes` does not split a batch. Message sets are returned whole. Raises CorruptRecords.
    """
    view = memoryview(payload)
    if not len(view) or peek_magic(view) in (0, 1):
        return view
    batch = read_batch(view)
    # A batch converted from a message set ends with its last message, even if compaction removed
    # the offsets after it.
    return view if offset <= batch.base_offset + batch.last_offset_delta else view[:0]


def read_content(payload: Buffer, batch: BatchHeader, limit: int) -> Buffer:
    """The batch's records, decompressed."""
    content = memoryview(payload)[HEADER_BYTES:]
    return codecs.decompress(batch.codec, content, limit) if batch.codec else content


def field_at(content: Buffer, at: int, size: int) -> bytes | None:
    """A key or value; None if `size` is negative."""
    return None if size < 0 else bytes(content[at : at + size])


def _iterate(content: Buffer, batch: BatchHeader) -> Iterator[BatchRecord]:
    return iterate_records(
        content,
        batch.count,
        batch.base_offset,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.append_time,
    )


def _headers(content: Buffer, record: BatchRecord) -> tuple[tuple[bytes, bytes | None], ...]:
    """The headers of a verified record."""
    headers: list[tuple[bytes, bytes | None]] = []
    position = record.headers_at
    for _ in range(record.header_count):
        at, size = read_sized(content, position, len(content), 0)
        name = bytes(content[at : at + size])
        at, value_size = read_sized(content, at + size, len(content), 0)
        headers.append((name, field_at(content, at, value_size)))
        position = at + max(value_size, 0)
    return tuple(headers)
