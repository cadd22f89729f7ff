"""What is known of the topics: one change of a topic after the other, and none of them lost to a look that began before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from twisted.internet.defer import DeferredLock

from storage.log import Topic, UnknownTopic
from storage.pulsar.topics.topic_listing import PulsarTopic


class KnownTopics:
    """`topics` is live. Changes by others are announced by `notify`, own ones are not."""

    def __init__(self) -> None:
        self.by_name: dict[str, PulsarTopic] = {}
        self._topics: dict[str, Topic] = {}
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics)
        self._watchers: list[Callable[[], None]] = []
        self._locks: dict[str, DeferredLock] = {}
        self._changed: set[str] = set()

    def get(self, name: str) -> PulsarTopic:
        """Raises UnknownTopic."""
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
        """To change the topic of that name: one at a time."""
        turn = self._locks.setdefault(name, DeferredLock())
        await turn.acquire()
        self._changed.add(name)
        try:
            yield
        finally:
            turn.release()
            # Whoever came next may have come to its end by now, too.
            if not turn.locked and self._locks.get(name) is turn:
                del self._locks[name]

    def begin_refresh(self) -> None:
        """What is looked at from now on is newer than all that was changed, but for what is being changed."""
        self._changed = set(self._locks)

    def merge(self, seen: Mapping[str, PulsarTopic | None]) -> list[str]:
        """What a look has seen (None: a topic is gone) is known now, but for what was changed here since it began; the names that are new or differ."""
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
