"""One group: what becomes of every request of its members, and of those who are not heard of any more.

The rules are those of Kafka's GroupCoordinator (3.9). No I/O, no clock, no randomness: `now` is in ms of a clock that never steps, and new ids and the handles
of requests are arguments. What is to be done gathers for `take`; `due` says when `expire` wants to be called.
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

#: How long a newcomer's first JoinGroup may wait: it has no session yet that could end. Kafka's NewMemberJoinTimeoutMs.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


class ClassicGroup(RebalancingGroup):
    """Every JoinGroup and SyncGroup is answered exactly once through `take`, unless it is let go of first."""

    kind = "classic"

    @classmethod
    def restored(cls, group_id: str, row: GroupRow, settings: Settings, now: float) -> Self:
        """As it was stored; its members have a session from now on to be heard of."""
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
            group._wake_by(deadline)
        if row.members:
            group.roster.leader = row.leader
            group.state = GroupState.STABLE
        if len(group.roster) > settings.group_max_size:
            group._prepare("more members than group_max_size", now)
        return group

    def take(self) -> list[Effect]:
        """What has gathered to be done, in order."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    @property
    def is_blank(self) -> bool:
        """Nobody is here, and nothing was ever stored."""
        return self.state is GroupState.EMPTY and not self.generation and not self.pending

    # What members ask

    def join(self, joining: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        """Let somebody in, or in again: `handle` is answered with `JoinResult`, now or when the others have joined too."""
        try:
            self._join(joining, new_id, handle, now)
        except KafkaError as refusal:
            self._effects.append(Reply(handle, JoinResult(refusal.code, joining.member_id)))
        self._complete_if_all_joined(now)

    def sync(self, syncing: MemberSync, handle: RequestHandle, now: float) -> None:
        """Ask for the own assignment, or as the leader bring all: `handle` is answered with `SyncResult`, now or when the assignment is stored."""
        try:
            self._sync(syncing, handle, now)
        except KafkaError as refusal:
            self._effects.append(Reply(handle, SyncResult(refusal.code)))

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None, now: float
    ) -> None:
        """Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS."""
        member = self._known(member_id, instance_id)
        self._check_generation(generation)
        self._hear_of(member, now)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance_id: str | None, reason: str, now: float) -> None:
        """Somebody leaves, or a static member is removed by its instance id alone. Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if self._expect_no_more(member_id):
            self._complete_if_all_joined(now)
            return
        if not member_id and instance_id is not None:
            member_id = self.roster.id_of(instance_id) or ""
        self._remove(self._known(member_id, instance_id), _because("left", reason), now)

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, now: float
    ) -> None:
        """Whether this member may commit offsets; to do so is a sign of life. Raises KafkaError (GroupCoordinator.validateOffsetCommit)."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        member = self._known(member_id, instance_id)
        self._check_generation(generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._hear_of(member, now)

    def let_go(self, member_id: str, handle: RequestHandle, now: float) -> None:
        """The connection is gone on which this request waited. Its member may come again until its session ends, if it knows its id."""
        member = self.roster.get(member_id)
        if not self._parked.let_go(member_id, handle) or member is None:
            return
        if member.can_return:
            self._hear_of(member, now)
        else:
            self._remove(member, "its connection went before it was told its id", now)

    def let_go_of_all(self, code: ErrorCode) -> None:
        """Answer every request that waits."""
        self._parked.answer_all(code)

    def inherit(self, stale: Iterable[bytes]) -> None:
        """It was a consumer group, whose rows have these keys: they go in the moment in which its own is stored."""
        self._stale = frozenset(stale)

    def store(self, answer: Reply | None) -> None:
        """Store it as it is. Then `answer` is due."""
        self._save({one.member_id: one.assignment for one in self.roster}, answer)

    def stored_keys(self) -> set[bytes]:
        """Of all rows that may be stored of it."""
        return {row_key(self.group_id), *self._stale}

    def rebalance(self, reason: str, now: float) -> None:
        """Have all members join again."""
        self._rebalance(reason, now, "")

    def end(self, code: ErrorCode, now: float) -> None:
        """It becomes a consumer group: whoever waits is told so by this code."""
        self.let_go_of_all(code)
        self._move(GroupState.DEAD, now)

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_deserted(self) -> bool:
        """Nobody is here, or was told an id to come with."""
        return self.is_empty and not self.pending

    def check_empty(self) -> None:
        """Raises KafkaError(NON_EMPTY_GROUP)."""
        if self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def delete(self, now: float) -> None:
        """There is no way back. Raises KafkaError(NON_EMPTY_GROUP)."""
        self.check_empty()
        self._move(GroupState.DEAD, now)

    # What time brings

    def expire(self, now: float) -> None:
        """Remove whose time is up, go on with a rebalance that has waited long enough, and set `due` anew."""
        for member_id in [
            member_id for member_id, deadline in self.pending.items() if deadline <= now
        ]:
            self._expect_no_more(member_id)
        for member in [member for member in self.roster if self._is_overdue(member, now)]:
            # To remove one may end the wait of the others.
            if self._is_overdue(member, now):
                self._remove(member, "not heard of", now)
        if self._unsynced and self._sync_ends <= now:
            self._remove_unsynced(now)
        self._complete_if_all_joined(now)
        if self.state is GroupState.PREPARING_REBALANCE and self._rebalance_ends <= now:
            # Last, for without members there is nobody to wait for.
            self._end_waiting(now)
        self.due = self._next_due()

    def _is_awaited(self, member: ClassicGroupMember) -> bool:
        """Whether its time can run out: one that waits for the others is heard of by its connection, but a newcomer's first wait has its limit."""
        if member.is_new:
            return True
        return not self._parked.joins_of(member.member_id) and not self._parked.syncs_of(
            member.member_id
        )

    def _is_overdue(self, member: ClassicGroupMember, now: float) -> bool:
        return (
            member.deadline <= now
            and self.roster.get(member.member_id) is member
            and self._is_awaited(member)
        )

    def _next_due(self) -> float:
        times = [member.deadline for member in self.roster if self._is_awaited(member)]
        times += self.pending.values()
        if self.state is GroupState.PREPARING_REBALANCE:
            times.append(self._rebalance_ends)
        if self._unsynced:
            times.append(self._sync_ends)
        return min(times, default=NEVER)

    def _remove_unsynced(self, now: float) -> None:
        """Those who joined the generation and never asked for their assignment (KAFKA-13419)."""
        for member_id in self._unsynced:
            member = self.roster.get(member_id)
            if member is not None:
                self.roster.remove(member)
                self._effects.append(
                    LogEvent("member removed", "did not ask for its assignment", member_id)
                )
        self._prepare("members did not ask for their assignments", now)

    # Joining

    def _join(self, joining: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        self._check_room(joining, now)
        self._check_protocols(joining)
        member_id, instance_id = joining.member_id, joining.instance_id
        if member_id in self.pending and instance_id is None:
            self._add(joining, member_id, handle, now)
        elif member_id:
            self._join_again(self._known(member_id, instance_id), joining, handle, now)
        elif instance_id is not None:
            before = self.roster.get(self.roster.id_of(instance_id) or "")
            if before is None:
                self._add(joining, new_id, handle, now)
            else:
                self._replace(before, joining, new_id, handle, now)
        elif joining.is_told_first:
            self._tell_id(joining, new_id, handle, now)
        else:
            self._add(joining, new_id, handle, now)

    def _check_room(self, joining: MemberJoin, now: float) -> None:
        """Raises KafkaError(GROUP_MAX_SIZE_REACHED). Those over the limit go in the order in which they join again."""
        member_id, most = joining.member_id, self._settings.group_max_size
        known = self.roster.get(member_id or self.roster.id_of(joining.instance_id or "") or "")
        grows = joining.size - (0 if known is None else known.size)
        if grows > 0 and self.size + grows > self._settings.max_bytes_per_group:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if self.state is GroupState.EMPTY:
            return
        if self.state is GroupState.PREPARING_REBALANCE:
            has_room = self._parked.joins_of(member_id) or self._parked.joins < most
        else:
            has_room = member_id in self.roster or len(self.roster) < most
        if has_room:
            return
        self._expect_no_more(member_id)
        member = self.roster.get(member_id)
        if member is not None:
            self._remove(member, "the group is full", now)
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _check_protocols(self, joining: MemberJoin) -> None:
        """Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL) where the others could not be in one generation with it."""
        names = [name for name, _ in joining.protocols]
        is_fit = bool(names) and len(set(names)) == len(names)
        if self.state is GroupState.EMPTY:
            is_fit = is_fit and bool(joining.protocol_type)
        else:
            is_fit = (
                is_fit
                and joining.protocol_type == self.protocol_type
                and self.roster.all_speak_one_of(joining.protocols)
            )
        if not is_fit:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _tell_id(self, joining: MemberJoin, new_id: str, handle: RequestHandle, now: float) -> None:
        """KIP-394: a newcomer whose answer is lost must not stay as a member that nobody is."""
        if len(self.pending) >= self._settings.group_max_pending_members:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._expect(new_id, now + joining.session_timeout_ms)
        self._effects.append(Reply(handle, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, new_id)))

    def _add(self, joining: MemberJoin, member_id: str, handle: RequestHandle, now: float) -> None:
        member = ClassicGroupMember(
            member_id,
            joining.instance_id,
            joining.client_id,
            joining.client_host,
            joining.protocols,
            joining.session_timeout_ms,
            joining.rebalance_timeout_ms,
            deadline=now + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=True,
            can_return=bool(joining.member_id) or joining.instance_id is not None,
        )
        self._expect_no_more(member_id)
        self._has_newcomer = self.state is GroupState.PREPARING_REBALANCE and not self.generation
        self.protocol_type = joining.protocol_type
        self.roster.add(member)
        self._parked.park_join(member_id, handle)
        self._wake_by(member.deadline)
        self._rebalance(_because("a member came", joining.reason), now, member_id)

    def _join_again(
        self, member: ClassicGroupMember, joining: MemberJoin, handle: RequestHandle, now: float
    ) -> None:
        """A follower that says nothing new is told again what is; otherwise everybody joins (GroupCoordinator.doCurrentMemberJoinGroup)."""
        says_nothing_new = member.protocols == joining.protocols
        leads = self.roster.leader == member.member_id
        is_completing = self.state is GroupState.COMPLETING_REBALANCE
        if says_nothing_new and (is_completing or (self.state is GroupState.STABLE and not leads)):
            self._hear_of(member, now)
            self._effects.append(Reply(handle, self._joined(member)))
            return
        self.roster.update(member, joining)
        self._parked.park_join(member.member_id, handle)
        self._rebalance(_because("a member joins again", joining.reason), now, member.member_id)

    def _replace(
        self,
        member: ClassicGroupMember,
        joining: MemberJoin,
        new_id: str,
        handle: RequestHandle,
        now: float,
    ) -> None:
        """A static member is back under a new id, and whoever used the old one is fenced (GroupCoordinator.updateStaticMemberAndRebalance)."""
        old_id, old_leader = member.member_id, self.roster.leader
        self._parked.answer_join(old_id, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._parked.answer_sync(old_id, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)
        self.roster.rename(member, new_id)
        self.roster.update(member, joining)
        self._hear_of(member, now)
        if self.state is not GroupState.STABLE or self.protocol != self.roster.elected_protocol():
            self._parked.park_join(new_id, handle)
            self._rebalance(_because("a static member came back", joining.reason), now, new_id)
            return
        joined = self._joined(member, skips_assignment=self.roster.leader == new_id)
        if not joining.may_skip_assignment:
            # It takes itself for a follower, so that it does not bring an assignment that a stable group would not look at.
            joined = replace(joined, leader=old_leader or "", fellows=(), skips_assignment=False)
        self._save({one.member_id: one.assignment for one in self.roster}, Reply(handle, joined))

    # Syncing

    def _sync(self, syncing: MemberSync, handle: RequestHandle, now: float) -> None:
        member = self._known(syncing.member_id, syncing.instance_id)
        self._check_generation(syncing.generation)
        if syncing.protocol_type not in (None, self.protocol_type) or syncing.protocol not in (
            None,
            self.protocol,
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._hear_of(member, now)
            self._effects.append(Reply(handle, self._synced(member)))
            return
        self._parked.park_sync(member.member_id, handle)
        if self.roster.leader == member.member_id:
            self._propose(dict(syncing.assignments))

    # Leaving

    def _remove(self, member: ClassicGroupMember, reason: str, now: float) -> None:
        self._parked.answer_join(member.member_id, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, ""))
        self._parked.answer_sync(member.member_id, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        self._unsynced.discard(member.member_id)
        self.roster.remove(member)
        self._effects.append(LogEvent("member removed", reason, member.member_id))
        self._rebalance(_because("a member went", reason), now, member.member_id)
        self._complete_if_all_joined(now)

    def _known(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Raises KafkaError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where somebody else is that static member now."""
        if (
            instance_id is not None
            and (current := self.roster.id_of(instance_id)) is not None
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


def _because(what: str, reason: str) -> str:
    """What happened, and why where the client says it (KIP-800)."""
    return f"{what}: {reason}" if reason else what
