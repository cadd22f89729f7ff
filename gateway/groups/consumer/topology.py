"""What groups need to know of topics: their ids, how many partitions they have, and which of them a regular expression names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Set
from struct import Struct
from typing import Protocol

from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.topic_regexes import TopicRegexes
from gateway.topics.registry import Topics

_DIGEST_ROW = Struct(">16sI")


class Topology(Protocol):
    """The topics of this moment."""

    @property
    def version(self) -> int:
        """Goes up whenever any topic is made, altered or deleted."""
        ...

    def id_of(self, name: str) -> TopicId | None: ...
    def name_of(self, topic: TopicId) -> str | None: ...
    def partitions(self, topic: TopicId) -> int:
        """0 for a topic that is not there."""
        ...

    def matching(self, regex: str) -> frozenset[str]:
        """The names of all topics that it matches whole. Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
        ...


class TopicView:
    """The topics of this gateway, as groups look at them. `regex_max_bytes` is how long a regular expression may be."""

    def __init__(self, topics: Topics, regex_max_bytes: int) -> None:
        self._topics = topics
        self._regexes = TopicRegexes(regex_max_bytes)
        self._names: frozenset[str] = frozenset()
        self._names_version = -1

    @property
    def version(self) -> int:
        return self._topics.version

    def id_of(self, name: str) -> TopicId | None:
        topic_state = self._topics.get(name)
        return None if topic_state is None else topic_state.topic.topic_id

    def name_of(self, topic: TopicId) -> str | None:
        topic_state = self._topics.get(topic)
        return None if topic_state is None else topic_state.name

    def partitions(self, topic: TopicId) -> int:
        topic_state = self._topics.get(topic)
        return 0 if topic_state is None else topic_state.topic.partitions

    def matching(self, regex: str) -> frozenset[str]:
        if self._names_version != self._topics.version:
            self._names, self._names_version = (
                frozenset(topic_state.name for topic_state in self._topics),
                self._topics.version,
            )
        return self._regexes.matching(regex, self._names)


def ids_of(names: Iterable[str], topology: Topology) -> frozenset[TopicId]:
    """The ids of those that are there."""
    return frozenset(topic for name in names if (topic := topology.id_of(name)) is not None)


def topics_digest(topics: Set[TopicId], topology: Topology) -> bytes:
    """Tells whether any of these topics has come, gone or grown."""
    digest = hashlib.blake2b(digest_size=8)
    for topic in sorted(topics):
        digest.update(_DIGEST_ROW.pack(topic, topology.partitions(topic)))
    return digest.digest()


def canonical_name(name: str, topology: Topology) -> str:
    """The name that a topic has in all lists, of those that it may be called by; one that is not there is called what it is called."""
    topic = topology.id_of(name)
    return (None if topic is None else topology.name_of(topic)) or name


def named_topics(
    topics: Iterable[TopicId], asked: Iterable[str], topology: Topology
) -> Iterator[tuple[TopicId, str]]:
    """Those that are still there, by the names that they were asked for by where they were: a client knows no others."""
    names = {topology.id_of(name): name for name in asked}
    for topic in topics:
        name = names.get(topic) or topology.name_of(topic)
        if name is not None:
            yield topic, name
