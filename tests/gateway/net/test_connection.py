"""One connection on a transport in memory and a clock of the test's own: limits of size and of time, and every way to leave."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from gateway.net.connection import (
    CLOSE_TIMEOUT_SECONDS,
    LOGIN_FRAME_SECONDS,
    WRITE_STALL_SECONDS,
    KafkaConnection,
    Sweep,
    overdue_connections,
)
from gateway.net.flow_control import RESUME_INTERVAL_SECONDS, LoginBudget, MemoryBudget
from gateway.net.transport import HALF_CLOSE_SECONDS, TcpConnection
from gateway.protocol.routes import ROUTES, DelayedReply, Route
from gateway.protocol.wire.api_keys import ApiKey
from gateway.settings.model import Settings
from gateway.traffic.recorder import Recorder
from gateway.traffic.traffic_log import NO_TRAFFIC_LOG
from tests.fakes.connection import Scripted, bare, events, handshake, versions

TOKEN = b"\0alice\0secret"


class Transport(StringTransport):
    """A socket in memory. `unread` counts how often it was told to read on."""

    def __init__(self):
        super().__init__()
        self.is_aborted = False

    def setTcpNoDelay(self, enabled):
        pass

    def setTcpKeepAlive(self, enabled):
        pass

    def abortConnection(self):
        self.is_aborted = True

    @property
    def is_read(self):
        return self.producerState == "producing"


class Door:
    """A listener. Its broker has a clock and settings, and nothing else."""

    def __init__(self, mechanisms=None, budget_bytes=1 << 30, login_bytes=1 << 20, **settings):
        self.name = "PLAINTEXT"
        self.clock = Clock()
        self.mechanisms = mechanisms and {mechanism.name: mechanism for mechanism in mechanisms}
        self.settings = Settings(**settings)
        self.broker = SimpleNamespace(
            clock=self.clock, settings=self.settings, traffic=NO_TRAFFIC_LOG
        )
        self.budget = MemoryBudget(budget_bytes, self.clock)
        self.login_budget = LoginBudget(login_bytes)
        self.inside = []

    def opened(self, connection):
        self.inside.append(connection)

    def closed(self, connection):
        self.inside.remove(connection)

    def lets_in(self):
        connection = KafkaConnection(self, "192.0.2.1", 5000)
        connection.makeConnection(Transport())
        return connection

    def sweeps(self, after=0.0):
        """Time passes, and then the server looks at its connections."""
        self.clock.advance(after)
        due = overdue_connections(self.inside, self.clock.seconds())
        for connection, reason in due:
            connection.close_overdue(reason)
        return [reason for _, reason in due]


@pytest.fixture
def waiting(monkeypatch):
    """Metadata v0 waits for this Deferred, and Produce v0 answers at once and then waits for it."""
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


def says(connection, data):
    connection.received(memoryview(data))


POLL = framed(bare(ApiKey.METADATA, 0))
PRODUCE = framed(bare(ApiKey.PRODUCE, 0))


def test_a_request_is_answered():
    connection = Door().lets_in()
    says(connection, framed(versions(correlation_id=7)))
    written = connection.transport.value()
    assert struct.unpack_from(">ii", written) == (len(written) - 4, 7)


def test_an_oversized_frame_is_refused_in_one_line(caplog):
    connection = Door(socket_request_max_bytes=2 << 20).lets_in()
    says(connection, struct.pack(">i", (2 << 20) + 1))
    assert connection.transport.is_aborted
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert fields["peer"] == "192.0.2.1:5000"
    assert str((2 << 20) + 1) in fields["reason"]


@pytest.mark.parametrize("version", [0, 1])
def test_frames_are_small_until_the_log_in_is_done_and_large_after_it(version):
    door = Door(
        [Scripted("PLAIN", {TOKEN: b""})],
        sasl_server_max_receive_size=1024,
        socket_request_max_bytes=2 << 20,
    )
    early = door.lets_in()
    says(early, struct.pack(">i", 1025))
    assert early.transport.is_aborted
    checked = Deferred()
    door.mechanisms["PLAIN"].answers[TOKEN] = checked
    connection = door.lets_in()
    token = (
        bare(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", len(TOKEN)) + TOKEN)
        if version
        else TOKEN
    )
    says(connection, framed(handshake("PLAIN", version)) + framed(token))
    assert not connection.session.is_ready
    checked.callback(b"")
    assert connection.session.is_ready
    says(connection, struct.pack(">i", 1 << 20))
    assert not connection.transport.is_aborted


@pytest.mark.parametrize("version", [0, 1])
def test_bytes_before_a_log_in_do_not_count_with_those_of_others(version):
    door = Door([Scripted("PLAIN", {TOKEN: b""})])
    connection = door.lets_in()
    says(connection, struct.pack(">i", 1000) + bytes(100))
    assert (door.budget.used, door.login_budget.used) == (0, 104)
    connection.connectionLost()
    assert (door.budget.used, door.login_budget.used) == (0, 0)
    connection = door.lets_in()
    token = (
        bare(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", len(TOKEN)) + TOKEN)
        if version
        else TOKEN
    )
    says(connection, framed(handshake("PLAIN", version)) + framed(token)[:-1])
    assert door.login_budget.used == len(framed(token)) - 1
    says(connection, framed(token)[-1:] + struct.pack(">i", 1000) + bytes(100))
    assert connection.session.is_ready
    assert (door.budget.used, door.login_budget.used) == (104, 0)


def test_the_oldest_unfinished_frame_before_a_log_in_gives_way():
    door = Door([Scripted("PLAIN", {TOKEN: b""})], login_bytes=250)
    first, second, third = (door.lets_in() for _ in range(3))
    for connection in (first, second, third):
        says(connection, struct.pack(">i", 1000) + bytes(40))
    says(first, bytes(100))
    assert [one.transport.is_aborted for one in (first, second, third)] == [False, False, False]
    says(second, bytes(100))
    assert [one.transport.is_aborted for one in (first, second, third)] == [True, False, False]
    assert door.login_budget.used == 144 + 44


def test_a_frame_before_a_log_in_must_come_soon():
    door = Door([Scripted("PLAIN", {TOKEN: b""})], connection_authentication_timeout_ms=60_000)
    connection = door.lets_in()
    says(connection, struct.pack(">i", 1000) + bytes(10))
    assert door.sweeps(LOGIN_FRAME_SECONDS) == []
    says(connection, bytes(10))
    assert door.sweeps(0.1) == ["request receive timed out"]


def test_a_frame_that_is_only_announced_takes_up_no_budget():
    door = Door()
    says(door.lets_in(), struct.pack(">i", 100 << 20) + bytes(10))
    assert door.budget.used == 14


@pytest.mark.parametrize("begun", [b"", b"\0", struct.pack(">i", 100) + b"abc"])
def test_the_budget_is_even_when_a_connection_goes_amid_everything(waiting, begun):
    door = Door()
    connection = door.lets_in()
    says(connection, PRODUCE + POLL + POLL + begun)
    assert door.budget.used == 3 * (len(POLL) - 4) + len(begun)
    connection.connectionLost()
    # The append goes on without its client.
    assert door.budget.used == len(PRODUCE) - 4
    waiting.callback(b"")
    assert door.budget.used == 0
    assert door.inside == []


def test_reading_stops_at_the_limit_and_goes_on_below_it(waiting):
    connection = Door(max_in_flight_requests_per_connection=2).lets_in()
    says(connection, POLL)
    assert connection.transport.is_read
    says(connection, POLL)
    assert not connection.transport.is_read
    waiting.callback(b"")
    assert connection.transport.is_read


# time


def test_a_silent_connection_is_closed_after_the_idle_time_without_a_word(caplog):
    door = Door(connections_max_idle_ms=60_000)
    connection = door.lets_in()
    assert door.sweeps(after=60) == []
    assert door.sweeps(after=1) == ["idle"]
    assert connection.transport.disconnecting
    assert events(caplog) == []


def test_a_connection_that_asks_is_not_idle():
    door = Door(connections_max_idle_ms=60_000)
    connection = door.lets_in()
    for _ in range(5):
        door.clock.advance(50)
        says(connection, framed(versions()))
        assert door.sweeps() == []


def test_a_connection_that_waits_for_its_answer_is_not_idle_and_neither_is_it_right_after(waiting):
    door = Door(connections_max_idle_ms=60_000)
    connection = door.lets_in()
    says(connection, POLL)
    assert door.sweeps(after=600) == []
    waiting.callback(b"")
    assert door.sweeps(after=59) == []
    assert door.sweeps(after=2) == ["idle"]


def test_a_log_in_has_its_time(caplog):
    door = Door([Scripted("PLAIN", {TOKEN: b""})], connection_authentication_timeout_ms=30_000)
    slow, quick = door.lets_in(), door.lets_in()
    door.clock.advance(29)
    says(slow, framed(versions()))
    says(quick, framed(handshake("PLAIN", 0)) + framed(TOKEN))
    assert quick.session.is_ready
    assert door.sweeps(after=2) == ["login timed out"]
    assert (slow.transport.is_aborted, quick.transport.is_aborted) == (True, False)
    assert [event for event, _ in events(caplog)] == ["refused"]


def test_a_request_that_began_has_its_time_to_arrive_however_it_drips():
    door = Door(request_receive_timeout_ms=120_000)
    connection = door.lets_in()
    for byte in struct.pack(">i", 1000)[:3]:
        says(connection, bytes([byte]))
        assert door.sweeps(after=35) == []
    says(connection, b"\xe8")
    assert door.sweeps(after=16) == ["request receive timed out"]
    assert connection.transport.is_aborted


def test_each_request_has_its_own_time_to_arrive():
    door = Door(request_receive_timeout_ms=120_000)
    connection = door.lets_in()
    frame = framed(versions())
    says(connection, frame[:5])
    for _ in range(5):
        assert door.sweeps(after=100) == []
        says(connection, frame[5:] + frame[:5])


def test_time_in_which_the_gateway_does_not_read_is_not_the_peer_s(waiting):
    door = Door(max_in_flight_requests_per_connection=1, request_receive_timeout_ms=120_000)
    connection = door.lets_in()
    says(connection, POLL + b"\0")
    assert not connection.transport.is_read
    assert door.sweeps(after=1000) == []
    waiting.callback(b"")
    assert door.sweeps(after=119) == []
    assert door.sweeps(after=2) == ["request receive timed out"]


def test_a_peer_that_takes_nothing_of_its_reply_has_stopped_reading():
    door = Door()
    connection = door.lets_in()
    raw = TcpConnection.__new__(TcpConnection)
    raw._unsent_bytes, raw.last_sent = 1000, door.clock.seconds()
    connection.transport.transport = raw
    assert door.sweeps(after=WRITE_STALL_SECONDS - 1) == []
    raw.last_sent = door.clock.seconds()
    assert door.sweeps(after=WRITE_STALL_SECONDS - 1) == []
    assert door.sweeps(after=2) == ["client stopped reading"]
    assert connection.transport.is_aborted


# leaving


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (SSL.Error([("SSL routines", "", "http request")]), "TLS: http request"),
        (SSL.Error(), "TLS: connection lost"),
    ],
)
def test_a_tls_connection_that_fails_is_told_of_in_one_line(caplog, failure, told):
    connection = Door().lets_in()
    connection.connectionLost(Failure(failure))
    ((event, fields),) = events(caplog)
    assert (event, fields["reason"]) == ("refused", told)


@pytest.mark.parametrize("failure", [ConnectionDone(), ConnectionLost()])
def test_a_peer_that_goes_is_no_news(caplog, failure):
    Door().lets_in().connectionLost(Failure(failure))
    assert events(caplog) == []


def test_a_failed_log_in_waits_and_reads_nothing_meanwhile(caplog):
    door = Door([Scripted("PLAIN", {TOKEN: b""})], connection_failed_authentication_delay_ms=100)
    connection = door.lets_in()
    says(connection, framed(handshake("PLAIN", 0)) + framed(b"guess"))
    assert not connection.transport.is_read
    door.clock.advance(0.099)
    assert not connection.transport.disconnecting
    door.clock.advance(0.002)
    assert connection.transport.disconnecting
    assert not connection.transport.is_read


def test_a_failed_log_in_without_a_delay_is_hung_up_on_at_once():
    door = Door([Scripted("PLAIN", {TOKEN: b""})], connection_failed_authentication_delay_ms=0)
    connection = door.lets_in()
    says(connection, framed(handshake("PLAIN", 0)) + framed(b"guess"))
    assert connection.transport.disconnecting


def test_a_peer_that_goes_before_the_delay_is_over_is_gone():
    door = Door([Scripted("PLAIN", {TOKEN: b""})], connection_failed_authentication_delay_ms=100)
    connection = door.lets_in()
    says(connection, framed(handshake("PLAIN", 0)) + framed(b"guess"))
    connection.connectionLost()
    door.clock.advance(1)
    assert not connection.transport.disconnecting


def test_a_peer_that_never_says_goodbye_is_cut_off(caplog):
    door = Door(connections_max_idle_ms=60_000)
    connection = door.lets_in()
    assert door.sweeps(after=61) == ["idle"]
    assert door.sweeps(after=CLOSE_TIMEOUT_SECONDS - 1) == []
    assert not connection.transport.is_aborted
    assert len(door.sweeps(after=2)) == 1
    assert connection.transport.is_aborted
    assert events(caplog) == []


def test_a_drain_ends_an_idle_connection_at_once():
    connection = Door().lets_in()
    connection.drain()
    assert connection.transport.disconnecting


def test_a_drain_sends_what_is_owed_first_and_takes_nothing_more(waiting):
    door = Door(max_in_flight_requests_per_connection=1)
    connection = door.lets_in()
    says(connection, PRODUCE)
    connection.drain()
    assert not connection.transport.disconnecting
    waiting.callback(b"stored")
    door.clock.advance(0)
    # The answer has made room for another request; a drain leaves no time for it.
    assert not connection.transport.is_read
    assert connection.transport.value().endswith(b"stored")
    connection.drain()
    assert connection.transport.disconnecting


def test_what_comes_after_the_last_word_is_not_served():
    connection = Door().lets_in()
    connection.drain()
    says(connection, framed(versions()))
    assert connection.transport.value() == b""


def test_a_drained_connection_that_is_gone_is_done():
    connection = Door().lets_in()
    connection.drain()
    connection.connectionLost()
    assert connection.drain()


def test_nothing_resumes_a_connection_that_is_gone():
    door = Door(budget_bytes=100)
    connection = door.lets_in()
    says(connection, struct.pack(">i", 500) + bytes(200))
    assert not connection.transport.is_read
    connection.connectionLost()
    door.clock.advance(2 * RESUME_INTERVAL_SECONDS)
    assert not connection.transport.is_read
    assert door.budget.used == 0


class Told(Recorder):
    """What the traffic log is told of the end."""

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
    door = Door(list(mechanisms) or None, **settings)
    door.broker.traffic = SimpleNamespace(connection=lambda peer, session: told)
    return door, door.lets_in()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [(ConnectionDone(), "client"), (ConnectionLost(), "error:lost"), (SSL.Error([]), "error:tls")],
)
def test_the_traffic_log_is_told_how_a_connection_was_lost(told, loss, reason):
    _, connection = watched(told)
    connection.connectionLost(Failure(loss))
    assert told.reasons[0] == reason


def test_the_traffic_log_is_told_of_the_time_that_is_up(told):
    for settings, begins, seconds, reason in [
        ({"connections_max_idle_ms": 1000}, b"", 2, "idle"),
        ({"request_receive_timeout_ms": 1000}, b"\0\0\0\x09x", 2, "error:request-timeout"),
    ]:
        told.reasons.clear()
        door, connection = watched(told, **settings)
        says(connection, begins)
        door.sweeps(seconds)
        assert told.reasons == [reason]
    told.reasons.clear()
    door, _ = watched(
        told, Scripted("PLAIN", {TOKEN: b""}), connection_authentication_timeout_ms=1000
    )
    door.sweeps(2)
    assert told.reasons == ["error:login-timeout"]


def test_the_traffic_log_is_told_of_a_drain_and_of_a_frame_that_is_none(told):
    _, connection = watched(told)
    connection.drain()
    assert told.reasons == ["drain"]
    told.reasons.clear()
    _, connection = watched(told)
    says(connection, b"GET / HTTP/1.1\r\n")
    assert told.reasons == ["error:frame"]


def test_the_traffic_log_is_told_of_a_peer_that_stopped_reading(told):
    door, connection = watched(told)
    raw = TcpConnection.__new__(TcpConnection)
    raw._unsent_bytes, raw.last_sent = 1000, door.clock.seconds()
    connection.transport.transport = raw
    door.sweeps(WRITE_STALL_SECONDS + 1)
    assert told.reasons == ["error:stalled"]


def test_the_traffic_log_is_told_why_a_connection_was_to_go_and_not_that_it_went_without_a_goodbye(
    told,
):
    door, connection = watched(told, connections_max_idle_ms=1000)
    assert door.sweeps(2) == ["idle"]
    assert len(door.sweeps(CLOSE_TIMEOUT_SECONDS + 1)) == 1
    assert connection.transport.is_aborted
    assert told.reasons == ["idle"]


def test_the_traffic_log_is_told_of_a_request_that_met_a_bug(told, waiting):
    _, connection = watched(told)
    says(connection, POLL)
    waiting.errback(ZeroDivisionError())
    assert told.reasons == ["error:bug"]


@pytest.mark.parametrize(
    ("idle_seconds", "skips_half_close"),
    [(HALF_CLOSE_SECONDS + 0.1, True), (HALF_CLOSE_SECONDS - 0.1, False)],
)
def test_a_connection_that_was_idle_is_closed_at_a_drain_without_waiting_for_its_peer(
    idle_seconds, skips_half_close
):
    door = Door()
    connection = door.lets_in()
    says(connection, framed(versions()))
    raw = TcpConnection.__new__(TcpConnection)
    raw.skips_half_close = False
    connection.transport.transport = raw
    door.clock.advance(idle_seconds)
    connection.drain()
    assert raw.skips_half_close is skips_half_close


def test_over_tls_the_peers_close_notify_is_not_waited_for(monkeypatch):
    door = Door()
    raw = TcpConnection.__new__(TcpConnection)
    raw._unsent_bytes = 0
    ended = []
    connection = KafkaConnection(door, "192.0.2.1", 5000)
    secured = Transport()
    secured.transport = raw
    # The gateway's own close_notify is on its way before.
    monkeypatch.setattr(
        TcpConnection, "loseConnection", lambda _: ended.append(secured.disconnecting)
    )
    connection.makeConnection(secured)
    door.clock.advance(HALF_CLOSE_SECONDS + 0.1)
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


def test_sweep_keeps_no_removed_items():
    items = {1, 2, 3, 4}
    sweep = Sweep(items, 4)
    sweep.step()
    items.clear()
    assert sweep.step() == []
    items.add(5)
    assert sweep.step() == [5]
