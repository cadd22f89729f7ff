"""What lies between the gateway and a Pulsar: relays that pass everything on, until a test has them lose what would change something.

Pulsar's clients ask a broker where a topic is and connect to what it answers; a relay therefore gives its own address in place of the broker's,
as the address translation before a cluster does. A command that is lost is one that nobody answers: the connection stays, and so do all reads.
One that is cut is the network between two machines that both go on: nothing arrives on either side, and neither is told.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Self
from urllib.parse import urlsplit

from storage.pulsar.settings import PulsarSettings

#: Numbers of PulsarApi.proto, BaseCommand.Type.
SEND, SEND_RECEIPT, CLOSE_PRODUCER = 6, 7, 15
CHUNK_BYTES = 1 << 16

SocketPair = tuple[socket.socket, socket.socket]


class Relay:
    """One address of this machine in place of another; `close` ends every connection."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = {self._listening}
        self._silenced: frozenset[socket.socket] = frozenset()
        self._is_cut = False
        host, port = self._listening.getsockname()
        self.url = self._to._replace(netloc=f"{host}:{port}").geturl()
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """No byte passes within it. Connections of before, and those that are tried meanwhile, stay as they are for ever: only new ones work after it."""
        with self._lock:
            self._is_cut = True
            self._silenced = frozenset(self._sockets - {self._listening})
        try:
            yield
        finally:
            with self._lock:
                self._is_cut = False

    def close(self) -> None:
        with self._lock:
            held, self._sockets = self._sockets, set()
        for one in held:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forward(self, client: socket.socket, server: socket.socket) -> None:
        """Passes on what the client says, until either side ends."""
        raise NotImplementedError

    def answer(self, client: socket.socket, server: socket.socket) -> None:
        """Passes on what the server says."""
        for piece in self.chunks(server):
            client.sendall(piece)

    def chunks(self, source: socket.socket) -> Iterator[bytes]:
        """What `source` says, as long as it is heard."""
        while piece := source.recv(CHUNK_BYTES):
            if self.is_forwarding(source):
                yield piece

    def is_forwarding(self, source: socket.socket) -> bool:
        return source not in self._silenced

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection((self._to.hostname or "", self._to.port or 0))
            except OSError:
                if self._listening.fileno() < 0:
                    return
                continue
            with self._lock:
                self._sockets |= {client, server}
                if self._is_cut:
                    self._silenced |= {client, server}
            for direction in (self.forward, self.answer):
                threading.Thread(
                    target=self._pass, args=(direction, (client, server)), daemon=True
                ).start()

    def _pass(
        self, direction: Callable[[socket.socket, socket.socket], None], sides: SocketPair
    ) -> None:
        with suppress(OSError):
            direction(*sides)
        if not self.is_forwarding(sides[0]):
            # That one side has gone is not heard either.
            return
        for one in sides:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class BrokerRelay(Relay):
    """Of Pulsar's binary protocol. `lost` are the types of commands that do not arrive, in either direction."""

    def __init__(self, service_url: str) -> None:
        super().__init__(service_url)
        self.lost: frozenset[int] = frozenset()
        self._theirs, self._ours = service_url.encode(), self.url.encode()
        # Lengths are inside of what is looked into, and the ports of tests have five digits all.
        assert len(self._theirs) == len(self._ours), (
            f"{service_url} is longer or shorter than {self.url}"
        )

    def forward(self, client: socket.socket, server: socket.socket) -> None:
        for frame in self._frames(client):
            server.sendall(frame)

    def answer(self, client: socket.socket, server: socket.socket) -> None:
        for frame in self._frames(server):
            client.sendall(
                frame.replace(self._theirs, self._ours) if len(frame) < CHUNK_BYTES else frame
            )

    def _frames(self, source: socket.socket) -> Iterator[bytes]:
        """Whole frames: their length, that of the command, the command (its first field, 08, is the type), and payload."""
        with source.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">I", head)[0])
                if frame[5] not in self.lost and self.is_forwarding(source):
                    yield head + frame


class AdminRelay(Relay):
    """Of the admin API. While `is_refusing`, what would change something ends its connection."""

    is_refusing = False

    def forward(self, client: socket.socket, server: socket.socket) -> None:
        for piece in self.chunks(client):
            if self.is_refusing and piece.startswith((b"PUT ", b"POST ", b"DELETE ")):
                return
            server.sendall(piece)


class PulsarRelays:
    """Both relays before one Pulsar."""

    def __init__(self, settings: PulsarSettings) -> None:
        self.broker = BrokerRelay(settings.service_url)
        self.admin = AdminRelay(settings.admin_url)
        self.settings = replace(settings, service_url=self.broker.url, admin_url=self.admin.url)
        """Those given, by way of the relays."""

    @contextmanager
    def dropping(self, *commands: int) -> Iterator[None]:
        """Within it these commands do not arrive, and the admin API takes no changes."""
        self.broker.lost, self.admin.is_refusing = frozenset(commands), True
        try:
            yield
        finally:
            self.broker.lost, self.admin.is_refusing = frozenset(), False

    @contextmanager
    def cut(self) -> Iterator[None]:
        """As of a relay."""
        with self.broker.cut(), self.admin.cut():
            yield

    def close(self) -> None:
        self.broker.close()
        self.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
