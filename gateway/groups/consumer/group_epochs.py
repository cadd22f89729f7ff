"""Epochs and target assignments of a consumer group (KIP-848).

Follows Kafka's GroupMetadataManager and TargetAssignmentBuilder (4.3). The group epoch rises when
members, subscriptions or subscribed topics change. The next heartbeat computes a target assignment
for the new epoch. Each member moves to its target with its own heartbeats. Times are in ms of a
monotonic clock; rows store ms since 1970.
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

#: Approximate sizes in memory: of a group without members, and of a topic that matches a regular
#: expression, in bytes.
_GROUP_BYTES = 4096
_NAME_BYTES = 100

#: Minimum interval between evaluations of a regular expression, in ms, because each one examines
#: all topics. Kafka's REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
REGEX_REFRESH_MS = 10_000


#: Approximate cost of computing a target, in microseconds, and the minimum pause after it as a
#: multiple of the cost. For a thousand members and fifty thousand partitions the event loop is
#: blocked for a tenth of a second, at most every two seconds.
TARGET_US_PER_MEMBER = 5
TARGET_US_PER_PARTITION = 2
TARGET_INTERVAL_FACTOR = 20


@dataclass(slots=True)
class MemberDeadlines:
    """Times by which a member must act or is removed.

    `session` is for heartbeats, `revoke` for releasing partitions, `join` and `sync` for the
    classic protocol.
    """

    session: float = NEVER
    revoke: float = NEVER
    join: float = NEVER
    sync: float = NEVER

    @property
    def earliest(self) -> float:
        return min(self.session, self.revoke, self.join, self.sync)


class GroupEpochs:
    """The state of a consumer group. A new group is empty and has epoch 0."""

    def __init__(self, group_id: str, topology: Topology, settings: Settings, now: float) -> None:
        self.group_id = group_id
        self.roster = ConsumerRoster()
        self.epoch = 0
        self.target_epoch = 0
        self.changed_at = now
        """Time of creation or of the last member's removal."""
        self.next_expire_at = NEVER
        """Time by which `expire` must be called."""
        self.accounted_size = 0
        """The size that the coordinator has included in its total."""
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
        """For each regular expression: the topics version of its last evaluation, and the time."""
        self._topics_digest = b""
        self._topics_version = -1
        """The topics version that the current epoch is based on."""
        self._target_made_at = -NEVER
        self._min_target_interval_ms = 0
        """Minimum time between the last target and the next."""

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
        """Approximate size in memory, in bytes."""
        return _GROUP_BYTES + self.roster.size + self._regex_topic_count * _NAME_BYTES

    @property
    def member_count(self) -> int:
        return len(self.roster)

    @property
    def assignor(self) -> str:
        """The assignor that most members request, or the default."""
        return self.roster.assignor or next(iter(ASSIGNORS))

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return frozenset(self.roster.topics).union(*self._regex_topics.values())

    # Members

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

    # Group epoch

    def _bump_epoch(self, reason: str, member_id: str = "") -> None:
        """Start a new epoch, for which a target assignment is computed later."""
        self.epoch += 1
        self._topics_version = self._topology.version
        self._topics_digest = self._digest()
        self._unstored.set_group()
        self._effects.append(LogEvent("group epoch bumped", reason, member_id))

    def _have_topics_changed(self, regex: str, now: float) -> bool:
        """Whether topics of this expression or of the group have changed since the epoch began."""
        topics_changed = bool(regex) and self._refresh_regex(regex, now)
        if self._topics_version == self._topology.version and not topics_changed:
            return False
        self._topics_version = self._topology.version
        return topics_changed or self._digest() != self._topics_digest

    def _refresh_regex(self, regex: str, now: float) -> bool:
        """Re-evaluate an expression. Returns whether it matches other topics than before."""
        version, at = self._regex_matched.get(regex, (-1, -NEVER))
        if version == self._topology.version or 0 <= now - at < REGEX_REFRESH_MS:
            return False
        before = self._regex_topics.get(regex)
        self._regex_matched[regex] = (self._topology.version, now)
        try:
            after = self._topology.matching(regex)
        except KafkaError as failure:
            # The expression was accepted earlier but now takes too long, because there are more
            # topics. Keep its previous matches.
            after = before or frozenset()
            self._effects.append(LogEvent("regular expression not re-evaluated", failure.message))
        self._set_regex_topics(regex, after)
        return after != before

    def _set_regex_topics(self, regex: str, topics: frozenset[str]) -> None:
        self._regex_topic_count += len(topics) - len(self._regex_topics.get(regex, ()))
        self._regex_topics[regex] = topics

    def _remove_unused_regexes(self) -> None:
        for regex in [regex for regex in self._regex_topics if regex not in self.roster.regexes]:
            self._regex_topic_count -= len(self._regex_topics.pop(regex))
            self._regex_matched.pop(regex, None)

    def _digest(self) -> bytes:
        return topics_digest(ids_of(self.subscribed_topics, self._topology), self._topology)

    def _topic_ids_of(self, member: ConsumerGroupMember) -> frozenset[TopicId]:
        return ids_of(
            member.topics | self._regex_topics.get(member.regex, frozenset()), self._topology
        )

    # Target assignment

    def _update_target(self, now: float) -> None:
        """Compute the target for the current epoch.

        Recently computed targets are kept for a while, so that a burst of changes causes one
        assignment, as in Kafka 4.3.
        """
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
        self._effects.append(LogEvent("target assignment computed", self.assignor))

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

    # Reconciliation

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
            # Members with the classic protocol have join and sync deadlines instead.
            must_revoke = after.state is MemberState.UNREVOKED
            self._deadlines_of(after).revoke = (
                now + after.rebalance_timeout_ms if must_revoke else NEVER
            )
            self._expire_by(self._deadlines_of(after).revoke)
        return after

    # Timers

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
    return {
        topic: topology.partitions(topic) for topic in frozenset[TopicId]().union(*subscriptions)
    }
