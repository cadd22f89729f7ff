"""Rebalances of a classic group: from one generation to the next.

A rebalance waits until all members have rejoined, at most for the longest rebalance timeout of the
members. Then a new generation starts, and its leader sends the assignments. Times are in ms of a
monotonic clock; rows store ms since 1970.
"""

from __future__ import annotations

from gateway.groups.classic.classic_member import (
    ClassicGroupMember,
    JoinedMember,
    JoinResult,
    SyncResult,
)
from gateway.groups.classic.classic_roster import ClassicRoster
from gateway.groups.classic.classic_rows import GroupRow, MemberRow
from gateway.groups.classic.classic_states import TRANSITIONS, GroupState
from gateway.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from gateway.groups.group_effects import Effect, LogEvent, Reply, StoreClassicGroup, WaitingRequests
from gateway.protocol.errors import ErrorCode
from gateway.settings.model import Settings

NEVER = float("inf")

#: Approximate sizes in memory of a group and of a pending member id without its characters, in
#: bytes.
_GROUP_BYTES = 2048
_PENDING_BYTES = 300

#: Minimum repeated wait for static members, in ms. Prevents a busy loop if members set very short
#: timeouts.
_SHORTEST_WAIT_MS = 1000

_MAY_REBALANCE = frozenset(
    state for state, moves in TRANSITIONS.items() if GroupState.PREPARING_REBALANCE in moves
)


class RebalancingGroup:
    """The state of a classic group. A new group is empty and has generation 0."""

    def __init__(self, group_id: str, settings: Settings, now: float) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.changed_at = now
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.roster = ClassicRoster()
        self.pending_members: dict[str, float] = {}
        """Deadlines of member ids that were assigned but have not joined yet (KIP-394)."""
        self.next_expire_at = NEVER
        """Time by which `expire` must be called."""
        self.accounted_size = 0
        """The size that the driver has included in its total."""
        self._settings = settings
        self._effects: list[Effect] = []
        self._waiting_requests = WaitingRequests(self._effects)
        self._rebalance_deadline = NEVER
        self._initial_delay_left: float | None = None
        """Time for which the first rebalance may still be extended; None for later rebalances."""
        self._has_new_member = False
        self._pending_chars = 0
        self._pending_sync_members: set[str] = set()
        self._sync_deadline = NEVER
        self._unstored_assignments: dict[str, bytes] | None = None
        """The leader's assignments while they are being stored."""
        self._stale_keys: frozenset[bytes] = frozenset()
        """Keys of rows that may remain from a previous consumer group."""

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return (
            _GROUP_BYTES
            + self.roster.size
            + len(self.pending_members) * _PENDING_BYTES
            + self._pending_chars
        )

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics of the members, or None if a subscription cannot be parsed.

        Parsed on each call, because calls are rare and parsed subscriptions can take a hundred
        times the memory of their bytes.
        """
        protocol = self.protocol
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        return (
            frozenset()
            if protocol is None
            else subscribed_topics(member.metadata(protocol) for member in self.roster)
        )

    @property
    def member_count(self) -> int:
        """Members and pending member ids."""
        return len(self.roster) + len(self.pending_members)

    def _add_pending_member(self, member_id: str, until: float) -> None:
        """Reserve a member id that the client must rejoin with before `until`."""
        self.pending_members[member_id] = until
        self._pending_chars += len(member_id)
        self._expire_by(until)

    def _remove_pending_member(self, member_id: str) -> bool:
        """Returns whether the id was pending."""
        if self.pending_members.pop(member_id, None) is None:
            return False
        self._pending_chars -= len(member_id)
        return True

    def _transition(self, state: GroupState, now: float) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"group in state {self.state.value} cannot move to {state.value}")
        self.state = state
        self.changed_at = now

    # Start of a rebalance

    def _maybe_prepare_rebalance(self, reason: str, now: float, member_id: str) -> None:
        if self.state in _MAY_REBALANCE:
            self._prepare_rebalance(reason, now, member_id)

    def _prepare_rebalance(self, reason: str, now: float, member_id: str = "") -> None:
        """Require all members to rejoin (GroupCoordinator.prepareRebalance)."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._pending_sync_members.clear()
        timeout = self.roster.rebalance_timeout_ms
        if self.state is GroupState.EMPTY:
            delay = self._settings.group_initial_rebalance_delay_ms
            self._rebalance_deadline, self._initial_delay_left = (
                now + delay,
                max(timeout - delay, 0),
            )
        else:
            self._rebalance_deadline, self._initial_delay_left = now + timeout, None
        self._transition(GroupState.PREPARING_REBALANCE, now)
        self._expire_by(self._rebalance_deadline)
        self._effects.append(LogEvent("rebalance started", reason, member_id))

    def _try_complete_join(self, now: float) -> None:
        """Complete the rebalance if all members have joined.

        The first rebalance of a group always waits for its full delay, so that members that start
        together share a generation.
        """
        if self.state is not GroupState.PREPARING_REBALANCE or self._initial_delay_left is not None:
            return
        if self._waiting_requests.join_count == len(self.roster) and not self.pending_members:
            self._complete_join(now)

    def _end_rebalance_wait(self, now: float) -> None:
        """Complete a rebalance that timed out.

        The first rebalance is extended if members joined meanwhile (InitialDelayedJoin).
        """
        if self._initial_delay_left and self._has_new_member:
            self._has_new_member = False
            delay = min(self._settings.group_initial_rebalance_delay_ms, self._initial_delay_left)
            self._initial_delay_left = max(self._initial_delay_left - delay, 0)
            self._rebalance_deadline = now + delay
            return
        self._complete_join(now)

    # Start of a generation

    def _complete_join(self, now: float) -> None:
        """Start the next generation with the joined members (GroupCoordinator.onCompleteJoin).

        A static member that has not rejoined stays until its session ends, because it may be
        restarting.
        """
        for member in [
            member
            for member in self.roster
            if not self._has_joined(member) and member.instance_id is None
        ]:
            self.roster.remove(member)
            self._effects.append(LogEvent("member removed", "did not rejoin", member.member_id))
        if len(self.roster) and not self._elect_leader():
            # Only static members are left and none has rejoined: wait for one, or until their
            # sessions end.
            self._rebalance_deadline, self._initial_delay_left = (
                now + max(self.roster.rebalance_timeout_ms, _SHORTEST_WAIT_MS),
                None,
            )
            self._expire_by(self._rebalance_deadline)
            return
        self.generation += 1
        self._has_new_member = False
        self._initial_delay_left = None
        self._unstored_assignments = None
        self.protocol = self.roster.select_protocol() if len(self.roster) else None
        if len(self.roster):
            self._start_generation(now)
        else:
            self._transition(GroupState.EMPTY, now)
            self._store({})
            self._effects.append(LogEvent("group became empty"))

    def _has_joined(self, member: ClassicGroupMember) -> bool:
        return self._waiting_requests.has_join(member.member_id)

    def _elect_leader(self) -> bool:
        """Keep the leader if it has joined, or choose a joined member.

        Returns False if none has joined.
        """
        if self.roster.leader is None or not self._waiting_requests.has_join(self.roster.leader):
            joined = next(
                (member.member_id for member in self.roster if self._has_joined(member)), None
            )
            if joined is None:
                return False
            self.roster.leader = joined
        return True

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

    def _store_assignments(self, assignments: dict[str, bytes]) -> None:
        """Store the leader's assignments before sending them.

        A repeated request during the write is ignored.
        """
        if self._unstored_assignments is None:
            self._unstored_assignments = assignments
            self._store(assignments)

    def _store(self, assignments: dict[str, bytes], reply: Reply | None = None) -> None:
        self._effects.append(StoreClassicGroup(self._row(assignments), reply, self._stale_keys))

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
            self._prepare_rebalance("assignments not stored", now)

    def _stores_current_assignments(self, save: StoreClassicGroup) -> bool:
        is_current = (
            self._unstored_assignments is not None and save.row.generation == self.generation
        )
        return is_current and self.state is GroupState.COMPLETING_REBALANCE

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

    def _row(self, assignments: dict[str, bytes]) -> GroupRow:
        """The row of the current generation with these assignments."""
        members = tuple(
            MemberRow(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.protocols,
                assignments.get(member.member_id, b""),
            )
            for member in self.roster
        )
        return GroupRow(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.roster.leader,
            int(self.changed_at),
            members,
        )

    # Timers

    def _expire_by(self, time: float) -> None:
        self.next_expire_at = min(self.next_expire_at, time)

    def _restart_session(self, member: ClassicGroupMember, now: float) -> None:
        member.deadline = now + member.session_timeout_ms
        self._expire_by(member.deadline)
