"""What is done to the servers, and when: all of it follows from the seed, so that a run can be had again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

#: Nobody is struck before all are at work, nor so late that they could not come back before the end.
CALM_SECONDS = 3.0
#: Between two faults, so that the second falls now into a recovery that is nearly over and now into quiet work.
GAP_SECONDS = (1.0, 6.0)
#: A gateway that is away for longer than a request may take, a broker for longer than a message may: both are among them now and then.
DOWN_SECONDS = (0.2, 3.0)
PAUSED_SECONDS = (0.5, 12.0)


class Target(Enum):
    GATEWAY = "gateway"
    BROKER = "broker"
    BOTH = "gateway and broker"


class Action(Enum):
    KILL = "killed"
    PAUSE = "paused"
    STOP = "restarted"


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds from the beginning, at the earliest, for one waits until all clients have recovered from the one before.

    `duration`: seconds until it is started again, or let go on.
    """

    at: float
    target: Target
    action: Action
    duration: float

    def __str__(self) -> str:
        return (
            f"{self.at:6.1f} s  {self.target.value} {self.action.value} for {self.duration:.1f} s"
        )


RECOVERY_SECONDS = {Target.GATEWAY: 4.0, Target.BROKER: 15.0, Target.BOTH: 18.0}
"""What a process usually takes to serve again, for the plan alone: a gateway, a broker with its bookkeeper, one after the other."""

GATEWAY_ONLY = tuple((Target.GATEWAY, action) for action in Action)
WITH_BROKER = (
    *GATEWAY_ONLY,
    *((Target.BROKER, action) for action in Action),
    (Target.BOTH, Action.KILL),
)


def plan_faults(seed: int, seconds: float, kinds: Sequence[tuple[Target, Action]]) -> list[Fault]:
    """As many as there is time for. Every kind comes once before any comes again, in an order of its own each time."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    at = CALM_SECONDS
    for target, action in _shuffled(chance, kinds):
        duration = chance.uniform(*(PAUSED_SECONDS if action is Action.PAUSE else DOWN_SECONDS))
        back = 0.0 if action is Action.PAUSE else RECOVERY_SECONDS[target]
        if at + duration + back + CALM_SECONDS > seconds:
            return faults
        faults.append(Fault(round(at, 2), target, action, round(duration, 2)))
        at += duration + back + chance.uniform(*GAP_SECONDS)
    raise AssertionError("the kinds are dealt for ever")


def _shuffled(
    chance: random.Random, kinds: Sequence[tuple[Target, Action]]
) -> Iterator[tuple[Target, Action]]:
    while True:
        yield from chance.sample(kinds, len(kinds))
