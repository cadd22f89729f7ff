"""A relay between one client and a broker that notes what the client's log-ins look like.

Only the bootstrap address is relayed: a client that is refused learns no other. Bytes of TLS are
relayed, too, but not understood. Each relay connects from a separate loopback address, so that the
broker's log tells its connections from those of all others.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 64 * 1024
#: Requests before a log-in are smaller; what seems to be larger is TLS.
MAX_FRAME_BYTES = 64 * 1024
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
#: Tokens that the client sends until the server knows whether it is who it says.
TOKENS = {"PLAIN": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
_numbers = itertools.count()


@dataclass(slots=True)
class RelayedConnection:
    """One connection. `peer` is its own address as the broker sees it, host:port.

    `handshake` is the version of SaslHandshake, None before it and with TLS. `tokens` counts what
    the client sent after it. `is_answered` tells whether the broker sent anything, or closed, since
    the client's last bytes, and before the client closed.
    """

    peer: str
    handshake: int | None = None
    tokens: int = 0
    is_answered: bool = False
    _is_closed_by_client: bool = False
    _buffer: bytearray = field(default_factory=bytearray)

    def has_decided(self, mechanism: str) -> bool:
        """Whether the broker has answered the last token of the mechanism."""
        return self.tokens >= TOKENS[mechanism] and self.is_answered

    def client_sent(self, data: bytes) -> None:
        self.is_answered = False
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int(struct.unpack_from(">I", self._buffer)[0])
            end = 4 + size
            if size > MAX_FRAME_BYTES or len(self._buffer) < end:
                return
            self._frame(bytes(self._buffer[4:end]))
            del self._buffer[:end]

    def client_closed(self) -> None:
        self._is_closed_by_client = True

    def broker_answered(self) -> None:
        """The broker sent something, or closed the connection."""
        self.is_answered = self.is_answered or not self._is_closed_by_client

    def _frame(self, frame: bytes) -> None:
        key, version = struct.unpack_from(">hh", frame) if len(frame) >= 4 else (-1, -1)
        if self.handshake is None:
            self.handshake = version if key == SASL_HANDSHAKE else None
        elif self.handshake == 0 or key == SASL_AUTHENTICATE:
            self.tokens += 1


class LoginRelay:
    """`began` is the time of the first connection, in seconds of `time.monotonic`."""

    def __init__(self, target: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = target
        number = next(_numbers)
        self._source = f"127.1.{number // 250}.{number % 250 + 1}"
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[RelayedConnection] = []
        self.began: float | None = None

    def run(self) -> None:
        """Accept connections until the relay is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.began is None:
                self.began = time.monotonic()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        # Closing alone does not interrupt accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with client, self._connect() as broker:
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            relayed = RelayedConnection("{}:{}".format(*broker.getsockname()))
            self.connections.append(relayed)
            back = threading.Thread(
                target=_pump,
                args=(broker, client, lambda _: relayed.broker_answered(), relayed.broker_answered),
                daemon=True,
            )
            back.start()
            _pump(client, broker, relayed.client_sent, relayed.client_closed)
            back.join()

    def _connect(self) -> socket.socket:
        host, _, port = self._target.rpartition(":")
        return socket.create_connection((host, int(port)), source_address=(self._source, 0))


def _pump(
    source: socket.socket,
    sink: socket.socket,
    came: Callable[[bytes], None],
    ended: Callable[[], None],
) -> None:
    """Copy bytes until the source closes, then shut down the sink."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            came(data)
            sink.sendall(data)
    ended()
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def login_relay(target: str) -> Iterator[LoginRelay]:
    """A running relay to the broker at `target`, as host:port."""
    running = LoginRelay(target)
    accepting = threading.Thread(target=running.run, daemon=True)
    accepting.start()
    try:
        yield running
    finally:
        running.close()
        accepting.join()
