"""Validates message sets of formats 0 and 1 and converts them to batches (`stores_as_v2`).

Large sets are processed on another thread. Conversion follows Kafka's LogValidator with format 2 as
the target.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import thread_time_ns
from typing import Any

from compat.message_sets import MessageSet, check_message_set, up_convert
from gateway.partitions.record_batch import BatchHeader, read_batch
from gateway.protocol.errors import ErrorCode, KafkaError, clear_frames
from records import (
    CorruptRecords,
    InvalidTimestamp,
    RecordsError,
    RecordsTooLarge,
    UnsupportedCodec,
)

#: Message sets of at least this size, also when unpacked, are processed on another thread.
LARGE_MESSAGE_SET = 64 << 10


async def validate_message_set(
    records: memoryview, limit: int, run: Callable[..., Awaitable[Any]]
) -> MessageSet:
    """Validate a message set before it is stored.

    It may unpack to `limit` bytes; `run` calls a function on another thread. Raises KafkaError.
    """
    try:
        if len(records) < LARGE_MESSAGE_SET:
            try:
                return check_message_set(
                    records, max_decompressed_bytes=min(limit, LARGE_MESSAGE_SET)
                )
            except RecordsTooLarge:
                # Small only while compressed: continue on another thread.
                pass
        checked: MessageSet = await run(_check, records, limit)
        return checked
    except RecordsError as failure:
        clear_frames(failure)
        raise _error(failure) from failure


async def convert_to_batch(
    records: memoryview, limit: int, run: Callable[..., Awaitable[Any]]
) -> tuple[memoryview, BatchHeader, int]:
    """Convert a validated, non-empty message set to one batch.

    Codec, keys, values and timestamps are kept (format 0 has no timestamps). Returns the batch, its
    header and the CPU time used, in microseconds. Arguments and errors are those of
    `validate_message_set`.
    """
    try:
        found = None
        if len(records) < LARGE_MESSAGE_SET:
            with suppress(RecordsTooLarge):
                found = _convert(records, min(limit, LARGE_MESSAGE_SET))
        if found is None:
            found = await run(_convert, records, limit)
    except RecordsError as failure:
        clear_frames(failure)
        raise _error(failure) from failure
    converted, cpu_us = found
    return memoryview(converted), read_batch(converted), cpu_us


def _check(records: memoryview, limit: int) -> MessageSet:
    return check_message_set(records, max_decompressed_bytes=limit)


def _convert(records: memoryview, limit: int) -> tuple[bytearray, int]:
    begun = thread_time_ns()
    # The partition writes the offset and leader epoch into it.
    converted = bytearray(up_convert(records, base_offset=0, max_decompressed_bytes=limit))
    return converted, (thread_time_ns() - begun) // 1000


def _error(failure: RecordsError) -> KafkaError:
    code = ErrorCode.CORRUPT_MESSAGE
    for kind, its_code in _ERRORS.items():
        if isinstance(failure, kind):
            code = its_code
    return KafkaError(code, str(failure))


#: Other failures are CORRUPT_MESSAGE: these producers are older than INVALID_RECORD.
_ERRORS: dict[type[RecordsError], ErrorCode] = {
    CorruptRecords: ErrorCode.CORRUPT_MESSAGE,
    UnsupportedCodec: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    RecordsTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
}
