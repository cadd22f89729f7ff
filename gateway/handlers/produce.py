"""Produce.

v3-6: one record batch per partition, transactional id.
v7: zstd (KIP-110).
v8-12: record errors in the response (KIP-467); from v10 on, the present leader of partitions that
this gateway does not lead (KIP-951).
v13: topic ids instead of names (KIP-516).

Produce v0-2 is in `gateway.handlers.old`. Transactions are not supported.

The module is long because requests that are queued at once and all others share its parts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.coroutines import PENDING, SharedResult, TaskGroup, TimeSlices, sleep
from gateway.handlers.produce_partitions import (
    finish_earlier,
    new_leader,
    open_partition,
    reserved_topic_error,
)
from gateway.partitions.partition import AppendResult, Partition
from gateway.partitions.producer_snapshots import SNAPSHOT_BATCHES, SNAPSHOT_BYTES
from gateway.partitions.record_batch import check_batch
from gateway.protocol.caller import Caller
from gateway.protocol.current_leader import current_leader, endpoints_of
from gateway.protocol.errors import (
    ErrorCode,
    KafkaError,
    Refused,
    clear_frames,
    code_for_version,
)
from gateway.protocol.routes import DelayedReply, serves
from gateway.protocol.wire import compiled
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.produce_codec import (
    PartitionProduced,
    PartitionRecords,
    ProduceRequest,
    ProduceResponse,
    RecordError,
    read_produce,
)
from gateway.security.acls import AclOperation, AclResource
from gateway.topics.remote_appends import RemoteAppendResult, RemotePartition
from gateway.topics.topic_names import RESERVED_TOPICS
from records import BatchHeader, RecordsError, RecordsTooLarge, record_keys

if TYPE_CHECKING:
    from gateway.partitions.stored_records import MessageSet

#: Records of at least this size, also when unpacked, are checked on another thread.
LARGE_RECORDS_BYTES = 64 << 10

#: Bytes of records whose CRC is computed in one reactor turn, about a millisecond. The CRC of a
#: batch of at least the second size is computed on another thread.
MAX_CHECKED_BYTES, LARGE_BATCH_BYTES = 4 << 20, 1 << 20

#: Batches of compacted topics with at least this many records are checked for keys on another
#: thread; checking them takes about a millisecond.
MANY_RECORDS = 500

#: Maximum invalid records listed in one response, about 100 bytes each. A producer treats the
#: records that are not listed as failed, too.
MAX_RECORD_ERRORS = 10_000


class InvalidRecordError(KafkaError):
    """INVALID_RECORD with the invalid records of a batch (KIP-467)."""

    def __init__(self, count: int, records: Sequence[RecordError]) -> None:
        # Kafka's message (LogValidator.processRecordErrors).
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


#: Partitions of one request that are prepared or appended in one reactor turn, about 40 us each.
TURN_PARTITIONS = 200

#: Errors of partitions that cannot be served at the moment.
_RETRIED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)

#: Valid values of acks.
_ACKS = frozenset({-1, 0, 1})

#: Results of the appends of one request.
AppendOutcomes = list[AppendResult | BaseException]

#: The rows of each topic of a reply.
ProducedRows = list[tuple[str | bytes, list[PartitionProduced]]]

#: Partition, records, parsed batch and the topic name of the request (empty if none), or the error.
Prepared: TypeAlias = (
    "tuple[Partition | RemotePartition, memoryview, BatchHeader | MessageSet, str] | KafkaError"
)


def produce_at_once(frame: bytearray, position: int, caller: Caller) -> DelayedReply[Any] | None:
    """Serve a request if nothing has to be awaited or refused before its batches are queued.

    Returns None otherwise; the request is then served by `produce`, with the same effects.
    """
    request = compiled.plain_produce(frame, position, caller.api_version, TURN_PARTITIONS - 1)
    if request is None or not request.queue(caller, PLAIN_WORK):
        return None
    return _delayed(request, request, request.timed_out)


def _queue_batch(
    partition: Partition | RemotePartition,
    records: memoryview,
    batch: BatchHeader,
    now: int,
    called: str,
) -> SharedResult[AppendResult] | KafkaError:
    try:
        return partition.queue_batch(records, batch, now, called)
    except KafkaError as failure:
        clear_frames(failure)
        return failure


def _has_refused(caller: Caller) -> bool:
    """Whether producers may still send refused batches again; forgets the other producers."""
    refused = caller.broker.topics.refused_batches
    return refused.has_any(caller.broker.clock.seconds())


def _respond_at_once(request: Any, caller: Caller) -> ProduceResponse | BaseException | None:
    """The response if a batch was refused or not stored, or why there is none."""
    try:
        return _respond(request, _rows_at_once(request, caller), caller)
    except Refused as refusal:
        # Its traceback would refer to the request's bytes.
        return refusal.with_traceback(None)
    except Exception as failure:  # noqa: BLE001 - raised to the caller
        return failure


def _timeout_at_once(request: Any, caller: Caller) -> ProduceResponse:
    """As `QueuedAppends.timeout_response`."""
    return _reply(_rows_at_once(request, caller), caller)


def _rows_at_once(request: Any, caller: Caller) -> ProducedRows:
    outcomes = [
        one if isinstance(one, KafkaError) else one.outcome(PENDING) for one in request.appends
    ]
    decoded = read_produce(request.frame, request.position, request.version)
    return _rows(decoded, request.ready, outcomes, caller)


PLAIN_WORK = compiled.plain_work(
    AclOperation.WRITE,
    _queue_batch,
    _has_refused,
    _respond_at_once,
    _timeout_at_once,
    most=TURN_PARTITIONS - 1,
    batches=SNAPSHOT_BATCHES,
    bytes=SNAPSHOT_BYTES,
)


@serves(ApiKey.PRODUCE, 3, 13, at_once=produce_at_once, plain=PLAIN_WORK)
def produce(
    request: ProduceRequest, caller: Caller
) -> Awaitable[DelayedReply[ProduceResponse | None] | ProduceResponse | None]:
    """Append record batches."""
    # Also without a plain request, producers that did not send again are forgotten.
    _has_refused(caller)
    return append_records(request, caller, _prepare_batch)


async def append_records(
    request: ProduceRequest, caller: Caller, prepare: Callable[..., Awaitable[Prepared]]
) -> DelayedReply[ProduceResponse | None] | ProduceResponse | None:
    """Append the records of all partitions after `prepare`, which is `_prepare_batch` or similar.

    Everything that may block happens first; then all appends are queued together, in request order.
    """
    if request.acks not in _ACKS:
        return _refuse_all(request, KafkaError(ErrorCode.INVALID_REQUIRED_ACKS), caller)
    if request.transactional_id is not None:
        try:
            caller.require(
                AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, request.transactional_id
            )
        except KafkaError as refusal:
            return _refuse_all(request, refusal, caller)
        return _refuse_all(
            request,
            KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported"),
            caller,
        )
    ready: list[Prepared] = []
    checked_bytes = 0
    unnamed = MAX_RECORD_ERRORS
    named = (
        (topic.topic, sent.index)
        for topic in request.topics
        if caller.may_use_topic(AclOperation.WRITE, topic.topic)
        for sent in topic.partitions
    )
    is_unrestricted = caller.is_unrestricted
    for topic in request.topics:
        refused = (
            None
            if is_unrestricted or caller.may_use_topic(AclOperation.WRITE, topic.topic)
            else _refusal(topic.topic, caller)
        )
        for sent in topic.partitions:
            prepared = refused or await prepare(topic.topic, sent, caller, unnamed, named)
            if isinstance(prepared, InvalidRecordError):
                unnamed -= len(prepared.records)
            ready.append(prepared)
            checked_bytes += len(sent.records or b"") if refused is None else 0
            if len(ready) % TURN_PARTITIONS == 0 or checked_bytes >= MAX_CHECKED_BYTES:
                checked_bytes = 0
                await sleep(caller.broker.clock, 0)
    if len(ready) <= TURN_PARTITIONS:
        return _queue_all(request, ready, caller)
    outcomes, so_far = await _append_in_turns(ready, caller)
    caller.traffic.produced(request, ready)
    return _delayed(
        request,
        _response(request, ready, outcomes, caller),
        lambda: _timeout_response(request, ready, so_far, caller),
    )


def _queue_all(
    request: ProduceRequest, ready: list[Prepared], caller: Caller
) -> DelayedReply[ProduceResponse | None]:
    """Queue the appends of all partitions of a request that is not large."""
    now = caller.broker.now()
    appends = [_queue(one, now, caller) for one in ready]
    reply = QueuedAppends(request, ready, appends, caller)
    caller.traffic.produced(request, ready)
    reply.watch()
    return _delayed(request, reply, reply.timeout_response)


def _delayed(
    request: ProduceRequest,
    reply: Coroutine[Any, Any, ProduceResponse | None] | SharedResult[ProduceResponse | None],
    on_timeout: Callable[[], ProduceResponse | None],
) -> DelayedReply[ProduceResponse | None]:
    if request.acks == 0 or request.timeout_ms <= 0:
        return DelayedReply(reply)
    return DelayedReply(reply, request.timeout_ms / 1000, on_timeout)


class QueuedAppends(SharedResult["ProduceResponse | None"]):
    """The queued appends of a request, and its reply once the last of them has ended."""

    __slots__ = ("_appends", "_caller", "_missing", "_ready", "_request")

    def __init__(
        self,
        request: ProduceRequest,
        ready: list[Prepared],
        appends: list[SharedResult[AppendResult] | KafkaError],
        caller: Caller,
    ) -> None:
        """`appends` has the error if nothing was queued for a partition."""
        super().__init__()
        self._request = request
        self._ready = ready
        self._appends = appends
        self._caller = caller
        self._missing = 0

    def watch(self) -> None:
        """Wait for all appends."""
        self._missing = len(self._appends) + 1
        for append in self._appends:
            if isinstance(append, KafkaError):
                self._missing -= 1
            else:
                append.when_done(self._append_ended)
        self._append_ended()

    def _append_ended(self) -> None:
        self._missing -= 1
        if self._missing:
            return
        try:
            response = _respond(self._request, self._rows(), self._caller)
        except Refused as refusal:
            # Its traceback would refer to this object, which keeps it and the request's bytes.
            self.fail(refusal.with_traceback(None))
        except Exception as failure:  # noqa: BLE001 - raised to the caller
            self.fail(failure)
        else:
            self.succeed(response)

    def timeout_response(self) -> ProduceResponse:
        """The response after timeout_ms, while appends continue (Kafka's DelayedProduce).

        Appends that have finished are reported as stored, the others as REQUEST_TIMED_OUT. Kafka
        waits only with acks=-1, for replicas; the gateway also waits for the store with acks=1.
        """
        return _reply(self._rows(), self._caller)

    def _rows(self) -> list[tuple[str | bytes, list[PartitionProduced]]]:
        outcomes = [
            one if isinstance(one, KafkaError) else one.outcome(PENDING) for one in self._appends
        ]
        return _rows(self._request, self._ready, outcomes, self._caller)


def _refusal(topic: str | bytes, caller: Caller) -> KafkaError | None:
    try:
        caller.require_topic(AclOperation.WRITE, topic)
    except KafkaError as refusal:
        return refusal
    return None


async def _append_in_turns(
    ready: list[Prepared], caller: Caller
) -> tuple[Coroutine[Any, Any, AppendOutcomes], list[AppendResult | BaseException]]:
    """Queue the appends of a large request, yielding to the reactor in between.

    The connection's next request starts after all of them, so the order in each partition is kept.
    """
    gathered: TaskGroup[AppendResult] = TaskGroup()
    slices = TimeSlices(caller.broker.clock, TURN_PARTITIONS)
    for one in ready:
        gathered.start_task(_append(one, caller.broker.now(), caller))
        await slices.take()
    return gathered.wait(), gathered.results


async def _prepare_batch(
    topic: str | bytes,
    sent: PartitionRecords,
    caller: Caller,
    max_record_errors: int,
    named: Iterator[tuple[str | bytes, int]],
) -> Prepared:
    """Open the partition and validate the records, or return the error.

    `named` yields the request's partitions, see `open_partition`.
    """
    try:
        try:
            partition = caller.broker.topics.get_open_partition(
                topic, sent.index
            ) or await open_partition(topic, sent.index, caller, named)
        except KafkaError as failure:
            await _note_refused(topic, sent, failure, caller)
            raise
        if partition.topic in RESERVED_TOPICS:
            raise reserved_topic_error(partition.topic)
        if not sent.records:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "the request has no records for this partition"
            )
        check_size(len(sent.records), partition)
        await finish_earlier(partition, caller)
        batch = await _checked_batch(sent, sent.records, caller)
        if batch.is_transactional:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported")
        if batch.has_producer:
            await _wait_for_producers(topic, sent, batch, partition, caller)
        if partition.config.compacts:
            await _check_keys(sent.records, batch, partition, caller, max_record_errors)
        return partition, sent.records, batch, topic if isinstance(topic, str) else ""
    except KafkaError as failure:
        return failure


async def _checked_batch(
    sent: PartitionRecords, records: memoryview, caller: Caller
) -> BatchHeader:
    """Return the header of a valid batch. Raises KafkaError."""
    if sent.batch is not None:
        return sent.batch
    if len(records) < LARGE_BATCH_BYTES:
        return check_batch(records, caller.api_version)
    found: BatchHeader = await caller.run(check_batch, records, caller.api_version)
    return found


async def _note_refused(
    topic: str | bytes, sent: PartitionRecords, failure: KafkaError, caller: Caller
) -> None:
    """Remember the batch of an idempotent producer that will be sent again."""
    topics = caller.broker.topics
    state = topics.get(topic)
    if failure.code not in _RETRIED or state is None or not sent.records:
        return
    with suppress(KafkaError):
        batch = await _checked_batch(sent, sent.records, caller)
        if batch.has_producer:
            now = caller.broker.clock.seconds()
            topics.refused_batches.add(state.name, sent.index, batch, now)


async def _wait_for_producers(
    topic: str | bytes,
    sent: PartitionRecords,
    batch: BatchHeader,
    partition: Partition | RemotePartition,
    caller: Caller,
) -> None:
    """Wait until a batch of an idempotent producer can be checked. Raises KafkaError.

    Also if an earlier batch of a producer new to the partition was refused.
    """
    topics = caller.broker.topics
    try:
        if isinstance(partition, RemotePartition):
            raise partition.refusal
        if partition.recovery is not None:
            await topics.opener.wait_for_recovery(partition)
    except KafkaError as failure:
        await _note_refused(topic, sent, failure, caller)
        raise
    refused, now = topics.refused_batches, caller.broker.clock.seconds()
    if (
        refused
        and refused.precede(partition.topic, partition.index, batch, now)
        and batch.producer_id not in partition.producers
    ):
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier batch of the producer was refused"
        )


async def _check_keys(
    records: memoryview,
    batch: BatchHeader,
    partition: Partition | RemotePartition,
    caller: Caller,
    max_record_errors: int,
) -> None:
    """Reject a batch for a compacted topic if a record has no key (LogValidator.validateKey).

    Raises KafkaError.
    """
    limit = caller.broker.settings.max_decompressed_bytes
    found = None
    try:
        if len(records) < LARGE_RECORDS_BYTES and batch.count < MANY_RECORDS:
            with suppress(RecordsTooLarge):
                found = _null_keys(records, min(limit, LARGE_RECORDS_BYTES), max_record_errors)
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
        message = missing_key_message(partition)
        raise InvalidRecordError(count, [RecordError(index, message) for index in indexes])


def _null_keys(records: memoryview, limit: int, most: int) -> tuple[int, list[int]]:
    """Return the number of records without a key, and the indexes of the first `most` of them."""
    count = 0
    indexes: list[int] = []
    for index, (_, key, _) in enumerate(record_keys(records, max_decompressed_bytes=limit)):
        if key is None:
            count += 1
            if len(indexes) < most:
                indexes.append(index)
    return count, indexes


def missing_key_message(partition: Partition | RemotePartition) -> str:
    return (
        "Compacted topic cannot accept message without key "
        f"in topic partition {partition.topic}-{partition.index}"
    )


def check_size(size: int, partition: Partition | RemotePartition) -> None:
    limit = partition.config.max_message_bytes
    if size > limit:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{size} bytes exceed the topic's max.message.bytes={limit}",
        )


def _queue(ready: Prepared, now: int, caller: Caller) -> SharedResult[AppendResult] | KafkaError:
    """Queue the append of one partition, or return the error."""
    if isinstance(ready, KafkaError):
        clear_frames(ready)
        return ready
    partition, records, checked, called = ready
    if isinstance(partition, Partition) and partition.has_resigned:
        partition = new_leader(partition, checked, caller) or partition
    if isinstance(checked, BatchHeader):
        return _queue_batch(partition, records, checked, now, called)
    try:
        return partition.queue_message_set(records, checked, now, caller.run)
    except KafkaError as failure:
        clear_frames(failure)
        return failure


async def _append(ready: Prepared, now: int, caller: Caller) -> AppendResult:
    queued = _queue(ready, now, caller)
    if isinstance(queued, KafkaError):
        raise queued
    return await queued


async def _response(
    request: ProduceRequest,
    ready: list[Prepared],
    outcomes: Coroutine[Any, Any, AppendOutcomes],
    caller: Caller,
) -> ProduceResponse | None:
    """The response to a large request."""
    return _respond(request, await _rows_in_turns(request, ready, await outcomes, caller), caller)


def _respond(
    request: ProduceRequest,
    rows: list[tuple[str | bytes, list[PartitionProduced]]],
    caller: Caller,
) -> ProduceResponse | None:
    if request.acks == 0:
        failed = next((p for _, partitions in rows for p in partitions if p.error_code), None)
        if failed is not None:
            # As in Kafka, closing the connection is the only way to report an error with acks=0.
            raise Refused(
                f"records sent with acks=0 were not stored: {ErrorCode(failed.error_code).name}"
            )
        return None
    return _reply(rows, caller)


def _reply(rows: ProducedRows, caller: Caller) -> ProduceResponse:
    leaders = [
        row.current_leader for _, partitions in rows for row in partitions if row.current_leader
    ]
    if not leaders:
        return ProduceResponse(rows)
    return ProduceResponse(rows, node_endpoints=endpoints_of(leaders, caller))


def _timeout_response(
    request: ProduceRequest,
    ready: list[Prepared],
    so_far: list[AppendResult | BaseException],
    caller: Caller,
) -> ProduceResponse | None:
    """As `QueuedAppends.timeout_response`, for a large request."""
    return _reply(_rows(request, ready, so_far, caller), caller)


def _rows(
    request: ProduceRequest,
    ready: list[Prepared],
    outcomes: Sequence[AppendResult | BaseException],
    caller: Caller,
) -> ProducedRows:
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
) -> ProducedRows:
    rows: ProducedRows = []
    ended = zip(ready, outcomes, strict=True)
    slices = TimeSlices(caller.broker.clock)
    for topic in request.topics:
        partitions: list[PartitionProduced] = []
        for sent in topic.partitions:
            partitions.append(_row(topic.topic, sent.index, *next(ended), caller))
            await slices.take()
        rows.append((topic.topic, partitions))
    return rows


def _row(
    topic: str | bytes,
    index: int,
    ready: Prepared,
    outcome: AppendResult | BaseException,
    caller: Caller,
) -> PartitionProduced:
    if isinstance(outcome, AppendResult) and not isinstance(ready, KafkaError):
        return PartitionProduced(
            index,
            0,
            outcome.base_offset,
            outcome.log_append_time,
            _log_start_offset(ready[0], outcome, caller),
        )
    if isinstance(outcome, KafkaError):
        code = code_for_version(outcome.code, ApiKey.PRODUCE, caller.api_version)
        caller.traffic.topic_accessed(ApiKey.PRODUCE, caller.api_version, topic, (code,))
        records = outcome.records if isinstance(outcome, InvalidRecordError) else ()
        return PartitionProduced(
            index,
            code,
            error_message=outcome.message,
            record_errors=records,
            current_leader=current_leader(ApiKey.PRODUCE, topic, index, code, caller),
        )
    if outcome is PENDING:
        caller.traffic.topic_accessed(
            ApiKey.PRODUCE, caller.api_version, topic, (ErrorCode.REQUEST_TIMED_OUT,)
        )
        return PartitionProduced(
            index,
            ErrorCode.REQUEST_TIMED_OUT,
            error_message="not stored within timeout_ms; it may be stored later",
        )
    if isinstance(outcome, BaseException):
        raise outcome
    raise TypeError("rejected records were stored")


def _log_start_offset(
    partition: Partition | RemotePartition, outcome: AppendResult, caller: Caller
) -> int:
    if isinstance(outcome, RemoteAppendResult):
        return outcome.log_start_offset
    if isinstance(partition, RemotePartition):
        # Nothing was appended.
        return -1
    caller.broker.topics.save_if_due(partition)
    return partition.log.start_offset


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
