"""The login of a connection: how the next frame is read, and the principal that sent it.

| state        | a frame is | allowed requests           | next state                             |
|--------------|------------|----------------------------|----------------------------------------|
| initial      | a request  | ApiVersions, SaslHandshake | v0: bare tokens, v1: authenticate      |
| bare tokens  | a token    | none                       | success: ready, failure: closed        |
| authenticate | a request  | SaslAuthenticate           | success: ready, failure: closed        |
| ready        | a request  | all                        |                                        |
| closed       | not read   | none                       |                                        |

The rules are those of Kafka's SaslServerAuthenticator. A bare token is a frame without a Kafka
header; `Dispatch` passes it to `log_in`. A bare GSSAPI token as the first frame (0.9 clients) is
recognized and reported as such.
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
from gateway import logs
from gateway.protocol.errors import ErrorCode, KafkaError, Refused
from gateway.protocol.wire.api_keys import ApiKey
from gateway.traffic.recorder import Recorder

_log = logs.get_logger(__name__)


class LoginState(Enum):
    INITIAL = "initial"
    BARE_TOKENS = "bare tokens"
    AUTHENTICATE = "authenticate"
    READY = "ready"
    CLOSED = "closed"


TRANSITIONS = {
    LoginState.INITIAL: {LoginState.BARE_TOKENS, LoginState.AUTHENTICATE, LoginState.CLOSED},
    LoginState.BARE_TOKENS: {LoginState.READY, LoginState.CLOSED},
    LoginState.AUTHENTICATE: {LoginState.READY, LoginState.CLOSED},
    LoginState.READY: {LoginState.CLOSED},
    LoginState.CLOSED: set[LoginState](),
}

#: Requests that each state allows; None is all.
ALLOWED_APIS: dict[LoginState, frozenset[ApiKey] | None] = {
    LoginState.INITIAL: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    LoginState.BARE_TOKENS: frozenset(),
    LoginState.AUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE}),
    LoginState.READY: None,
    LoginState.CLOSED: frozenset(),
}

#: First byte of a GSSAPI token (ASN.1 application tag 0), which 0.9 clients send without a
#: handshake. No API key starts with it.
_GSSAPI_TAG = b"\x60"


class LoginSession:
    """The login of one connection.

    Without `mechanisms` the session is ready at once. `host` is the client's address.
    """

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
        """Names of the SASL mechanisms that the listener offers."""
        return list(self._mechanisms)

    @property
    def is_ready(self) -> bool:
        return self.state is LoginState.READY

    @property
    def is_closed(self) -> bool:
        return self.state is LoginState.CLOSED

    def expects_token(self) -> bool:
        return self.state is LoginState.BARE_TOKENS

    def is_gssapi_token(self, frame: bytearray) -> bool:
        """Whether the first frame is a bare GSSAPI token, which cannot be read as a request."""
        return self.state is LoginState.INITIAL and frame[:1] == _GSSAPI_TAG

    def check_allowed(self, api_key: int) -> None:
        """Raises Refused for a request that is not allowed in this state."""
        admitted = ALLOWED_APIS[self.state]
        if admitted is None or api_key in admitted:
            return
        raise Refused(
            f"API key {api_key} is not allowed before the login (state: {self.state.value})"
        )

    def handshake(self, mechanism: str, version: int) -> None:
        """Select the mechanism. Version 0 is followed by bare tokens.

        Raises KafkaError. Except for ILLEGAL_SASL_STATE, this closes the session.
        """
        if self.state is not LoginState.INITIAL:
            raise KafkaError(
                ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake is not allowed in this state"
            )
        chosen = self._mechanisms.get(mechanism)
        if chosen is None:
            self._move(LoginState.CLOSED)
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self.mechanism = chosen.name
        self._exchange = chosen.begin(self.host)
        self._move(LoginState.BARE_TOKENS if version == 0 else LoginState.AUTHENTICATE)

    async def token(self, token: bytes) -> tuple[bytes, int]:
        """Return (reply to the client's token, session lifetime in ms or 0 for no limit).

        Raises AuthenticationFailed or AuthenticationBusy, after which the session is closed.
        """
        if self._exchange is None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate before SaslHandshake")
        try:
            outcome = await self._exchange.respond(token)
        except (AuthenticationFailed, AuthenticationBusy):
            self.end()
            raise
        if outcome.principal is not None:
            self.principal = outcome.principal
            self._exchange = None
            self._move(LoginState.READY)
        return outcome.token, outcome.lifetime_ms

    def end(self) -> None:
        """Close the session: the connection is closing. It accepts no further tokens."""
        self._exchange = None
        if self.state is not LoginState.CLOSED:
            self._move(LoginState.CLOSED)

    def _move(self, state: LoginState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"illegal transition from {self.state.value} to {state.value}")
        self.state = state


async def log_in(
    session: LoginSession, token: bytes, traffic: Recorder, peer: str, listener: str
) -> tuple[bytes, int]:
    """Process a token of the client, bare or from SaslAuthenticate; log and record the outcome.

    Returns and raises as `LoginSession.token`.
    """
    try:
        answer = await session.token(token)
    except AuthenticationFailed as failure:
        _log.warning(
            "login failed",
            peer=peer,
            listener=listener,
            mechanism=session.mechanism,
            reason=failure.reason,
        )
        traffic.closing("error:login")
        raise
    if session.is_ready:
        traffic.authenticated(session.principal)
    return answer
