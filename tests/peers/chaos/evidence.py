"""What was said and seen in a run, and what is wrong with it. Nothing here asks anybody; it is told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Place = tuple[int, int]
"""Partition and offset."""

EXAMPLES = 3


class Sightings:
    """What stood at which place whenever anybody looked. `contradictions` are the places that held two things."""

    def __init__(self) -> None:
        self.values: dict[Place, str] = {}
        self.contradictions: list[str] = []
        self._lock = threading.Lock()

    def note(self, who: str, place: Place, value: str) -> None:
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
        self.stands: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._lock = threading.Lock()

    def told(self, partition: int, offset: int) -> None:
        """A member was told that this commit is done."""
        with self._lock:
            self._told[partition] = max(offset, self._told.get(partition, 0))

    def promised(self) -> Mapping[int, int]:
        """Whoever asks from now on must be answered with at least this."""
        with self._lock:
            partitions = self._told.keys() | self.stands.keys()
            return {
                partition: max(self._told.get(partition, 0), self.stands.get(partition, 0))
                for partition in partitions
            }

    def seen(self, answer: Mapping[int, int], promised: Mapping[int, int]) -> None:
        """What the broker answered to somebody who asked when so much was promised."""
        with self._lock:
            for partition, least in promised.items():
                stands = answer.get(partition, 0)
                if stands < least:
                    self.complaints.append(
                        f"{self.group}, partition {partition}: stood at {least}, and then at {stands}"
                    )
            self.stands = dict(answer)


@dataclass(slots=True)
class Sent:
    """A producer's `stored` is what it was told is stored. Its values are numbers that rise, with `prefix` before them."""

    name: str
    prefix: str
    is_idempotent: bool
    stored: list[tuple[Place, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Log:
    """The whole log as an independent reader found it: values by place, and the end of each partition as the broker says."""

    values: Mapping[Place, str]
    ends: Mapping[int, int]
    repeated: int = 0
    """How many messages of the medium were copies that readers must not see."""
    may_leave_out: bool = False
    """Offsets that nobody was told of may be those of no record: where Pulsar gives them out, it leaves out some when it closes a ledger with writes
    under way."""


def complaints(
    log: Log, producers: Iterable[Sent], sightings: Sightings, commits: Iterable[Commits]
) -> list[str]:
    """Everything that breaks a promise; empty for a good run."""
    found = [*_gaps(log), *sightings.contradictions[:EXAMPLES], *_moved(log, sightings)]
    for producer in producers:
        found += [
            *_lost(log, producer),
            *(_doubled(log, producer) if producer.is_idempotent else ()),
        ]
    return [*found, *(complaint for one in commits for complaint in one.complaints[:EXAMPLES])]


def _gaps(log: Log) -> list[str]:
    found = []
    for partition, end in log.ends.items():
        offsets = {offset for where, offset in log.values if where == partition}
        if log.may_leave_out and offsets <= set(range(end)):
            continue
        if offsets != set(range(end)):
            odd = sorted(offsets ^ set(range(end)))
            found.append(
                f"partition {partition} should have the offsets 0 to {end - 1}: {len(odd)} are not as they should be, {odd[:EXAMPLES]}"
            )
    return found


def _moved(log: Log, sightings: Sightings) -> list[str]:
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


def _lost(log: Log, producer: Sent) -> list[str]:
    lost = [(place, value) for place, value in producer.stored if log.values.get(place) != value]
    return (
        [f"{producer.name}: {len(lost)} acknowledged and not there: {lost[:EXAMPLES]}"]
        if lost
        else []
    )


def _doubled(log: Log, producer: Sent) -> list[str]:
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
