"""State machine of a consumer group (KIP-848): members of either protocol, epochs and timeouts.

Follows Kafka's GroupMetadataManager (4.3). The group epoch rises when members, subscriptions or
subscribed topics change. The next request computes a target assignment for the new epoch, and each
member moves to its target with its own requests (`reconciliation`). A request waits for no other
member: it is answered when its changes are stored (`unstored_changes`).

A classic-protocol member is a member whose `classic` is set: `join`, `sync`, `heartbeat`
and `leave` are its requests, and `classic_protocol` translates them. The rebalance timers are in
`member_deadlines`.

It does no I/O: `now` is in ms of a monotonic clock, and new member ids and request handles are
arguments; rows store ms since 1970. Effects are collected for `take_effects`; `next_expire_at` is
the time of the next `expire`. The module is long because all requests change the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Self

from msgspec.structs import replace

from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE
from gateway.groups.consumer import classic_protocol
from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    HeartbeatResult,
    MemberHeartbeat,
    MemberState,
    Partitions,
)
from gateway.groups.consumer.consumer_roster import ConsumerRoster
from gateway.groups.consumer.consumer_rows import GROUP_ROW, ConsumerGroupRow, StoredGroup, row_key
from gateway.groups.consumer.member_deadlines import GroupDeadlines
from gateway.groups.consumer.reconciliation import reconcile, transition
from gateway.groups.consumer.subscribed_topics import SubscribedTopics
from gateway.groups.consumer.target_builder import TargetBuilder
from gateway.groups.consumer.topology import Topology, partitions_by_id
from gateway.groups.consumer.unstored_changes import UnstoredChanges
from gateway.groups.group_effects import NEVER, Effect, LogEvent, Reply, RequestHandle, StoreRows
from gateway.groups.group_migration import to_classic_group
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings


class ConsumerGroupState(Enum):
    """Derived from the epochs of the group and its members. The values are the names in replies."""

    EMPTY = "Empty"
    """No members."""
    ASSIGNING = "Assigning"
    """The target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """The target assignment is current, but some members have not reached it."""
    STABLE = "Stable"
    """All members have their target assignment."""
    DEAD = "Dead"
    """Deleted, or converted to a classic group."""


#: Delay before a failed write is retried, in ms.
RETRY_MS = 1000

#: Approximate size in memory of a group without members, in bytes.
_GROUP_BYTES = 4096

#: First version of OffsetCommit with member epochs.
_FIRST_WITH_MEMBER_EPOCHS = 9

#: Returns the error code of a commit to a partition.
CommitValidator = Callable[[TopicId, int], ErrorCode]


class ConsumerGroup:
    """A consumer group. A new one is empty and has epoch 0.

    Each request is answered exactly once through `take_effects`. The answer depends on the member's
    state (`MemberState`) and on whether its epoch is older than the target's:

    state       ConsumerGroupHeartbeat        Heartbeat             SyncGroup
    STABLE      newer target, if any          rejoin if older       assignment; rejoin if older
    UNREVOKED   old epoch until it releases   rejoin                assignment in the old epoch
    UNRELEASED  partitions that are free      rejoin if older or    assignment; rejoin if older
                                              all are free
    AWAY        fenced; may join with its instance id

    Rejoin is REBALANCE_IN_PROGRESS. JoinGroup has the effect of a ConsumerGroupHeartbeat.
    """

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, group_id: str, topology: Topology, settings: Settings, now: float) -> None:
        self.group_id = group_id
        self.roster = ConsumerRoster()
        self.epoch = 0
        self.target_epoch = 0
        self.changed_at = now
        """Time of creation or of the last member's removal."""
        self.accounted_size = 0
        """The size that the coordinator has included in its total."""
        self.is_dead = False
        self.successor: ClassicGroup | None = None
        """The classic group that replaces this group after a downgrade."""
        self._topology = topology = topology.of_group(group_id)
        self._settings = settings
        self._effects: list[Effect] = []
        self._unstored = UnstoredChanges(self._effects, row_key(group_id, GROUP_ROW), self._row)
        self._deadlines = GroupDeadlines()
        self._topics = SubscribedTopics(self.roster, topology, self._effects)
        self._targets = TargetBuilder(self.roster, self._topics, topology)
        self._next_number = GROUP_ROW + 1

    @classmethod
    def restored(
        cls, group_id: str, stored: StoredGroup, topology: Topology, settings: Settings, now: float
    ) -> Self:
        """Restore a group from its rows. Each member's session restarts at `now`.

        Raises ValueError if the rows are inconsistent.
        """
        group = cls(group_id, topology, settings, stored.row.changed_at)
        row = stored.row
        group.epoch, group.target_epoch = row.epoch, row.target_epoch
        group._next_number = row.next_number
        group._topics.restore(row.regex_topics, row.topics_digest)
        for member in stored.members:
            group.roster.put(member)
            group._restart_session(member, now)
            group._deadlines.reconciled(member, now)
        return group

    def use_settings(self, settings: Settings) -> None:
        self._settings = settings

    def store_all(self, stale: Iterable[bytes]) -> None:
        """Store the whole group and delete the rows of the classic group that it replaces."""
        for key in stale:
            self._unstored.set_row(key, None)
        self._unstored.set_group()
        for member in self.roster:
            self._put_member(member)

    def take_effects(self) -> list[Effect]:
        """Remove and return the pending effects, in order."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

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
    def next_expire_at(self) -> float:
        """Time by which `expire` must be called."""
        return self._deadlines.next_expire_at

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return _GROUP_BYTES + self.roster.size + self._topics.size

    @property
    def member_count(self) -> int:
        return len(self.roster)

    @property
    def assignor(self) -> str:
        return self._targets.assignor

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return self._topics.names

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members and was never stored."""
        return not len(self.roster) and not self.epoch

    @property
    def is_empty(self) -> bool:
        return not len(self.roster)

    @property
    def is_removable(self) -> bool:
        """Whether the group has no members and all changes are stored."""
        return self.is_empty and self._unstored.is_empty

    @property
    def generation(self) -> int:
        """The group epoch under its classic name."""
        return self.epoch

    # ConsumerGroupHeartbeat

    def consumer_heartbeat(
        self, request: MemberHeartbeat, handle: RequestHandle, now: float
    ) -> bool:
        """`handle` receives a `HeartbeatResult`, at once or when the changes are stored.

        Returns False if the request was refused.
        """
        try:
            result = (
                self._consumer_leave(request, now)
                if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)
                else self._consumer_heartbeat(request, now)
            )
        except KafkaError as refusal:
            self._effects.append(Reply(handle, HeartbeatResult(refusal.code, refusal.message)))
            return False
        self._unstored.reply(handle, result)
        self._unstored.flush()
        return True

    def _consumer_heartbeat(self, request: MemberHeartbeat, now: float) -> HeartbeatResult:
        self._check_group_size(request.member_id)
        before, replaced = self._heartbeating_member(request)
        after = before.updated(request)
        if after.regex and after.regex not in self.roster.regexes:
            # Validate the expression before the group changes.
            self._topology.matching(after.regex)
        after = self._update_member(before, after, replaced, request.owned, now)
        if after.classic is None and before.classic is not None:
            deadlines = self._deadlines.of(after)
            deadlines.join = deadlines.sync = NEVER
        assignment = None
        if request.is_full or after.assigned != before.assigned:
            assignment = {topic: frozenset(held) for topic, held in after.assigned.items()}
        return HeartbeatResult(ErrorCode.NONE, None, after.member_id, after.epoch, assignment)

    def _heartbeating_member(
        self, request: MemberHeartbeat
    ) -> tuple[ConsumerGroupMember, ConsumerGroupMember | None]:
        """The member before this request, and the static member that it replaces.

        Raises KafkaError.
        """
        joins = request.epoch == JOIN_EPOCH
        if request.instance_id is None:
            before = self.roster.get(request.member_id)
            if before is None and joins:
                return ConsumerGroupMember(0, request.member_id), None
        elif joins and (static := self.roster.static_member(request.instance_id)) is None:
            return self.roster.get(request.member_id) or ConsumerGroupMember(
                0, request.member_id
            ), None
        elif joins and static is not None:
            if static.classic is None and static.state is not MemberState.AWAY:
                message = f"The instance id {request.instance_id} is in use by {static.member_id}."
                raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
            return static.replacement(request.member_id), static
        member = self._require_member(request.member_id, request.instance_id)
        member.check_epoch(request)
        return member, None

    def _consumer_leave(self, request: MemberHeartbeat, now: float) -> HeartbeatResult:
        member = self._require_member(request.member_id, request.instance_id)
        if request.epoch == STATIC_LEAVE_EPOCH:
            # The replacement may commit these partitions from its first epoch on.
            assigned = {
                topic: dict.fromkeys(held, JOIN_EPOCH) for topic, held in member.assigned.items()
            }
            self._put_member(transition(member, MemberState.AWAY, STATIC_LEAVE_EPOCH, assigned, {}))
            self._deadlines.of(member).revoke = NEVER
        else:
            self._remove_members([member], "left", now)
        return HeartbeatResult(ErrorCode.NONE, None, request.member_id, request.epoch)

    # JoinGroup of members with the classic protocol

    def join(self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        """`handle` receives a `JoinResult`, at once or when the changes are stored."""
        try:
            joined = self._join(request, new_id, handle, now)
        except KafkaError as refusal:
            self._effects.append(Reply(handle, JoinResult(refusal.code, request.member_id)))
        else:
            if joined is not None:
                self._unstored.reply(handle, joined)
        self._unstored.flush()

    def _join(
        self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float
    ) -> JoinResult | None:
        """Returns None if the group was converted to a classic group, which sends the reply."""
        if self._settings.group_consumer_migration_policy == "disabled":
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._check_group_size(request.member_id)
        classic_protocol.check_protocols(request, self.roster)
        if request.requires_member_id and not request.member_id and request.instance_id is None:
            # The group does not reserve the id: it accepts any id that the client joins with.
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, new_id)
        subscription = classic_protocol.subscription_of(request, self._topology)
        before, replaced = self._joining_member(request, new_id)
        after = classic_protocol.updated_member(before, request, subscription)
        if (
            replaced is not None
            and replaced.classic is None
            and self._can_convert_to_classic([replaced])
        ):
            self._convert_to_classic([replaced], after, handle, now)
            return None
        owned = partitions_by_id(subscription.owned, self._topology)
        after = self._update_member(before, after, replaced, owned, now)
        self._deadlines.joined(after, now)
        return classic_protocol.join_result(after, after.epoch)

    def _joining_member(
        self, request: MemberJoin, new_id: str
    ) -> tuple[ConsumerGroupMember, ConsumerGroupMember | None]:
        """The member before this request, and the static member that it replaces, if any."""
        member_id, instance_id = request.member_id, request.instance_id
        if instance_id is not None and member_id:
            return self._require_member(member_id, instance_id), None
        static = None if instance_id is None else self.roster.static_member(instance_id)
        if static is not None:
            return static.replacement(new_id), static
        joining_id = member_id or new_id
        known = self.roster.get(joining_id) if instance_id is None else None
        return known or ConsumerGroupMember(0, joining_id), None

    # SyncGroup, Heartbeat and LeaveGroup of members with the classic protocol

    def sync(self, request: MemberSync, handle: RequestHandle, now: float) -> None:
        """`handle` receives a `SyncResult`.

        Assignments in the request are ignored: the group has no leader.
        """
        try:
            self._unstored.reply(handle, self._sync(request, now))
        except KafkaError as refusal:
            self._effects.append(Reply(handle, SyncResult(refusal.code)))
        self._unstored.flush()

    def _sync(self, request: MemberSync, now: float) -> SyncResult:
        member = self._require_classic_member(
            request.member_id, request.instance_id, request.generation
        )
        classic_protocol.check_sync(request, member)
        if self.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._deadlines.request_rejoin(member, now)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._deadlines.of(member).sync = NEVER
        self._restart_session(member, now)
        return classic_protocol.sync_result(request, member, self._topology)

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None, now: float
    ) -> None:
        """Restart the member's session.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS.
        """
        member = self._require_classic_member(member_id, instance_id, generation)
        self._restart_session(member, now)
        may_step = member.state is MemberState.UNREVOKED or (
            member.state is MemberState.UNRELEASED and self.roster.is_target_free(member)
        )
        if member.epoch < self.target_epoch or may_step:
            self._deadlines.request_rejoin(member, now)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def _require_classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ConsumerGroupMember:
        """The member with these ids and this generation.

        Raises KafkaError: UNKNOWN_MEMBER_ID (also if the member uses the consumer protocol),
        FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        member = self._require_member(member_id, instance_id)
        if member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.epoch != generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def leave(self, member_id: str, instance_id: str | None, reason: str, now: float) -> None:
        """Remove a member. A static member may be identified by its instance id alone.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        if not member_id and instance_id is not None:
            static = self.roster.static_member(instance_id)
            member_id = "" if static is None else static.member_id
        member = self._require_member(member_id, instance_id)
        self._remove_members([member], f"left: {reason}" if reason else "left", now)
        self._unstored.flush()

    def cancel_request(self, member_id: str, handle: RequestHandle, now: float) -> None:
        """Do nothing: the result of a request whose connection closed is discarded."""

    # OffsetCommit and OffsetFetch

    def validate_offset_commit(
        self, member_id: str, epoch: int, version: int
    ) -> CommitValidator | None:
        """Returns a check of single partitions, or None if the member may commit all of them.

        Raises KafkaError if no partition may be committed.
        """
        if epoch < 0 and not len(self.roster):
            return None
        member = self._require_member(member_id, None)
        if member.classic is None and version < _FIRST_WITH_MEMBER_EPOCHS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch == member.epoch:
            return None
        if epoch > member.epoch:
            raise KafkaError(member.stale_epoch_error)
        return partial(member.commit_error, epoch)

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raises KafkaError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH."""
        if member_id is None and epoch < 0:
            return
        member = self._require_member(member_id or "", None)
        if epoch != member.epoch:
            raise KafkaError(member.stale_epoch_error)

    # Members

    def _check_group_size(self, member_id: str) -> None:
        """Raises KafkaError(GROUP_MAX_SIZE_REACHED)."""
        most = self._settings.group_max_size
        if member_id not in self.roster and len(self.roster) >= most:
            message = f"The group has reached group_max_size={most}."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def _check_group_bytes(
        self, before: ConsumerGroupMember | None, after: ConsumerGroupMember
    ) -> None:
        """Raises KafkaError(GROUP_MAX_SIZE_REACHED) beyond max_bytes_per_group."""
        asked = (after.topics, after.regex, after.classic)
        if before is not None and asked == (before.topics, before.regex, before.classic):
            return
        most = self._settings.max_bytes_per_group
        added_bytes = after.size - (0 if before is None else before.size)
        if added_bytes > 0 and self.size + added_bytes > most:
            message = f"The group would exceed max_bytes_per_group={most}."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def _require_member(self, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
        """The member with these ids.

        Raises KafkaError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance id belongs to
        another member.
        """
        if instance_id is None:
            member = self.roster.get(member_id)
        else:
            member = self.roster.static_member(instance_id)
            if member is not None and member.member_id != member_id:
                message = f"The instance id {instance_id} is in use by {member.member_id}."
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    def _update_member(
        self,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        replaced: ConsumerGroupMember | None,
        owned: Partitions | None,
        now: float,
    ) -> ConsumerGroupMember:
        """Store a member's fields, update epoch and target, and reconcile the member.

        Raises KafkaError if the group would be too large, or if the member is AWAY.
        """
        if before.state is MemberState.AWAY:
            is_classic = after.classic is not None
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID if is_classic else ErrorCode.FENCED_MEMBER_EPOCH,
                f"Member {before.member_id} has left and must join with its instance id.",
            )
        self._check_group_bytes(
            self.roster.get(after.member_id) if replaced is None else replaced, after
        )
        is_new = after.member_id not in self.roster
        if replaced is not None:
            self._drop_member(replaced)
            other = self.roster.get(after.member_id)
            if other is not None:
                # The client was a dynamic member under this id and now joins as a static one. It
                # has reported that it owns no partitions.
                self._drop_member(other)
        if not after.number:
            after = replace(after, number=self._new_number())
        if is_new or replaced is not None or after != before:
            self._put_member(after)
        if is_new:
            event = "member joined" if replaced is None else "static member rejoined"
            self._effects.append(LogEvent(event, member_id=after.member_id))
        subscription_changed = (after.topics, after.regex) != (before.topics, before.regex)
        topics_changed = self._topics.have_changed(after.regex, now)
        if subscription_changed:
            self._topics.remove_unused_regexes()
        if subscription_changed or topics_changed or not self.epoch:
            reason = "subscription changed" if subscription_changed else "topics changed"
            self._bump_epoch(reason, after.member_id)
        self._update_target(now)
        after = self.roster.get(after.member_id) or after
        after = self._reconcile(after, owned, now, subscription_changed=subscription_changed)
        self._restart_session(after, now)
        return after

    def _remove_members(
        self, members: Sequence[ConsumerGroupMember], reason: str, now: float
    ) -> None:
        """Remove members and release their partitions."""
        for member in members:
            self._effects.append(LogEvent("member removed", reason, member.member_id))
        if len(members) < len(self.roster) and self._can_convert_to_classic(members):
            self._convert_to_classic(members, None, None, now)
            return
        for member in members:
            self._drop_member(member)
        if members:
            self._topics.remove_unused_regexes()
            self._bump_epoch("member removed", members[-1].member_id)
        if not len(self.roster):
            self.changed_at = now
            self._effects.append(LogEvent("group became empty"))

    def _put_member(self, member: ConsumerGroupMember) -> None:
        self.roster.put(member)
        self._unstored.set_row(row_key(self.group_id, member.number), member)

    def _drop_member(self, member: ConsumerGroupMember) -> None:
        self.roster.remove(member)
        self._deadlines.remove(member)
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
            self._topics.digest,
            int(self.changed_at),
            dict(self._topics.by_regex),
        )

    # Epoch, target assignment and reconciliation

    def _bump_epoch(self, reason: str, member_id: str = "") -> None:
        """Start a new epoch, for which a target assignment is computed later."""
        self.epoch += 1
        self._topics.start_epoch()
        self._unstored.set_group()
        self._effects.append(LogEvent("group epoch bumped", reason, member_id))

    def _update_target(self, now: float) -> None:
        """Compute the target for the current epoch, unless the last one is too recent."""
        interval = self._settings.group_consumer_assignment_interval_ms
        if self.target_epoch == self.epoch or not self._targets.is_due(interval, now):
            return
        targets = self._targets.build(now)
        for member in list(self.roster):
            target = targets.get(member.member_id, {})
            if target != member.target:
                self._put_member(replace(member, target=target))
        self.target_epoch = self.epoch
        self._unstored.set_group()
        self._effects.append(LogEvent("target assignment computed", self.assignor))

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
        topics = self._topics.ids_of(member)
        is_free = partial(self.roster.is_free, member_id=member.member_id)
        after = reconcile(
            member,
            self.target_epoch,
            topics,
            owned,
            is_free,
            subscription_changed=subscription_changed,
        )
        if after == member:
            return member
        self._put_member(after)
        self._deadlines.reconciled(after, now)
        return after

    # Store results and timeouts

    def on_stored(self, write: StoreRows) -> None:
        self._unstored.on_stored(write)

    def on_store_failed(self, write: StoreRows, now: float) -> None:
        """Fail the waiting requests with a retriable error and retry the write later."""
        self._unstored.on_store_failed(write)
        if not self.is_dead:
            self._deadlines.expire_by(now + RETRY_MS)

    def expire(self, now: float) -> None:
        """Remove members whose deadline has passed, and update `next_expire_at`."""
        for member in [one for one in self.roster if self._deadlines.of(one).earliest <= now]:
            self._remove_members([member], "session or rebalance timeout", now)
            if self.is_dead:
                # The remaining members' sessions restart in the classic group.
                self._deadlines.next_expire_at = NEVER
                return
        self._unstored.flush()
        self._deadlines.update()

    def _restart_session(self, member: ConsumerGroupMember, now: float) -> None:
        timeout = self._settings.group_consumer_session_timeout_ms
        if member.classic is not None:
            timeout = member.classic.session_timeout_ms
        self._deadlines.restart_session(member, timeout, now)

    # Downgrade to a classic group

    def _can_convert_to_classic(self, leaving: Sequence[ConsumerGroupMember]) -> bool:
        """Whether the group may become a classic one when `leaving` have left (KIP-848).

        The migration policy must allow it, and all remaining members must use the classic protocol.
        """
        policy = self._settings.group_consumer_migration_policy
        is_allowed = policy in ("bidirectional", "downgrade")
        return is_allowed and self.roster.remaining_are_classic(leaving)

    def _convert_to_classic(
        self,
        leaving: Sequence[ConsumerGroupMember],
        joining: ConsumerGroupMember | None,
        handle: RequestHandle | None,
        now: float,
    ) -> None:
        """Replace the group by a classic group.

        `joining` takes the place of the leaving member, and the classic group answers `handle`.
        """
        leaving_ids = {member.member_id for member in leaving}
        remaining = [member for member in self.roster if member.member_id not in leaving_ids]
        all_reconciled = self.epoch == self.target_epoch and all(
            member.is_reconciled_to(self.epoch) for member in remaining
        )
        keeps_topics = joining is not None and joining.topics == leaving[0].topics
        rebalances = not (all_reconciled and keeps_topics)
        stale = self.stored_keys()
        self.close()
        members = remaining if joining is None else [*remaining, joining]
        group = self.successor = to_classic_group(
            self.group_id,
            self.epoch,
            members,
            self._topology,
            self._settings,
            now,
            rebalances=rebalances,
        )
        reply = None
        if joining is not None and handle is not None:
            reply = Reply(handle, classic_protocol.join_result(joining, self.epoch))
        group.delete_on_store(stale)
        if rebalances:
            group.rebalance("converted from the consumer protocol", now)
        group.store(reply)
        self._effects.append(LogEvent("group converted to the classic protocol"))

    # Deletion

    def check_empty(self) -> None:
        """Raises KafkaError: NON_EMPTY_GROUP, or COORDINATOR_NOT_AVAILABLE during a write.

        Such a write could otherwise follow the deletion of the rows.
        """
        if len(self.roster):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        if not self._unstored.is_empty:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def delete(self, now: float) -> None:
        """Close an empty group. Raises KafkaError like `check_empty`."""
        self.check_empty()
        self.close()

    def refuse_waiting(self, code: ErrorCode) -> None:
        """Answer requests whose write has not started with `code`."""
        self._unstored.refuse_all(code)

    def stored_keys(self) -> set[bytes]:
        """Keys of all rows that may be stored for this group."""
        numbers = {GROUP_ROW, *(member.number for member in self.roster)}
        return self._unstored.keys() | {row_key(self.group_id, number) for number in numbers}

    def close(self) -> None:
        """Discard unstored changes and refuse waiting requests."""
        self.is_dead = True
        self._unstored.close()
