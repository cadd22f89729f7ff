"""How a group comes from one generation to the next: its state, its members, and the waits in between.

A rebalance waits until all members have joined again, or for as long as the most patient of them allows; then there is a new generation, and its
leader brings the assignment. `gateway.groups.classic.classic_group` says what starts all this. Times are ms of a clock that never steps; the driver stores them as ms since 1970.
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

#: What a group and an id that was given out take in memory, roughly, in bytes; the id's own characters come on top.
_GROUP_BYTES = 2048
_PENDING_BYTES = 300

#: A wait that is begun anew until somebody comes must not spin, whatever the members allow.
_SHORTEST_WAIT_MS = 1000

_MAY_REBALANCE = frozenset(
    state for state, moves in TRANSITIONS.items() if GroupState.PREPARING_REBALANCE in moves
)


class RebalancingGroup:
    """Begins empty, with generation 0, which nobody was ever in."""

    def __init__(self, group_id: str, settings: Settings, now: float) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.changed_at = now
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.roster = ClassicRoster()
        self.pending: dict[str, float] = {}
        """Ids that newcomers were told and have not come back with, and until when they may."""
        self.due = NEVER
        """No later than this `expire` wants to be called."""
        self.counted = 0
        """The size that its coordinator has noted."""
        self._settings = settings
        self._effects: list[Effect] = []
        self._parked = WaitingRequests(self._effects)
        self._rebalance_ends = NEVER
        self._patience: float | None = None
        """How much longer the first rebalance may wait for more members; None in every later one."""
        self._has_newcomer = False
        self._pending_chars = 0
        self._unsynced: set[str] = set()
        self._sync_ends = NEVER
        self._proposal: dict[str, bytes] | None = None
        """The leader's assignment while it is being stored."""
        self._stale: frozenset[bytes] = frozenset()
        """Keys of rows of the consumer group that it was, for as long as they may be stored."""

    @property
    def size(self) -> int:
        """What it takes in memory, roughly, in bytes."""
        return (
            _GROUP_BYTES
            + self.roster.size
            + len(self.pending) * _PENDING_BYTES
            + self._pending_chars
        )

    @property
    def subscribed(self) -> frozenset[str] | None:
        """The topics of the members of this generation, None where they cannot be told. Read when it is asked for, which is seldom: what members say
        may be a hundred times larger when it is taken apart."""
        protocol = self.protocol
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        return (
            frozenset()
            if protocol is None
            else subscribed_topics(member.metadata(protocol) for member in self.roster)
        )

    @property
    def heads(self) -> int:
        """Members, and newcomers that were told an id."""
        return len(self.roster) + len(self.pending)

    def _expect(self, member_id: str, until: float) -> None:
        """A newcomer is told this id, and shall come back with it."""
        self.pending[member_id] = until
        self._pending_chars += len(member_id)
        self._wake_by(until)

    def _expect_no_more(self, member_id: str) -> bool:
        """Whether it was expected."""
        if self.pending.pop(member_id, None) is None:
            return False
        self._pending_chars -= len(member_id)
        return True

    def _move(self, state: GroupState, now: float) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a group in state {self.state.value} cannot become {state.value}")
        self.state = state
        self.changed_at = now

    # From a generation to the wait for the next

    def _rebalance(self, reason: str, now: float, member_id: str) -> None:
        if self.state in _MAY_REBALANCE:
            self._prepare(reason, now, member_id)

    def _prepare(self, reason: str, now: float, member_id: str = "") -> None:
        """Expect everybody to join again (GroupCoordinator.prepareRebalance)."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignment(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._unsynced.clear()
        timeout = self.roster.rebalance_timeout_ms
        if self.state is GroupState.EMPTY:
            delay = self._settings.group_initial_rebalance_delay_ms
            self._rebalance_ends, self._patience = now + delay, max(timeout - delay, 0)
        else:
            self._rebalance_ends, self._patience = now + timeout, None
        self._move(GroupState.PREPARING_REBALANCE, now)
        self._wake_by(self._rebalance_ends)
        self._effects.append(LogEvent("rebalance begins", reason, member_id))

    def _complete_if_all_joined(self, now: float) -> None:
        """The first rebalance of all always waits its time: members that start together shall be in one generation."""
        if self.state is not GroupState.PREPARING_REBALANCE or self._patience is not None:
            return
        if self._parked.joins == len(self.roster) and not self.pending:
            self._complete(now)

    def _end_waiting(self, now: float) -> None:
        """The rebalance has waited long enough, unless it is the first and more members came meanwhile (InitialDelayedJoin)."""
        if self._patience and self._has_newcomer:
            self._has_newcomer = False
            delay = min(self._settings.group_initial_rebalance_delay_ms, self._patience)
            self._patience = max(self._patience - delay, 0)
            self._rebalance_ends = now + delay
            return
        self._complete(now)

    # A new generation

    def _complete(self, now: float) -> None:
        """Begin the next generation with those who have joined (GroupCoordinator.onCompleteJoin). A static member keeps its place until its
        session ends, as it may be restarting."""
        for member in [
            member
            for member in self.roster
            if not self._has_joined(member) and member.instance_id is None
        ]:
            self.roster.remove(member)
            self._effects.append(LogEvent("member removed", "did not join again", member.member_id))
        if len(self.roster) and not self._elect_leader():
            # Only static members are left, and none of them is there: until one comes or their sessions end.
            self._rebalance_ends, self._patience = (
                now + max(self.roster.rebalance_timeout_ms, _SHORTEST_WAIT_MS),
                None,
            )
            self._wake_by(self._rebalance_ends)
            return
        self.generation += 1
        self._has_newcomer = False
        self._patience = None
        self._proposal = None
        self.protocol = self.roster.elected_protocol() if len(self.roster) else None
        if len(self.roster):
            self._begin_completing(now)
        else:
            self._move(GroupState.EMPTY, now)
            self._save({})
            self._effects.append(LogEvent("group is empty"))

    def _has_joined(self, member: ClassicGroupMember) -> bool:
        return self._parked.joins_of(member.member_id)

    def _elect_leader(self) -> bool:
        """Whether somebody has joined who can lead; whoever leads goes on to do so."""
        if self.roster.leader is None or not self._parked.joins_of(self.roster.leader):
            joined = next(
                (member.member_id for member in self.roster if self._has_joined(member)), None
            )
            if joined is None:
                return False
            self.roster.leader = joined
        return True

    def _begin_completing(self, now: float) -> None:
        self._move(GroupState.COMPLETING_REBALANCE, now)
        for member in self.roster:
            member.is_new = False
            member.can_return = True
            self.roster.assign(member, b"")
            self._unsynced.add(member.member_id)
            self._hear_of(member, now)
            self._parked.answer_join(member.member_id, self._joined(member))
        self._sync_ends = now + self.roster.rebalance_timeout_ms
        self._wake_by(self._sync_ends)
        self._effects.append(LogEvent("generation begins"))

    def _joined(self, member: ClassicGroupMember, *, skips_assignment: bool = False) -> JoinResult:
        """What `member` is told of the generation that it is in."""
        leader, protocol = self.roster.leader or "", self.protocol or ""
        fellows: tuple[JoinedMember, ...] = ()
        if leader == member.member_id:
            fellows = tuple(
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
            fellows,
            skips_assignment,
        )

    # Its assignment

    def _propose(self, assignments: dict[str, bytes]) -> None:
        """Store the leader's word before anybody acts on it. One that comes again while the first is being stored changes nothing."""
        if self._proposal is None:
            self._proposal = assignments
            self._save(assignments)

    def _save(self, assignments: dict[str, bytes], answer: Reply | None = None) -> None:
        self._effects.append(StoreClassicGroup(self._row(assignments), answer, self._stale))

    def saved(self, save: StoreClassicGroup, now: float) -> None:
        """What `save` asked to be stored is stored. A group that has gone on meanwhile stays where it is."""
        self._stale -= save.drops
        if save.answer is not None:
            self._effects.append(save.answer)
        if self._is_proposed(save):
            self._assign(now)

    def save_failed(self, save: StoreClassicGroup, now: float) -> None:
        """It could not be stored: those who wait for it are told to try again."""
        if save.answer is not None:
            self._effects.append(
                Reply(save.answer.handle, JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, ""))
            )
        if self._is_proposed(save):
            self._drop_assignment(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
            self._prepare("the assignment could not be stored", now)

    def _is_proposed(self, save: StoreClassicGroup) -> bool:
        is_current = self._proposal is not None and save.row.generation == self.generation
        return is_current and self.state is GroupState.COMPLETING_REBALANCE

    def _assign(self, now: float) -> None:
        assignments, self._proposal = self._proposal or {}, None
        self._move(GroupState.STABLE, now)
        for member in self.roster:
            self.roster.assign(member, assignments.get(member.member_id, b""))
            if self._parked.answer_sync(member.member_id, self._synced(member)):
                self._hear_of(member, now)

    def _drop_assignment(self, code: ErrorCode, now: float) -> None:
        self._proposal = None
        for member in self.roster:
            self.roster.assign(member, b"")
            if self._parked.answer_sync(member.member_id, SyncResult(code)):
                self._hear_of(member, now)

    def _synced(self, member: ClassicGroupMember) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def _row(self, assignments: dict[str, bytes]) -> GroupRow:
        """The generation as it is to be stored, with these assignments."""
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

    # Time

    def _wake_by(self, time: float) -> None:
        self.due = min(self.due, time)

    def _hear_of(self, member: ClassicGroupMember, now: float) -> None:
        member.deadline = now + member.session_timeout_ms
        self._wake_by(member.deadline)
