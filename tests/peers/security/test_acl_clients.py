"""Real clients and Kafka's tool with ACLs: what is allowed works, what is not is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from auth.users import PasswordHash, edit_users
from tests.testkit.gateway import GatewayProcess, gateway
from tests.testkit.kafka import TOOL_SECONDS, java
from tests.testkit.traffic_rows import read_audit_rows

pytestmark = pytest.mark.peer

USERS = ("admin", "app", "other")


def settings(folder: Path) -> dict[str, Any]:
    users = folder / "users.json"
    if not users.exists():
        with edit_users(users) as stored:
            for name in USERS:
                stored[name] = PasswordHash.of(f"{name}-secret")
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


def acls(folder: Path, server: GatewayProcess, *arguments: str) -> str:
    """Run kafka-acls.sh as the super user."""
    config = folder / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="admin-secret";\n'
    )
    argv = java(
        "kafka.admin.AclCommand",
        *("--bootstrap-server", address(server), "--command-config", str(config)),
        *arguments,
    )
    return subprocess.run(
        argv, check=True, stdout=subprocess.PIPE, text=True, timeout=TOOL_SECONDS
    ).stdout


def listed_acls(folder: Path, server: GatewayProcess) -> list[str]:
    return sorted(line.strip() for line in acls(folder, server, "--list").splitlines())


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
        acls(tmp_path, server, "--add", *ALLOWED, "--operation", "Write", "--operation", "Create")
        assert produce("app", server) == 0
        with pytest.raises(TopicAuthorizationFailedError):
            produce("other", server)
        acls(tmp_path, server, "--add", *ALLOWED, "--operation", "Read")
        with pytest.raises(GroupAuthorizationFailedError):
            consume("app", server, "readers")
        acls(
            tmp_path,
            server,
            *("--add", "--allow-principal", "User:app", "--operation", "Read"),
            *("--group", "read", "--resource-pattern-type", "prefixed"),
        )
        assert consume("app", server, "readers") == [b"value"]
        listed = listed_acls(tmp_path, server)
    # The context ends with SIGKILL.
    with gateway(tmp_path, **settings(tmp_path)) as server:
        assert listed_acls(tmp_path, server) == listed
        assert produce("app", server) == 1
        acls(tmp_path, server, "--add", "--deny-principal", "User:app", "--topic", "orders")
        with pytest.raises(TopicAuthorizationFailedError):
            produce("app", server)
        acls(tmp_path, server, "--remove", "--force", "--topic", "orders")
        with pytest.raises(TopicAuthorizationFailedError):
            produce("app", server)


def test_listings_leave_out_what_may_not_be_described(
    server: GatewayProcess, tmp_path: Path
) -> None:
    acls(tmp_path, server, "--add", *ALLOWED, "--operation", "Write", "--operation", "Create")
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
    acls(tmp_path, server, "--add", *ALLOWED, "--operation", "Write")
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
