"""How far groups are: what they have committed, and how far that is behind the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kafka import TopicPartition
from kafka.admin import OffsetSpec

from gateway.cli.group_descriptions import Group, Member
from gateway.cli.kafka_client import Client, patiently


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


def committed(client: Client, group_ids: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """What each group has committed."""
    if not group_ids:
        return {}
    answer = patiently(client, lambda: client.list_group_offsets(dict.fromkeys(group_ids)))
    return {
        group_id: {
            partition: row.offset for partition, row in answer[group_id].items() if row.offset >= 0
        }
        for group_id in group_ids
    }


def led_partitions(client: Client, topics: Iterable[str]) -> dict[str, dict[int, bool]]:
    """The partitions of those topics that there are, and whether each has a leader, without which it has no offsets to tell."""
    names = sorted(set(topics))
    rows = client.describe_topics(names) if names else []
    return {
        row["name"]: {part["partition_index"]: part["leader_id"] >= 0 for part in row["partitions"]}
        for row in rows
        if not row["error_code"]
    }


def offsets_at(
    client: Client, partitions: Iterable[TopicPartition], at: int
) -> dict[TopicPartition, int]:
    """The offset of each partition at a time in ms since 1970, or at an OffsetSpec; -1 where there is no record so late."""
    wanted = dict.fromkeys(partitions, at)
    answer = patiently(client, lambda: client.list_partition_offsets(wanted)) if wanted else {}
    return {partition: row.offset for partition, row in answer.items()}


def positions(client: Client, groups: Sequence[Group]) -> dict[str, list[Position]]:
    """Where each group is, in every partition that it has committed in or that a member was assigned."""
    commits = committed(client, [group.group_id for group in groups])
    owners = {
        group.group_id: {
            partition: member for member in group.members for partition in member.partitions
        }
        for group in groups
    }
    wanted = {name: sorted(commits[name].keys() | owners[name].keys()) for name in commits}
    every = {partition for partitions in wanted.values() for partition in partitions}
    led = led_partitions(client, (partition.topic for partition in every))
    ends = offsets_at(
        client,
        (part for part in every if led.get(part.topic, {}).get(part.partition)),
        OffsetSpec.LATEST,
    )
    return {
        name: [
            Position(part, commits[name].get(part), ends.get(part), owners[name].get(part))
            for part in partitions
        ]
        for name, partitions in wanted.items()
    }


def total(rows: Iterable[Position]) -> int:
    """The lag over all; a commit beyond the end makes up for nothing elsewhere."""
    return sum(max(row.lag or 0, 0) for row in rows)
