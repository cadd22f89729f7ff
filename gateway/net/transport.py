"""A TCP transport for large frames.

Received bytes are copied once, into their frame; sent buffers are not joined. Twisted's transport
joins what it sends and allocates a new buffer for each read, which for record data costs as much as
the rest of a request.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from errno import EAGAIN, EINTR, ENOBUFS, EWOULDBLOCK
from itertools import islice
from socket import IPPROTO_TCP, MSG_DONTWAIT, MSG_PEEK, SHUT_WR
from typing import Any, Protocol

from twisted.internet import main, tcp
from twisted.python.failure import Failure

from gateway.coroutines import Cancel, call_later
from gateway.net.flow_control import OutgoingBytes
from gateway.protocol.wire import compiled
from gateway.protocol.wire.compiled import SocketState
from storage.log import Buffer, Entry

#: Bytes of one read: several requests of 16 KiB, or a quarter of one of 1 MiB. All connections
#: share one buffer; the compiled code has one of the same size.
READ_BYTES = 256 << 10

#: Buffers of one sendmsg call. Linux accepts at most 1024 (IOV_MAX).
SEND_BUFFERS = 1024

#: Unsent bytes above which no further request of the connection is started.
MAX_UNSENT_BYTES = 1 << 20

#: Connections that a port accepts in one reactor turn, some 10 ms. Twisted raises its own limit
#: each time it is reached: in a flood, other clients would wait while thousands are accepted.
MAX_ACCEPTS_PER_TURN = 50

#: How long a peer may take to close its side after all replies are sent, in seconds. Most peers
#: close at once. A peer that does not read its socket is not waited for: it will find its replies
#: and the end of the stream behind them.
HALF_CLOSE_SECONDS = 1.0

#: A socket option of Linux.
TCP_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)

_AGAIN = frozenset({EAGAIN, EWOULDBLOCK, EINTR, ENOBUFS})

_arrived = bytearray(READ_BYTES)
_arrived_view = memoryview(_arrived)


def _own(buffer: Buffer | Entry) -> Buffer:
    """Return a buffer that does not keep a whole request for a small part of it.

    A consumer that does not read would otherwise keep more than the bytes that are counted.
    """
    if isinstance(buffer, Entry):
        # A compiled one, which is a buffer.
        buffer = buffer.payload
    if type(buffer) is memoryview:
        request = buffer.obj
        if type(request) is bytearray and len(buffer) * 8 < len(request) * 7:
            return bytes(buffer)
    return buffer


class FlushQueue:
    """TLS connections with bytes to send at the end of the current reactor turn.

    TLS writes in small pieces; they are sent in one call.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._connections: list[TcpConnection] = []

    def add(self, connection: TcpConnection) -> None:
        if not self._connections:
            self._reactor.callLater(0, self._flush)
        self._connections.append(connection)

    def _flush(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.flush()


class Receiver(Protocol):
    """The protocol on a transport. The view is valid until `received` returns."""

    def received(self, chunk: memoryview, /) -> None: ...


class TcpConnection(SocketState, tcp.Server):
    """A TCP connection.

    A protocol with a `received` method gets views of a shared buffer. Any other protocol (TLS) gets
    separate bytes objects. `SocketState.doRead` reads for connections of clients without TLS; for
    all others it calls `_read`.
    """

    bufferSize = MAX_UNSENT_BYTES
    server: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Twisted's are strings of 80 bytes for each connection.
        self.logstr = self.repstr = type(self.protocol).__name__
        # As long as nothing is unsent there is no queue: an empty one takes 760 bytes.
        self._unsent = None
        self._unsent_bytes = 0
        #: Time of the last send in the reactor's seconds, used to detect peers that do not read.
        self.last_sent = self.reactor.seconds()
        self._use_protocol()
        self._is_in_flush_queue = False
        self._is_waiting_to_write = False
        #: Whether the last send is so long ago that the peer has received it. Then the connection
        #: is closed without waiting for the peer.
        self.skips_half_close = False
        # Set while the connection is half-closed.
        self._half_close_timer: Cancel | None = None

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def has_unread(self) -> bool:
        """Whether bytes of the peer have arrived and are not read yet."""
        try:
            return len(self.socket.recv(1, MSG_PEEK | MSG_DONTWAIT)) > 0
        except OSError:
            return False

    def _use_protocol(self) -> None:
        self._receive = getattr(self.protocol, "received", None)
        self.use_protocol(self.protocol, self.fileno(), self.reactor.seconds)

    def _read(self) -> Any:
        if self._receive is None:
            return tcp.Server.doRead(self)
        try:
            size = self.socket.recv_into(_arrived)
        except OSError as failure:
            return None if failure.errno in _AGAIN else main.CONNECTION_LOST
        if not size:
            return main.CONNECTION_DONE
        self._receive(_arrived_view[:size])
        return None

    def switch_protocol(self, protocol: Any, received: memoryview) -> None:
        """Replace the protocol. The new one gets `received`, and everything received later."""
        self.protocol = protocol
        self._use_protocol()
        protocol.makeConnection(self)
        if not len(received):
            return
        if self._receive is None:
            protocol.dataReceived(bytes(received))
        else:
            self._receive(received)

    def write(self, data: bytes) -> None:
        self.send((data,))

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.send(iovec)

    def send(self, buffers: Iterable[Buffer]) -> None:
        """Send these buffers now, or when the socket is writable.

        They must not change until they are sent.
        """
        if not self.connected or self.disconnecting or self._aborting:
            return
        sent = 0
        if (
            self._receive is not None
            and type(buffers) is list
            and 0 < len(buffers) <= SEND_BUFFERS
            and self._unsent is None
            and not (self._is_waiting_to_write or self.producerPaused)
        ):
            # The common case: the socket takes everything.
            try:
                sent = self.socket.sendmsg(buffers)
            except OSError:
                # As in `flush`, which tries again.
                sent = 0
            self.last_sent = self.reactor.seconds()
            if sent == compiled.total(buffers):
                return
        self._send_rest(buffers, sent)

    def _send_rest(self, buffers: Iterable[Buffer], sent: int) -> None:
        """Queue what is left of `buffers` after the first `sent` bytes."""
        # Empty buffers are dropped; no Python loop, since a large reply has thousands.
        added = list(map(_own, filter(len, buffers)))
        if not added:
            return
        size = compiled.total(added)
        if self._unsent is None:
            self._unsent = deque(added)
        else:
            self._unsent += added
        self._unsent_bytes += size
        self.server.outgoing.unsent += size
        self._remove_sent(sent)
        if self._unsent and not self._is_in_flush_queue and not self._is_waiting_to_write:
            if self._receive is not None:
                self.flush()
            else:
                self._is_in_flush_queue = True
                self.server.flush_queue.add(self)
        self._maybePauseProducer()

    def flush(self) -> None:
        """Send the queued bytes."""
        self._is_in_flush_queue = False
        if not self.connected or self._aborting:
            return
        self.last_sent = self.reactor.seconds()
        # An error is reported when the reactor finds the socket writable.
        self._send_some()
        if self._unsent or self.disconnecting or self.producerPaused:
            self._is_waiting_to_write = True
            self.startWriting()

    def doWrite(self) -> Any:
        failure = self._send_some()
        if failure is not None:
            return failure
        if self._unsent:
            return None
        self._is_waiting_to_write = False
        self.stopWriting()
        if self.producer is not None and self.producerPaused:
            self.producerPaused = False
            self.producer.resumeProducing()
        elif self.disconnecting:
            return self._postLoseConnection()
        return None

    def _send_some(self) -> Exception | None:
        while self._unsent:
            try:
                sent = self.socket.sendmsg(islice(self._unsent, SEND_BUFFERS))
            except OSError as failure:
                return None if failure.errno in _AGAIN else main.CONNECTION_LOST
            self.last_sent = self.reactor.seconds()
            if self._remove_sent(sent):
                return None
        return None

    def _remove_sent(self, sent: int) -> bool:
        """Remove `sent` bytes from the queue.

        Returns True if a buffer was sent in part, which means that the socket buffer is full.
        """
        self._unsent_bytes -= sent
        self.server.outgoing.unsent -= sent
        if not self._unsent_bytes:
            self._unsent = None
            return False
        unsent = self._unsent
        while sent and unsent:
            first = unsent[0]
            if len(first) > sent:
                unsent[0] = memoryview(first)[sent:]
                return True
            sent -= len(first)
            unsent.popleft()
        return False

    def _isSendBufferFull(self) -> bool:
        return self._unsent_bytes > self.bufferSize

    def _postLoseConnection(self) -> Any:
        """Half-close the connection after the last byte is sent, then read until the peer closes.

        Closing a socket with unread input sends a reset, which can discard data that the peer has
        not received yet.
        """
        self.stopWriting()
        if self.skips_half_close:
            return main.CONNECTION_DONE
        try:
            self.socket.shutdown(SHUT_WR)
        except OSError:
            return main.CONNECTION_LOST
        self._receive = _ignore
        self.use_protocol(None, -1, self.reactor.seconds)
        self.startReading()
        self._half_close_timer = call_later(
            self.reactor, HALF_CLOSE_SECONDS, self._finish_half_close
        )
        return None

    def _finish_half_close(self) -> None:
        self.connectionLost(Failure(main.CONNECTION_DONE))

    def abortConnection(self) -> None:
        if self._half_close_timer is None:
            super().abortConnection()
        else:
            # All bytes are in the kernel's send buffer, which delivers them.
            self.reactor.callLater(0, self._finish_half_close)

    def connectionLost(self, reason: Any) -> None:
        if self._half_close_timer is not None:
            self._half_close_timer()
        self._unsent = None
        self.server.outgoing.unsent -= self._unsent_bytes
        self._unsent_bytes = 0
        super().connectionLost(reason)


def _ignore(_: memoryview) -> None:
    return


class Port(tcp.Port):
    """A listening port with `TcpConnection` transports."""

    transport = TcpConnection

    def __init__(
        self,
        port: int,
        factory: Any,
        backlog: int,
        interface: str,
        reactor: Any,
        outgoing: OutgoingBytes,
    ) -> None:
        super().__init__(port, factory, backlog, interface, reactor)
        self.flush_queue = FlushQueue(reactor)
        self.outgoing = outgoing

    def startListening(self) -> None:
        super().startListening()
        self.numberAccepts = min(self.numberAccepts, MAX_ACCEPTS_PER_TURN)

    def doRead(self) -> None:
        super().doRead()
        self.numberAccepts = min(self.numberAccepts, MAX_ACCEPTS_PER_TURN)


def no_delay(connection: Any) -> None:
    """Send small replies at once (TCP_NODELAY) and detect lost peers (keep-alive)."""
    connection.setTcpNoDelay(True)
    connection.setTcpKeepAlive(True)


def acknowledge(connection: Any) -> None:
    """Acknowledge the received bytes now instead of with the next reply.

    Linux delays it by up to 40 ms. A client with Nagle's algorithm, such as librdkafka before 2.0,
    sends its next small request only after it.
    """
    if TCP_QUICKACK is not None:
        with suppress(OSError):
            connection.socket.setsockopt(IPPROTO_TCP, TCP_QUICKACK, 1)


__all__ = ["Port", "Receiver", "TcpConnection", "acknowledge", "no_delay"]
