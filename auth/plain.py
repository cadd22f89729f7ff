"""SASL PLAIN (RFC 4616): one token, `[authzid] NUL authcid NUL passwd`, in UTF-8, answered by an empty one.

The rules are those of Kafka's PlainSaslServer: an authorization id must be empty or equal to the user, and neither user nor password may be empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from auth.mechanism import AuthenticationFailed, Principal, SaslOutcome

RunInThread = Callable[[str, Callable[[], bool]], Awaitable[bool]]
"""Runs a function off the reactor thread, for the log-in of a host. If it is cancelled while it waits, the function is not called. Raises
AuthenticationBusy."""

WRONG_CREDENTIALS = "wrong user name or password"
"""One reason for both, so that nobody learns which names exist."""


class PasswordStore(Protocol):
    """Who may log in. `check` takes its time (it hashes) and may be called in any thread; unknown users cost what known ones cost.

    `is_cached` does not hash: whether that password was found right a short time ago.
    """

    def is_cached(self, name: str, password: str, /) -> bool: ...
    def check(self, name: str, password: str, /) -> bool: ...


class PlainMechanism:
    """The mechanism. `run` takes each check off the reactor thread."""

    name = "PLAIN"

    def __init__(self, passwords: PasswordStore, run: RunInThread) -> None:
        self._passwords = passwords
        self._run = run

    def begin(self, host: str) -> PlainExchange:
        return PlainExchange(self, host)

    async def check(self, host: str, name: str, password: str) -> bool:
        """Whether that is the password. Raises AuthenticationBusy."""
        if self._passwords.is_cached(name, password):
            return True
        return await self._run(host, lambda: self._passwords.check(name, password))


class PlainExchange:
    """One log-in: takes one token."""

    __slots__ = ("_host", "_is_finished", "_mechanism")

    def __init__(self, mechanism: PlainMechanism, host: str) -> None:
        self._mechanism = mechanism
        self._host = host
        self._is_finished = False

    async def respond(self, token: bytes, /) -> SaslOutcome:
        if self._is_finished:
            raise AuthenticationFailed("the log-in is over already")
        self._is_finished = True
        user, password = _parse(token)
        if not await self._mechanism.check(self._host, user, password):
            raise AuthenticationFailed(WRONG_CREDENTIALS)
        return SaslOutcome(b"", Principal("User", user))


def _parse(token: bytes) -> tuple[str, str]:
    """User and password of a token. The reasons name no part of it: what stands in the wrong place may be the password."""
    try:
        parts = bytes(token).decode("utf-8").split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationFailed("the token is not a PLAIN token: it must have three parts")
    authorization_id, user, password = parts
    if not user:
        raise AuthenticationFailed("the user name is empty")
    if not password:
        raise AuthenticationFailed("the password is empty")
    if authorization_id not in ("", user):
        raise AuthenticationFailed("the client asks to act for another user")
    return user, password
