"""Snapshots of the idempotent producers' state, so that a restart need not read whole logs.

A snapshot is a row of the table `producers` of the partition's shard, by topic id and partition. It
may be old, missing or unreadable: the log after it is replayed, which only costs time.
`producer_state.py` defines its contents.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import msgspec

from gateway import logs
from gateway.cluster.shard_tables import ShardedStore, ShardTables
from gateway.partitions.partition import Partition, ProducerRecovery
from gateway.partitions.producer_state import ProducerStateManager
from records import HEADER_BYTES, peek_magic, read_header
from storage.log import (
    Entry,
    EntryDamaged,
    OffsetOutOfRange,
    PartitionLog,
    StorageError,
    Topic,
)

_log = logs.get_logger(__name__)

#: Log growth after which a partition's producer state is saved. A restart replays at most about
#: this much, some 50 ms per partition.
SNAPSHOT_BYTES = 64 << 20

#: Batches after which it is saved, however small they are: a replay reads each of them. The batches
#: per producer, whose state has up to about 100 bytes, limit the size of all snapshots.
SNAPSHOT_BATCHES, BATCHES_PER_PRODUCER = 500, 4
_REPLAY_BYTES = 4 << 20

#: Snapshots written together at shutdown: few writes, of moderate size.
_SAVE_BYTES = 16 << 20

#: Bytes of a key that are the topic id.
_ID_BYTES = 16


class ProducerSnapshots:
    """The snapshot tables of the open shards.

    A partition remembers at most `limit` producers, for `expiration_ms`. `now` returns the time in
    ms; `start` runs a coroutine in the background.
    """

    def __init__(
        self,
        store: ShardedStore,
        limit: int,
        expiration_ms: int,
        now: Callable[[], int],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._limit = limit
        self.expiration_ms = expiration_ms
        self._now = now
        self._start = start
        self._tables = ShardTables(store, "producers")
        #: Rows of partitions that are not open, by shard.
        self._rows: dict[int, dict[bytes, bytes]] = {}
        self._saving: set[Partition] = set()

    async def open_shard(self, shard: int, is_deleted: Callable[[bytes], bool]) -> None:
        """Load the table of a shard, and delete the rows of deleted topics.

        `is_deleted` tells by the topic id. Raises StorageError if reading fails.
        """
        rows = self._rows[shard] = dict(await self._tables.open(shard))
        orphans = [key for key in rows if is_deleted(key[:_ID_BYTES])]
        for key in orphans:
            del rows[key]
        try:
            if orphans:
                await self._tables.put(shard, dict.fromkeys(orphans))
        except StorageError as failure:
            _log.warning(
                "producer snapshots of deleted topics not deleted, retried by the next opening",
                shard=shard,
                rows=len(orphans),
                reason=str(failure),
            )

    def close_shard(self, shard: int) -> None:
        """Forget the table of a shard; no effect if it is not open."""
        self._tables.close(shard)
        self._rows.pop(shard, None)

    def _rows_of(self, topic_id: bytes, index: int) -> dict[bytes, bytes]:
        """The rows of the partition's shard."""
        return self._rows.setdefault(self._tables.shard_of_partition(topic_id, index), {})

    def load(self, topic: Topic, index: int, log: PartitionLog) -> tuple[ProducerStateManager, int]:
        """Return the producer state of the last snapshot and the offset to replay the log from."""
        producers = ProducerStateManager(self._limit)
        row = self._rows_of(topic.topic_id, index).get(_key(topic.topic_id, index))
        if row is None:
            return producers, log.start_offset
        try:
            claimed = producers.load(row)
        except msgspec.MsgspecError:
            _log.warning(
                "producer snapshot unreadable, replaying the log", topic=topic.name, partition=index
            )
            return producers, log.start_offset
        # Batches that are not in the log were never stored; a retry of them must be appended.
        producers.truncate(log.end_offset)
        return producers, max(log.start_offset, min(claimed, log.end_offset))

    async def replay(
        self, topic_id: bytes, partition: Partition, recovery: ProducerRecovery
    ) -> None:
        """Replay the log up to its current end, saving snapshots on the way. Raises StorageError.

        After an error, `recovery.offset` is the offset reached; a snapshot taken then includes it.
        EntryDamaged is raised for the entry at that offset, or the next one.
        """
        log, now, end = partition.log, self._now(), partition.log.end_offset
        if recovery.offset <= log.start_offset and log.size > SNAPSHOT_BYTES:
            # A large log without a snapshot. Kafka's ProducerStateManager.isProducerExpired
            # compares the time of a producer's last batch, so older entries need not be read.
            young: Entry | EntryDamaged | None
            try:
                young = await log.entry_for_time(now - self.expiration_ms)
            except EntryDamaged as damaged:
                young = damaged
            recovery.offset = end if young is None else max(recovery.offset, young.base_offset)
        while recovery.offset < end:
            # Retention may have deleted entries at this offset.
            recovery.offset = max(recovery.offset, log.start_offset)
            try:
                entries = await log.read(
                    recovery.offset, 1 if recovery.is_behind_damage else _REPLAY_BYTES
                )
                recovery.is_behind_damage = False
            except OffsetOutOfRange:
                if recovery.offset >= log.start_offset:
                    raise
                continue
            if not entries:
                # Compaction removed everything up to the end.
                break
            for entry in entries:
                if peek_magic(entry.payload) == 2 and len(entry.payload) >= HEADER_BYTES:
                    partition.producers.replay(read_header(entry.payload), now)
                recovery.offset = entry.last_offset + 1
                partition.unsaved_bytes += len(entry.payload)
                partition.unsaved_batches += 1
            if self.is_due(partition):
                self.save_in_background(topic_id, partition)

    def skip_damaged(
        self, partition: Partition, recovery: ProducerRecovery, last_offset: int
    ) -> None:
        """Continue the replay after a damaged entry that ends at `last_offset`.

        The batches of that entry are unknown, so all producers found before it are forgotten: the
        next batch of a producer may then have any sequence. Otherwise it would be refused,
        permanently if the producer's last batch is the damaged one.
        """
        partition.producers.clear()
        recovery.offset, recovery.is_behind_damage = last_offset + 1, True
        # The state is saved when the partition is closed, also if nothing is appended.
        partition.unsaved_bytes += 1

    def save_soon(self, topic_id: bytes, partition: Partition) -> None:
        """Save the state in the background, unless a save is being written."""
        if partition not in self._saving:
            self.save_in_background(topic_id, partition)

    def release_row(self, topic_id: bytes, index: int) -> None:
        """Drop the cached row of a partition that is now open."""
        self._rows_of(topic_id, index).pop(_key(topic_id, index), None)

    def keep_row(self, topic_id: bytes, partition: Partition) -> None:
        """Keep the state of a fenced partition, so that reopening replays only newer batches."""
        rows = self._rows_of(topic_id, partition.index)
        rows[_key(topic_id, partition.index)] = _snapshot(partition)

    def is_due(self, partition: Partition) -> bool:
        """Whether the log has grown enough since the last snapshot and none is being written."""
        batches = partition.unsaved_batches
        has_grown = partition.unsaved_bytes >= SNAPSHOT_BYTES or (
            batches >= SNAPSHOT_BATCHES
            and batches >= BATCHES_PER_PRODUCER * len(partition.producers)
        )
        return has_grown and partition not in self._saving

    def save_in_background(self, topic_id: bytes, partition: Partition) -> None:
        """Save a partition's producer state in the background."""
        self._saving.add(partition)
        self._start(self._save(topic_id, partition))

    async def _save(self, topic_id: bytes, partition: Partition) -> None:
        try:
            await self.save(topic_id, partition)
        except StorageError as failure:
            _log.warning(
                "producer snapshot not written, the next start replays more of the log",
                topic=partition.topic,
                partition=partition.index,
                reason=str(failure),
            )
        finally:
            self._saving.discard(partition)

    async def save(self, topic_id: bytes, partition: Partition) -> None:
        """Save a partition's producer state now. Raises StorageError."""
        shard = self._tables.shard_of_partition(topic_id, partition.index)
        await self._tables.put(shard, {_key(topic_id, partition.index): _snapshot(partition)})

    async def save_all(self, partitions: Iterable[tuple[bytes, Partition]]) -> None:
        """Save all changed producer states before shutdown. Raises StorageError.

        `partitions` are pairs of topic id and partition.
        """
        rows: dict[int, dict[bytes, bytes | None]] = {}
        size = 0
        for topic_id, partition in partitions:
            if not partition.unsaved_bytes:
                continue
            row = _snapshot(partition)
            shard = self._tables.shard_of_partition(topic_id, partition.index)
            rows.setdefault(shard, {})[_key(topic_id, partition.index)] = row
            size += len(row)
            if size >= _SAVE_BYTES:
                await self._put(rows)
                rows, size = {}, 0
        await self._put(rows)

    async def delete(self, topic: Topic) -> None:
        """Delete the snapshots of a deleted topic in the open shards."""
        rows: dict[int, dict[bytes, bytes | None]] = {}
        for index in range(topic.partitions):
            shard = self._tables.shard_of_partition(topic.topic_id, index)
            if self._tables.find(shard) is not None:
                key = _key(topic.topic_id, index)
                self._rows[shard].pop(key, None)
                rows.setdefault(shard, {})[key] = None
        try:
            await self._put(rows)
        except StorageError as failure:
            # Harmless: the rows are small, and topic ids are not reused.
            _log.warning(
                "producer snapshots of a deleted topic not deleted, they are ignored",
                topic=topic.name,
                reason=str(failure),
            )

    async def _put(self, rows_by_shard: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        for shard, rows in rows_by_shard.items():
            await self._tables.put(shard, rows)


def _key(topic_id: bytes, index: int) -> bytes:
    return topic_id + index.to_bytes(4, "big")


def _snapshot(partition: Partition) -> bytes:
    partition.unsaved_bytes = partition.unsaved_batches = 0
    return partition.snapshot()
