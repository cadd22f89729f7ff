"""Before the log-in no request is served: each API and version in each state of the log-in.

No handler runs, nothing of the broker is used, and the connection ends with one log line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.sasl import SaslHandshakeResponse

from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import ROUTES, UNSUPPORTED_VERSION_REPLIES, supported_versions
from gateway.protocol.session import BARE, LoginState, SessionLifetime
from gateway.protocol.wire.api_keys import ApiKey
from tests.fakes.connection import MemoryClient, events, handshake, plain_frame
from tests.gateway.security.attacks.logins import PASSWORD, as_frame, offering, shake_hands
from tests.gateway.security.requests_by_api import request_of
from tests.testkit.gateway import encode_request

KEYS = [-(2**15), -1, *range(101), 255, 1000, 2**15 - 1]

#: What the log-in itself may use of the broker.
USED_BY_LOGIN = {"settings", "clock", "deadlines", "audit", "client_quotas"}


class TrapBroker:
    """A broker that records which of its parts are used."""

    def __init__(self, parts: Any) -> None:
        self._parts = parts
        self._used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self._used.add(name)
        return getattr(self._parts, name)


def trapped(client: MemoryClient) -> TrapBroker:
    """Put the trap in front of the client's broker."""
    trap = TrapBroker(client.dispatch._broker)
    client.dispatch._broker = trap
    return trap


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The requests that reached a handler other than those of the log-in."""
    found: list[tuple[int, int]] = []

    def spy(key: int, version: int) -> Callable[..., Any]:
        async def handler(_request: Any, _caller: Any) -> Any:
            found.append((key, version))

        return handler

    routes = {
        (key, version): SimpleNamespace(
            api_key=route.api_key,
            handler=spy(key, version),
            decode=lambda *_: found.append((-1, -1)),
            encode=route.encode,
            has_tagged_header=route.has_tagged_header,
        )
        for (key, version), route in ROUTES.items()
        if key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS)
    }
    for place, route in routes.items():
        monkeypatch.setitem(ROUTES, place, route)
    return found


def initial() -> MemoryClient:
    return offering()


def bare_tokens() -> MemoryClient:
    client = offering()
    shake_hands(client, "PLAIN", BARE)
    return client


def awaits_authenticate() -> MemoryClient:
    client = offering()
    shake_hands(client, "PLAIN", 0)
    return client


def within_scram() -> MemoryClient:
    client = awaits_scram()
    client.send(as_frame(b"n,,n=alice,r=abc", 0))
    assert len(client.receive()) == 1
    return client


def awaits_scram() -> MemoryClient:
    client = offering()
    shake_hands(client, "SCRAM-SHA-256", 0)
    return client


def closed() -> MemoryClient:
    client = awaits_authenticate()
    client.send(as_frame(b"\0alice\0guess", 0))
    assert len(client.receive()) == 1
    assert client.session.state is LoginState.CLOSED
    return client


def authenticated() -> MemoryClient:
    client = offering("PLAIN", lifetime=SessionLifetime(max_ms=10_000))
    shake_hands(client, "PLAIN", 1)
    client.send(as_frame(f"\0alice\0{PASSWORD}".encode(), 1))
    client.receive()
    assert client.session.is_ready
    return client


def expired() -> MemoryClient:
    client = authenticated()
    client.clock.advance(11)
    return client


def reauthenticating() -> MemoryClient:
    client = authenticated()
    client.clock.advance(5)
    client.send(handshake("PLAIN", 1))
    client.receive()
    assert client.session.state is LoginState.AUTHENTICATE
    return client


#: The states, and the APIs of each that are served.
STATES: dict[Callable[[], MemoryClient], set[ApiKey]] = {
    initial: {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE},
    bare_tokens: set(),
    awaits_authenticate: {ApiKey.SASL_AUTHENTICATE},
    awaits_scram: {ApiKey.SASL_AUTHENTICATE},
    within_scram: {ApiKey.SASL_AUTHENTICATE},
    closed: set(),
    expired: {ApiKey.SASL_HANDSHAKE},
    reauthenticating: {ApiKey.SASL_AUTHENTICATE},
}


@cache
def plausible(key: ApiKey, version: int) -> bytes:
    return encode_request(request_of(key, version), version)


def frames(served: set[ApiKey]) -> Iterator[tuple[int, int, bytes]]:
    """A frame of each API that is not `served`, in its lowest and highest version and others."""
    versions = supported_versions()
    for key in KEYS:
        if key in versions:
            lowest, highest = versions[ApiKey(key)]
            for version in {lowest, highest} if key not in served else ():
                yield key, version, plausible(ApiKey(key), version)
            others = {-1, highest + 1, 2**15 - 1}
        else:
            others = {-1, 0, 1, 2**15 - 1}
        if key in served and key in UNSUPPORTED_VERSION_REPLIES:
            continue
        for version in sorted(others):
            yield key, version, plain_frame(key, version, bytes(64))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_request_before_login_reaches_no_handler_and_ends_the_connection(
    state: Callable[[], MemoryClient],
    handled: list[tuple[int, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = 0
    for key, version, frame in frames(STATES[state]):
        client = state()
        trap = trapped(client)
        caplog.clear()
        # Pipelined behind the first: a second request, and tokens.
        client.send(frame, frame, as_frame(f"\0alice\0{PASSWORD}".encode(), 0))
        assert client.receive() == [], (key, version)
        assert client.is_aborted or client.closed_after_ms, (key, version)
        assert not client.session.is_ready, (key, version)
        expected = {closed: [], bare_tokens: ["login failed"]}.get(state, ["refused"])
        assert [event for event, _ in events(caplog)] == expected, (key, version)
        assert trap._used <= USED_BY_LOGIN, (key, version)
        sent += 1
    assert handled == []
    # 47 keys are unknown, others have two versions that are served.
    assert sent > 400


def test_login_requests_use_nothing_else_of_the_broker() -> None:
    client = initial()
    trap = trapped(client)
    client.send(handshake("PLAIN", 1), as_frame(f"\0alice\0{PASSWORD}".encode(), 2))
    client.receive()
    assert client.session.is_ready
    assert trap._used <= USED_BY_LOGIN


@pytest.mark.parametrize("path", [0, 1])
@pytest.mark.parametrize(
    ("state", "is_answered"),
    [
        (bare_tokens, False),
        (awaits_authenticate, False),
        (within_scram, False),
        (closed, False),
        (reauthenticating, False),
        (authenticated, True),
    ],
)
def test_second_handshake_never_logs_in(
    state: Callable[[], MemoryClient], is_answered: bool, path: int
) -> None:
    """A client that is logged in gets an error, as in Kafka."""
    client = state()
    if state is authenticated:
        client.session.expires_at = None
    client.send(handshake("PLAIN", path), as_frame(f"\0alice\0{PASSWORD}".encode(), path or BARE))
    replies = client.receive()
    if is_answered:
        answer = SaslHandshakeResponse.decode(replies[0][4:], version=path)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    else:
        assert replies == []
        assert not client.session.is_ready
        assert client.is_aborted or client.closed_after_ms
