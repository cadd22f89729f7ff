"""Log compaction (`cleanup.policy=compact`): keeps the latest record of each key.

Follows Kafka's LogCleaner. A pass reads the dirty part of the log, which no earlier pass has read,
into a map of the last offset of each key. It then rewrites the log up to there without the records
that the map supersedes. Offsets do not change.

There are no segments. Instead of Kafka's active segment, the newest `segment.bytes` that are not
older than `segment.ms` are left alone, and always the last entry.

Each chunk is replaced atomically and durably. The checkpoint is stored only at the end of a pass;
after a crash the pass is repeated over what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from gateway import logs
from gateway.broker import Broker
from gateway.cluster.shard_tables import ShardTables
from gateway.configs.topic_configs import CompactionConfig
from gateway.configs.value_types import LONG_MAX
from gateway.coroutines import TimeSlices
from gateway.partitions.latest_records import Cleaner, DeleteHorizon, OffsetMap, add_delete_horizon
from gateway.partitions.partition import Partition
from gateway.protocol.errors import KafkaError
from gateway.topics.topic_state import TopicState
from storage.log import (
    Entry,
    EntryDamaged,
    OffsetOutOfRange,
    PartitionLog,
    StorageError,
    StorageFailed,
)

_log = logs.get_logger(__name__)

#: Keys remembered per pass, 100 to 150 bytes each: as much memory as Kafka's
#: log.cleaner.dedupe.buffer.size. A log with more keys takes several passes.
MAX_KEYS = 1_000_000

#: Bytes read, rewritten and replaced at a time: about 50 ms of work on another thread.
CHUNK_BYTES = 4 << 20

#: Partitions checked, about 5 us each, before yielding to the reactor.
CHECKS_PER_TURN = 500

_TOPIC_ID_BYTES = 16

#: Later than any time in milliseconds.
_NEVER = LONG_MAX


class CleanerCheckpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Result of the last pass over a partition.

    `end` is the first dirty offset, `clean_bytes` the size of the log before it, and `start` the
    log start offset at that time.
    """

    end: int = 0
    clean_bytes: int = 0
    start: int = 0
    horizons: list[DeleteHorizon] = []

    def clean_bytes_from(self, start_offset: int) -> int:
        """Estimate the clean bytes that remain when the log starts at `start_offset`."""
        if start_offset <= self.start or self.end <= self.start:
            return self.clean_bytes
        return self.clean_bytes * max(0, self.end - start_offset) // (self.end - self.start)


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """The entries that a pass may clean: from `start` up to the first that is not admitted.

    An entry is admitted if it ends before `end`, is not newer than `newest` (ms), and either starts
    within the first `old_bytes` bytes or is not newer than `old` (ms).
    """

    start: int
    end: int
    old_bytes: int
    old: int
    newest: int

    def admits(self, entry: Entry | EntryDamaged, bytes_before: int) -> bool:
        """Whether the entry may be cleaned; `bytes_before` counts from `start` to the entry."""
        if entry.last_offset >= self.end or entry.max_timestamp > self.newest:
            return False
        return bytes_before < self.old_bytes or entry.max_timestamp <= self.old


@dataclass(frozen=True, slots=True)
class IdlePartition:
    """State of a partition that has nothing to clean until `until` (ms) unless the rest changes."""

    start: int
    end: int
    size: int
    config: CompactionConfig
    until: int


async def plan(
    log: PartitionLog, config: CompactionConfig, checkpoint: CleanerCheckpoint, now: int
) -> tuple[CleanableRange | None, int]:
    """Return the range that a pass should clean, or None, and until when (ms) this holds.

    The second value is valid while the log does not change. Byte counts are exact or estimated from
    offsets.
    """
    end = log.end_offset
    start = max(checkpoint.end, log.start_offset)
    clean = checkpoint.clean_bytes_from(log.start_offset)
    dirty = max(0, log.size - clean)
    if start >= end or not dirty:
        return None, _NEVER
    may_be_overdue = now > config.max_compaction_lag_ms
    if not may_be_overdue and not _is_above_dirty_ratio(dirty, clean, config):
        # No need to read the log: at most all dirty bytes are cleanable.
        return None, _NEVER
    old_age = min(config.segment_ms, config.max_compaction_lag_ms)
    old = now - old_age
    newest = now - config.min_compaction_lag_ms if config.min_compaction_lag_ms else LONG_MAX
    until = _NEVER

    async def bytes_of_age(age: int) -> int:
        nonlocal until
        entry: Entry | EntryDamaged | None
        try:
            entry = await log.entry_for_time(now - age + 1)
        except EntryDamaged as damaged:
            entry = damaged
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
    """Return when the oldest dirty record exceeds `max.compaction.lag.ms`, in ms."""
    try:
        entries = await log.read(start, 1)
        oldest = entries[0].max_timestamp if entries else 0
    except EntryDamaged as damaged:
        oldest = damaged.max_timestamp
    if oldest <= 0:
        return _NEVER
    return oldest + config.max_compaction_lag_ms + 1


class LogCleaner:
    """Cleans the compacted topics of a broker.

    `run_once` checks each partition once; `stop` ends it after the current chunk. An idle partition
    costs no I/O until it changes. Reclaiming space queries the store, so it runs at the retention
    interval only.
    """

    def __init__(
        self, broker: Broker, *, max_keys: int = MAX_KEYS, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._broker = broker
        self._max_keys = max_keys
        self._chunk_bytes = chunk_bytes
        self._tables = ShardTables(broker.store, "compaction")
        #: By shard: the leader epoch it was loaded with.
        self._epochs: dict[int, int] = {}
        self._checkpoints: dict[int, dict[bytes, CleanerCheckpoint]] = {}
        self._idle: dict[bytes, IdlePartition] = {}
        self._skipped_topics: set[bytes] = set()
        self._reclaim_at = 0
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    async def run_once(self) -> None:
        """Clean the partitions that are due. Failures are logged and retried by the next call."""
        now = self._broker.now()
        reclaim_due = now >= self._reclaim_at
        try:
            await self._open_shards()
            if reclaim_due:
                await self._forget_deleted()
        except StorageError as failure:
            _log.warning(
                "compaction checkpoints not available, retried by the next run",
                reason=str(failure),
            )
            return
        if reclaim_due:
            self._reclaim_at = now + self._broker.settings.log_retention_check_interval_ms
        slices = TimeSlices(self._broker.clock, CHECKS_PER_TURN)
        for state in list(self._broker.topics):
            for index in range(state.topic.partitions):
                await slices.take()
                if self._should_stop(state):
                    break
                if self._is_loaded(state, index):
                    await self._clean_if_due(state, index, reclaim_due=reclaim_due)

    async def _open_shards(self) -> None:
        """Load the checkpoints of newly opened shards, and forget those of closed ones."""
        leadership = self._broker.leadership
        for shard in range(self._broker.store.shard_count):
            epoch = leadership.epoch_of(shard) if leadership.is_open(shard) else None
            if self._epochs.get(shard) == epoch:
                continue
            self._epochs.pop(shard, None)
            self._checkpoints.pop(shard, None)
            self._tables.close(shard)
            if epoch is not None:
                self._checkpoints[shard] = await self._load(shard)
                self._epochs[shard] = epoch

    async def _load(self, shard: int) -> dict[bytes, CleanerCheckpoint]:
        checkpoints = {}
        for key, row in await self._tables.open(shard):
            try:
                checkpoints[key] = _DECODER.decode(row)
            except msgspec.MsgspecError:
                _log.warning("compaction checkpoint unreadable, compacting the whole log", key=key)
        return checkpoints

    def _is_loaded(self, state: TopicState, index: int) -> bool:
        """Whether this gateway leads the partition, and its checkpoints are loaded."""
        opener = self._broker.topics.opener
        return opener.can_open(state, index) and opener.shard_of(state, index) in self._epochs

    async def _forget_deleted(self) -> None:
        self._skipped_topics = {
            topic_id for topic_id in self._skipped_topics if self._broker.topics.get(topic_id)
        }
        self._idle = {key: idle for key, idle in self._idle.items() if self._topic_exists(key)}
        for shard, checkpoints in self._checkpoints.items():
            gone = [key for key in checkpoints if not self._topic_exists(key)]
            if gone:
                await self._tables.put(shard, dict.fromkeys(gone))
                for key in gone:
                    del checkpoints[key]

    def _topic_exists(self, key: bytes) -> bool:
        return self._broker.topics.get(key[:_TOPIC_ID_BYTES]) is not None

    def _should_stop(self, state: TopicState) -> bool:
        return (
            self._is_stopped
            or not state.config.compacts
            or self._broker.topics.get(state.name) is not state
        )

    async def _clean_if_due(self, state: TopicState, index: int, *, reclaim_due: bool) -> None:
        if index not in state.partitions and self._broker.store.retains_by_itself:
            # Opening it would fence the gateway that leads it.
            return
        partition = None
        try:
            partition = await self._broker.topics.partition(state.name, index)
            if not partition.log.can_replace:
                self._warn_not_compacted(state)
                return
            if reclaim_due:
                await self._reclaim(state, partition)
            while await self._run_pass(state, partition):
                # Repeat: the log has more keys than one pass holds.
                pass
        except OffsetOutOfRange:
            _log.debug("records deleted during compaction", topic=state.name, partition=index)
        except (StorageError, KafkaError) as failure:
            if partition is not None and isinstance(failure, StorageError):
                partition.handle_storage_error(failure)
            if not self._should_stop(state) and self._is_loaded(state, index):
                _log.warning(
                    "compaction failed, retried by the next run",
                    topic=state.name,
                    partition=index,
                    reason=str(failure),
                )

    async def _reclaim(self, state: TopicState, partition: Partition) -> None:
        try:
            await partition.log.reclaim()
        except StorageFailed as failure:
            _log.warning(
                "space not reclaimed, retried after log_retention_check_interval_ms",
                topic=state.name,
                partition=partition.index,
                reason=str(failure),
            )

    def _warn_not_compacted(self, state: TopicState) -> None:
        """Log once per topic that it is not compacted."""
        if state.topic.topic_id not in self._skipped_topics:
            self._skipped_topics.add(state.topic.topic_id)
            _log.warning(
                "topic not compacted: its entry format is, or was, shared with Pulsar clients",
                topic=state.name,
            )

    async def _run_pass(self, state: TopicState, partition: Partition) -> bool:
        """Run a pass if one is due; return whether another should follow immediately.

        Raises StorageError.
        """
        log, config, now = partition.log, state.config.compaction, self._broker.now()
        key = state.topic.topic_id + partition.index.to_bytes(4, "big")
        idle = self._idle.pop(key, None)
        if idle is not None and now < idle.until and idle == _idle_state(log, config, idle.until):
            self._idle[key] = idle
            return False
        shard = self._broker.topics.opener.shard_of(state, partition.index)
        checkpoints = self._checkpoints[shard]
        checkpoint = checkpoints.get(key)
        if checkpoint is None or checkpoint.end > log.end_offset:
            # The log may have been truncated, for example restored from a backup.
            checkpoint = CleanerCheckpoint(log.start_offset)
        before_pass = _idle_state(log, config, now)
        cleanable, until = await plan(log, config, checkpoint, now)
        if cleanable is None:
            self._idle[key] = replace(before_pass, until=until)
            return False
        size, start_offset = log.size, log.start_offset
        offset_map = await self._read_keys(state, log, cleanable)
        if offset_map.end == cleanable.start and not self._should_stop(state):
            # The estimate was wrong: only the last entry or entries that are too new are left.
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
            # The unreadable entries may hold values that a tombstone of this pass deletes, so its
            # tombstones must stay.
            _warn_unreadable(partition, offset_map)
        else:
            horizons = add_delete_horizon(
                horizons, offset_map.end, self._broker.now(), config.delete_retention_ms
            )
        done = CleanerCheckpoint(offset_map.end, clean_bytes, start_offset, horizons)
        await self._tables.put(shard, {key: _ENCODER.encode(done)})
        checkpoints[key] = done
        _log.debug(
            "partition compacted",
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
        """Read the keys of the cleanable range, as many as fit."""
        offset_map = OffsetMap(
            cleanable.start, self._max_keys, self._broker.settings.max_decompressed_bytes
        )
        bytes_before, chunk = 0, self._chunk_bytes
        while not offset_map.is_full and not self._should_stop(state):
            admitted: list[Entry] = []
            try:
                entries = await log.read(offset_map.end, chunk)
            except EntryDamaged as damaged:
                if not cleanable.admits(damaged, bytes_before):
                    break
                offset_map.skip(damaged)
                # The next ones may be damaged, too.
                chunk = 1
                continue
            chunk = self._chunk_bytes
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
        """Rewrite the log up to the end of `offset_map`.

        Returns the bytes left before it, or None if stopped.
        """
        log = partition.log
        cleaning = Cleaner(
            offset_map, horizons, self._broker.now(), self._broker.settings.max_decompressed_bytes
        )
        offset, left, chunk = log.start_offset, 0, self._chunk_bytes
        while offset < offset_map.end:
            try:
                found = await log.read(offset, chunk)
            except EntryDamaged as damaged:
                # It stays in the log, and tombstones for what it may contain.
                offset_map.unreadable[damaged.base_offset] = str(damaged)
                offset, chunk = damaged.last_offset + 1, 1
                continue
            chunk = self._chunk_bytes
            entries = [entry for entry in found if entry.base_offset < offset_map.end]
            if not entries:
                break
            rewritten = await self._broker.run(
                cleaning.rewrite, entries, _last_durable_offsets(partition)
            )
            if self._should_stop(state):
                return None
            await _replace(log, entries, rewritten)
            # An entry in which the map ended is dirty: the next pass starts there.
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
    """Store the rewritten entries, from the first to the last that changed."""
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
    message = "unreadable records kept, not compacted"
    _log.warning(
        message,
        topic=partition.topic,
        partition=partition.index,
        entries=count,
        first_offset=offset,
        reason=reason,
    )


def _last_durable_offsets(partition: Partition) -> set[int]:
    """Return the end of each producer's last durable batch; in-flight batches may still fail."""
    end = partition.log.end_offset
    return {
        max((sent.last_offset for sent in producer.batches if sent.last_offset < end), default=-1)
        for _, producer in partition.producers
    }


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(CleanerCheckpoint)
