"""A gateway, or Apache Kafka, with a listener for each way to log in.

| listener       | log-in                                                    |
|----------------|-----------------------------------------------------------|
| SASL_PLAINTEXT | PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, a user per client |
| SASL_SSL       | the same with TLS                                         |
| SSL            | a client certificate                                      |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from tests.legacy_clients.brokers import (
    NO_REBALANCE_DELAY,
    RunningBroker,
    StoreArguments,
    gateway,
    reference,
)
from tests.legacy_clients.clients import Client, table
from tests.legacy_clients.logins.users import PASSWORD, users_file
from tests.testkit.certificates import Authority
from tests.testkit.kafka import Secured
from tests.testkit.traffic_rows import Row, read_audit_rows, read_rows

#: Those of the drivers.
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WRONG_PASSWORD = "password"
SUBJECT = "CN=app,O=Tests"
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")


@dataclass(frozen=True, slots=True)
class LoginCertificates:
    """PEM files. `strange_...` are of an authority that the other side does not trust."""

    authority: Path
    server: tuple[Path, Path]
    server_in_one: Path
    client: tuple[Path, Path]
    strange_authority: Path
    strange_client: tuple[Path, Path]

    @classmethod
    def write(cls, folder: Path) -> LoginCertificates:
        ours, strange = Authority(), Authority("Other Authority")
        server = ours.sign("127.0.0.1").write(folder, "server")
        both = folder / "both.pem"
        both.write_bytes(server[1].read_bytes() + server[0].read_bytes())
        return cls(
            ours.write(folder),
            server,
            both,
            ours.sign("app").write(folder, "app"),
            strange.write(folder, "strange"),
            strange.sign("app").write(folder, "strange_app"),
        )


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """`folder` has the gateway's logs."""

    broker: RunningBroker
    tls: LoginCertificates
    folder: Path

    def address(self, listener: str) -> str:
        return self.broker.listeners[listener]

    def audit_rows(self) -> list[Row]:
        """The audit log so far."""
        return read_audit_rows(self.folder / "audit")

    def traffic_rows(self) -> list[Row]:
        return read_rows(self.folder / "traffic")

    def warnings(self) -> list[tuple[str, str]]:
        """The peer and the text of each line of the gateway's log about a connection."""
        text = (self.folder / "gateway.log").read_text(errors="replace")
        lines = [(re.search(r" peer=(\S+) ", line), line) for line in text.splitlines()]
        return [(found[1], line) for found, line in lines if found]


def mechanisms_of(client: Client) -> list[str]:
    """The mechanisms that both the library and its driver have."""
    return [name for name in MECHANISMS if name in client.sasl]


@contextmanager
def secured_broker(
    folder: Path, stored: StoreArguments, *, is_reference: bool
) -> Iterator[SecuredBroker]:
    """Run the broker. Its users are the clients of the table, all with the same password."""
    tls = LoginCertificates.write(folder)
    users = [row.name for row in table().values() if row.sasl]
    if is_reference:
        plain = tuple((name, PASSWORD) for name in users)
        running = reference(Secured(plain, tls.server_in_one, tls.authority))
    else:
        running = gateway(
            folder,
            [f"{name}://127.0.0.1:0" for name in LISTENERS],
            [*NO_REBALANCE_DELAY, *_gateway_arguments(folder, tls, users)],
            stored,
        )
    with running as broker:
        _create_scram_credentials(broker.bootstrap, users)
        yield SecuredBroker(broker, tls, folder)


def _gateway_arguments(folder: Path, tls: LoginCertificates, users: list[str]) -> Iterator[str]:
    settings = {
        "users_file": users_file(folder, users),
        "sasl_enabled_mechanisms": ",".join(MECHANISMS),
        "ssl_certificate_file": tls.server[0],
        "ssl_key_file": tls.server[1],
        "ssl_ca_file": tls.authority,
        "listener.SSL.ssl_client_auth": "required",
        "audit_log": folder / "audit",
        "traffic_log": folder / "traffic",
    }
    for name, value in settings.items():
        yield from ("--set", f"{name}={value}")


def _create_scram_credentials(bootstrap: str, users: list[str]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        # A request may change a user once.
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = [UserScramCredentialUpsertion(name, mechanism, PASSWORD) for name in users]
            failed = {
                name: why
                for name, why in admin.alter_user_scram_credentials(wanted).items()
                if why is not None
            }
            if failed:
                raise RuntimeError(f"no SCRAM credentials: {failed}")
    finally:
        admin.close()
