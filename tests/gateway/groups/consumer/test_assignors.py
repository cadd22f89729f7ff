"""What an assignor promises, whatever the group: every partition has one owner, who subscribes to it; shares are even; nothing moves without need."""

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
    """`owned`: T1=[0, 2] and so on."""
    return Subscriber(
        instance,
        frozenset(topics),
        {globals()[name]: frozenset(indexes) for name, indexes in owned.items()},
    )


def plain(assigned):
    """Without the sets, which print badly."""
    return {
        member_id: {topic_id: sorted(indexes) for topic_id, indexes in rows.items()}
        for member_id, rows in assigned.items()
    }


def later(members, assigned, **changes):
    """The same group with what it was assigned; `changes` join it, or leave it where None."""
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
def test_each_partition_that_somebody_subscribes_to_has_one_owner_who_subscribes_to_it(
    assign, members, partitions
):
    assigned = assign(members, partitions)
    wanted = {topic_id for one in members.values() for topic_id in one.topics}
    existing = sorted(
        (topic_id, index) for topic_id in wanted for index in range(partitions.get(topic_id, 0))
    )
    assert sorted((topic_id, index) for topic_id, index, _ in all_of(assigned)) == existing
    assert all(topic_id in members[member_id].topics for topic_id, _, member_id in all_of(assigned))


@assignors
@given(members=groups, partitions=counts)
def test_each_member_has_a_row_without_empty_topics(assign, members, partitions):
    assigned = assign(members, partitions)
    assert assigned.keys() == members.keys()
    assert all(indexes for rows in assigned.values() for indexes in rows.values())


@assignors
@given(members=groups, partitions=counts)
def test_the_order_in_which_members_are_listed_does_not_matter(assign, members, partitions):
    assert assign(dict(reversed(members.items())), partitions) == assign(members, partitions)


@assignors
@given(members=groups, partitions=counts)
def test_a_group_in_which_nothing_changes_is_assigned_the_same(assign, members, partitions):
    assigned = assign(members, partitions)
    assert assign(later(members, assigned), partitions) == assigned


# ---- range


def test_a_range_is_what_kafka_documents():
    # RangeAssignor: two members, two topics of three partitions.
    assigned = assign_range({"M0": member(T1, T2), "M1": member(T1, T2)}, {T1: 3, T2: 3})
    assert plain(assigned) == {"M0": {T1: [0, 1], T2: [0, 1]}, "M1": {T1: [2], T2: [2]}}


def test_static_members_keep_their_ranges_under_new_member_ids():
    before = assign_range(
        {"M0": member(T1, instance="I0"), "M1": member(T1, instance="I1")}, {T1: 3}
    )
    after = assign_range(
        {"M3": member(T1, instance="I0"), "M2": member(T1, instance="I1")}, {T1: 3}
    )
    assert (after["M3"], after["M2"]) == (before["M0"], before["M1"])


def test_static_members_come_before_others():
    assigned = assign_range({"A": member(T1), "Z": member(T1, instance="z")}, {T1: 3})
    assert plain(assigned) == {"Z": {T1: [0, 1]}, "A": {T1: [2]}}


def test_those_who_subscribe_to_a_topic_share_it_whatever_else_they_read():
    assigned = assign_range(
        {"A": member(T1, T2), "B": member(T1, T2, T3), "C": member(T2, T3)}, {T1: 3, T2: 3, T3: 2}
    )
    assert plain(assigned) == {
        "A": {T1: [0, 1], T2: [0]},
        "B": {T1: [2], T2: [1], T3: [0]},
        "C": {T2: [2], T3: [1]},
    }


def test_more_members_than_partitions_leave_the_last_ones_without():
    assert plain(assign_range({"A": member(T1), "B": member(T1), "C": member(T1)}, {T1: 2})) == {
        "A": {T1: [0]},
        "B": {T1: [1]},
        "C": {},
    }


@given(members=groups, partitions=counts)
def test_a_range_is_consecutive_and_shares_of_a_topic_are_even(members, partitions):
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
def test_topics_of_one_size_are_co_partitioned(members, count):
    topics = next(iter(members.values())).topics
    for rows in assign_range(members, dict.fromkeys(topics, count)).values():
        assert rows.keys() in (set(), topics)
        assert len(set(rows.values())) <= 1


# ---- uniform


def test_partitions_of_a_topic_are_spread_over_its_subscribers():
    assigned = assign_uniform({"A": member(T1, T2), "B": member(T1, T2)}, {T1: 3, T2: 2})
    assert plain(assigned) == {"A": {T1: [0, 2], T2: [1]}, "B": {T1: [1], T2: [0]}}


def test_who_comes_takes_a_share_and_everybody_else_only_gives():
    before = {"A": member(T1, T1=[0, 1, 2]), "B": member(T1, T1=[3, 4, 5])}
    assert plain(assign_uniform(before | {"C": member(T1)}, {T1: 6})) == {
        "A": {T1: [0, 1]},
        "B": {T1: [3, 4]},
        "C": {T1: [2, 5]},
    }


def test_what_somebody_leaves_behind_is_all_that_moves():
    group = {"A": member(T1, T1=[0, 1]), "C": member(T1, T1=[4])}
    assert plain(assign_uniform(group, {T1: 5})) == {"A": {T1: [0, 1, 3]}, "C": {T1: [2, 4]}}


def test_who_has_one_more_than_others_keeps_it():
    group = {"A": member(T1, T1=[0]), "B": member(T1, T1=[1, 2])}
    assert plain(assign_uniform(group, {T1: 3})) == {"A": {T1: [0]}, "B": {T1: [1, 2]}}


def test_new_partitions_go_to_those_who_have_least():
    group = {"A": member(T1, T1=[0, 1]), "B": member(T1, T1=[2])}
    assert plain(assign_uniform(group, {T1: 4})) == {"A": {T1: [0, 1]}, "B": {T1: [2, 3]}}


def test_those_with_a_choice_leave_a_topic_to_those_without():
    assigned = assign_uniform({"A": member(T1, T2), "B": member(T1)}, {T1: 2, T2: 2})
    assert plain(assigned) == {"A": {T2: [0, 1]}, "B": {T1: [0, 1]}}


def test_a_partition_that_two_claim_is_the_first_one_s():
    assert plain(
        assign_uniform({"A": member(T1, T1=[0, 1]), "B": member(T1, T1=[1])}, {T1: 3})
    ) == {"A": {T1: [0, 1]}, "B": {T1: [2]}}


def test_what_is_no_longer_there_or_not_subscribed_to_is_given_up():
    group = {"A": member(T1, T1=[0, 7, -1], T2=[0], T3=[5])}
    assert plain(assign_uniform(group, {T1: 1, T2: 1})) == {"A": {T1: [0]}}


@given(members=uniform_groups, partitions=counts)
def test_where_all_subscribe_to_the_same_no_two_differ_by_more_than_one(members, partitions):
    shares = load(assign_uniform(members, partitions)).values()
    assert max(shares) - min(shares) <= 1


@given(
    members=uniform_groups, partitions=counts, newcomers=st.integers(0, 3), gone=st.integers(0, 3)
)
def test_where_all_subscribe_to_the_same_as_many_stay_as_can(members, partitions, newcomers, gone):
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
    # By hand: everybody keeps up to the least share, and as many as there are larger shares keep one more.
    least, larger = divmod(sum(partitions.get(topic_id, 0) for topic_id in topics), len(group))
    assert kept == sum(min(len(rows), least) for rows in had.values()) + min(
        larger, sum(len(rows) > least for rows in had.values())
    )


@given(members=mixed_groups, partitions=counts)
def test_nobody_has_two_fewer_than_one_who_could_give_it_a_partition(members, partitions):
    assigned = assign_uniform(members, partitions)
    shares = load(assigned)
    for topic_id, _, owner in all_of(assigned):
        assert all(
            shares[owner] - shares[other] <= 1
            for other, one in members.items()
            if topic_id in one.topics
        )


# ---- both


def test_uniform_is_taken_where_nobody_asks():
    assert list(ASSIGNORS) == ["uniform", "range"]


@assignors
@pytest.mark.parametrize("topics", [1, 1000])
def test_a_thousand_members_and_a_thousand_partitions_are_soon_assigned(assign, topics):
    partitions = {topic(number): 1000 // topics for number in range(topics)}
    members = {f"m{number}": Subscriber(None, frozenset(partitions), {}) for number in range(1000)}
    began = time.process_time()
    assigned = assign(members, partitions)
    assert time.process_time() - began < 1.0
    assert len(all_of(assigned)) == 1000
