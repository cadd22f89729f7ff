"""States of a consumer group and its members, with allowed transitions (KIP-848).

Follows Kafka's ConsumerGroupState and MemberState. A member has an epoch and a target assignment;
the target has an epoch that follows the group's. Partitions move in two steps: the owner releases a
partition while in its old epoch, and only then is it assigned to another member.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum

#: Member epochs in a heartbeat with a special meaning: join, leave, and leave temporarily as a
#: static member. The last is also the stored epoch of an absent static member.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class MemberState(Enum):
    """The values are stored."""

    STABLE = 1
    """Has its whole target in the target's epoch, or has not received a newer target yet."""
    UNREVOKED = 2
    """Must release partitions and stays in its epoch until it has.

    The rebalance timeout is running.
    """
    UNRELEASED = 3
    """In the target's epoch, waiting for partitions that other members still own."""
    AWAY = 4
    """A static member that left temporarily. Keeps its partitions until its session ends."""


TRANSITIONS: Mapping[MemberState, Set[MemberState]] = {
    # state                 may become
    MemberState.STABLE: {MemberState.UNREVOKED, MemberState.UNRELEASED, MemberState.AWAY},
    MemberState.UNREVOKED: {MemberState.STABLE, MemberState.UNRELEASED, MemberState.AWAY},
    MemberState.UNRELEASED: {MemberState.STABLE, MemberState.UNREVOKED, MemberState.AWAY},
    # A returning static member is added as a new member that replaces this one.
    MemberState.AWAY: set(),
}


class ConsumerGroupState(Enum):
    """Derived from the epochs of the group and its members. The values are the names in replies."""

    EMPTY = "Empty"
    """No members."""
    ASSIGNING = "Assigning"
    """The target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """The target assignment is current, but some members have not reached it."""
    STABLE = "Stable"
    """All members have their target assignment."""
    DEAD = "Dead"
    """Deleted, or converted to a classic group."""
