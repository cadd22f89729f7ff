"""Attacks on the tokens of each SASL mechanism, on each of the ways in which they are sent."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.sasl import SaslHandshakeResponse

from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import ROUTES
from gateway.protocol.session import BARE, LoginSession, SessionLifetime
from gateway.protocol.wire.api_keys import ApiKey
from tests.fakes.connection import MemoryClient, authenticate, events, handshake, request
from tests.gateway.security.attacks.logins import (
    LOGINS,
    PASSWORD,
    PATHS,
    USER,
    as_frame,
    auth_bytes,
    correct,
    log_in,
    offering,
    send_tokens,
    shake_hands,
    spoiled,
    wrong,
)

LIFETIME = SessionLifetime(max_ms=10_000)
METADATA = request(MetadataRequest(version=1, topics=[]), 9)

by_mechanism = pytest.mark.parametrize("name", LOGINS)
by_path = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The principals whose Metadata requests were served."""
    found: list[Any] = []

    async def handler(_request: Any, caller: Any) -> None:
        found.append(caller.principal)

    route = ROUTES[ApiKey.METADATA, 1]
    changed = type(route)(route.api_key, handler, route.decode, route.encode, False)
    monkeypatch.setitem(ROUTES, (ApiKey.METADATA, 1), changed)
    return found


def tokens_of(name: str, attempt: int = 1) -> list[bytes]:
    """The client's tokens of a complete log-in."""
    client = offering(name)
    shake_hands(client, name, BARE)
    sent = send_tokens(client, correct(name, attempt), BARE)
    assert client.session.is_ready
    return sent


def is_refused(client: MemoryClient) -> bool:
    return not client.session.is_ready and bool(client.is_aborted or client.closed_after_ms)


@by_mechanism
@by_path
def test_correct_tokens_log_in_and_wrong_ones_do_not(name: str, path: int) -> None:
    client = offering()
    assert log_in(client, name, correct(name), path)
    assert str(client.session.principal) == f"User:{USER}"
    for attack in (wrong(name), wrong(name, "mallory"), wrong(name, "mallory", PASSWORD)):
        refused = offering()
        assert not log_in(refused, name, attack, path)
        assert refused.closed_after_ms == [100]
        assert refused.session.principal.name == "ANONYMOUS"


@by_mechanism
@pytest.mark.parametrize("path", [BARE, 2])
def test_changed_token_never_logs_in(name: str, path: int) -> None:
    """Each token cut at each byte, and with each byte dropped, doubled, cleared or inverted.

    Only cut on the second path, where the token is wrapped in a request.
    """
    changes = {
        "cut": lambda token, at: token[:at],
        "dropped": lambda token, at: token[:at] + token[at + 1 :],
        "doubled": lambda token, at: token[: at + 1] + token[at:],
        "cleared": lambda token, at: token[:at] + b"\0" + token[at + 1 :],
        "inverted": lambda token, at: token[:at] + bytes([token[at] ^ 0xFF]) + token[at + 1 :],
    }
    for step, token in enumerate(tokens_of(name)):
        for what, change in changes.items() if path == BARE else [("cut", changes["cut"])]:
            for at in range(len(token)):
                spoilt = change(token, at)
                if spoilt == token:
                    continue
                client = offering(name)
                attack = spoiled(correct(name), step, lambda sent, c=change, a=at: c(sent, a))
                assert not log_in(client, name, attack, path), (step, what, at)


@by_mechanism
@by_path
def test_empty_token_is_refused(name: str, path: int) -> None:
    for step in range(len(tokens_of(name))):
        client = offering()
        assert not log_in(client, name, spoiled(correct(name), step, lambda _: b""), path)
        assert is_refused(client)


@by_mechanism
@by_path
def test_tokens_out_of_order_are_refused(name: str, path: int) -> None:
    tokens = tokens_of(name)
    orders = [tokens[::-1], [tokens[-1]], [tokens[0], tokens[0]]] if len(tokens) > 1 else []
    for order in orders:
        client = offering()
        assert not log_in(client, name, iter(order), path)
        assert is_refused(client)


@by_mechanism
@by_path
def test_replayed_tokens_log_in_only_where_they_are_the_password(name: str, path: int) -> None:
    assert log_in(offering(), name, iter(tokens_of(name)), path) is LOGINS[name].is_replayable


@by_mechanism
@by_path
def test_tokens_of_another_mechanism_are_refused(name: str, path: int) -> None:
    for other in LOGINS:
        if other != name:
            client = offering()
            assert not log_in(client, name, correct(other), path)
            assert is_refused(client)


@by_mechanism
@pytest.mark.parametrize("size", [10_000, 500_000])
@by_path
def test_large_token_is_refused(name: str, size: int, path: int) -> None:
    fills = [bytes(size), b"x" * size, b"\0" + b"x" * size + b"\0x", b"n,,n=" + b"x" * size]
    fills += [b"\0alice\0" + b"x" * size, b"n,,n=alice,r=" + b"x" * size, b"=2C" * (size // 3)]
    for token in fills:
        client = offering()
        assert not log_in(client, name, iter([token]), path)
        assert is_refused(client)


@by_mechanism
def test_tokens_in_both_forms_do_not_mix(name: str) -> None:
    for path, other in ((BARE, 0), (0, BARE)):
        client = offering()
        shake_hands(client, name, path)
        send_tokens(client, correct(name), other)
        assert is_refused(client)


@by_mechanism
def test_authenticate_without_handshake_is_refused(name: str) -> None:
    client = offering()
    send_tokens(client, correct(name), 0)
    assert is_refused(client)


@pytest.mark.parametrize("path", [0, 1])
@pytest.mark.parametrize(
    "asked", ["", "plain", "PLAIN ", "PLAIN\0", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "x" * 32_000]
)
def test_mechanism_that_is_not_enabled_ends_the_connection(path: int, asked: str) -> None:
    client = offering()
    client.send(handshake(asked, path), as_frame(tokens_of("PLAIN")[0], path or BARE), METADATA)
    (reply,) = client.receive()
    answer = SaslHandshakeResponse.decode(reply[4:], version=path)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == list(LOGINS)
    assert is_refused(client)


@by_mechanism
@pytest.mark.parametrize("path", [0, 1])
def test_mechanism_of_another_listener_is_not_enabled(name: str, path: int) -> None:
    """The mechanisms are those of the listener (`listener.NAME.sasl_enabled_mechanisms`)."""
    client = offering(*(other for other in LOGINS if other != name))
    client.send(handshake(name, path))
    answer = SaslHandshakeResponse.decode(client.receive()[0][4:], version=path)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert name not in answer.mechanisms
    assert is_refused(client)


# One segment with everything


@by_mechanism
@by_path
def test_requests_behind_failing_tokens_are_not_served(
    name: str, path: int, served: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The tokens of an earlier log-in, the last one cut."""
    *tokens, last = tokens_of(name)
    frames = [as_frame(token, path) for token in (*tokens, last[:-1])]
    more = [METADATA, as_frame(last, path), METADATA]
    client = offering()
    client.send(handshake(name, 0 if path == BARE else 1), *frames, *more)
    client.receive()
    assert is_refused(client)
    assert served == []
    assert [event for event, _ in events(caplog)] == ["login failed"]


@by_mechanism
@by_path
def test_requests_behind_the_last_token_are_served_as_its_principal(
    name: str, path: int, served: list[Any]
) -> None:
    client = offering()
    shake_hands(client, name, path)
    conversation = correct(name, user="bob")
    token = next(conversation)
    for _ in range(len(tokens_of(name)) - 1):
        client.send(as_frame(token, path))
        (reply,) = client.receive()
        token = conversation.send(reply if path == BARE else auth_bytes(reply, path))
    client.send(as_frame(token, path), METADATA, METADATA)
    client.receive()
    assert [str(principal) for principal in served] == ["User:bob"] * 2


# Re-authentication


def with_session(name: str) -> MemoryClient:
    """A client that is logged in and may re-authenticate."""
    client = offering(lifetime=LIFETIME)
    assert log_in(client, name, correct(name), 1)
    client.clock.advance(5)
    return client


@by_mechanism
@pytest.mark.parametrize("other", LOGINS)
def test_reauthentication_keeps_the_mechanism(name: str, other: str, served: list[Any]) -> None:
    client = with_session(name)
    log_in(client, other, correct(other, attempt=2), 1)
    client.send(METADATA)
    client.receive()
    assert client.session.is_ready is (name == other)
    assert [str(one) for one in served] == ["User:alice"] * (name == other)


@by_mechanism
@pytest.mark.parametrize(
    ("user", "password"), [("bob", PASSWORD), ("alice", "guess"), ("mallory", PASSWORD)]
)
def test_reauthentication_needs_the_same_principal(
    name: str, user: str, password: str, served: list[Any]
) -> None:
    client = with_session(name)
    assert not log_in(client, name, LOGINS[name].client(user, password, 2), 1)
    client.send(METADATA)
    client.receive()
    assert is_refused(client)
    assert str(client.session.principal) == "User:alice"
    assert served == []


@by_mechanism
def test_replay_does_not_reauthenticate(name: str) -> None:
    client = with_session(name)
    assert log_in(client, name, iter(tokens_of(name)), 1) is LOGINS[name].is_replayable


@by_mechanism
def test_requests_behind_a_failing_reauthentication_are_not_served(
    name: str, served: list[Any]
) -> None:
    client = with_session(name)
    first = next(correct(name))
    client.send(handshake(name, 1), METADATA, authenticate(first, 1), METADATA)
    client.receive()
    assert is_refused(client)
    assert served == []


# User names


@by_mechanism
@by_path
@pytest.mark.parametrize(
    "user",
    [
        "Alice",
        "alice ",
        " alice",
        "al\u00adice",  # SASLprep maps SOFT HYPHEN to nothing
        "\uff41lice",  # and by NFKC the full-width letter to "a"
        "\u00aalice",  # FEMININE ORDINAL INDICATOR, too
        "alice\u200b",
        "alice\n",
        "User:alice",
        "a" * 1000,
    ],
)
def test_user_names_are_not_normalized(name: str, path: int, user: str) -> None:
    """Kafka compares them byte by byte, too; its SCRAM accepts ASCII only."""
    assert not log_in(offering(), name, wrong(name, user, PASSWORD), path)


@by_mechanism
@by_path
@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("alice\0", PASSWORD),
        ("\0alice", PASSWORD),
        ("alice\0bob", PASSWORD),
        ("", PASSWORD),
        # Not "\0" at the end: a SCRAM client pads its password with it (HMAC).
        ("alice", PASSWORD + "\0x"),
        ("alice", ""),
    ],
)
def test_nul_and_empty_parts_are_refused(name: str, path: int, user: str, password: str) -> None:
    assert not log_in(offering(), name, wrong(name, user, password), path)


# The session alone


@by_mechanism
def test_session_object_names_no_secret(name: str) -> None:
    """Nor do the mechanism and its exchange, in the middle of a log-in."""
    client = offering(name)
    shake_hands(client, name, BARE)
    conversation = correct(name)
    client.send(next(conversation))
    session: LoginSession = client.session
    for part in (session, session._exchange, session._mechanisms):
        assert PASSWORD not in repr(part)
