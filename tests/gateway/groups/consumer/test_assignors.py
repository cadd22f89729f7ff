"""Rules of the assignors: one subscribed owner per partition, even shares, no unnecessary moves."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform


def topic(number):
    return number.to_bytes(16, "big")


T1, T2, T3 = map(topic, (1, 2, 3))


def member(*topics, instance=None, **owned):
    """A subscriber; `owned` as keywords like T1=[0, 2]."""
    return Subscriber(
        instance,
        frozenset(topics),
        {globals()[name]: frozenset(indexes) for name, indexes in owned.items()},
    )


def plain(assigned):
    """Assignments as sorted lists, for readable failures."""
    return {
        member_id: {topic_id: sorted(indexes) for topic_id, indexes in rows.items()}
        for member_id, rows in assigned.items()
    }


def later(members, assigned, **changes):
    """The same group after an assignment; `changes` adds members, or removes them with None."""
    group = {
        member_id: Subscriber(one.instance_id, one.topics, assigned[member_id])
        for member_id, one in members.items()
    } | changes
    return {member_id: one for member_id, one in group.items() if one is not None}


def load(assigned):
    return {member_id: sum(map(len, rows.values())) for member_id, rows in assigned.items()}


def all_of(assigned):
    return [
        (topic_id, index, member_id)
        for member_id, rows in assigned.items()
        for topic_id, indexes in rows.items()
        for index in indexes
    ]


topic_ids = st.integers(1, 5).map(topic)
counts = st.dictionaries(topic_ids, st.integers(0, 12))
instances = st.none() | st.sampled_from("abcdef")
owned = st.dictionaries(topic_ids, st.frozensets(st.integers(-1, 14), max_size=8), max_size=3)
member_ids = st.text("mnop", min_size=1, max_size=3)
subscribers = st.builds(Subscriber, instances, st.frozensets(topic_ids, max_size=4), owned)
mixed_groups = st.dictionaries(member_ids, subscribers, max_size=7)
uniform_groups = st.frozensets(topic_ids, min_size=1).flatmap(
    lambda topics: st.dictionaries(
        member_ids, st.builds(Subscriber, instances, st.just(topics), owned), min_size=1, max_size=7
    )
)
groups = mixed_groups | uniform_groups
assignors = pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)


@assignors
@given(members=groups, partitions=counts)
def test_each_subscribed_partition_has_one_subscribed_owner(assign, members, partitions):
    assigned = assign(members, partitions)
    wanted = {topic_id for one in members.values() for topic_id in one.topics}
    existing = sorted(
        (topic_id, index) for topic_id in wanted for index in range(partitions.get(topic_id, 0))
    )
    assert sorted((topic_id, index) for topic_id, index, _ in all_of(assigned)) == existing
    assert all(topic_id in members[member_id].topics for topic_id, _, member_id in all_of(assigned))


@assignors
@given(members=groups, partitions=counts)
def test_assignment_lists_each_member_without_empty_topics(assign, members, partitions):
    assigned = assign(members, partitions)
    assert assigned.keys() == members.keys()
    assert all(indexes for rows in assigned.values() for indexes in rows.values())


@assignors
@given(members=groups, partitions=counts)
def test_assignment_does_not_depend_on_member_order(assign, members, partitions):
    assert assign(dict(reversed(members.items())), partitions) == assign(members, partitions)


@assignors
@given(members=groups, partitions=counts)
def test_unchanged_group_keeps_its_assignment(assign, members, partitions):
    assigned = assign(members, partitions)
    assert assign(later(members, assigned), partitions) == assigned


# ---- range


def test_range_matches_kafka_documentation():
    # RangeAssignor: two members, two topics with three partitions.
    assigned = assign_range({"M0": member(T1, T2), "M1": member(T1, T2)}, {T1: 3, T2: 3})
    assert plain(assigned) == {"M0": {T1: [0, 1], T2: [0, 1]}, "M1": {T1: [2], T2: [2]}}


def test_range_of_static_members_survives_new_member_ids():
    before = assign_range(
        {"M0": member(T1, instance="I0"), "M1": member(T1, instance="I1")}, {T1: 3}
    )
    after = assign_range(
        {"M3": member(T1, instance="I0"), "M2": member(T1, instance="I1")}, {T1: 3}
    )
    assert (after["M3"], after["M2"]) == (before["M0"], before["M1"])


def test_range_assigns_static_members_first():
    assigned = assign_range({"A": member(T1), "Z": member(T1, instance="z")}, {T1: 3})
    assert plain(assigned) == {"Z": {T1: [0, 1]}, "A": {T1: [2]}}


def test_range_divides_topic_among_its_subscribers():
    assigned = assign_range(
        {"A": member(T1, T2), "B": member(T1, T2, T3), "C": member(T2, T3)}, {T1: 3, T2: 3, T3: 2}
    )
    assert plain(assigned) == {
        "A": {T1: [0, 1], T2: [0]},
        "B": {T1: [2], T2: [1], T3: [0]},
        "C": {T2: [2], T3: [1]},
    }


def test_range_with_more_members_than_partitions_skips_the_last():
    assert plain(assign_range({"A": member(T1), "B": member(T1), "C": member(T1)}, {T1: 2})) == {
        "A": {T1: [0]},
        "B": {T1: [1]},
        "C": {},
    }


@given(members=groups, partitions=counts)
def test_range_is_consecutive_and_even(members, partitions):
    assigned = assign_range(members, partitions)
    for topic_id in {topic_id for topic_id, _, _ in all_of(assigned)}:
        shares = [
            sorted(assigned[member_id].get(topic_id, ()))
            for member_id, one in members.items()
            if topic_id in one.topics
        ]
        assert all(after == before + 1 for share in shares for before, after in pairwise(share))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(members=uniform_groups, count=st.integers(1, 12))
def test_range_co_partitions_topics_of_equal_size(members, count):
    topics = next(iter(members.values())).topics
    for rows in assign_range(members, dict.fromkeys(topics, count)).values():
        assert rows.keys() in (set(), topics)
        assert len(set(rows.values())) <= 1


# ---- uniform


def test_uniform_spreads_partitions_of_a_topic():
    assigned = assign_uniform({"A": member(T1, T2), "B": member(T1, T2)}, {T1: 3, T2: 2})
    assert plain(assigned) == {"A": {T1: [0, 2], T2: [1]}, "B": {T1: [1], T2: [0]}}


def test_uniform_new_member_receives_and_others_only_lose():
    before = {"A": member(T1, T1=[0, 1, 2]), "B": member(T1, T1=[3, 4, 5])}
    assert plain(assign_uniform(before | {"C": member(T1)}, {T1: 6})) == {
        "A": {T1: [0, 1]},
        "B": {T1: [3, 4]},
        "C": {T1: [2, 5]},
    }


def test_uniform_moves_only_partitions_of_removed_member():
    group = {"A": member(T1, T1=[0, 1]), "C": member(T1, T1=[4])}
    assert plain(assign_uniform(group, {T1: 5})) == {"A": {T1: [0, 1, 3]}, "C": {T1: [2, 4]}}


def test_uniform_member_with_one_more_keeps_it():
    group = {"A": member(T1, T1=[0]), "B": member(T1, T1=[1, 2])}
    assert plain(assign_uniform(group, {T1: 3})) == {"A": {T1: [0]}, "B": {T1: [1, 2]}}


def test_uniform_assigns_new_partitions_to_least_loaded():
    group = {"A": member(T1, T1=[0, 1]), "B": member(T1, T1=[2])}
    assert plain(assign_uniform(group, {T1: 4})) == {"A": {T1: [0, 1]}, "B": {T1: [2, 3]}}


def test_uniform_balances_overlapping_subscriptions():
    assigned = assign_uniform({"A": member(T1, T2), "B": member(T1)}, {T1: 2, T2: 2})
    assert plain(assigned) == {"A": {T2: [0, 1]}, "B": {T1: [0, 1]}}


def test_partition_owned_by_two_members_goes_to_the_first():
    assert plain(
        assign_uniform({"A": member(T1, T1=[0, 1]), "B": member(T1, T1=[1])}, {T1: 3})
    ) == {"A": {T1: [0, 1]}, "B": {T1: [2]}}


def test_deleted_and_unsubscribed_partitions_are_released():
    group = {"A": member(T1, T1=[0, 7, -1], T2=[0], T3=[5])}
    assert plain(assign_uniform(group, {T1: 1, T2: 1})) == {"A": {T1: [0]}}


@given(members=uniform_groups, partitions=counts)
def test_uniform_counts_differ_by_at_most_one_with_equal_subscriptions(members, partitions):
    shares = load(assign_uniform(members, partitions)).values()
    assert max(shares) - min(shares) <= 1


@given(
    members=uniform_groups, partitions=counts, newcomers=st.integers(0, 3), gone=st.integers(0, 3)
)
def test_uniform_moves_minimum_with_equal_subscriptions(members, partitions, newcomers, gone):
    topics = next(iter(members.values())).topics
    left = dict.fromkeys(list(members)[: min(gone, len(members) - 1)])
    joined = {f"new{number}": Subscriber(None, topics, {}) for number in range(newcomers)}
    group = later(members, assign_uniform(members, partitions), **left, **joined)
    had = {
        member_id: {(topic_id, index) for topic_id, index, owner in all_of({member_id: one.owned})}
        for member_id, one in group.items()
    }
    has = assign_uniform(group, partitions)
    kept = sum((topic_id, index) in had[member_id] for topic_id, index, member_id in all_of(has))
    # Calculated independently: each member keeps up to the smaller share, and one more as often as
    # there are larger shares.
    least, larger = divmod(sum(partitions.get(topic_id, 0) for topic_id in topics), len(group))
    assert kept == sum(min(len(rows), least) for rows in had.values()) + min(
        larger, sum(len(rows) > least for rows in had.values())
    )


@given(members=mixed_groups, partitions=counts)
def test_uniform_has_no_difference_of_two_among_subscribers(members, partitions):
    assigned = assign_uniform(members, partitions)
    shares = load(assigned)
    for topic_id, _, owner in all_of(assigned):
        assert all(
            shares[owner] - shares[other] <= 1
            for other, one in members.items()
            if topic_id in one.topics
        )


# ---- both


def test_uniform_is_the_default_assignor():
    assert list(ASSIGNORS) == ["uniform", "range"]


@assignors
@pytest.mark.parametrize("topics", [1, 1000])
def test_thousand_members_are_assigned_quickly(assign, topics):
    partitions = {topic(number): 1000 // topics for number in range(topics)}
    members = {f"m{number}": Subscriber(None, frozenset(partitions), {}) for number in range(1000)}
    began = time.process_time()
    assigned = assign(members, partitions)
    assert time.process_time() - began < 1.0
    assert len(all_of(assigned)) == 1000
