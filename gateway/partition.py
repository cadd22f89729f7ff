"""The leader of one partition: numbers, stamps and appends what producers send, and remembers their sequences.

Everything up to the append happens at once, so that the order of the calls is the order of the offsets. What comes back is the wait for
durability.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from compat.records import MessageSet, stamp_message_set
from gateway.errors import ErrorCode, KafkaError
from gateway.producers import Producers, Sent
from gateway.records import Batch, stamp_batch
from gateway.topic_configs import TopicConfig
from gateway.waiting import Shared
from storage.log import Entry, Fenced, LogClosed, OffsetOutOfRange, PartitionLog, StorageError, StorageFailed, UnknownTopic


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where records went. `log_append_time` (ms) is -1 where the topic keeps the producer's timestamps."""

    base_offset: int
    log_append_time: int


class Partition:
    """One partition that this gateway leads. `config` is replaced whenever the topic's configs change."""

    __slots__ = ("_in_flight", "_invisible", "config", "index", "log", "producers", "topic", "unsaved_bytes")

    def __init__(self, topic: str, index: int, log: PartitionLog, config: TopicConfig, producers: Producers) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.config = config
        self.producers = producers
        #: Bytes appended since the producers' state was last saved.
        self.unsaved_bytes = 0
        # Appends of idempotent producers that are not durable yet, by base offset: a retry waits for the first try.
        self._in_flight: dict[int, Shared[Appended]] = {}
        # By format, the last stretch of offsets found to hold nothing for its consumers: (first, the one after).
        self._invisible: dict[int | None, tuple[int, int]] = {}

    @property
    def is_closed(self) -> bool:
        """The topic was deleted, or the store is closing."""
        try:
            self.log.read_resident(self.log.end_offset, 0)
        except LogClosed:
            return True
        return False

    def append_batch(self, records: memoryview, batch: Batch, now: int) -> Coroutine[Any, Any, Appended]:
        """Queue a checked v2 batch; the coroutine ends when it is durable. Raises KafkaError at once, or later through the coroutine."""
        if batch.has_producer:
            twin = self.producers.check(batch)
            if twin is not None:
                # Looked up now: by the time the coroutine runs the first try may have failed, and be forgotten.
                return _again(twin, self._in_flight.get(twin.base_offset))
        base_offset = self.log.next_offset
        log_append_time = now if self.config.is_log_append_time else None
        stamp_batch(records, base_offset, self.log.leader_epoch, log_append_time)
        timestamp = batch.max_timestamp if log_append_time is None else log_append_time
        entry = Entry(base_offset, base_offset + batch.last_offset_delta, timestamp if timestamp >= 0 else now, records)
        result = Appended(base_offset, -1 if log_append_time is None else log_append_time)
        waiting = self.log.append((entry,))
        if not batch.has_producer:
            return self._finish(waiting, result, len(records), None)
        self.producers.note(batch, base_offset, result.log_append_time, self.log.end_offset, now)
        shared: Shared[Appended] = Shared()
        self._in_flight[base_offset] = shared
        return self._finish(waiting, result, len(records), shared)

    def append_message_set(self, records: memoryview, checked: MessageSet, now: int) -> Coroutine[Any, Any, Appended]:
        """Queue a checked set of format 0 or 1, as `append_batch`. An empty one is taken and comes to nothing, as in Kafka."""
        if not checked.count:
            return _nothing()
        base_offset = self.log.next_offset
        # Format 0 has no timestamps to set.
        log_append_time = now if self.config.is_log_append_time and checked.magic == 1 else None
        stamped = stamp_message_set(records, checked, base_offset, log_append_time)
        timestamp = checked.max_timestamp if log_append_time is None else log_append_time
        # Where no record says when it was written, retention counts from now, as Kafka's does from the time of the segment's file.
        entry = Entry(base_offset, base_offset + checked.count - 1, timestamp if timestamp >= 0 else now, stamped)
        waiting = self.log.append((entry,))
        return self._finish(waiting, Appended(base_offset, -1 if log_append_time is None else log_append_time), len(stamped), None)

    async def _finish(self, waiting: Any, result: Appended, size: int, shared: Shared[Appended] | None) -> Appended:
        try:
            await waiting
        except Exception as failure:
            # A bug too: a retry must not wait for ever.
            self.producers.rewind(self.log.end_offset)
            error = storage_error(failure) if isinstance(failure, StorageError) else failure
            if shared is not None:
                self._in_flight.pop(result.base_offset, None)
                shared.fail(error)
            if error is failure:
                raise
            raise error from failure
        self.unsaved_bytes += size
        if shared is not None:
            self._in_flight.pop(result.base_offset, None)
            shared.succeed(result)
        return result

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """Whole entries from the one that holds `offset` on; see PartitionLog.read. Raises KafkaError."""
        try:
            entries = self.log.read_resident(offset, max_bytes)
            return await self.log.read(offset, max_bytes) if entries is None else entries
        except StorageError as failure:
            raise storage_error(failure) from failure

    def visible_from(self, offset: int, magic: int | None) -> int:
        """Where a consumer of format `magic` (None: any) at `offset` need only look from, by what was noted before."""
        first, end = self._invisible.get(magic, (0, 0))
        return end if first <= offset < end else offset

    def note_invisible(self, first: int, end: int, magic: int | None) -> None:
        """There is nothing for consumers of format `magic` from `first` to before `end`: control batches, or what compaction left of others.

        Remembered so that a consumer gets over a stretch longer than one request may look at, and does not look at it again and again.
        """
        known_first, known_end = self._invisible.get(magic, (0, 0))
        self._invisible[magic] = (min(first, known_first) if known_first <= first <= known_end else first, end)


async def _again(twin: Sent, first: Shared[Appended] | None) -> Appended:
    """A retry: the answer of the first try, once that is durable."""
    if first is not None:
        await first
    return Appended(twin.base_offset, twin.log_append_time)


async def _nothing() -> Appended:
    return Appended(-1, -1)


def storage_error(failure: StorageError) -> KafkaError:
    """What a client is told of a store's failure, so that it does the right thing: look for another leader, or try again."""
    if isinstance(failure, OffsetOutOfRange):
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, str(failure))
    if isinstance(failure, UnknownTopic):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if isinstance(failure, Fenced | LogClosed):
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this partition has another leader, or none")
    if isinstance(failure, StorageFailed):
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the store could not do it; it is safe to try again")
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, type(failure).__name__)
