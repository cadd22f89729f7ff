"""States of a classic group and the allowed transitions (Kafka's ClassicGroupState)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum


class GroupState(Enum):
    """The values are the names in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    """No members; there may be committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to rejoin."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation has started; waiting for the leader's assignments."""
    STABLE = "Stable"
    """The members have their assignments."""
    DEAD = "Dead"
    """Deleted, or replaced by a consumer group."""


TRANSITIONS: Mapping[GroupState, Set[GroupState]] = {
    # state                           may become
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {
        GroupState.COMPLETING_REBALANCE,
        GroupState.EMPTY,
        GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupState.STABLE,
        GroupState.PREPARING_REBALANCE,
        GroupState.DEAD,
    },
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.DEAD: set(),
}
