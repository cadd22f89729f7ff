"""What is known of the topics: one change of a topic after the other, and none of them lost to a look that began before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from twisted.internet.defer import DeferredLock

from storage.log import Topic, UnknownTopic
from storage.pulsar.topics.topic_listing import PulsarTopic


class KnownTopics:
    """`topics` is live. Changes by others are announced by `tell`, own ones are not."""

    def __init__(self) -> None:
        self.found: dict[str, PulsarTopic] = {}
        self._topics: dict[str, Topic] = {}
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics)
        self._watchers: list[Callable[[], None]] = []
        self._turns: dict[str, DeferredLock] = {}
        self._touched: set[str] = set()

    def known(self, name: str) -> PulsarTopic:
        """Raises UnknownTopic."""
        try:
            return self.found[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name}") from None

    def keep(self, found: PulsarTopic) -> None:
        self.found[found.topic.name] = found
        self._topics[found.topic.name] = found.topic

    def forget(self, name: str) -> None:
        self.found.pop(name, None)
        self._topics.pop(name, None)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """To change the topic of that name: one at a time."""
        turn = self._turns.setdefault(name, DeferredLock())
        await turn.acquire()
        self._touched.add(name)
        try:
            yield
        finally:
            turn.release()
            # Whoever came next may have come to its end by now, too.
            if not turn.locked and self._turns.get(name) is turn:
                del self._turns[name]

    def begin_look(self) -> None:
        """What is looked at from now on is newer than all that was changed, but for what is being changed."""
        self._touched = set(self._turns)

    def take(self, seen: Mapping[str, PulsarTopic | None]) -> list[str]:
        """What a look has seen (None: a topic is gone) is known now, but for what was changed here since it began; the names that are new or differ."""
        differing = [
            name
            for name, found in seen.items()
            if name not in self._touched and found != self.found.get(name)
        ]
        for name in differing:
            found = seen[name]
            if found is None:
                self.forget(name)
            else:
                self.keep(found)
        return differing

    def watch(self, on_change: Callable[[], None]) -> None:
        self._watchers.append(on_change)

    def tell(self) -> None:
        for watcher in self._watchers:
            watcher()
