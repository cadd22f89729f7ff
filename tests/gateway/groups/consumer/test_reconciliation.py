"""Reconciliation steps of a member (KIP-848), state by state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.groups.consumer.consumer_member import TRANSITIONS, ConsumerGroupMember, MemberState
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


def test_reconciled_member_is_unchanged():
    one = member(assigned=held(5, 0), target=of(0))
    assert step(one, goal=5) is one


def test_revocation_precedes_assignment_in_old_epoch():
    after = step(member(assigned=held(5, 0, 1), target=of(1, 2)))
    assert (after.state, after.epoch) == (MemberState.UNREVOKED, 5)
    assert (after.assigned, after.revoking) == (held(5, 1), held(5, 0))


def test_member_that_released_receives_rest_at_once():
    after = step(member(assigned=held(5, 0, 1), target=of(1, 2)), owned=of(1))
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.STABLE, 6, 5)
    assert (after.assigned, after.revoking) == ({A: {1: 5, 2: 6}}, {})


@pytest.mark.parametrize("owned", [None, of(0, 1), of(0)])
def test_member_that_still_owns_revoked_partitions_waits(owned):
    one = member(
        state=MemberState.UNREVOKED, assigned=held(5, 1), revoking=held(5, 0), target=of(1)
    )
    assert step(one, owned) is one


def test_member_that_released_moves_to_target_epoch():
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


def test_member_waits_for_owned_partitions_in_target_epoch():
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


def test_unsubscribed_topic_is_revoked_before_new_target():
    one = member(assigned=held(5, 0) | {B: {0: 5}}, target=of(0) | {B: frozenset({0})})
    after = step(one, goal=5, topics=frozenset({A}), subscription_changed=True)
    assert (after.state, after.epoch, after.assigned, after.revoking) == (
        MemberState.UNREVOKED,
        5,
        held(5, 0),
        {B: {0: 5}},
    )


def test_revocations_accumulate():
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


def test_target_of_unsubscribed_topic_is_ignored():
    after = step(member(target=of(0)), topics=frozenset({B}))
    assert (after.state, after.epoch, after.assigned) == (MemberState.STABLE, 6, {})


def test_absent_static_member_is_unchanged():
    one = replace(member(assigned=held(0, 0)), state=MemberState.AWAY)
    with pytest.raises(RuntimeError):
        transition(one, MemberState.STABLE, 6, {}, {})


def test_every_state_has_transitions():
    assert set(TRANSITIONS) == set(MemberState)
