"""State machine of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and timeouts.

Follows Kafka's GroupCoordinator (3.9). A rebalance waits until all members have rejoined, at most
until its timer ends (`rebalance_timer`). Then a new generation starts, and its leader sends the
assignments, which are stored before they are sent (`StoreClassicGroup`, `classic_rows`).

It does no I/O: `now` is in ms of a monotonic clock, and new member ids and request handles are
arguments. Effects are collected for `take_effects`; `next_expire_at` is the time of the next
`expire`. The module is long because all requests change the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from enum import Enum
from typing import NamedTuple, Self

from gateway.groups.classic.classic_member import (
    ClassicGroupMember,
    JoinedMember,
    JoinResult,
    MemberJoin,
    MemberSync,
    SyncResult,
    new_member,
)
from gateway.groups.classic.classic_roster import ClassicRoster
from gateway.groups.classic.classic_rows import GroupRow, member_row, restored_member, row_key
from gateway.groups.classic.rebalance_timer import RebalanceTimer
from gateway.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from gateway.groups.group_effects import (
    NEVER,
    Effect,
    LogEvent,
    Reply,
    RequestHandle,
    StoreClassicGroup,
    WaitingRequests,
)
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings


class GroupState(Enum):
    """Kafka's ClassicGroupState. The values are the names in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    """No members; there may be committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to rejoin."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation has started; waiting for the leader's assignments."""
    STABLE = "Stable"
    """The members have their assignments."""
    DEAD = "Dead"
    """Deleted, or replaced by a consumer group."""


TRANSITIONS: Mapping[GroupState, Set[GroupState]] = {
    # state                           may become
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {
        GroupState.COMPLETING_REBALANCE,
        GroupState.EMPTY,
        GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupState.STABLE,
        GroupState.PREPARING_REBALANCE,
        GroupState.DEAD,
    },
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.DEAD: set(),
}


class Answer(Enum):
    """How a valid request of a member is answered."""

    NOW = "at once"
    WAITS = "when the rebalance or the assignments are complete"
    REFUSED = "with REBALANCE_IN_PROGRESS: the member must rejoin"


class Answers(NamedTuple):
    """The answers in one state; `follower` and `leader` are JoinGroup with unchanged protocols.

    Any other JoinGroup starts a rebalance and waits. LeaveGroup is always answered at once.
    """

    follower: Answer
    leader: Answer
    sync: Answer
    heartbeat: Answer
    commit: Answer


_NOW, _WAITS, _REFUSED = Answer.NOW, Answer.WAITS, Answer.REFUSED

#: States without members have no entry.
ANSWERS: Mapping[GroupState, Answers] = {
    # state                                 follower leader sync heartbeat commit
    GroupState.PREPARING_REBALANCE: Answers(_WAITS, _WAITS, _REFUSED, _REFUSED, _NOW),
    GroupState.COMPLETING_REBALANCE: Answers(_NOW, _NOW, _WAITS, _NOW, _REFUSED),
    GroupState.STABLE: Answers(_NOW, _WAITS, _NOW, _NOW, _NOW),
}

#: Limit on a new member's first JoinGroup, which has no session timeout yet. Kafka's
#: NewMemberJoinTimeoutMs.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

#: Approximate size in memory of a group without members, in bytes.
_GROUP_BYTES = 2048

#: Minimum repeated wait for static members, in ms. Prevents a busy loop if members set very short
#: timeouts.
_SHORTEST_WAIT_MS = 1000


class ClassicGroup:
    """A classic group. A new one is empty and has generation 0.

    Each JoinGroup and SyncGroup is answered exactly once unless cancelled.
    """

    kind = "classic"

    def __init__(self, group_id: str, settings: Settings, now: float) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.changed_at = now
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.roster = ClassicRoster()
        self.next_expire_at = NEVER
        """Time by which `expire` must be called."""
        self.accounted_size = 0
        """The size that the coordinator has included in its total."""
        self._settings = settings
        self._effects: list[Effect] = []
        self._waiting_requests = WaitingRequests(self._effects)
        self._rebalance_timer = RebalanceTimer()
        self._pending_sync_members: set[str] = set()
        self._sync_deadline = NEVER
        self._unstored_assignments: dict[str, bytes] | None = None
        """The leader's assignments while they are being stored."""
        self._stale_keys: frozenset[bytes] = frozenset()
        """Keys of rows that may remain from a previous consumer group."""

    @classmethod
    def restored(cls, group_id: str, row: GroupRow, settings: Settings, now: float) -> Self:
        """Restore a group from its row. Each member's session restarts at `now`."""
        group = cls(group_id, settings, row.changed_at)
        group.generation = row.generation
        group.protocol_type, group.protocol = row.protocol_type, row.protocol
        for one in row.members:
            member = restored_member(one)
            group.roster.add(member)
            group._restart_session(member, now)
        if row.members:
            group.state = GroupState.STABLE
            if row.leader is None:
                group.rebalance("restarted during a rebalance", now)
            else:
                group.roster.leader = row.leader
        if len(group.roster) > settings.group_max_size:
            group.rebalance("more members than group_max_size", now)
        return group

    def take_effects(self) -> list[Effect]:
        """Remove and return the pending effects, in order."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return _GROUP_BYTES + self.roster.size + self.roster.pending_size

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics of the members, or None if a subscription cannot be parsed.

        Parsed on each call, because calls are rare and parsed subscriptions can take a hundred
        times the memory of their bytes.
        """
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if self.protocol is None:
            return frozenset()
        return subscribed_topics(member.metadata(self.protocol) for member in self.roster)

    @property
    def member_count(self) -> int:
        """Members and pending member ids."""
        return len(self.roster) + len(self.roster.pending)

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members and was never stored."""
        return self.is_removable and not self.generation

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_removable(self) -> bool:
        """Whether the group has no members and no pending member ids."""
        return self.is_empty and not self.roster.pending

    # JoinGroup

    def join(self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        """Add a member or let it rejoin.

        `handle` receives a `JoinResult`, at once or when the rebalance completes.
        """
        try:
            self._join(request, new_id, handle, now)
        except KafkaError as refusal:
            self._effects.append(Reply(handle, JoinResult(refusal.code, request.member_id)))
        self._try_complete_join(now)

    def _join(self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        self._check_group_limits(request, now)
        self._check_protocols(request)
        member_id, instance_id = request.member_id, request.instance_id
        if member_id in self.roster.pending and instance_id is None:
            self._add_member(request, member_id, handle, now)
        elif member_id:
            self._rejoin(self.roster.require(member_id, instance_id), request, handle, now)
        elif instance_id is not None:
            before = self.roster.get(self.roster.member_id_of(instance_id) or "")
            if before is None:
                self._add_member(request, new_id, handle, now)
            else:
                self._replace_static_member(before, request, new_id, handle, now)
        elif request.requires_member_id:
            self._send_member_id(request, new_id, handle, now)
        else:
            self._add_member(request, new_id, handle, now)

    def _check_group_limits(self, request: MemberJoin, now: float) -> None:
        """Raises KafkaError(GROUP_MAX_SIZE_REACHED).

        When a group is over the limit, the members that rejoin last are removed.
        """
        member_id, max_size = request.member_id, self._settings.group_max_size
        existing = self.roster.get(
            member_id or self.roster.member_id_of(request.instance_id or "") or ""
        )
        added_bytes = request.size - (0 if existing is None else existing.size)
        if added_bytes > 0 and self.size + added_bytes > self._settings.max_bytes_per_group:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if self.state is GroupState.EMPTY:
            return
        if self.state is GroupState.PREPARING_REBALANCE:
            waiting = self._waiting_requests
            has_room = waiting.has_join(member_id) or waiting.join_count < max_size
        else:
            has_room = member_id in self.roster or len(self.roster) < max_size
        if has_room:
            return
        self.roster.remove_pending(member_id)
        member = self.roster.get(member_id)
        if member is not None:
            self._remove_member(member, "group_max_size reached", now)
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _check_protocols(self, request: MemberJoin) -> None:
        """Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL) if members have no protocol in common."""
        names = [name for name, _ in request.protocols]
        is_compatible = bool(names) and len(set(names)) == len(names)
        if self.state is GroupState.EMPTY:
            is_compatible = is_compatible and bool(request.protocol_type)
        else:
            is_compatible = (
                is_compatible
                and request.protocol_type == self.protocol_type
                and self.roster.supports_protocols(request.protocols)
            )
        if not is_compatible:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _send_member_id(
        self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float
    ) -> None:
        """Assign a member id and require the client to rejoin with it (KIP-394).

        Otherwise a member whose reply is lost would stay in the group without a client.
        """
        if len(self.roster.pending) >= self._settings.group_max_pending_members:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        until = now + request.session_timeout_ms
        self.roster.add_pending(new_id, until)
        self._expire_by(until)
        self._effects.append(Reply(handle, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, new_id)))

    def _add_member(
        self, request: MemberJoin, member_id: str, handle: RequestHandle, now: float
    ) -> None:
        member = new_member(request, member_id, now + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.roster.remove_pending(member_id)
        self._rebalance_timer.has_new_member = (
            self.state is GroupState.PREPARING_REBALANCE and not self.generation
        )
        self.protocol_type = request.protocol_type
        self.roster.add(member)
        self._waiting_requests.add_join(member_id, handle)
        self._expire_by(member.deadline)
        self.rebalance(_with_client_reason("member joined", request.reason), now, member_id)

    def _rejoin(
        self, member: ClassicGroupMember, request: MemberJoin, handle: RequestHandle, now: float
    ) -> None:
        """Handle a JoinGroup of a known member (GroupCoordinator.doCurrentMemberJoinGroup).

        An unchanged follower receives the current generation again; otherwise a rebalance starts.
        """
        answers = ANSWERS[self.state]
        leads = self.roster.leader == member.member_id
        answer = answers.leader if leads else answers.follower
        if member.protocols == request.protocols and answer is Answer.NOW:
            self._restart_session(member, now)
            self._effects.append(Reply(handle, self._join_result(member)))
            return
        self.roster.update(member, request)
        self._waiting_requests.add_join(member.member_id, handle)
        self.rebalance(
            _with_client_reason("member rejoined", request.reason), now, member.member_id
        )

    def _replace_static_member(
        self,
        member: ClassicGroupMember,
        request: MemberJoin,
        new_id: str,
        handle: RequestHandle,
        now: float,
    ) -> None:
        """Give a static member a new member id and fence the old one.

        See GroupCoordinator.updateStaticMemberAndRebalance.
        """
        old_id, old_leader = member.member_id, self.roster.leader
        self._waiting_requests.refuse(old_id, ErrorCode.FENCED_INSTANCE_ID, old_id)
        if old_id in self._pending_sync_members:
            self._pending_sync_members.remove(old_id)
            self._pending_sync_members.add(new_id)
        self.roster.change_member_id(member, new_id)
        self.roster.update(member, request)
        self._restart_session(member, now)
        if self.state is not GroupState.STABLE or self.protocol != self.roster.select_protocol():
            self._waiting_requests.add_join(new_id, handle)
            self.rebalance(
                _with_client_reason("static member rejoined", request.reason), now, new_id
            )
            return
        joined = self._join_result(member, skip_assignment=self.roster.leader == new_id)
        if not request.supports_skipping_assignment:
            # The client would otherwise act as leader and send assignments, which a stable group
            # ignores.
            joined = replace(joined, leader=old_leader or "", members=(), skip_assignment=False)
        self._store({one.member_id: one.assignment for one in self.roster}, Reply(handle, joined))

    # SyncGroup

    def sync(self, request: MemberSync, handle: RequestHandle, now: float) -> None:
        """Request the member's assignment; the leader's request carries all assignments.

        `handle` receives a `SyncResult`, at once or when the assignments are stored.
        """
        try:
            self._sync(request, handle, now)
        except KafkaError as refusal:
            self._effects.append(Reply(handle, SyncResult(refusal.code)))

    def _sync(self, request: MemberSync, handle: RequestHandle, now: float) -> None:
        member = self._require_member(request.member_id, request.instance_id, request.generation)
        fits = request.protocol_type in (None, self.protocol_type)
        if not fits or request.protocol not in (None, self.protocol):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        answer = ANSWERS[self.state].sync
        _check(answer)
        self._pending_sync_members.discard(member.member_id)
        if answer is Answer.NOW:
            self._restart_session(member, now)
            self._effects.append(Reply(handle, self._sync_result(member)))
            return
        self._waiting_requests.add_sync(member.member_id, handle)
        # A repeated request of the leader during the write is ignored.
        if self.roster.leader == member.member_id and self._unstored_assignments is None:
            self._unstored_assignments = dict(request.assignments)
            self._store(self._unstored_assignments)

    # Heartbeat and OffsetCommit

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None, now: float
    ) -> None:
        """Restart the member's session.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS.
        """
        member = self._require_member(member_id, instance_id, generation)
        self._restart_session(member, now)
        _check(ANSWERS[self.state].heartbeat)

    def validate_offset_commit(
        self, member_id: str, generation: int, instance_id: str | None, now: float
    ) -> None:
        """Check that the member may commit, and restart its session.

        Raises KafkaError (GroupCoordinator.validateOffsetCommit).
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        member = self._require_member(member_id, instance_id, generation)
        _check(ANSWERS[self.state].commit)
        self._restart_session(member, now)

    def _require_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ClassicGroupMember:
        member = self.roster.require(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # LeaveGroup and closed connections

    def leave(self, member_id: str, instance_id: str | None, reason: str, now: float) -> None:
        """Remove a member. A static member may be identified by its instance id alone.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        if self.roster.remove_pending(member_id):
            self._try_complete_join(now)
            return
        if not member_id and instance_id is not None:
            member_id = self.roster.member_id_of(instance_id) or ""
        self._remove_member(
            self.roster.require(member_id, instance_id), _with_client_reason("left", reason), now
        )

    def cancel_request(self, member_id: str, handle: RequestHandle, now: float) -> None:
        """Cancel a waiting request whose connection closed.

        The member stays until its session ends if the client has an id to rejoin with.
        """
        member = self.roster.get(member_id)
        if not self._waiting_requests.cancel_request(member_id, handle) or member is None:
            return
        if member.can_rejoin:
            self._restart_session(member, now)
        else:
            self._remove_member(member, "disconnected before it received its member id", now)

    def _remove_member(self, member: ClassicGroupMember, reason: str, now: float) -> None:
        self._waiting_requests.refuse(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID, "")
        self._pending_sync_members.discard(member.member_id)
        self.roster.remove(member)
        self._effects.append(LogEvent("member removed", reason, member.member_id))
        self.rebalance(_with_client_reason("member removed", reason), now, member.member_id)
        self._try_complete_join(now)

    # Start of a rebalance

    def rebalance(self, reason: str, now: float, member_id: str = "") -> None:
        """Require all members to rejoin, unless they must already (maybePrepareRebalance)."""
        if GroupState.PREPARING_REBALANCE not in TRANSITIONS[self.state]:
            return
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._pending_sync_members.clear()
        timeout = self.roster.rebalance_timeout_ms
        if self.state is GroupState.EMPTY:
            delay = self._settings.group_initial_rebalance_delay_ms
            self._rebalance_timer.start_first(now, delay, timeout)
        else:
            self._rebalance_timer.start(now, timeout)
        self._transition(GroupState.PREPARING_REBALANCE, now)
        self._expire_by(self._rebalance_timer.deadline)
        self._effects.append(LogEvent("rebalance started", reason, member_id))

    def _try_complete_join(self, now: float) -> None:
        """Complete the rebalance if all members have joined."""
        if self.state is not GroupState.PREPARING_REBALANCE or self._rebalance_timer.is_first:
            return
        if self._waiting_requests.join_count == len(self.roster) and not self.roster.pending:
            self._complete_join(now)

    # Start of a generation

    def _complete_join(self, now: float) -> None:
        """Start the next generation with the joined members (GroupCoordinator.onCompleteJoin).

        A static member that has not rejoined stays until its session ends, because it may be
        restarting.
        """
        has_joined = self._waiting_requests.has_join
        for member in list(self.roster):
            if member.instance_id is None and not has_joined(member.member_id):
                self.roster.remove(member)
                self._effects.append(LogEvent("member removed", "did not rejoin", member.member_id))
        if len(self.roster) and not self._elect_leader():
            # Only static members are left and none has rejoined: wait for one, or until their
            # sessions end.
            timeout = max(self.roster.rebalance_timeout_ms, _SHORTEST_WAIT_MS)
            self._rebalance_timer.start(now, timeout)
            self._expire_by(self._rebalance_timer.deadline)
            return
        self.generation += 1
        self._rebalance_timer.stop()
        self._unstored_assignments = None
        self.protocol = self.roster.select_protocol() if len(self.roster) else None
        if len(self.roster):
            self._start_generation(now)
        else:
            self._transition(GroupState.EMPTY, now)
            self._store({})
            self._effects.append(LogEvent("group became empty"))

    def _elect_leader(self) -> bool:
        """Keep the leader if it has joined, or choose a joined member.

        Returns False if none has joined.
        """
        has_joined = self._waiting_requests.has_join
        if self.roster.leader is not None and has_joined(self.roster.leader):
            return True
        joined = next((one.member_id for one in self.roster if has_joined(one.member_id)), None)
        self.roster.leader = joined or self.roster.leader
        return joined is not None

    def _start_generation(self, now: float) -> None:
        self._transition(GroupState.COMPLETING_REBALANCE, now)
        for member in self.roster:
            member.is_new = False
            member.can_rejoin = True
            self.roster.assign(member, b"")
            self._pending_sync_members.add(member.member_id)
            self._restart_session(member, now)
            self._waiting_requests.answer_join(member.member_id, self._join_result(member))
        self._sync_deadline = now + self.roster.rebalance_timeout_ms
        self._expire_by(self._sync_deadline)
        self._effects.append(LogEvent("rebalance completed"))

    def _join_result(
        self, member: ClassicGroupMember, *, skip_assignment: bool = False
    ) -> JoinResult:
        """The JoinGroup reply for `member` in the current generation."""
        leader, protocol = self.roster.leader or "", self.protocol or ""
        members: tuple[JoinedMember, ...] = ()
        if leader == member.member_id:
            members = tuple(
                JoinedMember(one.member_id, one.instance_id, one.metadata(protocol))
                for one in self.roster
            )
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            leader,
            members,
            skip_assignment,
        )

    # Assignments

    def _store(self, assignments: dict[str, bytes], reply: Reply | None = None) -> None:
        is_rebalancing = self.state is GroupState.PREPARING_REBALANCE
        row = GroupRow(
            self.generation,
            self.protocol_type,
            self.protocol,
            None if is_rebalancing else self.roster.leader,
            int(self.changed_at),
            tuple(
                member_row(member, assignments.get(member.member_id, b"")) for member in self.roster
            ),
        )
        self._effects.append(StoreClassicGroup(row, reply, self._stale_keys))

    def on_stored(self, save: StoreClassicGroup, now: float) -> None:
        """Called when `save` is stored. If the group has moved on, its state does not change."""
        self._stale_keys -= save.deleted_keys
        if save.reply is not None:
            self._effects.append(save.reply)
        if self._stores_current_assignments(save):
            self._assign(now)

    def on_store_failed(self, save: StoreClassicGroup, now: float) -> None:
        """Called when `save` could not be stored. Waiting requests fail with a retriable error."""
        if save.reply is not None:
            self._effects.append(
                Reply(save.reply.handle, JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, ""))
            )
        if self._stores_current_assignments(save):
            self._reset_assignments(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
            self.rebalance("assignments not stored", now)

    def _stores_current_assignments(self, save: StoreClassicGroup) -> bool:
        is_current = save.row.generation == self.generation
        is_waiting = self.state is GroupState.COMPLETING_REBALANCE
        return is_current and is_waiting and self._unstored_assignments is not None

    def _assign(self, now: float) -> None:
        assignments, self._unstored_assignments = self._unstored_assignments or {}, None
        self._transition(GroupState.STABLE, now)
        for member in self.roster:
            self.roster.assign(member, assignments.get(member.member_id, b""))
            if self._waiting_requests.answer_sync(member.member_id, self._sync_result(member)):
                self._restart_session(member, now)

    def _reset_assignments(self, code: ErrorCode, now: float) -> None:
        self._unstored_assignments = None
        for member in self.roster:
            self.roster.assign(member, b"")
            if self._waiting_requests.answer_sync(member.member_id, SyncResult(code)):
                self._restart_session(member, now)

    def _sync_result(self, member: ClassicGroupMember) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    # Timeouts

    def expire(self, now: float) -> None:
        """Remove expired members, end rebalances that timed out, and update `next_expire_at`."""
        self.roster.expire_pending(now)
        for member in [member for member in self.roster if self._has_expired(member, now)]:
            # Removing one member may complete the rebalance for others.
            if self._has_expired(member, now):
                self._remove_member(member, "session timeout", now)
        if self._pending_sync_members and self._sync_deadline <= now:
            self._remove_unsynced_members(now)
        self._try_complete_join(now)
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._rebalance_timer.deadline <= now
            and not self._rebalance_timer.extend(now)
        ):
            # Last, because the expired members no longer delay it.
            self._complete_join(now)
        self.next_expire_at = self._next_deadline()

    def _can_expire(self, member: ClassicGroupMember) -> bool:
        """Whether the member's deadline applies.

        A member that waits for a rebalance is kept alive by its connection, except during its first
        JoinGroup, which has a time limit.
        """
        return member.is_new or not self._waiting_requests.has_any(member.member_id)

    def _has_expired(self, member: ClassicGroupMember, now: float) -> bool:
        return (
            member.deadline <= now
            and self.roster.get(member.member_id) is member
            and self._can_expire(member)
        )

    def _next_deadline(self) -> float:
        times = [member.deadline for member in self.roster if self._can_expire(member)]
        times += self.roster.pending.values()
        if self.state is GroupState.PREPARING_REBALANCE:
            times.append(self._rebalance_timer.deadline)
        if self._pending_sync_members:
            times.append(self._sync_deadline)
        return min(times, default=NEVER)

    def _remove_unsynced_members(self, now: float) -> None:
        """Remove members that joined the generation but sent no SyncGroup (KAFKA-13419)."""
        for member_id in self._pending_sync_members:
            member = self.roster.get(member_id)
            if member is not None:
                self.roster.remove(member)
                self._effects.append(LogEvent("member removed", "sent no SyncGroup", member_id))
        self.rebalance("members sent no SyncGroup", now)

    def _expire_by(self, time: float) -> None:
        self.next_expire_at = min(self.next_expire_at, time)

    def _restart_session(self, member: ClassicGroupMember, now: float) -> None:
        member.deadline = now + member.session_timeout_ms
        self._expire_by(member.deadline)

    def _transition(self, state: GroupState, now: float) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"group in state {self.state.value} cannot move to {state.value}")
        self.state = state
        self.changed_at = now

    # Replacement and deletion

    def refuse_waiting(self, code: ErrorCode) -> None:
        """Answer every waiting request with `code`."""
        self._waiting_requests.refuse_all(code)

    def delete_on_store(self, stale: Iterable[bytes]) -> None:
        """Delete the rows of the replaced consumer group with this group's first write."""
        self._stale_keys = frozenset(stale)

    def store(self, reply: Reply | None) -> None:
        """Store the group as it is, then send `reply`."""
        self._store({one.member_id: one.assignment for one in self.roster}, reply)

    def stored_keys(self) -> set[bytes]:
        """Keys of all rows that may be stored for this group."""
        return {row_key(self.group_id), *self._stale_keys}

    def close(self, code: ErrorCode, now: float) -> None:
        """Close a group that has become a consumer group.

        Waiting requests are answered with `code`.
        """
        self.refuse_waiting(code)
        self._transition(GroupState.DEAD, now)

    def check_empty(self) -> None:
        """Raises KafkaError(NON_EMPTY_GROUP)."""
        if self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def delete(self, now: float) -> None:
        """Move to DEAD. Raises KafkaError(NON_EMPTY_GROUP)."""
        self.check_empty()
        self._transition(GroupState.DEAD, now)


def _check(answer: Answer) -> None:
    """Raises KafkaError(REBALANCE_IN_PROGRESS)."""
    if answer is Answer.REFUSED:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)


def _with_client_reason(what: str, reason: str) -> str:
    """The event, followed by the reason that the client gave, if any (KIP-800)."""
    return f"{what}: {reason}" if reason else what
