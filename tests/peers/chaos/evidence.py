"""What was said and seen in a run, and what is wrong with it. Nothing here asks anybody; it is told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Position = tuple[int, int]
"""Partition and offset."""

EXAMPLES = 3


class Observations:
    """What stood at which place whenever anybody looked. `contradictions` are the places that held two things."""

    def __init__(self) -> None:
        self.values: dict[Position, str] = {}
        self.contradictions: list[str] = []
        self._lock = threading.Lock()

    def note(self, who: str, place: Position, value: str) -> None:
        with self._lock:
            before = self.values.setdefault(place, value)
            if before != value:
                self.contradictions.append(
                    f"{place[0]}:{place[1]} was {before!r}, and to {who} it is {value!r}"
                )


class Commits:
    """Where a group stands, as its members were told and as the broker says. `complaints`: where it went back or forgot a commit."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.complaints: list[str] = []
        self.positions: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._lock = threading.Lock()

    def acknowledged(self, partition: int, offset: int) -> None:
        """A member was told that this commit is done."""
        with self._lock:
            self._acknowledged[partition] = max(offset, self._acknowledged.get(partition, 0))

    def minimums(self) -> Mapping[int, int]:
        """Whoever asks from now on must be answered with at least this."""
        with self._lock:
            partitions = self._acknowledged.keys() | self.positions.keys()
            return {
                partition: max(
                    self._acknowledged.get(partition, 0), self.positions.get(partition, 0)
                )
                for partition in partitions
            }

    def check(self, answer: Mapping[int, int], promised: Mapping[int, int]) -> None:
        """What the broker answered to somebody who asked when so much was promised."""
        with self._lock:
            for partition, least in promised.items():
                stands = answer.get(partition, 0)
                if stands < least:
                    self.complaints.append(
                        f"{self.group}, partition {partition}: stood at {least}, and then at {stands}"
                    )
            self.positions = dict(answer)


@dataclass(slots=True)
class ProducerRecords:
    """A producer's `stored` is what it was acknowledged is stored. Its values are numbers that rise, with `prefix` before them."""

    name: str
    prefix: str
    is_idempotent: bool
    stored: list[tuple[Position, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Log:
    """The whole log as an independent reader found it: values by place, and the end of each partition as the broker says."""

    values: Mapping[Position, str]
    ends: Mapping[int, int]
    hidden_copies: int = 0
    """How many messages of the medium were copies that readers must not see."""
    allows_gaps: bool = False
    """Offsets that nobody was told of may be those of no record: where Pulsar gives them out, it leaves out some when it closes a ledger with writes
    under way."""


def complaints(
    log: Log,
    producers: Iterable[ProducerRecords],
    sightings: Observations,
    commits: Iterable[Commits],
) -> list[str]:
    """Everything that breaks a promise; empty for a good run."""
    found = [*_gaps(log), *sightings.contradictions[:EXAMPLES], *_changed(log, sightings)]
    for producer in producers:
        found += [
            *_lost(log, producer),
            *(_duplicated(log, producer) if producer.is_idempotent else ()),
        ]
    return [*found, *(complaint for one in commits for complaint in one.complaints[:EXAMPLES])]


def _gaps(log: Log) -> list[str]:
    found = []
    for partition, end in log.ends.items():
        offsets = {offset for where, offset in log.values if where == partition}
        if log.allows_gaps and offsets <= set(range(end)):
            continue
        if offsets != set(range(end)):
            odd = sorted(offsets ^ set(range(end)))
            found.append(
                f"partition {partition} should have the offsets 0 to {end - 1}: {len(odd)} are not as they should be, {odd[:EXAMPLES]}"
            )
    return found


def _changed(log: Log, sightings: Observations) -> list[str]:
    """An offset was given out twice where what somebody saw in it, or heard of it, is not what is in it in the end."""
    odd = [
        (place, value)
        for place, value in sorted(sightings.values.items())
        if log.values.get(place) != value
    ]
    return [
        f"{place[0]}:{place[1]} was seen as {value!r} and is {log.values.get(place)!r}"
        for place, value in odd[:EXAMPLES]
    ]


def _lost(log: Log, producer: ProducerRecords) -> list[str]:
    lost = [(place, value) for place, value in producer.stored if log.values.get(place) != value]
    return (
        [f"{producer.name}: {len(lost)} acknowledged and not there: {lost[:EXAMPLES]}"]
        if lost
        else []
    )


def _duplicated(log: Log, producer: ProducerRecords) -> list[str]:
    """Of an idempotent producer each record is there once at most, and in the order in which it was sent."""
    numbers: dict[int, list[int]] = {}
    for (partition, _), value in sorted(log.values.items()):
        prefix, _, number = value.rpartition(".")
        if prefix == producer.prefix:
            numbers.setdefault(partition, []).append(int(number))
    times = Counter(number for each in numbers.values() for number in each)
    twice = sorted(number for number, count in times.items() if count > 1)
    found = (
        [f"{producer.name}: {len(twice)} there more than once: {twice[:EXAMPLES]}"] if twice else []
    )
    return found + [
        f"{producer.name}: not in its order in partition {where}"
        for where, each in numbers.items()
        if each != sorted(each)
    ]
