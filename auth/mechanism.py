"""Interfaces of SASL mechanisms.

A mechanism turns client tokens into server tokens. Whether the tokens travel in bare frames or in
SaslAuthenticate requests is not its concern.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a connection, printed as in Kafka: `User:alice`.

    `tenant` is the `TENANT/NAMESPACE` that the client is bound to, None for none.
    """

    kind: str
    name: str
    tenant: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""Principal of a connection that does not have to authenticate (KafkaPrincipal.ANONYMOUS)."""


class AuthenticationFailed(Exception):
    """Authentication failed for good. `reason` contains no secret; it is sent to the client and
    logged.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AuthenticationBusy(Exception):
    """The log-in cannot be decided now: too many checks are queued, or keys are missing.

    The connection is closed without a reply: clients reconnect after that, but treat error 58
    (SASL_AUTHENTICATION_FAILED) as final.
    """


@dataclass(frozen=True, slots=True)
class SaslOutcome:
    """The result of one token.

    `token` is sent to the client; None sends nothing as a bare token, as after the last token of
    GSSAPI, and an empty token in a SaslAuthenticate response. `principal` is set once the exchange
    is complete. `lifetime_ms` is the time until the credentials expire, 0 for unlimited. `refusal`
    is the reason if the login has failed, but the client acknowledges `token` first; it contains no
    secret.
    """

    token: bytes | None = field(repr=False)
    principal: Principal | None
    lifetime_ms: int = 0
    refusal: str | None = None


class RunInThread(Protocol):
    """Runs a function in a thread, on behalf of a client address.

    A call that is cancelled while it is queued is not run. Raises AuthenticationBusy, and what the
    function raises.
    """

    def __call__(self, host: str, work: Callable[[], T], /) -> Awaitable[T]: ...


class SaslExchange(Protocol):
    """The state of one authentication on one connection."""

    def respond(self, token: bytes, /) -> Awaitable[SaslOutcome]:
        """Handle a client token. It can be cancelled when the connection closes.

        Raises AuthenticationFailed and AuthenticationBusy, and nothing else whatever the token
        contains.
        """
        ...


class Mechanism(Protocol):
    """A SASL mechanism."""

    @property
    def name(self) -> str:
        """Name in SaslHandshake, for example `PLAIN`."""
        ...

    def begin(self, host: str) -> SaslExchange:
        """Start an exchange for a client at address `host`."""
        ...
