"""How a consumer group comes from one epoch to the next (KIP-848; Kafka's GroupMetadataManager and TargetAssignmentBuilder, 4.3).

Whenever its members or their subscriptions or the topics of these change, the group's epoch rises. When somebody is heard of next, a target is
made for that epoch: which partitions each member shall have. Each member comes to it in its own time, by its heartbeats.
`gateway.groups.consumer.consumer_group` says what starts all this. Times are ms of a clock that never steps; the driver stores them as ms since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from gateway.groups.consumer.assignors import ASSIGNORS, Subscriber, TopicId
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, Partitions
from gateway.groups.consumer.consumer_roster import ConsumerRoster
from gateway.groups.consumer.consumer_rows import GROUP_ROW, ConsumerGroupRow, row_key
from gateway.groups.consumer.consumer_states import ConsumerGroupState, MemberState
from gateway.groups.consumer.reconciliation import reconcile
from gateway.groups.consumer.topology import Topology, ids_of, topics_digest
from gateway.groups.consumer.unstored_changes import UnstoredChanges
from gateway.groups.group_effects import Effect, LogEvent
from gateway.protocol.errors import KafkaError
from gateway.settings.model import Settings

NEVER = float("inf")

#: What a group takes in memory besides its members, roughly, in bytes, and a topic that a regular expression names.
_GROUP_BYTES = 4096
_NAME_BYTES = 100

#: A regular expression is matched with the topics again only so often: each of them is looked at. Kafka's REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
REGEX_REFRESH_MS = 10_000


#: What a target takes, roughly, in microseconds, and in how many times that it may be made again: a tenth of a second for a thousand members and
#: fifty thousand partitions, while nobody else is served, every two seconds.
TARGET_US_PER_MEMBER = 5
TARGET_US_PER_PARTITION = 2
TARGET_INTERVAL_FACTOR = 20


@dataclass(slots=True)
class MemberDeadlines:
    """Of a member: until when it must have been heard of, have given its partitions back, and in the classic protocol have joined and synced."""

    session: float = NEVER
    revoke: float = NEVER
    join: float = NEVER
    sync: float = NEVER

    @property
    def earliest(self) -> float:
        return min(self.session, self.revoke, self.join, self.sync)


class GroupEpochs:
    """Begins empty, in epoch 0, which nobody was ever in."""

    def __init__(self, group_id: str, topology: Topology, settings: Settings, now: float) -> None:
        self.group_id = group_id
        self.roster = ConsumerRoster()
        self.epoch = 0
        self.target_epoch = 0
        self.changed_at = now
        """When it was made, or lost its last member."""
        self.next_expire_at = NEVER
        """No later than this `expire` wants to be called."""
        self.accounted_size = 0
        """The size that its coordinator has noted."""
        self.is_dead = False
        self._topology = topology
        self._settings = settings
        self._effects: list[Effect] = []
        self._unstored = UnstoredChanges(self._effects, row_key(group_id, GROUP_ROW), self._row)
        self._deadlines: dict[str, MemberDeadlines] = {}
        self._next_number = GROUP_ROW + 1
        self._regex_topics: dict[str, frozenset[str]] = {}
        self._regex_topic_count = 0
        self._regex_matched: dict[str, tuple[int, float]] = {}
        """Of each regular expression: the version of the topics that it was matched with, and when."""
        self._topics_digest = b""
        self._topics_version = -1
        """The version of the topics that this epoch knows of."""
        self._target_made_at = -NEVER
        self._min_target_interval_ms = 0
        """For so long there is no target after the last one."""

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not len(self.roster):
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        all_reconciled = all(member.is_reconciled_to(self.target_epoch) for member in self.roster)
        return ConsumerGroupState.STABLE if all_reconciled else ConsumerGroupState.RECONCILING

    @property
    def size(self) -> int:
        """What it takes in memory, roughly, in bytes."""
        return _GROUP_BYTES + self.roster.size + self._regex_topic_count * _NAME_BYTES

    @property
    def member_count(self) -> int:
        return len(self.roster)

    @property
    def assignor(self) -> str:
        """The one that makes the target: what most members ask for."""
        return self.roster.assignor or next(iter(ASSIGNORS))

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics of all members."""
        return frozenset(self.roster.topics).union(*self._regex_topics.values())

    # Members as they are kept

    def _put_member(self, member: ConsumerGroupMember) -> None:
        self.roster.put(member)
        self._unstored.set_row(row_key(self.group_id, member.number), member)

    def _drop_member(self, member: ConsumerGroupMember) -> None:
        self.roster.remove(member)
        self._deadlines.pop(member.member_id, None)
        self._unstored.set_row(row_key(self.group_id, member.number), None)

    def _new_number(self) -> int:
        self._next_number += 1
        self._unstored.set_group()
        return self._next_number - 1

    def _row(self) -> ConsumerGroupRow:
        return ConsumerGroupRow(
            self.epoch,
            self.target_epoch,
            self._next_number,
            self._topics_digest,
            int(self.changed_at),
            dict(self._regex_topics),
        )

    # The group's epoch

    def _bump_epoch(self, reason: str, member_id: str = "") -> None:
        """There is something new that the next target must heed."""
        self.epoch += 1
        self._topics_version = self._topology.version
        self._topics_digest = self._digest()
        self._unstored.set_group()
        self._effects.append(LogEvent("group changed", reason, member_id))

    def _have_topics_changed(self, regex: str, now: float) -> bool:
        """Whether the topics of this regular expression, or any that the group subscribes to, are not what they were when its epoch began."""
        topics_changed = bool(regex) and self._refresh_regex(regex, now)
        if self._topics_version == self._topology.version and not topics_changed:
            return False
        self._topics_version = self._topology.version
        return topics_changed or self._digest() != self._topics_digest

    def _refresh_regex(self, regex: str, now: float) -> bool:
        """Whether this one names other topics than before."""
        version, at = self._regex_matched.get(regex, (-1, -NEVER))
        if version == self._topology.version or 0 <= now - at < REGEX_REFRESH_MS:
            return False
        before = self._regex_topics.get(regex)
        self._regex_matched[regex] = (self._topology.version, now)
        try:
            after = self._topology.matching(regex)
        except KafkaError as failure:
            # It was good when it came, and takes too long now that there are more topics: it names what it named.
            after = before or frozenset()
            self._effects.append(LogEvent("regular expression not matched again", failure.message))
        self._set_regex_topics(regex, after)
        return after != before

    def _set_regex_topics(self, regex: str, topics: frozenset[str]) -> None:
        self._regex_topic_count += len(topics) - len(self._regex_topics.get(regex, ()))
        self._regex_topics[regex] = topics

    def _remove_unused_regexes(self) -> None:
        """Those that no member subscribes by any more."""
        for regex in [regex for regex in self._regex_topics if regex not in self.roster.regexes]:
            self._regex_topic_count -= len(self._regex_topics.pop(regex))
            self._regex_matched.pop(regex, None)

    def _digest(self) -> bytes:
        return topics_digest(ids_of(self.subscribed_topics, self._topology), self._topology)

    def _topic_ids_of(self, member: ConsumerGroupMember) -> frozenset[TopicId]:
        return ids_of(
            member.topics | self._regex_topics.get(member.regex, frozenset()), self._topology
        )

    # The target

    def _update_target(self, now: float) -> None:
        """For the group's epoch, unless it has one already. What comes in a burst is one target: soon after one there is no other, as in Kafka 4.3."""
        interval = self._settings.group_consumer_assignment_interval_ms
        is_too_early = bool(interval) and 0 <= now - self._target_made_at < max(
            interval, self._min_target_interval_ms
        )
        if self.target_epoch == self.epoch or is_too_early:
            return
        targets = self._assign()
        for member in list(self.roster):
            target = targets.get(member.member_id, {})
            if target != member.target:
                self._put_member(replace(member, target=target))
        self.target_epoch, self._target_made_at = self.epoch, now
        self._unstored.set_group()
        self._effects.append(LogEvent("target made", self.assignor))

    def _assign(self) -> dict[str, dict[TopicId, frozenset[int]]]:
        topics: dict[tuple[frozenset[str], str], frozenset[TopicId]] = {}
        members = {}
        for member in self.roster:
            subscription = (member.topics, member.regex)
            if subscription not in topics:
                topics[subscription] = self._topic_ids_of(member)
            members[member.member_id] = Subscriber(
                member.instance_id, topics[subscription], member.target
            )
        partitions = _partition_counts(topics.values(), self._topology)
        cost = (
            len(members) * TARGET_US_PER_MEMBER + sum(partitions.values()) * TARGET_US_PER_PARTITION
        )
        self._min_target_interval_ms = cost * TARGET_INTERVAL_FACTOR // 1000
        return ASSIGNORS[self.assignor](members, partitions)

    # A member's way to its target

    def _reconcile(
        self,
        member: ConsumerGroupMember,
        owned: Partitions | None,
        now: float,
        *,
        subscription_changed: bool,
    ) -> ConsumerGroupMember:
        if member.is_reconciled_to(self.target_epoch) and not subscription_changed:
            return member
        is_free = partial(self.roster.is_free, member_id=member.member_id)
        after = reconcile(
            member,
            self.target_epoch,
            self._topic_ids_of(member),
            owned,
            is_free,
            subscription_changed=subscription_changed,
        )
        if after == member:
            return member
        self._put_member(after)
        if after.classic is None:
            # Classic members have their time to join and to sync instead.
            must_revoke = after.state is MemberState.UNREVOKED
            self._deadlines_of(after).revoke = (
                now + after.rebalance_timeout_ms if must_revoke else NEVER
            )
            self._expire_by(self._deadlines_of(after).revoke)
        return after

    # Time

    def _deadlines_of(self, member: ConsumerGroupMember) -> MemberDeadlines:
        return self._deadlines.setdefault(member.member_id, MemberDeadlines())

    def _restart_session(self, member: ConsumerGroupMember, now: float) -> None:
        classic = member.classic
        session = (
            self._settings.group_consumer_session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        self._deadlines_of(member).session = now + session
        self._expire_by(now + session)

    def _expire_by(self, time: float) -> None:
        self.next_expire_at = min(self.next_expire_at, time)


def _partition_counts(
    subscriptions: Iterable[Set[TopicId]], topology: Topology
) -> dict[TopicId, int]:
    """How many partitions each of these topics has."""
    return {
        topic: topology.partitions(topic) for topic in frozenset[TopicId]().union(*subscriptions)
    }
