"""One partition led by this gateway: assigns offsets, appends batches, tracks producer sequences.

A batch is queued synchronously, so that offsets follow the order of the calls. Its result is there
when the batch is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.configs.topic_configs import TopicConfig
from gateway.coroutines import SharedResult, start, when_ended
from gateway.partitions.producer_state import ProducerStateManager
from gateway.protocol.errors import KafkaError, storage_error
from gateway.protocol.wire import compiled
from gateway.protocol.wire.compiled import OpenPartitionState
from records import BatchHeader, stamp_batch
from records.batch import NO_PRODUCER_ID
from storage.log import (
    Buffer,
    Entry,
    EntryRun,
    Fenced,
    LogClosed,
    PartitionLog,
    StorageError,
)

if TYPE_CHECKING:
    from gateway.partitions.stored_records import MessageSet


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """Where records were appended.

    `log_append_time` (ms) is -1 if the topic keeps the producer's timestamps.
    """

    base_offset: int
    log_append_time: int


#: Message sets that must be recompressed and unpack to at least this many bytes are packed on
#: another thread: about 0.5 ms of work.
REPACK_IN_THREAD_BYTES = 64 << 10

#: Called with a partition whose log is fenced or closed.
FencedCallback = Callable[["Partition", StorageError], None]

#: Runs a function on another thread.
RunInThread = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _QueuedAppend:
    """An append waiting for a message set before it to be repacked.

    `queue` appends it to the log and returns its result, once it is durable.
    """

    queue: Callable[[], Awaitable[SharedResult[AppendResult]]]
    result: SharedResult[AppendResult] = field(default_factory=SharedResult)


class InFlightAppend(SharedResult[AppendResult]):
    """An append that the log has not acknowledged, and then its result.

    `queued` is the result if the log keeps the offsets. `batch` is that of an idempotent producer,
    else None; `end_offset` is the log end offset before it was queued.

    `compiled.in_flight_append` creates the same compiled.
    """

    __slots__ = ("_now", "_partition", "_queued", "_size", "batch", "end_offset")

    def __init__(
        self,
        partition: Partition,
        queued: AppendResult,
        size: int,
        batch: BatchHeader | None,
        now: int,
        end_offset: int,
    ) -> None:
        super().__init__()
        self._partition = partition
        self._queued = queued
        self._size = size
        self.batch = batch
        self._now = now
        self.end_offset = end_offset

    def stored(self, assigned: int | None) -> None:
        """The append is durable, at the offset `assigned` if the log assigns offsets itself."""
        partition, result = self._partition, self._queued
        try:
            partition.unsaved_bytes += self._size
            partition.unsaved_batches += 1
            if assigned is not None:
                result = partition.assign(self.batch, result, assigned, self._now)
            if self.batch is not None:
                partition.in_flight.pop(self._queued.base_offset, None)
        except Exception as bug:  # noqa: BLE001 - raised to the caller, whose connection is closed
            self.fail(bug)
        else:
            self.succeed(result)

    def refused(self, failure: BaseException) -> None:
        """Only this append: earlier ones may still be stored, and later ones fail on their own."""
        try:
            error = self._partition.forget_refused(self.batch, self._queued, failure)
        except Exception as bug:  # noqa: BLE001 - as in `stored`
            error = bug
        self.fail(error)


@dataclass(slots=True)
class ProducerRecovery:
    """A replay of the log that rebuilds the state of the idempotent producers.

    `offset` is the next offset to replay. Requests wait for the end of the replay until `deadline`,
    in seconds of the broker's clock. `is_behind_damage` is whether the entry before that offset is
    damaged, so that the next ones may be, too.
    """

    offset: int
    deadline: float
    is_behind_damage: bool = False
    finished: SharedResult[None] = field(default_factory=SharedResult)


class Partition(OpenPartitionState):
    """A partition led by this gateway.

    `config` is replaced whenever the topic's configs change. `plain_bytes` is the largest size of a
    batch that needs no check besides those of every batch, -1 if there is none; `keeps_timestamps`
    is whether the topic has the producers' timestamps. `on_fenced` may be called repeatedly once
    the log is fenced or closed; the registry then opens another Partition.
    """

    log: PartitionLog
    producers: ProducerStateManager

    __slots__ = (
        "_config",
        "_empty_ranges",
        "_has_remote_clients",
        "_on_fenced",
        "has_resigned",
        "index",
        "topic",
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
        self._has_remote_clients = False
        self.config = config
        self.producers = producers
        self._on_fenced = on_fenced
        #: While this is set, also after a failed recovery, batches of idempotent producers cannot
        #: be appended.
        self.recovery: ProducerRecovery | None = None
        #: Bytes and batches appended since the producer state was last saved.
        self.unsaved_bytes = self.unsaved_batches = 0
        # In-flight batches of idempotent producers by the offset at which they were queued, oldest
        # first. A retry waits for the first attempt. A batch with an unknown outcome stays, so that
        # snapshots do not skip it.
        self.in_flight: dict[int, InFlightAppend] = {}
        # The large message set being repacked and the appends after it. Nothing may overtake it,
        # since its offsets are part of the packed data.
        self._queued_appends: deque[_QueuedAppend] = deque()
        # By record format: the last known offset range (first, end) that has no records for
        # consumers of that format.
        self._empty_ranges: dict[int | None, tuple[int, int]] = {}
        self.has_resigned = False
        """Whether this gateway has stopped leading the partition (`resign`)."""

    @property
    def config(self) -> TopicConfig:
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self.keeps_timestamps = not config.is_log_append_time
        self._update_plain_bytes()

    @property
    def has_remote_clients(self) -> bool:
        """Whether other gateways have passed on records of clients that may soon send here."""
        return self._has_remote_clients

    @has_remote_clients.setter
    def has_remote_clients(self, value: bool) -> None:
        self._has_remote_clients = value
        self._update_plain_bytes()

    def _update_plain_bytes(self) -> None:
        is_plain = not (self._config.compacts or self._has_remote_clients)
        self.plain_bytes = self._config.max_message_bytes if is_plain else -1

    def resign(self) -> None:
        """End the waits for records: this gateway stops leading the partition.

        The log's watchers are called. Appends in flight continue; the log is closed after them.
        """
        self.has_resigned = True
        self.log.status.notify()

    @property
    def has_queued_appends(self) -> bool:
        """Whether appends wait behind a message set that is being repacked."""
        return bool(self._queued_appends)

    @property
    def is_closed(self) -> bool:
        """Whether the topic was deleted, the store is closing or another gateway leads the
        partition.
        """
        if self.has_resigned:
            return True
        if self.log.status.end_reason is None:
            return False
        try:
            self.log.read_resident(self.log.end_offset, 0)
        except (LogClosed, Fenced) as failure:
            self.handle_storage_error(failure)
            return True
        return False

    def handle_storage_error(self, failure: StorageError) -> KafkaError:
        """Return the client's error for a failure of this log; report a fenced or closed log."""
        if isinstance(failure, LogClosed | Fenced) and self._on_fenced is not None:
            self._on_fenced(self, failure)
        return storage_error(failure)

    def append_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str = ""
    ) -> Coroutine[Any, Any, AppendResult]:
        """As `queue_batch`; the coroutine returns when the batch is durable."""
        return self.queue_batch(records, batch, now, topic_name).wait()

    def queue_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str = ""
    ) -> SharedResult[AppendResult]:
        """Queue a checked v2 batch; it has a result when it is durable.

        The compiled `PlainProduce.append` does the same for most batches. KafkaError is raised
        immediately or is the result. `topic_name` is the name that the producer uses for the topic,
        if known.
        """
        if self._queued_appends:
            return self._enqueue_append(partial(self._queue_batch, records, batch, now, topic_name))
        return self._append_batch(records, batch, now, topic_name)

    async def _queue_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str
    ) -> SharedResult[AppendResult]:
        return self._append_batch(records, batch, now, topic_name)

    def _append_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str
    ) -> SharedResult[AppendResult]:
        log, has_producer = self.log, batch.producer_id > NO_PRODUCER_ID
        if has_producer:
            duplicate = self.producers.check(batch, topic_name)
            if duplicate is not None:
                # The result of the first attempt, once it is durable.
                first = self.in_flight.get(duplicate.base_offset)
                return first or _ended(
                    AppendResult(duplicate.base_offset, duplicate.log_append_time)
                )
        base_offset, end_offset = log.next_offset, log.end_offset
        log_append_time = now if self._config.is_log_append_time else None
        if log_append_time is not None or not compiled.stamp(
            records, base_offset, log.leader_epoch
        ):
            stamp_batch(records, base_offset, log.leader_epoch, log_append_time)
        timestamp = batch.max_timestamp if log_append_time is None else log_append_time
        entry = Entry(
            base_offset,
            base_offset + batch.last_offset_delta,
            timestamp if timestamp >= 0 else now,
            records,
        )
        result = AppendResult(base_offset, -1 if log_append_time is None else log_append_time)
        waiting = log.append((entry,))
        in_flight = _in_flight(
            self, result, len(records), batch if has_producer else None, now, end_offset
        )
        if has_producer:
            self.producers.append(
                batch, base_offset, result.log_append_time, log.end_offset, now, topic_name
            )
            self.in_flight[base_offset] = in_flight
        # If the log has already refused the batch, its state is removed here, before the next
        # batch is checked.
        when_ended(waiting, in_flight.stored, in_flight.refused)
        return in_flight

    def append_message_set(
        self, records: memoryview, checked: MessageSet, now: int, run: RunInThread | None = None
    ) -> Coroutine[Any, Any, AppendResult]:
        """As `queue_message_set`; the coroutine returns when the set is durable."""
        return self.queue_message_set(records, checked, now, run).wait()

    def queue_message_set(
        self, records: memoryview, checked: MessageSet, now: int, run: RunInThread | None = None
    ) -> SharedResult[AppendResult]:
        """Queue a checked message set of format 0 or 1, as `queue_batch`.

        An empty set is accepted and appends nothing, as in Kafka. If `run` is given, a large set is
        packed on another thread.
        """
        if not checked.count:
            return _ended(AppendResult(-1, -1))
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
            checked.stamp(records, base_offset, log_append_time),
            checked,
            base_offset,
            log_append_time,
            now,
        )

    def _append_time(self, checked: MessageSet, now: int) -> int | None:
        # Format 0 has no timestamps. Such a set arrives here only if the topic was switched to
        # LogAppendTime just now.
        return now if self.config.is_log_append_time and checked.magic == 1 else None

    async def _queue_set(
        self, records: memoryview, checked: MessageSet, now: int, run: RunInThread | None
    ) -> SharedResult[AppendResult]:
        while True:
            base_offset, log_append_time = self.log.next_offset, self._append_time(checked, now)
            if run is None:
                stamped = checked.stamp(records, base_offset, log_append_time)
            else:
                stamped = await run(checked.stamp, records, base_offset, log_append_time)
            if base_offset == self.log.next_offset:
                return self._append_set(stamped, checked, base_offset, log_append_time, now)
            # An earlier in-flight append failed meanwhile and its offsets were reassigned: repack.

    def _enqueue_append(
        self, queue: Callable[[], Awaitable[SharedResult[AppendResult]]]
    ) -> SharedResult[AppendResult]:
        queued = _QueuedAppend(queue)
        self._queued_appends.append(queued)
        if len(self._queued_appends) == 1:
            start(self._drain_queue(), _ignore_result, _reraise)
        return queued.result

    async def _drain_queue(self) -> None:
        """Append queued batches in order until the queue is empty."""
        while self._queued_appends:
            queued = self._queued_appends[0]
            try:
                waiting = await queued.queue()
            except Exception as failure:  # noqa: BLE001 - raised to the caller of that append
                queued.result.fail(failure)
            else:
                start(waiting.wait(), queued.result.succeed, queued.result.fail)
            self._queued_appends.popleft()

    def _append_set(
        self,
        stamped: Buffer,
        checked: MessageSet,
        base_offset: int,
        log_append_time: int | None,
        now: int,
    ) -> SharedResult[AppendResult]:
        timestamp = checked.max_timestamp if log_append_time is None else log_append_time
        # If no record has a timestamp, retention counts from now, as Kafka uses the modification
        # time of the segment file.
        entry = Entry(
            base_offset,
            base_offset + checked.count - 1,
            timestamp if timestamp >= 0 else now,
            stamped,
        )
        waiting = self.log.append((entry,))
        in_flight = _in_flight(
            self,
            AppendResult(base_offset, -1 if log_append_time is None else log_append_time),
            len(stamped),
            None,
            now,
            base_offset,
        )
        when_ended(waiting, in_flight.stored, in_flight.refused)
        return in_flight

    @staticmethod
    def result(base_offset: int, log_append_time: int) -> AppendResult:
        """The result of a compiled append."""
        return AppendResult(base_offset, log_append_time)

    def assign(
        self, batch: BatchHeader | None, queued: AppendResult, assigned: int, now: int
    ) -> AppendResult:
        """Return the result of an append to a log that has assigned its offset."""
        if batch is not None:
            self.producers.confirm(batch, queued.base_offset, assigned, queued.log_append_time, now)
        return AppendResult(assigned, queued.log_append_time)

    def forget_refused(
        self, batch: BatchHeader | None, queued: AppendResult, failure: BaseException
    ) -> BaseException:
        """Forget an append that failed. Returns the client's error."""
        if batch is not None:
            self.producers.remove_failed(batch.producer_id, queued.base_offset)
        error = failure
        if isinstance(failure, StorageError):
            error = self.handle_storage_error(failure)
            error.__cause__ = failure
        if batch is not None and not isinstance(failure, Fenced | LogClosed):
            self.in_flight.pop(queued.base_offset, None)
        return error

    async def wait_for(self, append: InFlightAppend) -> AppendResult:
        """As awaiting a compiled append."""
        ended: SharedResult[None] = SharedResult()
        append.when_done(partial(ended.succeed, None))
        await ended
        outcome = append.outcome(None)
        if not isinstance(outcome, AppendResult):
            raise outcome or RuntimeError("the append has not ended")
        return outcome

    def snapshot(self) -> bytes:
        """Return the producer state, readable by `ProducerStateManager.load`.

        Replay starts at the lowest offset at which the oldest in-flight batch may be stored. If the
        log assigns offsets itself, such a batch can lie before `end_offset` although it is not
        acknowledged, and it may be stored even if its acknowledgement failed.
        """
        end_offset = replay_from = self.log.end_offset
        oldest = next(iter(self.in_flight.values()), None)
        if oldest is not None:
            replay_from = min(replay_from, oldest.end_offset)
        if self.recovery is not None:
            replay_from = min(replay_from, self.recovery.offset)
        return self.producers.snapshot(end_offset, replay_from)

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """Return whole entries, starting with the one that contains `offset`; see
        PartitionLog.read.

        Raises KafkaError.
        """
        try:
            return await self.log.read(offset, max_bytes)
        except StorageError as failure:
            raise self.handle_storage_error(failure) from failure

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        """`PartitionLog.read_resident`. Raises KafkaError."""
        try:
            return self.log.read_resident(offset, max_bytes)
        except StorageError as failure:
            raise self.handle_storage_error(failure) from failure

    def read_run(self, offset: int, max_bytes: int, *, at_least_one: bool) -> EntryRun | None:
        """`PartitionLog.read_run`. Raises KafkaError."""
        try:
            return self.log.read_run(offset, max_bytes, at_least_one=at_least_one)
        except StorageError as failure:
            raise self.handle_storage_error(failure) from failure

    def skip_empty(self, offset: int, magic: int | None) -> int:
        """Return the next offset that may have records in format `magic` (None: any)."""
        if not self._empty_ranges:
            return offset
        first, end = self._empty_ranges.get(magic, (0, 0))
        return end if first <= offset < end else offset

    def mark_empty(self, first: int, end: int, magic: int | None) -> None:
        """Record that offsets from `first` to before `end` have no records for consumers of
        `magic`.

        Such ranges hold control batches or are left by compaction. Remembering them lets a consumer
        pass a range longer than one request may scan, without scanning it again.
        """
        known_first, known_end = self._empty_ranges.get(magic, (0, 0))
        self._empty_ranges[magic] = (
            min(first, known_first) if known_first <= first <= known_end else first,
            end,
        )


def _in_flight(*arguments: Any) -> InFlightAppend:
    return compiled.in_flight_append(*arguments) or InFlightAppend(*arguments)


def _ended(result: AppendResult) -> SharedResult[AppendResult]:
    """A result that is there already."""
    ended: SharedResult[AppendResult] = SharedResult()
    ended.succeed(result)
    return ended


def _ignore_result(_: None) -> None:
    return


def _reraise(failure: BaseException) -> None:
    raise failure
