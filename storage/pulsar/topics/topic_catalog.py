"""The topics of the served namespaces: listing, refresh, creation, changes, deletion.

Pulsar is the only place where they are stored.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from storage.bridge import Reactor, sleep
from storage.log import StorageFailed, Topic, TopicExists, UnknownTopic
from storage.pulsar.admin.admin_api import AdminFailed, NotFound, PulsarAdmin
from storage.pulsar.compaction.trim import RetentionTrimmer, clock_seconds, has_whole_ledgers
from storage.pulsar.log.offset_index import Position
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import PulsarNames, partition_name, partition_of
from storage.pulsar.topics.refresh import Refresher
from storage.pulsar.topics.topic_changes import TopicChanges
from storage.pulsar.topics.topic_listing import PulsarTopic, TopicListing
from storage.pulsar.topics.topic_view import KnownTopics

log = logging.getLogger(__name__)


class TopicCatalog:
    """The topics that the gateway serves; `topics` is a live view.

    Changes by other processes appear within `refresh_seconds`, after which the watchers are called.
    Own changes appear at once.
    """

    def __init__(self, settings: PulsarSettings, admin: PulsarAdmin, reactor: Reactor) -> None:
        self.names = PulsarNames(settings)
        self._listing = TopicListing(self.names, admin, settings.admin_connections)
        self._trimmer = RetentionTrimmer(admin, partial(sleep, reactor), settings)
        self._changes = TopicChanges(settings, admin, self._listing, self._trimmer)
        self._admin = admin
        self._view = KnownTopics()
        self._refresher = Refresher(
            self.refresh, "the list of topics", settings.refresh_seconds, reactor
        )
        self._topics_per_refresh = settings.refresh_topics
        self._refresh_queue: list[str] = []
        self._retention_retries: set[str] = set()
        self._untrimmable: set[str] = set()

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._view.topics

    async def open(self) -> None:
        """List all topics and start refreshing.

        Raises StorageFailed, also if only one namespace cannot be listed.
        """
        await self._refresh_topics(self._listing.names)
        for name in [
            name for name, found in self._view.by_name.items() if found.is_retention_lowered
        ]:
            async with self._view.lock(name):
                await self._retain_soon(name)
        self._refresher.start()

    def close(self) -> None:
        """Stop refreshing; `topics` stays readable."""
        self._refresher.stop()

    def watch(self, on_change: Callable[[], None]) -> None:
        """`Store.watch_topics`."""
        self._view.watch(on_change)

    def canonical(self, name: str) -> str:
        """`Store.canonical`."""
        return self.names.canonical(name)

    def full_name(self, name: str, partition: int) -> str:
        """The Pulsar topic of a partition. Raises UnknownTopic."""
        found = self._view.get(name)
        if not 0 <= partition < found.topic.partitions:
            raise UnknownTopic(f"{name} has no partition {partition}")
        return (
            partition_name(found.full_name, partition) if found.is_partitioned else found.full_name
        )

    def entry_format(self, name: str) -> str | None:
        """The topic's property `entry.format`; None if another program created the topic.

        Raises UnknownTopic.
        """
        return self._view.get(name).entry_format

    async def create(self, topic: Topic) -> None:
        """`Store.create_topic`."""
        full_name = self._check_new(topic)
        async with self._view.lock(topic.name):
            if topic.name in self.topics:
                raise TopicExists(f"topic {topic.name} already exists")
            try:
                self._view.add(await self._changes.create(topic, full_name))
            except TopicExists:
                with contextlib.suppress(StorageFailed):
                    await self._refetch(topic.name, full_name)
                raise
            await self._retain_soon(topic.name)

    async def alter(self, topic: Topic) -> None:
        """`Store.alter_topic`."""
        async with self._view.lock(topic.name):
            known = self._check_altered(topic)
            try:
                self._view.add(await self._changes.alter(known, topic))
            except (StorageFailed, UnknownTopic):
                # The change may be partly done.
                with contextlib.suppress(StorageFailed):
                    await self._refetch(topic.name, known.full_name)
                raise
            await self._retain_soon(topic.name)

    async def delete(self, name: str) -> None:
        """`Store.delete_topic`."""
        async with self._view.lock(name):
            await self._changes.delete(self._view.get(name))
            self._view.forget(name)

    async def reload(self, name: str) -> Topic | None:
        """Read one topic from Pulsar and notify the watchers if it changed. Raises
        StorageFailed.
        """
        async with self._view.lock(name):
            await self._refetch(name, self.names.full_name(name))
            return self.topics.get(name)

    async def create_missing_partitions(self, name: str) -> None:
        """Create partitions of a topic that do not exist. Raises UnknownTopic, StorageFailed."""
        await self._changes.create_missing_partitions(self._view.get(name))

    async def refresh(self) -> None:
        """Read changes by other processes and set outstanding retention policies. Raises
        StorageFailed.
        """
        if await self._refresh_topics(self._listing.refresh_names):
            self._view.notify()
        self._retention_retries &= self.topics.keys()
        self._untrimmable &= self.topics.keys()
        for name in [
            name for name, found in self._view.by_name.items() if self._changes.due(found)
        ]:
            async with self._view.lock(name):
                if name in self.topics:
                    await self._retain(name)

    async def can_trim(self, topic: str, keep: Position) -> bool:
        """`Trimming.can_trim`. If an administrator can remove the obstacle, it is logged once per
        topic.
        """
        if not has_whole_ledgers(await self._admin.internal_stats(topic), keep):
            return False
        found = self._holder(topic)
        if found is None or not self._changes.is_retained(found):
            return False
        name, refusal = found.topic.name, await self._trimmer.refusal(found)
        if refusal and name not in self._untrimmable:
            self._untrimmable.add(name)
            log.warning("compaction cannot free the space of %s: %s", name, refusal)
        return not refusal

    async def trim(
        self, topic: str, keep: Position, confirm: Callable[[], Awaitable[None]]
    ) -> None:
        """`Trimming.trim`, under the topic's lock.

        `confirm` raises Fenced if another process may hold the store.
        """
        found = self._holder(topic)
        if found is None:
            return
        name = found.topic.name
        async with self._view.lock(name):
            found = self._view.get(name)
            if not self._changes.is_retained(found):
                return
            since = clock_seconds()
            await confirm()
            lowered = await self._trimmer.begin(found)
            self._view.add(lowered)
            try:
                await self._trimmer.protect(lowered, topic, keep)
                self._trimmer.check_time(since)
                if await self._changes.lower(lowered):
                    await self._trimmer.trim(topic, keep, since)
            finally:
                await self._retain_soon(name)

    def _holder(self, topic: str) -> PulsarTopic | None:
        """The topic that has this Pulsar topic as a partition, or is not partitioned and is it."""
        for full_name in [topic, *(partition_of(topic) or ())[:1]]:
            name = self.names.listed(str(full_name))
            found = self._view.by_name.get(name) if name is not None else None
            if found and found.is_partitioned == (full_name != topic):
                return found
        return None

    async def _refresh_topics(
        self,
        names: Callable[[Mapping[str, PulsarTopic]], Awaitable[Mapping[str, tuple[str, bool]]]],
    ) -> list[str]:
        """List all topics; read new ones and the next ones due. Returns the names of changed
        topics.

        `names` lists the topics.
        """
        self._view.begin_refresh()
        known = self._view.by_name
        listed = await names(known)
        self._refresh_queue = self._refresh_queue or list(known)
        due, self._refresh_queue = (
            self._refresh_queue[: self._topics_per_refresh],
            self._refresh_queue[self._topics_per_refresh :],
        )
        new = [
            name
            for name, (_, is_partitioned) in listed.items()
            if name not in known or known[name].is_partitioned != is_partitioned
        ]
        wanted = {name: listed[name] for name in [*due, *new] if name in listed}
        gone = dict.fromkeys(name for name in known if name not in listed)
        return self._view.merge({**await self._listing.fetch_all(wanted), **gone})

    async def _refetch(self, name: str, full_name: str) -> None:
        """Read one topic again, which may have become partitioned or not."""
        seen = await self._listing.fetch(name, full_name)
        before = self.topics.get(name)
        if seen is None:
            self._view.forget(name)
        else:
            self._view.add(seen)
        if self.topics.get(name) != before:
            self._view.notify()

    def _check_new(self, topic: Topic) -> str:
        """Return the full name. Raises ValueError."""
        if (
            len(topic.topic_id) != 16
            or topic.partitions < 1
            or self.canonical(topic.name) != topic.name
        ):
            raise ValueError(
                f"topic {topic.name}: the id must have 16 bytes, the name must be canonical, and "
                "there must be at least one partition"
            )
        if "-partition-" in topic.name:
            raise ValueError(
                f"topic {topic.name}: Pulsar allows no partitioned topic with '-partition-' in its "
                "name"
            )
        return self.names.full_name(topic.name)

    def _check_altered(self, topic: Topic) -> PulsarTopic:
        """Return the current topic. Raises UnknownTopic, ValueError."""
        known = self._view.get(topic.name)
        if topic.topic_id != known.topic.topic_id or topic.partitions < known.topic.partitions:
            raise ValueError(
                f"topic {topic.name} keeps its id and its {known.topic.partitions} partitions"
            )
        if topic.partitions > 1 and not known.is_partitioned:
            raise ValueError(
                f"topic {topic.name} is not partitioned in Pulsar, which cannot be changed: "
                "it keeps one partition"
            )
        return known

    async def _retain_soon(self, name: str) -> None:
        """Set the retention policy now or, if that fails, with a refresh."""
        try:
            await self._retain(name)
        except StorageFailed as failure:
            log.warning("setting the retention of %s failed, retrying later: %s", name, failure)

    async def _retain(self, name: str) -> None:
        """Set the retention policy. Raises StorageFailed if no broker answers.

        A refusal for one topic does not prevent the policies of others.
        """
        try:
            self._view.add(await self._changes.retain(self._view.get(name)))
        except NotFound:
            return
        except AdminFailed as failure:
            if name not in self._retention_retries:
                self._retention_retries.add(name)
                log.warning(
                    "setting the retention of %s failed, retrying with each refresh: %s",
                    name,
                    failure,
                )
        else:
            self._retention_retries.discard(name)
