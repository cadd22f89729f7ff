"""SASL GSSAPI (RFC 4752): the server's side, with Kerberos and without a security layer.

| step    | client token                      | server token                              |
|---------|-----------------------------------|-------------------------------------------|
| context | a token of the security context   | the acceptor's token; if it has none, the |
|         |                                   | offer, once the context is established    |
| offer   | empty                             | the offer                                 |
| choice  | the choice and an authorization id | none                                     |

Offer and choice are wrapped by the context: a bit mask of security layers, where 1 stands for none,
and the largest size that can be received. The rules are those of Kafka, that is of the JDK's
GssKrb5Server. Java's clients do not request mutual authentication, so the offer is the answer to
their first token.

The authorization id is ignored, as in Kafka (SaslServerCallbackHandler): the principal is always
that of the ticket. kafka-python, for example, sends the name of the service.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from auth.kerberos_names import KerberosRules
from auth.mechanism import AuthenticationFailed, RunInThread, SaslOutcome

NO_SECURITY_LAYER = 1

#: No security layer, and 64 KiB, the JDK's default. Clients ignore the size without a layer.
OFFER = bytes([NO_SECURITY_LAYER]) + (64 << 10).to_bytes(3, "big")

MAX_CONTEXT_TOKENS = 4
"""Kerberos needs one token of the client."""


class SecurityContext(Protocol):
    """A security context of the acceptor, used by one thread at a time.

    `accept` may block. It returns the token for the client, None or an empty one for none. `peer`
    is the client's full name, once the context is established. All methods raise
    AuthenticationFailed and AuthenticationBusy, and nothing else whatever the token contains.
    """

    @property
    def is_established(self) -> bool: ...
    @property
    def peer(self) -> str: ...
    def accept(self, token: bytes, /) -> bytes | None: ...
    def wrap(self, message: bytes, /) -> bytes: ...
    def unwrap(self, token: bytes, /) -> bytes: ...


class GssapiMechanism:
    """SASL GSSAPI. `run` moves what may block off the reactor thread."""

    name = "GSSAPI"

    def __init__(
        self,
        make_context: Callable[[], SecurityContext],
        rules: KerberosRules,
        run: RunInThread,
    ) -> None:
        self._make_context = make_context
        self._rules = rules
        self._run = run

    def begin(self, host: str) -> GssapiExchange:
        return GssapiExchange(self._make_context(), self._rules, self._run, host)


class _Step(Enum):
    CONTEXT = "context"
    OFFER = "offer"
    CHOICE = "choice"
    FINISHED = "finished"


class GssapiExchange:
    """An exchange of two tokens, or of three if the client requests mutual authentication."""

    __slots__ = ("_context", "_context_tokens", "_host", "_rules", "_run", "_step")

    def __init__(
        self, context: SecurityContext, rules: KerberosRules, run: RunInThread, host: str
    ) -> None:
        self._context = context
        self._rules = rules
        self._run = run
        self._host = host
        self._context_tokens = 0
        self._step = _Step.CONTEXT

    async def respond(self, token: bytes, /) -> SaslOutcome:
        # Each path that fails leaves the exchange finished.
        step, self._step = self._step, _Step.FINISHED
        match step:
            case _Step.CONTEXT:
                return await self._accept(token)
            case _Step.OFFER:
                if token:
                    raise AuthenticationFailed("the client sent data before the server's offer")
                return self._offer()
            case _Step.CHOICE:
                return self._finish(token)
            case _Step.FINISHED:
                raise AuthenticationFailed("the authentication is already finished")

    async def _accept(self, token: bytes) -> SaslOutcome:
        if self._context_tokens == MAX_CONTEXT_TOKENS:
            raise AuthenticationFailed(f"more than {MAX_CONTEXT_TOKENS} tokens without a context")
        self._context_tokens += 1
        context = self._context
        answer = await self._run(self._host, lambda: context.accept(token))
        if context.is_established and not answer:
            return self._offer()
        self._step = _Step.OFFER if context.is_established else _Step.CONTEXT
        return SaslOutcome(answer or b"", None)

    def _offer(self) -> SaslOutcome:
        offer = self._context.wrap(OFFER)
        self._step = _Step.CHOICE
        return SaslOutcome(offer, None)

    def _finish(self, token: bytes) -> SaslOutcome:
        choice = self._context.unwrap(token)
        if len(choice) < len(OFFER):
            raise AuthenticationFailed("the client's choice of a security layer is too short")
        if not choice[0] & NO_SECURITY_LAYER:
            raise AuthenticationFailed("the client requires a security layer; use TLS instead")
        return SaslOutcome(None, self._rules.principal(self._context.peer))
