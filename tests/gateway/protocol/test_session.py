"""The table of log-in, row by row, as the conversations that clients of every age hold."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from twisted.internet.defer import Deferred

from auth.mechanism import AuthenticationBusy
from gateway.protocol.session import TRANSITIONS, LoginSession, LoginState
from tests.fakes.connection import (
    Client,
    Scripted,
    authenticate,
    events,
    handshake,
    request,
    versions,
)

ROADS = [0, 1]


def plain(**more):
    return Scripted("PLAIN", {b"\0alice\0secret": b""}, **more)


def in_two_steps():
    return Scripted("SCRAM", {b"client-first": b"server-first", b"client-final": b"server-final"})


def a_request(correlation_id=9):
    """Any request that only somebody who is known may make."""
    return request(MetadataRequest(version=1, topics=[]), correlation_id)


def handshake_reply(frame, version):
    assert frame[:4] == b"\0\0\0\x01"
    reply = SaslHandshakeResponse.decode(frame[4:], version=version)
    return reply.error_code, reply.mechanisms


def authenticate_reply(frame, version=0):
    # From version 2 on the header ends in an empty set of tags.
    reply = SaslAuthenticateResponse.decode(frame[5 if version >= 2 else 4 :], version=version)
    return reply.error_code, reply.error_message, bytes(reply.auth_bytes)


def versions_reply(frame, version):
    reply = ApiVersionsResponse.decode(frame[4:], version=version)
    return reply.error_code, {
        row.api_key: (row.min_version, row.max_version) for row in reply.api_keys
    }


# greeting


def test_a_listener_without_log_in_is_ready_at_once():
    assert LoginSession(None).is_ready
    assert not LoginSession({"PLAIN": plain()}).is_ready


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_versions_may_be_asked_before_the_log_in_as_often_as_one_likes(version):
    client = Client([plain()])
    for _ in range(3):
        client.says(versions(version))
        (reply,) = client.hears()
        error_code, served = versions_reply(reply, version)
        assert error_code == 0
        assert served[18] == (0, 4)
    client.says(handshake("PLAIN", 1))
    assert handshake_reply(client.hears()[0], 1) == (0, ["PLAIN"])


@pytest.mark.parametrize("version", [5, 6, 99, 32767])
def test_versions_of_the_future_are_answered_in_the_oldest_layout_and_may_be_asked_again(version):
    client = Client([plain()])
    client.says(versions(version))
    error_code, served = versions_reply(client.hears()[0], 0)
    assert error_code == 35
    assert served[18] == (0, 4)
    client.says(versions(4))
    assert versions_reply(client.hears()[0], 4)[0] == 0


@pytest.mark.parametrize(
    "early", [a_request(), authenticate(b"\0alice\0secret")], ids=["Metadata", "SaslAuthenticate"]
)
def test_a_request_before_the_handshake_is_hung_up_on(early, caplog):
    client = Client([plain()])
    client.says(early)
    assert client.hears() == []
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
def test_a_raw_gssapi_token_is_refused_by_name(token, caplog):
    client = Client([plain()])
    client.says(token)
    assert client.is_aborted
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert "GSSAPI" in fields["reason"]


@pytest.mark.parametrize("version", ROADS)
def test_an_unknown_mechanism_is_told_which_there_are_and_then_hung_up_on(version):
    client = Client([plain(), in_two_steps()])
    client.says(handshake("GSSAPI", version))
    assert handshake_reply(client.hears()[0], version) == (33, ["PLAIN", "SCRAM"])
    assert client.closed_after_ms == [100]
    client.says(handshake("PLAIN", version), versions())
    assert client.hears() == []


# tokens


def test_after_handshake_0_tokens_are_bare():
    mechanism = plain()
    client = Client([mechanism])
    client.says(handshake("PLAIN", 0))
    assert handshake_reply(client.hears()[0], 0) == (0, ["PLAIN"])
    client.says(b"\0alice\0secret")
    assert client.hears() == [b""]
    assert mechanism.seen == [b"\0alice\0secret"]
    assert str(client.session.principal) == "User:alice"


def test_bare_tokens_go_to_and_fro_until_the_mechanism_is_content():
    client = Client([in_two_steps()])
    client.says(handshake("SCRAM", 0), b"client-first")
    assert client.hears()[1:] == [b"server-first"]
    assert not client.session.is_ready
    client.says(b"client-final")
    assert client.hears() == [b"server-final"]
    assert client.session.is_ready


@pytest.mark.parametrize(
    "token",
    [b"", b"\x60\x01", versions(), authenticate(b"\0alice\0secret")],
    ids=["empty", "gssapi", "ApiVersions", "SaslAuthenticate"],
)
def test_a_bare_token_is_opaque_to_all_but_the_mechanism(token):
    mechanism = Scripted("PLAIN", {token: b"welcome"})
    client = Client([mechanism])
    client.says(handshake("PLAIN", 0), token)
    assert client.hears()[1:] == [b"welcome"]
    assert mechanism.seen == [token]


def test_a_bare_token_that_fails_is_hung_up_on_after_the_delay(caplog):
    client = Client([plain()])
    client.says(handshake("PLAIN", 0))
    client.hears()
    client.says(b"\0alice\0guess", b"\0alice\0secret")
    assert client.hears() == []
    assert client.closed_after_ms == [100]
    assert not client.session.is_ready
    ((event, fields),) = events(caplog)
    assert event == "login failed"
    assert fields["mechanism"] == "PLAIN"
    assert "guess" not in repr(caplog.records)


# exchange


@pytest.mark.parametrize("version", [0, 1, 2])
def test_after_handshake_1_tokens_are_requests(version):
    client = Client([plain(lifetime_ms=3_600_000)])
    client.says(handshake("PLAIN", 1))
    client.hears()
    client.says(authenticate(b"\0alice\0secret", version))
    (reply,) = client.hears()
    assert authenticate_reply(reply, version) == (0, None, b"")
    assert client.session.is_ready
    if version >= 1:
        assert (
            SaslAuthenticateResponse.decode(
                reply[5 if version >= 2 else 4 :], version=version
            ).session_lifetime_ms
            == 3_600_000
        )


def test_an_exchange_may_have_several_steps():
    client = Client([in_two_steps()])
    client.says(handshake("SCRAM", 1), authenticate(b"client-first"), authenticate(b"client-final"))
    replies = client.hears()[1:]
    assert [authenticate_reply(reply) for reply in replies] == [
        (0, None, b"server-first"),
        (0, None, b"server-final"),
    ]


def test_a_token_that_fails_is_told_and_hung_up_on_after_the_delay(caplog):
    client = Client([plain()])
    client.says(handshake("PLAIN", 1))
    client.hears()
    client.says(authenticate(b"\0alice\0guess"), authenticate(b"\0alice\0secret"), a_request())
    (reply,) = client.hears()
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
def test_nothing_but_tokens_is_admitted_in_an_exchange(early):
    client = Client([plain()])
    client.says(handshake("PLAIN", 1))
    client.hears()
    client.says(early, authenticate(b"\0alice\0secret"))
    assert client.hears() == []
    assert client.is_aborted
    assert not client.session.is_ready


# both roads


@pytest.mark.parametrize("version", ROADS)
def test_one_set_of_mechanisms_serves_both_roads(version):
    mechanism = plain()
    for _ in range(2):
        client = Client([mechanism])
        token = b"\0alice\0secret"
        client.says(handshake("PLAIN", version), authenticate(token) if version else token)
        assert client.session.is_ready
    assert mechanism.begun == 2
    assert mechanism.seen == [token, token]


@pytest.mark.parametrize("version", ROADS)
def test_too_many_log_ins_at_a_time_are_hung_up_on_without_an_answer(version, caplog):
    client = Client(
        [Scripted("PLAIN", {b"token": AuthenticationBusy("too many password checks are waiting")})]
    )
    client.says(handshake("PLAIN", version))
    client.hears()
    client.says(authenticate(b"token") if version else b"token")
    assert client.hears() == []
    assert client.is_aborted
    assert [fields["reason"] for _, fields in events(caplog)] == [
        "too many password checks are waiting"
    ]


@pytest.mark.parametrize("version", ROADS)
def test_what_comes_behind_a_token_waits_for_the_log_in(version):
    checked = Deferred()
    client = Client([Scripted("PLAIN", {b"token": checked})])
    client.says(
        handshake("PLAIN", version),
        authenticate(b"token") if version else b"token",
        versions(correlation_id=77),
    )
    assert len(client.hears()) == 1
    checked.callback(b"welcome")
    _, after = client.hears()
    assert after[:4] == b"\0\0\0\x4d"


@pytest.mark.parametrize("version", ROADS)
def test_a_client_that_goes_takes_its_log_in_with_it(version, caplog):
    cancelled = []
    checked = Deferred(cancelled.append)
    client = Client([Scripted("PLAIN", {b"token": checked})])
    client.says(
        handshake("PLAIN", version), authenticate(b"token") if version else b"token", a_request()
    )
    client.goes()
    assert cancelled == [checked]
    assert events(caplog) == []
    assert client.budget.used == 0
    assert client.session.state is LoginState.CLOSED


@pytest.mark.parametrize("version", ROADS)
def test_a_mechanism_that_breaks_is_a_bug_and_lets_nobody_in(version, caplog):
    client = Client([Scripted("PLAIN", {b"token": ZeroDivisionError()})])
    client.says(
        handshake("PLAIN", version), authenticate(b"token") if version else b"token", a_request()
    )
    assert len(client.hears()) == 1
    assert client.is_aborted
    assert [event for event, _ in events(caplog)] == ["request failed"]
    assert not client.session.is_ready


# anything at all

SENSIBLE = [
    versions(0),
    versions(3),
    *(handshake(name, version) for name in ("PLAIN", "SCRAM", "GSSAPI") for version in ROADS),
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
    """Something sensible, changed in up to two bytes and perhaps cut short."""
    frame = bytearray(draw(st.sampled_from(SENSIBLE)))
    for _ in range(draw(st.integers(0, 2))):
        frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame[: draw(st.integers(0, len(frame)))])


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(frames=st.lists(st.sampled_from(SENSIBLE) | spoiled() | st.binary(max_size=40), max_size=6))
def test_whatever_is_said_before_the_log_in_has_one_answer_or_is_hung_up_on(caplog, frames):
    caplog.clear()
    client = Client([plain(), in_two_steps()])
    for frame in frames:
        if client.session.is_ready or client.session.is_closed:
            break
        client.says(frame)
        assert len(client.hears()) == 1 or client.is_aborted or client.closed_after_ms
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# ready


@pytest.mark.parametrize("version", ROADS)
def test_a_handshake_where_there_is_no_log_in_is_answered_as_kafka_does(version):
    # KafkaApis.handleSaslHandshakeRequest: ILLEGAL_SASL_STATE and no mechanisms, and the connection goes on.
    client = Client()
    client.says(handshake("PLAIN", version))
    assert handshake_reply(client.hears()[0], version) == (34, [])
    client.says(authenticate(b"\0alice\0secret"))
    assert authenticate_reply(client.hears()[0])[0] == 34
    client.says(versions())
    assert versions_reply(client.hears()[0], 0)[0] == 0
    assert not client.is_aborted


def test_who_is_ready_may_ask_for_versions_again():
    # Java from 1.0 on asks with version 0 before the log-in and with its own after it.
    client = Client([plain()])
    client.says(versions(), handshake("PLAIN", 1), authenticate(b"\0alice\0secret"), versions(4))
    assert versions_reply(client.hears()[-1], 4)[0] == 0


# the table itself


@pytest.mark.parametrize("before", LoginState)
@pytest.mark.parametrize("after", LoginState)
def test_only_the_moves_of_the_table_are_made(before, after):
    session = LoginSession({"PLAIN": plain()})
    session.state = before
    if after in TRANSITIONS[before]:
        session._move(after)
        assert session.state is after
    else:
        with pytest.raises(RuntimeError):
            session._move(after)


def test_what_is_over_stays_over():
    assert TRANSITIONS[LoginState.CLOSED] == set()
    session = LoginSession(None)
    session.end()
    session.end()
    assert session.is_closed
