"""What each target comes to. The rules are those of kafka-consumer-groups: an offset stays within its partition, a time that nobody wrote at is the end."""

from __future__ import annotations

import pytest
from kafka import TopicPartition

from gateway.cli.reset_plan import CannotReset, Change, Kind, Scope, Target, moved, plan
from tests.fakes.groups import Groups

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EARLIEST = Target(Kind.EARLIEST)


@pytest.fixture
def server():
    server = Groups()
    server.topic("t", (0, 10), (5, 20))
    return server


@pytest.mark.parametrize(
    ("kind", "number", "dated", "new"),
    [
        (Kind.EARLIEST, 0, -1, 5),
        (Kind.LATEST, 0, -1, 20),
        (Kind.DATETIME, 1000, 9, 9),
        (Kind.OFFSET, 5, -1, 5),
        (Kind.OFFSET, 20, -1, 20),
        (Kind.SHIFT, 3, -1, 13),
        (Kind.SHIFT, -5, -1, 5),
    ],
)
def test_a_target_in_a_partition_from_5_to_20_with_10_committed(kind, number, dated, new):
    assert moved(Target(kind, number), old=10, first=5, end=20, dated=dated) == (new, None)


@pytest.mark.parametrize(
    ("kind", "number", "new", "note"),
    [
        (Kind.OFFSET, 4, 5, "4 is before the first offset"),
        (Kind.OFFSET, 21, 20, "21 is beyond the end"),
        (Kind.SHIFT, -11, 5, "-1 is before the first offset"),
        (Kind.SHIFT, 11, 20, "21 is beyond the end"),
        (Kind.DATETIME, 1000, 20, "no record is so late: the end"),
    ],
)
def test_what_lies_outside_becomes_the_nearest_inside_and_is_said(kind, number, new, note):
    assert moved(Target(kind, number), old=10, first=5, end=20, dated=-1) == (new, note)


def test_a_topic_is_all_its_partitions_and_each_has_its_own_range(server):
    assert plan(server, EARLIEST, [Scope("t")], {T0: 7}) == [Change(T0, 7, 0), Change(T1, None, 5)]


def test_a_partition_named_twice_is_changed_once(server):
    assert plan(server, EARLIEST, [Scope("t", (1, 1)), Scope("t", (1,))], {}) == [
        Change(T1, None, 5)
    ]


def test_without_a_scope_it_is_where_the_group_has_committed(server):
    assert plan(server, EARLIEST, None, {T1: 6}) == [Change(T1, 6, 5)]


def test_a_time_is_looked_up_in_each_partition(server):
    server.times = {T0: {1000: 3}}
    changes = plan(server, Target(Kind.DATETIME, 1000), [Scope("t")], {})
    assert [(change.new, change.note) for change in changes] == [
        (3, None),
        (20, "no record is so late: the end"),
    ]


def test_the_difference_is_what_it_moves_by():
    assert [
        Change(T0, 7, 5).difference,
        Change(T0, None, 5).difference,
        Change(T0, 7, None).difference,
    ] == [-2, None, None]


def test_the_commit_in_a_partition_that_is_gone_is_left_alone(server):
    gone = TopicPartition("gone", 0)
    assert plan(server, EARLIEST, None, {T0: 7, gone: 3}) == [
        Change(gone, 3, None, "the partition is gone; its commit stays"),
        Change(T0, 7, 0),
    ]


@pytest.mark.parametrize(
    ("target", "scopes", "reasons"),
    [
        (
            EARLIEST,
            [Scope("never"), Scope("t", (0, 2))],
            ["never: there is no such topic", "t: there is no partition 2, it has 0 to 1"],
        ),
        (
            Target(Kind.SHIFT, 1),
            [Scope("t")],
            [
                "t-1: nothing is committed there that could be shifted; leave it out, or name an offset"
            ],
        ),
    ],
    ids=["unknown", "no commit"],
)
def test_what_stands_in_the_way_is_told_for_each_partition(server, target, scopes, reasons):
    with pytest.raises(CannotReset) as refused:
        plan(server, target, scopes, {T0: 7})
    assert refused.value.reasons == reasons


@pytest.mark.parametrize("scopes", [None, [Scope("t")]], ids=["all topics", "named"])
def test_a_partition_without_a_leader_stands_in_the_way(server, scopes):
    server.leaderless = {T0}
    with pytest.raises(CannotReset) as refused:
        plan(server, EARLIEST, scopes, {T0: 7, T1: 7})
    assert refused.value.reasons == ["t-0: it has no leader just now; try again"]
