"""Reading stored units of any format: by record, from an offset, or from a timestamp.

Batches are passed to the functions of the same names in `records`.
"""

from __future__ import annotations

from collections.abc import Iterator

import records
from compat.message_sets.wrappers import DecompressionBudget, Wrapper, segments
from records import MAX_DECOMPRESSED_BYTES, DecodedRecord, kernel
from records.iteration import iterate_messages
from records.layout import (
    APPEND_TIME_BIT,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    Buffer,
    magic_of,
)  # fmt: skip
from records.record_reader import field_at

NO_TIMESTAMP_TYPE = -1


def read_records(
    payload: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[DecodedRecord]:
    """Yield every record of a stored unit in offset order, including the markers of a control
    batch.

    Raises CorruptRecords, InvalidRecords, UnsupportedCodec and RecordsTooLarge, also while
    iterating.
    """
    if magic_of(payload) == 2:
        return records.read_records(payload, max_decompressed_bytes=max_decompressed_bytes)
    return _records_of_messages(payload, max_decompressed_bytes)


def first_at_or_after(
    payload: Buffer, timestamp: int, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with at least this timestamp (ms), or None.

    Raises CorruptRecords, InvalidRecords, UnsupportedCodec and RecordsTooLarge.
    """
    if magic_of(payload) == 2:
        return records.first_at_or_after(
            payload, timestamp, max_decompressed_bytes=max_decompressed_bytes
        )
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
    if not len(view) or magic_of(view) == 2:
        return records.cut(view, offset, max_bytes)
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
            key = field_at(messages, message.key_at, message.key_size)
            value = field_at(messages, message.value_at, message.value_size)
            yield DecodedRecord(message.offset + shift, timestamp, key, value, (), timestamp_type)
