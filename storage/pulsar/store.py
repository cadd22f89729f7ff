"""The store on a Pulsar cluster: opens and closes its parts, creates logs and tables on first use.

Topics are managed by `TopicCatalog`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import (
    CancelledError,
    Deferred,
    DeferredList,
    DeferredLock,
    DeferredSemaphore,
)

from storage.bridge import Reactor, SharedResult, SingleFlightCache
from storage.log import (
    Fenced,
    LogClosed,
    ShardNotOpen,
    StateTable,
    StorageError,
    StorageFailed,
    Topic,
    UnknownTopic,
    VolumeUsage,
)
from storage.plain_records import BatchFormat
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.admin.cluster_checks import prepare
from storage.pulsar.admin.pulsar_permissions import PulsarPermissions
from storage.pulsar.client.exclusive_producer import InFlightLimit
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.cluster.medium import PulsarClusterMedium
from storage.pulsar.cluster.metadata_table import MetadataTable
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.log.entry_formats import PulsarLogOpener
from storage.pulsar.log.format_history import PulsarPartitionLog
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_reader import ReaderCache
from storage.pulsar.log.partition_rows import (
    PartitionRow,
    PartitionState,
    partition_key,
    split_partition_key,
)
from storage.pulsar.open_shard import LedShard, open_shard
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.shard_migration import (
    FIRST_EPOCH,
    LAYOUT_TABLE,
    SHARDS,
    SHARDS_AT_ONCE,
    ShardMigration,
    ShardOfRow,
)
from storage.pulsar.tables.row_messages import MAX_STORED_KEY_BYTES
from storage.pulsar.tables.table import PulsarTable
from storage.pulsar.topics.deleted_partitions import DeletedPartitions
from storage.pulsar.topics.mirrored_cursors import CursorMirror, CursorPosition
from storage.pulsar.topics.namespaces import largest_message
from storage.pulsar.topics.pulsar_names import path_of
from storage.pulsar.topics.topic_calls import CONTROLLER_METHODS, Call, RemoteTopics, answer_call
from storage.pulsar.topics.topic_catalog import TopicCatalog
from storage.pulsar.topics.topic_listing import NATIVE
from storage.pulsar.topics.topic_rows import SectionRows
from storage.shards import partition_shard
from storage.tail import TailCache

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 1000
"""Partition rows per put. A row has about 100 bytes, up to 6 kB after many leader changes."""


class PulsarStore:
    """A `Store`, used in the thread of `reactor`."""

    is_shared = True
    retains_by_itself = True
    controller_methods = CONTROLLER_METHODS

    def __init__(
        self,
        settings: PulsarSettings,
        *,
        reactor: Reactor,
        batch_format: BatchFormat | None = None,
        shard_of_row: ShardOfRow | None = None,
    ) -> None:
        """`shard_of_row` assigns rows of tables from before the store had shards."""
        self.settings = settings
        self.may_write: Callable[[], bool] | None = None
        """Asked before and after a partition or shard is fenced; by default, whether this process
        is the controller.
        """
        self._reactor = reactor
        self._client = PulsarClient(settings, reactor)
        self._admin = PulsarAdmin(settings, reactor)
        self.medium = PulsarClusterMedium(self._client, self._admin, settings, reactor)
        self._tables: dict[str, MetadataTable] = {}
        self._layout = self._metadata_table(LAYOUT_TABLE)
        self._catalog = TopicCatalog(
            settings,
            self._admin,
            reactor,
            SectionRows(self.medium.log),
            RemoteTopics(self._ask_controller),
        )
        self._controller_call: Call | None = None
        self._cache = ReaderCache(self._client, settings.readers)
        self._tail = TailCache(settings.tail_bytes)
        self._side_topics = SideTopics(self._client, self._admin, settings)
        self._in_flight_limit = InFlightLimit(settings.queue_bytes, settings.queue_operations)
        self._log_opener = PulsarLogOpener(
            self._client,
            self._admin,
            self._cache,
            self._in_flight_limit,
            self._tail,
            self._side_topics,
            self,
            batch_format,
            self._may_write,
        )
        self._shard_of_row = shard_of_row
        self._shards: dict[int, LedShard] = {}
        self._shard_locks: dict[int, DeferredLock] = {}
        self._shard_slots = DeferredSemaphore(SHARDS_AT_ONCE)
        self._on_shard_lost: list[Callable[[int, str], None]] = []
        self._logs: SingleFlightCache[tuple[str, int], PulsarPartitionLog] = SingleFlightCache()
        self._deleted = DeletedPartitions(
            self._admin.properties, self._delete_partition_state, settings.refresh_seconds, reactor
        )
        self._mirror = CursorMirror(self._admin, self._cursor_position, reactor, settings)
        self._is_open = False
        self._permissions: PulsarPermissions | None = None
        self._deleting: set[str] = set()
        """Names of the topics that this process is deleting."""
        self._catalog.watch(self._topics_changed)

    async def open(self) -> None:
        """`Store.open`: connect and replay the metadata log.

        `lead`, here or in another process, creates what a new store needs. If opening fails,
        everything opened so far is closed.
        """
        await self._client.open()
        try:
            if self.settings.checks_at_start:
                await prepare(self.settings, self._admin, self._client)
            self._client.message_bytes = (
                await largest_message(self._admin) or self._client.message_bytes
            )
            await self.medium.log.open()
            self._catalog.follow()
        except BaseException:
            await self._release()
            raise
        self._is_open = True
        self._deleted.start()
        if self.settings.mirror_cursors:
            self._mirror.start()

    async def lead(self, all_replayed: Callable[[], Awaitable[None]]) -> None:
        """`SharedStore.lead`."""
        self._check_open()
        await ShardMigration(self.settings, self._admin, self._new_table, self._shard_of_row).run(
            self._layout, self._metadata_table
        )
        await self._catalog.lead(all_replayed)

    def follow(self) -> None:
        """`SharedStore.follow`."""
        self._catalog.follow()

    def ask_controller(self, call: Call) -> None:
        """`SharedStore.ask_controller`."""
        self._controller_call = call

    async def answer_call(self, method: str, payload: bytes) -> bytes:
        """`SharedStore.answer_call`."""
        return await answer_call(self._catalog, method, payload)

    async def _ask_controller(self, method: str, payload: bytes) -> bytes:
        if self._controller_call is None:
            raise StorageFailed("there is no controller: retry later")
        return await self._controller_call(method, payload)

    @property
    def shard_count(self) -> int:
        """`Store.shard_count`; 0 until a new store has been led for the first time."""
        return int(self._layout.get(SHARDS) or 0)

    @property
    def first_epoch(self) -> int:
        return int(self._layout.get(FIRST_EPOCH) or 0)

    async def close(self) -> None:
        """`Store.close`.

        Each step ends within `close_timeout_seconds`, even if Pulsar does not answer.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._deleted.stop()
        self._mirror.stop()
        if self._permissions is not None:
            self._permissions.close()
        # Wait for a running trim, which restores the topic's retention when it ends.
        await self._within("waiting for a trim", Deferred.fromCoroutine(self._catalog.end_trims()))
        shards = list(self._shards.values())
        self._shards.clear()
        await self._close_shards(shards)
        await self._release()

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

    async def _release(self) -> None:
        self._catalog.close()
        await self._within("closing readers", Deferred.fromCoroutine(self._cache.close()))
        for what, step in (
            ("closing the inbox", self.medium.inbox.close()),
            ("releasing the node id", self.medium.presence.release()),
            ("closing the metadata log", self.medium.log.close()),
            ("closing the admin connections", self._admin.close()),
        ):
            await self._within(what, Deferred.fromCoroutine(step))
        await self._client.close()

    async def _within(self, what: str, step: Deferred[Any]) -> None:
        """Wait for the end of `step`, up to `close_timeout_seconds`; failures are logged."""
        ended: SharedResult[None] = SharedResult()
        step.addErrback(
            lambda failure: logger.warning(
                "closing: %s failed, continuing: %s", what, failure.value
            )
        )
        step.addBoth(lambda _: ended.succeed(None))
        try:
            await ended.with_timeout(self._reactor, self.settings.close_timeout_seconds)
        except TimeoutError:
            logger.warning(
                "closing: %s timed out after %s s, continuing",
                what,
                self.settings.close_timeout_seconds,
            )

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Never called: shards are lost one by one."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._catalog.topics

    def watch_topics(self, on_change: Callable[[], None]) -> None:
        self._catalog.watch(on_change)

    def canonical(self, name: str) -> str:
        return self._catalog.canonical(name)

    def note_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        if self.settings.mirror_cursors:
            self._mirror.note(group, topic, partition, offset)

    async def _cursor_position(self, name: str, index: int, offset: int) -> CursorPosition | None:
        """The position of a group's cursor.

        Returns None if the partition is not open here or does not have the offset.
        """
        log = self._logs.created.get((name, index))
        if log is None or not log.start_offset <= offset <= log.end_offset:
            return None
        # At the log end, the cursor points to the entry after the last one.
        is_behind = offset < log.end_offset
        position = (
            await log.position_of(offset if is_behind else offset - 1)
            if is_behind or offset > log.start_offset
            else None
        )
        return (
            CursorPosition(path_of(log.topic), position[0], position[1] + (not is_behind))
            if position
            else None
        )

    async def create_topic(self, topic: Topic) -> None:
        self._check_open()
        await self._catalog.create(topic)

    async def alter_topic(self, topic: Topic) -> None:
        """`Store.alter_topic`.

        Logs whose entry format changed are closed; the next `log` reopens them.
        """
        self._check_open()
        await self._catalog.alter(topic)
        self._topics_changed()

    async def delete_topic(self, name: str) -> None:
        """`Store.delete_topic`. The logs are closed first.

        A connected producer would recreate the topic where brokers create topics automatically. If
        a topic is first loaded while it is being deleted, the broker keeps a broken topic that
        answers in its place.
        """
        self._check_open()
        self._check_not_deleting(name)
        expected = self.topics.get(name)
        if expected is None:
            raise UnknownTopic(f"no topic {name}")
        self._deleting.add(name)
        try:
            await self._wait_until_opened(name)
            await self.confirm_held()
            self._check_open()
            topic = self.topics.get(name)
            if topic is None or topic.topic_id != expected.topic_id:
                raise UnknownTopic(f"topic {name} was deleted by another client")
            await self._close_logs(name)
            await self._catalog.delete(name)
        finally:
            self._deleting.discard(name)
        await self._close_logs(name)
        for index in range(topic.partitions):
            await self._delete_partition_state(partition_key(topic.topic_id, index))

    async def _wait_until_opened(self, name: str) -> None:
        """Wait, up to `operation_timeout_seconds`, until no log of the topic is being opened."""
        seconds = self.settings.operation_timeout_seconds
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

    def _check_not_deleting(self, name: str) -> None:
        if name in self._deleting:
            raise StorageFailed(f"topic {name} is being deleted")

    def _close_logs(self, name: str) -> Deferred[Any]:
        keys = [key for key in self._logs.created if key[0] == name]
        return DeferredList([self._logs.created.pop(key).close() for key in keys])

    async def _delete_partition_state(self, key: bytes) -> None:
        """Delete the partition's rows and its side topic, if its shard is open.

        After a failure, only the side topic takes significant space.
        """
        shard = self._shards.get(self._shard_number(key))
        partition = shard.partitions.pop(key, None) if shard else None
        if shard is None or partition is None:
            return
        keys = partition.keys()
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

    def _topics_changed(self) -> None:
        """Close logs of topics that were deleted, recreated or reformatted by another client."""
        for (name, index), log in list(self._logs.created.items()):
            topic = self.topics.get(name)
            is_gone = (
                topic is None
                or index >= topic.partitions
                or partition_key(topic.topic_id, index) != log.partition.key
            )
            if is_gone or log.partition.row.is_native != (self._entry_format(name) == NATIVE):
                del self._logs.created[name, index]
                log.close()
        self._deleted.topics_listed(self._catalog.topic_ids)

    async def log(self, topic: str, partition: int) -> PulsarPartitionLog:
        self._check_open()
        full_name = self._catalog.full_name(topic, partition)
        self._open_shard(partition_key(self.topics[topic].topic_id, partition))

        def make() -> Deferred[PulsarPartitionLog]:
            return Deferred.fromCoroutine(self._open_log(topic, partition, full_name))

        return await self._logs.get((topic, partition), make)

    async def _open_log(self, name: str, index: int, full_name: str) -> PulsarPartitionLog:
        await self.confirm_held()
        if name not in self.topics:
            raise UnknownTopic(f"topic {name} was deleted before it was opened")
        self._check_not_deleting(name)
        key = partition_key(self.topics[name].topic_id, index)
        shard = self._open_shard(key)
        partition = shard.partitions.get(key) or PartitionState(shard.rows, key, PartitionRow())
        try:
            log = await self._log_opener.open(
                full_name,
                self._entry_format(name),
                partition,
                shard.leader_epoch,
                lambda log, error: self._log_ended(name, index, log, error),
            )
        except UnknownTopic:
            await self._catalog.reload(name)
            raise
        topic = self.topics.get(name)
        if not self._is_open or topic is None or partition_key(topic.topic_id, index) != key:
            log.close()
            self._check_open()
            raise UnknownTopic(f"topic {name} was deleted while it was opened")
        if self._shards.get(shard.number) is not shard:
            log.close()
            raise ShardNotOpen(f"shard {shard.number} was closed while {full_name} was opened")
        shard.partitions[key] = partition
        self._deleted.opened(key, full_name)
        self._logs.created[name, index] = log
        return log

    def _entry_format(self, name: str) -> str:
        return self._catalog.entry_format(name) or self.settings.entry_format

    def _log_ended(
        self, name: str, index: int, log: PulsarPartitionLog, error: StorageError
    ) -> None:
        """Drop a log that ended, so that the next `log` reopens it."""
        if self._logs.created.get((name, index)) is log:
            del self._logs.created[name, index]

    async def can_trim(self, topic: str, keep: Position) -> bool:
        """`TopicTrimmer.can_trim`."""
        return await self._catalog.can_trim(topic, keep)

    async def trim(self, topic: str, keep: Position) -> None:
        """`TopicTrimmer.trim`."""
        self._check_open()
        await self._catalog.trim(topic, keep, self.confirm_held)

    @property
    def may_be_lost(self) -> bool:
        """`Store.may_be_lost`."""
        return not self._may_write()

    async def confirm_held(self) -> None:
        """`Store.confirm_held`: raises Fenced if this process may not write.

        Called before fencing another process, which may be the leader.
        """
        if not self._may_write():
            raise Fenced("this process may not write any more")

    def _may_write(self) -> bool:
        return self.may_write() if self.may_write else self.medium.log.is_writer

    async def open_shard(self, shard: int, leader_epoch: int) -> None:
        """`Store.open_shard`. A shard that is open with another epoch is closed first.

        At most SHARDS_AT_ONCE shards are opened at a time.
        """
        self._check_open()
        if not 0 <= shard < self.shard_count:
            raise ValueError(f"there is no shard {shard}: the store has {self.shard_count}")
        async with self._shard_lock(shard), self._shard_slots:
            self._check_open()
            opened = self._shards.get(shard)
            if opened is not None and opened.leader_epoch == leader_epoch:
                return
            await self._close_shard(shard)
            await self.confirm_held()
            made = await open_shard(
                self._new_table, shard, leader_epoch, self._may_write, self._shard_fenced
            )
            if not self._is_open:
                await made.tables.close()
                self._check_open()
            self._shards[shard] = made

    async def close_shard(self, shard: int) -> None:
        """`Store.close_shard`. Each step ends within `close_timeout_seconds`."""
        async with self._shard_lock(shard):
            await self._close_shard(shard)

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

    def _logs_of(self, shards: Iterable[LedShard]) -> dict[tuple[str, int], PulsarPartitionLog]:
        numbers = {shard.number for shard in shards}
        return {
            name: log
            for name, log in self._logs.created.items()
            if self._shard_number(log.partition.key) in numbers
        }

    def _is_in(self, key: tuple[str, int], shards: Iterable[LedShard]) -> bool:
        """Whether the partition with this topic and index is in one of the shards."""
        topic = self.topics.get(key[0])
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

    def when_shard_lost(self, call: Callable[[int, str], None]) -> None:
        """`Store.when_shard_lost`. The next put of a row, or the next opening, shows it."""
        self._on_shard_lost.append(call)

    async def shard_table(self, shard: int, name: str) -> StateTable:
        self._check_open()
        opened = self._shards.get(shard)
        if opened is None:
            raise ShardNotOpen(f"shard {shard} is not open here")
        return opened.tables.table(name)

    def _shard_lock(self, shard: int) -> DeferredLock:
        return self._shard_locks.setdefault(shard, DeferredLock())

    def _shard_number(self, key: bytes) -> int:
        """The shard of the partition with that row key."""
        return partition_shard(*split_partition_key(key), self.shard_count)

    def _open_shard(self, key: bytes) -> LedShard:
        """The shard of the partition with that row key. Raises ShardNotOpen."""
        number = self._shard_number(key)
        if number not in self._shards:
            raise ShardNotOpen(f"shard {number} is not open here")
        return self._shards[number]

    async def table(self, name: str) -> MetadataTable:
        """`Store.table`: a section of the metadata log."""
        self._check_open()
        return self._metadata_table(name)

    def _metadata_table(self, name: str) -> MetadataTable:
        if name not in self._tables:
            self._tables[name] = MetadataTable(self.medium.log, name, self._check_open)
        return self._tables[name]

    def _new_table(
        self, name: str, on_fenced: Callable[[str], None] = lambda reason: None
    ) -> PulsarTable:
        return PulsarTable(
            self._client,
            self._admin,
            self.settings,
            self._reactor,
            name,
            on_fenced,
            max_key_bytes=MAX_STORED_KEY_BYTES,
        )

    async def permissions(self) -> PulsarPermissions:
        """`Store.permissions`. They are read only if they are asked for."""
        self._check_open()
        if self._permissions is None:
            permissions = PulsarPermissions(self.settings, self._admin, self._reactor)
            await permissions.open()
            if not self._is_open:
                permissions.close()
            self._check_open()
            self._permissions = permissions
        return self._permissions

    def usage(self) -> Iterable[VolumeUsage]:
        """The brokers' disk usage is not known here."""
        return [VolumeUsage(self.settings.service_url, -1, -1)]

    def _check_open(self) -> None:
        if not self._is_open:
            raise LogClosed("the store is closed")
