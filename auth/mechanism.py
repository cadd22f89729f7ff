"""What a log-in mechanism is. It sees tokens and answers with tokens; which road they travel (bare frames or SaslAuthenticate) it cannot know."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a connection acts for, written as Kafka writes it: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The principal of a connection that need not log in. Kafka's KafkaPrincipal.ANONYMOUS."""


class AuthenticationFailed(Exception):
    """The log-in failed for good. `reason` holds no secret and may be told to the peer and to the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AuthenticationBusy(Exception):
    """Too many checks wait. Hang up without an answer: clients try again after a lost connection, but take error 58 for final."""


@dataclass(frozen=True, slots=True)
class SaslOutcome:
    """One answer. `token` goes to the peer; the exchange is over when `principal` is there. `lifetime_ms` is how long it holds, 0 for ever."""

    token: bytes = field(repr=False)
    principal: Principal | None
    lifetime_ms: int = 0


class SaslExchange(Protocol):
    """One log-in of one connection."""

    def respond(self, token: bytes, /) -> Awaitable[SaslOutcome]:
        """The answer to a token of the peer. Raises AuthenticationFailed and AuthenticationBusy; no bytes make it raise anything else.

        It can be cancelled when the connection goes.
        """
        ...


class Mechanism(Protocol):
    """A way to log in."""

    @property
    def name(self) -> str:
        """As SaslHandshake names it, for example `PLAIN`."""
        ...

    def begin(self, host: str) -> SaslExchange:
        """A new log-in from this address."""
        ...
