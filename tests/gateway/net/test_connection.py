"""Size limits, timeouts and closing of a connection, on a transport in memory and a fake clock."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from auth.certificate_principals import PrincipalRules
from gateway.net.connection import (
    CLOSE_TIMEOUT_SECONDS,
    LOGIN_FRAME_SECONDS,
    WRITE_STALL_SECONDS,
    KafkaConnection,
    Sweep,
    overdue_connections,
)
from gateway.net.flow_control import RESUME_INTERVAL_SECONDS, LoginBudget, MemoryBudget
from gateway.net.listeners import ConnectionLimits, Listener
from gateway.net.transport import HALF_CLOSE_SECONDS, TcpConnection
from gateway.protocol.dispatch import LAST_REPLY_SECONDS
from gateway.protocol.routes import ROUTES, DelayedReply, Route
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.audit import NO_AUDIT_LOG, AuditLog
from gateway.settings.model import Settings
from gateway.traffic.recorder import Recorder
from gateway.traffic.traffic_log import NO_TRAFFIC_LOG
from tests.fakes.connection import (
    ScriptedMechanism,
    authenticate,
    events,
    handshake,
    plain_frame,
    versions,
)
from tests.testkit.certificates import Authority

TOKEN = b"\0alice\0secret"


class Transport(StringTransport):
    """A socket in memory."""

    def __init__(self):
        super().__init__()
        self.is_aborted = False
        self.socket = SimpleNamespace(setsockopt=lambda *_: None)

    def setTcpNoDelay(self, enabled):
        pass

    def setTcpKeepAlive(self, enabled):
        pass

    def abortConnection(self):
        self.is_aborted = True

    @property
    def is_read(self):
        return self.producerState == "producing"


class FakeListener:
    """A listener whose broker has only a clock and settings."""

    def __init__(self, mechanisms=None, budget_bytes=1 << 30, login_bytes=1 << 20, **settings):
        self.name = "PLAINTEXT"
        self.clock = Clock()
        self.mechanisms = mechanisms and {mechanism.name: mechanism for mechanism in mechanisms}
        self.principal_rules = None
        self.settings = Settings(**settings)
        self.broker = SimpleNamespace(
            clock=self.clock,
            deadlines=self.clock,
            settings=self.settings,
            traffic=NO_TRAFFIC_LOG,
            audit=NO_AUDIT_LOG,
            client_quotas=SimpleNamespace(is_active=False, limits_time=False),
            quota_usage=SimpleNamespace(version=0),
            tenants=None,
        )
        self.budget = MemoryBudget(budget_bytes, self.clock)
        self.login_budget = LoginBudget(login_bytes)
        self.connections = []

    def opened(self, connection):
        self.connections.append(connection)

    def closed(self, connection):
        self.connections.remove(connection)

    def connect(self):
        connection = KafkaConnection(self, "192.0.2.1", 5000)
        connection.makeConnection(Transport())
        return connection

    def close_overdue(self, after=0.0):
        """Advance the clock and close overdue connections. Returns the reasons."""
        self.clock.advance(after)
        due = overdue_connections(self.connections, self.clock.seconds())
        for connection, reason in due:
            connection.close_overdue(reason)
        return [reason for _, reason in due]


@pytest.fixture
def waiting(monkeypatch):
    """Metadata v0 waits for this Deferred; Produce v0 returns a delayed reply that waits for it."""
    answer = Deferred()

    async def poll(request, caller):
        return await answer

    async def finish():
        return await answer

    async def append(request, caller):
        return DelayedReply(finish())

    for key, handler in [(ApiKey.METADATA, poll), (ApiKey.PRODUCE, append)]:
        monkeypatch.setitem(
            ROUTES, (key, 0), Route(key, handler, lambda *_: None, lambda reply, _: [reply], False)
        )
    return answer


def framed(*frames):
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def receive(connection, data):
    connection.received(memoryview(data))


POLL = framed(plain_frame(ApiKey.METADATA, 0))
PRODUCE = framed(plain_frame(ApiKey.PRODUCE, 0))


def test_request_is_answered():
    connection = FakeListener().connect()
    receive(connection, framed(versions(correlation_id=7)))
    written = connection.transport.value()
    assert struct.unpack_from(">ii", written) == (len(written) - 4, 7)


def test_oversized_frame_closes_connection_with_one_log_line(caplog):
    connection = FakeListener(socket_request_max_bytes=2 << 20).connect()
    receive(connection, struct.pack(">i", (2 << 20) + 1))
    assert connection.transport.is_aborted
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert fields["peer"] == "192.0.2.1:5000"
    assert str((2 << 20) + 1) in fields["reason"]


@pytest.mark.parametrize("version", [0, 1])
def test_frame_limit_is_small_before_login_and_large_after_it(version):
    listener = FakeListener(
        [ScriptedMechanism("PLAIN", {TOKEN: b""})],
        sasl_server_max_receive_size=1024,
        socket_request_max_bytes=2 << 20,
    )
    early = listener.connect()
    receive(early, struct.pack(">i", 1025))
    assert early.transport.is_aborted
    checked = Deferred()
    listener.mechanisms["PLAIN"].answers[TOKEN] = checked
    connection = listener.connect()
    token = (
        plain_frame(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", len(TOKEN)) + TOKEN)
        if version
        else TOKEN
    )
    receive(connection, framed(handshake("PLAIN", version)) + framed(token))
    assert not connection.session.is_ready
    checked.callback(b"")
    assert connection.session.is_ready
    receive(connection, struct.pack(">i", 1 << 20))
    assert not connection.transport.is_aborted


@pytest.mark.parametrize("version", [0, 1])
def test_bytes_before_login_do_not_count_in_memory_budget(version):
    listener = FakeListener([ScriptedMechanism("PLAIN", {TOKEN: b""})])
    connection = listener.connect()
    receive(connection, struct.pack(">i", 1000) + bytes(100))
    assert (listener.budget.used, listener.login_budget.used) == (0, 104)
    connection.connectionLost()
    assert (listener.budget.used, listener.login_budget.used) == (0, 0)
    connection = listener.connect()
    token = (
        plain_frame(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", len(TOKEN)) + TOKEN)
        if version
        else TOKEN
    )
    receive(connection, framed(handshake("PLAIN", version)) + framed(token)[:-1])
    assert listener.login_budget.used == len(framed(token)) - 1
    receive(connection, framed(token)[-1:] + struct.pack(">i", 1000) + bytes(100))
    assert connection.session.is_ready
    assert (listener.budget.used, listener.login_budget.used) == (104, 0)


def test_login_budget_closes_connection_with_oldest_partial_frame():
    listener = FakeListener([ScriptedMechanism("PLAIN", {TOKEN: b""})], login_bytes=250)
    first, second, third = (listener.connect() for _ in range(3))
    for connection in (first, second, third):
        receive(connection, struct.pack(">i", 1000) + bytes(40))
    receive(first, bytes(100))
    assert [one.transport.is_aborted for one in (first, second, third)] == [False, False, False]
    receive(second, bytes(100))
    assert [one.transport.is_aborted for one in (first, second, third)] == [True, False, False]
    assert listener.login_budget.used == 144 + 44


def test_frame_before_login_has_short_receive_timeout():
    listener = FakeListener(
        [ScriptedMechanism("PLAIN", {TOKEN: b""})], connection_authentication_timeout_ms=60_000
    )
    connection = listener.connect()
    receive(connection, struct.pack(">i", 1000) + bytes(10))
    assert listener.close_overdue(LOGIN_FRAME_SECONDS) == []
    receive(connection, bytes(10))
    assert listener.close_overdue(0.1) == ["request receive timed out"]


def test_announced_frame_length_does_not_count():
    listener = FakeListener()
    receive(listener.connect(), struct.pack(">i", 100 << 20) + bytes(10))
    assert listener.budget.used == 14


@pytest.mark.parametrize("begun", [b"", b"\0", struct.pack(">i", 100) + b"abc"])
def test_budget_is_released_when_connection_closes_in_any_state(waiting, begun):
    listener = FakeListener()
    connection = listener.connect()
    receive(connection, PRODUCE + POLL + POLL + begun)
    assert listener.budget.used == 3 * (len(POLL) - 4) + len(begun)
    connection.connectionLost()
    # The append continues after its client disconnects.
    assert listener.budget.used == len(PRODUCE) - 4
    waiting.callback(b"")
    assert listener.budget.used == 0
    assert listener.connections == []


def test_reading_pauses_at_limit_and_resumes_below_it(waiting):
    connection = FakeListener(max_in_flight_requests_per_connection=2).connect()
    receive(connection, POLL)
    assert connection.transport.is_read
    receive(connection, POLL)
    assert not connection.transport.is_read
    waiting.callback(b"")
    assert connection.transport.is_read


# timeouts


def test_idle_connection_is_closed_without_log_line(caplog):
    listener = FakeListener(connections_max_idle_ms=60_000)
    connection = listener.connect()
    assert listener.close_overdue(after=60) == []
    assert listener.close_overdue(after=1) == ["idle"]
    assert connection.transport.disconnecting
    assert events(caplog) == []


def test_connection_with_requests_is_not_idle():
    listener = FakeListener(connections_max_idle_ms=60_000)
    connection = listener.connect()
    for _ in range(5):
        listener.clock.advance(50)
        receive(connection, framed(versions()))
        assert listener.close_overdue() == []


def test_idle_time_starts_at_the_end_of_a_throttle_time():
    listener = FakeListener(connections_max_idle_ms=60_000)
    connection = listener.connect()
    connection._dispatch._mute_or_new().extend(200_000)
    assert listener.close_overdue(after=259) == []
    assert listener.close_overdue(after=2) == ["idle"]


def test_frame_that_is_not_read_during_a_throttle_time_is_not_overdue():
    listener = FakeListener(
        max_in_flight_requests_per_connection=3, request_receive_timeout_ms=120_000
    )
    connection = listener.connect()
    connection._dispatch._mute_or_new().extend(200_000)
    receive(connection, framed(*[versions()] * 3) + b"\0")
    assert not connection.transport.is_read
    assert listener.close_overdue(after=199) == []
    listener.clock.advance(1)
    assert connection.transport.is_read
    assert listener.close_overdue(after=119) == []
    assert listener.close_overdue(after=2) == ["request receive timed out"]


def test_drain_answers_the_requests_of_a_muted_connection():
    listener = FakeListener()
    connection = listener.connect()
    connection._dispatch._mute_or_new().extend(200_000)
    receive(connection, framed(versions()))
    assert not connection.transport.value()
    connection.drain()
    assert connection.transport.value()
    assert connection._dispatch.is_idle


def test_idle_time_starts_when_connection_stops_waiting_for_reply(waiting):
    listener = FakeListener(connections_max_idle_ms=60_000)
    connection = listener.connect()
    receive(connection, POLL)
    assert listener.close_overdue(after=600) == []
    waiting.callback(b"")
    assert listener.close_overdue(after=59) == []
    assert listener.close_overdue(after=2) == ["idle"]


def test_login_has_timeout(caplog):
    listener = FakeListener(
        [ScriptedMechanism("PLAIN", {TOKEN: b""})], connection_authentication_timeout_ms=30_000
    )
    slow, quick = listener.connect(), listener.connect()
    listener.clock.advance(29)
    receive(slow, framed(versions()))
    receive(quick, framed(handshake("PLAIN", 0)) + framed(TOKEN))
    assert quick.session.is_ready
    assert listener.close_overdue(after=2) == ["login timed out"]
    assert (slow.transport.is_aborted, quick.transport.is_aborted) == (True, False)
    assert [event for event, _ in events(caplog)] == ["refused"]


def test_token_after_login_timeout_is_not_checked(caplog):
    checked = Deferred()
    mechanism = ScriptedMechanism("PLAIN", {b"slow": checked, TOKEN: b""})
    listener = FakeListener([mechanism], connection_authentication_timeout_ms=30_000)
    connection = listener.connect()
    receive(connection, framed(handshake("PLAIN", 0)) + framed(b"slow"))
    assert listener.close_overdue(after=31) == ["login timed out"]
    receive(connection, framed(TOKEN))
    connection.connectionLost()
    assert mechanism.seen == [b"slow"]
    assert [event for event, _ in events(caplog)] == ["refused"]


def test_slow_request_times_out_even_if_bytes_keep_arriving():
    listener = FakeListener(request_receive_timeout_ms=120_000)
    connection = listener.connect()
    for byte in struct.pack(">i", 1000)[:3]:
        receive(connection, bytes([byte]))
        assert listener.close_overdue(after=35) == []
    receive(connection, b"\xe8")
    assert listener.close_overdue(after=16) == ["request receive timed out"]
    assert connection.transport.is_aborted


def test_each_request_has_separate_receive_timeout():
    listener = FakeListener(request_receive_timeout_ms=120_000)
    connection = listener.connect()
    frame = framed(versions())
    receive(connection, frame[:5])
    for _ in range(5):
        assert listener.close_overdue(after=100) == []
        receive(connection, frame[5:] + frame[:5])


def test_receive_timeout_excludes_time_while_reading_is_paused(waiting):
    listener = FakeListener(
        max_in_flight_requests_per_connection=1, request_receive_timeout_ms=120_000
    )
    connection = listener.connect()
    receive(connection, POLL + b"\0")
    assert not connection.transport.is_read
    assert listener.close_overdue(after=1000) == []
    waiting.callback(b"")
    assert listener.close_overdue(after=119) == []
    assert listener.close_overdue(after=2) == ["request receive timed out"]


def test_connection_with_stalled_reply_is_closed():
    listener = FakeListener()
    connection = listener.connect()
    raw = TcpConnection.__new__(TcpConnection)
    raw._unsent_bytes, raw.last_sent = 1000, listener.clock.seconds()
    connection.transport.transport = raw
    assert listener.close_overdue(after=WRITE_STALL_SECONDS - 1) == []
    raw.last_sent = listener.clock.seconds()
    assert listener.close_overdue(after=WRITE_STALL_SECONDS - 1) == []
    assert listener.close_overdue(after=2) == ["client stopped reading"]
    assert connection.transport.is_aborted


# closing


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (SSL.Error([("SSL routines", "", "http request")]), "TLS: http request"),
        (SSL.Error(), "TLS: connection lost"),
    ],
)
def test_tls_failure_is_logged_in_one_line(caplog, failure, told):
    connection = FakeListener().connect()
    connection.connectionLost(Failure(failure))
    ((event, fields),) = events(caplog)
    assert (event, fields["reason"]) == ("refused", told)


@pytest.mark.parametrize("failure", [ConnectionDone(), ConnectionLost()])
def test_client_disconnect_is_not_logged(caplog, failure):
    FakeListener().connect().connectionLost(Failure(failure))
    assert events(caplog) == []


def test_failed_login_delays_close_and_reads_nothing(caplog):
    listener = FakeListener(
        [ScriptedMechanism("PLAIN", {TOKEN: b""})], connection_failed_authentication_delay_ms=100
    )
    connection = listener.connect()
    receive(connection, framed(handshake("PLAIN", 0)) + framed(b"guess"))
    assert not connection.transport.is_read
    listener.clock.advance(0.099)
    assert not connection.transport.disconnecting
    listener.clock.advance(0.002)
    assert connection.transport.disconnecting
    assert not connection.transport.is_read


def test_failed_login_without_delay_closes_at_once():
    listener = FakeListener(
        [ScriptedMechanism("PLAIN", {TOKEN: b""})], connection_failed_authentication_delay_ms=0
    )
    connection = listener.connect()
    receive(connection, framed(handshake("PLAIN", 0)) + framed(b"guess"))
    assert connection.transport.disconnecting


def test_connection_stays_open_after_the_reply_to_a_failed_login():
    listener = FakeListener(
        [ScriptedMechanism("PLAIN", {TOKEN: b""})], connection_failed_authentication_delay_ms=100
    )
    connection = listener.connect()
    receive(connection, framed(handshake("PLAIN", 1)))
    sent = len(connection.transport.value())
    receive(connection, framed(authenticate(b"guess")))
    listener.clock.advance(0.101)
    assert len(connection.transport.value()) > sent
    listener.clock.advance(LAST_REPLY_SECONDS - 0.01)
    assert not connection.transport.disconnecting
    listener.clock.advance(0.02)
    assert connection.transport.disconnecting


def test_disconnect_during_login_failure_delay_is_handled():
    listener = FakeListener(
        [ScriptedMechanism("PLAIN", {TOKEN: b""})], connection_failed_authentication_delay_ms=100
    )
    connection = listener.connect()
    receive(connection, framed(handshake("PLAIN", 0)) + framed(b"guess"))
    connection.connectionLost()
    listener.clock.advance(1)
    assert not connection.transport.disconnecting


def test_connection_is_aborted_if_closing_times_out(caplog):
    listener = FakeListener(connections_max_idle_ms=60_000)
    connection = listener.connect()
    assert listener.close_overdue(after=61) == ["idle"]
    assert listener.close_overdue(after=CLOSE_TIMEOUT_SECONDS - 1) == []
    assert not connection.transport.is_aborted
    assert len(listener.close_overdue(after=2)) == 1
    assert connection.transport.is_aborted
    assert events(caplog) == []


def test_drain_closes_idle_connection_at_once():
    connection = FakeListener().connect()
    connection.drain()
    assert connection.transport.disconnecting


@pytest.mark.parametrize(("frame", "is_read"), [(PRODUCE, False), (POLL, True)])
def test_connection_that_waits_for_an_append_does_not_wait_for_reads(waiting, frame, is_read):
    connection = FakeListener().connect()
    assert not connection.waits_for_reads
    receive(connection, frame)
    assert connection.waits_for_reads is is_read


def test_drain_sends_pending_replies_and_accepts_no_more_requests(waiting):
    listener = FakeListener(max_in_flight_requests_per_connection=1)
    connection = listener.connect()
    receive(connection, PRODUCE)
    connection.drain()
    assert not connection.transport.disconnecting
    waiting.callback(b"stored")
    listener.clock.advance(0)
    # The reply makes room for another request, which a drain does not start.
    assert not connection.transport.is_read
    assert connection.transport.value().endswith(b"stored")
    connection.drain()
    assert connection.transport.disconnecting


def test_connection_is_drained_between_two_requests(waiting):
    listener = FakeListener()
    connection = listener.connect()
    receive(connection, PRODUCE)
    listener.clock.advance(1)
    assert not connection.drain_between_requests(0.5)
    waiting.callback(b"stored")
    listener.clock.advance(0)
    listener.clock.advance(0.25)
    assert not connection.drain_between_requests(0.5)
    listener.clock.advance(0.25)
    assert connection.drain_between_requests(0.5)
    assert connection.transport.disconnecting
    assert connection.drain_between_requests(0.5)


def test_connection_with_part_of_a_request_is_not_drained():
    listener = FakeListener()
    connection = listener.connect()
    receive(connection, framed(versions())[:6])
    listener.clock.advance(1)
    assert not connection.drain_between_requests(0.5)
    assert not connection.transport.disconnecting


def test_connection_that_waits_for_reads_is_left_to_the_end_of_the_drain(waiting):
    connection = FakeListener().connect()
    receive(connection, POLL)
    assert connection.drain_between_requests(0)
    assert not connection.transport.disconnecting


def test_requests_after_drain_are_not_served():
    connection = FakeListener().connect()
    connection.drain()
    receive(connection, framed(versions()))
    assert connection.transport.value() == b""


def test_drain_of_closed_connection_is_complete():
    connection = FakeListener().connect()
    connection.drain()
    connection.connectionLost()
    assert connection.drain()


def test_closed_connection_is_not_resumed():
    listener = FakeListener(budget_bytes=100)
    connection = listener.connect()
    receive(connection, struct.pack(">i", 500) + bytes(200))
    assert not connection.transport.is_read
    connection.connectionLost()
    listener.clock.advance(2 * RESUME_INTERVAL_SECONDS)
    assert not connection.transport.is_read
    assert listener.budget.used == 0


class Told(Recorder):
    """The reasons that the traffic log records."""

    def __init__(self):
        self.reasons = []

    def closing(self, reason):
        self.reasons.append(reason)

    def closed(self, reason):
        self.reasons.append(reason)


@pytest.fixture
def told():
    return Told()


def watched(told, *mechanisms, **settings):
    listener = FakeListener(list(mechanisms) or None, **settings)
    listener.broker.traffic = SimpleNamespace(connection=lambda peer, session: told)
    return listener, listener.connect()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [(ConnectionDone(), "client"), (ConnectionLost(), "error:lost"), (SSL.Error([]), "error:tls")],
)
def test_traffic_log_records_how_connection_was_lost(told, loss, reason):
    _, connection = watched(told)
    connection.connectionLost(Failure(loss))
    assert told.reasons[0] == reason


def test_traffic_log_records_timeout(told):
    for settings, begins, seconds, reason in [
        ({"connections_max_idle_ms": 1000}, b"", 2, "idle"),
        ({"request_receive_timeout_ms": 1000}, b"\0\0\0\x09x", 2, "error:request-timeout"),
    ]:
        told.reasons.clear()
        listener, connection = watched(told, **settings)
        receive(connection, begins)
        listener.close_overdue(seconds)
        assert told.reasons == [reason]
    told.reasons.clear()
    listener, _ = watched(
        told, ScriptedMechanism("PLAIN", {TOKEN: b""}), connection_authentication_timeout_ms=1000
    )
    listener.close_overdue(2)
    assert told.reasons == ["error:login-timeout"]


def test_traffic_log_records_drain_and_malformed_frame(told):
    _, connection = watched(told)
    connection.drain()
    assert told.reasons == ["drain"]
    told.reasons.clear()
    _, connection = watched(told)
    receive(connection, b"GET / HTTP/1.1\r\n")
    assert told.reasons == ["error:frame"]


def test_requests_before_an_invalid_length_are_served(caplog):
    connection = FakeListener().connect()
    chunk = framed(versions(correlation_id=7)) + struct.pack(">i", -1) + framed(versions())
    receive(connection, chunk)
    sent = connection.transport.value()
    assert struct.unpack_from(">ii", sent) == (len(sent) - 4, 7)
    assert connection.transport.is_aborted
    (refused,) = caplog.records
    assert dict(refused.fields)["reason"].startswith("frame length -1 is outside")
    receive(connection, framed(versions()))
    assert connection.transport.value() == sent


def test_traffic_log_records_stalled_reader(told):
    listener, connection = watched(told)
    raw = TcpConnection.__new__(TcpConnection)
    raw._unsent_bytes, raw.last_sent = 1000, listener.clock.seconds()
    connection.transport.transport = raw
    listener.close_overdue(WRITE_STALL_SECONDS + 1)
    assert told.reasons == ["error:stalled"]


def test_traffic_log_records_first_reason_to_close(
    told,
):
    listener, connection = watched(told, connections_max_idle_ms=1000)
    assert listener.close_overdue(2) == ["idle"]
    assert len(listener.close_overdue(CLOSE_TIMEOUT_SECONDS + 1)) == 1
    assert connection.transport.is_aborted
    assert told.reasons == ["idle"]


def test_traffic_log_records_unexpected_failure(told, waiting):
    _, connection = watched(told)
    receive(connection, POLL)
    waiting.errback(ZeroDivisionError())
    assert told.reasons == ["error:bug"]


@pytest.mark.parametrize(
    ("idle_seconds", "skips_half_close"),
    [(HALF_CLOSE_SECONDS + 0.1, True), (HALF_CLOSE_SECONDS - 0.1, False)],
)
def test_drain_of_long_idle_connection_skips_half_close(idle_seconds, skips_half_close):
    listener = FakeListener()
    connection = listener.connect()
    receive(connection, framed(versions()))
    raw = TcpConnection.__new__(TcpConnection)
    raw.skips_half_close = False
    connection.transport.transport = raw
    listener.clock.advance(idle_seconds)
    connection.drain()
    assert raw.skips_half_close is skips_half_close


def test_tls_close_does_not_wait_for_close_notify(monkeypatch):
    listener = FakeListener()
    raw = TcpConnection.__new__(TcpConnection)
    raw._unsent_bytes = 0
    ended = []
    connection = KafkaConnection(listener, "192.0.2.1", 5000)
    secured = Transport()
    secured.transport = raw
    # The gateway's close_notify is sent first.
    monkeypatch.setattr(
        TcpConnection, "loseConnection", lambda _: ended.append(secured.disconnecting)
    )
    connection.makeConnection(secured)
    listener.clock.advance(HALF_CLOSE_SECONDS + 0.1)
    connection.drain()
    assert ended == [True]
    assert raw.skips_half_close


@pytest.mark.parametrize(
    ("count", "steps", "most"),
    [(0, 1, 0), (1, 1, 1), (9, 9, 1), (10, 10, 1), (11, 6, 2), (95, 10, 10)],
)
def test_sweep_visits_each_item_once_a_round(count, steps, most):
    sweep = Sweep(set(range(count)), 10)
    for _ in range(3):
        seen = [sweep.step() for _ in range(steps)]
        assert sorted(one for step in seen for one in step) == list(range(count))
        assert max(map(len, seen)) <= most


@pytest.mark.parametrize(
    ("count", "steps"), [(0, 1), (1, 1), (100, 1), (101, 2), (1_000, 10), (5_000, 10)]
)
def test_sweep_of_few_items_has_few_steps(count, steps):
    sweep = Sweep(set(range(count)), 10, items_per_step=100)
    assert sweep.steps == steps
    assert sorted(one for _ in range(steps) for one in sweep.step()) == list(range(count))


def test_sweep_skips_removed_items():
    items = {1, 2, 3, 4}
    sweep = Sweep(items, 2)
    first = sweep.step()
    (kept, gone) = items - set(first)
    items.remove(gone)
    assert sweep.step() == [kept]


def test_sweep_visits_added_items_in_the_next_round():
    items = {1, 2}
    sweep = Sweep(items, 1)
    assert sorted(sweep.step()) == [1, 2]
    items.add(3)
    assert sorted(sweep.step()) == [1, 2, 3]


@pytest.mark.parametrize("kept", [1, 150, 1_200])
def test_sweep_whose_items_were_mostly_removed_soon_visits_an_added_one(kept):
    items = set(range(5_000))
    sweep = Sweep(items, 20, items_per_step=100)
    sweep.step()
    items -= set(range(kept, 5_000))
    items.add("added")
    # The rest of the round, and the next round.
    visited = [sweep.step() for _ in range(2 * sweep.steps)]
    assert "added" in [one for step in visited for one in step]


def test_sweep_keeps_no_removed_items():
    items = {1, 2, 3, 4}
    sweep = Sweep(items, 4)
    sweep.step()
    items.clear()
    assert sweep.step() == []
    items.add(5)
    assert sweep.step() == [5]


# client certificates


class SecurityEvents(AuditLog):
    """The audit log as a list."""

    def __init__(self):
        self.events = []

    def logged_in(self, peer, listener, mechanism, principal, *, again):
        self.events.append(("login", peer, mechanism, str(principal)))

    def login_failed(self, peer, listener, mechanism, reason):
        self.events.append(("failed", peer, mechanism, reason))


@pytest.mark.parametrize(
    ("rules", "has_certificate", "expected"),
    [
        ("DEFAULT", True, ("login", "192.0.2.1:5000", "SSL", "User:CN=app,O=Tests")),
        ("DEFAULT", False, None),
        (
            "RULE:^CN=other$/x/",
            True,
            (
                "failed",
                "192.0.2.1:5000",
                "SSL",
                "no rule of ssl_principal_mapping_rules matches CN=app,O=Tests",
            ),
        ),
    ],
)
def test_login_by_certificate_is_in_the_audit_log(rules, has_certificate, expected, caplog):
    listener = FakeListener()
    listener.broker.audit = SecurityEvents()
    listener.principal_rules = PrincipalRules(rules)
    certificate = Authority().sign("app").certificate if has_certificate else None
    connection = listener.connect()
    connection.transport.getHandle = lambda: SimpleNamespace(
        get_protocol_version_name=lambda: "TLSv1.3",
        get_peer_certificate=lambda as_cryptography: certificate,
    )
    connection.handshakeCompleted()
    assert listener.broker.audit.events == ([] if expected is None else [expected])
    is_refused = expected is not None and expected[0] == "failed"
    assert connection.transport.is_aborted is is_refused
    assert [event for event, _ in events(caplog)] == ["login failed"] * is_refused
    if is_refused:
        # What arrived behind the handshake is not read.
        receive(connection, framed(versions()))
        assert connection.transport.value() == b""


@pytest.mark.parametrize("rejection", ["it is revoked", None])
def test_rejected_certificate_is_in_the_audit_log(rejection):
    """OpenSSL rejects it; the handshake does not complete."""
    listener = FakeListener()
    listener.broker.audit = SecurityEvents()
    connection = listener.connect()
    connection._is_tls = True
    connection.transport.getHandle = lambda: SimpleNamespace(get_app_data=lambda: rejection)
    connection.connectionLost(Failure(SSL.Error([("SSL routines", "", "verify failed")])))
    reason = f"client certificate: {rejection}"
    expected = [] if rejection is None else [("failed", "192.0.2.1:5000", "SSL", reason)]
    assert listener.broker.audit.events == expected


@pytest.mark.parametrize("host", ["192.0.2.1", "::ffff:192.0.2.1"])
def test_ipv4_client_of_a_listener_on_ipv6_has_its_ipv4_address(host):
    fake = FakeListener()
    limits = ConnectionLimits(SimpleNamespace(max_connections=9, max_connections_per_ip=1))
    listener = Listener("PLAINTEXT", limits, fake.budget, fake.login_budget, None)
    listener.broker = fake.broker
    connection = listener.buildProtocol(IPv6Address("TCP", host, 5000))
    assert (connection.session.host, connection.peer) == ("192.0.2.1", "192.0.2.1:5000")
    connection.makeConnection(Transport())
    assert listener.buildProtocol(IPv4Address("TCP", "192.0.2.1", 5001)) is None
