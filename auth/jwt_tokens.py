"""Verifies JWTs (RFC 7519): signature, times, issuer, audience, and the claims that name the user.

The rules are those of Kafka's ValidatorAccessTokenValidator and of Pulsar's
AuthenticationProviderToken; `TokenRules` holds the differences. PyJWT verifies signatures only: its
checks of claims read the wall clock, and its parser takes a millisecond for 16 KiB.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import msgspec

from auth.mechanism import AuthenticationFailed
from auth.signing_keys import KeySource, VerificationKey

#: Largest token in bytes. Web servers accept request headers of 8 to 16 KiB, so that tokens are
#: smaller.
MAX_TOKEN_BYTES = 16 << 10

#: Longest name of a user: that of a `sub` claim in OpenID Connect Core, section 2.
MAX_SUBJECT_CHARS = 255

#: Keys that are tried for a token without `kid`.
MAX_TRIED_KEYS = 4

#: The longest lifetime in ms that is reported, 285,000 years.
_MAX_LIFETIME_MS = 1 << 53

#: Pulsar's names of tenants and namespaces (NamedEntity).
_NAME = re.compile(r"[-=:.\w]+", re.ASCII)

_COMPACT = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)", re.ASCII)
_UNSECURED = "none"


class _Header(msgspec.Struct, frozen=True):
    """The header of a token (RFC 7515, section 4.1). `crit` lists extensions; none is supported."""

    alg: str
    kid: str | None = None
    crit: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must contain beside a valid signature.

    An empty set of audiences and an issuer of None accept any. `requires_times`: `exp` and `iat`
    must be present, as in Kafka; Pulsar's tokens have no end by default. `tenant_claim` and
    `scope_claim` are not read if None. `allows_unsecured`: tokens with `alg: none` are accepted
    without a signature.
    """

    subject_claim: str = "sub"
    issuer: str | None = None
    audiences: frozenset[str] = frozenset()
    audience_claim: str = "aud"
    clock_skew_seconds: float = 0.0
    requires_times: bool = False
    tenant_claim: str | None = None
    scope_claim: str | None = None
    allows_unsecured: bool = False


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """What a valid token says.

    `lifetime_ms` is the time until it expires, 0 for no limit. `tenant` is the value of the tenant
    claim, `TENANT` or `TENANT/NAMESPACE`.
    """

    subject: str
    lifetime_ms: int
    tenant: str | None = None


class TokenVerifier:
    """Verifies tokens. `now` returns the seconds since 1970."""

    def __init__(self, keys: KeySource, rules: TokenRules, now: Callable[[], float]) -> None:
        self.rules = rules
        self._keys = keys
        self._now = now

    async def verify(self, token: str) -> VerifiedToken:
        """Return what a token says.

        Raises AuthenticationFailed, whose reason has no part of the token, and AuthenticationBusy.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise AuthenticationFailed(f"the token is larger than {MAX_TOKEN_BYTES} bytes")
        parts = _COMPACT.fullmatch(token)
        if parts is None:
            raise AuthenticationFailed("the token is not a JWT of three parts")
        header = _read_header(_decode(parts[1]))
        payload, signature = _decode(parts[2]), _decode(parts[3])
        if header.alg == _UNSECURED:
            self._check_unsecured(signature)
        else:
            signed = token[: parts.end(2)].encode()
            keys = await self._find_keys(header.kid, header.alg)
            _check_signature(signed, signature, header.alg, keys)
        return _check_claims(_read_claims(payload), self.rules, self._now())

    async def _find_keys(self, key_id: str | None, algorithm: str) -> list[VerificationKey]:
        found = self._keys.current().find(key_id, algorithm)
        if not found and key_id is not None:
            await self._keys.renew()
            found = self._keys.current().find(key_id, algorithm)
        if not found:
            raise AuthenticationFailed("no key fits the algorithm and key id of the token")
        return found

    def _check_unsecured(self, signature: bytes) -> None:
        if not self.rules.allows_unsecured:
            raise AuthenticationFailed("the token has no signature")
        if signature:
            raise AuthenticationFailed("the token has a signature, but its algorithm is none")


def complete_tenant(tenant: str, namespace: str) -> str:
    """Return `TENANT/NAMESPACE`; a tenant alone gets `namespace`. Raises AuthenticationFailed."""
    parts = tenant.split("/")
    if len(parts) > 2 or not all(map(_NAME.fullmatch, parts)):
        raise AuthenticationFailed("the tenant is not TENANT or TENANT/NAMESPACE")
    return tenant if len(parts) == 2 else f"{tenant}/{namespace}"


def _decode(part: str) -> bytes:
    """Return the bytes of a part, base64url without padding. Other spellings are refused."""
    content = base64.urlsafe_b64decode(f"{part}==") if len(part) % 4 != 1 else b""
    if base64.urlsafe_b64encode(content).rstrip(b"=") != part.encode():
        raise AuthenticationFailed("a part of the token is not base64url")
    return content


def _read_header(content: bytes) -> _Header:
    try:
        header = msgspec.json.decode(content, type=_Header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise AuthenticationFailed("the header of the token is malformed") from None
    if header.crit is not msgspec.UNSET:
        raise AuthenticationFailed("the token requires extensions (crit)")
    return header


def _check_signature(
    signed: bytes, signature: bytes, algorithm: str, keys: list[VerificationKey]
) -> None:
    """Raises AuthenticationFailed unless the signature is by one of the keys.

    They fit the algorithm.
    """
    verify = jwt.get_algorithm_by_name(algorithm).verify
    for key in keys[:MAX_TRIED_KEYS]:
        if verify(signed, key.material, signature):
            return
    raise AuthenticationFailed("the signature of the token is wrong")


def _read_claims(payload: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise AuthenticationFailed("the claims of the token are not a JSON object") from None


def _check_claims(claims: Mapping[str, Any], rules: TokenRules, now: float) -> VerifiedToken:
    expiry = _check_times(claims, rules, now)
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise AuthenticationFailed("the token has another issuer, or none")
    if rules.audiences and not rules.audiences.intersection(
        _strings(claims.get(rules.audience_claim))
    ):
        raise AuthenticationFailed("the token is for another audience, or for none")
    if rules.scope_claim is not None:
        _check_scopes(claims.get(rules.scope_claim))
    lifetime_ms = 0 if expiry is None else min(max(int((expiry - now) * 1000), 1), _MAX_LIFETIME_MS)
    return VerifiedToken(_subject(claims, rules), lifetime_ms, _tenant(claims, rules))


def _check_times(claims: Mapping[str, Any], rules: TokenRules, now: float) -> float | None:
    """Return the time of expiry, or None."""
    expiry, earliest, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    skew = rules.clock_skew_seconds
    if rules.requires_times and (expiry is None or issued is None):
        raise AuthenticationFailed("the token lacks the claim exp or iat")
    if expiry is not None and now >= expiry + skew:
        raise AuthenticationFailed("the token has expired")
    if earliest is not None and now + skew < earliest:
        raise AuthenticationFailed("the token is not valid yet")
    if issued is not None and now + skew < issued:
        raise AuthenticationFailed("the token was issued in the future")
    return expiry


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationFailed(f"the claim {name} of the token is not a time")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not 0 <= seconds < math.inf:
        raise AuthenticationFailed(f"the claim {name} of the token is not a time")
    return seconds


def _strings(value: object) -> list[str]:
    """A claim that is a string or a list of strings."""
    listed = value if isinstance(value, list) else [value]
    return [one for one in listed if isinstance(one, str)]


def _check_scopes(value: object) -> None:
    """Refuse blank and repeated scopes, as Kafka's ClaimValidationUtils does."""
    scopes = [one.strip() for one in _strings(value)]
    expected = len(value) if isinstance(value, list) else len(scopes)
    if "" in scopes or not len(set(scopes)) == len(scopes) == expected:
        raise AuthenticationFailed("the token has empty, repeated or malformed scopes")


def _subject(claims: Mapping[str, Any], rules: TokenRules) -> str:
    """The name of the user: of a list the first entry, as in Pulsar."""
    value = claims.get(rules.subject_claim)
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, str) or not value.strip():
        raise AuthenticationFailed(f"the token has no claim {rules.subject_claim} with a name")
    if len(value) > MAX_SUBJECT_CHARS or not value.isprintable():
        raise AuthenticationFailed(
            f"the claim {rules.subject_claim} of the token is longer than {MAX_SUBJECT_CHARS} "
            "characters, or not printable"
        )
    return value


def _tenant(claims: Mapping[str, Any], rules: TokenRules) -> str | None:
    if rules.tenant_claim is None:
        return None
    value = claims.get(rules.tenant_claim)
    if not isinstance(value, str):
        raise AuthenticationFailed(f"the token has no claim {rules.tenant_claim} with a tenant")
    return value
