"""Appends to partitions that another gateway leads, for producers that would fail otherwise.

Producers that do not retry by default (Java before 2.1, kafka-python 1 and 2) report
NOT_LEADER_OR_FOLLOWER to their application. They learn the new leader of a partition only from that
error, from a closed connection, or when they refresh their metadata, by default after five minutes.
So a gateway that does not lead a partition passes their records on to the leader.

The asked gateway authorizes, checks, converts and counts the records. The leader checks them again,
and appends them. The appends of a partition are passed on one call after the other, so that they
keep their order. Idempotent producers retry by themselves, and are answered with the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gateway import logs
from gateway.cluster.calls import CallFailed, CallRefused, Calls, CallUnanswered
from gateway.cluster.view import UNKNOWN, ClusterView
from gateway.configs.topic_configs import TopicConfig
from gateway.coroutines import Clock, SharedResult, gather, sleep, start
from gateway.partitions.partition import AppendResult, Partition
from gateway.partitions.record_batch import check_batch
from gateway.partitions.stored_records import check_message_set
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.registry import Topics
from gateway.topics.topic_state import TopicState
from records import BatchHeader, RecordsError
from records.layout import MAGIC_AT

if TYPE_CHECKING:
    from gateway.partitions.stored_records import MessageSet

_log = logs.get_logger(__name__)

APPEND = "append"

#: Calls in progress, to all gateways. They share the limits of `Calls` with other methods.
MAX_CALLS = 20

#: Most bytes of records in one call, unless one append is larger.
MAX_CALL_RECORD_BYTES = 256 << 10

#: Most bytes of records that wait for a call or its reply. More are refused.
MAX_WAITING_BYTES = 32 << 20

#: Timeout of an append in seconds, and between two attempts if the leader has not yet replayed that
#: it is the leader, or is closing.
APPEND_SECONDS, RETRY_SECONDS = 10.0, 0.05

#: Records of at least this size are checked on another thread; so are all message sets, because
#: they may be compressed.
LARGE_BATCH_BYTES = 1 << 20

#: The asked gateway has checked what the client's version may send. This one allows everything.
_PRODUCE_VERSION = 13


class RemoteAppendResult(AppendResult, frozen=True, gc=False):
    """Where the leader appended records. `log_start_offset` is that of the partition."""

    log_start_offset: int


class _Appends(msgspec.Struct, frozen=True, array_like=True):
    """Appends to one partition as the leader receives them.

    Each item of `records` is a batch or a message set. The leader writes its offsets into it.
    """

    topic_id: bytes
    index: int
    records: list[bytearray]


class _Appended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of one append. If `code` is not 0, `message` says what failed."""

    code: int = 0
    message: str = ""
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1


_DECODER = msgspec.msgpack.Decoder(_Appends)
_REPLY_DECODER = msgspec.msgpack.Decoder(list[_Appended])
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An append that is not answered yet. `deadline` is in seconds of the clock."""

    records: memoryview
    deadline: float
    result: SharedResult[AppendResult] = field(default_factory=SharedResult)


class RemotePartition:
    """A partition that another gateway leads: accepts records as `Partition` does.

    `refusal` is the error for requests that are not passed on.
    """

    __slots__ = ("_appends", "_state", "index", "refusal")

    def __init__(
        self, appends: RemoteAppends, state: TopicState, index: int, refusal: KafkaError
    ) -> None:
        self._appends = appends
        self._state = state
        self.index = index
        self.refusal = refusal

    @property
    def topic(self) -> str:
        return self._state.name

    @property
    def config(self) -> TopicConfig:
        return self._state.config

    def queue_batch(
        self, records: memoryview, _: BatchHeader, __: int, ___: str = ""
    ) -> SharedResult[AppendResult]:
        """As `Partition.queue_batch`, for a batch without a producer id."""
        return self._appends.queue(self._state, self.index, records, self.refusal)

    def queue_message_set(
        self, records: memoryview, checked: MessageSet, _: int, __: object = None
    ) -> SharedResult[AppendResult]:
        """As `Partition.queue_message_set`."""
        if not checked.count:
            result: SharedResult[AppendResult] = SharedResult()
            result.succeed(AppendResult(-1, -1))
            return result
        return self._appends.queue(self._state, self.index, records, self.refusal)


class RemoteAppends:
    """Passes appends on to the leaders of their partitions."""

    def __init__(self, calls: Calls, view: ClusterView, clock: Clock) -> None:
        self._calls = calls
        self._view = view
        self._clock = clock
        #: Appends by topic and partition, in order, while any of them waits or is passed on.
        self._queues: dict[tuple[bytes, int], tuple[int, deque[_Waiting]]] = {}
        #: The keys whose next appends can be passed on.
        self._ready: deque[tuple[bytes, int]] = deque()
        self._waiting_bytes = 0
        self._workers = 0

    def find_partition(
        self, state: TopicState, index: int, refusal: KafkaError
    ) -> RemotePartition | None:
        """Return a partition that another gateway leads, None if none is known to lead it."""
        if state.is_internal or self._leader_of(self._shard_of(state, index)) is None:
            return None
        return RemotePartition(self, state, index, refusal)

    def queue(
        self, state: TopicState, index: int, records: memoryview, refusal: KafkaError
    ) -> SharedResult[AppendResult]:
        """Pass on checked records without a producer id. They must not change meanwhile.

        The result is there when the leader has stored them. It is a RemoteAppendResult or a
        KafkaError: `refusal` if the records were certainly not appended.
        """
        append = _Waiting(records, self._clock.seconds() + APPEND_SECONDS)
        if self._waiting_bytes + len(records) > MAX_WAITING_BYTES:
            append.result.fail(refusal)
            return append.result
        self._waiting_bytes += len(records)
        key = state.topic.topic_id, index
        if key in self._queues:
            self._queues[key][1].append(append)
            return append.result
        self._queues[key] = self._shard_of(state, index), deque([append])
        self._ready.append(key)
        if self._workers < MAX_CALLS:
            self._workers += 1
            start(self._work(), lambda _: None, partial(_log.bug, "passing on appends failed"))
        return append.result

    def _shard_of(self, state: TopicState, index: int) -> int:
        return state.shard_of(index, self._view.shard_count)

    def _leader_of(self, shard: int) -> int | None:
        """The other gateway that leads a shard, None if none is known."""
        leader = self._view.leader_of(shard)
        if leader in (UNKNOWN, self._view.node_id) or self._view.is_cut_off:
            return None
        return leader

    async def _work(self) -> None:
        try:
            while self._ready:
                key = self._ready.popleft()
                shard, queue = self._queues[key]
                taken = _take(queue)
                await self._pass_on(key, shard, taken)
                self._waiting_bytes -= sum(len(one.records) for one in taken)
                if queue:
                    self._ready.append(key)
                else:
                    del self._queues[key]
        finally:
            self._workers -= 1

    async def _pass_on(
        self, key: tuple[bytes, int], shard: int, appends: Sequence[_Waiting]
    ) -> None:
        """Pass on some appends of a partition, and set their results."""
        outcomes: Sequence[AppendResult | KafkaError]
        try:
            replies = await self._call(key, shard, appends)
            outcomes = [_outcome(one) for _, one in zip(appends, replies, strict=True)]
        except KafkaError as failure:
            outcomes = [failure] * len(appends)
        except Exception as failure:  # noqa: BLE001 - the clients get an answer, also after a bug
            _log.bug("passing on an append failed", failure)
            outcomes = [KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)] * len(appends)
        for append, outcome in zip(appends, outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                append.result.fail(outcome)
            else:
                append.result.succeed(outcome)

    async def _call(
        self, key: tuple[bytes, int], shard: int, appends: Sequence[_Waiting]
    ) -> list[_Appended]:
        """Call the leader until it accepts the appends. Raises KafkaError."""
        asked = _ENCODER.encode((*key, [one.records for one in appends]))
        while True:
            leader, left = self._leader_of(shard), appends[0].deadline - self._clock.seconds()
            if leader is None or left <= 0:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            try:
                return _REPLY_DECODER.decode(await self._calls.call(leader, APPEND, asked, left))
            except CallRefused:
                await sleep(self._clock, min(RETRY_SECONDS, left))
            except CallUnanswered as failure:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(failure)) from failure
            except CallFailed as failure:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(failure)) from failure


def _outcome(appended: _Appended) -> AppendResult | KafkaError:
    if appended.code:
        return KafkaError(ErrorCode(appended.code), appended.message)
    return RemoteAppendResult(
        appended.base_offset, appended.log_append_time, appended.log_start_offset
    )


def _take(queue: deque[_Waiting]) -> list[_Waiting]:
    """Take the next appends from a queue, up to MAX_CALL_RECORD_BYTES or one that is larger."""
    taken = [queue.popleft()]
    size = len(taken[0].records)
    while queue and (size := size + len(queue[0].records)) <= MAX_CALL_RECORD_BYTES:
        taken.append(queue.popleft())
    return taken


def serve_appends(
    calls: Calls,
    topics: Topics,
    max_decompressed_bytes: Callable[[], int],
    run: Callable[..., Awaitable[Any]],
    now: Callable[[], int],
) -> None:
    """Append what other gateways pass on.

    A message set may unpack to `max_decompressed_bytes`. `run` calls a function on another thread,
    and `now` returns the time in milliseconds.
    """
    calls.serve(APPEND, _Server(topics, max_decompressed_bytes, run, now).append)


class _Server:
    def __init__(
        self,
        topics: Topics,
        max_decompressed_bytes: Callable[[], int],
        run: Callable[..., Awaitable[Any]],
        now: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._max_decompressed_bytes = max_decompressed_bytes
        self._run = run
        self._now = now

    async def append(self, payload: bytes) -> bytes:
        """Execute a call. Raises CallRefused if nothing was appended."""
        asked = _DECODER.decode(payload)
        views = [memoryview(one) for one in asked.records]
        checked = [await self._check(one) for one in views]
        try:
            partition = await self._topics.partition(asked.topic_id, asked.index)
        except KafkaError as failure:
            if failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise CallRefused(failure.message) from failure
            return _ENCODER.encode([_error(failure)] * len(views))
        # From here to the first wait, so that the order is kept.
        now = self._now()
        appends = [self._queue(partition, *one, now) for one in zip(views, checked, strict=True)]
        outcomes = await gather([one.wait() for one in appends])
        self._topics.save_if_due(partition)
        return _ENCODER.encode([_appended(one, partition) for one in outcomes])

    async def _check(self, records: memoryview) -> BatchHeader | MessageSet | KafkaError:
        try:
            if len(records) > MAGIC_AT and records[MAGIC_AT] == 2:
                if len(records) < LARGE_BATCH_BYTES:
                    return check_batch(records, _PRODUCE_VERSION)
                batch: BatchHeader = await self._run(check_batch, records, _PRODUCE_VERSION)
                return batch
            limit = self._max_decompressed_bytes()
            found: MessageSet = await self._run(_check_set, records, limit)
            return found
        except RecordsError as failure:
            return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(failure))
        except KafkaError as failure:
            return failure

    def _queue(
        self,
        partition: Partition,
        records: memoryview,
        checked: BatchHeader | MessageSet | KafkaError,
        now: int,
    ) -> SharedResult[AppendResult]:
        try:
            if isinstance(checked, KafkaError):
                raise checked
            if isinstance(checked, BatchHeader):
                return partition.queue_batch(records, checked, now)
            return partition.queue_message_set(records, checked, now, self._run)
        except KafkaError as failure:
            refused: SharedResult[AppendResult] = SharedResult()
            refused.fail(failure)
            return refused


def _check_set(records: memoryview, limit: int) -> MessageSet:
    return check_message_set(records, max_decompressed_bytes=limit)


def _error(failure: KafkaError) -> _Appended:
    # The name of a topic that is deleted may be that of the request.
    code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if failure.code is ErrorCode.UNKNOWN_TOPIC_ID
        else failure.code
    )
    return _Appended(code, failure.message)


def _appended(outcome: AppendResult | BaseException, partition: Partition) -> _Appended:
    if isinstance(outcome, AppendResult):
        return _Appended(
            0, "", outcome.base_offset, outcome.log_append_time, partition.log.start_offset
        )
    if isinstance(outcome, KafkaError):
        return _error(outcome)
    raise outcome
