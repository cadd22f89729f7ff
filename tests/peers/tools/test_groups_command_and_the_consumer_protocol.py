"""`kopgate groups` on groups of the consumer protocol (KIP-848), against Kafka 4 and the gateway.

The members are librdkafka's, which does not support the first version of the protocol in Kafka 3.9.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from tests.legacy_clients.brokers import gateway
from tests.peers.comparison import MATCHING_OPTIONS
from tests.peers.groups.group_setups import SECONDS, commit_offsets, create_topic, members
from tests.peers.tools.conftest import HEARTBEAT_INTERVAL
from tests.testkit.kafka import MODERN
from tests.used_peers import uses

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("groups command and the consumer protocol")]


@pytest.fixture(scope="module", params=["Kafka", "gateway"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "Kafka":
        uses("Apache Kafka", MODERN)
        yield request.getfixturevalue("modern_kafka")
    else:
        interval = [f"{name}={value}" for name, value in HEARTBEAT_INTERVAL.items()]
        arguments = [*MATCHING_OPTIONS, "--set", *interval]
        with gateway(tmp_path_factory.mktemp("gateway"), arguments=arguments) as broker:
            yield broker.bootstrap


def groups(server: str, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["groups", command, "--bootstrap-server", server, "--timeout", "60", *arguments]
    )


def described(server: str, group: str) -> dict[str, Any]:
    result = groups(server, "describe", group, "--json")
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)
    return row


def wait_until_stable(server: str, group: str) -> dict[str, Any]:
    """Wait until every member has its target assignment; return the description."""
    deadline = time.monotonic() + SECONDS
    while (row := described(server, group))["state"] != "Stable":
        assert time.monotonic() < deadline, row
    return row


def test_list_shows_type_consumer_and_filters_by_state(server: str) -> None:
    create_topic(server, "listed", 1)
    with members(server, "listed-app", "listed", "static-a", protocol="consumer"):
        wait_until_stable(server, "listed-app")
        rows = {row["group"]: row for row in json.loads(groups(server, "list", "--json").stdout)}
        assert rows["listed-app"] == {
            "group": "listed-app",
            "state": "Stable",
            "type": "consumer",
            "protocol_type": "consumer",
        }
        others = json.loads(groups(server, "list", "--json", "--state", "Reconciling").stdout)
        # Other files use this Kafka, too.
        assert "listed-app" not in {row["group"] for row in others}


def test_describe_shows_current_and_target_assignment_of_members(server: str) -> None:
    create_topic(server, "described", 4, 2, 0)
    with members(server, "described-app", "described", "static-a", "static-b", protocol="consumer"):
        row = wait_until_stable(server, "described-app")
        text = groups(server, "describe", "described-app", "--members").stdout
    assert (row["type"], row["assignor"], row["protocol_type"]) == ("consumer", "range", "consumer")
    first, second = row["members"]
    assert [(one["client"], one["instance"], one["host"]) for one in (first, second)] == [
        ("static-a", "static-a", "/127.0.0.1"),
        ("static-b", "static-b", "/127.0.0.1"),
    ]
    # The range assignor takes static members first, by instance id; the first gets the additional
    # partition.
    assert [[part["partition"] for part in one["partitions"]] for one in (first, second)] == [
        [0, 1],
        [2],
    ]
    assert [one["target"] for one in (first, second)] == [
        one["partitions"] for one in (first, second)
    ]
    assert first["epoch"] == second["epoch"] == row["epoch"]
    assert [(one["partition"], one["end"], one["member"]) for one in row["partitions"]] == [
        (0, 4, first["member"]),
        (1, 2, first["member"]),
        (2, 0, second["member"]),
    ]
    assert "consumer protocol, range" in text
    assert "TARGET" in text


def test_classic_and_consumer_groups_are_described_together(server: str) -> None:
    create_topic(server, "both", 1)
    commit_offsets(server, "both-idle", {("both", 0): 1})
    with (
        members(server, "both-classic", "both", "x"),
        members(server, "both-consumer", "both", "static-y", protocol="consumer"),
    ):
        result = groups(
            server, "describe", "both-consumer", "both-idle", "never", "both-classic", "--json"
        )
    assert [(row["group"], row["type"]) for row in json.loads(result.stdout)] == [
        ("both-consumer", "consumer"),
        ("both-idle", "classic"),
        ("both-classic", "classic"),
    ]
    assert (result.stderr.startswith("Error: never: "), result.exit_code) == (True, 1)


def test_group_with_members_is_neither_reset_nor_deleted(server: str) -> None:
    create_topic(server, "busy", 4)
    with members(server, "busy-app", "busy", "static-x", protocol="consumer"):
        wait_until_stable(server, "busy-app")
        reset = groups(
            server, "reset-offsets", "busy-app", "--to-earliest", "--topic", "busy", "--execute"
        )
        assert (reset.stdout, reset.exit_code) == ("", 1)
        assert "busy-app: the group is Stable with 1 member" in reset.stderr
        deleted = groups(server, "delete", "busy-app", "--yes")
        assert (deleted.stderr, deleted.exit_code) == (
            "Error: busy-app: The group is not empty.\n",
            1,
        )


def test_group_without_members_is_reset_and_deleted(server: str) -> None:
    create_topic(server, "left", 4)
    with members(server, "left-app", "left", "x", protocol="consumer"):
        wait_until_stable(server, "left-app")
    assert described(server, "left-app")["state"] == "Empty"
    assert (
        groups(
            server, "reset-offsets", "left-app", "--to-offset", "2", "--topic", "left", "--execute"
        ).exit_code
        == 0
    )
    assert described(server, "left-app")["lag"] == 2
    assert groups(server, "delete", "left-app", "--yes").stdout == "left-app deleted\n"
    assert groups(server, "describe", "left-app").exit_code == 1
