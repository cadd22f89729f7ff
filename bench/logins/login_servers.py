"""A gateway and Apache Kafka with the same users, on listeners with and without TLS and SASL.

SSL listeners require a client certificate. Both know the same key set for OAUTHBEARER, and where
python-gssapi and a KDC are installed the same Kerberos realm.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

from auth.scram import HASHES, new_salt, salt_password
from auth.users import PasswordHash, edit_users
from bench.logins.sasl_client import PASSWORD, LoginConnection, LoginFailed
from bench.servers import BenchGateway, cpu_seconds
from tests.peers.security.kerberos import NAME, Realm
from tests.testkit.cache import CannotInstall
from tests.testkit.certificates import Authority
from tests.testkit.gateway import Peer
from tests.testkit.kafka import G1, VERSION, Kafka, Secured

LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
#: Mechanisms with user names and passwords.
WITH_PASSWORDS = ("PLAIN", *HASHES)
USERS = 2_000

#: The first users, which have SCRAM credentials.
SCRAM_USERS = 100
READY_SECONDS = 60.0
TOKEN_SECONDS = 86_400


@dataclass(frozen=True)
class LoginServer:
    """`addresses` maps listener names to host:port."""

    name: str
    pid: int
    addresses: dict[str, str]

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)


@dataclass(frozen=True)
class Credentials:
    """What clients log in with, and the files with which servers check it.

    `secret_token` is for PLAIN, as with KoP, and signed with HS256; `bearer_token` is for
    OAUTHBEARER and signed with RS256. `realm`, `keytab` and `ticket_cache` are None without
    Kerberos.
    """

    server_certificate: tuple[Path, Path]
    client_certificate: tuple[Path, Path]
    authority: Path
    secret_key: Path
    secret_token: str
    key_set: Path
    bearer_token: str
    realm: Realm | None = None
    keytab: Path | None = None
    ticket_cache: Path | None = None

    @property
    def mechanisms(self) -> list[str]:
        return [*WITH_PASSWORDS, "OAUTHBEARER", *(["GSSAPI"] if self.realm else [])]


def user_name(number: int) -> str:
    return f"user{number:04}"


@contextmanager
def login_servers(*, has_kafka: bool) -> Iterator[tuple[list[LoginServer], Credentials]]:
    """The gateway, and Kafka if asked for."""
    with ExitStack() as running:
        folder = Path(tempfile.mkdtemp(prefix="kopgate-logins-"))
        running.callback(shutil.rmtree, folder, ignore_errors=True)
        credentials = _credentials(folder, running)
        gateway = _start_gateway(folder, credentials)
        running.callback(gateway.stop)
        bootstrap = [gateway.bootstrap, *gateway.others]
        servers = [
            LoginServer(
                gateway.name, gateway._process.pid, dict(zip(LISTENERS, bootstrap, strict=True))
            )
        ]
        if has_kafka:
            kafka = _start_kafka(folder, credentials)
            running.callback(kafka.stop)
            servers.append(LoginServer(f"Kafka {VERSION}", kafka.pid, dict(kafka.listeners)))
        for server in servers:
            _add_scram_users(server)
        yield servers, credentials


def _credentials(folder: Path, running: ExitStack) -> Credentials:
    authority = Authority()
    key, secret = rsa.generate_private_key(65537, 2048), secrets.token_bytes(32)
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    key_set, secret_key = folder / "keys.json", folder / "secret.key"
    key_set.write_text(json.dumps({"keys": [{**public, "kid": "first"}]}))
    secret_key.write_bytes(secret)
    now = int(time.time())
    claims = {"sub": user_name(0), "iat": now, "exp": now + TOKEN_SECONDS}
    realm = _start_realm(running)
    keytab = ticket_cache = None
    if realm is not None:
        keytab = realm.keytab("kafka/localhost")
        ticket_cache = realm.ticket(user_name(0), realm.keytab(user_name(0)))
    return Credentials(
        authority.sign("localhost").write(folder, "server"),
        authority.sign("client").write(folder, "client"),
        authority.write(folder),
        secret_key,
        jwt.encode(claims, secret, "HS256"),
        key_set,
        jwt.encode(claims, key, "RS256", {"kid": "first"}),
        realm,
        keytab,
        ticket_cache,
    )


def _start_realm(running: ExitStack) -> Realm | None:
    """Start a KDC if it and python-gssapi are installed.

    This process and its children use it by their environment.
    """
    if find_spec("gssapi") is None:
        return None
    try:
        realm = running.enter_context(Realm.start())
    except CannotInstall:
        return None
    before = {name: os.environ.get(name) for name in realm.environment}
    running.callback(_set_environment, before)
    _set_environment(realm.environment)
    return realm


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _start_gateway(folder: Path, credentials: Credentials) -> BenchGateway:
    certificate, key = credentials.server_certificate
    stored = PasswordHash.of(PASSWORD)
    with edit_users(folder / "users") as users:
        users |= {user_name(number): stored for number in range(USERS)}
    settings = {
        "users_file": folder / "users",
        "sasl_enabled_mechanisms": ",".join(credentials.mechanisms),
        "ssl_certificate_file": certificate,
        "ssl_key_file": key,
        "ssl_ca_file": credentials.authority,
        "listener.SSL.ssl_client_auth": "required",
        "token_secret_key": credentials.secret_key.as_uri(),
        "sasl_oauthbearer_jwks_endpoint_url": credentials.key_set.as_uri(),
        "connection_failed_authentication_delay_ms": 0,
        # A line for each of thousands of refused log-ins.
        "log_level": "error",
    }
    if credentials.keytab is not None:
        settings["sasl_kerberos_keytab_file"] = credentials.keytab
    arguments = [word for name in LISTENERS[1:] for word in ("--listener", f"{name}://127.0.0.1:0")]
    arguments += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return BenchGateway.start(arguments=arguments)


def _start_kafka(folder: Path, credentials: Credentials) -> Kafka:
    certificate, key = credentials.server_certificate
    pair = folder / "pair.pem"
    pair.write_bytes(key.read_bytes() + certificate.read_bytes())
    package = "org.apache.kafka.common.security.oauthbearer"
    of_mechanisms = {
        "oauthbearer.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        "oauthbearer.sasl.server.callback.handler.class": (
            f"{package}.secured.OAuthBearerValidatorCallbackHandler"
        ),
    }
    key_set = credentials.key_set.as_uri()
    flags = [*G1, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={key_set}"]
    settings = {"sasl_oauthbearer_jwks_endpoint_url": key_set}
    if credentials.realm is not None:
        of_mechanisms["gssapi.sasl.jaas.config"] = (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
            f'keyTab="{credentials.keytab}" principal="kafka/localhost@{NAME}";'
        )
        flags.append(f"-Djava.security.krb5.conf={credentials.realm.config}")
        settings["sasl_kerberos_service_name"] = "kafka"
    return Kafka.start(
        secured=Secured(
            tuple((user_name(number), PASSWORD) for number in range(USERS)),
            pair,
            credentials.authority,
            of_mechanisms,
        ),
        heap="-Xmx1g",
        flags=("-Xms1g", *flags),
        sasl_enabled_mechanisms=",".join(credentials.mechanisms),
        connection_failed_authentication_delay_ms="0",
        **settings,
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
