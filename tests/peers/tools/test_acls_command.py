"""`kopgate acls` and SCRAM users of `kopgate users` against the gateway and Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from tests.peers.tools.conftest import AuthorizingServer
from tests.testkit.gateway import gateway
from tests.testkit.kafka import MODERN

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("authorizing servers")]


@pytest.fixture(
    scope="module",
    params=["gateway", "Kafka", pytest.param(f"Kafka {MODERN}", marks=pytest.mark.slow)],
)
def server(
    request: pytest.FixtureRequest,
    start_authorizing_kafka: Callable[[str], Iterator[AuthorizingServer]],
) -> Iterator[AuthorizingServer]:
    match request.param:
        case "gateway":
            yield request.getfixturevalue("authorizing_gateway")
        case "Kafka":
            yield request.getfixturevalue("authorizing_kafka")
        case _:
            yield from start_authorizing_kafka(MODERN)


def kopgate(*arguments: str, **how: Any) -> Result:
    return CliRunner().invoke(main, arguments, **how)


def acls(server: AuthorizingServer, command: str, *arguments: str) -> Result:
    return kopgate("acls", command, *arguments, *server.login)


def users(server: AuthorizingServer, command: str, *arguments: str, password: str = "") -> Result:
    login = ["--user-password-file" if word == "--password-file" else word for word in server.login]
    return kopgate("users", command, *arguments, *login, input=password)


def printed(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until it is so: Kafka answers before a change is applied everywhere."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def listed(server: AuthorizingServer, *arguments: str) -> list[tuple[str, ...]]:
    rows = json.loads(printed(acls(server, "list", *arguments, "--json")))
    return [tuple(row.values()) for row in rows]


ORDERS = ("TOPIC", "orders", "LITERAL", "ALLOW", "User:app")


def test_acls_are_added_listed_and_removed(server: AuthorizingServer) -> None:
    printed(acls(server, "add", "--allow", "User:app", "--producer", "--topic", "orders"))
    printed(
        acls(
            server,
            *("add", "--allow", "User:app", "--consumer", "--prefix"),
            *("--topic", "ord", "--group", "app", "--host", "192.0.2.7"),
        )
    )
    printed(acls(server, "add", "--deny", "User:*", "--operation", "alter", "--cluster"))
    writing = [(*ORDERS, operation, "*") for operation in ("WRITE", "CREATE", "DESCRIBE")]
    reading = [
        ("TOPIC", "ord", "PREFIXED", "ALLOW", "User:app", operation, "192.0.2.7")
        for operation in ("READ", "DESCRIBE")
    ]
    group = ("GROUP", "app", "PREFIXED", "ALLOW", "User:app", "READ", "192.0.2.7")
    cluster = ("CLUSTER", "kafka-cluster", "LITERAL", "DENY", "User:*", "ALTER", "*")
    eventually(lambda: listed(server) == [*reading, *writing, group, cluster])
    assert listed(server, "--topic", "orders") == [*reading, *writing]
    assert listed(server, "--topic", "ord", "--prefix") == reading
    assert listed(server, "--principal", "User:app", "--operation", "read") == [reading[0], group]
    assert listed(server, "--deny", "User:*") == [cluster]
    assert "TOPIC     orders         LITERAL   ALLOW       User:app   WRITE      *\n" in (
        printed(acls(server, "list"))
    )
    # What was added is removed by the same options.
    assert printed(
        acls(server, "remove", "--allow", "User:app", "--producer", "--topic", "orders", "--yes")
    ) == "".join(
        f"ALLOW User:app from * {operation} TOPIC:orders (LITERAL) removed\n"
        for operation in ("WRITE", "CREATE", "DESCRIBE")
    )
    eventually(lambda: listed(server) == [*reading, group, cluster])
    printed(acls(server, "remove", "--principal", "User:app", "--prefix", "--yes"))
    printed(acls(server, "remove", "--cluster", "--yes"))
    eventually(lambda: listed(server) == [])


def test_scram_users_are_added_listed_and_removed(server: AuthorizingServer) -> None:
    def add(mechanism: str, *arguments: str) -> Result:
        return users(
            server,
            *("add", "alice", "--mechanism", mechanism, "--password-file", "-", *arguments),
            password="alice's\n",
        )

    def credentials() -> list[tuple[Any, ...]]:
        rows = json.loads(printed(users(server, "list", "--json")))
        return [tuple(row.values()) for row in rows if row["name"] == "alice"]

    printed(add("SCRAM-SHA-256"))
    printed(add("SCRAM-SHA-512", "--iterations", "8192"))
    both = [("alice", "SCRAM-SHA-256", 4096), ("alice", "SCRAM-SHA-512", 8192)]
    eventually(lambda: credentials() == both)
    refused = add("SCRAM-SHA-256")
    assert (refused.exit_code, "already exists" in refused.stderr) == (1, True)
    printed(add("SCRAM-SHA-256", "--replace", "--iterations", "5000"))
    eventually(lambda: credentials()[0] == ("alice", "SCRAM-SHA-256", 5000))
    printed(users(server, "remove", "alice", "--mechanism", "SCRAM-SHA-256"))
    eventually(lambda: credentials() == both[1:])
    printed(users(server, "remove", "alice"))
    eventually(lambda: credentials() == [])
    assert users(server, "remove", "alice").stderr == "Error: alice does not exist\n"


def test_commands_log_in_with_scram(authorizing_gateway: AuthorizingServer, tmp_path: Path) -> None:
    server = authorizing_gateway
    (tmp_path / "bob").write_text("bob's\n")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        added = users(
            server,
            *("add", "bob", "--mechanism", mechanism, "--password-file", str(tmp_path / "bob")),
        )
        printed(added)
        login = (
            *(
                "--bootstrap-server",
                server.address,
                "--sasl-mechanism",
                mechanism,
                "--timeout",
                "9",
            ),
            *("--user", "bob", "--password-file"),
        )
        assert printed(kopgate("topics", "list", *login, str(tmp_path / "bob"))) == ""
        refused = kopgate("topics", "list", *login, str(server.folder / "password"))
        assert refused.exit_code == 1
        assert "wrong user name or password" in refused.stderr
        # Without permission on the cluster the message says what to do.
        refused = kopgate("acls", "list", *login, str(tmp_path / "bob"))
        assert "log in (--user) as a super user" in refused.stderr
    printed(users(server, "remove", "bob"))


def test_commands_use_a_client_certificate(authorizing_gateway: AuthorizingServer) -> None:
    server = authorizing_gateway
    how = ("--bootstrap-server", server.tls_address, "--tls-ca", str(server.folder / "ca.crt"))
    certificate = ("--tls-certificate", str(server.folder / "client.crt"))
    key = ("--tls-key", str(server.folder / "client.key"))
    # The certificate is that of the super user.
    printed(kopgate("acls", "list", *how, *certificate, *key))
    without_key = kopgate("acls", "list", *how, *certificate)
    assert "--tls-key" in without_key.stderr
    without = kopgate("acls", "list", *how, "--timeout", "3")
    assert without.exit_code == 1
    assert "--tls-certificate" in without.stderr


def test_server_without_authorizer_is_reported_with_the_remedy(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        at = "{}:{}".format(*running.address)
        refused = kopgate("acls", "list", "--bootstrap-server", at, "--timeout", "60")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "Error: No Authorizer is configured on the broker; start the gateway with "
        "authorizer=acls, or Kafka with authorizer.class.name\n",
    )
