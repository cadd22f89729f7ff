"""Descriptions of groups on any Kafka server: members and assignments, for both group protocols.

DescribeGroups covers classic groups only. Groups that it does not find are requested with
ConsumerGroupDescribe (KIP-848).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition, errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolType

from gateway.cli.kafka_client import AdminClient, retry
from gateway.protocol.wire.group_messages import ConsumerGroupDescribeRequest

NOT_FOUND: int = errors.GroupIdNotFoundError.errno
_DEAD = "Dead"
"""State that DescribeGroups up to v5 returns for unknown groups; v6 has an error (KIP-1043)."""

#: Kafka's names of the two group types.
CLASSIC, CONSUMER = "classic", "consumer"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    `partitions` is the current assignment, empty while a classic group rebalances. For consumer
    groups `target` is the target assignment and `epoch` the member epoch.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. `assignor` can be empty; `coordinator` is a node id.

    `epoch` is the assignment epoch of a consumer group.
    """

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]
    epoch: int | None = None


def find_groups(
    client: AdminClient, group_ids: Sequence[str]
) -> tuple[list[GroupDescription], list[dict[str, Any]]]:
    """Describe groups.

    Returns the groups in the given order, and a row with `name`, `error_code` and `error_message`
    for each that could not be described.
    """
    nodes: dict[int, list[str]] = defaultdict(list)
    for group_id, node_id in retry(client, lambda: client.coordinators(group_ids)).items():
        nodes[node_id].append(group_id)
    found: dict[str, GroupDescription] = {}
    missing: dict[str, dict[str, Any]] = {}
    for node_id, names in nodes.items():
        for row in _describe_groups(client, node_id, names):
            code = NOT_FOUND if row.group_state == _DEAD else row.error_code
            if code:
                missing[row.group_id] = _error_row(row, code)
            else:
                found[row.group_id] = _classic_group(row, node_id)
        unknown = [
            name for name in names if name in missing and missing[name]["error_code"] == NOT_FOUND
        ]
        for row in _describe_consumer_groups(client, node_id, unknown):
            del missing[row.group_id]
            if row.error_code:
                missing[row.group_id] = _error_row(row, row.error_code)
            else:
                found[row.group_id] = _consumer_group(row, node_id)
    return [found[name] for name in group_ids if name in found], [
        missing[name] for name in group_ids if name in missing
    ]


def assignment_of(protocol_type: str, assignment: bytes | None) -> tuple[TopicPartition, ...]:
    """Decode the assignment of a consumer.

    Returns no partitions for groups of other types, such as Kafka Connect, which use other formats.
    """
    if protocol_type != ConsumerProtocolType or not assignment:
        return ()
    try:
        decoded = ConsumerProtocolAssignment.decode(bytes(assignment))
    except (ValueError, struct.error):  # a group leader can send any bytes to its members
        return ()
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in decoded.assigned_partitions
        for partition in topic.partitions
    )


def _error_row(row: Any, code: int) -> dict[str, Any]:
    return {
        "name": row.group_id,
        "error_code": code,
        "error_message": getattr(row, "error_message", None),
    }


def _describe_groups(client: AdminClient, node_id: int, group_ids: Sequence[str]) -> Sequence[Any]:
    return _retry_rows(
        client, lambda: client.send(DescribeGroupsRequest(groups=list(group_ids)), node_id)
    )


def _describe_consumer_groups(
    client: AdminClient, node_id: int, group_ids: Sequence[str]
) -> Iterator[Any]:
    """Return the rows of those that are consumer groups.

    None if the server does not support consumer groups or they are disabled.
    """
    if not group_ids:
        return
    request = ConsumerGroupDescribeRequest(
        group_ids=list(group_ids), include_authorized_operations=False
    )
    try:
        rows = _retry_rows(client, lambda: client.send(request, node_id))
    except errors.IncompatibleBrokerVersion:
        return
    yield from (
        row
        for row in rows
        if row.error_code not in (NOT_FOUND, errors.UnsupportedVersionError.errno)
    )


def _retry_rows(client: AdminClient, send: Callable[[], Any]) -> Sequence[Any]:
    def rows_or_raise() -> Sequence[Any]:
        rows: Sequence[Any] = send().groups
        for row in rows:
            if errors.for_code(row.error_code).retriable:
                raise errors.for_code(row.error_code)
        return rows

    return retry(client, rows_or_raise)


def _classic_group(row: Any, node_id: int) -> GroupDescription:
    members = (
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            assignment_of(row.protocol_type, member.member_assignment),
        )
        for member in row.members
    )
    return GroupDescription(
        row.group_id,
        CLASSIC,
        row.group_state,
        row.protocol_type,
        row.protocol_data,
        node_id,
        _in_order(members),
    )


def _consumer_group(row: Any, node_id: int) -> GroupDescription:
    members = (
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment),
            _partitions(member.target_assignment),
            member.member_epoch,
        )
        for member in row.members
    )
    return GroupDescription(
        row.group_id,
        CONSUMER,
        row.group_state,
        ConsumerProtocolType,
        row.assignor_name,
        node_id,
        _in_order(members),
        row.assignment_epoch,
    )


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def _in_order(members: Iterable[MemberDescription]) -> tuple[MemberDescription, ...]:
    return tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))
