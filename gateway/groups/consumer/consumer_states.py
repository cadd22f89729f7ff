"""The states of a consumer group (KIP-848) and of its members, and which may follow which (Kafka's ConsumerGroupState and MemberState).

A member has an epoch and a target; the target has an epoch of its own, which follows the group's. Partitions change hands in two steps: whoever has
one gives it back in the epoch that it is in, and only then is it given on.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum

#: What a member says to join, to leave, and as a static member to leave for a while; the last is also its epoch while it is away.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class MemberState(Enum):
    """The values are what is stored."""

    STABLE = 1
    """It has all that its target gives it, in the target's epoch, or has not yet been told of a newer one."""
    UNREVOKED = 2
    """It was told to give partitions back and has not said yet that it did: it stays in its epoch. Its rebalance timeout is running."""
    UNRELEASED = 3
    """It is in the target's epoch and waits for partitions that others still have."""
    AWAY = 4
    """A static member that said it will be back. It keeps its partitions until its session ends."""


TRANSITIONS: Mapping[MemberState, Set[MemberState]] = {
    # state                 may become
    MemberState.STABLE: {MemberState.UNREVOKED, MemberState.UNRELEASED, MemberState.AWAY},
    MemberState.UNREVOKED: {MemberState.STABLE, MemberState.UNRELEASED, MemberState.AWAY},
    MemberState.UNRELEASED: {MemberState.STABLE, MemberState.UNREVOKED, MemberState.AWAY},
    # Whoever comes back is a new member in the old one's place.
    MemberState.AWAY: set(),
}


class ConsumerGroupState(Enum):
    """What a group's epochs and members come to. The values are the words that clients are told."""

    EMPTY = "Empty"
    """No members."""
    ASSIGNING = "Assigning"
    """The target is older than the group."""
    RECONCILING = "Reconciling"
    """The target is as new as the group, and some members have not come to it."""
    STABLE = "Stable"
    """All members have what the target gives them."""
    DEAD = "Dead"
    """Deleted, or a classic group now."""
