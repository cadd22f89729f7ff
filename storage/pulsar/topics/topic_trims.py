"""Trims topics at the controller, under the topic's lock. The rules are in `compaction.trim`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from twisted.internet.defer import DeferredSemaphore

from storage.bridge import clock_seconds
from storage.log import LogClosed
from storage.pulsar.compaction.trim import RetentionTrimmer
from storage.pulsar.log.offset_index import Position
from storage.pulsar.topics.pulsar_names import PulsarNames, partition_of
from storage.pulsar.topics.topic_changes import TopicChanges
from storage.pulsar.topics.topic_listing import PulsarTopic
from storage.pulsar.topics.topic_view import KnownTopics
from storage.pulsar.topics.topic_writer import TopicWriter

TRIMS_AT_ONCE = 4
"""Topics trimmed at the same time, each for about a second."""

log = logging.getLogger(__name__)


class TopicTrims:
    """Trims topics of `view`. `retain_soon` restores a topic's retention, as far as possible."""

    def __init__(
        self,
        names: PulsarNames,
        view: KnownTopics,
        writer: TopicWriter,
        changes: TopicChanges,
        trimmer: RetentionTrimmer,
        retain_soon: Callable[[PulsarTopic], Awaitable[None]],
    ) -> None:
        self._names = names
        self._view = view
        self._writer = writer
        self._changes = changes
        self._trimmer = trimmer
        self._retain_soon = retain_soon
        self._untrimmable: set[str] = set()
        self._slots = DeferredSemaphore(TRIMS_AT_ONCE)
        self._has_ended = False

    def forget_deleted(self) -> None:
        """Forget what was logged of topics that do not exist any more."""
        self._untrimmable &= self._view.topics.keys()

    async def is_allowed(self, topic: str) -> bool:
        """Whether the topic's retention may be lowered.

        If an administrator can remove the obstacle, it is logged once per topic.
        """
        found = self._holder(topic)
        if found is None or not self._changes.is_retained(found):
            return False
        name, refusal = found.topic.name, await self._trimmer.refusal(found)
        if refusal and name not in self._untrimmable:
            self._untrimmable.add(name)
            log.warning("compaction cannot free the space of %s: %s", name, refusal)
        return not refusal

    async def trim(
        self,
        topic: str,
        keep: Position,
        confirm: Callable[[], Awaitable[None]],
        check_leads: Callable[[], None],
    ) -> None:
        """`TopicCatalog.trim` at the controller."""
        await self._slots.acquire()
        try:
            if self._has_ended:
                raise LogClosed("the store is closed")
            holder = self._holder(topic)
            if holder is None:
                return
            async with self._view.lock(holder.topic.name):
                check_leads()
                await self._trim(self._view.get(holder.topic.name), topic, keep, confirm)
        finally:
            self._slots.release()

    async def _trim(
        self,
        found: PulsarTopic,
        topic: str,
        keep: Position,
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        if not self._changes.is_retained(found):
            return
        since = clock_seconds()
        await confirm()
        lowered = await self._trimmer.plan(found)
        # Also if the row is the same: it confirms that this process is the controller.
        await self._writer.write({found.topic.name: lowered})
        try:
            await self._trimmer.begin(lowered)
            await self._trimmer.protect(lowered, topic, keep)
            self._trimmer.check_time(since)
            if await self._changes.lower(lowered):
                await self._trimmer.trim(topic, keep, since)
        finally:
            await self._retain_soon(lowered)

    async def end(self) -> None:
        """Refuse new trims, and return when the running ones have restored the retention."""
        self._has_ended = True
        for _ in range(TRIMS_AT_ONCE):
            await self._slots.acquire()

    def _holder(self, topic: str) -> PulsarTopic | None:
        """The topic that has this Pulsar topic as a partition, or is not partitioned and is it."""
        for full_name in [topic, *(partition_of(topic) or ())[:1]]:
            name = self._names.listed(str(full_name))
            found = self._view.by_name.get(name) if name is not None else None
            if found and found.is_partitioned == (full_name != topic):
                return None if found.is_being_deleted else found
        return None
