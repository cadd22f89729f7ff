"""The topics of the served namespaces: listing, refresh, creation, changes, deletion.

Pulsar is the only place where they are stored. In a cluster of gateways, the controller lists,
refreshes and changes them, and writes what it knows to the metadata log. The known topics of every
gateway, also of the controller, are those of the replayed log. All gateways of a cluster need the
same namespaces in their settings.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from twisted.internet.defer import Deferred

from storage.bridge import Reactor, SharedResult, sleep
from storage.log import StorageError, StorageFailed, Topic, TopicExists, UnknownTopic
from storage.pulsar.admin.admin_api import AdminFailed, NotFound, PulsarAdmin
from storage.pulsar.compaction.trim import RetentionTrimmer, has_whole_ledgers
from storage.pulsar.log.offset_index import Position
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import PulsarNames, partition_name, partition_of
from storage.pulsar.topics.refresh import Refresher
from storage.pulsar.topics.topic_calls import NotController, TopicController, answer_call
from storage.pulsar.topics.topic_changes import TopicChanges
from storage.pulsar.topics.topic_listing import PulsarTopic, TopicListing
from storage.pulsar.topics.topic_rows import ReplayedRows
from storage.pulsar.topics.topic_trims import TopicTrims
from storage.pulsar.topics.topic_view import KnownTopics
from storage.pulsar.topics.topic_writer import TopicWriter

ROWS_AT_ONCE = 200
"""Rows per put, each of some hundred bytes; a put may have 4 MiB (`table_burst_bytes`)."""

log = logging.getLogger(__name__)


async def _at_once() -> None:
    """Nothing to wait for."""


class TopicCatalog:
    """The topics that the gateway serves; `topics` is a live view.

    A catalog follows the log until it becomes the controller's (`start_leading`). Its changes are
    in the log before they return. Changes by other programs appear within `refresh_seconds`, after
    which the watchers are called; own changes appear at once.

    `rows` are the topics' rows in the metadata log. `controller` performs what a follower cannot do
    itself.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        admin: PulsarAdmin,
        reactor: Reactor,
        rows: ReplayedRows,
        controller: TopicController | None = None,
    ) -> None:
        self.names = PulsarNames(settings)
        self._settings = settings
        self._reactor = reactor
        self._listing = TopicListing(self.names, admin, settings.admin_connections)
        trimmer = RetentionTrimmer(admin, partial(sleep, reactor), settings)
        self._changes = TopicChanges(settings, admin, self._listing, trimmer)
        self._admin = admin
        self._view = KnownTopics()
        self._writer = TopicWriter(self._view, rows)
        self._trims = TopicTrims(
            self.names,
            self._view,
            self._writer,
            self._changes,
            trimmer,
            self._retain_soon,
        )
        self._refresher = Refresher(
            self.refresh, "the list of topics", settings.refresh_seconds, reactor
        )
        self._topics_per_refresh = settings.refresh_topics
        self._refresh_queue: list[str] = []
        self._retention_retries: set[str] = set()
        self._term: object | None = None
        """Identifies the time since `start_leading` or `lead`; None in a follower."""
        self._controller = controller
        self._all_replayed: Callable[[], Awaitable[None]] = _at_once

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._view.topics

    @property
    def topic_ids(self) -> set[bytes]:
        """The ids of all topics, also of those that are being deleted."""
        return {found.topic.topic_id for found in self._view.by_name.values()}

    def is_deleted(self, topic_id: bytes) -> bool:
        """`Store.is_deleted`."""
        return topic_id in self._view.deleted

    def start_leading(self, all_replayed: Callable[[], Awaitable[None]]) -> None:
        """Become the controller's catalog, once the log is replayed and this process writes it.

        The first refresh starts at once, and changes are possible before it ends: a list of all
        topics takes longer than the other gateways wait for a new controller.

        `all_replayed` returns when every other live gateway has replayed what is in the log now,
        and has closed the logs of topics that it does not show, also those that were being opened.
        It is given `operation_timeout_seconds`.
        """
        self.follow()
        self._term = object()
        self._all_replayed = all_replayed
        self._refresher.start()
        self._refresher.hasten(0)

    async def lead(self, all_replayed: Callable[[], Awaitable[None]] = _at_once) -> None:
        """Like `start_leading`, but list all topics before returning.

        Writes the difference to the log. Topics that the log does not have are read, the others in
        turn by refreshes.

        Raises StorageFailed, after which this is a follower. If the log has no topics yet, that is
        also raised if only one namespace cannot be listed.
        """
        self.follow()
        term = self._term = object()
        self._all_replayed = all_replayed
        known = self._view.by_name
        try:
            await self._refresh_topics(
                self._listing.refresh_names if known else self._listing.names
            )
            for name in [name for name, found in known.items() if found.is_retention_lowered]:
                async with self._view.lock(name):
                    if name in self.topics:
                        await self._retain_soon(known[name])
            self._check_term(term)
        except BaseException:
            if self._term is term:
                self._term = None
            raise
        self._refresher.start()

    def follow(self) -> None:
        """Only replay the log from now on, without calls to Pulsar.

        A refresh in progress is cancelled. Other operations in progress complete in Pulsar, but
        fail when they write to the log; the new controller notices the changes with a refresh.
        """
        self._term = None
        self._refresher.stop()

    @property
    def is_leading(self) -> bool:
        return self._term is not None

    def check_leads(self) -> None:
        """Raises NotController."""
        if self._term is None:
            raise NotController(
                "this gateway is not the controller of its cluster: retry, or ask the controller"
            )

    def close(self) -> None:
        """Stop refreshing; `topics` stays readable."""
        self.follow()

    def watch(self, on_change: Callable[[], None]) -> None:
        """`Store.watch_topics`."""
        self._view.watch(on_change)

    def watch_deletions(self, on_deletion: Callable[[Topic], None]) -> None:
        """`Store.watch_deletions`."""
        self._view.watch_deletions(on_deletion)

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
        """`Store.create_topic`. Raises NotController."""
        full_name = self._check_new(topic)
        async with self._view.lock(topic.name):
            self.check_leads()
            if topic.name in self.topics:
                raise TopicExists(f"topic {topic.name} already exists")
            try:
                created = await self._changes.create(topic, full_name)
            except TopicExists:
                with contextlib.suppress(StorageFailed):
                    await self._refetch(topic.name, full_name)
                raise
            await self._writer.write_own(topic.name, await self._retained_soon(created))

    async def alter(self, topic: Topic) -> None:
        """`Store.alter_topic`. Raises NotController.

        If the entry format changes, the other gateways have closed the topic's logs when this
        returns, unless one of them is slow.
        """
        async with self._view.lock(topic.name):
            self.check_leads()
            known = self._check_altered(topic)
            try:
                altered = await self._changes.alter(known, topic)
            except (StorageFailed, UnknownTopic):
                # The change may be partly done.
                with contextlib.suppress(StorageFailed):
                    await self._refetch(topic.name, known.full_name)
                raise
            await self._writer.write_own(topic.name, await self._retained_soon(altered))
            if altered.entry_format != known.entry_format:
                try:
                    await self._wait_until_replayed()
                except StorageFailed as failure:
                    log.warning(
                        "entry format of topic changed, but other gateways may use the former one "
                        "for a moment topic=%s: %s",
                        topic.name,
                        failure,
                    )

    async def delete(self, name: str) -> None:
        """`Store.delete_topic`. Raises NotController.

        First the log says that the topic is being deleted, so that all gateways close its logs. A
        producer that is still connected would recreate the topic, and loading it would break it.
        The topic is back if it cannot be deleted. If this process ends before that, the next
        refresh, of any controller, reads from Pulsar whether the topic exists.
        """
        async with self._view.lock(name):
            self.check_leads()
            found = self._view.get(name)
            deleting = replace(found, is_being_deleted=True)
            await self._writer.write_own(name, deleting)
            try:
                await self._wait_until_replayed()
                # Confirms that this is still the controller: another one would show the topic.
                await self._writer.write_own(name, deleting)
                await self._changes.delete(found)
            except StorageError:
                with contextlib.suppress(StorageFailed):
                    await self._writer.write({name: found})
                raise
            await self._writer.write_own(name, None)

    async def reload(self, name: str) -> Topic | None:
        """`TopicController.reload`. Watchers are called if the topic changed.

        In a follower, `topics` shows the result once the log is replayed.
        """
        if self._term is None:
            return await self._ask_controller().reload(name)
        async with self._view.lock(name):
            self.check_leads()
            await self._refetch(name, self.names.full_name(name))
            return self.topics.get(name)

    async def create_missing_partitions(self, name: str) -> None:
        """`TopicController.create_missing_partitions`."""
        if self._term is None:
            return await self._ask_controller().create_missing_partitions(name)
        await self._changes.create_missing_partitions(self._view.get(name))
        return None

    async def refresh(self) -> None:
        """Read changes by other programs and set outstanding retention policies. Raises
        StorageFailed.
        """
        await self._refresh_topics(self._listing.refresh_names)
        self._retention_retries &= self.topics.keys()
        self._trims.forget_deleted()
        for name in [
            name for name, found in self._view.by_name.items() if self._changes.due(found)
        ]:
            async with self._view.lock(name):
                if name in self.topics:
                    await self._retain(self._view.get(name))

    async def can_trim(self, topic: str, keep: Position) -> bool:
        """`TopicTrimmer.can_trim`. The controller is asked only if there is a ledger to delete."""
        if not has_whole_ledgers(await self._admin.internal_stats(topic), keep):
            return False
        if self._term is None:
            return await self._ask_controller().can_trim(topic, keep)
        return await self._trims.is_allowed(topic)

    async def trim(
        self, topic: str, keep: Position, confirm: Callable[[], Awaitable[None]] = _at_once
    ) -> None:
        """`TopicTrimmer.trim`, at the controller and under the topic's lock.

        `confirm` raises Fenced if this process no longer leads the partition, or does not hold the
        store. It is called before the controller is asked, and before anything is changed here.
        That it may be outdated a moment later is harmless: see `compaction.trim`.
        """
        if self._term is None:
            await confirm()
            return await self._ask_controller().trim(topic, keep)
        await self._trims.trim(topic, keep, confirm, self.check_leads)
        return None

    async def end_trims(self) -> None:
        """Refuse new trims, and return when the running ones have restored the retention."""
        await self._trims.end()

    async def answer(self, method: str, payload: bytes) -> bytes:
        """Serve a call of a follower's `RemoteTopics`. Errors are in the answer."""
        return await answer_call(self, method, payload)

    def _ask_controller(self) -> TopicController:
        if self._controller is None:
            self.check_leads()
        assert self._controller
        return self._controller

    async def _wait_until_replayed(self) -> None:
        """Raises StorageFailed if another gateway is too slow, or what `all_replayed` raises."""
        seconds = self._settings.operation_timeout_seconds
        replayed: SharedResult[None] = SharedResult()
        waiting = Deferred.fromCoroutine(_awaited(self._all_replayed))
        waiting.addCallbacks(replayed.succeed, lambda failure: replayed.fail(failure.value))
        try:
            await replayed.with_timeout(self._reactor, seconds)
        except TimeoutError:
            waiting.cancel()
            raise StorageFailed(
                f"a gateway of the cluster has not applied a change within {seconds:g} s "
                "(operation_timeout_seconds): retry later"
            ) from None

    async def _refresh_topics(
        self,
        names: Callable[[Mapping[str, PulsarTopic]], Awaitable[Mapping[str, tuple[str, bool]]]],
    ) -> None:
        """List all topics; read new and missing ones and the next ones due; write what differs.

        `names` lists the topics. Raises NotController, StorageFailed.
        """
        self.check_leads()
        term = self._term
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
            if name not in known
            or known[name].is_partitioned != is_partitioned
            or known[name].is_being_deleted
        ]
        self._writer.unwritten &= listed.keys()
        wanted = {
            name: listed[name] for name in [*due, *new, *self._writer.unwritten] if name in listed
        }
        missing = {name: found for name, found in known.items() if name not in listed}
        unserved = [name for name, found in missing.items() if not self._may_be_listed(found)]
        # A list may be incomplete for a moment.
        wanted.update(
            (name, (found.full_name, True))
            for name, found in missing.items()
            if name not in unserved
        )
        seen = {**await self._listing.fetch_all(wanted), **dict.fromkeys(unserved)}
        names_seen = list(seen)
        for begin in range(0, len(names_seen), ROWS_AT_ONCE):
            self._check_term(term)
            # Topics may have been changed while former rows were written.
            newest = self._view.keep_newest(
                {name: seen[name] for name in names_seen[begin : begin + ROWS_AT_ONCE]}
            )
            self._writer.unwritten -= newest.keys()
            differing = self._view.differing(newest)
            if differing:
                await self._writer.write(differing)

    def _may_be_listed(self, found: PulsarTopic) -> bool:
        """Whether Pulsar's list would have this topic, if it exists.

        False if its namespace is no longer served, or if it may be a partition of another topic.
        """
        is_served = self.names.listed(found.full_name) is not None
        return is_served and partition_of(found.full_name) is None

    def _check_term(self, term: object) -> None:
        """Raises NotController if `follow` was called since `term` began."""
        if self._term is not term:
            raise NotController("this gateway is no longer the controller of its cluster")

    async def _refetch(self, name: str, full_name: str) -> None:
        """Read one topic again, which may have become partitioned or not."""
        differing = self._view.differing({name: await self._listing.fetch(name, full_name)})
        if differing:
            await self._writer.write(differing)

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

    async def _retain_soon(self, found: PulsarTopic) -> None:
        """As `_retain`; if that fails, a refresh repeats it."""
        try:
            await self._retain(found)
        except StorageFailed as failure:
            _log_retention_failure(found, failure)

    async def _retain(self, found: PulsarTopic) -> None:
        """Set the retention policy and write the topic. Raises StorageFailed if no broker answers.

        A refusal for one topic does not prevent the policies of others.
        """
        retained = await self._retained(found)
        if retained != found:
            await self._writer.write({found.topic.name: retained})

    async def _retained_soon(self, found: PulsarTopic) -> PulsarTopic:
        """As `_retained`; if that fails, a refresh repeats it."""
        try:
            return await self._retained(found)
        except StorageFailed as failure:
            _log_retention_failure(found, failure)
        return found

    async def _retained(self, found: PulsarTopic) -> PulsarTopic:
        """Set the retention policy; return the topic as it is then, to be written."""
        name = found.topic.name
        try:
            retained = await self._changes.retain(found)
        except NotFound:
            return found
        except AdminFailed as failure:
            if name not in self._retention_retries:
                self._retention_retries.add(name)
                log.warning(
                    "setting the retention of %s failed, retrying with each refresh: %s",
                    name,
                    failure,
                )
            return found
        self._retention_retries.discard(name)
        return retained


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()


def _log_retention_failure(found: PulsarTopic, failure: StorageFailed) -> None:
    log.warning("setting the retention of %s failed, retrying later: %s", found.topic.name, failure)
