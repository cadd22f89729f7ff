"""Computes the target assignment of a consumer group (Kafka's TargetAssignmentBuilder, 4.3).

Recently computed targets are kept for a while, so that a burst of changes causes one assignment.
"""

from __future__ import annotations

from gateway.groups.consumer.assignors import ASSIGNORS, Subscriber, TopicId
from gateway.groups.consumer.consumer_roster import ConsumerRoster
from gateway.groups.consumer.subscribed_topics import SubscribedTopics
from gateway.groups.consumer.topology import Topology
from gateway.groups.group_effects import NEVER

#: Approximate cost of computing a target, in microseconds, and the minimum pause after it as a
#: multiple of the cost. For a thousand members and fifty thousand partitions the event loop is
#: blocked for a tenth of a second, at most every two seconds.
TARGET_US_PER_MEMBER = 5
TARGET_US_PER_PARTITION = 2
TARGET_INTERVAL_FACTOR = 20


class TargetBuilder:
    def __init__(
        self, roster: ConsumerRoster, topics: SubscribedTopics, topology: Topology
    ) -> None:
        self._roster = roster
        self._topics = topics
        self._topology = topology
        self._built_at = -NEVER
        self._min_interval_ms = 0
        """Minimum time between the last target and the next."""

    @property
    def assignor(self) -> str:
        """The assignor that most members request, or the default."""
        return self._roster.assignor or next(iter(ASSIGNORS))

    def is_due(self, interval_ms: int, now: float) -> bool:
        """Whether a target may be computed; 0 allows it at any time."""
        pause = max(interval_ms, self._min_interval_ms)
        return not interval_ms or not 0 <= now - self._built_at < pause

    def build(self, now: float) -> dict[str, dict[TopicId, frozenset[int]]]:
        """Targets by member id."""
        topics: dict[tuple[frozenset[str], str], frozenset[TopicId]] = {}
        members = {}
        for member in self._roster:
            subscription = (member.topics, member.regex)
            if subscription not in topics:
                topics[subscription] = self._topics.ids_of(member)
            members[member.member_id] = Subscriber(
                member.instance_id, topics[subscription], member.target
            )
        partitions = {
            topic: self._topology.partitions(topic)
            for topic in frozenset[TopicId]().union(*topics.values())
        }
        cost = (
            len(members) * TARGET_US_PER_MEMBER + sum(partitions.values()) * TARGET_US_PER_PARTITION
        )
        self._built_at, self._min_interval_ms = now, cost * TARGET_INTERVAL_FACTOR // 1000
        return ASSIGNORS[self.assignor](members, partitions)
