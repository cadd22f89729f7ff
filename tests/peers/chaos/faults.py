"""The faults of a run and their times. All of it is derived from a seed, so that a run can be
repeated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

#: Before the first fault, and kept free for recovery at the end of the run.
CALM_SECONDS = 3.0
#: Between two faults: short enough that some occur during a recovery, long enough that others do
#: not.
GAP_SECONDS = (1.0, 6.0)
#: Includes outages of a gateway longer than a request timeout, and of a broker longer than a send
#: timeout.
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
class ServerFault:
    """A fault of a server.

    `at` is the earliest time in seconds from the start; a fault also waits until all clients have
    recovered from the previous one. `duration` is in seconds, until the server is started again or
    resumed.
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
"""Usual restart times, used only for planning: a gateway, a broker with its bookie, one after the
other.
"""

GATEWAY_ONLY = tuple((Target.GATEWAY, action) for action in Action)
WITH_BROKER = (
    *GATEWAY_ONLY,
    *((Target.BROKER, action) for action in Action),
    (Target.BOTH, Action.KILL),
)


def plan_faults(
    seed: int, seconds: float, kinds: Sequence[tuple[Target, Action]]
) -> list[ServerFault]:
    """As many faults as fit. Every kind occurs once before any is repeated, in a random order."""
    chance = random.Random(seed)
    faults: list[ServerFault] = []
    at = CALM_SECONDS
    for target, action in _shuffled(chance, kinds):
        duration = chance.uniform(*(PAUSED_SECONDS if action is Action.PAUSE else DOWN_SECONDS))
        back = 0.0 if action is Action.PAUSE else RECOVERY_SECONDS[target]
        if at + duration + back + CALM_SECONDS > seconds:
            return faults
        faults.append(ServerFault(round(at, 2), target, action, round(duration, 2)))
        at += duration + back + chance.uniform(*GAP_SECONDS)
    raise AssertionError("the kinds are dealt for ever")


def _shuffled(
    chance: random.Random, kinds: Sequence[tuple[Target, Action]]
) -> Iterator[tuple[Target, Action]]:
    while True:
        yield from chance.sample(kinds, len(kinds))
