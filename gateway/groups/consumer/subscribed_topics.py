"""The topics that the members of a consumer group subscribe to, by name or regular expression."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_member import ConsumerGroupMember
from gateway.groups.consumer.consumer_roster import ConsumerRoster
from gateway.groups.consumer.topology import Topology, ids_of, topics_digest
from gateway.groups.group_effects import NEVER, Effect, LogEvent
from gateway.protocol.errors import KafkaError

#: Approximate size in memory of a topic that matches a regular expression, in bytes.
_NAME_BYTES = 100

#: Minimum interval between evaluations of a regular expression, in ms, because each one examines
#: all topics. Kafka's REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
REGEX_REFRESH_MS = 10_000


class SubscribedTopics:
    """Tells when the topics have changed, so that a new epoch must start."""

    def __init__(self, roster: ConsumerRoster, topology: Topology, effects: list[Effect]) -> None:
        self._roster = roster
        self._topology = topology
        self._effects = effects
        self.by_regex: dict[str, frozenset[str]] = {}
        """Matching topics of each regular expression."""
        self.digest = b""
        """Identifies the topics at the start of the epoch."""
        self._regex_topic_count = 0
        self._evaluated: dict[str, tuple[int, float]] = {}
        """For each regular expression: the topics version of its last evaluation, and the time."""
        self._version = -1
        """The topics version that the current epoch is based on."""

    def restore(self, by_regex: Mapping[str, frozenset[str]], digest: bytes) -> None:
        for regex, topics in by_regex.items():
            self._set(regex, topics)
        self.digest = digest

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return self._regex_topic_count * _NAME_BYTES

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._roster.topics).union(*self.by_regex.values())

    def ids_of(self, member: ConsumerGroupMember) -> frozenset[TopicId]:
        names = member.topics | self.by_regex.get(member.regex, frozenset())
        return ids_of(names, self._topology)

    def start_epoch(self) -> None:
        """Record the current topics: a new epoch begins with them."""
        self._version, self.digest = self._topology.version, self._current_digest()

    def have_changed(self, regex: str, now: float) -> bool:
        """Whether topics of this expression or of the group have changed since the epoch began."""
        topics_changed = bool(regex) and self._evaluate(regex, now)
        if self._version == self._topology.version and not topics_changed:
            return False
        self._version = self._topology.version
        return topics_changed or self._current_digest() != self.digest

    def _evaluate(self, regex: str, now: float) -> bool:
        """Re-evaluate an expression. Returns whether it matches other topics than before."""
        version, at = self._evaluated.get(regex, (-1, -NEVER))
        if version == self._topology.version or 0 <= now - at < REGEX_REFRESH_MS:
            return False
        before = self.by_regex.get(regex)
        self._evaluated[regex] = (self._topology.version, now)
        try:
            after = self._topology.matching(regex)
        except KafkaError as failure:
            # The expression was accepted earlier but now takes too long, because there are more
            # topics. Keep its previous matches.
            after = before or frozenset()
            self._effects.append(LogEvent("regular expression not re-evaluated", failure.message))
        self._set(regex, after)
        return after != before

    def _set(self, regex: str, topics: frozenset[str]) -> None:
        self._regex_topic_count += len(topics) - len(self.by_regex.get(regex, ()))
        self.by_regex[regex] = topics

    def remove_unused_regexes(self) -> None:
        for regex in [regex for regex in self.by_regex if regex not in self._roster.regexes]:
            self._regex_topic_count -= len(self.by_regex.pop(regex))
            self._evaluated.pop(regex, None)

    def _current_digest(self) -> bytes:
        return topics_digest(ids_of(self.names, self._topology), self._topology)
