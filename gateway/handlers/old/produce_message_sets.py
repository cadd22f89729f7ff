"""Produce v0 to v2: validates message sets of formats 0 and 1 and converts them to batches.

They are converted if the topic stores only batches (`stores_as_v2`). Large sets are processed on
another thread. Conversion follows Kafka's LogValidator with format 2 as the target.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from time import thread_time_ns
from typing import Any

from compat.message_sets import MessageSet, check_message_set, up_convert
from gateway.handlers.produce import (
    LARGE_RECORDS_BYTES,
    Prepared,
    append_records,
    check_size,
    missing_key_message,
)
from gateway.handlers.produce_partitions import (
    finish_earlier,
    open_partition,
    reserved_topic_error,
)
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, clear_frames
from gateway.protocol.routes import DelayedReply, serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.produce_codec import PartitionRecords, ProduceRequest, ProduceResponse
from gateway.topics.topic_names import RESERVED_TOPICS
from records import (
    BatchHeader,
    CorruptRecords,
    InvalidTimestamp,
    RecordsError,
    RecordsTooLarge,
    UnsupportedCodec,
    read_header,
)


@serves(ApiKey.PRODUCE, 0, 2)
def produce_message_sets(
    request: ProduceRequest, caller: Caller
) -> Coroutine[Any, Any, DelayedReply[ProduceResponse | None] | ProduceResponse | None]:
    """Kafka 0.8 to 0.10, Sarama, kafka-node: v1 adds the throttle time, v2 timestamps (KIP-32)."""
    return append_records(request, caller, _prepare)


async def _prepare(
    topic: str | bytes,
    sent: PartitionRecords,
    caller: Caller,
    _: int,
    named: Iterator[tuple[str | bytes, int]],
) -> Prepared:
    """Open the partition, validate the records and convert them if necessary."""
    try:
        partition = caller.broker.topics.get_open_partition(
            topic, sent.index
        ) or await open_partition(topic, sent.index, caller, named)
        if partition.topic in RESERVED_TOPICS:
            raise reserved_topic_error(partition.topic)
        if sent.records is None:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, "the request has no records for this partition"
            )
        await finish_earlier(partition, caller)
        limit = caller.broker.settings.max_decompressed_bytes
        checked = await _validate(sent.records, limit, caller.run)
        check_size(checked.largest, partition)
        if partition.config.compacts and checked.has_null_key:
            # Kafka before 2.4 answered CORRUPT_MESSAGE. These producers predate INVALID_RECORD and
            # record errors.
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, missing_key_message(partition))
        if not (partition.config.stores_as_v2(checked.magic) and checked.count):
            return partition, sent.records, checked, ""
        records, batch, cpu_us = await _convert_to_batch(sent.records, limit, caller.run)
        caller.traffic.converted(
            ApiKey.PRODUCE,
            caller.api_version,
            topic,
            batches=1,
            records=batch.count,
            size=len(sent.records),
        )
        caller.traffic.conversion_cpu_used(ApiKey.PRODUCE, caller.api_version, topic, cpu_us)
        # Kafka also checks the size again after a format conversion, which turns many messages into
        # one batch.
        check_size(len(records), partition)
        return partition, records, batch, ""
    except KafkaError as failure:
        return failure


async def _validate(
    records: memoryview, limit: int, run: Callable[..., Awaitable[Any]]
) -> MessageSet:
    """Validate a message set before it is stored.

    It may unpack to `limit` bytes; `run` calls a function on another thread. Raises KafkaError.
    """
    try:
        if len(records) < LARGE_RECORDS_BYTES:
            try:
                return check_message_set(
                    records, max_decompressed_bytes=min(limit, LARGE_RECORDS_BYTES)
                )
            except RecordsTooLarge:
                # Small only while compressed: continue on another thread.
                pass
        checked: MessageSet = await run(_check, records, limit)
        return checked
    except RecordsError as failure:
        clear_frames(failure)
        raise _error(failure) from failure


async def _convert_to_batch(
    records: memoryview, limit: int, run: Callable[..., Awaitable[Any]]
) -> tuple[memoryview, BatchHeader, int]:
    """Convert a validated, non-empty message set to one batch.

    Codec, keys, values and timestamps are kept (format 0 has no timestamps). Returns the batch, its
    header and the CPU time used, in microseconds. Arguments and errors are those of
    `_validate`.
    """
    try:
        found = None
        if len(records) < LARGE_RECORDS_BYTES:
            with suppress(RecordsTooLarge):
                found = _convert(records, min(limit, LARGE_RECORDS_BYTES))
        if found is None:
            found = await run(_convert, records, limit)
    except RecordsError as failure:
        clear_frames(failure)
        raise _error(failure) from failure
    converted, cpu_us = found
    return memoryview(converted), read_header(converted), cpu_us


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
