"""HAProxy in front of a gateway: clients keep their addresses, and no other peer can state one."""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from auth.users import PasswordHash, edit_users
from gateway.cli.main import main
from tests.legacy_clients.brokers import are_required
from tests.legacy_clients.clients import Record, Security, Span, consume, produce, table
from tests.testkit.certificates import Authority
from tests.testkit.gateway import GatewayProcess, encode_request, gateway
from tests.testkit.kafka import free_ports
from tests.testkit.traffic_rows import read_audit_rows, wait_for_rows
from tests.used_peers import uses

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("proxy protocol")]

MANUAL = Path(__file__).parents[3] / "docs" / "authentication.md"

#: How HAProxy sends the header, by listener.
SENT = {
    "V_ONE": "send-proxy",
    "V_TWO": "send-proxy-v2",
    "SSL": "send-proxy",
    "SASL_SSL": "send-proxy-v2",
}
PROXY = "127.0.0.9"
MAX_PER_IP = 30
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED = 3, 29


@dataclass
class Proxied:
    """A gateway behind HAProxy. `frontends` has HAProxy's port by listener."""

    gateway: GatewayProcess
    folder: Path
    frontends: dict[str, int]

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.frontends[listener]}"

    @contextmanager
    def connected(self, listener: str, source: str) -> Iterator[socket.socket]:
        address = ("127.0.0.1", self.frontends[listener])
        with socket.create_connection(address, 60, source_address=(source, 0)) as client:
            yield client

    @contextmanager
    def direct(self, listener: str, source: str) -> Iterator[socket.socket]:
        """A connection that does not pass through HAProxy."""
        address = self.gateway.addresses[listener]
        with socket.create_connection(address, 60, source_address=(source, 0)) as client:
            yield client


def configuration(server: GatewayProcess, frontends: dict[str, int]) -> str:
    lines = ["defaults", " mode tcp"]
    lines += [f" timeout {name} 1h" for name in ("client", "server")] + [" timeout connect 10s"]
    for listener, port in frontends.items():
        host, backend = server.addresses[listener]
        lines += [
            f"listen {listener}",
            f" bind 127.0.0.1:{port}",
            f" server gateway {host}:{backend} source {PROXY} {SENT[listener]}"
            " check check-send-proxy inter 500ms",
        ]
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def haproxy() -> str:
    command = shutil.which("haproxy")
    if command is None:
        (pytest.fail if are_required() else pytest.skip)("haproxy is not installed")
    told = subprocess.run([command, "-v"], check=True, capture_output=True, text=True).stdout
    uses("HAProxy", re.search(r"version (\d+\.\d+\.\d+)", told)[1])
    return command


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, haproxy: str) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("proxied")
    authority = Authority()
    authority.write(folder)
    certificate, key = authority.sign().write(folder, "server")
    with edit_users(folder / "users") as users:
        users["alice"] = PasswordHash.of("s3cret", log_cost=4)
    (folder / "password").write_text("s3cret\n")
    frontends = dict(zip(SENT, free_ports(len(SENT)), strict=True))
    settings = {
        "listener_security_protocol_map": "V_ONE:PLAINTEXT,V_TWO:PLAINTEXT",
        "advertised": ",".join(f"{name}://127.0.0.1:{port}" for name, port in frontends.items()),
        "proxy_protocol_from": PROXY,
        "max_connections_per_ip": MAX_PER_IP,
        "authorizer": "acls",
        "allow_everyone_if_no_acl_found": "true",
        "super_users": "User:alice",
        "users_file": folder / "users",
        "ssl_certificate_file": certificate,
        "ssl_key_file": key,
        "traffic_log": folder / "traffic",
        "audit_log": folder / "audit",
    }
    with gateway(folder, listeners=tuple(SENT), **settings) as server:
        (folder / "haproxy.cfg").write_text(configuration(server, frontends))
        with (
            (folder / "haproxy.log").open("w") as log,
            subprocess.Popen(
                [haproxy, "-db", "-f", folder / "haproxy.cfg"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                made = Proxied(server, folder, frontends)
                for listener in SENT:
                    wait_until_accepts(made, listener)
                yield made
            finally:
                process.kill()
    assert "is DOWN" not in (folder / "haproxy.log").read_text()


def wait_until_accepts(proxied: Proxied, listener: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with proxied.connected(listener, "127.0.0.1"):
                return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, (proxied.folder / "haproxy.log").read_text()
            time.sleep(0.05)


def answered(client: socket.socket, request: bytes = API_VERSIONS) -> bytes:
    """The answer to a request, without its length; empty if the connection is closed."""
    try:
        client.sendall(request)
        size = client.recv(4, socket.MSG_WAITALL)
        return client.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL) if size else b""
    except (ConnectionResetError, BrokenPipeError):
        return b""


def peers_of(proxied: Proxied, listener: str, software: str | None = None) -> set[str]:
    """The addresses of the clients on a listener that sent requests, by the traffic log."""
    rows = wait_for_rows(
        proxied.folder / "traffic",
        lambda row: (
            row.get("listener") == listener
            and bool(row.get("client_ids"))
            and (software is None or software in row["client_ids"])
        ),
    )
    return {row["peer"] for row in rows}


def login(proxied: Proxied, listener: str) -> dict[str, Any]:
    how: dict[str, Any] = {"bootstrap_servers": proxied.at(listener), "client_id": listener}
    if listener.endswith("SSL"):
        how |= {"security_protocol": listener, "ssl_cafile": str(proxied.folder / "ca.crt")}
    if listener.startswith("SASL"):
        how |= {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "s3cret",
        }
    return how


@pytest.mark.parametrize("listener", SENT)
def test_kafka_client_works_and_keeps_its_address(proxied: Proxied, listener: str) -> None:
    how = login(proxied, listener)
    topic = f"by-{listener}"
    producer = KafkaProducer(**how)
    large = bytes(600_000)
    sent = [producer.send(topic, value) for value in (b"first", large, b"last")]
    assert [future.get(60).offset for future in sent] == [0, 1, 2]
    producer.close()
    consumer = KafkaConsumer(topic, **how, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    assert [next(consumer).value for _ in range(3)] == [b"first", large, b"last"]
    consumer.close()
    assert peers_of(proxied, listener, listener) == {"127.0.0.1"}


@pytest.mark.parametrize("listener", ["V_ONE", "SSL"])
def test_old_java_client_works(proxied: Proxied, listener: str) -> None:
    client = table()["java-0.10.0.1"]
    security = Security(authority=proxied.folder / "ca.crt" if listener == "SSL" else None)
    records = [Record("old", 0, None, f"{listener} {number}".encode()) for number in range(3)]
    (first, *_) = produce(client, proxied.at(listener), records, security=security)
    read = consume(
        client, proxied.at(listener), [Span("old", 0, first.offset, 3)], security=security
    )
    assert [record.value for record in read] == [record.value for record in records]
    assert peers_of(proxied, listener, client.name) == {"127.0.0.1"}


def test_audit_log_has_the_address_of_the_client(proxied: Proxied) -> None:
    done = CliRunner().invoke(
        main,
        [
            *("topics", "list", "--bootstrap-server", proxied.at("SASL_SSL"), "--user", "alice"),
            *("--password-file", str(proxied.folder / "password")),
            *("--tls-ca", str(proxied.folder / "ca.crt"), "--timeout", "60"),
        ],
    )
    assert done.exit_code == 0, done.output
    rows = wait_for_rows(
        proxied.folder / "audit", lambda row: row["event"] == "login", read=read_audit_rows
    )
    assert {(row["peer"].rpartition(":")[0], row["principal"]) for row in rows} == {
        ("127.0.0.1", "User:alice")
    }


def test_acl_hosts_are_addresses_of_clients(proxied: Proxied) -> None:
    admin = KafkaAdminClient(**login(proxied, "SASL_SSL"))
    allowed = ResourcePattern(ResourceType.TOPIC, "guarded")
    admin.create_acls(
        [
            ACL(
                "User:ANONYMOUS",
                "127.0.0.4",
                ACLOperation.DESCRIBE,
                ACLPermissionType.ALLOW,
                allowed,
            )
        ]
    )
    admin.close()
    request = MetadataRequest(
        version=4,
        topics=[MetadataRequest.MetadataRequestTopic(name="guarded")],
        allow_auto_topic_creation=False,
    )
    codes = {}
    for source in (PROXY, "127.0.0.3", "127.0.0.4"):
        with proxied.connected("V_TWO", source) as client:
            frame = encode_request(request, 4)
            reply = answered(client, struct.pack(">i", len(frame)) + frame)
            codes[source] = MetadataResponse.decode(reply[4:], version=4).topics[0].error_code
    assert codes == {
        PROXY: TOPIC_AUTHORIZATION_FAILED,
        "127.0.0.3": TOPIC_AUTHORIZATION_FAILED,
        "127.0.0.4": UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_limit_per_address_counts_clients_not_the_proxy(proxied: Proxied) -> None:
    begun = len(proxied.gateway.lines())
    with ExitStack() as held:
        for source in ("127.0.0.5", "127.0.0.6"):
            for _ in range(MAX_PER_IP):
                assert answered(held.enter_context(proxied.connected("V_ONE", source)))
            refused = held.enter_context(proxied.connected("V_ONE", source))
            assert not answered(refused)
            port = refused.getsockname()[1]
            # HAProxy may have tried again from the same port.
            lines = proxied.gateway.wait_for_lines(1, f"peer={source}:{port} ", after=begun)
            assert lines
            for line in lines:
                assert "connection refused" in line
                assert f"max_connections_per_ip={MAX_PER_IP} reached" in line


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"PROXY TCP4 127.0.0.4 127.0.0.1 1 2\r\n",
        bytes.fromhex("0d0a0d0a000d0a515549540a2111000c7f0000047f00000100010002"),
    ],
    ids=["none", "v1", "v2"],
)
def test_header_from_another_address_is_refused(proxied: Proxied, header: bytes) -> None:
    begun = len(proxied.gateway.lines())
    with proxied.direct("V_ONE", "127.0.0.1") as client:
        name = "{}:{}".format(*client.getsockname())
        assert not answered(client, header + API_VERSIONS)
    (line,) = proxied.gateway.wait_for_lines(1, f"peer={name} ", after=begun)
    assert "its address is not in proxy_protocol_from" in line


@pytest.mark.parametrize("listener", ["V_ONE", "SSL"])
def test_proxy_without_header_is_refused(proxied: Proxied, listener: str) -> None:
    begun = len(proxied.gateway.lines())
    with proxied.direct(listener, PROXY) as client:
        name = "{}:{}".format(*client.getsockname())
        assert not answered(client)
    (line,) = proxied.gateway.wait_for_lines(1, f"peer={name} ", after=begun)
    assert "no PROXY protocol header" in line


@pytest.mark.parametrize("listener", SENT)
def test_health_checks_are_connections_of_the_proxy_without_log_lines(
    proxied: Proxied, listener: str
) -> None:
    checks = wait_for_rows(
        proxied.folder / "traffic",
        lambda row: (
            row.get("event") == "closed" and (row["listener"], row["peer"]) == (listener, PROXY)
        ),
    )
    ports = {row["peer_port"] for row in checks}
    assert ports
    assert {
        line
        for line in proxied.gateway.lines()
        if any(f"peer={PROXY}:{port} " in line for port in ports)
    } == set()


def test_documented_configuration_is_valid(haproxy: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```haproxy\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    (tmp_path / "haproxy.cfg").write_text(block)
    done = subprocess.run(
        [haproxy, "-c", "-f", tmp_path / "haproxy.cfg"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
