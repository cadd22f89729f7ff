"""Rules of kafka-consumer-groups: offsets stay within the partition, a time without records is the
end.
"""

from __future__ import annotations

import pytest
from kafka import TopicPartition

from gateway.cli.groups.reset_plan import (
    CannotReset,
    OffsetChange,
    ResetScope,
    ResetTarget,
    TargetKind,
    plan_reset,
    resolve_target,
)
from tests.fakes.admin_client import Groups

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EARLIEST = ResetTarget(TargetKind.EARLIEST)


@pytest.fixture
def server():
    server = Groups()
    server.topic("t", (0, 10), (5, 20))
    return server


@pytest.mark.parametrize(
    ("kind", "number", "dated", "new"),
    [
        (TargetKind.EARLIEST, 0, -1, 5),
        (TargetKind.LATEST, 0, -1, 20),
        (TargetKind.DATETIME, 1000, 9, 9),
        (TargetKind.OFFSET, 5, -1, 5),
        (TargetKind.OFFSET, 20, -1, 20),
        (TargetKind.SHIFT, 3, -1, 13),
        (TargetKind.SHIFT, -5, -1, 5),
    ],
)
def test_target_resolves_in_partition_from_5_to_20(kind, number, dated, new):
    assert resolve_target(ResetTarget(kind, number), old=10, first=5, end=20, dated=dated) == (
        new,
        None,
    )


@pytest.mark.parametrize(
    ("kind", "number", "new", "note"),
    [
        (TargetKind.OFFSET, 4, 5, "4 is before the first offset"),
        (TargetKind.OFFSET, 21, 20, "21 is beyond the end"),
        (TargetKind.SHIFT, -11, 5, "-1 is before the first offset"),
        (TargetKind.SHIFT, 11, 20, "21 is beyond the end"),
        (TargetKind.DATETIME, 1000, 20, "no record is that late; using the end"),
    ],
)
def test_target_outside_partition_is_clamped_with_note(kind, number, new, note):
    assert resolve_target(ResetTarget(kind, number), old=10, first=5, end=20, dated=-1) == (
        new,
        note,
    )


def test_topic_scope_covers_all_partitions_with_own_ranges(server):
    assert plan_reset(server, EARLIEST, [ResetScope("t")], {T0: 7}) == [
        OffsetChange(T0, 7, 0),
        OffsetChange(T1, None, 5),
    ]


def test_duplicate_partition_is_changed_once(server):
    assert plan_reset(server, EARLIEST, [ResetScope("t", (1, 1)), ResetScope("t", (1,))], {}) == [
        OffsetChange(T1, None, 5)
    ]


def test_no_scope_means_committed_partitions(server):
    assert plan_reset(server, EARLIEST, None, {T1: 6}) == [OffsetChange(T1, 6, 5)]


def test_datetime_is_resolved_per_partition(server):
    server.times = {T0: {1000: 3}}
    changes = plan_reset(server, ResetTarget(TargetKind.DATETIME, 1000), [ResetScope("t")], {})
    assert [(change.new, change.note) for change in changes] == [
        (3, None),
        (20, "no record is that late; using the end"),
    ]


def test_difference_is_new_minus_old():
    assert [
        OffsetChange(T0, 7, 5).difference,
        OffsetChange(T0, None, 5).difference,
        OffsetChange(T0, 7, None).difference,
    ] == [-2, None, None]


def test_commit_of_missing_partition_is_kept(server):
    gone = TopicPartition("gone", 0)
    assert plan_reset(server, EARLIEST, None, {T0: 7, gone: 3}) == [
        OffsetChange(gone, 3, None, "the partition does not exist; its commit is kept"),
        OffsetChange(T0, 7, 0),
    ]


@pytest.mark.parametrize(
    ("target", "scopes", "reasons"),
    [
        (
            EARLIEST,
            [ResetScope("never"), ResetScope("t", (0, 2))],
            [
                "never: the topic does not exist",
                "t: partition 2 does not exist; the topic has 0 to 1",
            ],
        ),
        (
            ResetTarget(TargetKind.SHIFT, 1),
            [ResetScope("t")],
            ["t-1: no committed offset to shift; use another target or leave it out"],
        ),
    ],
    ids=["unknown", "no commit"],
)
def test_every_failing_partition_is_reported(server, target, scopes, reasons):
    with pytest.raises(CannotReset) as refused:
        plan_reset(server, target, scopes, {T0: 7})
    assert refused.value.reasons == reasons


@pytest.mark.parametrize("scopes", [None, [ResetScope("t")]], ids=["all topics", "named"])
def test_partition_without_leader_fails(server, scopes):
    server.leaderless = {T0}
    with pytest.raises(CannotReset) as refused:
        plan_reset(server, EARLIEST, scopes, {T0: 7, T1: 7})
    assert refused.value.reasons == ["t-0: the partition has no leader; try again later"]
