"""One step of a member towards its target (KIP-848), state by state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.groups.consumer.consumer_member import ConsumerGroupMember
from gateway.groups.consumer.consumer_states import TRANSITIONS, MemberState
from gateway.groups.consumer.reconciliation import reconcile, transition
from tests.fakes.topology import id_of

A, B = id_of("a"), id_of("b")
BOTH = frozenset({A, B})


def member(**fields):
    values = {"state": MemberState.STABLE, "epoch": 5, "previous_epoch": 4, **fields}
    return ConsumerGroupMember(1, "m", rebalance_timeout_ms=60_000, **values)


def held(epoch, *indexes):
    return {A: dict.fromkeys(indexes, epoch)} if indexes else {}


def of(*indexes):
    return {A: frozenset(indexes)} if indexes else {}


def step(one, owned=None, *, goal=6, topics=BOTH, taken=(), subscription_changed=False):
    return reconcile(
        one,
        goal,
        topics,
        owned,
        lambda _, index: index not in taken,
        subscription_changed=subscription_changed,
    )


def test_who_has_arrived_stays_as_it_is():
    one = member(assigned=held(5, 0), target=of(0))
    assert step(one, goal=5) is one


def test_what_is_to_be_given_back_comes_first_and_in_the_old_epoch():
    after = step(member(assigned=held(5, 0, 1), target=of(1, 2)))
    assert (after.state, after.epoch) == (MemberState.UNREVOKED, 5)
    assert (after.assigned, after.revoking) == (held(5, 1), held(5, 0))


def test_who_has_given_back_already_is_given_the_rest_at_once():
    after = step(member(assigned=held(5, 0, 1), target=of(1, 2)), owned=of(1))
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.STABLE, 6, 5)
    assert (after.assigned, after.revoking) == ({A: {1: 5, 2: 6}}, {})


@pytest.mark.parametrize("owned", [None, of(0, 1), of(0)])
def test_who_still_has_what_it_shall_give_back_waits(owned):
    one = member(
        state=MemberState.UNREVOKED, assigned=held(5, 1), revoking=held(5, 0), target=of(1)
    )
    assert step(one, owned) is one


def test_who_has_given_back_comes_to_the_targets_epoch():
    one = member(
        state=MemberState.UNREVOKED, assigned=held(5, 1), revoking=held(5, 0), target=of(1)
    )
    after = step(one, of(1))
    assert (after.state, after.epoch, after.assigned, after.revoking) == (
        MemberState.STABLE,
        6,
        held(5, 1),
        {},
    )


def test_what_others_still_have_is_waited_for_in_the_targets_epoch():
    after = step(member(assigned=held(5, 0), target=of(0, 1, 2)), taken={2})
    assert (after.state, after.epoch, after.assigned) == (
        MemberState.UNRELEASED,
        6,
        {A: {0: 5, 1: 6}},
    )
    after = step(after, taken={2})
    assert after.state is MemberState.UNRELEASED
    after = step(after)
    assert (after.state, after.assigned) == (MemberState.STABLE, {A: {0: 5, 1: 6, 2: 6}})


def test_a_topic_that_is_not_read_any_more_is_given_back_before_there_is_a_target():
    one = member(assigned=held(5, 0) | {B: {0: 5}}, target=of(0) | {B: frozenset({0})})
    after = step(one, goal=5, topics=frozenset({A}), subscription_changed=True)
    assert (after.state, after.epoch, after.assigned, after.revoking) == (
        MemberState.UNREVOKED,
        5,
        held(5, 0),
        {B: {0: 5}},
    )


def test_more_is_given_back_while_some_still_is():
    one = member(
        state=MemberState.UNREVOKED,
        assigned={B: {0: 5}},
        revoking=held(5, 0),
        target={B: frozenset({0})},
    )
    after = step(one, of(0), topics=frozenset({A}), subscription_changed=True)
    assert (after.state, after.assigned, after.revoking) == (
        MemberState.UNREVOKED,
        {},
        held(5, 0) | {B: {0: 5}},
    )


def test_a_new_target_of_a_topic_that_is_not_read_is_no_target():
    after = step(member(target=of(0)), topics=frozenset({B}))
    assert (after.state, after.epoch, after.assigned) == (MemberState.STABLE, 6, {})


def test_who_is_away_takes_no_step():
    one = replace(member(assigned=held(0, 0)), state=MemberState.AWAY)
    with pytest.raises(RuntimeError):
        transition(one, MemberState.STABLE, 6, {}, {})


def test_every_state_has_its_row():
    assert set(TRANSITIONS) == set(MemberState)
