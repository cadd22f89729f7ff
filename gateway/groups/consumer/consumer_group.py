"""State machine of a consumer group (KIP-848): heartbeats, offset checks and timeouts.

Follows Kafka's GroupMetadataManager (4.3). It does no I/O: `now` is in ms of a monotonic clock, and
new member ids and request handles are arguments. Effects are collected for `take_effects`;
`next_expire_at` is the time of the next `expire`.
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

#: Delay before a failed write is retried, in ms.
RETRY_MS = 1000

#: First version of OffsetCommit with member epochs.
_FIRST_WITH_MEMBER_EPOCHS = 9

#: Returns the error code of a commit to a partition.
CommitValidator = Callable[[TopicId, int], ErrorCode]


class ConsumerGroup(ClassicProtocolMembers):
    """Answers each request exactly once through `take_effects`."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL_TYPE

    @classmethod
    def restored(
        cls, group_id: str, stored: StoredGroup, topology: Topology, settings: Settings, now: float
    ) -> Self:
        """Restore a group from its rows. Each member's session restarts at `now`.

        Raises ValueError if the rows are inconsistent.
        """
        group = cls(group_id, topology, settings, stored.row.changed_at)
        row = stored.row
        group.epoch, group.target_epoch, group._next_number, group._topics_digest = (
            row.epoch,
            row.target_epoch,
            row.next_number,
            row.topics_digest,
        )
        for regex, topics in row.regex_topics.items():
            group._set_regex_topics(regex, topics)
        for member in stored.members:
            group.roster.put(member)
            group._restart_session(member, now)
            if member.state is MemberState.UNREVOKED and member.classic is None:
                group._deadlines_of(member).revoke = now + member.rebalance_timeout_ms
                group._expire_by(group._deadlines_of(member).revoke)
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

    # Member requests

    def consumer_heartbeat(
        self, request: MemberHeartbeat, handle: RequestHandle, now: float
    ) -> bool:
        """`handle` receives a `HeartbeatResult`, at once or when the changes are stored.

        Returns False if the request was refused.
        """
        try:
            result = (
                self._leave(request, now)
                if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)
                else self._heartbeat(request, now)
            )
        except KafkaError as refusal:
            self._effects.append(Reply(handle, HeartbeatResult(refusal.code, refusal.message)))
            return False
        self._unstored.reply(handle, result)
        self._unstored.flush()
        return True

    def _heartbeat(self, request: MemberHeartbeat, now: float) -> HeartbeatResult:
        self._check_group_size(request.member_id)
        before, replaced = self._heartbeating_member(request)
        after = _updated_member(before, request)
        if after.regex and after.regex not in self.roster.regexes:
            # Validate the expression before the group changes.
            self._topology.matching(after.regex)
        after = self._update_member(before, after, replaced, request.owned, now)
        if after.classic is None and before.classic is not None:
            deadlines = self._deadlines_of(after)
            deadlines.join = deadlines.sync = NEVER
        sends_assignment = request.is_full or after.assigned != before.assigned
        return HeartbeatResult(
            ErrorCode.NONE,
            None,
            after.member_id,
            after.epoch,
            _without_epochs(after.assigned) if sends_assignment else None,
        )

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
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"The instance id {request.instance_id} is in use by {static.member_id}.",
                )
            return self._replacement_for(static, request.member_id), static
        member = self._require_member(request.member_id, request.instance_id)
        _check_epoch(member, request)
        return member, None

    def _leave(self, request: MemberHeartbeat, now: float) -> HeartbeatResult:
        member = self._require_member(request.member_id, request.instance_id)
        if request.epoch == STATIC_LEAVE_EPOCH:
            # The replacement may commit these partitions from its first epoch on.
            assigned = {
                topic: dict.fromkeys(held, JOIN_EPOCH) for topic, held in member.assigned.items()
            }
            self._put_member(transition(member, MemberState.AWAY, STATIC_LEAVE_EPOCH, assigned, {}))
            self._deadlines_of(member).revoke = NEVER
        else:
            self._remove_members([member], "left", now)
        return HeartbeatResult(ErrorCode.NONE, None, request.member_id, request.epoch)

    def validate_offset_commit(
        self, member_id: str, epoch: int, version: int
    ) -> CommitValidator | None:
        """Returns a check of single partitions, or None if the member may commit all of them.

        A commit with an older epoch is allowed for partitions owned since that epoch, as in Kafka
        4.3. Raises KafkaError if no partition may be committed.
        """
        if epoch < 0 and not len(self.roster):
            return None
        member = self._require_member(member_id, None)
        if member.classic is None and version < _FIRST_WITH_MEMBER_EPOCHS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch == member.epoch:
            return None
        stale = _stale_epoch_error(member)
        if epoch > member.epoch:
            raise KafkaError(stale)

        def fence(topic: TopicId, partition: int) -> ErrorCode:
            since = member.assigned.get(topic, {}).get(
                partition, member.revoking.get(topic, {}).get(partition)
            )
            return ErrorCode.NONE if since is not None and epoch >= since else stale

        return fence

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raises KafkaError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH."""
        if member_id is None and epoch < 0:
            return
        member = self._require_member(member_id or "", None)
        if epoch != member.epoch:
            raise KafkaError(_stale_epoch_error(member))

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

    # Store results and timeouts

    def on_stored(self, write: StoreRows) -> None:
        self._unstored.on_stored(write)

    def on_store_failed(self, write: StoreRows, now: float) -> None:
        """Fail the waiting requests with a retriable error and retry the write later."""
        self._unstored.on_store_failed(write)
        if not self.is_dead:
            self._expire_by(now + RETRY_MS)

    def expire(self, now: float) -> None:
        """Remove members whose deadline has passed, and update `next_expire_at`."""
        for member in [
            member for member in self.roster if self._deadlines_of(member).earliest <= now
        ]:
            self._remove_members([member], "session or rebalance timeout", now)
            if self.is_dead:
                # The remaining members' sessions restart in the classic group.
                self.next_expire_at = NEVER
                return
        self._unstored.flush()
        self.next_expire_at = min(
            (self._deadlines_of(member).earliest for member in self.roster), default=NEVER
        )


def _updated_member(before: ConsumerGroupMember, request: MemberHeartbeat) -> ConsumerGroupMember:
    """The member with the fields that the request sets; others are unchanged."""
    return replace(
        before,
        instance_id=request.instance_id or before.instance_id,
        rack_id=request.rack_id or before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if request.rebalance_timeout_ms is None
        else request.rebalance_timeout_ms,
        topics=before.topics
        if request.topics is None or request.topics == before.topics
        else request.topics,
        regex=before.regex if request.regex is None else request.regex,
        assignor=request.assignor or before.assignor,
        classic=None,
    )


def _check_epoch(member: ConsumerGroupMember, request: MemberHeartbeat) -> None:
    """Raises KafkaError(FENCED_MEMBER_EPOCH).

    The previous epoch is accepted if the member owns only partitions that it was assigned: it did
    not receive the last reply.
    """
    if request.epoch in (JOIN_EPOCH, member.epoch):
        return
    if (
        request.epoch != member.previous_epoch
        or request.epoch > member.epoch
        or not _contains_all(request.owned, member.assigned)
    ):
        message = (
            f"The member epoch is {member.epoch}, not {request.epoch}; "
            "release all partitions and rejoin."
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _contains_all(owned: Partitions | None, assigned: PartitionEpochs) -> bool:
    return owned is not None and all(
        partitions <= assigned.get(topic, {}).keys() for topic, partitions in owned.items()
    )


def _without_epochs(held: PartitionEpochs) -> Partitions:
    return {topic: frozenset(partitions) for topic, partitions in held.items()}


def _stale_epoch_error(member: ConsumerGroupMember) -> ErrorCode:
    """The error code of a wrong epoch in the member's protocol."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
