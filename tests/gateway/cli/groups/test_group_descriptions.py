from __future__ import annotations

import pytest
from kafka import TopicPartition
from kafka.errors import for_code

from gateway.cli import kafka_client
from gateway.cli.groups.group_descriptions import assignment_of, find_groups
from tests.fakes.admin_client import NODE, Groups, assigned, consumer, member

LOADING, DENIED, NOT_FOUND = 14, 30, 69


@pytest.fixture
def server():
    server = Groups()
    server.topic("t", (0, 10), (5, 20))
    return server


def test_groups_keep_requested_order_and_members_are_sorted(server):
    server.group("b", member("z"), member("y"))
    server.group("a")
    found, missing = find_groups(server, ["b", "a"])
    assert [(group.group_id, group.state, group.coordinator) for group in found] == [
        ("b", "Stable", NODE),
        ("a", "Empty", NODE),
    ]
    assert [one.client_id for one in found[0].members] == ["y", "z"]
    assert missing == []


@pytest.mark.parametrize("is_version_6", [False, True])
def test_unknown_group_is_missing_in_every_version(server, is_version_6):
    server.is_version_6 = is_version_6
    found, missing = find_groups(server, ["never"])
    assert (found, [(row["name"], row["error_code"]) for row in missing]) == (
        [],
        [("never", NOT_FOUND)],
    )


def test_loading_coordinator_is_retried_and_refusal_is_not(server, monkeypatch):
    monkeypatch.setattr(kafka_client, "RETRY_SECONDS", 0)
    server.group("a")
    answers = [LOADING, DENIED]
    described = server._described

    def refusing(name):
        row = described(name)
        row.error_code = answers.pop(0)
        return row

    server._described = refusing
    assert find_groups(server, ["a"]) == (
        [],
        [{"name": "a", "error_code": DENIED, "error_message": None}],
    )
    assert for_code(LOADING).retriable
    assert answers == []


def test_consumer_group_has_current_and_target_assignment(server):
    server.group("a", member("x"))
    server.consumer_group(
        "c",
        consumer("y", {"t": [0]}, {"t": [0, 1]}),
        consumer("x", {"u": [2]}, {}, instance_id="x-static"),
        epoch=7,
    )
    found, missing = find_groups(server, ["c", "a"])
    assert [(group.group_id, group.type, group.assignor, group.epoch) for group in found] == [
        ("c", "consumer", "uniform", 7),
        ("a", "classic", "range", None),
    ]
    first, second = found[0].members
    assert (first.client_id, first.instance_id, first.partitions, first.target) == (
        "x",
        "x-static",
        (TopicPartition("u", 2),),
        (),
    )
    assert (second.partitions, second.target) == (
        (TopicPartition("t", 0),),
        (TopicPartition("t", 0), TopicPartition("t", 1)),
    )
    assert missing == []


@pytest.mark.parametrize("is_version_6", [False, True])
def test_only_groups_that_are_not_classic_are_described_again(server, is_version_6):
    server.is_version_6 = is_version_6
    server.group("a")
    server.consumer_group("c")
    find_groups(server, ["a", "never", "c"])
    assert server.asked == [["a", "never", "c"], ["never", "c"]]


@pytest.mark.parametrize("answer", ["no such request", "switched off"])
def test_server_without_consumer_groups_is_supported(server, answer):
    server.consumers = answer
    server.group("a")
    found, missing = find_groups(server, ["never", "a"])
    assert [group.group_id for group in found] == ["a"]
    assert [(row["name"], row["error_code"]) for row in missing] == [("never", NOT_FOUND)]


def test_unauthorized_consumer_group_is_reported(server, monkeypatch):
    server.consumer_group("c", error_code=DENIED)
    assert find_groups(server, ["c"]) == (
        [],
        [{"name": "c", "error_code": DENIED, "error_message": None}],
    )


def test_assignment_of_any_version_is_decoded():
    of_version_3 = b"\x00\x03" + assigned(t=[0, 1])[2:]
    assert assignment_of("consumer", of_version_3) == (
        TopicPartition("t", 0),
        TopicPartition("t", 1),
    )


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
def test_malformed_assignment_has_no_partitions(protocol_type, assignment):
    assert assignment_of(protocol_type, assignment) == ()
