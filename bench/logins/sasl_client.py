"""A raw client that connects, logs in and closes.

A new mechanism needs an entry in `TOKENS`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from auth.scram import HASHES, salt_password
from tests.testkit.gateway import encode_request

PASSWORD = "benchmark-password"
TIMEOUT_SECONDS = 60.0

#: ApiVersions v0, with which most clients begin.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_SIZE = struct.Struct(">i")

#: Yields the client's tokens; receives the server's.
Tokens = Generator[bytes, bytes, None]


class LoginFailed(Exception):
    """The server refused the log-in or closed the connection."""


def _plain(user: str, password: str) -> Tokens:
    yield f"\0{user}\0{password}".encode()


def _oauthbearer(_: str, token: str) -> Tokens:
    yield f"n,,\1auth=Bearer {token}\1\1".encode()


def _gssapi(_: str, ticket_cache: str) -> Tokens:
    """As Java's client: without mutual authentication and without a security layer."""
    # An optional dependency.
    import gssapi

    context = gssapi.SecurityContext(
        name=gssapi.Name("kafka@localhost", gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(usage="initiate", store={"ccache": f"FILE:{ticket_cache}"}),
        usage="initiate",
        mech=gssapi.MechType.kerberos,
        flags=[gssapi.RequirementFlag.integrity],
    )
    offer = yield context.step()
    if not offer:
        # Kafka's server sends its offer after an empty token.
        offer = yield b""
    context.unwrap(offer)
    yield context.wrap(bytes([1, 0, 0, 0]), False).message


def _scram(mechanism: str, user: str, password: str) -> Tokens:
    name = HASHES[mechanism]
    bare = f"n={user},r={secrets.token_hex(12)}"
    answer = (yield f"n,,{bare}".encode()).decode()
    parts = dict(part.split("=", 1) for part in answer.split(","))
    client_key, stored_key = _keys(mechanism, password, parts["s"], int(parts["i"]))
    unproved = f"c=biws,r={parts['r']}"
    signature = hmac.digest(stored_key, f"{bare},{answer},{unproved}".encode(), name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    yield f"{unproved},p={base64.b64encode(proof).decode()}".encode()


@cache
def _keys(mechanism: str, password: str, salt: str, iterations: int) -> tuple[bytes, bytes]:
    """The client's key and its hash. Cached: the work of clients is not measured here."""
    salted = salt_password(mechanism, password, base64.b64decode(salt), iterations)
    key = hmac.digest(salted, b"Client Key", HASHES[mechanism])
    return key, hashlib.new(HASHES[mechanism], key).digest()


#: Clients by mechanism, called with a user name and a password. Instead of a password OAUTHBEARER
#: takes a JWT, and GSSAPI the path of a ticket cache.
TOKENS: dict[str, Callable[[str, str], Tokens]] = {
    "PLAIN": _plain,
    "OAUTHBEARER": _oauthbearer,
    "GSSAPI": _gssapi,
    "SCRAM-SHA-256": lambda user, password: _scram("SCRAM-SHA-256", user, password),
    "SCRAM-SHA-512": lambda user, password: _scram("SCRAM-SHA-512", user, password),
}


class LoginConnection:
    """A connection that has received the reply to ApiVersions. A context manager."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket)
        self._socket.sendall(_API_VERSIONS)
        if self._receive() is None:
            raise LoginFailed("closed after ApiVersions")

    def __enter__(self) -> LoginConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def log_in(self, mechanism: str, user: str, password: str = PASSWORD) -> list[float]:
        """Send the tokens. Returns the seconds until the reply to each.

        Raises LoginFailed, with these seconds as its argument.
        """
        handshake = encode_request(SaslHandshakeRequest(version=1, mechanism=mechanism), 1)
        if (reply := self._request(handshake)) is None or reply[4:6] != b"\0\0":
            raise LoginFailed(f"no {mechanism}: {reply!r}")
        tokens, seconds = TOKENS[mechanism](user, password), list[float]()
        token = next(tokens)
        while True:
            frame = encode_request(SaslAuthenticateRequest(version=0, auth_bytes=token), 0)
            began = time.perf_counter()
            reply = self._request(frame)
            seconds.append(time.perf_counter() - began)
            # Correlation id, error code, message and token.
            if reply is None or reply[4:6] != b"\0\0":
                raise LoginFailed(seconds)
            try:
                token = tokens.send(reply[12:])
            except StopIteration:
                return seconds

    def _request(self, frame: bytes) -> bytes | None:
        self._socket.sendall(_SIZE.pack(len(frame)) + frame)
        return self._receive()

    def _receive(self) -> bytes | None:
        head = self._exactly(4)
        return None if head is None else self._exactly(_SIZE.unpack(head)[0])

    def _exactly(self, size: int) -> bytes | None:
        got = bytearray()
        while len(got) < size:
            try:
                piece = self._socket.recv(size - len(got))
            except ConnectionResetError:
                return None
            if not piece:
                return None
            got += piece
        return bytes(got)


def trusting_context(certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """A TLS context that accepts every certificate and resumes no session.

    `certificate` has the client's certificate and key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context
