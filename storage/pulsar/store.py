"""The store on a Pulsar cluster: opens and closes its parts.

Topics are managed by `TopicCatalog`, shards and logs by `LedShards`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from storage.bridge import Reactor, SharedResult
from storage.log import (
    Fenced,
    LogClosed,
    StateTable,
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
from storage.pulsar.led_shards import LedShards
from storage.pulsar.log.entry_formats import PulsarLogOpener
from storage.pulsar.log.format_history import PulsarPartitionLog
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_reader import ReaderCache
from storage.pulsar.log.partition_rows import partition_key
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.shard_migration import (
    FIRST_EPOCH,
    LAYOUT_TABLE,
    SHARDS,
    ShardMigration,
    ShardOfRow,
)
from storage.pulsar.tables.row_messages import MAX_STORED_KEY_BYTES
from storage.pulsar.tables.table import PulsarTable
from storage.pulsar.topics.mirrored_cursors import CursorMirror, CursorPosition
from storage.pulsar.topics.namespaces import largest_message
from storage.pulsar.topics.pulsar_names import path_of
from storage.pulsar.topics.topic_calls import CONTROLLER_METHODS, Call, RemoteTopics, answer_call
from storage.pulsar.topics.topic_catalog import TopicCatalog
from storage.pulsar.topics.topic_rows import SectionRows
from storage.tail import TailCache

logger = logging.getLogger(__name__)


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
        self._log_client = PulsarClient(settings, reactor)
        self.medium = PulsarClusterMedium(
            self._client, self._log_client, self._admin, settings, reactor
        )
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
        log_opener = PulsarLogOpener(
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
        self._led = LedShards(
            settings,
            self._admin,
            reactor,
            self._catalog,
            log_opener,
            self._side_topics,
            self._new_table,
            shard_count=lambda: self.shard_count,
            revision=lambda: self.medium.log.revision,
            may_write=self._may_write,
            check_open=self._check_open,
            within=self._within,
        )
        self._mirror = CursorMirror(self._admin, self._cursor_position, reactor, settings)
        self._is_open = False
        self._permissions: PulsarPermissions | None = None
        self._catalog.watch(self._led.topics_changed)
        self._catalog.watch_deletions(self._led.topic_deleted)

    async def open(self) -> None:
        """`Store.open`: connect and replay the metadata log.

        `prepare`, here or in another process, creates what a new store needs. If opening fails,
        everything opened so far is closed.
        """
        await self._client.open()
        try:
            await self._log_client.open()
            if self.settings.checks_at_start:
                await prepare(self.settings, self._admin, self._client)
            largest = await largest_message(self._admin) or self._client.message_bytes
            self._client.message_bytes = self._log_client.message_bytes = largest
            await self.medium.log.open()
            self._catalog.follow()
        except BaseException:
            await self._release()
            raise
        self._is_open = True
        self._led.start()
        if self.settings.mirror_cursors:
            self._mirror.start()

    async def prepare(self, *, list_topics: bool) -> None:
        """`SharedStore.prepare`."""
        self._check_open()
        migration = ShardMigration(
            self.settings,
            self._admin,
            self._new_table,
            self._shard_of_row,
            self.medium.log.confirm,
        )
        await migration.run(self._layout, self._metadata_table)
        if list_topics:
            await self._catalog.lead()

    def lead(self, all_replayed: Callable[[], Awaitable[None]]) -> None:
        """`SharedStore.lead`."""
        if self._is_open:
            self._catalog.start_leading(all_replayed)

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

    @property
    def applied_revision(self) -> int:
        """`SharedStore.applied_revision`."""
        return self._led.applied_revision

    async def close(self) -> None:
        """`Store.close`.

        Each step ends within `close_timeout_seconds`, even if Pulsar does not answer.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._led.stop()
        self._mirror.stop()
        if self._permissions is not None:
            self._permissions.close()
        # Wait for a running trim, which restores the topic's retention when it ends.
        await self._within("waiting for a trim", Deferred.fromCoroutine(self._catalog.end_trims()))
        await self._led.close()
        await self._release()

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
        await self._log_client.close()
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

    def watch_deletions(self, on_deletion: Callable[[Topic], None]) -> None:
        self._catalog.watch_deletions(on_deletion)

    def is_deleted(self, topic_id: bytes) -> bool:
        return self._catalog.is_deleted(topic_id)

    def canonical(self, name: str) -> str:
        return self._catalog.canonical(name)

    def note_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        if self.settings.mirror_cursors:
            self._mirror.note(group, topic, partition, offset)

    async def _cursor_position(self, name: str, index: int, offset: int) -> CursorPosition | None:
        """The position of a group's cursor.

        Returns None if the partition is not open here or does not have the offset.
        """
        log = self._led.open_log(name, index)
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
        self._led.topics_changed()

    async def delete_topic(self, name: str) -> None:
        """`Store.delete_topic`. The logs are closed first.

        A connected producer would recreate the topic where brokers create topics automatically. If
        a topic is first loaded while it is being deleted, the broker keeps a broken topic that
        answers in its place.
        """
        self._check_open()
        self._led.check_not_deleting(name)
        expected = self.topics.get(name)
        if expected is None:
            raise UnknownTopic(f"no topic {name}")
        self._led.deleting.add(name)
        try:
            await self._led.wait_until_opened(name)
            await self.confirm_held()
            self._check_open()
            topic = self.topics.get(name)
            if topic is None or topic.topic_id != expected.topic_id:
                raise UnknownTopic(f"topic {name} was deleted by another client")
            await self._within("logs of a deleted topic", self._led.close_logs(name))
            await self._catalog.delete(name)
        finally:
            self._led.deleting.discard(name)
        await self._within("logs of a deleted topic", self._led.close_logs(name))
        for index in range(topic.partitions):
            await self._led.delete_partition_state(partition_key(topic.topic_id, index))

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

    async def log(self, topic: str, partition: int) -> PulsarPartitionLog:
        return await self._led.log(topic, partition)

    async def open_shard(self, shard: int, leader_epoch: int) -> None:
        """`Store.open_shard`. A shard that is open with another epoch is closed first."""
        await self._led.open_shard(shard, leader_epoch)

    async def close_shard(self, shard: int) -> None:
        await self._led.close_shard(shard)

    async def shard_table(self, shard: int, name: str) -> StateTable:
        return await self._led.shard_table(shard, name)

    def written_partitions(self, shard: int) -> Sequence[tuple[bytes, int]]:
        """`SharedStore.written_partitions`."""
        return self._led.written_partitions(shard)

    def when_shard_lost(self, call: Callable[[int, str], None]) -> None:
        """`Store.when_shard_lost`. The next put of a row, or the next opening, shows it."""
        self._led.when_shard_lost(call)

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
