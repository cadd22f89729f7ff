"""The states of a group, and which may follow which (Kafka's ClassicGroupState)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum


class GroupState(Enum):
    """The values are the words that clients are told."""

    EMPTY = "Empty"
    """No members; there may be committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are expected to join again."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All have joined a new generation, and the leader is expected to bring the assignment."""
    STABLE = "Stable"
    """The members know their assignments."""
    DEAD = "Dead"
    """Deleted. A group of this name is another one."""


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
