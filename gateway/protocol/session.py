"""The log-in of a connection: how the next frame is read, and the principal that sent it.

| state        | a frame is | allowed requests           | next state                             |
|--------------|------------|----------------------------|----------------------------------------|
| initial      | a request  | ApiVersions, SaslHandshake | v0: bare tokens, v1: authenticate      |
| initial      | a GSSAPI token |                        | bare tokens                            |
| bare tokens  | a token    | none                       | success: ready, failure: closed        |
| authenticate | a request  | SaslAuthenticate           | success: ready, failure: closed        |
| ready        | a request  | all                        | SaslHandshake v1: authenticate         |
| closed       | not read   | none                       |                                        |

The rules are those of Kafka's SaslServerAuthenticator. A bare token is a frame without a Kafka
header; `Dispatch` passes it to `log_in`. 0.9 clients send a bare GSSAPI token as the first frame.

A session with a lifetime can be re-authenticated (KIP-368), with the same mechanism and principal.
Once it has expired, only SaslHandshake is allowed. Clients that cannot re-authenticate, because
they sent bare tokens or SaslAuthenticate v0, get no lifetime, unlike in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from auth.mechanism import (
    ANONYMOUS,
    AuthenticationBusy,
    AuthenticationFailed,
    Mechanism,
    Principal,
    SaslExchange,
    SaslOutcome,
)
from gateway import logs
from gateway.coroutines import CancelledError
from gateway.protocol.errors import ErrorCode, KafkaError, Refused
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.compiled import SessionState
from gateway.security.audit import AuditLog
from gateway.security.authorizer import TopicDecisions
from gateway.security.tenants import Tenants
from gateway.topics.tenant_scope import TenantScope
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
    LoginState.READY: {LoginState.AUTHENTICATE, LoginState.CLOSED},
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
_GSSAPI = "GSSAPI"

#: Minimum seconds between two re-authentications, as in Kafka's KafkaChannel.
MIN_REAUTHENTICATION_SECONDS = 1.0

#: Version of tokens that are not sent in SaslAuthenticate.
BARE = -1


@dataclass(frozen=True, slots=True)
class SessionLifetime:
    """Maximum session lifetime in ms, 0 for no limit.

    `includes_old_clients` also ends sessions of clients that cannot re-authenticate.
    """

    max_ms: int = 0
    includes_old_clients: bool = False


UNLIMITED = SessionLifetime()

_NO_MECHANISMS: Mapping[str, Mechanism] = {}


class MechanismError(Exception):
    """A bug in a mechanism.

    It has the traceback of the original exception, but not its text, which may quote the token.
    """


class _ChangedMechanism:
    """The exchange of a client that changes its mechanism to re-authenticate; it fails."""

    def __init__(self, before: str, after: str) -> None:
        self._reason = f"a session of mechanism {before} cannot be re-authenticated by {after}"

    async def respond(self, token: bytes, /) -> SaslOutcome:
        raise AuthenticationFailed(self._reason)


class LoginSession(SessionState):
    """The log-in of one connection.

    Without `mechanisms` the session is ready at once. `host` is the client's address. `seconds` is
    a clock, for `lifetime`. `tenants` binds principals to namespaces; None if none is bound.

    `scope` holds the names of a principal that is bound to a namespace, else None.

    `is_ready` and `is_closed` are kept beside `state`, because each request asks for them.

    `refused_joins` is the group whose JoinGroup was refused last, how often in a row, and since
    when (`handlers.groups.join_group`).

    `expires_at` is the end of the session and `began` the start of the last re-authentication, 0
    without one; both are in the clock's seconds. `refusal` is that of the last `SaslOutcome`.
    """

    scope: TenantScope | None

    __slots__ = (
        "_can_reauthenticate",
        "_exchange",
        "_lifetime",
        "_mechanisms",
        "_seconds",
        "_tenants",
        "began",
        "has_authenticated",
        "host",
        "mechanism",
        "principal",
        "refusal",
        "refused_joins",
        "state",
        "topic_decisions",
    )

    def __init__(
        self,
        mechanisms: Mapping[str, Mechanism] | None,
        host: str = "",
        lifetime: SessionLifetime = UNLIMITED,
        seconds: Callable[[], float] = lambda: 0.0,
        tenants: Tenants | None = None,
    ) -> None:
        self.host = host
        self._mechanisms: Mapping[str, Mechanism] = mechanisms or _NO_MECHANISMS
        self._lifetime = lifetime
        self._seconds = seconds
        self._tenants = tenants
        self._exchange: SaslExchange | None = None
        self._can_reauthenticate = False
        self.has_authenticated = False
        self.began = 0.0
        self.expires_at = None
        self.mechanism: str | None = None
        self.principal = ANONYMOUS
        self.refusal: str | None = None
        self.refused_joins = ("", 0, 0.0)
        self.topic_decisions = TopicDecisions()
        self.scope = None
        self._enter(LoginState.INITIAL if mechanisms else LoginState.READY)

    @property
    def mechanisms(self) -> list[str]:
        """Names of the SASL mechanisms that the listener offers."""
        return list(self._mechanisms)

    @property
    def offers_gssapi(self) -> bool:
        return _GSSAPI in self._mechanisms

    def identify(self, principal: Principal) -> None:
        """Set the principal of a client certificate.

        Called before the first request, on a listener without SASL. Raises AuthenticationFailed.
        """
        self.principal, self.scope = self._bind(principal)
        self.topic_decisions = TopicDecisions()

    def _bind(self, principal: Principal) -> tuple[Principal, TenantScope | None]:
        if self._tenants is None:
            return replace(principal, tenant=None), None
        return self._tenants.bind(principal, self.mechanism)

    def expects_token(self) -> bool:
        return self.state is LoginState.BARE_TOKENS

    def is_gssapi_token(self, frame: bytearray) -> bool:
        """Whether the first frame is a bare GSSAPI token, which cannot be read as a request."""
        return self.state is LoginState.INITIAL and frame[:1] == _GSSAPI_TAG

    def begin_gssapi(self) -> None:
        """Select GSSAPI for a client that begins with its token. Raises Refused if disabled."""
        chosen = self._mechanisms.get(_GSSAPI)
        if chosen is None:
            raise Refused("bare GSSAPI token (a Kafka 0.9 client?), but GSSAPI is not enabled")
        self.mechanism = chosen.name
        self._exchange = chosen.begin(self.host)
        self._move(LoginState.BARE_TOKENS)

    def check_allowed(self, api_key: int) -> None:
        """Raises Refused for a request that is not allowed in this state."""
        if self.state is LoginState.READY:
            if (
                self.expires_at is not None
                and self._seconds() > self.expires_at
                and api_key != ApiKey.SASL_HANDSHAKE
            ):
                raise Refused(f"the session of {self.principal} expired")
            return
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
        if self.state is LoginState.READY and self._may_reauthenticate(version):
            self.began = self._seconds()
        elif self.state is not LoginState.INITIAL:
            raise KafkaError(
                ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake is not allowed in this state"
            )
        chosen = self._mechanisms.get(mechanism)
        if chosen is None:
            self._move(LoginState.CLOSED)
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self._can_reauthenticate = False
        if self.has_authenticated and self.mechanism not in (None, chosen.name):
            # Kafka accepts the handshake, too, and refuses what follows.
            self._exchange = _ChangedMechanism(str(self.mechanism), chosen.name)
        else:
            self.mechanism = chosen.name
            self._exchange = chosen.begin(self.host)
        self._move(LoginState.BARE_TOKENS if version == 0 else LoginState.AUTHENTICATE)

    def _may_reauthenticate(self, version: int) -> bool:
        return (
            version >= 1
            and self.expires_at is not None
            and (not self.began or self._seconds() - self.began >= MIN_REAUTHENTICATION_SECONDS)
        )

    async def token(self, token: bytes, version: int = BARE) -> tuple[bytes | None, int]:
        """Return (reply to the client's token, session lifetime in ms or 0 for no limit).

        `version` is that of SaslAuthenticate, or BARE.

        Raises AuthenticationFailed or AuthenticationBusy, after which the session is closed.
        """
        if self._exchange is None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate before SaslHandshake")
        self._can_reauthenticate = self._can_reauthenticate or version >= 1
        try:
            outcome = await _respond(self._exchange, token)
            if outcome.principal is not None:
                principal, scope = self._bind(outcome.principal)
                self._check_unchanged(principal)
        except (AuthenticationFailed, AuthenticationBusy):
            self.end()
            raise
        self.refusal = outcome.refusal
        if outcome.principal is None:
            return outcome.token, 0
        self.principal, self.scope = principal, scope
        self.topic_decisions = TopicDecisions()
        self.has_authenticated = True
        self._exchange = None
        self._move(LoginState.READY)
        return outcome.token, self._start_lifetime(outcome.lifetime_ms)

    def _check_unchanged(self, principal: Principal) -> None:
        before = self.principal
        if not self.has_authenticated or principal == before:
            return
        what, old, new = "principal", str(before), str(principal)
        if old == new:
            what, old, new = "namespace", str(before.tenant), str(principal.tenant)
        raise AuthenticationFailed(
            f"cannot change the {what} from {old} to {new} by re-authentication"
        )

    def _start_lifetime(self, credentials_ms: int) -> int:
        """Return the session's lifetime in ms, the shorter of both limits; 0 for no limit."""
        limits = [limit for limit in (credentials_ms, self._lifetime.max_ms) if limit > 0]
        self.expires_at = None
        if not limits or not (self._can_reauthenticate or self._lifetime.includes_old_clients):
            return 0
        self.expires_at = self._seconds() + min(limits) / 1000
        return min(limits)

    def end(self) -> None:
        """Close the session: the connection is closing. It accepts no further tokens."""
        self._exchange = None
        if self.state is not LoginState.CLOSED:
            self._move(LoginState.CLOSED)

    def _move(self, state: LoginState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"illegal transition from {self.state.value} to {state.value}")
        self._enter(state)

    def _enter(self, state: LoginState) -> None:
        self.state = state
        self.is_ready = state is LoginState.READY
        self.is_closed = state is LoginState.CLOSED


async def _respond(exchange: SaslExchange, token: bytes) -> SaslOutcome:
    """Raises MechanismError instead of what `exchange` must not raise."""
    try:
        return await exchange.respond(token)
    except (AuthenticationFailed, AuthenticationBusy, CancelledError):
        raise
    except Exception as bug:  # noqa: BLE001 - replaced by one without its text
        name = type(bug).__name__
        raise MechanismError(name).with_traceback(bug.__traceback__) from None


async def log_in(
    session: LoginSession,
    token: bytes,
    traffic: Recorder,
    audit: AuditLog,
    peer: str,
    listener: str,
    version: int = BARE,
) -> tuple[bytes | None, int]:
    """Process a token of the client, bare or from SaslAuthenticate; log and record the outcome.

    Takes `version`, returns and raises as `LoginSession.token`.
    """
    is_first = not session.has_authenticated
    try:
        answer = await session.token(token, version)
    except AuthenticationFailed as failure:
        if session.refusal is None:
            log_failed_login(audit, peer, listener, session.mechanism, failure.reason)
        traffic.closing("error:login")
        raise
    if session.refusal is not None:
        # Now, because the client may disconnect instead of acknowledging.
        log_failed_login(audit, peer, listener, session.mechanism, session.refusal)
        traffic.closing("error:login")
    if session.is_ready:
        if is_first:
            traffic.authenticated(session.principal)
        audit.logged_in(peer, listener, session.mechanism, session.principal, again=not is_first)
    return answer


def log_failed_login(
    audit: AuditLog, peer: str, listener: str, mechanism: str | None, reason: str
) -> None:
    """Log why a connection is closed before it has logged in."""
    audit.login_failed(peer, listener, mechanism, reason)
    _log.warning("login failed", peer=peer, listener=listener, mechanism=mechanism, reason=reason)
