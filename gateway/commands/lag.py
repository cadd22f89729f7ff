"""What a server knows of its groups: who is in them, what they have committed, and how far that is behind the end."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition, errors
from kafka.admin import OffsetSpec
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolType

from gateway.commands.client import Client, patiently

NOT_FOUND: int = errors.GroupIdNotFoundError.errno
_DEAD = "Dead"
"""What DescribeGroups up to v5 calls a group that is not there; v6 has an error for it (KIP-1043)."""


@dataclass(frozen=True, slots=True)
class Member:
    """`partitions` are those that it was assigned, as far as that can be told: none while the group rebalances."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`assignor` is what the members agreed on, empty for nothing; `coordinator` a node's id."""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """How far a group is in a partition. `committed` is None for never, `end` for a partition that is gone or has no leader."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        """Negative where the commit is beyond the end, as when a topic was made anew."""
        return None if self.committed is None or self.end is None else self.end - self.committed


def find_groups(client: Client, group_ids: Sequence[str]) -> tuple[list[Group], list[dict[str, Any]]]:
    """The groups, in the order asked for; and a row of `name`, `error_code` and `error_message` for each that cannot be described."""
    nodes: dict[int, list[str]] = defaultdict(list)
    for group_id, node_id in patiently(client, lambda: client.coordinators(group_ids)).items():
        nodes[node_id].append(group_id)
    found: dict[str, Group] = {}
    missing = []
    for node_id, names in nodes.items():
        for row in _described(client, node_id, names):
            code = NOT_FOUND if row.group_state == _DEAD else row.error_code
            if code:
                missing.append({"name": row.group_id, "error_code": code, "error_message": getattr(row, "error_message", None)})
            else:
                found[row.group_id] = _group(row, node_id)
    return [found[name] for name in group_ids if name in found], missing


def committed(client: Client, group_ids: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """What each group has committed."""
    if not group_ids:
        return {}
    answer = patiently(client, lambda: client.list_group_offsets(dict.fromkeys(group_ids)))
    return {group_id: {partition: row.offset for partition, row in answer[group_id].items() if row.offset >= 0} for group_id in group_ids}


def led_partitions(client: Client, topics: Iterable[str]) -> dict[str, dict[int, bool]]:
    """The partitions of those topics that there are, and whether each has a leader, without which it has no offsets to tell."""
    names = sorted(set(topics))
    rows = client.describe_topics(names) if names else []
    return {
        row["name"]: {part["partition_index"]: part["leader_id"] >= 0 for part in row["partitions"]}
        for row in rows
        if not row["error_code"]
    }


def offsets_at(client: Client, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
    """The offset of each partition at a time in ms since 1970, or at an OffsetSpec; -1 where there is no record so late."""
    wanted = dict.fromkeys(partitions, at)
    answer = patiently(client, lambda: client.list_partition_offsets(wanted)) if wanted else {}
    return {partition: row.offset for partition, row in answer.items()}


def positions(client: Client, groups: Sequence[Group]) -> dict[str, list[Position]]:
    """Where each group is, in every partition that it has committed in or that a member was assigned."""
    commits = committed(client, [group.group_id for group in groups])
    owners = {group.group_id: {partition: member for member in group.members for partition in member.partitions} for group in groups}
    wanted = {name: sorted(commits[name].keys() | owners[name].keys()) for name in commits}
    every = {partition for partitions in wanted.values() for partition in partitions}
    led = led_partitions(client, (partition.topic for partition in every))
    ends = offsets_at(client, (part for part in every if led.get(part.topic, {}).get(part.partition)), OffsetSpec.LATEST)
    return {
        name: [Position(part, commits[name].get(part), ends.get(part), owners[name].get(part)) for part in partitions]
        for name, partitions in wanted.items()
    }


def assignment_of(protocol_type: str, assignment: bytes | None) -> tuple[TopicPartition, ...]:
    """The partitions that a consumer was assigned. Empty for groups of another kind (Kafka Connect), which keep something else there."""
    if protocol_type != ConsumerProtocolType or not assignment:
        return ()
    try:
        decoded = ConsumerProtocolAssignment.decode(bytes(assignment))
    except (ValueError, struct.error):  # a leader may say whatever it likes to its members
        return ()
    return tuple(TopicPartition(topic.topic, partition) for topic in decoded.assigned_partitions for partition in topic.partitions)


def total(rows: Iterable[Position]) -> int:
    """The lag over all; a commit beyond the end makes up for nothing elsewhere."""
    return sum(max(row.lag or 0, 0) for row in rows)


def _described(client: Client, node_id: int, group_ids: Sequence[str]) -> Sequence[Any]:
    def ask() -> Sequence[Any]:
        rows: Sequence[Any] = client.ask(DescribeGroupsRequest(groups=list(group_ids)), node_id).groups
        for row in rows:
            if errors.for_code(row.error_code).retriable:
                raise errors.for_code(row.error_code)
        return rows

    return patiently(client, ask)


def _group(row: Any, node_id: int) -> Group:
    members = [
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            assignment_of(row.protocol_type, member.member_assignment),
        )
        for member in row.members
    ]
    return Group(
        row.group_id,
        row.group_state,
        row.protocol_type,
        row.protocol_data,
        node_id,
        tuple(sorted(members, key=lambda member: (member.client_id, member.member_id))),
    )
