"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding.

| step | client token                      | server token                          |
|------|-----------------------------------|---------------------------------------|
| 1    | `n,[a=AUTHZID],n=USER,r=NONCE`    | `r=NONCE+OWN,s=SALT,i=ITERATIONS`     |
| 2    | `c=biws,r=NONCE+OWN,p=PROOF`      | `v=SIGNATURE`                         |

The rules are those of Kafka's ScramSaslServer and ScramMessages. Stricter than Kafka: mandatory
extensions (`m=`) are refused, as the RFC requires, and the channel binding of the second token must
repeat the header of the first.

An unknown user gets a salt that is derived from the name and fails at the second step, so that
clients cannot find out which users exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from auth.mechanism import AuthenticationFailed, Principal, SaslOutcome
from auth.plain import WRONG_CREDENTIALS

#: The hash by mechanism name.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

#: Bounds of the iteration count, Kafka's ScramMechanism and ScramControlManager.MAX_ITERATIONS.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384

#: Largest token in bytes. Clients send about 100.
MAX_TOKEN_BYTES = 4096

#: Bits of the server's nonce and of a generated salt, as in Kafka's ScramFormatter.
_RANDOM_BITS = 130

_NAME = r"(?:[^\0,=]|=2C|=3D)+"
_EXTENSIONS = r"(?:,[a-zA-Z]=[^\0,]+)*"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[a-zA-Z]+=[^\0,]+)*))"
)
_CLIENT_FINAL = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    rf"{_EXTENSIONS}),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What the server stores of a password. It does not allow logging in as the user.

    `stored_key` is the hash of the client's key, `server_key` signs the server's answer.
    """

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @staticmethod
    def of_salted_password(
        mechanism: str, salted_password: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        """Return the credential of a salted password, which clients of Kafka's admin API send."""
        name = HASHES[mechanism]
        client_key = hmac.digest(salted_password, b"Client Key", name)
        return ScramCredential(
            salt,
            hashlib.new(name, client_key).digest(),
            hmac.digest(salted_password, b"Server Key", name),
            iterations,
        )


class ScramCredentialSource(Protocol):
    """Credentials by mechanism and user name."""

    def find(self, mechanism: str, name: str, /) -> ScramCredential | None: ...

    def decoy(self, mechanism: str, name: str, /) -> ScramCredential:
        """Return a credential that no password matches.

        Salt and iterations are the same in each call and look like those of a user.
        """
        ...


def salt_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password (RFC 5802 `Hi`). Takes milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def new_salt() -> bytes:
    """Return a random salt in the form of Kafka's tools: 130 bits as base-36 digits."""
    return readable_salt(secrets.token_bytes(32))


def readable_salt(entropy: bytes) -> bytes:
    """Return the salt for at least 17 random bytes, in the form of Kafka's tools."""
    number, digits = int.from_bytes(entropy, "big") % (1 << _RANDOM_BITS), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode() or b"0"


class ScramMechanism:
    """A SCRAM mechanism of `HASHES`. Checking a proof takes microseconds, so nothing is queued.

    `credentials` returns the source of the credentials. `new_nonce` returns printable characters
    without commas.
    """

    def __init__(
        self,
        name: str,
        credentials: Callable[[], ScramCredentialSource],
        new_nonce: Callable[[], str] = lambda: new_salt().decode(),
    ) -> None:
        self._name = name
        self._credentials = credentials
        self._new_nonce = new_nonce

    @property
    def name(self) -> str:
        return self._name

    def begin(self, host: str) -> ScramExchange:
        return ScramExchange(self._name, self._credentials(), self._new_nonce())


@dataclass(frozen=True, slots=True)
class _Challenge:
    """The state after the first token."""

    user: str
    credential: ScramCredential = field(repr=False)
    is_known: bool
    header: bytes = field(repr=False)
    client_first: bytes = field(repr=False)
    server_first: bytes = field(repr=False)
    nonce: str = field(repr=False)


class ScramExchange:
    """An exchange of exactly two tokens."""

    __slots__ = ("_challenge", "_credentials", "_is_finished", "_mechanism", "_nonce")

    def __init__(self, mechanism: str, credentials: ScramCredentialSource, nonce: str) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._nonce = nonce
        self._challenge: _Challenge | None = None
        self._is_finished = False

    async def respond(self, token: bytes, /) -> SaslOutcome:
        if self._is_finished:
            raise AuthenticationFailed("the authentication is already finished")
        # Each path that fails leaves the exchange finished.
        self._is_finished = True
        text = _decode(token)
        if self._challenge is None:
            self._challenge = challenge = self._begin(text)
            self._is_finished = False
            return SaslOutcome(challenge.server_first, None)
        return self._finish(self._challenge, text)

    def _begin(self, text: str) -> _Challenge:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationFailed(_describe_first(text))
        user = _unescape(match["name"])
        if match["authzid"] is not None and _unescape(match["authzid"]) != user:
            raise AuthenticationFailed("the authorization id differs from the user name")
        extensions = dict(item.split("=", 1) for item in match["extensions"].split(",")[1:])
        if "m" in extensions:
            raise AuthenticationFailed("mandatory SCRAM extensions are not supported")
        if extensions.get("tokenauth", "").lower() == "true":
            raise AuthenticationFailed("delegation tokens are not supported")
        # Both are computed for each user, so that they take the same time.
        decoy = self._credentials.decoy(self._mechanism, user)
        found = self._credentials.find(self._mechanism, user)
        credential = decoy if found is None else found
        if credential.iterations < MIN_ITERATIONS:
            raise AuthenticationFailed(WRONG_CREDENTIALS)
        nonce = match["nonce"] + self._nonce
        salt = base64.b64encode(credential.salt).decode()
        return _Challenge(
            user,
            credential,
            found is not None,
            match["header"].encode(),
            match["bare"].encode(),
            f"r={nonce},s={salt},i={credential.iterations}".encode(),
            nonce,
        )

    def _finish(self, challenge: _Challenge, text: str) -> SaslOutcome:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("invalid SCRAM client-final message")
        # Before 2.6.1 librdkafka repeats its own nonce before the whole one (its pull request
        # 4895). Kafka's ScramSaslServer accepts that; the proof covers what was sent.
        if not match["nonce"].endswith(challenge.nonce):
            raise AuthenticationFailed("the nonce differs from the server's")
        if _unbase64(match["binding"]) != challenge.header:
            raise AuthenticationFailed("the channel binding differs from the first message")
        credential, hash_name = challenge.credential, HASHES[self._mechanism]
        message = b",".join(
            (challenge.client_first, challenge.server_first, match["unproved"].encode())
        )
        proof = _unbase64(match["proof"])
        signature = hmac.digest(credential.stored_key, message, hash_name)
        is_complete = len(proof) == len(signature)
        proof = proof.ljust(len(signature))[: len(signature)]
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_proved = hmac.compare_digest(
            hashlib.new(hash_name, client_key).digest(), credential.stored_key
        )
        if not (is_proved and is_complete and challenge.is_known):
            raise AuthenticationFailed(WRONG_CREDENTIALS)
        answer = hmac.digest(credential.server_key, message, hash_name)
        return SaslOutcome(b"v=" + base64.b64encode(answer), Principal("User", challenge.user))


def _decode(token: bytes) -> str:
    if len(token) > MAX_TOKEN_BYTES:
        raise AuthenticationFailed(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
    try:
        return bytes(token).decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not UTF-8") from None


def _describe_first(text: str) -> str:
    """Say why the first token was refused. Never quotes it: it may be a PLAIN token."""
    if text.startswith(("p=", "y,")):
        return "SCRAM channel binding is not supported"
    return "invalid SCRAM client-first message"


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("invalid base64 in the SCRAM client-final message") from None
