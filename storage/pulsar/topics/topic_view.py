"""The known topics. Changes of a topic are serialized, and a concurrent refresh does not undo
them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from twisted.internet.defer import DeferredLock

from storage.log import Topic, UnknownTopic
from storage.pulsar.topics.topic_listing import PulsarTopic

log = logging.getLogger(__name__)


class KnownTopics:
    """Known topics by name. `topics` is a live view, without those that are being deleted."""

    def __init__(self) -> None:
        self.by_name: dict[str, PulsarTopic] = {}
        self._topics: dict[str, Topic] = {}
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics)
        self.deleted: dict[bytes, int] = {}
        """The topics that gateways deleted, without those deleted long ago: number by topic id."""
        self._watchers: list[Callable[[], None]] = []
        self._deletion_watchers: list[Callable[[Topic], None]] = []
        self._locks: dict[str, DeferredLock] = {}
        self._changed: set[str] = set()

    def get(self, name: str) -> PulsarTopic:
        """The known topic. Raises UnknownTopic, also if it is being deleted."""
        if name not in self._topics:
            raise UnknownTopic(f"there is no topic {name}")
        return self.by_name[name]

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        """Lock the topic of that name for a change."""
        turn = self._locks.setdefault(name, DeferredLock())
        await turn.acquire()
        self._changed.add(name)
        try:
            yield
        finally:
            turn.release()
            # The next holder may also have finished already.
            if not turn.locked and self._locks.get(name) is turn:
                del self._locks[name]

    def begin_refresh(self) -> None:
        """Start of a refresh: its results are newer than all changes except those in progress."""
        self._changed = set(self._locks)

    def keep_newest(self, seen: Mapping[str, PulsarTopic | None]) -> dict[str, PulsarTopic | None]:
        """The results of a refresh without the topics changed here since the refresh began."""
        return {name: found for name, found in seen.items() if name not in self._changed}

    def differing(self, seen: Mapping[str, PulsarTopic | None]) -> dict[str, PulsarTopic | None]:
        """What differs from the known topics; None: deleted."""
        return {name: found for name, found in seen.items() if found != self.by_name.get(name)}

    def merge(self, rows: Mapping[str, PulsarTopic | None]) -> set[str]:
        """Apply replayed rows (None: deleted).

        Returns the names of topics that changed, not counting changes of Pulsar's retention.
        """
        changed = set()
        for name, found in rows.items():
            before = self.by_name.get(name)
            if found is None:
                self.by_name.pop(name, None)
            else:
                self.by_name[name] = found
            if found is None or found.is_being_deleted:
                self._topics.pop(name, None)
            else:
                self._topics[name] = found.topic
            if _visible(found) != _visible(before):
                changed.add(name)
        return changed

    def watch(self, on_change: Callable[[], None]) -> None:
        self._watchers.append(on_change)

    def watch_deletions(self, on_deletion: Callable[[Topic], None]) -> None:
        self._deletion_watchers.append(on_deletion)

    def notify_deleted(self, topic: Topic) -> None:
        for watcher in self._deletion_watchers:
            _call(partial(watcher, topic))

    def notify(self) -> None:
        for watcher in self._watchers:
            _call(watcher)


def _call(watcher: Callable[[], None]) -> None:
    """Call a watcher. If it raises, the others are called nevertheless."""
    try:
        watcher()
    except Exception:
        log.exception("bug: a watcher of topics raised")


def _visible(one: PulsarTopic | None) -> PulsarTopic | None:
    return one and replace(one, retention=None)
