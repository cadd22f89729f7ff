"""Servers that several files share, one of each kind for all tests of the session.

The files of tests that use them run in one worker (`tests/distribution.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from auth.users import PasswordHash, edit_users
from tests.legacy_clients.brokers import are_required
from tests.testkit.cache import CannotInstall
from tests.testkit.certificates import Authority
from tests.testkit.gateway import gateway
from tests.testkit.kafka import MODERN, VERSION, Kafka, Secured

ADMIN, PASSWORD = "admin", "s3cret"
#: Short, so that members of consumer groups soon have their partitions.
HEARTBEAT_INTERVAL = {"group_consumer_heartbeat_interval_ms": "500"}
MIN_HEARTBEAT_INTERVAL = {"group_consumer_min_heartbeat_interval_ms": "500"}


@pytest.fixture(scope="session")
def modern_kafka() -> Iterator[str]:
    """The address of Kafka 4."""
    try:
        with Kafka.start(version=MODERN, **HEARTBEAT_INTERVAL, **MIN_HEARTBEAT_INTERVAL) as kafka:
            yield kafka.bootstrap
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


@dataclass(frozen=True)
class AuthorizingServer:
    """A server on which `admin` is a super user. `folder` has its password and configuration."""

    name: str
    address: str
    tls_address: str
    folder: Path
    listeners: Mapping[str, str]

    @property
    def login(self) -> list[str]:
        """Options of `kopgate` for all commands but `kopgate users`."""
        return [*("--bootstrap-server", self.address, "--user", ADMIN), *self.password_options]

    @property
    def password_options(self) -> list[str]:
        return ["--timeout", "60", "--password-file", str(self.folder / "password")]


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of servers and clients."""
    folder = tmp_path_factory.mktemp("credentials")
    authority = Authority()
    authority.write(folder)
    certificate, key = authority.sign().write(folder, "server")
    (folder / "server.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    authority.sign("client").write(folder, "client")
    with edit_users(folder / "users") as users:
        users[ADMIN] = PasswordHash.of(PASSWORD, log_cost=4)
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "wrong").write_text("wr0ng\n")
    (folder / "admin.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{ADMIN}" password="{PASSWORD}";\n'
    )
    return folder


@pytest.fixture(scope="session")
def authorizing_gateway(
    credentials: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AuthorizingServer]:
    settings = {
        "authorizer": "acls",
        "super_users": f"User:{ADMIN}",
        "users_file": credentials / "users",
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl_certificate_file": credentials / "server.crt",
        "ssl_key_file": credentials / "server.key",
        "ssl_ca_file": credentials / "ca.crt",
        "ssl_client_auth": "required",
        "ssl_principal_mapping_rules": "RULE:^CN=client.*$/admin/",
    }
    folder = tmp_path_factory.mktemp("authorizing")
    with gateway(folder, listeners=("SASL_PLAINTEXT", "SSL"), **settings) as running:
        at = {name: "{}:{}".format(*address) for name, address in running.addresses.items()}
        yield AuthorizingServer("gateway", at["SASL_PLAINTEXT"], at["SSL"], credentials, at)
        assert PASSWORD not in running.log.read_text()
        assert running.stop() == 0


def _started(credentials: Path, version: str) -> Iterator[AuthorizingServer]:
    secured = Secured(((ADMIN, PASSWORD),), credentials / "server.pem")
    try:
        with Kafka.start(
            version=version,
            secured=secured,
            authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            super_users=f"User:ANONYMOUS;User:{ADMIN}",
        ) as kafka:
            at = kafka.listeners
            yield AuthorizingServer(
                f"Kafka {version}", at["SASL_PLAINTEXT"], at["SSL"], credentials, at
            )
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


@pytest.fixture(scope="session")
def authorizing_kafka(credentials: Path) -> Iterator[AuthorizingServer]:
    yield from _started(credentials, VERSION)


@pytest.fixture(scope="session")
def start_authorizing_kafka(credentials: Path) -> Callable[[str], Iterator[AuthorizingServer]]:
    """Start a Kafka of another version."""
    return partial(_started, credentials)
