"""What is done to the servers, and when: all of it follows from the seed, so that a run can be had again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

#: Nobody is struck before all are at work, nor so late that they could not come back before the end.
CALM_SECONDS = 3.0
#: Between two faults, so that the second falls now into a recovery that is nearly over and now into quiet work.
PAUSE_SECONDS = (1.0, 6.0)
#: A gateway that is away for longer than a request may take, a broker for longer than a message may: both are among them now and then.
DOWN_SECONDS = (0.2, 3.0)
HELD_SECONDS = (0.5, 12.0)


class Target(Enum):
    GATEWAY = "gateway"
    BROKER = "broker"
    BOTH = "gateway and broker"


class Blow(Enum):
    KILL = "killed"
    PAUSE = "paused"
    STOP = "restarted"


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds from the beginning, at the earliest, for one waits until all clients have recovered from the one before.

    `lasts`: seconds until it is started again, or let go on.
    """

    at: float
    target: Target
    blow: Blow
    lasts: float

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.target.value} {self.blow.value} for {self.lasts:.1f} s"


BACK_SECONDS = {Target.GATEWAY: 4.0, Target.BROKER: 15.0, Target.BOTH: 18.0}
"""What a process usually takes to serve again, for the plan alone: a gateway, a broker with its bookkeeper, one after the other."""

GATEWAY_ONLY = tuple((Target.GATEWAY, blow) for blow in Blow)
WITH_BROKER = (*GATEWAY_ONLY, *((Target.BROKER, blow) for blow in Blow), (Target.BOTH, Blow.KILL))


def planned(seed: int, seconds: float, kinds: Sequence[tuple[Target, Blow]]) -> list[Fault]:
    """As many as there is time for. Every kind comes once before any comes again, in an order of its own each time."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    at = CALM_SECONDS
    for target, blow in _dealt(chance, kinds):
        lasts = chance.uniform(*(HELD_SECONDS if blow is Blow.PAUSE else DOWN_SECONDS))
        back = 0.0 if blow is Blow.PAUSE else BACK_SECONDS[target]
        if at + lasts + back + CALM_SECONDS > seconds:
            return faults
        faults.append(Fault(round(at, 2), target, blow, round(lasts, 2)))
        at += lasts + back + chance.uniform(*PAUSE_SECONDS)
    raise AssertionError("the kinds are dealt for ever")


def _dealt(
    chance: random.Random, kinds: Sequence[tuple[Target, Blow]]
) -> Iterator[tuple[Target, Blow]]:
    while True:
        yield from chance.sample(kinds, len(kinds))
