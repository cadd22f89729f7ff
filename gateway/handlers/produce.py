"""Produce and InitProducerId."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from kafka.protocol.producer.transaction import InitProducerIdResponse

from compat.records import MessageSet, RecordsError, RecordsTooLarge, record_keys
from gateway import logs
from gateway.coroutines import PENDING, TaskGroup, Waiter, gather, shield_with_timeout
from gateway.partitions.message_sets import (
    LARGE_MESSAGE_SET,
    convert_to_batch,
    validate_message_set,
)
from gateway.partitions.partition import AppendResult, Partition, storage_error
from gateway.partitions.record_batch import BatchHeader, check_batch
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, Refused, clear_frames
from gateway.protocol.large_requests import SLICE_ROWS
from gateway.protocol.routes import DelayedReply, serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.produce_codec import (
    PartitionProduced,
    PartitionRecords,
    ProduceRequest,
    ProduceResponse,
    RecordError,
)
from gateway.topics.topic_names import RESERVED_TOPICS
from storage.log import StorageError

_log = logs.get_logger(__name__)

#: Batches whose keys must be looked at are looked at on another thread from so many records on, too: they take about a millisecond.
MANY_RECORDS = 500

#: Invalid records that one reply names (some 100 bytes each); a producer takes the rest of such a batch for good.
MAX_RECORD_ERRORS = 10_000

#: Clients of an earlier version may not know this error, and give up on what they do not know; the other leader that they are told of instead they
#: look for, and try again (KIP-112).
FIRST_PRODUCE_VERSION_WITH_STORAGE_ERROR = 4


class InvalidRecords(KafkaError):
    """A batch is refused because some of its records are invalid: INVALID_RECORD, with the records named (KIP-467)."""

    def __init__(self, count: int, records: Sequence[RecordError]) -> None:
        # In Kafka's words (LogValidator.processRecordErrors).
        first = ", ".join(
            f"RecordError(batchIndex={one.batch_index}, message='{one.message}')"
            for one in records[:3]
        )
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {count} record errors in total, "
            f"and only showing the first three errors at most: [{first}]",
        )
        self.records = records


#: Partitions of one request that are prepared or appended to in one turn of the reactor, some 40 us each.
TURN_PARTITIONS = 200

#: Partitions of one request that begin to open together.
MAX_OPENING_PARTITIONS = 100

#: What became of each append.
AppendOutcomes = list[AppendResult | BaseException]

#: What stands ready to be appended to one partition, with the name that its topic was asked for by, if any; or why it cannot be.
Prepared = tuple[Partition, memoryview, BatchHeader | MessageSet, str] | KafkaError


@serves(ApiKey.PRODUCE, 0, 13)
async def produce(
    request: ProduceRequest, caller: Caller
) -> DelayedReply[ProduceResponse | None] | ProduceResponse | None:
    """Records to append. v0-2 carry message sets, v3 one batch a partition and transactions, v7 zstd, v13 topic ids.

    Everything that may wait comes first; then all appends are queued at once, in the order of the request.
    """
    if request.acks not in (-1, 0, 1):
        return _refuse_all(request, KafkaError(ErrorCode.INVALID_REQUIRED_ACKS), caller)
    if request.transactional_id is not None:
        return _refuse_all(
            request, KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not served"), caller
        )
    ready: list[Prepared] = []
    unnamed = MAX_RECORD_ERRORS
    named = ((topic.topic, sent.index) for topic in request.topics for sent in topic.partitions)
    for topic in request.topics:
        for sent in topic.partitions:
            prepared = await _prepare(topic.topic, sent, caller, unnamed, named)
            if isinstance(prepared, InvalidRecords):
                unnamed -= len(prepared.records)
            ready.append(prepared)
            if len(ready) % TURN_PARTITIONS == 0:
                await Waiter(caller.broker.clock).wait(0)
    so_far: list[AppendResult | BaseException] = []
    if len(ready) > TURN_PARTITIONS:
        outcomes, so_far = await _append_in_turns(ready, caller)
    else:
        now = caller.broker.now()
        outcomes = gather([_append(one, now, caller) for one in ready], so_far)
    caller.traffic.produced(request, ready)
    reply = _response(request, ready, outcomes, caller)
    if request.acks == 0 or request.timeout_ms <= 0:
        return DelayedReply(reply)
    return DelayedReply(
        reply, request.timeout_ms / 1000, partial(_timeout_response, request, ready, so_far, caller)
    )


async def _append_in_turns(
    ready: list[Prepared], caller: Caller
) -> tuple[Coroutine[Any, Any, AppendOutcomes], list[AppendResult | BaseException]]:
    """Queue the appends of a request for many partitions, and let others have their turn in between. The
    next request of the connection starts after all of them, so that the order in each partition is kept."""
    gathered: TaskGroup[AppendResult] = TaskGroup()
    for count, one in enumerate(ready, 1):
        gathered.start_task(_append(one, caller.broker.now(), caller))
        if count % TURN_PARTITIONS == 0:
            await Waiter(caller.broker.clock).wait(0)
    return gathered.wait(), gathered.results


async def _prepare(
    topic: str | bytes,
    sent: PartitionRecords,
    caller: Caller,
    max_record_errors: int,
    named: Iterator[tuple[str | bytes, int]],
) -> Prepared:
    """Everything that can be known before the append: the partition is there and the records may be stored. `named` as in `_open_partition`."""
    try:
        partition = caller.broker.topics.get_open_partition(
            topic, sent.index
        ) or await _open_partition(topic, sent.index, caller, named)
        if partition.topic in RESERVED_TOPICS:
            raise _reserved_topic_error(partition.topic)
        if sent.records is None or not (len(sent.records) or caller.api_version < 3):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE if caller.api_version < 3 else ErrorCode.INVALID_RECORD,
                "there are no records",
            )
        if caller.api_version >= 3:
            batch = check_batch(sent.records, caller.api_version)
            if batch.is_transactional:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not served")
            _check_size(len(sent.records), partition)
            if batch.has_producer and partition.recovery is not None:
                await caller.broker.topics.opener.wait_for_recovery(partition)
            if partition.config.compacts:
                await _check_keys(sent.records, batch, partition, caller, max_record_errors)
            return partition, sent.records, batch, topic if isinstance(topic, str) else ""
        checked = await validate_message_set(sent.records, caller)
        _check_size(checked.largest, partition)
        if partition.config.compacts and checked.has_null_key:
            # As brokers answered until Kafka 2.4; INVALID_RECORD is younger than these producers, and so are record errors.
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, _missing_key_message(partition))
        if not (partition.config.stores_as_v2(checked.magic) and checked.count):
            return partition, sent.records, checked, ""
        records, batch, cpu_us = await convert_to_batch(sent.records, caller)
        caller.traffic.converted(
            ApiKey.PRODUCE, caller.api_version, topic, records=batch.count, size=len(sent.records)
        )
        caller.traffic.conversion_cpu_used(ApiKey.PRODUCE, caller.api_version, topic, cpu_us)
        # As Kafka looks again when the format has changed: what were many messages is one batch now.
        _check_size(len(records), partition)
        return partition, records, batch, ""
    except KafkaError as failure:
        return failure


async def _open_partition(
    topic: str | bytes, index: int, caller: Caller, named: Iterator[tuple[str | bytes, int]]
) -> Partition:
    """A partition that is not open. With it the next of all `named` in the request begin to open, so that they do not wait for each other."""
    topics = caller.broker.topics
    internal = topics.find_internal(topic)
    if internal is not None:
        raise _reserved_topic_error(internal.name)
    for other in islice(named, MAX_OPENING_PARTITIONS):
        topics.prefetch(*other)
    return await topics.partition(topic, index)


def _reserved_topic_error(topic: str) -> KafkaError:
    """As Kafka's ReplicaManager with internal topics, which lets those through that call themselves __admin_client: anybody can."""
    return KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Cannot append to {topic}, which the gateway keeps for itself",
    )


async def _check_keys(
    records: memoryview,
    batch: BatchHeader,
    partition: Partition,
    caller: Caller,
    max_record_errors: int,
) -> None:
    """Refuse a batch with records that have no key: compaction needs one (LogValidator.validateKey). Raises KafkaError."""
    limit = caller.broker.settings.max_decompressed_bytes
    found = None
    try:
        if len(records) < LARGE_MESSAGE_SET and batch.count < MANY_RECORDS:
            with suppress(RecordsTooLarge):
                found = _null_keys(records, min(limit, LARGE_MESSAGE_SET), max_record_errors)
        if found is None:
            found = await caller.run(_null_keys, records, limit, max_record_errors)
    except RecordsError as failure:
        clear_frames(failure)
        code = (
            ErrorCode.MESSAGE_TOO_LARGE
            if isinstance(failure, RecordsTooLarge)
            else ErrorCode.INVALID_RECORD
        )
        raise KafkaError(code, str(failure)) from failure
    count, indexes = found
    if count:
        message = _missing_key_message(partition)
        raise InvalidRecords(count, [RecordError(index, message) for index in indexes])


def _null_keys(records: memoryview, limit: int, most: int) -> tuple[int, list[int]]:
    """How many records have no key, and the indexes of the first `most` of them."""
    count = 0
    indexes: list[int] = []
    for index, (_, key, _) in enumerate(record_keys(records, max_decompressed_bytes=limit)):
        if key is None:
            count += 1
            if len(indexes) < most:
                indexes.append(index)
    return count, indexes


def _missing_key_message(partition: Partition) -> str:
    return f"Compacted topic cannot accept message without key in topic partition {partition.topic}-{partition.index}"


def _check_size(size: int, partition: Partition) -> None:
    limit = partition.config.max_message_bytes
    if size > limit:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes where the topic takes {limit}")


def _append(ready: Prepared, now: int, caller: Caller) -> Coroutine[Any, Any, AppendResult]:
    if isinstance(ready, KafkaError):
        return _fail(ready)
    partition, records, checked, called = ready
    try:
        if isinstance(checked, BatchHeader):
            return partition.append_batch(records, checked, now, called)
        return partition.append_message_set(records, checked, now, caller.run)
    except KafkaError as failure:
        return _fail(failure)


async def _fail(failure: KafkaError) -> AppendResult:
    clear_frames(failure)
    raise failure


async def _response(
    request: ProduceRequest,
    ready: list[Prepared],
    outcomes: Coroutine[Any, Any, AppendOutcomes],
    caller: Caller,
) -> ProduceResponse | None:
    if len(ready) > TURN_PARTITIONS:
        rows = await _rows_in_turns(request, ready, await outcomes, caller)
    else:
        rows = _rows(request, ready, await outcomes, caller)
    if request.acks == 0:
        failed = next((p for _, partitions in rows for p in partitions if p.error_code), None)
        if failed is not None:
            # As Kafka does: the one way to tell a producer that asked for no answer.
            raise Refused(
                f"records sent with acks=0 were not stored: {ErrorCode(failed.error_code).name}"
            )
        return None
    return ProduceResponse(rows)


def _timeout_response(
    request: ProduceRequest,
    ready: list[Prepared],
    so_far: list[AppendResult | BaseException],
    caller: Caller,
) -> ProduceResponse | None:
    """The request's time is up, and the appends go on. As Kafka's DelayedProduce: what is stored by now is told as such.

    Kafka waits for other replicas with acks=-1 alone. With acks=1 the gateway waits for the store as well, so that has an end, too.
    """
    return ProduceResponse(_rows(request, ready, so_far or [PENDING] * len(ready), caller))


def _rows(
    request: ProduceRequest,
    ready: list[Prepared],
    outcomes: Sequence[AppendResult | BaseException],
    caller: Caller,
) -> list[tuple[str | bytes, list[PartitionProduced]]]:
    ended = zip(ready, outcomes, strict=True)
    return [
        (
            topic.topic,
            [_row(topic.topic, sent.index, *next(ended), caller) for sent in topic.partitions],
        )
        for topic in request.topics
    ]


async def _rows_in_turns(
    request: ProduceRequest,
    ready: list[Prepared],
    outcomes: Sequence[AppendResult | BaseException],
    caller: Caller,
) -> list[tuple[str | bytes, list[PartitionProduced]]]:
    rows: list[tuple[str | bytes, list[PartitionProduced]]] = []
    ended = enumerate(zip(ready, outcomes, strict=True), 1)
    for topic in request.topics:
        partitions: list[PartitionProduced] = []
        for sent in topic.partitions:
            count, (one, outcome) = next(ended)
            partitions.append(_row(topic.topic, sent.index, one, outcome, caller))
            if count % SLICE_ROWS == 0:
                await Waiter(caller.broker.clock).wait(0)
        rows.append((topic.topic, partitions))
    return rows


def _row(
    topic: str | bytes,
    index: int,
    ready: Prepared,
    outcome: AppendResult | BaseException,
    caller: Caller,
) -> PartitionProduced:
    if isinstance(outcome, KafkaError):
        code = outcome.code
        if (
            code is ErrorCode.KAFKA_STORAGE_ERROR
            and caller.api_version < FIRST_PRODUCE_VERSION_WITH_STORAGE_ERROR
        ):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        caller.traffic.topic_accessed(ApiKey.PRODUCE, caller.api_version, topic, (code,))
        records = outcome.records if isinstance(outcome, InvalidRecords) else ()
        return PartitionProduced(index, code, error_message=outcome.message, record_errors=records)
    if outcome is PENDING:
        caller.traffic.topic_accessed(
            ApiKey.PRODUCE, caller.api_version, topic, (ErrorCode.REQUEST_TIMED_OUT,)
        )
        return PartitionProduced(
            index, ErrorCode.REQUEST_TIMED_OUT, error_message="not stored yet; it may be later"
        )
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(ready, KafkaError):
        raise TypeError("records were stored that had been refused")
    partition = ready[0]
    caller.broker.topics.save_if_due(partition)
    return PartitionProduced(
        index, 0, outcome.base_offset, outcome.log_append_time, partition.log.start_offset
    )


def _refuse_all(
    request: ProduceRequest, failure: KafkaError, caller: Caller
) -> ProduceResponse | None:
    for topic in request.topics:
        caller.traffic.topic_accessed(
            ApiKey.PRODUCE, caller.api_version, topic.topic, (failure.code,)
        )
    if request.acks == 0:
        raise Refused(f"records sent with acks=0 were not stored: {failure.code.name}")
    return ProduceResponse(
        [
            (
                topic.topic,
                [
                    PartitionProduced(sent.index, failure.code, error_message=failure.message)
                    for sent in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@serves(ApiKey.INIT_PRODUCER_ID, 0, 6)
async def init_producer_id(request: Any, caller: Caller) -> Any:
    """A producer id for idempotence. v3 lets a producer keep its id at the next epoch, v6 adds two-phase commit.

    A transactional id is refused with an error that no client retries: librdkafka, aiokafka and Sarama
    retry INVALID_REQUEST.
    """
    if request.transactional_id is not None:
        _log.warning(
            "transactional producer refused",
            peer=caller.peer,
            listener=caller.listener,
            client_id=caller.client_id,
            transactional_id=request.transactional_id,
            reason="transactions are not served",
        )
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    try:
        longest = caller.broker.settings.offsets_commit_timeout_ms / 1000
        producer_id = await shield_with_timeout(
            caller.broker.clock, longest, caller.broker.producer_ids.next_id()
        )
    except TimeoutError:
        return InitProducerIdResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT, producer_id=-1, producer_epoch=-1
        )
    except StorageError as failure:
        return InitProducerIdResponse(
            error_code=storage_error(failure).code, producer_id=-1, producer_epoch=-1
        )
    return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)
