"""The known topics. Changes of a topic are serialized, and a concurrent refresh does not undo
them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from twisted.internet.defer import DeferredLock

from storage.log import Topic, UnknownTopic
from storage.pulsar.topics.topic_listing import PulsarTopic


class KnownTopics:
    """Known topics by name; `topics` is a live view.

    `notify` announces changes by other processes; own changes are not announced.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, PulsarTopic] = {}
        self._topics: dict[str, Topic] = {}
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics)
        self._watchers: list[Callable[[], None]] = []
        self._locks: dict[str, DeferredLock] = {}
        self._changed: set[str] = set()

    def get(self, name: str) -> PulsarTopic:
        """The known topic. Raises UnknownTopic."""
        try:
            return self.by_name[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name}") from None

    def add(self, found: PulsarTopic) -> None:
        self.by_name[found.topic.name] = found
        self._topics[found.topic.name] = found.topic

    def forget(self, name: str) -> None:
        self.by_name.pop(name, None)
        self._topics.pop(name, None)

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

    def merge(self, seen: Mapping[str, PulsarTopic | None]) -> list[str]:
        """Merge the results of a refresh (None: deleted); return the names that are new or changed.

        Topics changed here since the refresh began are skipped.
        """
        differing = [
            name
            for name, found in seen.items()
            if name not in self._changed and found != self.by_name.get(name)
        ]
        for name in differing:
            found = seen[name]
            if found is None:
                self.forget(name)
            else:
                self.add(found)
        return differing

    def watch(self, on_change: Callable[[], None]) -> None:
        self._watchers.append(on_change)

    def notify(self) -> None:
        for watcher in self._watchers:
            watcher()
