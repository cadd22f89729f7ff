"""What the next frame of a connection means, and who sent it: the state machine of log-in.

| state    | a frame is                       | admits                    | leaves by                                     |
|----------|----------------------------------|---------------------------|-----------------------------------------------|
| greeting | a request                        | ApiVersions, SaslHandshake| handshake v0 -> tokens, v1 -> exchange        |
| tokens   | a bare token                     | -                         | done -> ready, failure -> over                |
| exchange | a request                        | SaslAuthenticate          | done -> ready, failure -> over                |
| ready    | a request                        | all                       | -                                             |
| over     | nothing: the connection is going | -                         | -                                             |

Rules: Kafka's SaslServerAuthenticator. A raw GSSAPI token as the very first frame (0.9 clients) is recognised and refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from auth.mechanism import (
    ANONYMOUS,
    AuthenticationBusy,
    AuthenticationFailed,
    Mechanism,
    SaslExchange,
)
from gateway.protocol.errors import ErrorCode, KafkaError, Refused
from gateway.protocol.wire.api_keys import ApiKey


class LoginState(Enum):
    INITIAL = "greeting"
    RAW_TOKENS = "tokens"
    AUTHENTICATE = "exchange"
    READY = "ready"
    CLOSED = "over"


TRANSITIONS = {
    LoginState.INITIAL: {LoginState.RAW_TOKENS, LoginState.AUTHENTICATE, LoginState.CLOSED},
    LoginState.RAW_TOKENS: {LoginState.READY, LoginState.CLOSED},
    LoginState.AUTHENTICATE: {LoginState.READY, LoginState.CLOSED},
    LoginState.READY: {LoginState.CLOSED},
    LoginState.CLOSED: set[LoginState](),
}

#: What a request must be to be served, by state; None is anything.
ALLOWED_APIS: dict[LoginState, frozenset[ApiKey] | None] = {
    LoginState.INITIAL: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    LoginState.RAW_TOKENS: frozenset(),
    LoginState.AUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE}),
    LoginState.READY: None,
    LoginState.CLOSED: frozenset(),
}

#: The first byte of a GSSAPI token (ASN.1 application tag 0), which 0.9 clients send without any handshake. No api key begins so.
_GSSAPI_TAG = b"\x60"


class LoginSession:
    """One connection's log-in. Without `mechanisms` the listener has none and the session is ready at once. `host` is the peer's address."""

    __slots__ = ("_exchange", "_mechanisms", "host", "mechanism", "principal", "state")

    def __init__(self, mechanisms: Mapping[str, Mechanism] | None, host: str = "") -> None:
        self.host = host
        self._mechanisms = mechanisms or {}
        self._exchange: SaslExchange | None = None
        self.mechanism: str | None = None
        self.principal = ANONYMOUS
        self.state = LoginState.INITIAL if mechanisms else LoginState.READY

    @property
    def mechanisms(self) -> list[str]:
        """What a client may log in with, by name."""
        return list(self._mechanisms)

    @property
    def is_ready(self) -> bool:
        return self.state is LoginState.READY

    @property
    def is_closed(self) -> bool:
        return self.state is LoginState.CLOSED

    def expects_token(self) -> bool:
        return self.state is LoginState.RAW_TOKENS

    def is_gssapi_token(self, frame: bytearray) -> bool:
        """Whether a raw GSSAPI token stands in place of the first request, which it cannot be read as."""
        return self.state is LoginState.INITIAL and frame[:1] == _GSSAPI_TAG

    def check_allowed(self, api_key: int) -> None:
        """Raises Refused for a request that this state does not serve."""
        admitted = ALLOWED_APIS[self.state]
        if admitted is None or api_key in admitted:
            return
        raise Refused(
            f"a request with api key {api_key} before the log-in is complete (state {self.state.value})"
        )

    def handshake(self, mechanism: str, version: int) -> None:
        """The client chose `mechanism`; version 0 announces bare tokens. Raises KafkaError, after which the session is over."""
        if self.state is not LoginState.INITIAL:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake is not expected now")
        chosen = self._mechanisms.get(mechanism)
        if chosen is None:
            self._move(LoginState.CLOSED)
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self.mechanism = chosen.name
        self._exchange = chosen.begin(self.host)
        self._move(LoginState.RAW_TOKENS if version == 0 else LoginState.AUTHENTICATE)

    async def token(self, token: bytes) -> tuple[bytes, int]:
        """(the answer to a client's token, session lifetime in ms, 0 for none). Raises AuthenticationFailed or AuthenticationBusy, after which the session is over."""
        if self._exchange is None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate before SaslHandshake")
        try:
            outcome = await self._exchange.respond(token)
        except (AuthenticationFailed, AuthenticationBusy):
            self._move(LoginState.CLOSED)
            raise
        if outcome.principal is not None:
            self.principal = outcome.principal
            self._exchange = None
            self._move(LoginState.READY)
        return outcome.token, outcome.lifetime_ms

    def end(self) -> None:
        """The connection is going, for whatever reason."""
        if self.state is not LoginState.CLOSED:
            self._move(LoginState.CLOSED)

    def _move(self, state: LoginState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a session cannot go from {self.state.value} to {state.value}")
        self.state = state
