"""A gateway and Apache Kafka with the same users, on listeners with and without TLS and SASL."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

from auth.scram import HASHES, new_salt, salt_password
from auth.users import PasswordHash, edit_users
from bench.logins.sasl_client import PASSWORD, LoginConnection, LoginFailed
from bench.servers import BenchGateway, cpu_seconds
from tests.testkit.certificates import Authority
from tests.testkit.gateway import Peer
from tests.testkit.kafka import G1, VERSION, Kafka, Secured

LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
MECHANISMS = ("PLAIN", *HASHES)
USERS = 2_000

#: The first users, which have SCRAM credentials.
SCRAM_USERS = 100
READY_SECONDS = 60.0


@dataclass(frozen=True)
class LoginServer:
    """`addresses` maps listener names to host:port."""

    name: str
    pid: int
    addresses: dict[str, str]

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)


def user_name(number: int) -> str:
    return f"user{number:04}"


@contextmanager
def login_servers(*, has_kafka: bool) -> Iterator[list[LoginServer]]:
    """The gateway, and Kafka if asked for."""
    folder = Path(tempfile.mkdtemp(prefix="kopgate-logins-"))
    stops = []
    try:
        gateway = _start_gateway(folder)
        stops.append(gateway.stop)
        bootstrap = [gateway.bootstrap, *gateway.others]
        servers = [
            LoginServer(
                gateway.name, gateway._process.pid, dict(zip(LISTENERS, bootstrap, strict=True))
            )
        ]
        if has_kafka:
            kafka = _start_kafka(folder)
            stops.append(kafka.stop)
            servers.append(LoginServer(f"Kafka {VERSION}", kafka.pid, dict(kafka.listeners)))
        for server in servers:
            _add_scram_users(server)
        yield servers
    finally:
        for stop in stops:
            stop()
        shutil.rmtree(folder, ignore_errors=True)


def _start_gateway(folder: Path) -> BenchGateway:
    certificate, key = Authority().sign("localhost").write(folder, "server")
    (folder / "pair.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    stored = PasswordHash.of(PASSWORD)
    with edit_users(folder / "users") as users:
        users |= {user_name(number): stored for number in range(USERS)}
    settings = {
        "users_file": folder / "users",
        "sasl_enabled_mechanisms": ",".join(MECHANISMS),
        "ssl_certificate_file": certificate,
        "ssl_key_file": key,
        "connection_failed_authentication_delay_ms": 0,
        # A line for each of thousands of refused log-ins.
        "log_level": "error",
    }
    arguments = [word for name in LISTENERS[1:] for word in ("--listener", f"{name}://127.0.0.1:0")]
    arguments += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return BenchGateway.start(arguments=arguments)


def _start_kafka(folder: Path) -> Kafka:
    """The login module of SCRAM comes from a file, that of PLAIN from `Secured`."""
    jaas = folder / "jaas.conf"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas.write_text(f"KafkaServer {{ {module} required; }};\n")
    return Kafka.start(
        secured=Secured(
            tuple((user_name(number), PASSWORD) for number in range(USERS)), folder / "pair.pem"
        ),
        heap="-Xmx1g",
        flags=("-Xms1g", *G1, f"-Djava.security.auth.login.config={jaas}"),
        sasl_enabled_mechanisms=",".join(MECHANISMS),
        connection_failed_authentication_delay_ms="0",
    )


def _add_scram_users(server: LoginServer) -> None:
    """Add SCRAM credentials of the first users, and wait until the server knows them."""
    host, _, port = server.addresses["PLAINTEXT"].rpartition(":")
    for code, name in enumerate(HASHES, 1):
        salt = new_salt()
        salted = salt_password(name, PASSWORD, salt, 4096)
        request = AlterUserScramCredentialsRequest(
            deletions=[],
            upsertions=[
                AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                    name=user_name(number),
                    mechanism=code,
                    iterations=4096,
                    salt=salt,
                    salted_password=salted,
                )
                for number in range(SCRAM_USERS)
            ],
        )
        with Peer((host, int(port))) as admin:
            reply = admin.request(request, AlterUserScramCredentialsResponse, 0)
        failed = [row.error_message for row in reply.results if row.error_code]
        if failed:
            raise RuntimeError(f"{server.name}: {failed[0]}")
        _wait_for_user(server, name, user_name(SCRAM_USERS - 1))


def _wait_for_user(server: LoginServer, mechanism: str, user: str) -> None:
    end = time.monotonic() + READY_SECONDS
    while True:
        try:
            with LoginConnection(server.addresses["SASL_PLAINTEXT"]) as connection:
                connection.log_in(mechanism, user)
        except LoginFailed:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return
