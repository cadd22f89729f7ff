"""State machine of a classic group: member requests and session timeouts.

Follows Kafka's GroupCoordinator (3.9). It does no I/O: `now` is in ms of a monotonic clock, and new
member ids and request handles are arguments. Effects are collected for `take_effects`;
`next_expire_at` is the time of the next `expire`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from gateway.groups.classic.classic_member import (
    ClassicGroupMember,
    JoinResult,
    MemberJoin,
    MemberSync,
    SyncResult,
)
from gateway.groups.classic.classic_rows import GroupRow, row_key
from gateway.groups.classic.classic_states import GroupState
from gateway.groups.classic.rebalance import NEVER, RebalancingGroup
from gateway.groups.group_effects import Effect, LogEvent, Reply, RequestHandle
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings

#: Limit on a new member's first JoinGroup, which has no session timeout yet. Kafka's
#: NewMemberJoinTimeoutMs.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


class ClassicGroup(RebalancingGroup):
    """A classic group. Each JoinGroup and SyncGroup is answered exactly once unless cancelled."""

    kind = "classic"

    @classmethod
    def restored(cls, group_id: str, row: GroupRow, settings: Settings, now: float) -> Self:
        """Restore a group from its row. Each member's session restarts at `now`."""
        group = cls(group_id, settings, row.changed_at)
        group.generation, group.protocol_type, group.protocol = (
            row.generation,
            row.protocol_type,
            row.protocol,
        )
        for one in row.members:
            deadline = now + one.session_timeout_ms
            member = ClassicGroupMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.protocols,
                one.session_timeout_ms,
                one.rebalance_timeout_ms,
                deadline,
                one.assignment,
            )
            group.roster.add(member)
            group._expire_by(deadline)
        if row.members:
            group.roster.leader = row.leader
            group.state = GroupState.STABLE
        if len(group.roster) > settings.group_max_size:
            group._prepare_rebalance("more members than group_max_size", now)
        return group

    def take_effects(self) -> list[Effect]:
        """Remove and return the pending effects, in order."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members and was never stored."""
        return self.state is GroupState.EMPTY and not self.generation and not self.pending_members

    # Member requests

    def join(self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        """Add a member or let it rejoin.

        `handle` receives a `JoinResult`, at once or when the rebalance completes.
        """
        try:
            self._join(request, new_id, handle, now)
        except KafkaError as refusal:
            self._effects.append(Reply(handle, JoinResult(refusal.code, request.member_id)))
        self._try_complete_join(now)

    def sync(self, request: MemberSync, handle: RequestHandle, now: float) -> None:
        """Request the member's assignment; the leader's request carries all assignments.

        `handle` receives a `SyncResult`, at once or when the assignments are stored.
        """
        try:
            self._sync(request, handle, now)
        except KafkaError as refusal:
            self._effects.append(Reply(handle, SyncResult(refusal.code)))

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None, now: float
    ) -> None:
        """Restart the member's session.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS.
        """
        member = self._require_member(member_id, instance_id)
        self._check_generation(generation)
        self._restart_session(member, now)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance_id: str | None, reason: str, now: float) -> None:
        """Remove a member. A static member may be identified by its instance id alone.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        if self._remove_pending_member(member_id):
            self._try_complete_join(now)
            return
        if not member_id and instance_id is not None:
            member_id = self.roster.member_id_of(instance_id) or ""
        self._remove_member(
            self._require_member(member_id, instance_id), _with_client_reason("left", reason), now
        )

    def validate_offset_commit(
        self, member_id: str, generation: int, instance_id: str | None, now: float
    ) -> None:
        """Check that the member may commit, and restart its session.

        Raises KafkaError (GroupCoordinator.validateOffsetCommit).
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        member = self._require_member(member_id, instance_id)
        self._check_generation(generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._restart_session(member, now)

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

    def rebalance(self, reason: str, now: float) -> None:
        """Require all members to rejoin."""
        self._maybe_prepare_rebalance(reason, now, "")

    def close(self, code: ErrorCode, now: float) -> None:
        """Close a group that has become a consumer group.

        Waiting requests are answered with `code`.
        """
        self.refuse_waiting(code)
        self._transition(GroupState.DEAD, now)

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_removable(self) -> bool:
        """Whether the group has no members and no pending member ids."""
        return self.is_empty and not self.pending_members

    def check_empty(self) -> None:
        """Raises KafkaError(NON_EMPTY_GROUP)."""
        if self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def delete(self, now: float) -> None:
        """Move to DEAD. Raises KafkaError(NON_EMPTY_GROUP)."""
        self.check_empty()
        self._transition(GroupState.DEAD, now)

    # Timeouts

    def expire(self, now: float) -> None:
        """Remove expired members, end rebalances that timed out, and update `next_expire_at`."""
        for member_id in [
            member_id for member_id, deadline in self.pending_members.items() if deadline <= now
        ]:
            self._remove_pending_member(member_id)
        for member in [member for member in self.roster if self._has_expired(member, now)]:
            # Removing one member may complete the rebalance for others.
            if self._has_expired(member, now):
                self._remove_member(member, "session timeout", now)
        if self._pending_sync_members and self._sync_deadline <= now:
            self._remove_unsynced_members(now)
        self._try_complete_join(now)
        if self.state is GroupState.PREPARING_REBALANCE and self._rebalance_deadline <= now:
            # Last, because the expired members no longer delay it.
            self._end_rebalance_wait(now)
        self.next_expire_at = self._next_deadline()

    def _can_expire(self, member: ClassicGroupMember) -> bool:
        """Whether the member's deadline applies.

        A member that waits for a rebalance is kept alive by its connection, except during its first
        JoinGroup, which has a time limit.
        """
        if member.is_new:
            return True
        return not self._waiting_requests.has_join(
            member.member_id
        ) and not self._waiting_requests.has_sync(member.member_id)

    def _has_expired(self, member: ClassicGroupMember, now: float) -> bool:
        return (
            member.deadline <= now
            and self.roster.get(member.member_id) is member
            and self._can_expire(member)
        )

    def _next_deadline(self) -> float:
        times = [member.deadline for member in self.roster if self._can_expire(member)]
        times += self.pending_members.values()
        if self.state is GroupState.PREPARING_REBALANCE:
            times.append(self._rebalance_deadline)
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
        self._prepare_rebalance("members sent no SyncGroup", now)

    # JoinGroup

    def _join(self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        self._check_group_limits(request, now)
        self._check_protocols(request)
        member_id, instance_id = request.member_id, request.instance_id
        if member_id in self.pending_members and instance_id is None:
            self._add_member(request, member_id, handle, now)
        elif member_id:
            self._rejoin(self._require_member(member_id, instance_id), request, handle, now)
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
            has_room = (
                self._waiting_requests.has_join(member_id)
                or self._waiting_requests.join_count < max_size
            )
        else:
            has_room = member_id in self.roster or len(self.roster) < max_size
        if has_room:
            return
        self._remove_pending_member(member_id)
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
        if len(self.pending_members) >= self._settings.group_max_pending_members:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._add_pending_member(new_id, now + request.session_timeout_ms)
        self._effects.append(Reply(handle, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, new_id)))

    def _add_member(
        self, request: MemberJoin, member_id: str, handle: RequestHandle, now: float
    ) -> None:
        member = ClassicGroupMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.protocols,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            deadline=now + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=True,
            can_rejoin=bool(request.member_id) or request.instance_id is not None,
        )
        self._remove_pending_member(member_id)
        self._has_new_member = self.state is GroupState.PREPARING_REBALANCE and not self.generation
        self.protocol_type = request.protocol_type
        self.roster.add(member)
        self._waiting_requests.add_join(member_id, handle)
        self._expire_by(member.deadline)
        self._maybe_prepare_rebalance(
            _with_client_reason("member joined", request.reason), now, member_id
        )

    def _rejoin(
        self, member: ClassicGroupMember, request: MemberJoin, handle: RequestHandle, now: float
    ) -> None:
        """Handle a JoinGroup of a known member (GroupCoordinator.doCurrentMemberJoinGroup).

        An unchanged follower receives the current generation again; otherwise a rebalance starts.
        """
        is_unchanged = member.protocols == request.protocols
        leads = self.roster.leader == member.member_id
        is_completing = self.state is GroupState.COMPLETING_REBALANCE
        if is_unchanged and (is_completing or (self.state is GroupState.STABLE and not leads)):
            self._restart_session(member, now)
            self._effects.append(Reply(handle, self._join_result(member)))
            return
        self.roster.update(member, request)
        self._waiting_requests.add_join(member.member_id, handle)
        self._maybe_prepare_rebalance(
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
        self._waiting_requests.answer_join(old_id, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._waiting_requests.answer_sync(old_id, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        if old_id in self._pending_sync_members:
            self._pending_sync_members.remove(old_id)
            self._pending_sync_members.add(new_id)
        self.roster.change_member_id(member, new_id)
        self.roster.update(member, request)
        self._restart_session(member, now)
        if self.state is not GroupState.STABLE or self.protocol != self.roster.select_protocol():
            self._waiting_requests.add_join(new_id, handle)
            self._maybe_prepare_rebalance(
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

    def _sync(self, request: MemberSync, handle: RequestHandle, now: float) -> None:
        member = self._require_member(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (
            None,
            self.protocol,
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._pending_sync_members.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._restart_session(member, now)
            self._effects.append(Reply(handle, self._sync_result(member)))
            return
        self._waiting_requests.add_sync(member.member_id, handle)
        if self.roster.leader == member.member_id:
            self._store_assignments(dict(request.assignments))

    # LeaveGroup

    def _remove_member(self, member: ClassicGroupMember, reason: str, now: float) -> None:
        self._waiting_requests.answer_join(
            member.member_id, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, "")
        )
        self._waiting_requests.answer_sync(
            member.member_id, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        )
        self._pending_sync_members.discard(member.member_id)
        self.roster.remove(member)
        self._effects.append(LogEvent("member removed", reason, member.member_id))
        self._maybe_prepare_rebalance(
            _with_client_reason("member removed", reason), now, member.member_id
        )
        self._try_complete_join(now)

    def _require_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """The member with these ids.

        Raises KafkaError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance id belongs to
        another member.
        """
        if (
            instance_id is not None
            and (current := self.roster.member_id_of(instance_id)) is not None
            and current != member_id
        ):
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.roster.get(member_id)
        if member is None or (instance_id is not None and member.instance_id != instance_id):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _with_client_reason(what: str, reason: str) -> str:
    """The event, followed by the reason that the client gave, if any (KIP-800)."""
    return f"{what}: {reason}" if reason else what
