"""`kopgate groups` against Kafka 3.9.2 and the gateway, with members of a real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from tests.legacy_clients.brokers import are_required, gateway, reference
from tests.peers.comparison import MATCHING_OPTIONS
from tests.peers.groups.group_setups import commit_offsets, committed_offsets, create_topic, members
from tests.testkit.cache import CannotInstall

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("groups command"),
]  # One broker at a time for all tests.


@pytest.fixture(scope="module", params=[pytest.param("Kafka", marks=pytest.mark.slow), "gateway"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    try:
        with (
            reference()
            if request.param == "Kafka"
            else gateway(tmp_path_factory.mktemp("gateway"), arguments=MATCHING_OPTIONS) as broker
        ):
            yield broker.bootstrap
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


def groups(server: str, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["groups", command, "--bootstrap-server", server, "--timeout", "60", *arguments]
    )


def described(server: str, group: str) -> dict[str, Any]:
    result = groups(server, "describe", group, "--json")
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)
    return row


def test_commands_for_missing_group_fail_on_a_server_without_groups(server: str) -> None:
    # Kafka creates its offsets topic on the first request about a group.
    missing = groups(server, "describe", "never")
    assert (missing.stdout, missing.exit_code) == ("", 1)
    assert missing.stderr.startswith("Error: never: ")
    assert (
        groups(server, "delete", "never", "--yes").stderr
        == "Error: never: The group id does not exist.\n"
    )


def test_groups_are_listed_with_their_states(server: str) -> None:
    create_topic(server, "listed", 1)
    commit_offsets(server, "listed-empty", {("listed", 0): 1})
    with members(server, "listed-stable", "listed", "x"):
        rows = {row["group"]: row for row in json.loads(groups(server, "list", "--json").stdout)}
        assert rows["listed-empty"] == {
            "group": "listed-empty",
            "state": "Empty",
            "type": "classic",
            "protocol_type": None,
        }
        assert rows["listed-stable"] == {
            "group": "listed-stable",
            "state": "Stable",
            "type": "classic",
            "protocol_type": "consumer",
        }
        stable = json.loads(groups(server, "list", "--state", "stable", "--json").stdout)
        assert [row["group"] for row in stable] == ["listed-stable"]


def test_describe_shows_lag_and_owner_of_each_partition(server: str) -> None:
    create_topic(server, "described", 4, 2, 0)
    create_topic(server, "left", 3)
    commit_offsets(
        server, "described-app", {("described", 0): 1, ("described", 2): 0, ("left", 0): 3}
    )
    with members(server, "described-app", "described", "x", "static-y"):
        row = described(server, "described-app")
        text = groups(server, "describe", "described-app", "--members").stdout
    ids = {member["client"]: member["member"] for member in row["members"]}
    assert (row["state"], row["assignor"], row["lag"]) == ("Stable", "range", 3)
    assert {
        member["client"]: (member["instance"], member["host"]) for member in row["members"]
    } == {
        "static-y": ("static-y", "/127.0.0.1"),
        "x": (None, "/127.0.0.1"),
    }
    # The range assignor sorts by member id: "static-y-..." before "x-...", and the first member
    # gets the additional partition.
    assert [
        (one["topic"], one["partition"], one["committed"], one["end"], one["lag"], one["member"])
        for one in row["partitions"]
    ] == [
        ("described", 0, 1, 4, 3, ids["static-y"]),
        ("described", 1, None, 2, None, ids["static-y"]),
        ("described", 2, 0, 0, 0, ids["x"]),
        ("left", 0, 3, 3, 0, None),
    ]
    assert "total lag 3 in 3 partitions; unknown for 1 more" in text
    assert "described:0,1" in text


def test_group_without_members_keeps_its_offsets(server: str) -> None:
    create_topic(server, "idle", 1)
    commit_offsets(server, "idle-app", {("idle", 0): 1})
    with members(server, "idle-app", "idle", "x"):
        pass
    row = described(server, "idle-app")
    assert (row["state"], row["members"], row["lag"]) == ("Empty", [], 0)


def test_reset_is_only_printed_without_execute(server: str) -> None:
    create_topic(server, "reset", 4, 2)
    commit_offsets(server, "reset-app", {("reset", 0): 3, ("reset", 1): 1})
    moves = {
        ("--to-earliest", "--all-topics"): [0, 0],
        ("--to-datetime", "1970-01-01T00:00:02Z", "--topic", "reset"): [1, 1],
        ("--shift-by", "2", "--topic", "reset:0"): [3, 1],
        ("--shift-by", "-9", "--topic", "reset:0"): [0, 1],
        ("--to-offset", "3", "--topic", "reset:0,1"): [3, 2],
        ("--to-earliest", "--topic", "reset:0"): [0, 2],
        ("--to-datetime", "1970-01-01T01:00:03+01:00", "--all-topics"): [2, 2],
        ("--to-latest", "--all-topics"): [4, 2],
    }
    partitions = [("reset", 0), ("reset", 1)]
    for arguments, offsets in moves.items():
        before = committed_offsets(server, "reset-app", *partitions)
        shown = json.loads(
            groups(server, "reset-offsets", "reset-app", *arguments, "--json").stdout
        )
        assert committed_offsets(server, "reset-app", *partitions) == before, arguments
        done = groups(server, "reset-offsets", "reset-app", *arguments, "--execute", "--json")
        assert done.exit_code == 0, done.stderr
        assert {**shown, "executed": True} == json.loads(done.stdout)
        assert committed_offsets(server, "reset-app", *partitions) == offsets, arguments


def test_reset_beyond_the_end_uses_the_end_with_a_note(server: str) -> None:
    create_topic(server, "outside", 4)
    commit_offsets(server, "outside-app", {("outside", 0): 3})
    result = groups(server, "reset-offsets", "outside-app", "--to-offset", "9", "--all-topics")
    assert result.stdout.splitlines()[2].split(None, 5) == [
        "outside",
        "0",
        "3",
        "4",
        "+1",
        "9 is beyond the end",
    ]
    late = groups(
        server,
        "reset-offsets",
        "outside-app",
        "--to-datetime",
        "2100-01-01",
        "--all-topics",
        "--json",
    )
    (row,) = json.loads(late.stdout)["partitions"]
    assert (row["new"], row["note"]) == (4, "no record is that late; using the end")


def test_group_with_members_is_neither_reset_nor_deleted(server: str) -> None:
    create_topic(server, "busy", 4)
    commit_offsets(server, "busy-app", {("busy", 0): 3})
    with members(server, "busy-app", "busy", "x"):
        reset = groups(
            server, "reset-offsets", "busy-app", "--to-earliest", "--all-topics", "--execute"
        )
        assert (reset.stdout, reset.exit_code) == ("", 1)
        assert "busy-app: the group is Stable with 1 member" in reset.stderr
        deleted = groups(server, "delete", "busy-app", "--yes")
        assert (deleted.stderr, deleted.exit_code) == (
            "Error: busy-app: The group is not empty.\n",
            1,
        )
    assert committed_offsets(server, "busy-app", ("busy", 0)) == [3]


def test_reset_creates_a_missing_group(server: str) -> None:
    create_topic(server, "begun", 4, 4)
    assert (
        groups(
            server,
            "reset-offsets",
            "begun-app",
            "--to-offset",
            "2",
            "--topic",
            "begun:1",
            "--execute",
        ).exit_code
        == 0
    )
    assert committed_offsets(server, "begun-app", ("begun", 0), ("begun", 1)) == [None, 2]
    assert described(server, "begun-app")["state"] == "Empty"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--to-earliest", "--topic", "nothere"], "nothere: the topic does not exist"),
        (
            ["--to-earliest", "--topic", "refused:0,7"],
            "refused: partition 7 does not exist; the topic has 0 to 0",
        ),
        (["--shift-by", "1", "--topic", "refused"], "refused-0: no committed offset to shift"),
        (["--to-earliest", "--all-topics"], "refused-app: no committed offsets"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_impossible_reset_fails_with_reason(
    server: str, arguments: list[str], complaint: str
) -> None:
    if (
        "refused"
        not in CliRunner()
        .invoke(main, ["topics", "list", "--bootstrap-server", server, "--timeout", "60"])
        .stdout
    ):
        create_topic(server, "refused", 1)
    result = groups(server, "reset-offsets", "refused-app", *arguments, "--execute")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_delete_removes_group_and_its_offsets(server: str) -> None:
    create_topic(server, "deleted", 1)
    commit_offsets(server, "deleted-app", {("deleted", 0): 1})
    assert groups(server, "delete", "deleted-app", "--yes").stdout == "deleted-app deleted\n"
    assert groups(server, "describe", "deleted-app").exit_code == 1
    assert committed_offsets(server, "deleted-app", ("deleted", 0)) == [None]
