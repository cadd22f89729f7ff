"""Where groups are, from what they have committed and where partitions end."""

from __future__ import annotations

import pytest
from kafka import TopicPartition

from gateway.cli.group_descriptions import find_groups
from gateway.cli.lag import (
    PartitionLag,
    committed_offsets,
    leader_availability,
    partition_lags,
    total_lag,
)
from tests.fakes.groups import Groups, assigned, member


@pytest.fixture
def server():
    server = Groups()
    server.topic("t", (0, 10), (5, 20))
    return server


def test_what_was_never_committed_is_no_commit(server):
    server.group("a", commits={("t", 0): -1, ("t", 1): 7})
    assert committed_offsets(server, ["a"]) == {"a": {TopicPartition("t", 1): 7}}


def test_only_topics_that_are_there_have_partitions(server):
    server.leaderless = {TopicPartition("t", 1)}
    assert leader_availability(server, ["t", "gone"]) == {"t": {0: True, 1: False}}


def test_a_group_is_in_every_partition_that_is_committed_or_assigned(server):
    server.group("a", member("x", assigned(t=[1])), commits={("t", 0): 4})
    found, _ = find_groups(server, ["a"])
    owner = found[0].members[0]
    assert partition_lags(server, found) == {
        "a": [
            PartitionLag(TopicPartition("t", 0), 4, 10, None),
            PartitionLag(TopicPartition("t", 1), None, 20, owner),
        ]
    }


def test_a_partition_that_is_gone_or_has_no_leader_has_no_end(server):
    server.leaderless = {TopicPartition("t", 1)}
    server.group("a", commits={("t", 1): 4, ("gone", 0): 5})
    rows = partition_lags(server, find_groups(server, ["a"])[0])["a"]
    assert [(row.partition.topic, row.end, row.lag) for row in rows] == [
        ("gone", None, None),
        ("t", None, None),
    ]


def test_no_groups_are_nowhere(server):
    assert partition_lags(server, []) == {}


def test_a_commit_beyond_the_end_is_a_negative_lag_and_makes_up_for_nothing():
    rows = [
        PartitionLag(TopicPartition("t", 0), 12, 10, None),
        PartitionLag(TopicPartition("t", 1), 1, 10, None),
    ]
    assert ([row.lag for row in rows], total_lag(rows)) == ([-2, 9], 9)
