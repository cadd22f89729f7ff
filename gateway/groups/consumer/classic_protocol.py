"""What a member that uses the classic protocol sends to and receives from a consumer group.

Follows Kafka's classicGroupJoinToConsumerGroup and related methods (KIP-848). A JoinGroup acts as a
heartbeat that carries the subscription and the owned partitions, and the generation is the member
epoch. SyncGroup returns the assignment. Heartbeat returns REBALANCE_IN_PROGRESS when the member
must rejoin. `ConsumerGroup` handles the requests; replies have the same meaning as those of a
classic group.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.classic.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    encode_assignment,
    parse_subscription,
)
from gateway.groups.consumer.consumer_member import ClassicMemberMetadata, ConsumerGroupMember
from gateway.groups.consumer.consumer_roster import ConsumerRoster
from gateway.groups.consumer.topology import (
    Topology,
    named_topics,
    subscription_from_client,
)
from gateway.protocol.errors import ErrorCode, KafkaError


def check_protocols(request: MemberJoin, roster: ConsumerRoster) -> None:
    """Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL) if members have no protocol in common."""
    names = [name for name, _ in request.protocols]
    is_valid = bool(names) and len(set(names)) == len(names)
    if (
        not is_valid
        or request.protocol_type != CONSUMER_PROTOCOL_TYPE
        or not roster.supports_classic_protocols(names)
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def subscription_of(request: MemberJoin, topology: Topology) -> Subscription:
    """The subscription, which is the same in all protocols of a member.

    Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL) if it is malformed.
    """
    try:
        return subscription_from_client(parse_subscription(request.protocols[0][1]), topology)
    except ValueError as failure:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from failure


def updated_member(
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


def join_result(member: ConsumerGroupMember, epoch: int) -> JoinResult:
    name, _ = _first_protocol(member)
    return JoinResult(ErrorCode.NONE, member.member_id, epoch, CONSUMER_PROTOCOL_TYPE, name)


def check_sync(request: MemberSync, member: ConsumerGroupMember) -> None:
    """Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL)."""
    name, _ = _first_protocol(member)
    fits = request.protocol_type in (None, CONSUMER_PROTOCOL_TYPE)
    if not fits or request.protocol not in (None, name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def sync_result(request: MemberSync, member: ConsumerGroupMember, topology: Topology) -> SyncResult:
    _, metadata = _first_protocol(member)
    partitions = {
        topology.to_client(name): frozenset(member.assigned[topic])
        for topic, name in named_topics(member.assigned, member.topics, topology)
    }
    return SyncResult(
        ErrorCode.NONE,
        request.protocol_type,
        request.protocol,
        encode_assignment(partitions, metadata),
    )


def _first_protocol(member: ConsumerGroupMember) -> tuple[str, bytes]:
    """The protocol that the member's JoinGroup reply named."""
    if member.classic is None:
        raise RuntimeError(f"member {member.member_id} does not use the classic protocol")
    return member.classic.protocols[0]
