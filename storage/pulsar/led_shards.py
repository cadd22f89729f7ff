"""The shards that this process leads, with the logs of their partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import (
    CancelledError,
    Deferred,
    DeferredList,
    DeferredLock,
    DeferredSemaphore,
    maybeDeferred,
)

from storage.bridge import Reactor, SingleFlightCache
from storage.log import (
    LogClosed,
    ShardNotOpen,
    StateTable,
    StorageError,
    StorageFailed,
    Topic,
    UnknownTopic,
)
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.log.entry_formats import PulsarLogOpener
from storage.pulsar.log.format_history import PulsarPartitionLog
from storage.pulsar.log.partition_log_opener import MayWrite, check_may_write
from storage.pulsar.log.partition_rows import (
    PartitionRow,
    PartitionState,
    partition_key,
    split_partition_key,
)
from storage.pulsar.open_shard import LedShard, open_shard
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table import PulsarTable
from storage.pulsar.topics.deleted_partitions import DeletedPartitions
from storage.pulsar.topics.topic_catalog import TopicCatalog
from storage.pulsar.topics.topic_listing import NATIVE
from storage.shards import partition_shard

SHARDS_AT_ONCE = 8
"""Shards that are opened at a time: calls of the admin API, as many as there are connections."""

ROWS_AT_ONCE = 1000
"""Partition rows per put. A row has about 100 bytes, up to 6 kB after many leader changes."""

logger = logging.getLogger(__name__)


class _Opening(NamedTuple):
    """The revision of the metadata log when the opening of a log began, and the log's format."""

    revision: int
    is_native: bool


class LedShards:
    """`check_open` raises LogClosed once the store is closed. `revision` is the metadata log's.

    `within` waits for the end of a step, with a limit.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        admin: PulsarAdmin,
        reactor: Reactor,
        catalog: TopicCatalog,
        log_opener: PulsarLogOpener,
        side_topics: SideTopics,
        new_table: Callable[[str, Callable[[str], None]], PulsarTable],
        *,
        shard_count: Callable[[], int],
        revision: Callable[[], int],
        may_write: MayWrite,
        check_open: Callable[[], None],
        within: Callable[[str, Deferred[Any]], Coroutine[Deferred[Any], Any, None]],
    ) -> None:
        self._settings = settings
        self._reactor = reactor
        self._catalog = catalog
        self._log_opener = log_opener
        self._side_topics = side_topics
        self._new_table = new_table
        self._shard_count = shard_count
        self._revision = revision
        self._may_write = may_write
        self._check_open = check_open
        self._within = within
        self._shards: dict[int, LedShard] = {}
        self._shard_locks: dict[int, DeferredLock] = {}
        self._shard_slots = DeferredSemaphore(SHARDS_AT_ONCE)
        self._on_shard_lost: list[Callable[[int, str], None]] = []
        self._logs: SingleFlightCache[tuple[str, int], PulsarPartitionLog] = SingleFlightCache()
        self._opening: dict[tuple[str, int], _Opening] = {}
        """By topic and partition of a log that is being opened."""
        self._disconnecting = 0
        """Number of logs of deleted or reformatted topics that are not disconnected yet."""
        self._disconnected_revision = 0
        """The last revision at which there was none, when `applied_revision` was read."""
        self._deleted = DeletedPartitions(
            admin.properties, self.delete_partition_state, settings.refresh_seconds, reactor
        )
        self.deleting: set[str] = set()
        """Names of the topics that this process is deleting."""
        self._deleting_state: set[bytes] = set()
        """Keys of the partitions whose state is being deleted."""

    def start(self) -> None:
        """Begin to delete the state of partitions that are gone."""
        self._deleted.start()

    def stop(self) -> None:
        """End what `start` began."""
        self._deleted.stop()

    async def close(self) -> None:
        """Close all shards. Each step ends within `close_timeout_seconds`."""
        shards = list(self._shards.values())
        self._shards.clear()
        await self._close_shards(shards)

    async def open_shard(self, shard: int, leader_epoch: int) -> None:
        """`Store.open_shard`. A shard that is open with another epoch is closed first.

        At most SHARDS_AT_ONCE shards are opened at a time.
        """
        self._check_open()
        if not 0 <= shard < self._shard_count():
            raise ValueError(f"there is no shard {shard}: the store has {self._shard_count()}")
        async with self._shard_lock(shard), self._shard_slots:
            self._check_open()
            opened = self._shards.get(shard)
            if opened is not None and opened.leader_epoch == leader_epoch:
                return
            await self._close_shard(shard)
            check_may_write(f"shard {shard}", self._may_write)
            made = await open_shard(
                self._new_table, shard, leader_epoch, self._may_write, self._shard_fenced
            )
            try:
                self._check_open()
            except LogClosed:
                await made.tables.close()
                raise
            self._shards[shard] = made
            self._delete_in_background(
                key
                for key in made.partitions
                if self._catalog.is_deleted(split_partition_key(key)[0])
            )

    async def close_shard(self, shard: int) -> None:
        """`Store.close_shard`. Each step ends within `close_timeout_seconds`."""
        async with self._shard_lock(shard):
            await self._close_shard(shard)

    def when_shard_lost(self, call: Callable[[int, str], None]) -> None:
        """`Store.when_shard_lost`. The next put of a row, or the next opening, shows it."""
        self._on_shard_lost.append(call)

    def written_partitions(self, shard: int) -> Sequence[tuple[bytes, int]]:
        """`SharedStore.written_partitions`."""
        opened = self._shards.get(shard)
        return [] if opened is None else opened.written_before()

    async def shard_table(self, shard: int, name: str) -> StateTable:
        self._check_open()
        opened = self._shards.get(shard)
        if opened is None:
            raise ShardNotOpen(f"shard {shard} is not open here")
        return opened.tables.table(name)

    async def log(self, topic: str, partition: int) -> PulsarPartitionLog:
        self._check_open()
        full_name = self._catalog.full_name(topic, partition)
        self._open_shard(partition_key(self._catalog.topics[topic].topic_id, partition))

        def make() -> Deferred[PulsarPartitionLog]:
            return Deferred.fromCoroutine(self._open_log(topic, partition, full_name))

        return await self._logs.get((topic, partition), make)

    @property
    def applied_revision(self) -> int:
        """`SharedStore.applied_revision`.

        A producer that is created after the deletion of its topic would recreate the topic. A log
        that is opened in a former entry format must be closed before the change is complete.
        """
        if not self._disconnecting:
            self._disconnected_revision = self._revision()
        topics = self._catalog.topics
        begun = [
            opening.revision
            for (name, _), opening in self._opening.items()
            if name not in topics or self._is_native(name) != opening.is_native
        ]
        return min([*begun, self._disconnected_revision])

    async def _open_log(self, name: str, index: int, full_name: str) -> PulsarPartitionLog:
        is_native = name in self._catalog.topics and self._is_native(name)
        try:
            self._opening[name, index] = _Opening(self._revision(), is_native)
            try:
                return await self._open_log_of_shard(name, index, full_name)
            finally:
                del self._opening[name, index]
        except UnknownTopic:
            # Not before: a deletion, which waits for the opening, would block the call.
            if name in self._catalog.topics:
                await self._catalog.reload(name)
            raise

    async def _open_log_of_shard(self, name: str, index: int, full_name: str) -> PulsarPartitionLog:
        check_may_write(full_name, self._may_write)
        if name not in self._catalog.topics:
            raise UnknownTopic(f"topic {name} was deleted before it was opened")
        self.check_not_deleting(name)
        key = partition_key(self._catalog.topics[name].topic_id, index)
        if key in self._deleting_state:
            raise StorageFailed(f"the state of a deleted topic {name} is still being deleted")
        shard = self._open_shard(key)
        partition = shard.partitions.get(key) or PartitionState(shard.rows, key, PartitionRow())
        entry_format = self._entry_format(name)
        log = await self._log_opener.open(
            full_name,
            entry_format,
            partition,
            shard.leader_epoch,
            lambda log, error: self._log_ended(name, index, log, error),
        )
        topic = self._catalog.topics.get(name)
        try:
            self._check_open()
            # A log in the format `pulsar` may have ended because of an entry that was read.
            log.status.check_open()
            if topic is None or partition_key(topic.topic_id, index) != key:
                raise UnknownTopic(f"topic {name} was deleted while it was opened")
            if partition.is_deleted:
                raise StorageFailed(f"topic {name} was created again while it was opened")
            if self._is_native(name) != (entry_format == NATIVE):
                raise StorageFailed(f"entry format of {name} was changed while it was opened")
            if self._shards.get(shard.number) is not shard:
                raise ShardNotOpen(f"shard {shard.number} was closed while {full_name} was opened")
        except StorageError:
            await self._within("a log that is not valid any more", log.disconnect())
            raise
        shard.partitions[key] = partition
        self._deleted.opened(key, full_name)
        self._logs.created[name, index] = log
        return log

    def _log_ended(
        self, name: str, index: int, log: PulsarPartitionLog, error: StorageError
    ) -> None:
        """Drop a log that ended, so that the next `log` reopens it."""
        if self._logs.created.get((name, index)) is log:
            del self._logs.created[name, index]

    def open_log(self, name: str, index: int) -> PulsarPartitionLog | None:
        """The log of a partition, if it is open here."""
        return self._logs.created.get((name, index))

    async def wait_until_opened(self, name: str) -> None:
        """Wait, up to `operation_timeout_seconds`, until no log of the topic is being opened."""
        seconds = self._settings.operation_timeout_seconds
        # On timeout the list fires with the cancelled ones among its results.
        opened = self._logs.wait_for_pending(lambda key: key[0] == name)
        # `Reactor` is only the part of IReactorTime that stores use.
        settled = opened.addTimeout(seconds, self._reactor)  # type: ignore[arg-type]
        if any(not is_made and outcome.check(CancelledError) for is_made, outcome in await settled):
            logger.warning(
                "deleting topic while its logs are being opened topic=%s: no answer within %s s",
                name,
                seconds,
            )

    def check_not_deleting(self, name: str) -> None:
        if name in self.deleting:
            raise StorageFailed(f"topic {name} is being deleted")

    def close_logs(self, name: str) -> Deferred[Any]:
        keys = [key for key in self._logs.created if key[0] == name]
        return DeferredList([self._logs.created.pop(key).disconnect() for key in keys])

    def topic_deleted(self, topic: Topic) -> None:
        """Delete what remains of a topic that another gateway deleted.

        `open_shard` does the same for a shard that is opened later.
        """
        if not self._shards:
            return
        self._delete_in_background(
            partition_key(topic.topic_id, index) for index in range(topic.partitions)
        )

    def _delete_in_background(self, keys: Iterable[bytes]) -> None:
        async def delete_all() -> None:
            for key in list(keys):
                # Another program may have created the topic again, with the same id.
                if self._catalog.is_deleted(split_partition_key(key)[0]):
                    await self.delete_partition_state(key)

        Deferred.fromCoroutine(delete_all()).addErrback(
            lambda failure: logger.error(
                "bug: deleting the state of partitions failed: %s", failure.value
            )
        )

    async def delete_partition_state(self, key: bytes) -> None:
        """Delete the partition's rows and its side topic, if its shard is open.

        After a failure, only the side topic takes significant space.
        """
        shard = self._shards.get(self._shard_number(key))
        partition = shard.partitions.pop(key, None) if shard else None
        if shard is None or partition is None:
            return
        # The partition's own row last: without it, the others would not be found again.
        keys = partition.keys()[::-1]
        partition.is_deleted = True
        self._deleting_state.add(key)
        try:
            if partition.replaced_ranges or partition.row.written:
                await self._side_topics.delete(partition.key, partition.row.generation)
            for begin in range(0, len(keys), ROWS_AT_ONCE):
                await shard.rows.put(dict.fromkeys(keys[begin : begin + ROWS_AT_ONCE]))
        except StorageError as error:
            logger.warning(
                "state of deleted partition %s not removed, its side topic stays in Pulsar: %s",
                partition.key.hex(),
                error,
            )
        finally:
            self._deleting_state.discard(key)

    def topics_changed(self) -> None:
        """Close logs of topics that were deleted, recreated or reformatted by another client."""
        for (name, index), log in list(self._logs.created.items()):
            topic = self._catalog.topics.get(name)
            is_gone = (
                topic is None
                or index >= topic.partitions
                or partition_key(topic.topic_id, index) != log.partition.key
            )
            if is_gone or log.partition.row.is_native != self._is_native(name):
                del self._logs.created[name, index]
                self._disconnect(log)
        self._deleted.topics_listed(self._catalog.topic_ids)

    def _disconnect(self, log: PulsarPartitionLog) -> None:
        """Close a log; `applied_revision` waits for that, up to `close_timeout_seconds`."""

        def disconnected(_: object) -> None:
            self._disconnecting -= 1

        self._disconnecting += 1
        # A bug must not stop the others, nor delay all changes of topics for ever.
        closing = self._within("a log that is not valid any more", maybeDeferred(log.disconnect))
        Deferred.fromCoroutine(closing).addBoth(disconnected)

    def _entry_format(self, name: str) -> str:
        return self._catalog.entry_format(name) or self._settings.entry_format

    def _is_native(self, name: str) -> bool:
        return self._entry_format(name) == NATIVE

    async def _close_shard(self, shard: int) -> None:
        opened = self._shards.pop(shard, None)
        if opened is not None:
            await self._close_shards([opened])

    async def _close_shards(self, shards: Sequence[LedShard]) -> None:
        """Close shards that are no longer in `_shards`, and their logs."""
        await self._within(
            "waiting for logs being opened",
            self._logs.wait_for_pending(lambda key: self._is_in(key, shards)),
        )
        logs = self._logs_of(shards)
        await self._within(
            "waiting for appends",
            DeferredList([Deferred.fromCoroutine(log.idle()) for log in logs.values()]),
        )
        await self._within(
            "storing end offsets",
            Deferred.fromCoroutine(self._store_end_offsets(list(logs.values()))),
        )
        await self._within("closing logs", self._end_logs(logs))
        await self._within(
            "closing tables",
            DeferredList([Deferred.fromCoroutine(shard.tables.close()) for shard in shards]),
        )

    async def _store_end_offsets(self, logs: Sequence[PulsarPartitionLog]) -> None:
        """Set each partition's reserved offset to its end offset; no more offsets are assigned.

        Puts that are made at the same time are stored together. One after the other, each partition
        would take one acknowledgement by Pulsar.
        """
        for begin in range(0, len(logs), ROWS_AT_ONCE):
            await DeferredList(
                [
                    Deferred.fromCoroutine(self._store_end_offset(log))
                    for log in logs[begin : begin + ROWS_AT_ONCE]
                ]
            )

    async def _store_end_offset(self, log: PulsarPartitionLog) -> None:
        try:
            await log.store_end_offset()
        except StorageError as error:
            logger.warning(
                "end offset not stored topic=%s error=%s; if Pulsar deletes all messages, the next "
                "offset follows the reserved range",
                log.topic,
                error,
            )

    def _logs_of(self, shards: Iterable[LedShard]) -> dict[tuple[str, int], PulsarPartitionLog]:
        numbers = {shard.number for shard in shards}
        return {
            name: log
            for name, log in self._logs.created.items()
            if self._shard_number(log.partition.key) in numbers
        }

    def _is_in(self, key: tuple[str, int], shards: Iterable[LedShard]) -> bool:
        """Whether the partition with this topic and index is in one of the shards."""
        topic = self._catalog.topics.get(key[0])
        if topic is None:
            return False
        number = self._shard_number(partition_key(topic.topic_id, key[1]))
        return any(shard.number == number for shard in shards)

    def _end_logs(self, logs: Mapping[tuple[str, int], PulsarPartitionLog]) -> Deferred[Any]:
        for name, log in logs.items():
            if self._logs.created.get(name) is log:
                del self._logs.created[name]
        return DeferredList([log.close() for log in logs.values()])

    def _shard_fenced(self, shard: LedShard, reason: str) -> None:
        """Drop a shard that another process has taken."""
        if self._shards.get(shard.number) is not shard:
            return
        del self._shards[shard.number]
        closing = DeferredList(
            [
                self._end_logs(self._logs_of([shard])),
                Deferred.fromCoroutine(shard.tables.close()),
            ]
        )
        # If this process opens the shard again, it waits for that.
        self._shard_lock(shard.number).run(
            lambda: Deferred.fromCoroutine(self._within("closing a lost shard", closing))
        )
        for call in self._on_shard_lost:
            call(shard.number, reason)

    def _shard_lock(self, shard: int) -> DeferredLock:
        return self._shard_locks.setdefault(shard, DeferredLock())

    def _shard_number(self, key: bytes) -> int:
        """The shard of the partition with that row key."""
        return partition_shard(*split_partition_key(key), self._shard_count())

    def _open_shard(self, key: bytes) -> LedShard:
        """The shard of the partition with that row key. Raises ShardNotOpen."""
        number = self._shard_number(key)
        if number not in self._shards:
            raise ShardNotOpen(f"shard {number} is not open here")
        return self._shards[number]
