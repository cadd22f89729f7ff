"""The faults of a run and their times. All of it is derived from a seed, so that a run can be
repeated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

#: Before the first fault, and kept free for recovery at the end of the run.
CALM_SECONDS = 3.0
#: Between two faults: short enough that some occur during a recovery, long enough that others do
#: not.
GAP_SECONDS = (1.0, 6.0)
#: Includes outages of a gateway longer than a request timeout, and of a broker longer than a send
#: timeout.
DOWN_SECONDS = (0.2, 3.0)
#: Also of a cut. Includes ones longer than the session of a gateway in its cluster.
PAUSED_SECONDS = (0.5, 12.0)


class Target(Enum):
    GATEWAY = "gateway"
    BROKER = "broker"
    BOTH = "gateway and broker"
    LINK = "connection to Pulsar"


class Action(Enum):
    KILL = "killed"
    PAUSE = "paused"
    STOP = "restarted"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A fault of a server.

    `at` is the earliest time in seconds from the start; a fault also waits until all clients have
    recovered from the previous one. `duration` is in seconds, until the server is started again or
    resumed. `node` is the number of the gateway, 0 if there is only one.
    """

    at: float
    target: Target
    action: Action
    duration: float
    node: int = 0

    @property
    def event(self) -> str:
        """For example "gateway 2 killed"."""
        target = self.target.value
        if self.node and self.target is Target.LINK:
            target = f"gateway {self.node}'s {target}"
        elif self.node and self.target is not Target.BROKER:
            target = target.replace("gateway", f"gateway {self.node}")
        return f"{target} {self.action.value}"

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.event} for {self.duration:.1f} s"


RECOVERY_SECONDS = {
    Target.GATEWAY: 4.0,
    Target.BROKER: 15.0,
    Target.BOTH: 18.0,
    Target.LINK: 0.0,
}
"""Usual restart times, used only for planning: a gateway, a broker with its bookie, one after the
other.
"""

_OF_PROCESSES = (Action.KILL, Action.PAUSE, Action.STOP)
GATEWAY_ONLY = tuple((Target.GATEWAY, action) for action in _OF_PROCESSES)
WITH_BROKER = (
    *GATEWAY_ONLY,
    *((Target.BROKER, action) for action in _OF_PROCESSES),
    (Target.BOTH, Action.KILL),
)
#: Faults of gateways are twice as frequent: in a cluster others take over, and a broker's restart
#: takes most of a round.
IN_CLUSTER = (*WITH_BROKER, *GATEWAY_ONLY, *[(Target.LINK, Action.CUT)] * 2)
#: Actions that leave the process running.
_HOLDS = (Action.PAUSE, Action.CUT)


def plan_faults(
    seed: int,
    seconds: float,
    kinds: Sequence[tuple[Target, Action]],
    gateways: int = 1,
    rounds: int | None = None,
) -> list[ServerFault]:
    """As many faults as fit into `seconds`, but not more than `rounds`. Every kind occurs once
    before any is repeated, in a random order.
    """
    faults: list[ServerFault] = []
    for fault in islice(_faults(random.Random(seed), kinds, gateways), rounds):
        back = 0.0 if fault.action in _HOLDS else RECOVERY_SECONDS[fault.target]
        if fault.at + fault.duration + back + CALM_SECONDS > seconds:
            break
        faults.append(fault)
    return faults


def _faults(
    chance: random.Random, kinds: Sequence[tuple[Target, Action]], gateways: int
) -> Iterator[ServerFault]:
    at = CALM_SECONDS
    for target, action in _shuffled(chance, kinds):
        duration = chance.uniform(*(PAUSED_SECONDS if action in _HOLDS else DOWN_SECONDS))
        back = 0.0 if action in _HOLDS else RECOVERY_SECONDS[target]
        node = chance.randint(1, gateways) if gateways > 1 else 0
        yield ServerFault(round(at, 2), target, action, round(duration, 2), node)
        at += duration + back + chance.uniform(*GAP_SECONDS)


def _shuffled(
    chance: random.Random, kinds: Sequence[tuple[Target, Action]]
) -> Iterator[tuple[Target, Action]]:
    while True:
        yield from chance.sample(kinds, len(kinds))
