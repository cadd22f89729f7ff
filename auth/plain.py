"""SASL PLAIN (RFC 4616): one token, `[authzid] NUL authcid NUL passwd`, in UTF-8, answered by an empty one.

The rules are those of Kafka's PlainSaslServer: an authorization id must be empty or equal to the user, and neither user nor password may be empty.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Protocol

from auth.mechanism import AuthenticationBusy, AuthenticationFailed, Outcome, Principal

Run = Callable[[Callable[[], bool]], Awaitable[bool]]
"""Runs a function off the reactor thread, for example in a thread pool."""

WRONG = "wrong user name or password"
"""One reason for both, so that nobody learns which names exist."""


class Passwords(Protocol):
    """Who may log in. `check` takes its time (it hashes) and may be called in any thread; unknown users cost what known ones cost."""

    def check(self, name: str, password: str, /) -> bool: ...


class Plain:
    """The mechanism. At most `max_waiting` checks are begun and not done; `run` takes each off the reactor thread."""

    name = "PLAIN"

    def __init__(self, passwords: Passwords, run: Run, max_waiting: int) -> None:
        self._passwords = passwords
        self._run = run
        self._places = threading.BoundedSemaphore(max_waiting)

    def begin(self) -> PlainExchange:
        return PlainExchange(self)

    async def check(self, name: str, password: str) -> bool:
        """Whether that is the password. Raises AuthenticationBusy.

        A cancelled check gives its place back when its thread is done with it, not before: the work is there all the same.
        """
        if not self._places.acquire(blocking=False):
            raise AuthenticationBusy("too many password checks wait already")

        def checked() -> bool:
            try:
                return self._passwords.check(name, password)
            finally:
                self._places.release()

        return await self._run(checked)


class PlainExchange:
    """One log-in: takes one token."""

    __slots__ = ("_is_over", "_mechanism")

    def __init__(self, mechanism: Plain) -> None:
        self._mechanism = mechanism
        self._is_over = False

    async def respond(self, token: bytes, /) -> Outcome:
        if self._is_over:
            raise AuthenticationFailed("the log-in is over already")
        self._is_over = True
        user, password = _parse(token)
        if not await self._mechanism.check(user, password):
            raise AuthenticationFailed(WRONG)
        return Outcome(b"", Principal("User", user))


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
