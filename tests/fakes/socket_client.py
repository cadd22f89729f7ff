"""A client of a real connection: transport, framing, dispatch, handlers and recorder.

The test runs the reactor, so one `send` is one read of the connection, and nothing takes time.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from gateway.net import connection as connection_module
from gateway.net.connection import KafkaConnection
from gateway.net.flow_control import LoginBudget, MemoryBudget, OutgoingBytes
from gateway.net.transport import FlushQueue, TcpConnection
from tests.fakes.broker import BrokerEnvironment

PEER = ("192.0.2.1", 5000)


class SocketReactor:
    """The readers and writers of a reactor, and the calls of a clock."""

    def __init__(self, clock: Clock) -> None:
        self.callLater = clock.callLater
        self.seconds = clock.seconds
        self.readers: set[Any] = set()
        self.writers: set[Any] = set()
        self.addReader, self.removeReader = self.readers.add, self.readers.discard
        self.addWriter, self.removeWriter = self.writers.add, self.writers.discard


class SocketListener:
    """The listener and the port of all clients of a broker."""

    name = "PLAINTEXT"
    mechanisms = principal_rules = None
    _realPortNumber = 9092

    def __init__(
        self, env: BrokerEnvironment, patch: pytest.MonkeyPatch, *, budget_bytes: int = 1 << 30
    ) -> None:
        # They are options of TCP.
        patch.setattr(connection_module, "no_delay", lambda _: None)
        self.broker = env.broker
        self.clock = env.clock
        self.reactor = SocketReactor(env.clock)
        self.budget = MemoryBudget(budget_bytes, env.clock)
        self.login_budget = LoginBudget(1 << 20)
        self.outgoing = OutgoingBytes()
        self.flush_queue = FlushQueue(self.reactor)

    def opened(self, connection: Any) -> None:
        return

    def closed(self, connection: Any) -> None:
        return


class SocketClient:
    """A client of `listener`. `is_closed` is whether the gateway has closed the connection."""

    def __init__(self, listener: SocketListener) -> None:
        self._listener = listener
        self._socket, accepted = socket.socketpair()
        self._socket.setblocking(False)
        self.connection = KafkaConnection(listener, *PEER)
        # The transport uses only these attributes of a port.
        server: Any = listener
        self.transport = TcpConnection(accepted, self.connection, PEER, server, 0, listener.reactor)
        self.connection.makeConnection(self.transport)

    @property
    def is_closed(self) -> bool:
        return bool(self.transport.disconnected)

    def send(self, chunk: bytes) -> None:
        """Send bytes. They are read now unless the connection is not read."""
        assert self._socket.send(chunk) == len(chunk)
        self.run_reactor()

    def run_reactor(self) -> None:
        """Run the calls that are due, and read and write as far as the connection allows."""
        transport, reactor = self.transport, self._listener.reactor
        while True:
            if transport in reactor.readers and transport.has_unread():
                self._end(transport.doRead())
            elif transport in reactor.writers:
                self._end(transport.doWrite())
            elif any(call.getTime() <= reactor.seconds() for call in self._listener.clock.calls):
                self._listener.clock.advance(0)
            else:
                return

    def receive(self) -> bytes:
        """Return all bytes received since the last call."""
        received = b""
        try:
            while True:
                self.run_reactor()
                chunk = self._socket.recv(1 << 20)
                if not chunk:
                    return received
                received += chunk
        except (BlockingIOError, ConnectionResetError):
            return received

    def disconnect(self) -> None:
        """Close the socket. A connection that is not read does not wait for its requests either."""
        self._socket.close()
        self._end(ConnectionDone())

    def _end(self, failure: Any) -> None:
        if failure is not None and not self.is_closed:
            self.transport.connectionLost(Failure(failure))
