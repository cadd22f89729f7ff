"""No secret gets into the log, whatever a client sends and whatever fails meanwhile.

`tests/peers/security/test_planted_secrets.py` searches all outputs of a gateway process.
"""

from __future__ import annotations

import asyncio
import io
import logging
import struct
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin.users import AlterUserScramCredentialsRequest
from twisted.internet.defer import Deferred

from auth.mechanism import AuthenticationFailed
from auth.plain import PlainMechanism
from auth.scram import ScramMechanism
from auth.users import PasswordHash, UsersFile
from gateway import logs
from gateway.protocol.session import BARE, MechanismError
from gateway.security.scram_credentials import ScramCredentials
from tests.fakes.broker import Started, open_environment
from tests.fakes.connection import MemoryClient, ScriptedMechanism, plain_frame
from tests.gateway.security.attacks.logins import (
    LOGINS,
    PASSWORD,
    PATHS,
    as_frame,
    correct,
    offering,
    shake_hands,
)
from tests.testkit.gateway import encode_request

SECRET = "xyzzy-planted-secret"
TOKENS = {
    "PLAIN": f"\0alice\0{SECRET}".encode(),
    "misplaced": f"{SECRET}\0{SECRET}\0{SECRET}\0{SECRET}".encode(),
    "as a user": f"\0{SECRET}\0{SECRET}".encode(),
    "alone": SECRET.encode(),
    "with a name": f"n,,n={SECRET},r={SECRET},p={SECRET}".encode(),
    "as JSON": f'{{"password":"{SECRET}"'.encode(),
    "not UTF-8": SECRET.encode() + b"\xff",
}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the process writes to stderr at level debug."""
    stream = io.StringIO()
    with logs.ProcessLog(stream, level="debug", levels={"": "debug"}):
        yield stream


def written(log: io.StringIO) -> str:
    """All that is written; ends the log."""
    for handler in logging.getLogger().handlers:
        if hasattr(handler, "stop"):
            handler.stop(10)
    return log.getvalue()


def appears_in(text: str) -> bool:
    """Whether at least half of the secret is there."""
    half = len(SECRET) // 2
    pieces = {SECRET[at : at + half] for at in range(len(SECRET) - half + 1)}
    return any(piece in text or piece.encode().hex() in text for piece in pieces)


def test_secret_is_found_if_it_is_there(log: io.StringIO) -> None:
    logs.get_logger("gateway").debug("event", field=f"<{SECRET[3:]}>")
    assert appears_in(written(log))


class Faulty:
    """A mechanism with a bug whose message quotes the token, and that has it in its locals."""

    name = "PLAIN"

    def __init__(self, kind: type[Exception], *, waits: bool) -> None:
        self.kind = kind
        self.waits = waits

    def begin(self, host: str) -> Any:
        return SimpleNamespace(respond=self.respond)

    async def respond(self, token: bytes) -> Any:
        password = token.decode("latin-1")
        if self.waits:
            fired: Deferred[None] = Deferred()
            fired.errback(self.kind(password))
            await fired
        try:
            raise self.kind(password)
        except self.kind as first:
            raise ValueError(f"{password}: {first}") from first


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", [KeyError, ValueError, AssertionError, OSError, AttributeError])
@pytest.mark.parametrize("waits", [False, True])
def test_bug_in_a_mechanism_is_logged_without_the_token(
    log: io.StringIO, path: int, kind: type[Exception], waits: bool
) -> None:
    mechanism: Any = Faulty(kind, waits=waits)
    client = MemoryClient([mechanism])
    shake_hands(client, "PLAIN", path)
    client.send(as_frame(TOKENS["PLAIN"], path))
    assert client.receive() == []
    assert client.is_aborted
    assert not client.session.is_ready
    text = written(log)
    assert "request failed" in text
    assert MechanismError.__name__ in text
    # The place of the bug is there.
    assert "test_secrets_in_logs.py" in text
    assert "in respond" in text
    assert not appears_in(text)


def test_traceback_of_a_bug_has_no_local_variables(log: io.StringIO) -> None:
    def fail(password: str) -> None:
        raise RuntimeError("a bug")

    try:
        fail(SECRET)
    except RuntimeError as bug:
        logs.get_logger("gateway").bug("request failed", bug)
    text = written(log)
    assert "in fail" in text
    assert not appears_in(text)


def test_bug_in_a_password_check_is_logged_without_the_password(log: io.StringIO) -> None:
    """In a worker thread, whose failure comes back through a Deferred."""

    class Broken:
        def is_cached(self, name: str, password: str) -> bool:
            return False

        def check(self, name: str, password: str) -> bool:
            raise RuntimeError(f"{name} has not {password}")

    threads = open_environment().broker
    client = MemoryClient([PlainMechanism(Broken(), threads.run_for)])
    shake_hands(client, "PLAIN", 0)
    client.send(as_frame(TOKENS["PLAIN"], 0))
    assert client.is_aborted
    text = written(log)
    assert "request failed" in text
    assert not appears_in(text)


@pytest.mark.parametrize("name", LOGINS)
@pytest.mark.parametrize("path", PATHS)
def test_refused_token_is_not_logged_nor_answered(log: io.StringIO, name: str, path: int) -> None:
    for token in TOKENS.values():
        client = offering()
        shake_hands(client, name, path)
        client.send(as_frame(token, path))
        for reply in client.receive():
            # A SCRAM server repeats the client's nonce.
            assert not appears_in(reply.decode("latin-1")) or reply.count(b",s=")
    assert not appears_in(written(log))


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_token_in_the_place_of_a_request_is_not_logged(log: io.StringIO, token: bytes) -> None:
    """A client that sends it bare where SaslAuthenticate is due, or without a handshake."""
    for has_handshake in (False, True):
        client = offering()
        if has_handshake:
            shake_hands(client, "PLAIN", 0)
        client.send(token)
        assert client.is_aborted
    assert not appears_in(written(log))


def authenticate_frames() -> Iterator[bytes]:
    for version in (0, 1, 2):
        yield as_frame(TOKENS["PLAIN"], version)


def alter_frame() -> bytes:
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="alice",
        mechanism=1,
        iterations=4096,
        salt=b"salt",
        salted_password=SECRET.encode(),
    )
    message = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
    return encode_request(message, 0)


def test_malformed_request_is_logged_without_its_bytes(log: io.StringIO) -> None:
    """Requests with a secret, cut at each byte, or with a byte changed."""
    for frame in (*authenticate_frames(), alter_frame()):
        key = struct.unpack_from(">h", frame)[0]
        spoilt = [frame[:size] for size in range(4, len(frame))]
        spoilt += [
            frame[:at] + bytes([value]) + frame[at + 1 :]
            for at in range(4, len(frame))
            for value in (0, 0x7F, 0xFF)
        ]
        for one in spoilt:
            if key == 36:
                client = offering("PLAIN")
                shake_hands(client, "PLAIN", 0)
            else:
                client = MemoryClient(broker=ENVIRONMENT.broker)
            client.send(one)
            client.receive()
    text = written(log)
    assert "malformed" in text
    assert not appears_in(text)


ENVIRONMENT = open_environment(
    listeners=["SASL_PLAINTEXT://127.0.0.1:9092"], sasl_enabled_mechanisms=("SCRAM-SHA-256",)
)


@contextmanager
def users(tmp_path: Any) -> Iterator[UsersFile]:
    path = tmp_path / "users"
    path.write_text(f"alice:{PasswordHash.of(SECRET, log_cost=1)}\n")
    path.chmod(0o600)
    yield UsersFile(path, lambda: 0.0, lambda _: None)


def test_objects_of_a_login_have_no_secret_in_their_repr(tmp_path: Any) -> None:
    credentials: ScramCredentials = ENVIRONMENT.broker.scram_credentials
    with users(tmp_path) as known:
        stored = known._hashes["alice"]
        secrets = [stored.digest, stored.salt, known._key, credentials._decoy_key]

        async def at_once(host: str, check: Any) -> Any:
            return check()

        plain = PlainMechanism(known, at_once)
        exchange = plain.begin("192.0.2.1")
        outcome = asyncio.run(exchange.respond(TOKENS["PLAIN"]))
        scram = ScramMechanism("SCRAM-SHA-256", lambda: credentials)
        other = scram.begin("192.0.2.1")
        begun = Started(other.respond(b"n,,n=alice,r=abc")).result
        decoy = credentials.decoy("SCRAM-SHA-256", "alice")
        secrets += [decoy.salt, decoy.stored_key, decoy.server_key]
        parts = [known, stored, plain, exchange, outcome, scram, other, begun, other._challenge]
        parts += [credentials, decoy, known._dummies, known._dummies.of("x"), known._cache]
        text = "".join(map(repr, parts))
    assert not appears_in(text)
    for secret in secrets:
        assert repr(secret)[2:-1] not in text
        assert secret.hex() not in text


@pytest.mark.parametrize("name", LOGINS)
def test_failures_have_no_secret_in_text_and_traceback(name: str) -> None:
    for token in TOKENS.values():
        started = Started(LOGINS[name].make().begin("192.0.2.1").respond(token))
        failure = started.failure
        if failure is not None:
            assert isinstance(failure, AuthenticationFailed)
            assert not appears_in(repr(failure) + "".join(traceback.format_exception(failure)))


def test_server_token_is_not_in_the_log_of_a_login(log: io.StringIO) -> None:
    for name in LOGINS:
        client = offering(name)
        shake_hands(client, name, BARE)
        client.send(next(correct(name)))
        client.receive()
        client.disconnect()
    text = written(log)
    assert PASSWORD not in text


def test_handshake_of_an_unknown_mechanism_logs_its_name_only(log: io.StringIO) -> None:
    client = MemoryClient([ScriptedMechanism("PLAIN", {b"x": b""})])
    body = struct.pack(">h", 5) + b"OTHER" + SECRET.encode()
    client.send(plain_frame(17, 0, body))
    client.receive()
    assert not appears_in(written(log))
