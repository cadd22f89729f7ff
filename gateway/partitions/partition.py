"""The leader of one partition: numbers, stamps and appends what producers send, and remembers their sequences.

Everything up to the append happens at once, so that the order of the calls is the order of the offsets. What comes back is the wait for
durability.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from compat.records import MessageSet, stamp_message_set
from gateway.configs.topic_configs import TopicConfig
from gateway.coroutines import SharedResult, has_fired, start
from gateway.partitions.producer_state import BatchMetadata, ProducerStateManager
from gateway.partitions.record_batch import BatchHeader, stamp_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import (
    Buffer,
    Entry,
    EntryTooLarge,
    Fenced,
    LogClosed,
    NotAllowed,
    OffsetOutOfRange,
    PartitionLog,
    StorageError,
    StorageFailed,
    UnknownTopic,
)


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """Where records went. `log_append_time` (ms) is -1 where the topic keeps the producer's timestamps."""

    base_offset: int
    log_append_time: int


#: From so many unpacked bytes on, a set that must be packed anew is packed on another thread: some half a millisecond of work.
REPACK_IN_THREAD_BYTES = 64 << 10

#: Is told of a partition whose log is finished.
FencedCallback = Callable[["Partition"], None]

#: Runs a function on another thread.
RunInThread = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _QueuedAppend:
    """An append that waits for the one before it to be packed. `queue` puts it into the log, and gives the wait for durability."""

    queue: Callable[[], Awaitable[Coroutine[Any, Any, AppendResult]]]
    result: SharedResult[AppendResult] = field(default_factory=SharedResult)


@dataclass(frozen=True, slots=True)
class _InFlightBatch:
    """An idempotent producer's batch in flight. `end_offset`: the log's end before it was queued."""

    batch: BatchHeader
    now: int
    end_offset: int
    shared: SharedResult[AppendResult] = field(default_factory=SharedResult)


@dataclass(slots=True)
class ProducerRecovery:
    """The replay of the log into the state of the idempotent producers.

    `offset` is how far it has come. A request waits for its end deadline `until` at most, in seconds of the broker's clock.
    """

    offset: int
    deadline: float
    finished: SharedResult[None] = field(default_factory=SharedResult)


class Partition:
    """One partition that this gateway leads. `config` is replaced whenever the topic's configs change.

    `on_fenced` is called, again and again maybe, once its log is finished: whoever asks for the partition then gets another object.
    """

    __slots__ = (
        "_empty_ranges",
        "_in_flight",
        "_on_fenced",
        "_queued_appends",
        "config",
        "index",
        "log",
        "producers",
        "recovery",
        "topic",
        "unsaved_bytes",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        log: PartitionLog,
        config: TopicConfig,
        producers: ProducerStateManager,
        on_fenced: FencedCallback | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.config = config
        self.producers = producers
        self._on_fenced = on_fenced
        #: While it lasts, and if it has failed, nothing of an idempotent producer may be appended.
        self.recovery: ProducerRecovery | None = None
        #: Bytes appended since the producers' state was last saved.
        self.unsaved_bytes = 0
        # Idempotent producers' batches by the offset they were queued at, oldest first; a retry waits
        # for the first try. A batch whose outcome is unknown stays: snapshots must not skip it.
        self._in_flight: dict[int, _InFlightBatch] = {}
        # The large set that is being packed anew, and what came after it: nothing may overtake it, for its offsets are within what is packed.
        self._queued_appends: deque[_QueuedAppend] = deque()
        # By format, the last stretch of offsets found to hold nothing for its consumers: (first, the one after).
        self._empty_ranges: dict[int | None, tuple[int, int]] = {}

    @property
    def is_closed(self) -> bool:
        """The topic was deleted, the store is closing, or somebody else leads the partition."""
        try:
            self.log.read_resident(self.log.end_offset, 0)
        except (LogClosed, Fenced) as failure:
            self.handle_storage_error(failure)
            return True
        return False

    def handle_storage_error(self, failure: StorageError) -> KafkaError:
        """What a client is told of a failure of this partition's log; one that is finished is given up."""
        if isinstance(failure, LogClosed | Fenced) and self._on_fenced is not None:
            self._on_fenced(self)
        return storage_error(failure)

    def append_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str = ""
    ) -> Coroutine[Any, Any, AppendResult]:
        """Queue a checked v2 batch; the coroutine ends when it is durable. Raises KafkaError at once, or later through the coroutine.

        `topic_name` is the name of the topic that its producer uses, where that is known.
        """
        if self._queued_appends:
            return self._enqueue_append(partial(self._queue_batch, records, batch, now, topic_name))
        return self._append_batch(records, batch, now, topic_name)

    async def _queue_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str
    ) -> Coroutine[Any, Any, AppendResult]:
        return self._append_batch(records, batch, now, topic_name)

    def _append_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str
    ) -> Coroutine[Any, Any, AppendResult]:
        if batch.has_producer:
            duplicate = self.producers.check(batch, topic_name)
            if duplicate is not None:
                # Looked up now: by the time the coroutine runs the first try may have failed, and be forgotten.
                first = self._in_flight.get(duplicate.base_offset)
                return _duplicate_result(duplicate, None if first is None else first.shared)
        base_offset, end_offset = self.log.next_offset, self.log.end_offset
        log_append_time = now if self.config.is_log_append_time else None
        stamp_batch(records, base_offset, self.log.leader_epoch, log_append_time)
        timestamp = batch.max_timestamp if log_append_time is None else log_append_time
        entry = Entry(
            base_offset,
            base_offset + batch.last_offset_delta,
            timestamp if timestamp >= 0 else now,
            records,
        )
        result = AppendResult(base_offset, -1 if log_append_time is None else log_append_time)
        waiting = self.log.append((entry,))
        if not batch.has_producer:
            return self._finish(waiting, result, len(records))
        self.producers.append(
            batch, base_offset, result.log_append_time, self.log.end_offset, now, topic_name
        )
        in_flight = self._in_flight[base_offset] = _InFlightBatch(batch, now, end_offset)
        finishing = self._finish(waiting, result, len(records), in_flight)
        if not has_ended(waiting):
            return finishing
        # A batch that the log refuses at once must be forgotten before the next one is checked,
        # not only when the caller awaits this.
        start(finishing, _ignore_outcome, _ignore_outcome)
        return _result(in_flight.shared)

    def append_message_set(
        self, records: memoryview, checked: MessageSet, now: int, run: RunInThread | None = None
    ) -> Coroutine[Any, Any, AppendResult]:
        """Queue a checked set of format 0 or 1, as `append_batch`. An empty one is taken and comes to nothing, as in Kafka.

        `run` takes the packing of a large one to another thread.
        """
        if not checked.count:
            return _empty_append()
        is_large = (
            run is not None
            and checked.repack
            and sum(len(one.inner or b"") for one in checked.compressed) >= REPACK_IN_THREAD_BYTES
        )
        if self._queued_appends or is_large:
            return self._enqueue_append(
                partial(self._queue_set, records, checked, now, run if is_large else None)
            )
        base_offset, log_append_time = self.log.next_offset, self._append_time(checked, now)
        return self._append_set(
            stamp_message_set(records, checked, base_offset, log_append_time),
            checked,
            base_offset,
            log_append_time,
            now,
        )

    def _append_time(self, checked: MessageSet, now: int) -> int | None:
        # Format 0 has no timestamps to set. Such a set gets here only if the topic changed to LogAppendTime a moment ago.
        return now if self.config.is_log_append_time and checked.magic == 1 else None

    async def _queue_set(
        self, records: memoryview, checked: MessageSet, now: int, run: RunInThread | None
    ) -> Coroutine[Any, Any, AppendResult]:
        while True:
            base_offset, log_append_time = self.log.next_offset, self._append_time(checked, now)
            if run is None:
                stamped = stamp_message_set(records, checked, base_offset, log_append_time)
            else:
                stamped = await run(
                    stamp_message_set, records, checked, base_offset, log_append_time
                )
            if base_offset == self.log.next_offset:
                return self._append_set(stamped, checked, base_offset, log_append_time, now)
            # An append that was in flight before it has failed meanwhile, and its offsets are free again.

    def _enqueue_append(
        self, queue: Callable[[], Awaitable[Coroutine[Any, Any, AppendResult]]]
    ) -> Coroutine[Any, Any, AppendResult]:
        queued = _QueuedAppend(queue)
        self._queued_appends.append(queued)
        if len(self._queued_appends) == 1:
            start(self._drain_queue(), _ignore_result, _reraise)
        return _result(queued.result)

    async def _drain_queue(self) -> None:
        """Put into the log what waits, in its order, until nothing does."""
        while self._queued_appends:
            queued = self._queued_appends[0]
            try:
                waiting = await queued.queue()
            except Exception as failure:  # noqa: BLE001 - it belongs to the one who waits for it, and the others must have their turn
                queued.result.fail(failure)
            else:
                start(waiting, queued.result.succeed, queued.result.fail)
            self._queued_appends.popleft()

    def _append_set(
        self,
        stamped: Buffer,
        checked: MessageSet,
        base_offset: int,
        log_append_time: int | None,
        now: int,
    ) -> Coroutine[Any, Any, AppendResult]:
        timestamp = checked.max_timestamp if log_append_time is None else log_append_time
        # Where no record says when it was written, retention counts from now, as Kafka's does from the time of the segment's file.
        entry = Entry(
            base_offset,
            base_offset + checked.count - 1,
            timestamp if timestamp >= 0 else now,
            stamped,
        )
        waiting = self.log.append((entry,))
        return self._finish(
            waiting,
            AppendResult(base_offset, -1 if log_append_time is None else log_append_time),
            len(stamped),
        )

    async def _finish(
        self, waiting: Any, result: AppendResult, size: int, in_flight: _InFlightBatch | None = None
    ) -> AppendResult:
        queued_offset = result.base_offset
        try:
            assigned: int | None = await waiting
        except Exception as failure:
            # Only this batch: those queued before it may still be stored, and those behind it fail by themselves.
            if in_flight is not None:
                self.producers.remove_failed(in_flight.batch.producer_id, queued_offset)
            error = (
                self.handle_storage_error(failure) if isinstance(failure, StorageError) else failure
            )
            if in_flight is not None:
                if not isinstance(failure, Fenced | LogClosed):
                    self._in_flight.pop(queued_offset, None)
                in_flight.shared.fail(error)
            if error is failure:
                raise
            raise error from failure
        self.unsaved_bytes += size
        if assigned is not None:
            result = AppendResult(assigned, result.log_append_time)
        if in_flight is not None:
            if assigned is not None:
                self.producers.confirm(
                    in_flight.batch, queued_offset, assigned, result.log_append_time, in_flight.now
                )
            self._in_flight.pop(queued_offset, None)
            in_flight.shared.succeed(result)
        return result

    def snapshot(self) -> bytes:
        """The state of the idempotent producers, as `ProducerStateManager.load` reads it.

        The log is replayed from where the oldest batch in flight may have been stored. In a log that
        assigns offsets itself, such a batch can lie before `end_offset` although it is not
        acknowledged yet, and a failed acknowledgement leaves it stored.
        """
        end_offset = replay_from = self.log.end_offset
        oldest = next(iter(self._in_flight.values()), None)
        if oldest is not None:
            replay_from = min(replay_from, oldest.end_offset)
        if self.recovery is not None:
            replay_from = min(replay_from, self.recovery.offset)
        return self.producers.snapshot(end_offset, replay_from)

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """Whole entries from the one that holds `offset` on; see PartitionLog.read. Raises KafkaError."""
        try:
            entries = self.log.read_resident(offset, max_bytes)
            return await self.log.read(offset, max_bytes) if entries is None else entries
        except StorageError as failure:
            raise self.handle_storage_error(failure) from failure

    def skip_empty(self, offset: int, magic: int | None) -> int:
        """Where a consumer of format `magic` (None: any) at `offset` need only look from, by what was noted before."""
        first, end = self._empty_ranges.get(magic, (0, 0))
        return end if first <= offset < end else offset

    def mark_empty(self, first: int, end: int, magic: int | None) -> None:
        """There is nothing for consumers of format `magic` from `first` to before `end`: control batches, or what compaction left of others.

        Remembered so that a consumer gets over a stretch longer than one request may look at, and does not look at it again and again.
        """
        known_first, known_end = self._empty_ranges.get(magic, (0, 0))
        self._empty_ranges[magic] = (
            min(first, known_first) if known_first <= first <= known_end else first,
            end,
        )


async def _duplicate_result(
    duplicate: BatchMetadata, first: SharedResult[AppendResult] | None
) -> AppendResult:
    """A retry: the answer of the first try, once that is durable."""
    if first is not None:
        return await first
    return AppendResult(duplicate.base_offset, duplicate.log_append_time)


async def _result(result: SharedResult[AppendResult]) -> AppendResult:
    return await result


def _ignore_result(_: None) -> None:
    return


def _ignore_outcome(_: object) -> None:
    """Those who wait have the outcome from `_InFlightBatch.shared`."""


def _reraise(failure: BaseException) -> None:
    raise failure


async def _empty_append() -> AppendResult:
    return AppendResult(-1, -1)


def storage_error(failure: StorageError) -> KafkaError:
    """What a client is told of a store's failure, so that it does the right thing: look for another leader, or try again."""
    if isinstance(failure, OffsetOutOfRange):
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, str(failure))
    if isinstance(failure, EntryTooLarge):
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(failure))
    if isinstance(failure, NotAllowed):
        return KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "the gateway itself may not use this topic; its log says what to grant",
        )
    if isinstance(failure, UnknownTopic):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if isinstance(failure, Fenced | LogClosed):
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "this partition has another leader, or none"
        )
    if isinstance(failure, StorageFailed):
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, "the store could not do it; it is safe to try again"
        )
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, type(failure).__name__)
