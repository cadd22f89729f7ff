"""Appends to partitions that another gateway leads, for producers that would fail otherwise.

Producers that do not retry by default (Java before 2.1, kafka-python 1 and 2) report
NOT_LEADER_OR_FOLLOWER to their application. They learn the new leader of a partition only from that
error, from a closed connection, or when they refresh their metadata, by default after five minutes.
So a gateway that does not lead a partition passes their records on to the leader.

The asked gateway authorizes, checks, converts and counts the records. The leader checks their
format again, and appends them. Idempotent producers retry by themselves, and are answered with the
error.

Records keep their order: those of a partition are passed on in one call after the other. A client
that has found the leader may send the next records there before the earlier ones have arrived. So
the leader keeps the clients whose records were passed on, and with the first request of such a
client it waits until the other gateway has passed on what it has (`finish_earlier`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gateway import logs
from gateway.cluster.calls import CallError, CallFailed, CallRefused, Calls, CallUnanswered
from gateway.cluster.view import UNKNOWN, ClusterView
from gateway.configs.topic_configs import TopicConfig
from gateway.coroutines import Clock, SharedResult, sleep, start
from gateway.partitions.partition import AppendResult, Partition
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.append_server import Appended, AppendServer, PartitionKey
from gateway.topics.topic_state import TopicState
from records import BatchHeader

if TYPE_CHECKING:
    from gateway.partitions.stored_records import MessageSet

_log = logs.get_logger(__name__)

APPEND, FINISH = "append", "finish-appends"

#: Calls in progress to one leader. They share the limits of `Calls` with other methods.
MAX_CALLS_TO_LEADER = 20

#: Most bytes of records in one call, unless one append is larger.
MAX_CALL_RECORD_BYTES = 256 << 10

#: Most bytes of records that wait for a call or its reply. More are refused.
MAX_WAITING_BYTES = 32 << 20

#: Timeout of an append in seconds, shorter than the request timeout of every client; the time
#: between two attempts if the leader has not yet replayed that it is the leader, or is closing; and
#: the least time for another attempt.
APPEND_SECONDS, RETRY_SECONDS, LAST_ATTEMPT_SECONDS = 5.0, 0.05, 0.5


class RemoteAppendResult(AppendResult, frozen=True, gc=False):
    """Where the leader appended records. `log_start_offset` is that of the partition."""

    log_start_offset: int


_KEY_DECODER = msgspec.msgpack.Decoder(PartitionKey)
_REPLY_DECODER = msgspec.msgpack.Decoder(list[Appended])
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An append that is not answered yet. `deadline` is in seconds of the clock."""

    records: memoryview
    client: str
    deadline: float
    result: SharedResult[AppendResult] = field(default_factory=SharedResult)


@dataclass(slots=True)
class _Queue:
    """The appends of a partition.

    `waiting` are those that are not passed on yet, in order; `last` is the result of the last one.
    """

    state: TopicState
    last: SharedResult[AppendResult]
    waiting: deque[_Waiting] = field(default_factory=deque)


class RemotePartition:
    """A partition that another gateway leads: accepts the records of a client as `Partition` does.

    `refusal` is the error for requests that are not passed on.
    """

    __slots__ = ("_appends", "_client", "_state", "index", "refusal")

    def __init__(
        self,
        appends: RemoteAppends,
        state: TopicState,
        index: int,
        client: str,
        refusal: KafkaError,
    ) -> None:
        self._appends = appends
        self._state = state
        self._client = client
        self.index = index
        self.refusal = refusal

    @property
    def topic(self) -> str:
        return self._state.name

    @property
    def config(self) -> TopicConfig:
        return self._state.config

    def queue_batch(
        self, records: memoryview, batch: BatchHeader, now: int, topic_name: str = ""
    ) -> SharedResult[AppendResult]:
        """As `Partition.queue_batch`, for a batch without a producer id."""
        return self._appends.queue(self._state, self.index, self._client, records)

    def queue_message_set(
        self, records: memoryview, checked: MessageSet, now: int, run: object = None
    ) -> SharedResult[AppendResult]:
        """As `Partition.queue_message_set`."""
        if not checked.count:
            return _ended(AppendResult(-1, -1))
        return self._appends.queue(self._state, self.index, self._client, records)


class RemoteAppends:
    """Passes appends on to the leaders of their partitions; `server` appends what others do."""

    def __init__(self, calls: Calls, view: ClusterView, clock: Clock, server: AppendServer) -> None:
        self._calls = calls
        self._view = view
        self._clock = clock
        self._server = server
        #: By partition, while any of its appends waits or is passed on.
        self._queues: dict[PartitionKey, _Queue] = {}
        #: By leader, the partitions whose next appends can be passed on.
        self._ready: dict[int, deque[PartitionKey]] = {}
        self._workers: Counter[int] = Counter()
        self._waiting_bytes = 0
        calls.serve(APPEND, server.append)
        calls.serve(FINISH, self._finish)

    def find_partition(
        self, state: TopicState, index: int, client: str, refusal: KafkaError
    ) -> RemotePartition | None:
        """Return a partition that another gateway leads, None if none is known to lead it.

        `client` identifies the client among those of a partition.
        """
        leader = self._leader_of(state, index)
        if state.is_internal or leader in (None, self._view.node_id):
            return None
        return RemotePartition(self, state, index, client, refusal)

    def queue(
        self, state: TopicState, index: int, client: str, records: memoryview
    ) -> SharedResult[AppendResult]:
        """Pass on checked records without a producer id. They must not change meanwhile.

        The result is there when the leader has stored them. It is a RemoteAppendResult or a
        KafkaError: NOT_LEADER_OR_FOLLOWER if the records were certainly not appended.
        """
        append = _Waiting(records, client, self._clock.seconds() + APPEND_SECONDS)
        leader = self._leader_of(state, index)
        if leader is None or self._waiting_bytes + len(records) > MAX_WAITING_BYTES:
            append.result.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return append.result
        self._waiting_bytes += len(records)
        key = state.topic.topic_id, index
        queue = self._queues.get(key)
        if queue is not None:
            queue.waiting.append(append)
            queue.last = append.result
            return append.result
        self._queues[key] = _Queue(state, append.result, deque([append]))
        self._ready.setdefault(leader, deque()).append(key)
        if self._workers[leader] < MAX_CALLS_TO_LEADER:
            self._workers[leader] += 1
            start(self._work(leader), _ignore, partial(_log.bug, "passing on appends failed"))
        return append.result

    async def finish_earlier(self, partition: Partition, client: str) -> None:
        """Wait until another gateway has passed on what it has of a client's records."""
        node_id = self._server.forget_client(partition, client)
        if node_id is None:
            return
        state = self._server.topics.get(partition.topic)
        if state is not None:
            asked = _ENCODER.encode((state.topic.topic_id, partition.index))
            try:
                await self._calls.call(node_id, FINISH, asked, APPEND_SECONDS)
            except CallError as failure:
                # It has ended, for example: then it passes nothing on any more.
                _log.debug("appends of another gateway not awaited", reason=str(failure))
            # They have been noted again when the last of its records arrived.
            self._server.forget_client(partition, client)

    async def finish(self) -> None:
        """Wait until all appends have a result."""
        for queue in list(self._queues.values()):
            await _wait_for(queue)

    async def _finish(self, payload: bytes) -> bytes:
        queue = self._queues.get(_KEY_DECODER.decode(payload))
        if queue is not None:
            await _wait_for(queue)
        return b""

    def _leader_of(self, state: TopicState, index: int) -> int | None:
        """The gateway that leads a partition, None if none is known."""
        leader = self._view.leader_of(state.shard_of(index, self._view.shard_count))
        return None if leader == UNKNOWN or self._view.is_cut_off else leader

    async def _work(self, leader: int) -> None:
        """Pass on what is ready for a leader. It may have another one by the time of its call."""
        ready = self._ready[leader]
        try:
            while ready:
                key = ready.popleft()
                queue = self._queues[key]
                taken = _take(queue.waiting)
                await self._pass_on(key, queue.state, taken)
                self._waiting_bytes -= sum(len(one.records) for one in taken)
                if queue.waiting:
                    ready.append(key)
                else:
                    del self._queues[key]
        finally:
            self._workers[leader] -= 1
            if not ready and not self._workers[leader]:
                del self._workers[leader], self._ready[leader]

    async def _pass_on(
        self, key: PartitionKey, state: TopicState, appends: Sequence[_Waiting]
    ) -> None:
        """Pass on some appends of a partition, and set their results."""
        outcomes: Sequence[AppendResult | KafkaError]
        try:
            replies = await self._call(key, state, appends)
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
        self, key: PartitionKey, state: TopicState, appends: Sequence[_Waiting]
    ) -> list[Appended]:
        """Call the leader until it accepts the appends. Raises KafkaError."""
        clients = list(dict.fromkeys(one.client for one in appends))
        records = [one.records for one in appends]
        while True:
            leader = self._leader_of(state, key[1])
            left = appends[0].deadline - self._clock.seconds()
            if state.is_deleted:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if leader is None or left < LAST_ATTEMPT_SECONDS:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            is_local = leader == self._view.node_id
            # Nothing has to be finished for clients that are connected to the leader.
            asked = (self._view.node_id, *key, left, [] if is_local else clients, records)
            payload = _ENCODER.encode(asked)
            try:
                if is_local:
                    reply = await self._server.append(payload)
                else:
                    reply = await self._calls.call(leader, APPEND, payload, left)
                return _REPLY_DECODER.decode(reply)
            except CallRefused:
                await sleep(self._clock, RETRY_SECONDS)
            except CallUnanswered as failure:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(failure)) from failure
            except CallFailed as failure:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(failure)) from failure


def _ignore(_: None) -> None:
    return


def _ended(result: AppendResult) -> SharedResult[AppendResult]:
    ended: SharedResult[AppendResult] = SharedResult()
    ended.succeed(result)
    return ended


async def _wait_for(queue: _Queue) -> None:
    """Wait until all appends that are in a queue now have a result."""
    ended: SharedResult[None] = SharedResult()
    queue.last.when_done(partial(ended.succeed, None))
    await ended


def _outcome(appended: Appended) -> AppendResult | KafkaError:
    if appended.code:
        try:
            return KafkaError(ErrorCode(appended.code), appended.message)
        except ValueError:
            # A code of a later version.
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, appended.message)
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
