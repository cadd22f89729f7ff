"""SASL PLAIN (RFC 4616): one UTF-8 token, `[authzid] NUL authcid NUL passwd`, and an empty reply.

The rules are those of Kafka's PlainSaslServer: the authorization id must be empty or equal to the
user name, and neither user name nor password may be empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from auth.mechanism import AuthenticationFailed, Principal, SaslOutcome

RunInThread = Callable[[str, Callable[[], bool]], Awaitable[bool]]
"""Runs a function in a thread, on behalf of a client address.

A call that is cancelled while it is queued is not run. Raises AuthenticationBusy.
"""

WRONG_CREDENTIALS = "wrong user name or password"
"""The same reason for a wrong name and a wrong password, so that clients cannot probe for user
names.
"""


class PasswordStore(Protocol):
    """Checks passwords.

    `check` hashes, so it is slow; it can be called in any thread and takes as long for unknown
    users as for known ones. `is_cached` does not hash: it tells whether this password was verified
    recently.
    """

    def is_cached(self, name: str, password: str, /) -> bool: ...
    def check(self, name: str, password: str, /) -> bool: ...


class PlainMechanism:
    """SASL PLAIN. `run` moves each password check off the reactor thread."""

    name = "PLAIN"

    def __init__(self, passwords: PasswordStore, run: RunInThread) -> None:
        self._passwords = passwords
        self._run = run

    def begin(self, host: str) -> PlainExchange:
        return PlainExchange(self, host)

    async def check(self, host: str, name: str, password: str) -> bool:
        """Whether the password is correct. Raises AuthenticationBusy."""
        if self._passwords.is_cached(name, password):
            return True
        return await self._run(host, lambda: self._passwords.check(name, password))


class PlainExchange:
    """An exchange of exactly one token."""

    __slots__ = ("_host", "_is_finished", "_mechanism")

    def __init__(self, mechanism: PlainMechanism, host: str) -> None:
        self._mechanism = mechanism
        self._host = host
        self._is_finished = False

    async def respond(self, token: bytes, /) -> SaslOutcome:
        if self._is_finished:
            raise AuthenticationFailed("the authentication is already finished")
        self._is_finished = True
        user, password = _parse(token)
        if not await self._mechanism.check(self._host, user, password):
            raise AuthenticationFailed(WRONG_CREDENTIALS)
        return SaslOutcome(b"", Principal("User", user))


def _parse(token: bytes) -> tuple[str, str]:
    """Return user name and password.

    Error reasons never quote the token: a misplaced part may be the password.
    """
    try:
        parts = bytes(token).decode("utf-8").split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationFailed("invalid PLAIN token: expected three parts separated by NUL")
    authorization_id, user, password = parts
    if not user:
        raise AuthenticationFailed("the user name is empty")
    if not password:
        raise AuthenticationFailed("the password is empty")
    if authorization_id not in ("", user):
        raise AuthenticationFailed("the authorization id differs from the user name")
    return user, password
