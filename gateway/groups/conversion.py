"""A consumer group made of a classic one, and a classic one made of a consumer group, while their members go on (KIP-848's migration;
Kafka's ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.config import Settings
from gateway.errors import ErrorCode, KafkaError
from gateway.groups.consumer_member import ClassicWords, ConsumerMember
from gateway.groups.consumer_rows import ITSELF, ConsumerGroupRow, StoredGroup
from gateway.groups.group import Group
from gateway.groups.member import Member
from gateway.groups.roster import Roster
from gateway.groups.rows import GroupRow, MemberRow
from gateway.groups.subscription import CONSUMER, assignment_bytes, assignment_of, subscription_of
from gateway.groups.topology import Topology, known


def as_classic(
    group_id: str, generation: int, members: Sequence[ConsumerMember], topology: Topology, settings: Settings, now: float
) -> Group:
    """The same members in a stable classic group, each with what its target gave it. All of them must speak the classic protocol."""
    protocol = _elected(members)
    rows = tuple(_classic_row(member, protocol, topology) for member in members)
    return Group.restored(group_id, GroupRow(generation, CONSUMER, protocol, members[0].member_id, int(now), rows), settings, now)


def _elected(members: Iterable[ConsumerMember]) -> str:
    roster = Roster()
    for member in members:
        words = _words(member)
        roster.add(Member(member.member_id, member.instance_id, "", "", words.protocols, 0, 0, 0))
    return roster.elected_protocol()


def _classic_row(member: ConsumerMember, protocol: str, topology: Topology) -> MemberRow:
    words = _words(member)
    metadata = next(metadata for name, metadata in words.protocols if name == protocol)
    partitions = {name: member.target[topic] for topic, name in known(member.target, topology)}
    return MemberRow(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        words.session_timeout_ms,
        member.rebalance_timeout_ms,
        words.protocols,
        assignment_bytes(partitions, metadata),
    )


def _words(member: ConsumerMember) -> ClassicWords:
    if member.classic is None:
        raise RuntimeError(f"{member.member_id} does not speak the classic protocol")
    return member.classic


def check_upgrade(group: Group, settings: Settings) -> None:
    """Raises KafkaError(GROUP_ID_NOT_FOUND), by which a client of the new protocol learns that this group is not for it."""
    policy = settings.group_consumer_migration_policy
    if policy not in ("bidirectional", "upgrade"):
        raise _refusal(group, f"group_consumer_migration_policy is {policy}")
    if group.protocol_type != CONSUMER:
        raise _refusal(group, f"its members are of the type {group.protocol_type}")
    if len(group.roster) > settings.group_max_size:
        raise _refusal(group, "it has more members than group_max_size allows")


def as_consumer(group: Group, topology: Topology) -> StoredGroup:
    """The same members, each with what the classic group had assigned to it. Raises KafkaError(GROUP_ID_NOT_FOUND) where that is not to be read,
    or the group's own assignor has put something beside it that would be lost."""
    try:
        members = tuple(_consumer_member(number, member, group, topology) for number, member in enumerate(group.roster, ITSELF + 1))
    except ValueError as failure:
        raise _refusal(group, str(failure)) from failure
    taken = [(topic, index) for member in members for topic, held in member.assigned.items() for index in held]
    if len(set(taken)) < len(taken):
        raise _refusal(group, "a partition of it is assigned to two members")
    row = ConsumerGroupRow(group.generation, group.generation, len(members) + ITSELF + 1, b"", int(group.changed_at))
    return StoredGroup(row, members)


def _consumer_member(number: int, member: Member, group: Group, topology: Topology) -> ConsumerMember:
    named, beside = assignment_of(member.assignment)
    if beside:
        raise ValueError("its assignor keeps notes of its own in the assignments")
    subscription = subscription_of(member.metadata(group.protocol or "") or member.protocols[0][1])
    target = {topic: indexes for name, indexes in named.items() if (topic := topology.id_of(name)) is not None}
    epoch = group.generation
    return ConsumerMember(
        number,
        member.member_id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        subscription.topics,
        classic=ClassicWords(member.session_timeout_ms, member.protocols),
        epoch=epoch,
        previous_epoch=epoch,
        assigned={topic: dict.fromkeys(indexes, epoch) for topic, indexes in target.items()},
        target=target,
    )


def _refusal(group: Group, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"The classic group {group.group_id} cannot become a consumer group: {reason}.")
