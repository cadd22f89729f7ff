"""SASL PLAIN (RFC 4616): one UTF-8 token, `[authzid] NUL authcid NUL passwd`, and an empty reply.

The rules are those of Kafka's PlainSaslServer: the authorization id must be empty or equal to the
user name, and neither user name nor password may be empty.

As in KoP (PlainSaslServer, SaslUtils) a password can also be `token:JWT`. Then the token names the
user, and the user name is the tenant: `TENANT/NAMESPACE`, or `TENANT`.
"""

from __future__ import annotations

from typing import Protocol

from auth.jwt_tokens import TokenVerifier, complete_tenant
from auth.mechanism import AuthenticationFailed, Principal, RunInThread, SaslOutcome

WRONG_CREDENTIALS = "wrong user name or password"
"""The same reason for a wrong name and a wrong password, so that clients cannot probe for user
names.
"""


#: Start of a password that is a JWT: the name of Pulsar's authentication method.
TOKEN_PREFIX = "token:"


class PasswordStore(Protocol):
    """Checks passwords.

    `check` hashes, so it is slow; it can be called in any thread and takes as long for unknown
    users as for known ones. `is_cached` does not hash: it tells whether this password was verified
    recently.
    """

    def is_cached(self, name: str, password: str, /) -> bool: ...
    def check(self, name: str, password: str, /) -> bool: ...


class TokenLogin:
    """Log-ins with a JWT as password.

    The tenant is the one that the client names, as in KoP. If `verifier` reads a tenant claim, both
    must be the same. `namespace` completes a user name that is only a tenant.
    """

    def __init__(self, verifier: TokenVerifier, namespace: str) -> None:
        self._verifier = verifier
        self._namespace = namespace

    async def log_in(self, name: str, token: str) -> SaslOutcome:
        """Return the outcome for user name and JWT.

        Raises AuthenticationFailed and AuthenticationBusy.
        """
        verified = await self._verifier.verify(token)
        tenant = complete_tenant(name, self._namespace)
        granted = verified.tenant
        if granted is not None and granted not in (tenant, tenant.partition("/")[0]):
            raise AuthenticationFailed("the token is for another tenant than the user name")
        return SaslOutcome(b"", Principal("User", verified.subject, tenant), verified.lifetime_ms)


class PlainMechanism:
    """SASL PLAIN with passwords, with tokens, or with both.

    `run` moves each password check off the reactor thread. Verifying a token takes at most half a
    millisecond.
    """

    name = "PLAIN"

    def __init__(
        self, passwords: PasswordStore | None, run: RunInThread, tokens: TokenLogin | None = None
    ) -> None:
        self._passwords = passwords
        self._run = run
        self._tokens = tokens

    def begin(self, host: str) -> PlainExchange:
        return PlainExchange(self, host)

    async def log_in(self, host: str, name: str, password: str) -> SaslOutcome:
        """Return the outcome. Raises AuthenticationFailed and AuthenticationBusy."""
        if self._tokens is not None and password.startswith(TOKEN_PREFIX):
            return await self._tokens.log_in(name, password.removeprefix(TOKEN_PREFIX))
        if self._passwords is None:
            raise AuthenticationFailed("the password is not token:JWT")
        if not await self._check(self._passwords, host, name, password):
            raise AuthenticationFailed(WRONG_CREDENTIALS)
        return SaslOutcome(b"", Principal("User", name))

    async def _check(self, known: PasswordStore, host: str, name: str, password: str) -> bool:
        if known.is_cached(name, password):
            return True
        return await self._run(host, lambda: known.check(name, password))


class PlainExchange:
    """An exchange of exactly one token."""

    __slots__ = ("_host", "_is_finished", "_mechanism")

    def __init__(self, mechanism: PlainMechanism, host: str) -> None:
        self._mechanism = mechanism
        self._host = host
        self._is_finished = False

    async def respond(self, token: bytes, /) -> SaslOutcome:
        if self._is_finished:
            raise AuthenticationFailed("the authentication is already finished")
        self._is_finished = True
        user, password = _parse(token)
        return await self._mechanism.log_in(self._host, user, password)


def _parse(token: bytes) -> tuple[str, str]:
    """Return user name and password.

    Error reasons never quote the token: a misplaced part may be the password.
    """
    try:
        parts = bytes(token).decode("utf-8").split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationFailed("invalid PLAIN token: expected three parts separated by NUL")
    authorization_id, user, password = parts
    if not user:
        raise AuthenticationFailed("the user name is empty")
    if not password:
        raise AuthenticationFailed("the password is empty")
    if authorization_id not in ("", user):
        raise AuthenticationFailed("the authorization id differs from the user name")
    return user, password
