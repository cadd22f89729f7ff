"""Plans `kopgate groups reset-offsets`: the current and the new offset of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from kafka import TopicPartition
from kafka.admin import OffsetSpec

from gateway.cli.groups.lag import leader_availability, offsets_at
from gateway.cli.kafka_client import AdminClient


class TargetKind(Enum):
    """The kind of target offset."""

    EARLIEST = auto()
    LATEST = auto()
    DATETIME = auto()
    OFFSET = auto()
    SHIFT = auto()


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """`number` is an offset, a difference, or ms since 1970, depending on `kind`."""

    kind: TargetKind
    number: int = 0


@dataclass(frozen=True, slots=True)
class ResetScope:
    """A topic and its partitions; all if none are given."""

    topic: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The change of one partition.

    `new` is None for a partition that does not exist; its commit is kept. `note` explains a
    deviation from the target.
    """

    partition: TopicPartition
    old: int | None
    new: int | None
    note: str | None = None

    @property
    def difference(self) -> int | None:
        return None if self.old is None or self.new is None else self.new - self.old


class CannotReset(Exception):
    """Nothing can be committed; `reasons` has one line per failing partition."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def plan_reset(
    client: AdminClient,
    target: ResetTarget,
    scopes: Sequence[ResetScope] | None,
    commits: Mapping[TopicPartition, int],
) -> list[OffsetChange]:
    """Return the changes of the group's offsets.

    `scopes` is None for all partitions with committed offsets. Raises CannotReset and KafkaError.
    """
    led = leader_availability(
        client,
        [scope.topic for scope in scopes]
        if scopes is not None
        else [part.topic for part in commits],
    )
    wanted = sorted(commits) if scopes is None else _expand_scopes(scopes, led)
    there = [part for part in wanted if part.partition in led.get(part.topic, {})]
    reasons = [
        f"{partition_name(part)}: the partition has no leader; try again later"
        for part in there
        if not led[part.topic][part.partition]
    ]
    if target.kind is TargetKind.SHIFT:
        reasons += [
            f"{partition_name(part)}: no committed offset to shift; "
            "use another target or leave it out"
            for part in there
            if part not in commits
        ]
    if reasons:
        raise CannotReset(reasons)
    first, end = (
        offsets_at(client, there, OffsetSpec.EARLIEST),
        offsets_at(client, there, OffsetSpec.LATEST),
    )
    dated = offsets_at(client, there, target.number) if target.kind is TargetKind.DATETIME else {}
    gone = [
        OffsetChange(part, commits[part], None, "the partition does not exist; its commit is kept")
        for part in wanted
        if part not in end
    ]
    changes = [
        OffsetChange(
            part,
            commits.get(part),
            *resolve_target(
                target, commits.get(part, 0), first[part], end[part], dated.get(part, -1)
            ),
        )
        for part in there
    ]
    return sorted([*changes, *gone], key=lambda change: change.partition)


def resolve_target(
    target: ResetTarget, old: int, first: int, end: int, dated: int
) -> tuple[int, str | None]:
    """Return the target offset in a partition from `first` to `end`, and a note or None.

    `dated` is the offset of the requested time, -1 if no record is that late.
    """
    match target.kind:
        case TargetKind.EARLIEST:
            return first, None
        case TargetKind.LATEST:
            return end, None
        case TargetKind.DATETIME:
            return (dated, None) if dated >= 0 else (end, "no record is that late; using the end")
        case TargetKind.OFFSET | TargetKind.SHIFT:
            asked = target.number if target.kind is TargetKind.OFFSET else old + target.number
    if asked < first:
        return first, f"{asked} is before the first offset"
    if asked > end:
        return end, f"{asked} is beyond the end"
    return asked, None


def partition_name(partition: TopicPartition) -> str:
    """Return the partition's name in Kafka's format."""
    return f"{partition.topic}-{partition.partition}"


def _expand_scopes(
    scopes: Iterable[ResetScope], led: Mapping[str, Mapping[int, bool]]
) -> list[TopicPartition]:
    reasons, chosen = [], set()
    for scope in scopes:
        there = led.get(scope.topic)
        if there is None:
            reasons.append(f"{scope.topic}: the topic does not exist")
            continue
        reasons += [
            f"{scope.topic}: partition {number} does not exist; the topic has 0 to {len(there) - 1}"
            for number in scope.partitions
            if number not in there
        ]
        chosen |= {TopicPartition(scope.topic, number) for number in scope.partitions or there}
    if reasons:
        raise CannotReset(reasons)
    return sorted(chosen)
