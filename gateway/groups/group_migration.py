"""Converts groups between the classic and the consumer protocol while members stay (KIP-848).

Follows Kafka's ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup, except that
members keep the partitions that they still read. Kafka ignores the partitions that members reported
when they joined, and a classic group that rebalances after the conversion has the target
assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_member import ClassicGroupMember
from gateway.groups.classic.classic_roster import ClassicRoster
from gateway.groups.classic.classic_rows import GroupRow, MemberRow
from gateway.groups.classic.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    MAX_ELEMENTS,
    Subscription,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_member import (
    ClassicMemberMetadata,
    ConsumerGroupMember,
    Partitions,
)
from gateway.groups.consumer.consumer_rows import GROUP_ROW, ConsumerGroupRow, StoredGroup
from gateway.groups.consumer.topology import (
    Topology,
    named_topics,
    partitions_by_id,
    partitions_from_client,
    subscription_from_client,
)
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings


def to_classic_group(
    group_id: str,
    generation: int,
    members: Sequence[ConsumerGroupMember],
    topology: Topology,
    settings: Settings,
    now: float,
    *,
    rebalances: bool = False,
) -> ClassicGroup:
    """A stable classic group with the same members; each is assigned its target assignment.

    If the group `rebalances` at once, each is assigned what it owns instead: it still reads that
    until it rejoins, and the group may be converted back before. All members must use the classic
    protocol.
    """
    protocol = _select_protocol(members)
    topology = topology.of_group(group_id)
    rows = tuple(
        _classic_row(member, member.owned if rebalances else member.target, protocol, topology)
        for member in members
    )
    return ClassicGroup.restored(
        group_id,
        GroupRow(
            generation, CONSUMER_PROTOCOL_TYPE, protocol, members[0].member_id, int(now), rows
        ),
        settings,
        now,
    )


def _select_protocol(members: Iterable[ConsumerGroupMember]) -> str:
    roster = ClassicRoster()
    for member in members:
        metadata = _classic_metadata(member)
        roster.add(
            ClassicGroupMember(
                member.member_id, member.instance_id, "", "", metadata.protocols, 0, 0, 0
            )
        )
    return roster.select_protocol()


def _classic_row(
    member: ConsumerGroupMember, assignment: Partitions, protocol: str, topology: Topology
) -> MemberRow:
    classic = _classic_metadata(member)
    metadata = next(metadata for name, metadata in classic.protocols if name == protocol)
    partitions = {
        topology.to_client(name): assignment[topic]
        for topic, name in named_topics(assignment, member.topics, topology)
    }
    return MemberRow(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        classic.protocols,
        encode_assignment(partitions, metadata),
    )


def _classic_metadata(member: ConsumerGroupMember) -> ClassicMemberMetadata:
    if member.classic is None:
        raise RuntimeError(f"member {member.member_id} does not use the classic protocol")
    return member.classic


def check_upgrade(group: ClassicGroup, settings: Settings) -> None:
    """Raises KafkaError(GROUP_ID_NOT_FOUND) if the classic group must not be converted."""
    policy = settings.group_consumer_migration_policy
    if policy not in ("bidirectional", "upgrade"):
        raise _refusal(group, f"group_consumer_migration_policy is {policy}")
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _refusal(group, f"its protocol type is {group.protocol_type}")
    if len(group.roster) > settings.group_max_size:
        raise _refusal(group, "it has more members than group_max_size allows")


def to_consumer_group(group: ClassicGroup, topology: Topology) -> StoredGroup:
    """A consumer group with the same members and the partitions that they may read.

    Raises KafkaError(GROUP_ID_NOT_FOUND) if an assignment cannot be parsed, or if the client's
    assignor stores user data with the assignments, which would be lost.
    """
    topology = topology.of_group(group.group_id)
    numbered = list(enumerate(group.roster, GROUP_ROW + 1))
    try:
        subscriptions = _subscriptions(group, topology)
        partitions_by_member = _assignments(group, topology)
    except ValueError as failure:
        raise _refusal(group, str(failure)) from failure
    _add_owned(partitions_by_member, subscriptions, topology)
    members = tuple(
        _consumer_member(
            number,
            member,
            group,
            subscriptions[member.member_id],
            partitions_by_member[member.member_id],
        )
        for number, member in numbered
    )
    row = ConsumerGroupRow(
        group.generation, group.generation, len(members) + GROUP_ROW + 1, b"", int(group.changed_at)
    )
    return StoredGroup(row, members)


def _subscriptions(group: ClassicGroup, topology: Topology) -> dict[str, Subscription]:
    """Subscriptions by member id. Raises ValueError if malformed or beyond MAX_ELEMENTS."""
    subscriptions: dict[str, Subscription] = {}
    remaining = MAX_ELEMENTS
    for member in group.roster:
        subscription = subscriptions[member.member_id] = subscription_from_client(
            parse_subscription(
                member.metadata(group.protocol or "") or member.protocols[0][1], remaining
            ),
            topology,
        )
        remaining -= len(subscription.topics) + sum(map(len, subscription.owned.values()))
    return subscriptions


def _assignments(group: ClassicGroup, topology: Topology) -> dict[str, Partitions]:
    """Assignments by member id; empty if a rebalance has reset them. Raises ValueError."""
    partitions_by_member: dict[str, Partitions] = {}
    assigned: set[tuple[TopicId, int]] = set()
    remaining = MAX_ELEMENTS
    for member in group.roster:
        named, user_data = parse_assignment(member.assignment, remaining)
        remaining -= sum(map(len, named.values()))
        if user_data:
            raise ValueError("its assignor stores user data in the assignments")
        partitions_by_member[member.member_id] = partitions_by_id(
            partitions_from_client(named, topology), topology
        )
        added = _partition_set(partitions_by_member[member.member_id])
        if assigned & added:
            raise ValueError("a partition is assigned to two members")
        assigned |= added
    return partitions_by_member


def _add_owned(
    partitions_by_member: dict[str, Partitions],
    subscriptions: Mapping[str, Subscription],
    topology: Topology,
) -> None:
    """Add the partitions that members reported when they joined, unless another member has them.

    With a cooperative assignor a member reads them until it has received its assignment; it then
    rejoins without the revoked ones. If two members report the same partition, the first one keeps
    it.
    """
    taken = set[tuple[TopicId, int]]().union(*map(_partition_set, partitions_by_member.values()))
    for member_id, subscription in subscriptions.items():
        partitions = dict(partitions_by_member[member_id])
        for topic, indexes in partitions_by_id(subscription.owned, topology).items():
            free = frozenset(index for index in indexes if (topic, index) not in taken)
            if free:
                partitions[topic] = partitions.get(topic, frozenset()) | free
        taken |= _partition_set(partitions)
        partitions_by_member[member_id] = partitions


def _partition_set(partitions: Partitions) -> set[tuple[TopicId, int]]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}


def _consumer_member(
    number: int,
    member: ClassicGroupMember,
    group: ClassicGroup,
    subscription: Subscription,
    partitions: Partitions,
) -> ConsumerGroupMember:
    epoch = group.generation
    return ConsumerGroupMember(
        number,
        member.member_id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        subscription.topics,
        classic=ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
        epoch=epoch,
        previous_epoch=epoch,
        assigned={topic: dict.fromkeys(indexes, epoch) for topic, indexes in partitions.items()},
        target=partitions,
    )


def _refusal(group: ClassicGroup, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"The classic group {group.group_id} cannot become a consumer group: {reason}.",
    )
