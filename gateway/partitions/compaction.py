"""`cleanup.policy=compact`: of each key only the last record stays. When a partition is compacted, how far, and what is remembered of it.

Follows Kafka's LogCleaner. A pass reads the part of a log that no pass has read before into a map of keys, then goes over everything up to there and
takes away what the map knows a later record of; offsets do not change. There are no segments here: what Kafka leaves alone as the active
segment are the newest `segment.bytes` that are not older than `segment.ms`, and always the last entry.

Each piece is replaced in one durable step of the store, and only when a pass has ended is it noted how far it came. After a crash at any point the pass
is made again, over what it had left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from gateway import logs
from gateway.broker import Broker
from gateway.configs.topic_configs import CompactionConfig
from gateway.configs.value_types import LONG_MAX
from gateway.coroutines import Waiter
from gateway.partitions.latest_records import Cleaner, DeleteHorizon, OffsetMap, add_delete_horizon
from gateway.partitions.partition import Partition
from gateway.protocol.errors import KafkaError
from gateway.topics.topic_state import TopicState
from storage.log import (
    Entry,
    OffsetOutOfRange,
    PartitionLog,
    StateTable,
    StorageError,
    StorageFailed,
)

_log = logs.get_logger(__name__)

#: Keys that one pass remembers, some 100 to 150 bytes each: as much memory as Kafka's log.cleaner.dedupe.buffer.size. A log with more takes more passes.
MAX_KEYS = 1_000_000

#: What is read, rewritten and replaced at a time: some 50 ms of another thread's work, and little enough to hold.
CHUNK_BYTES = 4 << 20

#: Topics and partitions that are checked before the reactor gets a turn: some 5 us each.
CHECKS_PER_TURN = 500

_TOPIC_ID_BYTES = 16

#: Later than any time in ms.
_NEVER = LONG_MAX


class CleanerCheckpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the last pass over a partition ended, how many bytes it left before that, and where the log began then."""

    end: int = 0
    clean_bytes: int = 0
    start: int = 0
    horizons: list[DeleteHorizon] = []

    def clean_bytes_from(self, start_offset: int) -> int:
        """About how many of them are left when the log begins at `start_offset`."""
        if start_offset <= self.start or self.end <= self.start:
            return self.clean_bytes
        return self.clean_bytes * max(0, self.end - start_offset) // (self.end - self.start)


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """How far a pass may go: through the entries from `start` on, up to the first that it must leave alone.

    That is one that does not end before `end`, is newer than `newest` (ms), or neither begins within the first `old_bytes` bytes nor is as old as
    `old`.
    """

    start: int
    end: int
    old_bytes: int
    old: int
    newest: int

    def admits(self, entry: Entry, bytes_before: int) -> bool:
        """`bytes_before` are those of the entries from `start` to before this one."""
        if entry.last_offset >= self.end or entry.max_timestamp > self.newest:
            return False
        return bytes_before < self.old_bytes or entry.max_timestamp <= self.old


@dataclass(frozen=True, slots=True)
class IdlePartition:
    """A partition in which there is nothing to compact before `until` (ms), as long as the other values stay the same."""

    start: int
    end: int
    size: int
    config: CompactionConfig
    until: int


async def plan(
    log: PartitionLog, config: CompactionConfig, checkpoint: CleanerCheckpoint, now: int
) -> tuple[CleanableRange | None, int]:
    """How far a pass may go, None where none is worth it yet; and the time (ms) until which that stays so if the log does not change.

    The bytes that it is decided by are counted, or estimated from the offsets.
    """
    end = log.end_offset
    start = max(checkpoint.end, log.start_offset)
    clean = checkpoint.clean_bytes_from(log.start_offset)
    dirty = max(0, log.size - clean)
    if start >= end or not dirty:
        return None, _NEVER
    may_be_overdue = now > config.max_compaction_lag_ms
    if not may_be_overdue and not _is_above_dirty_ratio(dirty, clean, config):
        # Nothing needs to be read: no more than all of it can be cleanable.
        return None, _NEVER
    old_age = min(config.segment_ms, config.max_compaction_lag_ms)
    old = now - old_age
    newest = now - config.min_compaction_lag_ms if config.min_compaction_lag_ms else LONG_MAX
    until = _NEVER

    async def bytes_of_age(age: int) -> int:
        nonlocal until
        entry = await log.entry_for_time(now - age + 1)
        if entry is None:
            return dirty
        until = min(until, entry.max_timestamp + age)
        return dirty * max(0, entry.base_offset - start) // (end - start)

    cleanable = max(dirty - config.segment_bytes, await bytes_of_age(old_age))
    if newest < LONG_MAX:
        cleanable = min(cleanable, await bytes_of_age(config.min_compaction_lag_ms))
    if cleanable <= 0:
        return None, until
    if not _is_above_dirty_ratio(cleanable, clean, config):
        overdue_at = await _overdue_at(log, start, config) if may_be_overdue else _NEVER
        if now < overdue_at:
            return None, min(until, overdue_at)
    return CleanableRange(start, end - 1, dirty - config.segment_bytes, old, newest), until


def _is_above_dirty_ratio(cleanable: int, clean: int, config: CompactionConfig) -> bool:
    return cleanable / (clean + cleanable) > config.min_cleanable_dirty_ratio


async def _overdue_at(log: PartitionLog, start: int, config: CompactionConfig) -> int:
    """When the first record that is not compacted has waited for longer than `max.compaction.lag.ms`, in ms."""
    entries = await log.read(start, 1)
    if not entries or entries[0].max_timestamp <= 0:
        return _NEVER
    return entries[0].max_timestamp + config.max_compaction_lag_ms + 1


class LogCleaner:
    """The compacted topics of one broker. `run_once` checks each partition once; `stop` ends it at the next piece.

    A partition that was found idle costs no I/O until it changes. Space is reclaimed at the interval of retention, since that asks the store.
    """

    def __init__(
        self, broker: Broker, *, max_keys: int = MAX_KEYS, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._broker = broker
        self._max_keys = max_keys
        self._chunk_bytes = chunk_bytes
        self._table: StateTable | None = None
        self._checkpoints: dict[bytes, CleanerCheckpoint] = {}
        self._idle: dict[bytes, IdlePartition] = {}
        self._skipped_topics: set[bytes] = set()
        self._reclaim_at = 0
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    async def run_once(self) -> None:
        """Compact what is worth it. Failures are logged; the next round tries again."""
        now = self._broker.now()
        reclaim_due = now >= self._reclaim_at
        try:
            table = await self._open()
            if reclaim_due:
                await self._forget_deleted(table)
        except StorageError as failure:
            _log.warning("compaction cannot remember where it was", reason=str(failure))
            return
        if reclaim_due:
            self._reclaim_at = now + self._broker.settings.log_retention_check_interval_ms
        checked = 0
        for state in list(self._broker.topics):
            for index in range(state.topic.partitions):
                checked += 1
                if checked % CHECKS_PER_TURN == 0:
                    await Waiter(self._broker.clock).wait(0)
                if self._should_stop(state):
                    break
                await self._clean_if_due(state, index, table, reclaim_due=reclaim_due)

    async def _open(self) -> StateTable:
        if self._table is None:
            table = await self._broker.store.table("compaction")
            for key, row in await table.items():
                try:
                    self._checkpoints[key] = _DECODER.decode(row)
                except msgspec.MsgspecError:
                    # Nothing is lost by it: the next pass begins at the start of the log.
                    _log.warning("unreadable note of how far compaction came", key=key)
            self._table = table
        return self._table

    async def _forget_deleted(self, table: StateTable) -> None:
        self._skipped_topics = {
            topic_id for topic_id in self._skipped_topics if self._broker.topics.get(topic_id)
        }
        self._idle = {key: idle for key, idle in self._idle.items() if self._topic_exists(key)}
        gone = [key for key in self._checkpoints if not self._topic_exists(key)]
        if gone:
            await table.put(dict.fromkeys(gone))
            for key in gone:
                del self._checkpoints[key]

    def _topic_exists(self, key: bytes) -> bool:
        return self._broker.topics.get(key[:_TOPIC_ID_BYTES]) is not None

    def _should_stop(self, state: TopicState) -> bool:
        return (
            self._is_stopped
            or not state.config.compacts
            or self._broker.topics.get(state.name) is not state
        )

    async def _clean_if_due(
        self, state: TopicState, index: int, table: StateTable, *, reclaim_due: bool
    ) -> None:
        if index not in state.partitions and self._broker.store.retains_by_itself:
            # To open it would take it away from whoever leads it.
            return
        partition = None
        try:
            partition = await self._broker.topics.partition(state.name, index)
            if not partition.log.can_replace:
                self._warn_not_compacted(state)
                return
            if reclaim_due:
                await self._reclaim(state, partition)
            while await self._run_pass(state, partition, table):
                # There were more keys than one pass holds.
                pass
        except OffsetOutOfRange:
            _log.debug(
                "records were deleted while they were compacted", topic=state.name, partition=index
            )
        except (StorageError, KafkaError) as failure:
            if partition is not None and isinstance(failure, StorageError):
                partition.handle_storage_error(failure)
            if not self._should_stop(state):
                _log.warning(
                    "compaction failed", topic=state.name, partition=index, reason=str(failure)
                )

    async def _reclaim(self, state: TopicState, partition: Partition) -> None:
        try:
            await partition.log.reclaim()
        except StorageFailed as failure:
            _log.warning(
                "space is not freed yet",
                topic=state.name,
                partition=partition.index,
                reason=str(failure),
            )

    def _warn_not_compacted(self, state: TopicState) -> None:
        """Once a topic."""
        if state.topic.topic_id not in self._skipped_topics:
            self._skipped_topics.add(state.topic.topic_id)
            _log.warning(
                "this gateway does not compact the topic: its entry format is, or was, one that others share",
                topic=state.name,
            )

    async def _run_pass(self, state: TopicState, partition: Partition, table: StateTable) -> bool:
        """One pass where it is worth it; whether another should follow at once. Raises StorageError."""
        log, config, now = partition.log, state.config.compaction, self._broker.now()
        key = state.topic.topic_id + partition.index.to_bytes(4, "big")
        idle = self._idle.pop(key, None)
        if idle is not None and now < idle.until and idle == _idle_state(log, config, idle.until):
            self._idle[key] = idle
            return False
        checkpoint = self._checkpoints.get(key)
        if checkpoint is None or checkpoint.end > log.end_offset:
            # The log may have lost its end, as when only it was restored from a backup.
            checkpoint = CleanerCheckpoint(log.start_offset)
        before_pass = _idle_state(log, config, now)
        cleanable, until = await plan(log, config, checkpoint, now)
        if cleanable is None:
            self._idle[key] = replace(before_pass, until=until)
            return False
        size, start_offset = log.size, log.start_offset
        offset_map = await self._read_keys(state, log, cleanable)
        if offset_map.end == cleanable.start and not self._should_stop(state):
            # The estimate was wrong: all that is left is the last entry, or too new.
            self._idle[key] = replace(
                before_pass, until=now + self._broker.settings.log_retention_check_interval_ms
            )
        clean_bytes = (
            None
            if offset_map.end == cleanable.start
            else await self._rewrite_log(state, partition, offset_map, checkpoint.horizons)
        )
        if clean_bytes is None:
            return False
        horizons = checkpoint.horizons
        if offset_map.unreadable:
            # A value that a tombstone deletes may be among them: no tombstone of this pass may go.
            _warn_unreadable(partition, offset_map)
        else:
            horizons = add_delete_horizon(
                horizons, offset_map.end, self._broker.now(), config.delete_retention_ms
            )
        done = CleanerCheckpoint(offset_map.end, clean_bytes, start_offset, horizons)
        await table.put({key: _ENCODER.encode(done)})
        self._checkpoints[key] = done
        _log.debug(
            "compacted",
            topic=state.name,
            partition=partition.index,
            up_to=offset_map.end,
            keys=len(offset_map),
            before=size,
            after=log.size,
        )
        return offset_map.is_full

    async def _read_keys(
        self, state: TopicState, log: PartitionLog, cleanable: CleanableRange
    ) -> OffsetMap:
        """The keys of what the pass may reach, or of as much of it as there is room for."""
        offset_map = OffsetMap(
            cleanable.start, self._max_keys, self._broker.settings.max_decompressed_bytes
        )
        bytes_before = 0
        while not offset_map.is_full and not self._should_stop(state):
            admitted: list[Entry] = []
            entries = await log.read(offset_map.end, self._chunk_bytes)
            for entry in entries:
                if not cleanable.admits(entry, bytes_before):
                    break
                bytes_before += len(entry.payload)
                admitted.append(entry)
            if admitted:
                await self._broker.run(offset_map.add, admitted)
            if len(admitted) < len(entries) or not entries:
                break
        return offset_map

    async def _rewrite_log(
        self,
        state: TopicState,
        partition: Partition,
        offset_map: OffsetMap,
        horizons: Sequence[DeleteHorizon],
    ) -> int | None:
        """Rewrite the log up to the end of `offset_map`; the bytes that are left there, None where it was broken off."""
        log = partition.log
        cleaning = Cleaner(
            offset_map, horizons, self._broker.now(), self._broker.settings.max_decompressed_bytes
        )
        offset, left = log.start_offset, 0
        while offset < offset_map.end:
            entries = [
                entry
                for entry in await log.read(offset, self._chunk_bytes)
                if entry.base_offset < offset_map.end
            ]
            if not entries:
                break
            rewritten = await self._broker.run(
                cleaning.rewrite, entries, _last_durable_offsets(partition)
            )
            if self._should_stop(state):
                return None
            await _replace(log, entries, rewritten)
            # One that the pass ended in the middle of is where the next begins.
            left += sum(
                len(entry.payload)
                for entry in rewritten
                if entry is not None and entry.last_offset < offset_map.end
            )
            offset = entries[-1].last_offset + 1
        return left


def _idle_state(log: PartitionLog, config: CompactionConfig, until: int) -> IdlePartition:
    return IdlePartition(log.start_offset, log.end_offset, log.size, config, until)


async def _replace(
    log: PartitionLog, entries: Sequence[Entry], rewritten: Sequence[Entry | None]
) -> None:
    """Store what has become of `entries`, from the first to the last that changed."""
    changed = [
        n
        for n, (before, after) in enumerate(zip(entries, rewritten, strict=True))
        if before is not after
    ]
    if changed:
        first, last = changed[0], changed[-1]
        left = [entry for entry in rewritten[first : last + 1] if entry is not None]
        await log.replace(entries[first].base_offset, entries[last].last_offset, left)


def _warn_unreadable(partition: Partition, offset_map: OffsetMap) -> None:
    offset, reason = next(iter(offset_map.unreadable.items()))
    count = len(offset_map.unreadable)
    message = "some records cannot be read and were not compacted"
    _log.warning(
        message,
        topic=partition.topic,
        partition=partition.index,
        entries=count,
        first_offset=offset,
        reason=reason,
    )


def _last_durable_offsets(partition: Partition) -> set[int]:
    """The last offset of each producer's last batch that is durable: those in flight may fail yet."""
    end = partition.log.end_offset
    return {
        max((sent.last_offset for sent in producer.batches if sent.last_offset < end), default=-1)
        for _, producer in partition.producers
    }


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(CleanerCheckpoint)
