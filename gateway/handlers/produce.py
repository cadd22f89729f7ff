"""Produce and InitProducerId."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from kafka.protocol.producer.transaction import InitProducerIdResponse

from compat.records import (
    CorruptRecords,
    InvalidTimestamp,
    MessageSet,
    RecordsError,
    RecordsTooLarge,
    UnsupportedCodec,
    check_message_set,
    keys,
)
from gateway.caller import Caller
from gateway.errors import ErrorCode, KafkaError, Refused, release
from gateway.partition import Appended, Partition, storage_error
from gateway.records import Batch, check_batch
from gateway.routes import Later, serves
from gateway.waiting import gather
from gateway.wire.api_keys import ApiKey
from gateway.wire.produce import PartitionProduced, PartitionRecords, ProduceRequest, ProduceResponse
from storage.log import StorageError

#: From this size on, or if they unpack to more than this, old message sets are checked on another thread.
LARGE_MESSAGE_SET = 64 << 10

#: And batches whose keys must be looked at, also from so many records on: they take about a millisecond.
MANY_RECORDS = 500

#: What stands ready to be appended to one partition, or why it cannot be.
Ready = tuple[Partition, memoryview, Batch | MessageSet] | KafkaError


@serves(ApiKey.PRODUCE, 0, 13)
async def produce(request: ProduceRequest, caller: Caller) -> Later[ProduceResponse | None] | ProduceResponse | None:
    """Records to append. v0-2 carry message sets, v3 one batch a partition and transactions, v7 zstd, v13 topic ids.

    Everything that may wait comes first; then all appends are queued at once, in the order of the request.
    """
    if request.acks not in (-1, 0, 1):
        return _refuse_all(request, KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    if request.transactional_id is not None:
        return _refuse_all(request, KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not served"))
    ready = [await _prepare(topic.topic, sent, caller) for topic in request.topics for sent in topic.partitions]
    now = caller.broker.now()
    return Later(_answer(request, ready, [_append(one, now, caller) for one in ready], caller))


async def _prepare(topic: str | bytes, sent: PartitionRecords, caller: Caller) -> Ready:
    """Everything that can be known before the append: the partition is there and the records may be stored."""
    try:
        partition = caller.broker.topics.opened(topic, sent.index) or await caller.broker.topics.partition(topic, sent.index)
        if sent.records is None or not (len(sent.records) or caller.api_version < 3):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE if caller.api_version < 3 else ErrorCode.INVALID_RECORD, "there are no records")
        if caller.api_version >= 3:
            batch = check_batch(sent.records, caller.api_version)
            if batch.is_transactional:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not served")
            _check_size(len(sent.records), partition)
            if partition.config.compacts and await _lacks_key(sent.records, batch, caller):
                raise _without_key(partition, ErrorCode.INVALID_RECORD)
            return partition, sent.records, batch
        checked = await _check_old(sent.records, caller)
        _check_size(checked.largest, partition)
        if partition.config.compacts and checked.has_null_key:
            raise _without_key(partition, ErrorCode.CORRUPT_MESSAGE)
        return partition, sent.records, checked
    except KafkaError as failure:
        return failure


async def _check_old(records: memoryview, caller: Caller) -> MessageSet:
    limit = caller.broker.settings.max_decompressed_bytes
    try:
        if len(records) < LARGE_MESSAGE_SET:
            try:
                return check_message_set(records, max_decompressed_bytes=min(limit, LARGE_MESSAGE_SET))
            except RecordsTooLarge:
                # Small only while it is packed.
                pass
        checked: MessageSet = await caller.broker.run(_check_message_set, records, limit)
        return checked
    except RecordsError as failure:
        release(failure)
        raise _records_error(failure) from failure


def _check_message_set(records: memoryview, limit: int) -> MessageSet:
    return check_message_set(records, max_decompressed_bytes=limit)


async def _lacks_key(records: memoryview, batch: Batch, caller: Caller) -> bool:
    """Whether some record of a batch has no key: compaction would not know what to keep of it (LogValidator.validateKey). Raises KafkaError."""
    limit = caller.broker.settings.max_decompressed_bytes
    try:
        if len(records) < LARGE_MESSAGE_SET and batch.count < MANY_RECORDS:
            with suppress(RecordsTooLarge):
                return _has_null_key(records, min(limit, LARGE_MESSAGE_SET))
        lacks: bool = await caller.broker.run(_has_null_key, records, limit)
        return lacks
    except RecordsError as failure:
        release(failure)
        code = ErrorCode.MESSAGE_TOO_LARGE if isinstance(failure, RecordsTooLarge) else ErrorCode.INVALID_RECORD
        raise KafkaError(code, str(failure)) from failure


def _has_null_key(records: memoryview, limit: int) -> bool:
    return any(key is None for _, key, _ in keys(records, max_decompressed_bytes=limit))


def _without_key(partition: Partition, code: ErrorCode) -> KafkaError:
    """As brokers answered message sets until Kafka 2.4; INVALID_RECORD, which today's say to all, is younger than those producers."""
    return KafkaError(code, f"Compacted topic cannot accept message without key in topic partition {partition.topic}-{partition.index}")


def _records_error(failure: RecordsError) -> KafkaError:
    code = ErrorCode.INVALID_RECORD
    for kind, its_code in _RECORDS_ERRORS.items():
        if isinstance(failure, kind):
            code = its_code
    # INVALID_RECORD is younger than these producers: what they know is a corrupt message.
    return KafkaError(ErrorCode.CORRUPT_MESSAGE if code is ErrorCode.INVALID_RECORD else code, str(failure))


_RECORDS_ERRORS: dict[type[RecordsError], ErrorCode] = {
    CorruptRecords: ErrorCode.CORRUPT_MESSAGE,
    UnsupportedCodec: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    RecordsTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
}


def _check_size(size: int, partition: Partition) -> None:
    limit = partition.config.max_message_bytes
    if size > limit:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes where the topic takes {limit}")


def _append(ready: Ready, now: int, caller: Caller) -> Coroutine[Any, Any, Appended]:
    if isinstance(ready, KafkaError):
        return _fail(ready)
    partition, records, checked = ready
    try:
        if isinstance(checked, Batch):
            return partition.append_batch(records, checked, now)
        return partition.append_message_set(records, checked, now, caller.broker.run)
    except KafkaError as failure:
        return _fail(failure)


async def _fail(failure: KafkaError) -> Appended:
    release(failure)
    raise failure


async def _answer(
    request: ProduceRequest, ready: list[Ready], works: list[Coroutine[Any, Any, Appended]], caller: Caller
) -> ProduceResponse | None:
    outcomes = zip(ready, await gather(works), strict=True)
    rows = [(topic.topic, [_row(sent.index, *next(outcomes), caller) for sent in topic.partitions]) for topic in request.topics]
    if request.acks == 0:
        failed = next((p for _, partitions in rows for p in partitions if p.error_code), None)
        if failed is not None:
            # As Kafka does: the one way to tell a producer that asked for no answer.
            raise Refused(f"records sent with acks=0 were not stored: {ErrorCode(failed.error_code).name}")
        return None
    return ProduceResponse(rows)


def _row(index: int, ready: Ready, outcome: Appended | BaseException, caller: Caller) -> PartitionProduced:
    if isinstance(outcome, KafkaError):
        return PartitionProduced(index, outcome.code, error_message=outcome.message)
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(ready, KafkaError):
        raise TypeError("records were stored that had been refused")
    partition = ready[0]
    caller.broker.topics.save_if_due(partition)
    return PartitionProduced(index, 0, outcome.base_offset, outcome.log_append_time, partition.log.start_offset)


def _refuse_all(request: ProduceRequest, failure: KafkaError) -> ProduceResponse | None:
    if request.acks == 0:
        raise Refused(f"records sent with acks=0 were not stored: {failure.code.name}")
    return ProduceResponse(
        [
            (topic.topic, [PartitionProduced(sent.index, failure.code, error_message=failure.message) for sent in topic.partitions])
            for topic in request.topics
        ]
    )


@serves(ApiKey.INIT_PRODUCER_ID, 0, 6)
async def init_producer_id(request: Any, caller: Caller) -> Any:
    """A producer id for idempotence. v3 lets a producer keep its id at the next epoch, v6 adds two-phase commit. No transactions yet."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await caller.broker.producer_ids.next_id()
    except StorageError as failure:
        return InitProducerIdResponse(error_code=storage_error(failure).code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)
