"""Members of a consumer group that use the classic protocol (KIP-848).

Follows Kafka's classicGroupJoinToConsumerGroup and related methods. Requests do not wait for other
members. A JoinGroup acts as a heartbeat that carries the subscription and the owned partitions, and
the generation is the member epoch. SyncGroup returns the assignment. Heartbeat returns
REBALANCE_IN_PROGRESS when the member must rejoin.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.classic.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    PartitionsByName,
    Subscription,
    encode_assignment,
    parse_subscription,
)
from gateway.groups.consumer.consumer_member import (
    ClassicMemberMetadata,
    ConsumerGroupMember,
    Partitions,
)
from gateway.groups.consumer.consumer_states import MemberState
from gateway.groups.consumer.group_epochs import NEVER
from gateway.groups.consumer.membership import GroupMembership
from gateway.groups.consumer.topology import named_topics
from gateway.groups.group_effects import Reply, RequestHandle
from gateway.protocol.errors import ErrorCode, KafkaError


class ClassicProtocolMembers(GroupMembership):
    """Replies have the same meaning as those of a classic group."""

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

    def sync(self, request: MemberSync, handle: RequestHandle, now: float) -> None:
        """`handle` receives a `SyncResult`.

        Assignments in the request are ignored: the group has no leader.
        """
        try:
            self._unstored.reply(handle, self._sync(request, now))
        except KafkaError as refusal:
            self._effects.append(Reply(handle, SyncResult(refusal.code)))
        self._unstored.flush()

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
            member.state is MemberState.UNRELEASED and self._is_target_free(member)
        )
        if member.epoch < self.target_epoch or may_step:
            self._request_rejoin(member, now)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance_id: str | None, reason: str, now: float) -> None:
        """Remove a member. A static member may be identified by its instance id alone.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        if (
            not member_id
            and instance_id is not None
            and (static := self.roster.static_member(instance_id)) is not None
        ):
            member_id = static.member_id
        self._remove_members(
            [self._require_member(member_id, instance_id)],
            f"left: {reason}" if reason else "left",
            now,
        )
        self._unstored.flush()

    def cancel_request(self, member_id: str, handle: RequestHandle, now: float) -> None:
        """Do nothing: the result of a request whose connection closed is discarded."""

    # JoinGroup

    def _join(
        self, request: MemberJoin, new_id: str, handle: RequestHandle, now: float
    ) -> JoinResult | None:
        """Returns None if the group was converted to a classic group, which sends the reply."""
        self._check_classic(request)
        if request.requires_member_id and not request.member_id and request.instance_id is None:
            # The group does not reserve the id: it accepts any id that the client joins with.
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, new_id)
        subscription = _subscription(request)
        before, replaced = self._joining_member(request, new_id)
        after = _updated_member(before, request, subscription)
        if (
            replaced is not None
            and replaced.classic is None
            and self._can_convert_to_classic([replaced])
        ):
            self._convert_to_classic([replaced], after, handle, now)
            return None
        owned = self._partitions_by_id(subscription.owned)
        after = self._update_member(before, after, replaced, owned, now)
        deadlines = self._deadlines_of(after)
        deadlines.join, deadlines.sync = NEVER, now + after.rebalance_timeout_ms
        self._expire_by(deadlines.sync)
        return JoinResult(
            ErrorCode.NONE,
            after.member_id,
            after.epoch,
            CONSUMER_PROTOCOL_TYPE,
            request.protocols[0][0],
        )

    def _check_classic(self, request: MemberJoin) -> None:
        if self._settings.group_consumer_migration_policy == "disabled":
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._check_group_size(request.member_id)
        names = [name for name, _ in request.protocols]
        is_compatible = (
            bool(names)
            and len(set(names)) == len(names)
            and request.protocol_type == CONSUMER_PROTOCOL_TYPE
        )
        if not is_compatible or not self.roster.supports_classic_protocols(names):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _joining_member(
        self, request: MemberJoin, new_id: str
    ) -> tuple[ConsumerGroupMember, ConsumerGroupMember | None]:
        """The member before this request, and the static member that it replaces, if any."""
        member_id, instance_id = request.member_id, request.instance_id
        if instance_id is None:
            return self.roster.get(member_id or new_id) or ConsumerGroupMember(
                0, member_id or new_id
            ), None
        static = self.roster.static_member(instance_id)
        if member_id:
            return self._require_member(member_id, instance_id), None
        return (
            (ConsumerGroupMember(0, new_id), None)
            if static is None
            else (self._replacement_for(static, new_id), static)
        )

    def _partitions_by_id(self, named: PartitionsByName) -> Partitions:
        return {
            topic: partitions
            for name, partitions in named.items()
            if partitions and (topic := self._topology.id_of(name)) is not None
        }

    # SyncGroup and Heartbeat

    def _sync(self, request: MemberSync, now: float) -> SyncResult:
        member = self._require_classic_member(
            request.member_id, request.instance_id, request.generation
        )
        name, metadata = _first_protocol(member)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol not in (
            None,
            name,
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._request_rejoin(member, now)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._deadlines_of(member).sync = NEVER
        self._restart_session(member, now)
        partitions = {
            name: frozenset(member.assigned[topic])
            for topic, name in named_topics(member.assigned, member.topics, self._topology)
        }
        return SyncResult(
            ErrorCode.NONE,
            request.protocol_type,
            request.protocol,
            encode_assignment(partitions, metadata),
        )

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

    def _is_target_free(self, member: ConsumerGroupMember) -> bool:
        """Whether no other member owns a partition of this member's target."""
        return all(
            index in member.assigned.get(topic, ()) or self.roster.owner(topic, index) is None
            for topic, partitions in member.target.items()
            for index in partitions
        )

    def _request_rejoin(self, member: ConsumerGroupMember, now: float) -> None:
        deadlines = self._deadlines_of(member)
        if deadlines.join == NEVER:
            deadlines.join = now + member.rebalance_timeout_ms
            self._expire_by(deadlines.join)


def _subscription(request: MemberJoin) -> Subscription:
    """The subscription, which is the same in all protocols of a member.

    Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL) if it is malformed.
    """
    try:
        return parse_subscription(request.protocols[0][1])
    except ValueError as failure:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from failure


def _updated_member(
    before: ConsumerGroupMember, request: MemberJoin, subscription: Subscription
) -> ConsumerGroupMember:
    return replace(
        before,
        instance_id=request.instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=subscription.topics,
        regex="",
        classic=ClassicMemberMetadata(request.session_timeout_ms, request.protocols),
    )


def _first_protocol(member: ConsumerGroupMember) -> tuple[str, bytes]:
    """The protocol that the member's JoinGroup reply named."""
    if member.classic is None:
        raise RuntimeError(f"member {member.member_id} does not use the classic protocol")
    return member.classic.protocols[0]
