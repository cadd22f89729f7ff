"""A gateway with secrets in every place, and a search for them in everything that it writes.

The log has level debug. Only the files that hold the secrets by design are not searched: those of
the settings, and the store.
"""

from __future__ import annotations

import gzip
import hashlib
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from auth.users import PasswordHash, edit_users
from tests.auth.test_scram import ScramClient
from tests.testkit.certificates import Authority
from tests.testkit.gateway import GatewayProcess, Peer, encode_request, gateway

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("hostile")]

PASSWORD = "plugh-password-of-alice"
GUESS = "plover-guess-of-mallory"
PASSPHRASE = "xyzzy-passphrase-of-the-key"
SCRAM_PASSWORD = "fee-fie-foe-foo-of-carol"
SALT = b"salt-of-carol"
SALTED = hashlib.pbkdf2_hmac("sha256", SCRAM_PASSWORD.encode(), SALT, 4096)

TOKENS = [
    f"\0alice\0{GUESS}",
    f"\0{GUESS}\0alice",
    f"{GUESS}\0alice\0{PASSWORD}",
    f"\0alice\0{PASSWORD}\0",
    f"alice:{PASSWORD}",
    PASSWORD,
    f"n,,n={PASSWORD},r={GUESS},p={GUESS}",
    f"n,a={PASSWORD},n={GUESS},r=x",
    f"c=biws,r={PASSWORD},p={GUESS}",
    f'{{"password":"{PASSWORD}"',
]


class Planted:
    """A gateway, its folder and the secrets, as they may appear in a text."""

    def __init__(self, server: GatewayProcess, folder: Path, stored: PasswordHash) -> None:
        self.server = server
        self.folder = folder
        *_, salt, digest = str(stored).split("$")
        secrets = [PASSWORD, GUESS, PASSPHRASE, SCRAM_PASSWORD, SALTED, stored.digest]
        self.secrets: dict[bytes, str] = {digest.encode(): "hash", salt.encode(): "salt"}
        for secret in secrets:
            raw = secret.encode() if isinstance(secret, str) else secret
            for form in (raw, raw.hex().encode(), repr(raw)[2:-1].encode()):
                self.secrets[form] = str(secret)

    def found_in(self, text: bytes) -> list[str]:
        return sorted({name for form, name in self.secrets.items() if form in text})


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Planted]:
    authority = Authority()
    certificate, key = authority.sign("server").write(
        tmp_path, "server", password=PASSPHRASE.encode()
    )
    (tmp_path / "passphrase").write_text(PASSPHRASE + "\n")
    stored = PasswordHash.of(PASSWORD)
    with edit_users(tmp_path / "users") as users:
        users["alice"] = stored
    with gateway(
        tmp_path,
        listeners=("SASL_SSL", "SASL_PLAINTEXT"),
        users_file=tmp_path / "users",
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        ssl_certificate_file=certificate,
        ssl_key_file=key,
        ssl_key_password_file=tmp_path / "passphrase",
        log_level="debug",
        traffic_log=tmp_path / "traffic",
        audit_log=tmp_path / "audit",
        connection_failed_authentication_delay_ms=0,
    ) as server:
        yield Planted(server, tmp_path, stored)


class LoginPeer(Peer):
    """A client that logs in by SaslAuthenticate v0, or by bare tokens."""

    def shake_hands(self, mechanism: str, version: int) -> None:
        request = SaslHandshakeRequest(version=version, mechanism=mechanism)
        self.send(encode_request(request, version))
        assert self.receive() is not None

    def token(self, token: bytes, version: int) -> bytes | None:
        if version == 0:
            self.send(token)
            return self.receive()
        self.send(encode_request(SaslAuthenticateRequest(version=0, auth_bytes=token), 0))
        reply = self.receive()
        return None if reply is None else reply[12:]

    def plain(self, token: str, version: int) -> bytes | None:
        self.shake_hands("PLAIN", version)
        return self.token(token.encode(), version)


def alter_request() -> AlterUserScramCredentialsRequest:
    """The request that stores carol's credential."""
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="carol", mechanism=1, iterations=4096, salt=SALT, salted_password=SALTED
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])


def alter(peer: Peer) -> None:
    """Store carol's credential."""
    reply = peer.request(alter_request(), AlterUserScramCredentialsResponse, 0)
    assert reply.results[0].error_code == 0


def described(peer: Peer) -> bytes:
    """The gateway's configs as a client sees them."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="0", configuration_keys=None
    )
    request = DescribeConfigsRequest(version=1, resources=[resource], include_synonyms=True)
    reply: Any = peer.request(request, DescribeConfigsResponse, 1)
    assert reply.results[0].configs
    return str(reply).encode()


def cut_alter_request(peer: Peer) -> None:
    """A request with a salted password that ends in its middle."""
    peer.send(encode_request(alter_request(), 0)[:-10])
    assert peer.receive() is None


def scram(peer: LoginPeer, password: str, version: int) -> None:
    client = ScramClient(user="carol", password=password)
    peer.shake_hands("SCRAM-SHA-256", version)
    answer = peer.token(client.first().encode(), version)
    assert answer is not None
    peer.token(client.final(answer).encode(), version)


def outputs(folder: Path) -> Iterator[tuple[str, bytes]]:
    yield "log", (folder / "gateway.log").read_bytes()
    for name in ("traffic", "audit"):
        for path in (folder / name).rglob("*.jsonl*"):
            raw = path.read_bytes()
            yield name, gzip.decompress(raw) if path.suffix == ".gz" else raw


def test_no_output_has_a_secret(planted: Planted) -> None:
    server = planted.server
    plain = server.addresses["SASL_PLAINTEXT"]
    with LoginPeer(plain) as admin:
        assert admin.plain(f"\0alice\0{PASSWORD}", 0) == b""
        alter(admin)
        assert planted.found_in(described(admin)) == []
        cut_alter_request(admin)
    for version in (0, 1):
        for token in TOKENS:
            for mechanism in ("PLAIN", "SCRAM-SHA-256"):
                with LoginPeer(plain) as peer:
                    peer.shake_hands(mechanism, version)
                    peer.token(token.encode(), version)
        for password in (SCRAM_PASSWORD, GUESS):
            with LoginPeer(plain) as peer:
                scram(peer, password, version)
    for token in TOKENS:
        # Where a request is due, and as the name of a mechanism's length.
        with LoginPeer(plain) as peer:
            peer.send(token.encode())
            assert peer.receive() is None
        with suppress(OSError), LoginPeer(server.addresses["SASL_SSL"]) as peer:
            peer.send_bytes(token.encode())
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with LoginPeer(server.addresses["SASL_SSL"]) as peer:
        peer.socket = context.wrap_socket(peer.socket)
        assert peer.plain(f"\0alice\0{PASSWORD}", 0) == b""
    # The files change: one of them now has an error beside a secret.
    users = planted.folder / "users"
    users.write_text(users.read_text() + f"bob:{PASSWORD}\n")
    (planted.folder / "passphrase").write_text(f"{PASSPHRASE}-wrong\n")
    found = server.wait_for_lines(0, "")
    for _ in range(100):
        with suppress(OSError), LoginPeer(server.addresses["SASL_SSL"]) as peer:
            peer.send_bytes(struct.pack(">i", 1))
        with LoginPeer(plain) as peer:
            peer.plain(f"\0alice\0{GUESS}", 0)
        found = server.wait_for_lines(1, "keeping the previous users", seconds=0.1)
        if found and server.wait_for_lines(1, "keeping the previous certificates", seconds=0):
            break
    assert found
    assert server.stop() == 0
    texts = list(outputs(planted.folder))
    assert {name for name, _ in texts} == {"log", "traffic", "audit"}
    for name, text in texts:
        assert planted.found_in(text) == [], name
    for words in (b"login failed", b"malformed", b"users file problem"):
        assert words in texts[0][1]
    audit = b"".join(text for name, text in texts if name == "audit")
    for event in (b'"login"', b'"login-failed"', b'"changed"'):
        assert event in audit


@pytest.mark.parametrize("broken", ["users", "passphrase"])
def test_failing_start_names_no_secret(tmp_path: Path, broken: str) -> None:
    certificate, key = (
        Authority().sign("server").write(tmp_path, "server", password=PASSPHRASE.encode())
    )
    (tmp_path / "passphrase").write_text(
        PASSPHRASE + ("-wrong\n" if broken == "passphrase" else "\n")
    )
    stored = PASSWORD if broken == "users" else str(PasswordHash.of(PASSWORD))
    (tmp_path / "users").write_text(f"alice:{stored}\n")
    arguments = [
        *("--store", f"lmdb:{tmp_path / 'store'}"),
        *("--listener", "SASL_SSL://127.0.0.1:0"),
        *("--set", f"users_file={tmp_path / 'users'}"),
        *("--set", f"ssl_certificate_file={certificate}"),
        *("--set", f"ssl_key_file={key}"),
        *("--set", f"ssl_key_password_file={tmp_path / 'passphrase'}"),
        *("--set", "log_level=debug"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "ssl_key_password_file" in said or "users, line 1" in said or "passphrase" in said
    assert not [secret for secret in (PASSWORD, PASSPHRASE, stored) if secret in said]
