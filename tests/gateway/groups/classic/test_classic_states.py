"""What may follow what."""

from __future__ import annotations

import pytest

from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_states import TRANSITIONS, GroupState
from gateway.settings.model import Settings


def test_every_state_has_its_moves():
    assert set(TRANSITIONS) == set(GroupState)


@pytest.mark.parametrize("state", GroupState)
def test_a_group_is_deleted_from_anywhere_and_never_comes_back(state):
    assert (GroupState.DEAD in TRANSITIONS[state]) == (state is not GroupState.DEAD)
    assert not TRANSITIONS[GroupState.DEAD]


def test_an_impossible_move_raises():
    group = ClassicGroup("g", Settings(), 0)
    with pytest.raises(RuntimeError, match="Empty cannot move to Stable"):
        group._transition(GroupState.STABLE, 0)
