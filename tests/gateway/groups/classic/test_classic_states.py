"""State transitions of a classic group."""

from __future__ import annotations

import pytest

from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_states import TRANSITIONS, GroupState
from gateway.settings.model import Settings


def test_every_state_has_transitions():
    assert set(TRANSITIONS) == set(GroupState)


@pytest.mark.parametrize("state", GroupState)
def test_dead_is_reachable_from_all_states_and_final(state):
    assert (GroupState.DEAD in TRANSITIONS[state]) == (state is not GroupState.DEAD)
    assert not TRANSITIONS[GroupState.DEAD]


def test_invalid_transition_raises():
    group = ClassicGroup("g", Settings(), 0)
    with pytest.raises(RuntimeError, match="Empty cannot move to Stable"):
        group._transition(GroupState.STABLE, 0)
