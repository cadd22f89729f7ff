from __future__ import annotations

import pytest
from kafka import TopicPartition

from gateway.cli.groups.group_descriptions import find_groups
from gateway.cli.groups.lag import (
    PartitionLag,
    committed_offsets,
    leader_availability,
    partition_lags,
    total_lag,
)
from tests.fakes.admin_client import Groups, assigned, member


@pytest.fixture
def server():
    server = Groups()
    server.topic("t", (0, 10), (5, 20))
    return server


def test_partition_never_committed_is_omitted(server):
    server.group("a", commits={("t", 0): -1, ("t", 1): 7})
    assert committed_offsets(server, ["a"]) == {"a": {TopicPartition("t", 1): 7}}


def test_unknown_topics_have_no_partitions(server):
    server.leaderless = {TopicPartition("t", 1)}
    assert leader_availability(server, ["t", "gone"]) == {"t": {0: True, 1: False}}


def test_lags_cover_committed_and_assigned_partitions(server):
    server.group("a", member("x", assigned(t=[1])), commits={("t", 0): 4})
    found, _ = find_groups(server, ["a"])
    owner = found[0].members[0]
    assert partition_lags(server, found) == {
        "a": [
            PartitionLag(TopicPartition("t", 0), 4, 10, None),
            PartitionLag(TopicPartition("t", 1), None, 20, owner),
        ]
    }


def test_missing_partition_or_leader_has_no_end_offset(server):
    server.leaderless = {TopicPartition("t", 1)}
    server.group("a", commits={("t", 1): 4, ("gone", 0): 5})
    rows = partition_lags(server, find_groups(server, ["a"])[0])["a"]
    assert [(row.partition.topic, row.end, row.lag) for row in rows] == [
        ("gone", None, None),
        ("t", None, None),
    ]


def test_lags_of_no_groups_are_empty(server):
    assert partition_lags(server, []) == {}


def test_commit_beyond_end_is_negative_lag_and_not_subtracted_from_total():
    rows = [
        PartitionLag(TopicPartition("t", 0), 12, 10, None),
        PartitionLag(TopicPartition("t", 1), 1, 10, None),
    ]
    assert ([row.lag for row in rows], total_lag(rows)) == ([-2, 9], 9)
