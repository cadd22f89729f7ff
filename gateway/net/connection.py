"""One client connection: received bytes to frames, replies to the socket, and all timeouts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar
from typing import Protocol as Interface

from OpenSSL import SSL
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Protocol
from zope.interface.declarations import implementer

from auth.certificate_principals import PrincipalRules
from auth.mechanism import ANONYMOUS, AuthenticationFailed, Mechanism
from auth.tls import OLD_VERSIONS, rejection_reason
from gateway import logs
from gateway.broker import Broker
from gateway.coroutines import call_later
from gateway.net.flow_control import ConnectionFlow, LoginBudget, MemoryBudget
from gateway.net.framing import FrameSplitter
from gateway.net.transport import HALF_CLOSE_SECONDS, TcpConnection, acknowledge, no_delay
from gateway.protocol.dispatch import Dispatch
from gateway.protocol.session import LoginSession, SessionLifetime, log_failed_login
from gateway.protocol.wire.compiled import ConnectionState
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.traffic_rows import Reason
from storage.log import Buffer

T = TypeVar("T")

_log = logs.get_logger(__name__)

#: Seconds without progress in sending a reply after which the connection is closed, to free the
#: memory of the reply.
WRITE_STALL_SECONDS = 120.0

#: Seconds for closing a connection: sending the last bytes and, with TLS, receiving the peer's
#: close_notify.
CLOSE_TIMEOUT_SECONDS = 10.0

#: Seconds that a frame may take to arrive before the log-in, if `request_receive_timeout_ms` is not
#: shorter: 64 KiB at 7 KB/s.
LOGIN_FRAME_SECONDS = 10.0

_IDLE = "idle"
_CLOSE_TIMED_OUT = "closing timed out"
_LOGIN_TIMED_OUT = "login timed out"
_RECEIVE_TIMED_OUT = "request receive timed out"
_STALLED = "client stopped reading"

#: The reasons in the traffic log. A connection whose close timed out was closed for an earlier
#: reason, which is recorded already.
_TRAFFIC_REASONS: dict[str, Reason] = {
    _IDLE: "idle",
    _LOGIN_TIMED_OUT: "error:login-timeout",
    _RECEIVE_TIMED_OUT: "error:request-timeout",
    _STALLED: "error:stalled",
}


class ListenerInterface(Interface):
    """What a connection needs of its listener."""

    name: str
    broker: Broker
    budget: MemoryBudget
    login_budget: LoginBudget
    mechanisms: Mapping[str, Mechanism] | None
    principal_rules: PrincipalRules | None

    def opened(self, connection: Any, /) -> None: ...
    def closed(self, connection: Any, /) -> None: ...


@implementer(IHandshakeListener)
class KafkaConnection(ConnectionState, Protocol):
    """The Twisted protocol and push producer of a connection.

    It is also the `ReplyTransport` of its dispatch.
    """

    _dispatch: Dispatch

    def __init__(self, listener: ListenerInterface, host: str, port: int) -> None:
        broker = listener.broker
        settings = broker.settings
        self._listener = listener
        self._clock = broker.clock
        self._settings = settings
        self.host = host
        self.peer = f"{host}:{port}"
        self.session = LoginSession(
            listener.mechanisms,
            host,
            SessionLifetime(
                settings.connections_max_reauth_ms, settings.connections_max_reauth_old_clients
            ),
            self._clock.seconds,
            broker.tenants,
        )
        self._is_logging_in = not self.session.is_ready
        self._splitter = FrameSplitter(self._frame_limit())
        self._flow = ConnectionFlow(
            listener.budget,
            max_bytes=settings.max_in_flight_bytes_per_connection,
            max_requests=settings.max_in_flight_requests_per_connection,
            pause=self._pause,
            resume=self._resume,
        )
        seen = PeerAddress(
            host, port, listener.name, settings.security_protocol(listener.name).name
        )
        is_known = self.session.is_ready and listener.principal_rules is None
        self._traffic = broker.traffic.connection(
            seen, self.session.principal if is_known else None
        )
        self._dispatch = Dispatch(
            broker,
            self.session,
            self,
            self._flow,
            peer=self.peer,
            listener=listener.name,
            traffic=self._traffic,
        )
        self.opened = self.last_active = self._clock.seconds()
        self._frame_started_at: float | None = None
        self._has_partial_frame = False
        self._closing_since: float | None = None
        self._is_tls = self._awaits_handshake = False
        self._is_closing = False
        self._is_closed = False

    def connectionMade(self) -> None:
        self._is_tls = self._awaits_handshake = self._tcp_transport() not in (None, self.transport)
        no_delay(self.transport)
        self.transport.registerProducer(self, True)
        self._listener.opened(self)

    def received(self, chunk: memoryview) -> None:
        """Handle bytes received without TLS.

        They do not begin with plain requests: `SocketState.doRead` has served those.
        """
        if self._is_closing:
            return
        self.last_active = self._clock.seconds()
        splitter = self._splitter
        frames = splitter.feed(chunk)
        partial_bytes = splitter.partial_bytes
        if partial_bytes or self._has_partial_frame:
            if not partial_bytes:
                self._frame_started_at = None
            elif frames or not self._has_partial_frame:
                self._frame_started_at = self.last_active
            self._has_partial_frame = partial_bytes > 0
            self._count_partial_frame(partial_bytes, has_begun=bool(frames))
        if frames:
            session = self.session
            was_ready = session.is_ready
            self._dispatch.frames_received(frames)
            if session.is_ready != was_ready:
                self._apply_login_state()
        if partial_bytes:
            self._dispatch.partial_frame_received(self._splitter.partial_start)
        self._flow.pause_if_over_limit()
        if splitter.refusal is not None and not self.session.is_closed:
            # As in Kafka, requests before the invalid length are served, also those that arrived in
            # one chunk with it.
            self._is_closing = True
            self._traffic.closing("error:frame")
            self._dispatch.log_refusal(splitter.refusal)
            self.abort()

    def dataReceived(self, data: bytes) -> None:
        """Handle decrypted bytes of a TLS connection."""
        chunk = memoryview(data)
        if not (self._is_closing or self._has_partial_frame):
            served = self._dispatch.serve_chunk(chunk)
            if served:
                self.last_active = self._clock.seconds()
                chunk = chunk[served:]
        if len(chunk):
            self.received(chunk)

    def handshakeCompleted(self) -> None:
        """Handle the end of the TLS handshake."""
        self._awaits_handshake = False
        connection = self.transport.getHandle()
        version = connection.get_protocol_version_name()
        self._traffic.tls_established(version)
        if version in OLD_VERSIONS:
            _log.warning(
                "connection uses an old TLS version",
                peer=self.peer,
                listener=self._listener.name,
                version=version,
                cipher=connection.get_cipher_name(),
            )
        if self._listener.principal_rules is not None:
            self._identify(self._listener.principal_rules, connection)

    def _identify(self, rules: PrincipalRules, connection: SSL.Connection) -> None:
        """Log in by the client certificate, before the first request is read."""
        audit, listener = self._listener.broker.audit, self._listener.name
        try:
            principal = rules.principal(connection.get_peer_certificate(as_cryptography=True))
            self.session.identify(principal)
        except AuthenticationFailed as failure:
            log_failed_login(audit, self.peer, listener, "SSL", failure.reason)
            self._is_closing = True
            self._traffic.closing("error:login")
            self.abort()
            return
        self._traffic.authenticated(principal)
        if principal != ANONYMOUS:
            audit.logged_in(self.peer, listener, "SSL", principal, again=False)

    def connectionLost(self, reason: Any = None) -> None:
        self._is_closed = True
        if reason is not None and isinstance(reason.value, SSL.Error):
            self._traffic.closing("error:tls")
            rejection = rejection_reason(self.transport.getHandle()) if self._is_tls else None
            cause = "" if rejection is None else f" (client certificate: {rejection})"
            if rejection is not None:
                self._listener.broker.audit.login_failed(
                    self.peer, self._listener.name, "SSL", f"client certificate: {rejection}"
                )
            self._dispatch.log_refusal(f"TLS: {_tls_error_text(reason.value)}{cause}")
        self._dispatch.close()
        # The connection and its transport refer to each other. Only the garbage collector frees
        # them, possibly much later, so the buffers are freed here.
        self._splitter.discard_partial()
        self._flow.close()
        self._listener.login_budget.partial_frame(self, 0)
        self._traffic.closed(
            "error:lost" if reason is not None and reason.check(ConnectionLost) else "client"
        )
        self._listener.closed(self)

    def write(self, buffers: list[Buffer]) -> None:
        if self._is_logging_in:
            # The log-in may have completed since the last bytes were received.
            self._apply_login_state()
        self.last_active = self._clock.seconds()
        self.transport.writeSequence(buffers)

    def request_close(
        self, delay_ms: int = 0, last: Sequence[Buffer] = (), *, linger_seconds: float = 0
    ) -> None:
        self._stop_reading()
        if delay_ms:
            send = partial(self._send_last, last, linger_seconds)
            call_later(self._clock, delay_ms / 1000, send)
        else:
            self._send_last(last, linger_seconds)

    def acknowledge(self) -> None:
        acknowledge(self.transport)

    def abort(self) -> None:
        if not self._is_closed:
            self.transport.abortConnection()

    @property
    def waits_for_reads(self) -> bool:
        """Whether requests are not answered yet, and none of them is an append."""
        return not self._dispatch.is_idle and not self._dispatch.is_appending

    def drain(self) -> bool:
        """Accept no more requests.

        Returns True once every request is answered and the connection is closed.
        """
        self._stop_reading()
        self._traffic.closing("drain")
        self._dispatch.end_throttling()
        if self._dispatch.is_idle:
            self._start_closing()
        return self._is_closed

    def drain_between_requests(self, seconds: float) -> bool:
        """As `Drainable` describes."""
        if self._is_closing or self._is_closed:
            return True
        if not self._dispatch.is_idle:
            return not self._dispatch.is_producing
        raw = self._tcp_transport()
        if self._has_partial_frame or self._clock.seconds() - self.last_active < seconds:
            return False
        if raw is not None and (raw.unsent_bytes or raw.has_unread()):
            return False
        self.drain()
        return True

    def overdue_reason(self, now: float) -> str | None:
        """Return why this connection must be closed now, None if it may stay open.

        `now` is in the clock's seconds.
        """
        settings = self._settings
        if self._closing_since is not None:
            return (
                _CLOSE_TIMED_OUT
                if now - max(self._closing_since, self._last_sent()) > CLOSE_TIMEOUT_SECONDS
                else None
            )
        is_known = self.session.is_ready and not self._awaits_handshake
        if (
            not is_known
            and now - max(self.opened, self.session.began)
            > settings.connection_authentication_timeout_ms / 1000
        ):
            return _LOGIN_TIMED_OUT
        longest = settings.request_receive_timeout_ms / 1000
        if self._is_logging_in:
            longest = min(longest, LOGIN_FRAME_SECONDS)
        if (
            self._frame_started_at is not None
            and not self._flow.is_paused
            and now - self._frame_started_at > longest
        ):
            return _RECEIVE_TIMED_OUT
        raw = self._tcp_transport()
        if raw is not None and raw.unsent_bytes and now - raw.last_sent > WRITE_STALL_SECONDS:
            return _STALLED
        # The client waits for the end of a throttle time.
        idle_since = max(self.last_active, self._dispatch.muted_until)
        if self._dispatch.is_idle and now - idle_since > settings.connections_max_idle_ms / 1000:
            return _IDLE
        return None

    def close_overdue(self, reason: str) -> None:
        if reason == _CLOSE_TIMED_OUT:
            self.abort()
            return
        self._traffic.closing(_TRAFFIC_REASONS[reason])
        if reason == _IDLE:
            _log.debug("idle connection closed", peer=self.peer)
            self._start_closing()
        else:
            self._dispatch.log_refusal(reason)
            self.abort()

    # IPushProducer: called by the transport when its send buffer fills and empties.
    def pauseProducing(self) -> None:
        self._dispatch.pause_writing(True)

    def resumeProducing(self) -> None:
        self._dispatch.pause_writing(False)

    def stopProducing(self) -> None:
        return

    def evict(self) -> None:
        """Close the connection: partial frames before the log-in exceed their limit."""
        self._is_closing = True
        self._traffic.closing("error:busy")
        self._dispatch.log_refusal(
            "incomplete frame before the login, and the limit on such frames is reached"
        )
        self.abort()

    def _count_partial_frame(self, partial_bytes: int, *, has_begun: bool = False) -> None:
        if self._is_logging_in:
            self._listener.login_budget.partial_frame(self, partial_bytes, has_begun=has_begun)
        else:
            self._flow.partial_frame(partial_bytes)

    def _apply_login_state(self) -> None:
        """Set the limits that depend on the log-in.

        It may not have changed since the last call.
        """
        self._splitter.limit = self._frame_limit()
        if self._is_logging_in and self.session.is_ready:
            self._count_partial_frame(0)
            self._is_logging_in = False
            self._count_partial_frame(self._splitter.partial_bytes)

    def _frame_limit(self) -> int:
        settings = self._settings
        return (
            settings.socket_request_max_bytes
            if self.session.is_ready
            else settings.sasl_server_max_receive_size
        )

    def _tcp_transport(self) -> TcpConnection | None:
        raw: Any = self.transport
        while raw is not None and not isinstance(raw, TcpConnection):
            raw = getattr(raw, "transport", None)
        return raw

    def _last_sent(self) -> float:
        raw = self._tcp_transport()
        return 0.0 if raw is None or not raw.unsent_bytes else raw.last_sent

    def _pause(self) -> None:
        if not self._is_closed:
            self.transport.pauseProducing()

    def _resume(self) -> None:
        if self._is_closed or self._is_closing:
            return
        if self._frame_started_at is not None:
            # The time while reading was paused does not count.
            self._frame_started_at = self._clock.seconds()
        self.transport.resumeProducing()

    def _stop_reading(self) -> None:
        """Stop reading permanently. Pending replies are still sent."""
        if not self._is_closing:
            self._is_closing = True
            self._pause()

    def _send_last(self, buffers: Sequence[Buffer], linger_seconds: float) -> None:
        if buffers and not self._is_closed and self._closing_since is None:
            self.write(list(buffers))
        if linger_seconds:
            call_later(self._clock, linger_seconds, self._start_closing)
        else:
            self._start_closing()

    def _start_closing(self) -> None:
        if not self._is_closed and self._closing_since is None:
            self._closing_since = self._clock.seconds()
            self._is_closing = True
            raw = self._tcp_transport()
            if raw is not None:
                raw.skips_half_close = self._closing_since - self.last_active > HALF_CLOSE_SECONDS
            self.transport.unregisterProducer()
            self.transport.loseConnection()
            if self._is_tls and raw is not None:
                # TLS waits for the peer's close_notify, which some clients never send.
                raw.loseConnection()  # type: ignore[no-untyped-call]  # Twisted's, without types


def _tls_error_text(error: SSL.Error) -> str:
    """OpenSSL's error text.

    Common causes are plain text on a TLS port, a client that does not trust the certificate, and no
    common TLS version.
    """
    told = error.args[0] if error.args else []
    return (
        "; ".join(str(item[-1]) for item in told)
        if isinstance(told, list) and told
        else "connection lost"
    )


def overdue_connections(
    connections: Iterable[KafkaConnection], now: float
) -> list[tuple[KafkaConnection, str]]:
    """Return the connections to close, with the reasons."""
    return [
        (connection, reason)
        for connection in connections
        if (reason := connection.overdue_reason(now)) is not None
    ]


class Sweep(Generic[T]):
    """Visits all of `items` in about `steps` steps a round. `items` may change meanwhile.

    Checking thousands of connections in one step would block the reactor for tens of milliseconds.
    A round has one step per `items_per_step` items, at most `steps`: a step costs as much as ten
    checks.
    """

    __slots__ = ("_items", "_items_per_step", "_left", "_most_steps", "_round_items")

    def __init__(self, items: Collection[T], steps: int, items_per_step: int = 1) -> None:
        self._items = items
        self._most_steps = steps
        self._items_per_step = items_per_step
        self._left: list[T] = []
        self._round_items = 0
        """Items at the start of the round."""

    @property
    def steps(self) -> int:
        """Steps of a round with the present items."""
        return max(min(self._most_steps, -(-len(self._items) // self._items_per_step)), 1)

    def step(self) -> list[T]:
        """Return the next items.

        Items added during a round are visited in the next round; removed ones are skipped.
        """
        if not self._left:
            self._left = list(self._items)
            self._round_items = len(self._left)
        # If most of the items were removed, the rest of the round must not take longer for it.
        size = -(-max(len(self._items), self._round_items) // self.steps)
        taken, self._left = self._left[:size], self._left[size:]
        return [one for one in taken if one in self._items]
