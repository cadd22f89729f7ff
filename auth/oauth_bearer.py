"""SASL OAUTHBEARER (RFC 7628): one token with a JWT, and an empty reply.

The client sends `n,[a=AUTHZID],^Aauth=Bearer TOKEN^A[KEY=VALUE^A...]^A`, where `^A` is %x01. The
rules are those of Kafka's OAuthBearerSaslServer and OAuthBearerClientInitialResponse. After an
invalid token the server answers with a JSON object, the client sends %x01, and the log-in fails.

Extensions of the client (KEY=VALUE) are not signed, so they are read and not used.
"""

from __future__ import annotations

import re

from auth.jwt_tokens import TokenVerifier, VerifiedToken, complete_tenant
from auth.mechanism import AuthenticationFailed, Principal, SaslOutcome

#: Largest message of a client: the largest JWT, and 4 KiB for the rest.
MAX_MESSAGE_BYTES = 20 << 10

MAX_EXTENSIONS = 32

#: What Kafka answers if its validator refuses a token.
INVALID_TOKEN = b'{"status":"invalid_token"}'

_CONTROL_A = b"\x01"
_HEADER = re.compile(r"n,(?:a=(?P<authzid>(?:[^\0,=]|=2C|=3D)+))?,")
_KEY = re.compile(r"[A-Za-z]+", re.ASCII)
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class OAuthBearerMechanism:
    """SASL OAUTHBEARER.

    Verifying a signature takes at most half a millisecond, so nothing is queued. `namespace`
    completes a tenant claim that names only a tenant.
    """

    name = "OAUTHBEARER"

    def __init__(self, verifier: TokenVerifier, namespace: str = "default") -> None:
        self._verifier = verifier
        self._namespace = namespace

    def begin(self, host: str) -> OAuthBearerExchange:
        return OAuthBearerExchange(self._verifier, self._namespace)


class OAuthBearerExchange:
    """An exchange of one token, or of two that fail."""

    __slots__ = ("_failure", "_is_finished", "_namespace", "_verifier")

    def __init__(self, verifier: TokenVerifier, namespace: str) -> None:
        self._verifier = verifier
        self._namespace = namespace
        self._is_finished = False
        self._failure: str | None = None

    async def respond(self, token: bytes, /) -> SaslOutcome:
        if self._failure is not None and token == _CONTROL_A:
            failure, self._failure = self._failure, None
            raise AuthenticationFailed(f"{INVALID_TOKEN.decode()}: {failure}")
        if self._is_finished:
            raise AuthenticationFailed("the authentication is already finished")
        self._is_finished = True
        bearer, authorization_id, _ = parse_initial_response(token)
        try:
            verified = await self._verifier.verify(bearer)
            tenant = self._tenant(verified)
        except AuthenticationFailed as failure:
            self._failure = failure.reason
            return SaslOutcome(INVALID_TOKEN, None, refusal=failure.reason)
        if authorization_id not in ("", verified.subject):
            raise AuthenticationFailed("the authorization id differs from the token's user")
        return SaslOutcome(b"", Principal("User", verified.subject, tenant), verified.lifetime_ms)

    def _tenant(self, verified: VerifiedToken) -> str | None:
        if verified.tenant is None:
            return None
        return complete_tenant(verified.tenant, self._namespace)


def parse_initial_response(message: bytes) -> tuple[str, str, dict[str, str]]:
    """Return the JWT, the authorization id or an empty string, and the extensions.

    Raises AuthenticationFailed.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise AuthenticationFailed(f"the message is larger than {MAX_MESSAGE_BYTES} bytes")
    malformed = AuthenticationFailed("malformed OAUTHBEARER message")
    try:
        header, *pairs = bytes(message).decode("utf-8").split("\x01")
    except UnicodeDecodeError:
        raise malformed from None
    match = _HEADER.fullmatch(header)
    if match is None or pairs[-2:] != ["", ""] or len(pairs) > MAX_EXTENSIONS + 3:
        raise malformed
    values = {}
    for pair in pairs[:-2]:
        key, _, value = pair.partition("=")
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or key in values:
            raise malformed
        values[key] = value
    auth = _AUTH.fullmatch(values.pop("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise malformed
    authorization_id = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return auth["token"], authorization_id, values
