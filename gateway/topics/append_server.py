"""Appends what other gateways pass on (`remote_appends`) to partitions of this one.

It keeps the clients whose records were passed on, until they send records here themselves.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gateway import logs
from gateway.cluster.calls import CallRefused
from gateway.coroutines import Clock, SharedResult, gather
from gateway.partitions.partition import AppendResult, Partition
from gateway.partitions.record_batch import check_batch
from gateway.partitions.stored_records import check_message_set
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.registry import Topics
from records import BatchHeader, RecordsError, RecordsTooLarge
from records.layout import MAGIC_AT

if TYPE_CHECKING:
    from gateway.partitions.stored_records import MessageSet

_log = logs.get_logger(__name__)

#: Batches of at least this size are checked on another thread, and message sets that unpack to at
#: least the second one.
LARGE_BATCH_BYTES, LARGE_SET_BYTES = 1 << 20, 64 << 10

#: Clients whose records were passed on, by partition, at most; the oldest are forgotten.
MAX_CLIENTS = 10_000

#: The asked gateway has checked what the client's version may send. This one allows everything.
_PRODUCE_VERSION = 13

#: Topic id and partition.
PartitionKey = tuple[bytes, int]


class PassedAppends(msgspec.Struct, frozen=True, array_like=True):
    """Appends to one partition as the leader receives them from `node_id`.

    `seconds` is the time until they are given up. `clients` are those that sent the records. Each
    item of `records` is a batch or a message set; the leader writes its offsets into it.
    """

    node_id: int
    topic_id: bytes
    index: int
    seconds: float
    clients: list[str]
    records: list[bytearray]


class Appended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of one append. If `code` is not 0, `message` says what failed."""

    code: int = 0
    message: str = ""
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1


_DECODER = msgspec.msgpack.Decoder(PassedAppends)
_ENCODER = msgspec.msgpack.Encoder()


class AppendServer:
    """Appends what other gateways pass on to partitions of this one.

    A message set may unpack to `max_decompressed_bytes`. `run` calls a function on another thread,
    and `now` returns the time in milliseconds.
    """

    def __init__(
        self,
        topics: Topics,
        max_decompressed_bytes: Callable[[], int],
        run: Callable[..., Awaitable[Any]],
        now: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.topics = topics
        self._max_decompressed_bytes = max_decompressed_bytes
        self._run = run
        self._now = now
        self.clock = clock
        #: The gateway that passed records on, by partition and client; the oldest first.
        self._clients: OrderedDict[tuple[PartitionKey, str], int] = OrderedDict()
        self._clients_of: Counter[PartitionKey] = Counter()

    async def append(self, payload: bytes) -> bytes:
        """Execute a call. Raises CallRefused if nothing was appended."""
        asked = _DECODER.decode(payload)
        until = self.clock.seconds() + asked.seconds
        key = asked.topic_id, asked.index
        for client in asked.clients:
            self._note_client(key, client, asked.node_id)
        views = [memoryview(one) for one in asked.records]
        checked = [await self._check(one) for one in views]
        try:
            partition = await self.topics.partition(*key)
        except KafkaError as failure:
            if failure.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID):
                # This gateway may not have replayed the topic yet.
                raise CallRefused(failure.message) from failure
            return _ENCODER.encode([_error(failure)] * len(views))
        if self.clock.seconds() >= until:
            raise CallRefused("the time for the append has passed")
        # From here to the first wait without interruption, so that the order is kept.
        partition.has_remote_clients = key in self._clients_of
        now = self._now()
        appends = [self._queue(partition, *one, now) for one in zip(views, checked, strict=True)]
        outcomes = await gather([one.wait() for one in appends])
        self.topics.save_if_due(partition)
        return _ENCODER.encode([_appended(one, partition) for one in outcomes])

    def forget_client(self, partition: Partition, client: str) -> int | None:
        """The gateway that passed on records of a client to this partition, None if none did.

        It is returned once.
        """
        state = self.topics.get(partition.topic)
        if state is None:
            return None
        key = state.topic.topic_id, partition.index
        node_id = self._clients.pop((key, client), None)
        if node_id is not None:
            self._count_down(key)
        partition.has_remote_clients = key in self._clients_of
        return node_id

    def _note_client(self, key: PartitionKey, client: str, node_id: int) -> None:
        if (key, client) not in self._clients:
            self._clients_of[key] += 1
            if len(self._clients) >= MAX_CLIENTS:
                (oldest, _), _ = self._clients.popitem(last=False)
                self._count_down(oldest)
        self._clients[key, client] = node_id
        self._clients.move_to_end((key, client))

    def _count_down(self, key: PartitionKey) -> None:
        self._clients_of[key] -= 1
        if not self._clients_of[key]:
            del self._clients_of[key]

    async def _check(self, records: memoryview) -> BatchHeader | MessageSet | KafkaError:
        try:
            if len(records) > MAGIC_AT and records[MAGIC_AT] == 2:
                if len(records) < LARGE_BATCH_BYTES:
                    return check_batch(records, _PRODUCE_VERSION)
                batch: BatchHeader = await self._run(check_batch, records, _PRODUCE_VERSION)
                return batch
            limit = self._max_decompressed_bytes()
            if len(records) < LARGE_SET_BYTES:
                try:
                    return _check_set(records, min(limit, LARGE_SET_BYTES))
                except RecordsTooLarge:
                    # Small only while compressed.
                    pass
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


def _error(failure: KafkaError) -> Appended:
    return Appended(failure.code, failure.message)


def _appended(outcome: AppendResult | BaseException, partition: Partition) -> Appended:
    if isinstance(outcome, AppendResult):
        return Appended(
            0, "", outcome.base_offset, outcome.log_append_time, partition.log.start_offset
        )
    if isinstance(outcome, KafkaError):
        return _error(outcome)
    _log.bug("append of another gateway failed", outcome, topic=partition.topic)
    return Appended(ErrorCode.UNKNOWN_SERVER_ERROR)
