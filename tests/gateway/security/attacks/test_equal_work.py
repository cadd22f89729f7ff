"""A wrong user name costs the gateway the same as a wrong password.

Calls are compared instead of times: every function that the mechanism calls, in C too, with the
parameters of scrypt. `python -m bench.logins --guesses` measures the times.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin.users import AlterUserScramCredentialsRequest

from auth.mechanism import AuthenticationBusy, AuthenticationFailed, Mechanism
from auth.plain import PlainMechanism
from auth.scram import HASHES, ScramMechanism, salt_password
from auth.users import PasswordHash, UsersFile
from tests.fakes.broker import open_environment
from tests.gateway.handlers.handler_calls import call
from tests.gateway.security.attacks.logins import LOGINS, PASSWORD, wrong

#: As long as the user's name, and not a user.
USER, UNKNOWN = "alice", "carol"

#: A salt of Kafka's tools has 23 to 26 characters, 32 to 36 in base64.
SALT = re.compile(rb"s=[^,]{32,36},")

KINDS = {name: code for code, name in enumerate(HASHES, 1)}


@pytest.fixture
def passwords(tmp_path: Path) -> UsersFile:
    path = tmp_path / "users"
    path.write_text(f"{USER}:{PasswordHash.of(PASSWORD, log_cost=2)}\n")
    path.chmod(0o600)
    return UsersFile(path, lambda: 0.0, lambda _: None)


async def at_once(host: str, check: Callable[[], bool]) -> bool:
    return check()


def scram(name: str) -> ScramMechanism:
    env = open_environment(
        listeners=["SASL_PLAINTEXT://127.0.0.1:9092"], sasl_enabled_mechanisms=tuple(HASHES)
    )
    salt = b"0123456789abcdefghijklmno"
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=USER,
        mechanism=KINDS[name],
        iterations=4096,
        salt=salt,
        salted_password=salt_password(name, PASSWORD, salt, 4096),
    )
    call(env, AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), 0)
    return ScramMechanism(name, lambda: env.broker.scram_credentials, lambda: "server-nonce")


@pytest.fixture(params=LOGINS)
def attacked(request: pytest.FixtureRequest, passwords: UsersFile) -> tuple[str, Mechanism]:
    """A mechanism with alice as its only user, on the real stores of passwords."""
    name = request.param
    mechanism = scram(name) if name in HASHES else PlainMechanism(passwords, at_once)
    # The first log-in after a change of users may prepare what later ones use.
    list(calls_of(mechanism, wrong(name, USER)))
    return name, mechanism


def calls_of(mechanism: Mechanism, conversation: Any) -> Iterator[str]:
    """The calls of a log-in that fails, and the shape of each answer."""
    exchange = mechanism.begin("192.0.2.1")
    token = next(conversation)
    while True:
        seen: list[str] = []

        def record(frame: Any, event: str, argument: Any, seen: list[str] = seen) -> None:
            if event == "call":
                seen.append(frame.f_code.co_qualname)
            elif event == "c_call" and argument is not divmod:
                # A call for each digit of a decoy's salt, which is computed for users, too.
                seen.append(argument.__qualname__)

        async def respond(token: bytes = token, record: Any = record) -> Any:
            # It would call the finalizers of objects of other tests, such as event loops.
            gc.disable()
            sys.setprofile(record)
            try:
                return await exchange.respond(token)
            finally:
                sys.setprofile(None)
                gc.enable()

        try:
            outcome = asyncio.run(respond())
        except AuthenticationFailed as failure:
            yield from seen
            yield failure.reason
            return
        yield from seen
        answer = SALT.sub(b"s=SALT,", outcome.token)
        yield f"an answer of {len(answer)} bytes without its salt"
        token = conversation.send(outcome.token)


def test_wrong_user_and_wrong_password_cause_the_same_calls(
    attacked: tuple[str, Mechanism],
) -> None:
    name, mechanism = attacked
    known = list(calls_of(mechanism, wrong(name, USER)))
    unknown = list(calls_of(mechanism, wrong(name, UNKNOWN)))
    assert known == unknown
    assert known[-1] == "wrong user name or password"
    assert any("hmac" in step or "scrypt" in step for step in known)


def test_password_of_another_user_causes_the_same_calls(attacked: tuple[str, Mechanism]) -> None:
    name, mechanism = attacked
    known = list(calls_of(mechanism, wrong(name, USER)))
    assert known == list(calls_of(mechanism, wrong(name, UNKNOWN, PASSWORD)))


def test_scrypt_has_the_same_parameters(
    passwords: UsersFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []
    scrypt = hashlib.scrypt

    def counted(password: bytes, **how: Any) -> bytes:
        costs.append({**how, "salt": len(how["salt"])})
        return scrypt(password, **how)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    assert not passwords.check(USER, "guess")
    assert not passwords.check(UNKNOWN, "guess")
    assert costs[0] == costs[1]


def test_password_cache_does_not_tell_users(passwords: UsersFile) -> None:
    """After alice has logged in, a wrong password for her and another user cause the same calls.

    The cache is asked for name and password together.
    """
    assert passwords.check(USER, PASSWORD)
    assert passwords.is_cached(USER, PASSWORD)
    plain = PlainMechanism(passwords, at_once)
    known = list(calls_of(plain, wrong("PLAIN", USER)))
    assert known == list(calls_of(plain, wrong("PLAIN", UNKNOWN)))
    assert known == list(calls_of(plain, wrong("PLAIN", UNKNOWN, PASSWORD)))


def test_full_queue_does_not_tell_users(passwords: UsersFile) -> None:
    """Not even by a correct password, unless it was verified recently."""

    async def busy(host: str, check: Callable[[], bool]) -> bool:
        raise AuthenticationBusy("full")

    plain = PlainMechanism(passwords, busy)
    for user, password in ((USER, "guess"), (UNKNOWN, "guess"), (USER, PASSWORD)):
        exchange = plain.begin("192.0.2.1")
        with pytest.raises(AuthenticationBusy):
            asyncio.run(exchange.respond(f"\0{user}\0{password}".encode()))
