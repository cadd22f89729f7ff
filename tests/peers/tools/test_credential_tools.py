"""Kafka's tools for SCRAM credentials and delegation tokens, as a super user, against both."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.main import main
from tests.peers.comparison import Command, ComparedBrokers
from tests.peers.tools.conftest import AuthorizingServer

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("authorizing servers")]


@pytest.fixture
def sides(
    authorizing_gateway: AuthorizingServer, authorizing_kafka: AuthorizingServer
) -> ComparedBrokers:
    return ComparedBrokers(authorizing_gateway.address, authorizing_kafka.address)


def user(config: Path, action: str, *arguments: str) -> Command:
    words = ("kafka-configs", "--command-config", str(config), f"--{action}")
    return (*words, "--entity-type", "users", *arguments)


def token(config: Path, action: str, *arguments: str) -> Command:
    return ("kafka-delegation-tokens", "--command-config", str(config), f"--{action}", *arguments)


def in_order(output: str) -> str:
    """Sort users and their credentials: Kafka lists them in the order of a hash map."""
    lines = []
    for line in output.splitlines():
        head, are, listed = line.partition(" are ")
        lines.append(head + are + ", ".join(sorted(listed.split(", "))))
    return "\n".join(sorted(lines))


def test_tools_match_kafka(
    sides: ComparedBrokers, authorizing_gateway: AuthorizingServer, tmp_path: Path
) -> None:
    config = authorizing_gateway.folder / "admin.properties"
    alice, kept = ("--entity-name", "alice"), ("--entity-name", "kept")
    sha_256, sha_512 = "SCRAM-SHA-256=[password=x]", "SCRAM-SHA-512=[iterations=8192,password=y]"
    # Kafka answers before a change is applied; a token request after each gives it time.
    commands = [
        # Refused: Kafka does not alter a user twice in one request.
        user(config, "alter", *alice, "--add-config", f"{sha_256},{sha_512}"),
        user(config, "alter", *alice, "--add-config", sha_256),
        user(config, "alter", *alice, "--add-config", sha_512),
        user(config, "alter", *kept, "--add-config", sha_512),
        token(config, "create", "--max-life-time-period", "-1"),
        user(config, "describe", *alice),
        user(config, "describe"),
        user(config, "alter", *alice, "--delete-config", "SCRAM-SHA-256"),
        token(config, "renew", "--renew-time-period", "-1", "--hmac", "AAAA"),
        user(config, "describe", *alice),
        user(config, "alter", *alice, "--delete-config", "SCRAM-SHA-256"),
        user(config, "alter", *alice, "--add-config", "SCRAM-SHA-256=[iterations=4095,password=x]"),
        user(
            config, "alter", *alice, "--add-config", "SCRAM-SHA-256=[iterations=16385,password=x]"
        ),
        user(config, "alter", *alice, "--delete-config", "SCRAM-SHA-512"),
        token(config, "expire", "--expiry-time-period", "-1", "--hmac", "AAAA"),
        token(config, "describe"),
        user(config, "describe", *alice),
        user(config, "describe", "--entity-name", "never"),
    ]
    ours, theirs = sides.tools(*commands)
    for command, one, other in zip(commands, ours, theirs, strict=True):
        assert (one.code, in_order(one.output)) == (other.code, in_order(other.output)), command
    twice, added, *_ = ours
    assert "A user credential cannot be altered twice in the same request" in twice.output
    assert added.output == "Completed updating config for user alice.\n"
    described = ours[commands.index(user(config, "describe", *alice))]
    assert in_order(described.output) == (
        "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=4096, "
        "SCRAM-SHA-512=iterations=8192"
    )
    refused = [
        one
        for command, one in zip(commands, ours, strict=True)
        if command[0] == "kafka-delegation-tokens"
    ]
    assert [one.code for one in refused] == [1] * 4
    assert all("Delegation Token feature is not enabled" in one.output for one in refused)
    # The credential works.
    (tmp_path / "password").write_text("y\n")
    done = CliRunner().invoke(
        main,
        [
            *("topics", "list", "--bootstrap-server", authorizing_gateway.address, "--user"),
            *("kept", "--password-file", str(tmp_path / "password"), "--timeout", "60"),
            *("--sasl-mechanism", "SCRAM-SHA-512"),
        ],
    )
    assert done.exit_code == 0, done.output
