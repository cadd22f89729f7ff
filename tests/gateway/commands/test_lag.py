"""What is asked about groups, and what the answers come to."""

from __future__ import annotations

import pytest
from kafka import TopicPartition
from kafka.errors import for_code

from gateway.commands import client
from gateway.commands.lag import Position, assignment_of, committed, find_groups, led_partitions, positions, total
from tests.fakes.groups import NODE, Groups, assigned, member

LOADING, DENIED, NOT_FOUND = 14, 30, 69


@pytest.fixture
def server():
    server = Groups()
    server.topic("t", (0, 10), (5, 20))
    return server


def test_groups_come_in_the_order_asked_for_and_members_in_that_of_their_names(server):
    server.group("b", member("z"), member("y"))
    server.group("a")
    found, missing = find_groups(server, ["b", "a"])
    assert [(group.group_id, group.state, group.coordinator) for group in found] == [("b", "Stable", NODE), ("a", "Empty", NODE)]
    assert [one.client_id for one in found[0].members] == ["y", "z"]
    assert missing == []


@pytest.mark.parametrize("is_version_6", [False, True])
def test_a_group_that_is_not_there_is_missing_in_every_version(server, is_version_6):
    server.is_version_6 = is_version_6
    found, missing = find_groups(server, ["never"])
    assert (found, [(row["name"], row["error_code"]) for row in missing]) == ([], [("never", NOT_FOUND)])


def test_a_coordinator_that_loads_is_asked_again_and_one_that_refuses_is_not(server, monkeypatch):
    monkeypatch.setattr(client, "RETRY_SECONDS", 0)
    server.group("a")
    answers = [LOADING, DENIED]
    described = server._described

    def refusing(name):
        row = described(name)
        row.error_code = answers.pop(0)
        return row

    server._described = refusing
    assert find_groups(server, ["a"]) == ([], [{"name": "a", "error_code": DENIED, "error_message": None}])
    assert for_code(LOADING).retriable
    assert answers == []


def test_what_was_never_committed_is_no_commit(server):
    server.group("a", commits={("t", 0): -1, ("t", 1): 7})
    assert committed(server, ["a"]) == {"a": {TopicPartition("t", 1): 7}}


def test_only_topics_that_are_there_have_partitions(server):
    server.leaderless = {TopicPartition("t", 1)}
    assert led_partitions(server, ["t", "gone"]) == {"t": {0: True, 1: False}}


def test_a_group_is_in_every_partition_that_is_committed_or_assigned(server):
    server.group("a", member("x", assigned(t=[1])), commits={("t", 0): 4})
    found, _ = find_groups(server, ["a"])
    owner = found[0].members[0]
    assert positions(server, found) == {
        "a": [Position(TopicPartition("t", 0), 4, 10, None), Position(TopicPartition("t", 1), None, 20, owner)]
    }


def test_a_partition_that_is_gone_or_has_no_leader_has_no_end(server):
    server.leaderless = {TopicPartition("t", 1)}
    server.group("a", commits={("t", 1): 4, ("gone", 0): 5})
    rows = positions(server, find_groups(server, ["a"])[0])["a"]
    assert [(row.partition.topic, row.end, row.lag) for row in rows] == [("gone", None, None), ("t", None, None)]


def test_no_groups_are_nowhere(server):
    assert positions(server, []) == {}


def test_a_commit_beyond_the_end_is_a_negative_lag_and_makes_up_for_nothing():
    rows = [Position(TopicPartition("t", 0), 12, 10, None), Position(TopicPartition("t", 1), 1, 10, None)]
    assert ([row.lag for row in rows], total(rows)) == ([-2, 9], 9)


def test_an_assignment_is_read_in_any_version():
    of_version_3 = b"\x00\x03" + assigned(t=[0, 1])[2:]
    assert assignment_of("consumer", of_version_3) == (TopicPartition("t", 0), TopicPartition("t", 1))


@pytest.mark.parametrize(
    ("protocol_type", "assignment"),
    [
        ("consumer", b""),
        ("consumer", None),
        ("consumer", b"\x00"),
        ("consumer", b"\x00\x00\x7f\xff\xff\xff"),
        ("consumer", b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xfe\x00\x00\x00\x00"),
        ("consumer", b"\xff\xff\x00\x00\x00\x00"),
        ("connect", assigned(t=[0])),
    ],
    ids=["empty", "none", "short", "many", "no UTF-8", "version -1", "of another kind"],
)
def test_what_is_no_assignment_of_a_consumer_assigns_nothing(protocol_type, assignment):
    assert assignment_of(protocol_type, assignment) == ()
