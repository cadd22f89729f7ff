"""`kopgate groups` with a fake server; tests/peers runs the same commands against Kafka."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import IncompatibleBrokerVersion, for_code

from gateway.cli.main import main
from tests.fakes.admin_client import Groups, assigned, member

NON_EMPTY, NOT_FOUND = 68, 69


@pytest.fixture
def server(connect_to):
    server = connect_to(Groups())
    server.topic("t", (0, 10), (5, 20))
    return server


def kopgate(*arguments, answer=None):
    return CliRunner().invoke(main, ["groups", *arguments], input=answer)


def offsets(server, name):
    return {
        (partition.topic, partition.partition): row.offset
        for partition, row in server.commits[name].items()
    }


def test_groups_are_listed_in_order(server):
    server.group("a", member("x"))
    server.group("b", protocol_type="")
    assert kopgate("list").stdout == (
        "GROUP  STATE   TYPE     PROTOCOL\na      Stable  classic  consumer\nb      "
        "Empty   classic  -\n"
    )
    assert json.loads(kopgate("list", "--json").stdout) == [
        {"group": "a", "state": "Stable", "type": "classic", "protocol_type": "consumer"},
        {"group": "b", "state": "Empty", "type": "classic", "protocol_type": None},
    ]


def test_groups_are_filtered_by_state_in_any_case(server):
    server.group("a", member("x"))
    server.group("b")
    server.group("c", member("x"), state="PreparingRebalance")
    assert [
        row["group"] for row in json.loads(kopgate("list", "--json", "--state", "empty").stdout)
    ] == ["b"]
    both = kopgate("list", "--json", "--state", "Stable", "--state", "PreparingRebalance")
    assert [row["group"] for row in json.loads(both.stdout)] == ["a", "c"]
    assert kopgate("list", "--state", "sleepy").exit_code == 2


def test_server_without_states_is_listed_without_filter(server, monkeypatch):
    def list_groups(states_filter):
        if states_filter:
            raise IncompatibleBrokerVersion("no version of ListGroups")
        return [{"group_id": "a", "protocol_type": "consumer"}]

    monkeypatch.setattr(server, "list_groups", list_groups)
    assert kopgate("list", "--state", "Empty").stderr.endswith(
        "does not report states (Kafka before 2.6); leave out --state\n"
    )
    assert kopgate("list").stdout == "GROUP  STATE  TYPE  PROTOCOL\na      -      -     consumer\n"


def test_no_groups_print_empty_list(server):
    assert kopgate("list").stdout == ""
    assert json.loads(kopgate("list", "--json").stdout) == []
    assert kopgate("describe").stdout == ""


def test_description_has_lag_per_partition_and_total(server):
    server.group("a", member("x", assigned(t=[1])), commits={("t", 0): 4, ("gone", 0): 1})
    result = kopgate("describe", "a")
    assert result.stdout == (
        "a: Stable, 1 member, range, coordinator 1\n"
        "  TOPIC  PARTITION  COMMITTED  END  LAG  MEMBER  CLIENT  HOST\n"
        "  gone   0          1          -    -    -       -       -\n"
        "  t      0          4          10   6    -       -       -\n"
        "  t      1          -          20   -    x-1     x       /10.0.0.1\n"
        "  total lag 6 in 1 partition; unknown for 2 more\n"
    )
    assert result.exit_code == 0


def test_members_option_shows_members(server):
    server.group("a", member("x", assigned(t=[0, 1], u=[2])), member("y", instance_id="y-static"))
    server.topic("u", (0, 0), (0, 0), (0, 0))
    assert kopgate("describe", "a", "--members").stdout.endswith(
        "  MEMBER  INSTANCE  CLIENT  HOST       PARTITIONS\n"
        "  x-1     -         x       /10.0.0.1  t:0,1 u:2\n"
        "  y-1     y-static  y       /10.0.0.1  -\n"
    )
    assert "INSTANCE" not in kopgate("describe", "a").stdout


def test_group_without_members_and_commits_is_one_line(server):
    server.group("a")
    assert kopgate("describe", "a", "--members").stdout == "a: Empty, no members, coordinator 1\n"


def test_describe_without_names_describes_all_groups(server):
    server.group("b", commits={("t", 0): 10})
    server.group("a")
    assert kopgate("describe").stdout == (
        "a: Empty, no members, coordinator 1\n"
        "\n"
        "b: Empty, no members, coordinator 1\n"
        "  TOPIC  PARTITION  COMMITTED  END  LAG  MEMBER  CLIENT  HOST\n"
        "  t      0          10         10   0    -       -       -\n"
        "  total lag 0 in 1 partition\n"
    )


def test_json_describes_partitions_and_members(server):
    server.group("a", member("x", assigned(t=[0])), commits={("t", 0): 4})
    assert json.loads(kopgate("describe", "a", "--json").stdout) == [
        {
            "group": "a",
            "type": "classic",
            "state": "Stable",
            "protocol_type": "consumer",
            "assignor": "range",
            "epoch": None,
            "coordinator": 1,
            "lag": 6,
            "partitions": [
                {"topic": "t", "partition": 0, "committed": 4, "end": 10, "lag": 6, "member": "x-1"}
            ],
            "members": [
                {
                    "member": "x-1",
                    "instance": None,
                    "client": "x",
                    "host": "/10.0.0.1",
                    "partitions": [{"topic": "t", "partition": 0}],
                    "target": None,
                    "epoch": None,
                }
            ],
        }
    ]


def test_unknown_group_is_reported_and_others_are_described(server):
    server.group("a")
    result = kopgate("describe", "never", "a")
    assert (result.stdout, result.stderr, result.exit_code) == (
        "a: Empty, no members, coordinator 1\n",
        "Error: never: The group id does not exist.\n",
        1,
    )


def test_groups_are_deleted_after_confirmation(server):
    server.group("a")
    server.group("b")
    assert kopgate("delete", "a", answer="n\n").exit_code == 1
    assert kopgate("delete", "b", "--yes").stdout == "b deleted\n"
    assert list(server.groups) == ["a"]


def test_group_with_members_is_kept_and_others_are_deleted(server):
    server.group("a", member("x"))
    server.group("b")
    result = kopgate("delete", "a", "b", "--yes", "--json")
    assert json.loads(result.stdout) == [
        {"name": "a", "error_code": NON_EMPTY, "error": "The group is not empty."},
        {"name": "b", "error_code": 0, "error": None},
    ]
    assert (result.stderr, result.exit_code) == ("Error: a: The group is not empty.\n", 1)


def test_deleting_unknown_group_fails_unless_if_exists(server):
    assert kopgate("delete", "a", "--yes").stderr == "Error: a: The group id does not exist.\n"
    assert kopgate("delete", "a", "--yes", "--if-exists").exit_code == 0


def test_unknown_error_code_is_an_error(server, monkeypatch):
    monkeypatch.setattr(
        server, "delete_groups", lambda names: dict.fromkeys(names, for_code(9999).__name__)
    )
    result = kopgate("delete", "a", "--yes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: a: ")


def test_reset_without_execute_only_prints(server):
    server.group("a", commits={("t", 0): 7})
    shown = kopgate("reset-offsets", "a", "--to-offset", "8", "--topic", "t")
    rows = (
        "  TOPIC  PARTITION  OLD  NEW  DIFFERENCE  NOTE\n  t      0          7    8  "
        "  +1\n  t      1          -    8    -\n"
    )
    assert shown.stdout == f"a: would commit these offsets; add --execute to commit them\n{rows}"
    assert offsets(server, "a") == {("t", 0): 7}
    done = kopgate("reset-offsets", "a", "--to-offset", "8", "--topic", "t", "--execute")
    assert (done.stdout, done.exit_code) == (f"a: committed these offsets\n{rows}", 0)
    assert offsets(server, "a") == {("t", 0): 8, ("t", 1): 8}


def test_reset_drops_epoch_and_metadata_of_old_commit(server):
    server.group("a")
    server.commits["a"] = {TopicPartition("t", 0): OffsetAndMetadata(7, "manual", 3)}
    kopgate("reset-offsets", "a", "--to-earliest", "--all-topics", "--execute")
    assert server.commits["a"] == {TopicPartition("t", 0): OffsetAndMetadata(0, "", None)}


def test_reset_json_has_old_new_difference_and_note(server):
    server.group("a", commits={("t", 1): 7})
    result = kopgate("reset-offsets", "a", "--shift-by", "100", "--all-topics", "--json")
    assert json.loads(result.stdout) == {
        "group": "a",
        "executed": False,
        "partitions": [
            {
                "topic": "t",
                "partition": 1,
                "old": 7,
                "new": 20,
                "difference": 13,
                "note": "107 is beyond the end",
                "error": None,
            }
        ],
    }


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_reset_of_group_with_members_fails_with_remedy(server, state):
    server.group("a", member("x"), state=state, commits={("t", 0): 7})
    result = kopgate("reset-offsets", "a", "--to-earliest", "--all-topics", "--execute")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"Error: a: the group is {state} with 1 member; offsets can only be reset "
        "without members: stop the consumers"
    )
    assert offsets(server, "a") == {("t", 0): 7}


def test_consumer_joining_before_commit_keeps_its_offsets(server, monkeypatch):
    server.group("a", commits={("t", 0): 7})
    commit = server.alter_group_offsets

    def late(name, wanted):
        server.groups["a"] = ("Stable", "consumer", (member("x"),))
        return commit(name, wanted)

    monkeypatch.setattr(server, "alter_group_offsets", late)
    result = kopgate("reset-offsets", "a", "--to-earliest", "--all-topics", "--execute", "--json")
    reason = "a consumer has joined the group; stop it and try again"
    assert json.loads(result.stdout)["partitions"][0]["error"] == reason
    assert (result.stderr, result.exit_code) == (f"Error: t-0: {reason}\n", 1)
    assert offsets(server, "a") == {("t", 0): 7}


def test_reset_creates_unknown_group(server):
    assert (
        kopgate("reset-offsets", "new", "--to-latest", "--topic", "t:1", "--execute").exit_code == 0
    )
    assert offsets(server, "new") == {("t", 1): 20}


def test_reset_of_group_without_commits_needs_topics(server):
    server.group("a")
    result = kopgate("reset-offsets", "a", "--to-earliest", "--all-topics")
    assert (result.stderr, result.exit_code) == (
        "Error: a: no committed offsets; choose topics with --topic\n",
        1,
    )


def test_empty_group_name_is_rejected(server):
    assert kopgate("reset-offsets", "", "--to-earliest", "--topic", "t", "--execute").exit_code == 2
    assert server.commits == {}


def test_one_failing_partition_stops_reset(server):
    server.group("a", commits={("t", 0): 7})
    result = kopgate(
        "reset-offsets", "a", "--to-earliest", "--topic", "t", "--topic", "never", "--execute"
    )
    assert (result.stdout, result.stderr, result.exit_code) == (
        "",
        "Error: never: the topic does not exist\n",
        1,
    )
    assert offsets(server, "a") == {("t", 0): 7}
