"""The login state machine, with the request sequences of old and new clients."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from twisted.internet.defer import Deferred

from auth.mechanism import AuthenticationBusy, AuthenticationFailed, Principal, SaslOutcome
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import ROUTES
from gateway.protocol.session import TRANSITIONS, LoginSession, LoginState, SessionLifetime
from tests.examples import scaled
from tests.fakes.broker import Started
from tests.fakes.connection import (
    MemoryClient,
    ScriptedMechanism,
    authenticate,
    events,
    handshake,
    plain_frame,
    request,
    versions,
)

HANDSHAKE_VERSIONS = [0, 1]


def plain(**more):
    return ScriptedMechanism("PLAIN", {b"\0alice\0secret": b""}, **more)


def in_two_steps():
    return ScriptedMechanism(
        "SCRAM", {b"client-first": b"server-first", b"client-final": b"server-final"}
    )


def a_request(correlation_id=9):
    """A request that is allowed only after the login."""
    return request(MetadataRequest(version=1, topics=[]), correlation_id)


def handshake_reply(frame, version):
    assert frame[:4] == b"\0\0\0\x01"
    reply = SaslHandshakeResponse.decode(frame[4:], version=version)
    return reply.error_code, reply.mechanisms


def authenticate_reply(frame, version=0):
    # From version 2 the header ends with an empty section of tagged fields.
    reply = SaslAuthenticateResponse.decode(frame[5 if version >= 2 else 4 :], version=version)
    return reply.error_code, reply.error_message, bytes(reply.auth_bytes)


def versions_reply(frame, version):
    reply = ApiVersionsResponse.decode(frame[4:], version=version)
    return reply.error_code, {
        row.api_key: (row.min_version, row.max_version) for row in reply.api_keys
    }


# initial


def test_session_without_mechanisms_is_ready():
    assert LoginSession(None).is_ready
    assert not LoginSession({"PLAIN": plain()}).is_ready


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_api_versions_may_be_repeated_before_login(version):
    client = MemoryClient([plain()])
    for _ in range(3):
        client.send(versions(version))
        (reply,) = client.receive()
        error_code, served = versions_reply(reply, version)
        assert error_code == 0
        assert served[18] == (0, 4)
    client.send(handshake("PLAIN", 1))
    assert handshake_reply(client.receive()[0], 1) == (0, ["PLAIN"])


@pytest.mark.parametrize("version", [5, 6, 99, 32767])
def test_unknown_api_versions_version_is_answered_as_v0(version):
    client = MemoryClient([plain()])
    client.send(versions(version))
    error_code, served = versions_reply(client.receive()[0], 0)
    assert error_code == 35
    assert served[18] == (0, 4)
    client.send(versions(4))
    assert versions_reply(client.receive()[0], 4)[0] == 0


@pytest.mark.parametrize(
    "early", [a_request(), authenticate(b"\0alice\0secret")], ids=["Metadata", "SaslAuthenticate"]
)
def test_request_before_handshake_closes_connection(early, caplog):
    client = MemoryClient([plain()])
    client.send(early)
    assert client.receive() == []
    assert client.is_aborted
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert (fields["peer"], fields["api_key"]) == (
        "192.0.2.1:5000",
        int.from_bytes(early[:2], "big"),
    )


@pytest.mark.parametrize(
    "token",
    [
        b"\x60\x82\x02\x4b\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02",
        b"\x60\x01",
        b"\x60" + bytes(40),
        b"\x60" * 600,
    ],
)
def test_raw_gssapi_token_is_reported_as_such(token, caplog):
    client = MemoryClient([plain()])
    client.send(token)
    assert client.is_aborted
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert "GSSAPI" in fields["reason"]


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_unknown_mechanism_gets_list_and_closes_connection(version):
    client = MemoryClient([plain(), in_two_steps()])
    client.send(handshake("GSSAPI", version))
    assert handshake_reply(client.receive()[0], version) == (33, ["PLAIN", "SCRAM"])
    assert client.closed_after_ms == [100]
    client.send(handshake("PLAIN", version), versions())
    assert client.receive() == []


# bare tokens


def test_tokens_are_bare_after_handshake_v0():
    mechanism = plain()
    client = MemoryClient([mechanism])
    client.send(handshake("PLAIN", 0))
    assert handshake_reply(client.receive()[0], 0) == (0, ["PLAIN"])
    client.send(b"\0alice\0secret")
    assert client.receive() == [b""]
    assert mechanism.seen == [b"\0alice\0secret"]
    assert str(client.session.principal) == "User:alice"


def test_bare_tokens_are_exchanged_until_login_completes():
    client = MemoryClient([in_two_steps()])
    client.send(handshake("SCRAM", 0), b"client-first")
    assert client.receive()[1:] == [b"server-first"]
    assert not client.session.is_ready
    client.send(b"client-final")
    assert client.receive() == [b"server-final"]
    assert client.session.is_ready


@pytest.mark.parametrize(
    "token",
    [b"", b"\x60\x01", versions(), authenticate(b"\0alice\0secret")],
    ids=["empty", "gssapi", "ApiVersions", "SaslAuthenticate"],
)
def test_bare_token_is_passed_to_mechanism_unread(token):
    mechanism = ScriptedMechanism("PLAIN", {token: b"welcome"})
    client = MemoryClient([mechanism])
    client.send(handshake("PLAIN", 0), token)
    assert client.receive()[1:] == [b"welcome"]
    assert mechanism.seen == [token]


def test_failed_bare_token_closes_connection_after_delay(caplog):
    client = MemoryClient([plain()])
    client.send(handshake("PLAIN", 0))
    client.receive()
    client.send(b"\0alice\0guess", b"\0alice\0secret")
    assert client.receive() == []
    assert client.closed_after_ms == [100]
    assert not client.session.is_ready
    ((event, fields),) = events(caplog)
    assert event == "login failed"
    assert fields["mechanism"] == "PLAIN"
    assert "guess" not in repr(caplog.records)


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_token_behind_failed_one_is_not_checked(version, caplog):
    """Nor is one whose check was running when the connection closed."""
    checked = Deferred()
    mechanism = ScriptedMechanism("PLAIN", {b"slow": checked, b"token": b"welcome"})
    for first in (b"wrong", b"slow"):
        client = MemoryClient([mechanism])
        sent = [authenticate(token) if version else token for token in (first, b"token")]
        client.send(handshake("PLAIN", version), *sent)
        client.disconnect()
    assert mechanism.seen == [b"wrong", b"slow"]
    assert [event for event, _ in events(caplog)] == ["login failed"]


def test_token_after_end_of_session_is_refused():
    session = LoginSession({"PLAIN": plain()})
    session.handshake("PLAIN", 1)
    session.end()
    refused = Started(session.token(b"\0alice\0secret")).failure
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.ILLEGAL_SASL_STATE
    assert session.is_closed


def test_cancelled_check_may_end_as_failed_login(caplog):
    checked = Deferred(lambda self: self.errback(AuthenticationFailed("cancelled")))
    client = MemoryClient([ScriptedMechanism("PLAIN", {b"token": checked})])
    client.send(handshake("PLAIN", 0), b"token")
    client.disconnect()
    assert [event for event, _ in events(caplog)] == ["login failed"]
    assert client.session.is_closed


# authenticate


@pytest.mark.parametrize("version", [0, 1, 2])
def test_tokens_are_requests_after_handshake_v1(version):
    client = MemoryClient([plain(lifetime_ms=3_600_000)])
    client.send(handshake("PLAIN", 1))
    client.receive()
    client.send(authenticate(b"\0alice\0secret", version))
    (reply,) = client.receive()
    assert authenticate_reply(reply, version) == (0, None, b"")
    assert client.session.is_ready
    if version >= 1:
        assert (
            SaslAuthenticateResponse.decode(
                reply[5 if version >= 2 else 4 :], version=version
            ).session_lifetime_ms
            == 3_600_000
        )


def test_login_may_take_several_authenticate_requests():
    client = MemoryClient([in_two_steps()])
    client.send(handshake("SCRAM", 1), authenticate(b"client-first"), authenticate(b"client-final"))
    replies = client.receive()[1:]
    assert [authenticate_reply(reply) for reply in replies] == [
        (0, None, b"server-first"),
        (0, None, b"server-final"),
    ]


def test_failed_token_gets_error_and_closes_connection_after_delay(caplog):
    client = MemoryClient([plain()])
    client.send(handshake("PLAIN", 1))
    client.receive()
    client.send(authenticate(b"\0alice\0guess"), authenticate(b"\0alice\0secret"), a_request())
    (reply,) = client.receive()
    error_code, message, _ = authenticate_reply(reply)
    assert error_code == 58
    assert "wrong user name or password" in message
    assert client.closed_after_ms == [100]
    assert [event for event, _ in events(caplog)] == ["login failed"]


@pytest.mark.parametrize(
    "early",
    [versions(), handshake("PLAIN", 1), a_request()],
    ids=["ApiVersions", "SaslHandshake", "Metadata"],
)
def test_only_authenticate_is_allowed_after_handshake_v1(early):
    client = MemoryClient([plain()])
    client.send(handshake("PLAIN", 1))
    client.receive()
    client.send(early, authenticate(b"\0alice\0secret"))
    assert client.receive() == []
    assert client.is_aborted
    assert not client.session.is_ready


# both handshake versions


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_mechanisms_serve_both_handshake_versions(version):
    mechanism = plain()
    for _ in range(2):
        client = MemoryClient([mechanism])
        token = b"\0alice\0secret"
        client.send(handshake("PLAIN", version), authenticate(token) if version else token)
        assert client.session.is_ready
    assert mechanism.begun == 2
    assert mechanism.seen == [token, token]


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_too_many_concurrent_logins_close_connection_without_reply(version, caplog):
    client = MemoryClient(
        [
            ScriptedMechanism(
                "PLAIN", {b"token": AuthenticationBusy("too many password checks are waiting")}
            )
        ]
    )
    client.send(handshake("PLAIN", version))
    client.receive()
    client.send(authenticate(b"token") if version else b"token")
    assert client.receive() == []
    assert client.is_aborted
    assert [fields["reason"] for _, fields in events(caplog)] == [
        "too many password checks are waiting"
    ]


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_requests_behind_token_wait_for_login(version):
    checked = Deferred()
    client = MemoryClient([ScriptedMechanism("PLAIN", {b"token": checked})])
    client.send(
        handshake("PLAIN", version),
        authenticate(b"token") if version else b"token",
        versions(correlation_id=77),
    )
    assert len(client.receive()) == 1
    checked.callback(b"welcome")
    _, after = client.receive()
    assert after[:4] == b"\0\0\0\x4d"


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_disconnect_cancels_login(version, caplog):
    cancelled = []
    checked = Deferred(cancelled.append)
    client = MemoryClient([ScriptedMechanism("PLAIN", {b"token": checked})])
    client.send(
        handshake("PLAIN", version), authenticate(b"token") if version else b"token", a_request()
    )
    client.disconnect()
    assert cancelled == [checked]
    assert events(caplog) == []
    assert client.budget.used == 0
    assert client.session.state is LoginState.CLOSED


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_unexpected_mechanism_failure_closes_connection(version, caplog):
    client = MemoryClient([ScriptedMechanism("PLAIN", {b"token": ZeroDivisionError()})])
    client.send(
        handshake("PLAIN", version), authenticate(b"token") if version else b"token", a_request()
    )
    assert len(client.receive()) == 1
    assert client.is_aborted
    assert [event for event, _ in events(caplog)] == ["request failed"]
    assert not client.session.is_ready


# arbitrary frames

SENSIBLE = [
    versions(0),
    versions(3),
    *(
        handshake(name, version)
        for name in ("PLAIN", "SCRAM", "GSSAPI")
        for version in HANDSHAKE_VERSIONS
    ),
    *(
        authenticate(token, version)
        for token in (b"client-first", b"client-final", b"\0alice\0secret")
        for version in (0, 2)
    ),
    b"client-first",
    b"client-final",
    b"\0alice\0secret",
    a_request(),
]


@st.composite
def spoiled(draw):
    """A valid frame with up to two bytes changed, perhaps truncated."""
    frame = bytearray(draw(st.sampled_from(SENSIBLE)))
    for _ in range(draw(st.integers(0, 2))):
        frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame[: draw(st.integers(0, len(frame)))])


@settings(
    max_examples=scaled(300),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(frames=st.lists(st.sampled_from(SENSIBLE) | spoiled() | st.binary(max_size=40), max_size=6))
def test_any_frame_before_login_gets_one_reply_or_closes_connection(caplog, frames):
    caplog.clear()
    client = MemoryClient([plain(), in_two_steps()])
    for frame in frames:
        if client.session.is_ready or client.session.is_closed:
            break
        client.send(frame)
        assert len(client.receive()) == 1 or client.is_aborted or client.closed_after_ms
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# ready


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_handshake_on_listener_without_sasl_is_answered_as_by_kafka(version):
    # KafkaApis.handleSaslHandshakeRequest: ILLEGAL_SASL_STATE and no mechanisms; the connection
    # stays open.
    client = MemoryClient()
    client.send(handshake("PLAIN", version))
    assert handshake_reply(client.receive()[0], version) == (34, [])
    client.send(authenticate(b"\0alice\0secret"))
    assert authenticate_reply(client.receive()[0])[0] == 34
    client.send(versions())
    assert versions_reply(client.receive()[0], 0)[0] == 0
    assert not client.is_aborted


def test_api_versions_is_allowed_after_login():
    # The Java client since 1.0 uses version 0 before the login and its own after it.
    client = MemoryClient([plain()])
    client.send(versions(), handshake("PLAIN", 1), authenticate(b"\0alice\0secret"), versions(4))
    assert versions_reply(client.receive()[-1], 4)[0] == 0


# GSSAPI without a handshake


def gssapi():
    return ScriptedMechanism("GSSAPI", {b"\x60\x01": b"challenge", b"": None})


def test_raw_gssapi_token_begins_login_if_enabled():
    mechanism = gssapi()
    client = MemoryClient([plain(), mechanism])
    client.send(b"\x60\x01")
    assert client.receive() == [b"challenge"]
    client.send(b"")
    # The last token has no answer: a client would read it as that of its first request.
    assert client.receive() == []
    assert client.session.is_ready
    assert client.session.mechanism == "GSSAPI"
    client.send(versions())
    assert versions_reply(client.receive()[0], 0)[0] == 0


def test_raw_gssapi_token_after_a_request_is_refused():
    mechanism = gssapi()
    client = MemoryClient([mechanism])
    client.send(handshake("GSSAPI", 1))
    client.receive()
    client.send(b"\x60\x01")
    assert client.is_aborted
    assert mechanism.seen == []


# re-authentication (KIP-368)

LIFETIME = SessionLifetime(max_ms=10_000)


class RefusingMechanism(ScriptedMechanism):
    """Fails after the client has acknowledged the refusal, as OAUTHBEARER does."""

    async def _respond(self, token):
        self.seen.append(token)
        if len(self.seen) == 1:
            return SaslOutcome(b"refused", None, refusal="expired")
        raise AuthenticationFailed("refused: expired")


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_refused_token_is_logged_once_whether_or_not_the_client_acknowledges(
    version, is_acknowledged, caplog
):
    client = MemoryClient([RefusingMechanism("PLAIN", {})])
    sent = [b"token", b"\x01"] if is_acknowledged else [b"token"]
    client.send(
        handshake("PLAIN", version), *(authenticate(one) if version else one for one in sent)
    )
    client.disconnect()
    ((event, fields),) = events(caplog)
    assert (event, fields["reason"]) == ("login failed", "expired")
    assert not client.session.is_ready


class UserMechanism(ScriptedMechanism):
    """A mechanism whose token is the user's name."""

    async def _respond(self, token):
        self.seen.append(token)
        return SaslOutcome(b"", Principal("User", token.decode()), self.lifetime_ms)


def logged_in(version=1, authenticate_version=1, lifetime=LIFETIME, lifetime_ms=0):
    mechanisms = [
        UserMechanism("PLAIN", {}, lifetime_ms=lifetime_ms),
        UserMechanism("OTHER", {}),
    ]
    client = MemoryClient(mechanisms, lifetime=lifetime)
    token = authenticate(b"alice", authenticate_version) if version else b"alice"
    client.send(handshake("PLAIN", version), token)
    client.receive()
    assert client.session.is_ready
    return client


def lifetime_of(reply, version=1):
    return SaslAuthenticateResponse.decode(
        reply[5 if version >= 2 else 4 :], version=version
    ).session_lifetime_ms


def reauthenticate(client, user=b"alice", mechanism="PLAIN"):
    client.send(handshake(mechanism, 1))
    assert handshake_reply(client.receive()[0], 1)[0] == 0
    client.send(authenticate(user, 1))
    (reply,) = client.receive()
    return reply


@pytest.mark.parametrize(
    ("max_ms", "lifetime_ms", "expected"),
    [(0, 0, 0), (10_000, 0, 10_000), (0, 4_000, 4_000), (10_000, 4_000, 4_000), (3, 4, 3)],
)
def test_lifetime_is_the_shorter_limit(max_ms, lifetime_ms, expected):
    client = MemoryClient([plain(lifetime_ms=lifetime_ms)], lifetime=SessionLifetime(max_ms=max_ms))
    client.send(handshake("PLAIN", 1), authenticate(b"\0alice\0secret", 1))
    assert lifetime_of(client.receive()[-1]) == expected


def test_session_can_be_reauthenticated_again_and_again():
    client = logged_in()
    for _ in range(5):
        client.clock.advance(9)
        assert lifetime_of(reauthenticate(client)) == 10_000
        assert client.session.is_ready
        client.send(versions())
        assert versions_reply(client.receive()[0], 0)[0] == 0


def test_expired_session_serves_only_reauthentication(caplog):
    client = logged_in()
    client.clock.advance(10.5)
    reauthenticate(client)
    assert client.session.is_ready
    client.clock.advance(10.5)
    client.send(versions())
    assert client.receive() == []
    assert client.is_aborted
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert "expired" in fields["reason"]


@pytest.mark.parametrize(("version", "authenticate_version"), [(0, 0), (1, 0)])
@pytest.mark.parametrize("includes_old_clients", [False, True])
def test_clients_that_cannot_reauthenticate_expire_only_if_told(
    version, authenticate_version, includes_old_clients
):
    lifetime = SessionLifetime(10_000, includes_old_clients=includes_old_clients)
    client = logged_in(version, authenticate_version, lifetime)
    client.clock.advance(1e6)
    client.send(versions())
    assert client.is_aborted is includes_old_clients
    assert len(client.receive()) == (0 if includes_old_clients else 1)


def test_principal_cannot_be_changed(caplog):
    client = logged_in()
    client.clock.advance(5)
    reply = reauthenticate(client, b"bob")
    assert authenticate_reply(reply, 1)[0] == 58
    assert client.closed_after_ms == [100]
    assert str(client.session.principal) == "User:alice"
    ((event, fields),) = events(caplog)
    assert event == "login failed"
    assert "User:bob" in fields["reason"]


def test_mechanism_cannot_be_changed():
    client = logged_in()
    client.clock.advance(5)
    reply = reauthenticate(client, mechanism="OTHER")
    assert authenticate_reply(reply, 1)[0] == 58
    assert client.closed_after_ms == [100]


@pytest.mark.parametrize("early", [versions(), a_request()], ids=["ApiVersions", "Metadata"])
def test_other_request_during_reauthentication_closes_connection(early):
    # SaslServerAuthenticator: "Unexpected Kafka request during SASL authentication".
    client = logged_in()
    client.clock.advance(5)
    client.send(handshake("PLAIN", 1))
    client.receive()
    client.send(early)
    assert client.receive() == []
    assert client.is_aborted


@pytest.mark.parametrize(
    ("lifetime", "seconds", "version"),
    [
        pytest.param(SessionLifetime(), 5, 1, id="no lifetime"),
        pytest.param(LIFETIME, 5, 0, id="handshake v0"),
    ],
)
def test_second_handshake_is_answered_with_an_error(lifetime, seconds, version):
    client = logged_in(lifetime=lifetime)
    client.clock.advance(seconds)
    client.send(handshake("PLAIN", version))
    assert handshake_reply(client.receive()[0], version) == (34, [])
    client.send(versions())
    assert versions_reply(client.receive()[0], 0)[0] == 0


def test_reauthentication_is_allowed_once_per_second():
    client = logged_in()
    client.clock.advance(5)
    reauthenticate(client)
    client.clock.advance(0.9)
    client.send(handshake("PLAIN", 1))
    assert handshake_reply(client.receive()[0], 1)[0] == 34
    client.clock.advance(0.2)
    reauthenticate(client)


def test_authenticate_without_handshake_in_session_is_answered_with_an_error():
    client = logged_in()
    client.send(authenticate(b"alice", 1))
    assert authenticate_reply(client.receive()[0], 1)[0] == 34
    assert client.session.is_ready


# every API before the login


@pytest.mark.parametrize("state", ["initial", "authenticate"])
def test_no_other_api_is_served_before_login(state):
    allowed = {"initial": {17, 18}, "authenticate": {36}}[state]
    for (api_key, version), route in ROUTES.items():
        if api_key in allowed:
            continue
        called = []

        async def handler(request, caller, called=called):
            called.append(caller)

        client = MemoryClient([plain()])
        if state == "authenticate":
            client.send(handshake("PLAIN", 1))
            client.receive()
        ROUTES[api_key, version] = msgspec.structs.replace(route, handler=handler)
        try:
            client.send(plain_frame(api_key, version, bytes(64)))
        finally:
            ROUTES[api_key, version] = route
        assert client.receive() == [], (api_key, version)
        assert client.is_aborted, (api_key, version)
        assert called == []


@pytest.mark.parametrize("api_key", [-1, *range(100), 1000, 32767])
def test_unknown_version_before_login_gets_nothing(api_key):
    if api_key == 18:
        return
    for version in (-1, 50, 32767):
        client = MemoryClient([plain()])
        client.send(plain_frame(api_key, version, bytes(64)))
        assert client.receive() == []
        assert client.is_aborted
        assert not client.session.is_ready


# the table


@pytest.mark.parametrize("before", LoginState)
@pytest.mark.parametrize("after", LoginState)
def test_only_transitions_in_table_are_allowed(before, after):
    session = LoginSession({"PLAIN": plain()})
    session.state = before
    if after in TRANSITIONS[before]:
        session._move(after)
        assert session.state is after
    else:
        with pytest.raises(RuntimeError):
            session._move(after)


def test_closed_session_stays_closed():
    assert TRANSITIONS[LoginState.CLOSED] == set()
    session = LoginSession(None)
    session.end()
    session.end()
    assert session.is_closed
