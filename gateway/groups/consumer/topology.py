"""Topic metadata for groups: ids, partition counts and regular expression matches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Set
from struct import Struct
from typing import Protocol

from gateway.groups.classic.subscription import PartitionsByName, Subscription
from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_member import Partitions
from gateway.groups.consumer.topic_regexes import TopicRegexes
from gateway.protocol.errors import KafkaError
from gateway.topics.registry import Topics
from gateway.topics.tenant_scope import TenantScope, namespace_of

_DIGEST_ROW = Struct(">16sI")


class Topology(Protocol):
    """The topics at this moment."""

    @property
    def version(self) -> int:
        """Rises when any topic is created, altered or deleted."""
        ...

    def id_of(self, name: str) -> TopicId | None: ...
    def name_of(self, topic: TopicId) -> str | None: ...
    def partitions(self, topic: TopicId) -> int:
        """The partition count, or 0 if the topic does not exist."""
        ...

    def matching(self, regex: str) -> frozenset[str]:
        """Names of all topics that the expression matches completely.

        Raises KafkaError(INVALID_REGULAR_EXPRESSION).
        """
        ...

    def of_group(self, group_id: str) -> Topology:
        """The topics that exist for a group: those of its namespace if it belongs to a tenant."""
        ...

    def from_client(self, name: str) -> str:
        """The name of a topic in a member's subscription or assignment, as it is used here."""
        ...

    def to_client(self, name: str) -> str:
        """The reverse of `from_client`."""
        ...


class TopicView:
    """`Topology` over the gateway's topics. `regex_max_bytes` limits an expression's length.

    With a `scope`, expressions match the short names of its topics.
    """

    def __init__(
        self, topics: Topics, regex_max_bytes: int, scope: TenantScope | None = None
    ) -> None:
        self._topics = topics
        self._regex_max_bytes = regex_max_bytes
        self._scope = scope
        self._regexes = TopicRegexes(regex_max_bytes)
        self._names: frozenset[str] = frozenset()
        self._names_version = -1
        self._by_namespace: dict[str, TopicView] = {}

    def of_group(self, group_id: str) -> TopicView:
        namespace = namespace_of(group_id)
        if namespace is None or self._scope is not None:
            return self
        view = self._by_namespace.get(namespace)
        if view is None:
            # Bounded: the namespaces are those of the settings, now or when a group was stored.
            view = self._by_namespace[namespace] = TopicView(
                self._topics,
                self._regex_max_bytes,
                TenantScope(namespace, self._is_default(namespace)),
            )
        return view

    def _is_default(self, namespace: str) -> bool:
        try:
            return "/" not in self._topics.names.canonical(f"{namespace}/t")
        except KafkaError:
            # No longer served: it has no topics.
            return False

    def from_client(self, name: str) -> str:
        return name if self._scope is None else self._scope.topic_from_client(name)

    def to_client(self, name: str) -> str:
        return name if self._scope is None else self._scope.topic_to_client(name)

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
            self._names = frozenset(
                self.to_client(topic_state.name)
                for topic_state in self._topics
                if self._scope is None or self._scope.owns_topic(topic_state.name)
            )
            self._names_version = self._topics.version
        found = self._regexes.matching(regex, self._names)
        return found if self._scope is None else frozenset(map(self.from_client, found))


def partitions_from_client(named: PartitionsByName, topology: Topology) -> PartitionsByName:
    return {topology.from_client(name): indexes for name, indexes in named.items()}


def subscription_from_client(subscription: Subscription, topology: Topology) -> Subscription:
    return Subscription(
        frozenset(map(topology.from_client, subscription.topics)),
        partitions_from_client(subscription.owned, topology),
        subscription.rack_id,
    )


def ids_of(names: Iterable[str], topology: Topology) -> frozenset[TopicId]:
    """Ids of the topics that exist."""
    return frozenset(topic for name in names if (topic := topology.id_of(name)) is not None)


def partitions_by_id(named: PartitionsByName, topology: Topology) -> Partitions:
    """The partitions of the topics that exist."""
    return {
        topic: indexes
        for name, indexes in named.items()
        if indexes and (topic := topology.id_of(name)) is not None
    }


def topics_digest(topics: Set[TopicId], topology: Topology) -> bytes:
    """Changes when one of the topics is created, deleted or gets more partitions."""
    digest = hashlib.blake2b(digest_size=8)
    for topic in sorted(topics):
        digest.update(_DIGEST_ROW.pack(topic, topology.partitions(topic)))
    return digest.digest()


def canonical_name(name: str, topology: Topology) -> str:
    """The name under which the topic is listed, or `name` if it does not exist."""
    topic = topology.id_of(name)
    return (None if topic is None else topology.name_of(topic)) or name


def named_topics(
    topics: Iterable[TopicId], asked: Iterable[str], topology: Topology
) -> Iterator[tuple[TopicId, str]]:
    """Existing topics with the names under which they were requested, if any.

    Clients do not recognize other aliases of a topic.
    """
    names = {topology.id_of(name): name for name in asked}
    for topic in topics:
        name = names.get(topic) or topology.name_of(topic)
        if name is not None:
            yield topic, name
