"""Formats group descriptions as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from kafka import TopicPartition

from gateway.cli.groups.group_descriptions import CONSUMER, GroupDescription, MemberDescription
from gateway.cli.groups.lag import PartitionLag, total_lag
from gateway.cli.output import count_of, format_table, printable


def as_json(group: GroupDescription, rows: Sequence[PartitionLag]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor or None,
        "epoch": group.epoch,
        "coordinator": group.coordinator,
        "lag": total_lag(rows),
        "partitions": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "committed": row.committed,
                "end": row.end,
                "lag": row.lag,
                "member": row.member.member_id if row.member else None,
            }
            for row in rows
        ],
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": _partition_rows(member.partitions),
                "target": None if member.target is None else _partition_rows(member.target),
                "epoch": member.epoch,
            }
            for member in group.members
        ],
    }


def as_text(group: GroupDescription, rows: Sequence[PartitionLag], with_members: bool) -> str:
    protocol = "consumer protocol" if group.type == CONSUMER else ""
    about = [
        group.state,
        count_of(len(group.members), "member"),
        protocol,
        group.assignor,
        f"coordinator {group.coordinator}",
    ]
    lines = [printable(f"{group.group_id}: {', '.join(word for word in about if word)}")]
    if rows:
        head = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT", "HOST"]
        cells = [
            [*row.partition, row.committed, row.end, row.lag, *_owner_cells(row.member)]
            for row in rows
        ]
        lines += [f"  {line}" for line in format_table(head, cells)]
        lines.append(f"  {_total_line(rows)}")
    if with_members and group.members:
        lines += [f"  {line}" for line in _members(group)]
    return "\n".join(lines)


def _members(group: GroupDescription) -> Iterable[str]:
    head = ["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"]
    cells: list[list[Any]] = [
        [
            one.member_id,
            one.instance_id,
            one.client_id,
            one.host,
            _joined_partitions(one.partitions),
        ]
        for one in group.members
    ]
    if group.type == CONSUMER:
        head += ["TARGET", "EPOCH"]
        for row, one in zip(cells, group.members, strict=True):
            row += [_joined_partitions(one.target or ()), one.epoch]
    return format_table(head, cells)


def _partition_rows(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [
        {"topic": partition.topic, "partition": partition.partition} for partition in partitions
    ]


def _owner_cells(member: MemberDescription | None) -> list[str | None]:
    return [member.member_id, member.client_id, member.host] if member else [None, None, None]


def _total_line(rows: Sequence[PartitionLag]) -> str:
    unknown = sum(row.lag is None for row in rows)
    more = f"; unknown for {unknown} more" if unknown else ""
    return f"total lag {total_lag(rows)} in {count_of(len(rows) - unknown, 'partition')}{more}"


def _joined_partitions(partitions: Iterable[TopicPartition]) -> str | None:
    words = [
        f"{topic}:{','.join(str(one.partition) for one in rows)}"
        for topic, rows in groupby(sorted(partitions), lambda one: one.topic)
    ]
    return " ".join(words) or None
