"""The SASL mechanisms under attack, and a client for each.

A new mechanism needs one entry in `LOGINS`; all tests of this folder then attack it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateResponse

from auth.mechanism import Mechanism
from auth.plain import PlainMechanism
from auth.scram import HASHES, ScramCredential, ScramMechanism, salt_password
from gateway.protocol.session import BARE
from tests.auth.test_scram import KnownCredentials, ScramClient
from tests.fakes.connection import MemoryClient, authenticate, handshake

USER, PASSWORD = "alice", "open sesame"

#: Versions of SaslAuthenticate, and tokens without it.
PATHS = (BARE, 0, 1, 2)

_numbers = count()

#: Yields the client's tokens; receives the server's.
Conversation = Generator[bytes, bytes, None]


@dataclass(frozen=True)
class SaslLogin:
    """How to log in with a mechanism.

    `make()` returns the mechanism, with alice and bob as users. `client(user, password, attempt)`
    is a client; `attempt` makes its nonces differ. `is_replayable` tells whether the tokens of one
    log-in are enough for another one.
    """

    make: Callable[[], Mechanism]
    client: Callable[[str, str, int], Conversation]
    is_replayable: bool


class KnownPasswords:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def is_cached(self, name: str, password: str) -> bool:
        return False

    def check(self, name: str, password: str) -> bool:
        self.asked.append(name)
        return name in (USER, "bob") and password == PASSWORD


async def _at_once(host: str, check: Callable[[], bool]) -> bool:
    return check()


def _plain_client(user: str, password: str, attempt: int) -> Conversation:
    yield f"\0{user}\0{password}".encode()


def _scram(name: str) -> SaslLogin:
    salted = salt_password(name, PASSWORD, b"salt", 4096)
    credential = ScramCredential.of_salted_password(name, salted, b"salt", 4096)
    known = KnownCredentials(**{USER: credential, "bob": credential})

    def client(user: str, password: str, attempt: int) -> Conversation:
        one = ScramClient(name, user, password, f"nonce{attempt}")
        answer = yield one.first().encode()
        yield one.final(answer).encode()

    def make() -> ScramMechanism:
        # All of one length, so that a byte has the same place in each log-in.
        return ScramMechanism(name, lambda: known, lambda: f"server{next(_numbers):08}")

    return SaslLogin(make, client, is_replayable=False)


LOGINS: dict[str, SaslLogin] = {
    "PLAIN": SaslLogin(
        lambda: PlainMechanism(KnownPasswords(), _at_once), _plain_client, is_replayable=True
    ),
    **{name: _scram(name) for name in HASHES},
}


def correct(name: str, attempt: int = 1, user: str = USER) -> Conversation:
    """A client of mechanism `name` that logs in."""
    return LOGINS[name].client(user, PASSWORD, attempt)


def wrong(name: str, user: str = USER, password: str = "guess") -> Conversation:
    """A client of mechanism `name` that fails to log in."""
    return LOGINS[name].client(user, password, 1)


def spoiled(
    conversation: Conversation, step: int, change: Callable[[bytes], bytes]
) -> Conversation:
    """The same tokens, the one of `step` changed."""
    token, number = next(conversation), 0
    while True:
        answer = yield change(token) if number == step else token
        try:
            token = conversation.send(answer)
        except StopIteration:
            return
        number += 1


def offering(*names: str, **more: Any) -> MemoryClient:
    """A connection to a listener with these mechanisms, by default all."""
    mechanisms: Any = [LOGINS[name].make() for name in names or LOGINS]
    return MemoryClient(mechanisms, **more)


def as_frame(token: bytes, path: int) -> bytes:
    return token if path == BARE else authenticate(token, path)


def shake_hands(client: MemoryClient, mechanism: str, path: int) -> None:
    client.send(handshake(mechanism, 0 if path == BARE else 1))
    assert len(client.receive()) == 1


def send_tokens(client: MemoryClient, conversation: Iterator[bytes], path: int) -> list[bytes]:
    """Send a conversation's tokens until the client is logged in or refused.

    Returns the tokens that were sent. The conversation may be an iterator over given tokens.
    """
    sent: list[bytes] = []
    answer: bytes | None = None
    while not (client.session.is_closed or client.is_aborted):
        try:
            if isinstance(conversation, Generator) and answer is not None:
                token = conversation.send(answer)
            else:
                token = next(conversation)
        except StopIteration:
            break
        except (ValueError, KeyError):
            # The server's answer to a changed token is none for this client.
            break
        sent.append(token)
        client.send(as_frame(token, path))
        replies = client.receive()
        if client.session.is_ready or not replies:
            break
        answer = replies[0] if path == BARE else auth_bytes(replies[0], path)
    return sent


def auth_bytes(reply: bytes, path: int) -> bytes:
    """The server's token in a response to SaslAuthenticate."""
    body = reply[5 if path >= 2 else 4 :]
    return bytes(SaslAuthenticateResponse.decode(body, version=path).auth_bytes)


def log_in(client: MemoryClient, name: str, conversation: Iterator[bytes], path: int) -> bool:
    """Whether the conversation logs in."""
    shake_hands(client, name, path)
    send_tokens(client, conversation, path)
    return client.session.is_ready
