"""Committed offsets of groups and their lag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kafka import TopicPartition
from kafka.admin import OffsetSpec

from gateway.cli.groups.group_descriptions import GroupDescription, MemberDescription
from gateway.cli.kafka_client import AdminClient, retry


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group's position in a partition.

    `committed` is None without a committed offset, `end` for a partition that does not exist or has
    no leader.
    """

    partition: TopicPartition
    committed: int | None
    end: int | None
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """Negative if the commit is beyond the end, for example in a recreated topic."""
        return None if self.committed is None or self.end is None else self.end - self.committed


def committed_offsets(
    client: AdminClient, group_ids: Sequence[str]
) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of each group."""
    if not group_ids:
        return {}
    answer = retry(client, lambda: client.list_group_offsets(dict.fromkeys(group_ids)))
    return {
        group_id: {
            partition: row.offset for partition, row in answer[group_id].items() if row.offset >= 0
        }
        for group_id in group_ids
    }


def leader_availability(client: AdminClient, topics: Iterable[str]) -> dict[str, dict[int, bool]]:
    """Return whether each partition has a leader. Without one it reports no offsets."""
    names = sorted(set(topics))
    rows = client.describe_topics(names) if names else []
    return {
        row["name"]: {part["partition_index"]: part["leader_id"] >= 0 for part in row["partitions"]}
        for row in rows
        if not row["error_code"]
    }


def offsets_at(
    client: AdminClient, partitions: Iterable[TopicPartition], at: int
) -> dict[TopicPartition, int]:
    """Return the offset of each partition at a timestamp in ms since 1970, or at an OffsetSpec.

    -1 if no record is that late.
    """
    wanted = dict.fromkeys(partitions, at)
    answer = retry(client, lambda: client.list_partition_offsets(wanted)) if wanted else {}
    return {partition: row.offset for partition, row in answer.items()}


def partition_lags(
    client: AdminClient, groups: Sequence[GroupDescription]
) -> dict[str, list[PartitionLag]]:
    """Return the lag of each group for all committed and assigned partitions."""
    commits = committed_offsets(client, [group.group_id for group in groups])
    owners = {
        group.group_id: {
            partition: member for member in group.members for partition in member.partitions
        }
        for group in groups
    }
    wanted = {name: sorted(commits[name].keys() | owners[name].keys()) for name in commits}
    every = {partition for partitions in wanted.values() for partition in partitions}
    led = leader_availability(client, (partition.topic for partition in every))
    ends = offsets_at(
        client,
        (part for part in every if led.get(part.topic, {}).get(part.partition)),
        OffsetSpec.LATEST,
    )
    return {
        name: [
            PartitionLag(part, commits[name].get(part), ends.get(part), owners[name].get(part))
            for part in partitions
        ]
        for name, partitions in wanted.items()
    }


def total_lag(rows: Iterable[PartitionLag]) -> int:
    """Return the total lag. A commit beyond the end does not reduce it."""
    return sum(max(row.lag or 0, 0) for row in rows)
