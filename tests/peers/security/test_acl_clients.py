"""Real clients and Kafka's tool with ACLs: what is allowed works, what is not is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from auth.users import PasswordHash, edit_users
from tests.peers.comparison import run_tools
from tests.testkit.gateway import GatewayProcess, gateway
from tests.testkit.kafka import MODERN
from tests.testkit.traffic_rows import read_audit_rows

pytestmark = pytest.mark.peer

USERS = ("admin", "app", "other")


def settings(folder: Path) -> dict[str, Any]:
    users = folder / "users.json"
    if not users.exists():
        with edit_users(users) as stored:
            for name in USERS:
                stored[name] = PasswordHash.of(f"{name}-secret", log_cost=4)
    return {
        "listeners": ("SASL_PLAINTEXT",),
        "authorizer": "acls",
        "super_users": "User:admin",
        "users_file": users,
        "audit_log": folder / "audit",
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GatewayProcess]:
    with gateway(tmp_path, **settings(tmp_path)) as running:
        yield running


def address(server: GatewayProcess) -> str:
    host, port = server.address
    return f"{host}:{port}"


def acls(folder: Path, server: GatewayProcess, *commands: tuple[str, ...]) -> list[str]:
    """Run kafka-acls.sh with each of these arguments as the super user; return what it prints."""
    config = folder / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="admin-secret";\n'
    )
    tools = [("kafka-acls", "--command-config", str(config), *words) for words in commands]
    printed = run_tools(address(server), *tools, version=MODERN)
    assert [one.code for one in printed] == [0] * len(tools), printed
    return [one.output for one in printed]


def sorted_lines(output: str) -> list[str]:
    return sorted(line.strip() for line in output.splitlines())


def allow(server: GatewayProcess, *operations: AclOperation) -> None:
    """Let `app` do this with `orders`, without Kafka's tool, whose start takes a second."""
    login_of_admin = {
        name.replace("_plain", "").replace("_", "."): value
        for name, value in login("admin", server).items()
    }
    admin = AdminClient(login_of_admin)
    for done in admin.create_acls(
        [
            AclBinding(
                ResourceType.TOPIC,
                "orders",
                ResourcePatternType.LITERAL,
                "User:app",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
    ).values():
        done.result(60)


def login(name: str, server: GatewayProcess) -> dict[str, Any]:
    return {
        "bootstrap_servers": address(server),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": name,
        "sasl_plain_password": f"{name}-secret",
    }


def produce(name: str, server: GatewayProcess) -> int:
    producer = KafkaProducer(**login(name, server), enable_idempotence=False)
    try:
        return int(producer.send("orders", b"value").get(60).offset)
    finally:
        producer.close()


def consume(name: str, server: GatewayProcess, group: str) -> list[bytes]:
    consumer = KafkaConsumer(
        "orders", **login(name, server), group_id=group, auto_offset_reset="earliest"
    )
    try:
        return [record.value for records in consumer.poll(60_000).values() for record in records]
    finally:
        consumer.close(autocommit=False)


ALLOWED = ("--allow-principal", "User:app", "--topic", "orders")


def test_acls_of_kafkas_tool_apply_at_once_and_survive_kill(tmp_path: Path) -> None:
    with gateway(tmp_path, **settings(tmp_path)) as server:
        with pytest.raises(TopicAuthorizationFailedError):
            produce("app", server)
        rights = ("--operation", "Write", "--operation", "Create", "--operation", "Read")
        acls(tmp_path, server, ("--add", *ALLOWED, *rights))
        assert produce("app", server) == 0
        with pytest.raises(TopicAuthorizationFailedError):
            produce("other", server)
        with pytest.raises(GroupAuthorizationFailedError):
            consume("app", server, "readers")
        read = ("--add", "--allow-principal", "User:app", "--operation", "Read")
        prefixed = ("--group", "read", "--resource-pattern-type", "prefixed")
        _, listed = acls(tmp_path, server, (*read, *prefixed), ("--list",))
        assert "operation=READ" in listed
        assert consume("app", server, "readers") == [b"value"]
    # The context ends with SIGKILL.
    with gateway(tmp_path, **settings(tmp_path)) as server:
        assert produce("app", server) == 1
        again, _ = acls(
            tmp_path,
            server,
            ("--list",),
            ("--add", "--deny-principal", "User:app", "--topic", "orders"),
        )
        assert sorted_lines(again) == sorted_lines(listed)
        with pytest.raises(TopicAuthorizationFailedError):
            produce("app", server)
        acls(tmp_path, server, ("--remove", "--force", "--topic", "orders"))
        with pytest.raises(TopicAuthorizationFailedError):
            produce("app", server)


def test_listings_leave_out_what_may_not_be_described(server: GatewayProcess) -> None:
    allow(server, AclOperation.WRITE, AclOperation.CREATE)
    produce("app", server)
    for name, topics in (("app", ["orders"]), ("other", []), ("admin", ["orders"])):
        admin = KafkaAdminClient(**login(name, server))
        try:
            assert sorted(admin.list_topics()) == topics
        finally:
            admin.close()


def test_audit_log_names_refusals_and_changes(server: GatewayProcess, tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(TopicAuthorizationFailedError):
            produce("other", server)
    allow(server, AclOperation.WRITE)
    assert server.stop() == 0
    rows = read_audit_rows(tmp_path / "audit")
    refused = [row for row in rows if row["event"] == "refused"]
    assert {
        (row["principal"], row["api"], row["operation"], row["resource"]) for row in refused
    } == {("User:other", "METADATA", "DESCRIBE", "TOPIC:orders")}
    (changed,) = [row for row in rows if row["event"] == "changed" and "WRITE" in row["resource"]]
    assert (changed["principal"], changed["kind"], changed["action"]) == (
        "User:admin",
        "acl",
        "add",
    )
    assert changed["resource"] == "ALLOW User:app from * WRITE TOPIC:orders (LITERAL)"
    assert "secret" not in str(rows)
