"""One consumer group (KIP-848): what becomes of every heartbeat of its members, and of those who are not heard of any more.

The rules are those of Kafka's GroupMetadataManager (4.3). No I/O, no clock, no randomness: `now` is in ms of a clock that never steps, and new ids and the handles
of requests are arguments. What is to be done gathers for `take`; `due` says when `expire` wants to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from msgspec.structs import replace

from gateway.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE
from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.classic_protocol import ClassicProtocolMembers
from gateway.groups.consumer.consumer_member import (
    ConsumerGroupMember,
    HeartbeatResult,
    MemberHeartbeat,
    PartitionEpochs,
    Partitions,
)
from gateway.groups.consumer.consumer_rows import StoredGroup
from gateway.groups.consumer.consumer_states import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    MemberState,
)
from gateway.groups.consumer.group_epochs import NEVER
from gateway.groups.consumer.reconciliation import transition
from gateway.groups.consumer.topology import Topology
from gateway.groups.group_effects import Effect, Reply, RequestHandle, StoreRows
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings

#: What could not be stored is tried again so often, though nobody may ask for anything.
RETRY_MS = 1000

#: The first version of OffsetCommit that knows epochs.
_KNOWS_EPOCHS = 9

#: The code for a commit to this partition.
CommitValidator = Callable[[TopicId, int], ErrorCode]


class ConsumerGroup(ClassicProtocolMembers):
    """Every request is answered exactly once through `take`."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL_TYPE

    @classmethod
    def restored(
        cls, group_id: str, stored: StoredGroup, topology: Topology, settings: Settings, now: float
    ) -> Self:
        """As it was stored; its members have a session from now on to be heard of. Raises ValueError where it contradicts itself."""
        group = cls(group_id, topology, settings, stored.row.changed_at)
        row = stored.row
        group.epoch, group.target_epoch, group._next_number, group._seen = (
            row.epoch,
            row.target_epoch,
            row.next_number,
            row.seen,
        )
        for regex, topics in row.resolved.items():
            group._resolve(regex, topics)
        for member in stored.members:
            group.roster.put(member)
            group._hear_of(member, now)
            if member.state is MemberState.UNREVOKED and member.classic is None:
                group._of(member).revoke = now + member.rebalance_timeout_ms
                group._wake_by(group._of(member).revoke)
        return group

    def use(self, settings: Settings) -> None:
        """Go by these settings from now on."""
        self._settings = settings

    def store_anew(self, stale: Iterable[bytes]) -> None:
        """It was a classic group, whose rows have these keys: all of it is to be stored, and they go in the same moment."""
        for key in stale:
            self._ledger.mark(key, None)
        self._ledger.mark_group()
        for member in self.roster:
            self._put(member)

    def take(self) -> list[Effect]:
        """What has gathered to be done, in order."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    @property
    def is_blank(self) -> bool:
        """Nobody is here, and nothing was ever stored."""
        return not len(self.roster) and not self.epoch

    @property
    def is_empty(self) -> bool:
        return not len(self.roster)

    @property
    def is_deserted(self) -> bool:
        """Nobody is here, and that is stored."""
        return self.is_empty and self._ledger.is_clean

    @property
    def generation(self) -> int:
        """What the group's epoch is called in the classic protocol."""
        return self.epoch

    # What members ask

    def beat(self, beat: MemberHeartbeat, handle: RequestHandle, now: float) -> bool:
        """`handle` is answered with `HeartbeatResult`: at once, or when what has changed is stored. Whether it was not refused."""
        try:
            beaten = (
                self._leave(beat, now)
                if beat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)
                else self._beat(beat, now)
            )
        except KafkaError as refusal:
            self._effects.append(Reply(handle, HeartbeatResult(refusal.code, refusal.message)))
            return False
        self._ledger.answer(handle, beaten)
        self._ledger.flush()
        return True

    def _beat(self, beat: MemberHeartbeat, now: float) -> HeartbeatResult:
        self._check_room(beat.member_id)
        before, replaced = self._beating_member(beat)
        after = _told(before, beat)
        if after.regex and after.regex not in self.roster.regexes:
            # Refused before anything has changed.
            self._topology.matching(after.regex)
        after = self._step(before, after, replaced, beat.owned, now)
        if after.classic is None and before.classic is not None:
            deadlines = self._of(after)
            deadlines.join = deadlines.sync = NEVER
        is_told = beat.is_full or after.assigned != before.assigned
        return HeartbeatResult(
            ErrorCode.NONE,
            None,
            after.member_id,
            after.epoch,
            _partitions(after.assigned) if is_told else None,
        )

    def _beating_member(
        self, beat: MemberHeartbeat
    ) -> tuple[ConsumerGroupMember, ConsumerGroupMember | None]:
        """The member as it was, and the static one whose place it takes. Raises KafkaError."""
        joins = beat.epoch == JOIN_EPOCH
        if beat.instance_id is None:
            before = self.roster.get(beat.member_id)
            if before is None and joins:
                return ConsumerGroupMember(0, beat.member_id), None
        elif joins and (static := self.roster.static(beat.instance_id)) is None:
            return self.roster.get(beat.member_id) or ConsumerGroupMember(0, beat.member_id), None
        elif joins and static is not None:
            if static.classic is None and static.state is not MemberState.AWAY:
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"The static member {beat.instance_id} is still there as {static.member_id}.",
                )
            return self._successor_of(static, beat.member_id), static
        member = self._known(beat.member_id, beat.instance_id)
        _check_epoch(member, beat)
        return member, None

    def _leave(self, beat: MemberHeartbeat, now: float) -> HeartbeatResult:
        member = self._known(beat.member_id, beat.instance_id)
        if beat.epoch == STATIC_LEAVE_EPOCH:
            # What it commits as its successor counts from the first epoch on.
            assigned = {
                topic: dict.fromkeys(held, JOIN_EPOCH) for topic, held in member.assigned.items()
            }
            self._put(transition(member, MemberState.AWAY, STATIC_LEAVE_EPOCH, assigned, {}))
            self._of(member).revoke = NEVER
        else:
            self._remove([member], "left", now)
        return HeartbeatResult(ErrorCode.NONE, None, beat.member_id, beat.epoch)

    def check_commit(self, member_id: str, epoch: int, version: int) -> CommitValidator | None:
        """Which partitions this member may not commit to; None where it may to all. Raises KafkaError where it may to none.

        A commit of an older epoch is taken for what the member has had since then, as Kafka 4.3 does.
        """
        if epoch < 0 and not len(self.roster):
            return None
        member = self._known(member_id, None)
        if member.classic is None and version < _KNOWS_EPOCHS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch == member.epoch:
            return None
        stale = _stale(member)
        if epoch > member.epoch:
            raise KafkaError(stale)

        def fence(topic: TopicId, partition: int) -> ErrorCode:
            since = member.assigned.get(topic, {}).get(
                partition, member.revoking.get(topic, {}).get(partition)
            )
            return ErrorCode.NONE if since is not None and epoch >= since else stale

        return fence

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Whether whoever asks where the group stands is who it says. Raises KafkaError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH."""
        if member_id is None and epoch < 0:
            return
        member = self._known(member_id or "", None)
        if epoch != member.epoch:
            raise KafkaError(_stale(member))

    def check_empty(self) -> None:
        """Raises KafkaError: NON_EMPTY_GROUP, COORDINATOR_NOT_AVAILABLE while it is not stored that it is empty: that could come after a deletion."""
        if len(self.roster):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        if not self._ledger.is_clean:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def delete(self, now: float) -> None:
        """There is no way back. Raises KafkaError as `check_empty`."""
        self.check_empty()
        self.retire()

    def let_go_of_all(self, code: ErrorCode) -> None:
        """Answer every request that waits for a write that has not begun."""
        self._ledger.refuse_all(code)

    # What the store and time bring

    def written(self, write: StoreRows) -> None:
        """What `write` asked to be stored is stored."""
        self._ledger.written(write)

    def write_failed(self, write: StoreRows, now: float) -> None:
        """It could not be stored: those who wait for it are told to try again."""
        self._ledger.write_failed(write)
        if not self.is_dead:
            self._wake_by(now + RETRY_MS)

    def expire(self, now: float) -> None:
        """Remove whose time is up, and set `due` anew."""
        for member in [member for member in self.roster if self._of(member).earliest <= now]:
            self._remove([member], "not heard of, or not done in time", now)
            if self.is_dead:
                # The others have a session from now on in the classic group.
                self.due = NEVER
                return
        self._ledger.flush()
        self.due = min((self._of(member).earliest for member in self.roster), default=NEVER)


def _told(before: ConsumerGroupMember, beat: MemberHeartbeat) -> ConsumerGroupMember:
    """The member with what it says now; what it does not say stays."""
    return replace(
        before,
        instance_id=beat.instance_id or before.instance_id,
        rack_id=beat.rack_id or before.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if beat.rebalance_timeout_ms is None
        else beat.rebalance_timeout_ms,
        topics=before.topics
        if beat.topics is None or beat.topics == before.topics
        else beat.topics,
        regex=before.regex if beat.regex is None else beat.regex,
        assignor=beat.assignor or before.assignor,
        classic=None,
    )


def _check_epoch(member: ConsumerGroupMember, beat: MemberHeartbeat) -> None:
    """Raises KafkaError(FENCED_MEMBER_EPOCH). The epoch before is good enough for a member that has nothing but what it was given: its answer was lost."""
    if beat.epoch in (JOIN_EPOCH, member.epoch):
        return
    if (
        beat.epoch != member.previous_epoch
        or beat.epoch > member.epoch
        or not _has_only(beat.owned, member.assigned)
    ):
        words = f"The member is in epoch {member.epoch}, not {beat.epoch}; it must give up its partitions and join again."
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, words)


def _has_only(owned: Partitions | None, assigned: PartitionEpochs) -> bool:
    return owned is not None and all(
        partitions <= assigned.get(topic, {}).keys() for topic, partitions in owned.items()
    )


def _partitions(held: PartitionEpochs) -> Partitions:
    return {topic: frozenset(partitions) for topic, partitions in held.items()}


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    """What the wrong epoch is called in the member's protocol."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
