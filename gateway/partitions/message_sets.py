"""Message sets of formats 0 and 1 as they come from producers: checked, and converted to a batch for topics that need it
(`TopicConfig.stores_as_v2`).

What is large is worked on by another thread. The rules of the turning are those of Kafka's LogValidator with format 2 as its target.
"""

from __future__ import annotations

from contextlib import suppress
from time import thread_time_ns

from compat.records import (
    CorruptRecords,
    InvalidTimestamp,
    MessageSet,
    RecordsError,
    RecordsTooLarge,
    UnsupportedCodec,
    check_message_set,
    up_convert,
)
from gateway.partitions.record_batch import BatchHeader, read_batch
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, clear_frames

#: From this size on, or if they unpack to more than this, old message sets are worked on by another thread.
LARGE_MESSAGE_SET = 64 << 10


async def validate_message_set(records: memoryview, caller: Caller) -> MessageSet:
    """What there is to know of a set before it is stored. Raises KafkaError."""
    limit = caller.broker.settings.max_decompressed_bytes
    try:
        if len(records) < LARGE_MESSAGE_SET:
            try:
                return check_message_set(
                    records, max_decompressed_bytes=min(limit, LARGE_MESSAGE_SET)
                )
            except RecordsTooLarge:
                # Small only while it is packed.
                pass
        checked: MessageSet = await caller.run(_check, records, limit)
        return checked
    except RecordsError as failure:
        clear_frames(failure)
        raise _error(failure) from failure


async def convert_to_batch(
    records: memoryview, caller: Caller
) -> tuple[memoryview, BatchHeader, int]:
    """A checked set that is not empty, in one batch: its codec, keys, values and timestamps (none from format 0) stay. With the CPU time that it took, in
    microseconds. Raises KafkaError."""
    limit = caller.broker.settings.max_decompressed_bytes
    try:
        found = None
        if len(records) < LARGE_MESSAGE_SET:
            with suppress(RecordsTooLarge):
                found = _convert(records, min(limit, LARGE_MESSAGE_SET))
        if found is None:
            found = await caller.run(_convert, records, limit)
    except RecordsError as failure:
        clear_frames(failure)
        raise _error(failure) from failure
    converted, cpu_us = found
    return memoryview(converted), read_batch(converted), cpu_us


def _check(records: memoryview, limit: int) -> MessageSet:
    return check_message_set(records, max_decompressed_bytes=limit)


def _convert(records: memoryview, limit: int) -> tuple[bytearray, int]:
    begun = thread_time_ns()
    # The partition writes its offset and epoch into it.
    converted = bytearray(up_convert(records, base_offset=0, max_decompressed_bytes=limit))
    return converted, (thread_time_ns() - begun) // 1000


def _error(failure: RecordsError) -> KafkaError:
    code = ErrorCode.CORRUPT_MESSAGE
    for kind, its_code in _ERRORS.items():
        if isinstance(failure, kind):
            code = its_code
    return KafkaError(code, str(failure))


#: Anything else is a corrupt message, too: INVALID_RECORD is younger than these producers.
_ERRORS: dict[type[RecordsError], ErrorCode] = {
    CorruptRecords: ErrorCode.CORRUPT_MESSAGE,
    UnsupportedCodec: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    RecordsTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
}
