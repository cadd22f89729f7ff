"""What clients observed in a run, and checks of it. Does no I/O."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Position = tuple[int, int]
"""Partition and offset."""

EXAMPLES = 3


class Observations:
    """The value that any client has seen at each position. `contradictions` lists positions with
    two values.
    """

    def __init__(self) -> None:
        self.values: dict[Position, str] = {}
        self.contradictions: list[str] = []
        self._lock = threading.Lock()

    def note(self, who: str, place: Position, value: str) -> None:
        with self._lock:
            before = self.values.setdefault(place, value)
            if before != value:
                self.contradictions.append(
                    f"{place[0]}:{place[1]} was {before!r}, but {who} read {value!r}"
                )


class Commits:
    """Committed offsets of a group, as acknowledged to members and as returned by the broker.

    `complaints` lists offsets that went back and lost commits. `read` has the records that members
    reported before they committed them, None if they report records afterwards.
    """

    def __init__(self, group: str, *, reports_reads: bool = False) -> None:
        self.group = group
        self.read: set[Position] | None = set() if reports_reads else None
        self.complaints: list[str] = []
        self.positions: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._lock = threading.Lock()

    def acknowledged(self, partition: int, offset: int) -> None:
        """Record that a commit was acknowledged to a member."""
        with self._lock:
            self._acknowledged[partition] = max(offset, self._acknowledged.get(partition, 0))

    def note_read(self, place: Position) -> None:
        if self.read is not None:
            self.read.add(place)

    def minimums(self) -> Mapping[int, int]:
        """The least offsets that an OffsetFetch sent from now on may return."""
        with self._lock:
            partitions = self._acknowledged.keys() | self.positions.keys()
            return {
                partition: max(
                    self._acknowledged.get(partition, 0), self.positions.get(partition, 0)
                )
                for partition in partitions
            }

    def check(self, answer: Mapping[int, int], promised: Mapping[int, int]) -> None:
        """Check the broker's reply to an OffsetFetch; `promised` are the `minimums` when it was
        sent.
        """
        with self._lock:
            for partition, least in promised.items():
                stands = answer.get(partition, 0)
                if stands < least:
                    self.complaints.append(
                        f"{self.group}, partition {partition}: "
                        f"committed offset went from {least} to {stands}"
                    )
            self.positions = dict(answer)


@dataclass(slots=True)
class ProducerRecords:
    """The acknowledged records of a producer. Its values are increasing numbers after `prefix`."""

    name: str
    prefix: str
    is_idempotent: bool
    stored: list[tuple[Position, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Log:
    """The whole log as read by an independent reader: values by position, and the log end offset of
    each partition.
    """

    values: Mapping[Position, str]
    ends: Mapping[int, int]
    hidden_copies: int = 0
    """Number of stored messages that are duplicates and hidden from readers."""
    allows_gaps: bool = False
    """Whether offsets without an acknowledged record may be missing. Pulsar skips offsets when it
    closes a ledger with pending writes.
    """
    batches: Mapping[Position, str] = field(default_factory=dict)
    """Producer and sequence of the batch of each record, if the reader knows them: a duplicate with
    another producer id was made by its client.
    """
    leaders: Mapping[Position, frozenset[int]] = field(default_factory=dict)
    """Node ids of the gateways that stored messages, by partition and leader epoch."""


def complaints(
    log: Log,
    producers: Iterable[ProducerRecords],
    sightings: Observations,
    commits: Iterable[Commits],
) -> list[str]:
    """All violations; empty for a good run."""
    found = [*_gaps(log), *sightings.contradictions[:EXAMPLES], *_changed(log, sightings)]
    found += _shared_epochs(log)
    for producer in producers:
        found += [
            *_lost(log, producer),
            *(_duplicated(log, producer) if producer.is_idempotent else ()),
        ]
    for group in commits:
        found += [*group.complaints[:EXAMPLES], *_skipped(log, group)]
    return found


def _gaps(log: Log) -> list[str]:
    found = []
    for partition, end in log.ends.items():
        offsets = {offset for where, offset in log.values if where == partition}
        if log.allows_gaps and offsets <= set(range(end)):
            continue
        if offsets != set(range(end)):
            odd = sorted(offsets ^ set(range(end)))
            found.append(
                f"partition {partition} should have the offsets 0 to {end - 1}: "
                f"{len(odd)} are missing or unexpected, {odd[:EXAMPLES]}"
            )
    return found


def _changed(log: Log, sightings: Observations) -> list[str]:
    """Offsets that were assigned twice: a client saw or was acknowledged a value that the log does
    not have there.
    """
    odd = [
        (place, value)
        for place, value in sorted(sightings.values.items())
        if log.values.get(place) != value
    ]
    return [
        f"{place[0]}:{place[1]} was read as {value!r} and is {log.values.get(place)!r}"
        for place, value in odd[:EXAMPLES]
    ]


def _shared_epochs(log: Log) -> list[str]:
    """Leader epochs in which several gateways, or unknown ones, stored messages."""
    odd = [
        f"partition {partition}: nodes {sorted(nodes)} stored messages in epoch {epoch}"
        for (partition, epoch), nodes in sorted(log.leaders.items())
        if len(nodes) != 1
    ]
    return odd[:EXAMPLES]


def _skipped(log: Log, group: Commits) -> list[str]:
    """Records below the committed offset that no member has read."""
    if group.read is None:
        return []
    ends = group.minimums()
    skipped = sorted(
        place for place in log.values.keys() - group.read if place[1] < ends.get(place[0], 0)
    )
    return (
        [f"{group.group}: {len(skipped)} committed and not read: {skipped[:EXAMPLES]}"]
        if skipped
        else []
    )


def _lost(log: Log, producer: ProducerRecords) -> list[str]:
    lost = [(place, value) for place, value in producer.stored if log.values.get(place) != value]
    if not lost:
        return []
    return [f"{producer.name}: {len(lost)} acknowledged and lost: {lost[:EXAMPLES]}"] + [
        f"{producer.name}: {log.values[place]!r} at {place[0]}:{place[1]}: {log.batches[place]}"
        for place, _ in lost[:EXAMPLES]
        if place in log.batches
    ]


def _duplicated(log: Log, producer: ProducerRecords) -> list[str]:
    """Duplicates and reordered records of an idempotent producer."""
    numbers: dict[int, list[int]] = {}
    places: dict[int, list[Position]] = {}
    for place, value in sorted(log.values.items()):
        prefix, _, number = value.rpartition(".")
        if prefix == producer.prefix:
            numbers.setdefault(place[0], []).append(int(number))
            places.setdefault(int(number), []).append(place)
    twice = sorted(number for number, where in places.items() if len(where) > 1)
    found = [f"{producer.name}: {len(twice)} duplicates: {twice[:EXAMPLES]}"] if twice else []
    found += [
        f"{producer.name}: {number} at {partition}:{offset}: {log.batches[partition, offset]}"
        for number in twice[:EXAMPLES]
        for partition, offset in places[number]
        if (partition, offset) in log.batches
    ]
    return found + [
        f"{producer.name}: reordered in partition {where}"
        for where, each in numbers.items()
        if each != sorted(each)
    ]
