"""Relays between a gateway and Pulsar. They forward everything until a test makes them drop
traffic.

A Pulsar client looks up the broker of a topic and connects to the address in the answer. A relay
therefore replaces the broker's address by its own, as address translation in front of a cluster
does.

A dropped command gets no reply, but the connection stays open and reads continue. A cut stands for
a network partition: nothing arrives on either side, and no side sees an error.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Self
from urllib.parse import urlsplit

from storage.pulsar.settings import PulsarSettings

#: Values of BaseCommand.Type in PulsarApi.proto.
SEND, SEND_RECEIPT, CLOSE_PRODUCER, PRODUCER_SUCCESS, GET_LAST_MESSAGE_ID = 6, 7, 15, 17, 29
CHUNK_BYTES = 1 << 16

SocketPair = tuple[socket.socket, socket.socket]


class Relay:
    """Forwards connections from a local port to the address in `url`; `close` ends all of them."""

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
        """Forward nothing while in the context.

        Connections opened before or during the cut stay dead afterwards; only new ones work.
        """
        with self._lock:
            self._is_cut = True
            self._silenced = frozenset(self._sockets - {self._listening})
        try:
            yield
        finally:
            with self._lock:
                self._is_cut = False

    def disconnect(self) -> None:
        """End all connections, those that were cut as well. New ones are accepted."""
        with self._lock:
            held = self._sockets - {self._listening}
        for one in held:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

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
        """Forward bytes of the client until either side closes."""
        raise NotImplementedError

    def answer(self, client: socket.socket, server: socket.socket) -> None:
        """Forward bytes of the server."""
        for piece in self.chunks(server):
            client.sendall(piece)

    def chunks(self, source: socket.socket) -> Iterator[bytes]:
        """Bytes received from `source` while its connection is not cut."""
        while piece := source.recv(CHUNK_BYTES):
            if self.is_forwarding(source):
                yield piece

    def is_forwarding(self, source: socket.socket) -> bool:
        return source not in self._silenced

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                if self._listening.fileno() < 0:
                    return
                continue
            try:
                server = socket.create_connection((self._to.hostname or "", self._to.port or 0))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
                if self._is_cut:
                    self._silenced |= {client, server}
            threading.Thread(target=self._serve, args=((client, server),), daemon=True).start()

    def _serve(self, sides: SocketPair) -> None:
        """Forward in both directions, and close both sides at the end."""
        forwarding = threading.Thread(target=self._pass, args=(self.forward, sides), daemon=True)
        forwarding.start()
        self._pass(self.answer, sides)
        forwarding.join()
        if self.is_forwarding(sides[0]):
            with self._lock:
                self._sockets -= {*sides}
            for one in sides:
                one.close()

    def _pass(
        self, direction: Callable[[socket.socket, socket.socket], None], sides: SocketPair
    ) -> None:
        with suppress(OSError):
            direction(*sides)
        if not self.is_forwarding(sides[0]):
            # The other side must not see the close either.
            return
        for one in sides:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class BrokerRelay(Relay):
    """A relay for Pulsar's binary protocol that drops commands of the types `lost`, in both
    directions. Commands of the types `fatal` close their connection.
    """

    def __init__(self, service_url: str) -> None:
        super().__init__(service_url)
        self.lost: frozenset[int] = frozenset()
        self.fatal: frozenset[int] = frozenset()
        self._opened: list[bytes] = []
        self._theirs, self._ours = service_url.encode(), self.url.encode()
        # Addresses are replaced in length-prefixed fields, so both need the same length. The ports
        # of tests all have five digits.
        assert len(self._theirs) == len(self._ours), (
            f"{service_url} is longer or shorter than {self.url}"
        )

    def forward(self, client: socket.socket, server: socket.socket) -> None:
        for frame in self._frames(client):
            server.sendall(frame)

    def answer(self, client: socket.socket, server: socket.socket) -> None:
        for frame in self._frames(server):
            if frame[9] == PRODUCER_SUCCESS:
                self._opened.append(frame)
            client.sendall(
                frame.replace(self._theirs, self._ours) if len(frame) < CHUNK_BYTES else frame
            )

    def has_opened(self, producer_name: str) -> bool:
        """Whether a client opened a producer with this name, which the broker usually chooses."""
        name = producer_name.encode()
        # Field 2 of CommandProducerSuccess, a string.
        field = bytes([2 << 3 | 2, len(name)]) + name
        return any(field in frame for frame in self._opened)

    def _frames(self, source: socket.socket) -> Iterator[bytes]:
        """Whole frames: frame length, command length, the command (its first field, 08, is the
        type), payload.
        """
        with source.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">I", head)[0])
                if frame[5] in self.fatal:
                    return
                if frame[5] not in self.lost and self.is_forwarding(source):
                    yield head + frame


class AdminRelay(Relay):
    """A relay for the admin API. While `is_refusing`, a request that changes something closes its
    connection.
    """

    is_refusing = False

    def forward(self, client: socket.socket, server: socket.socket) -> None:
        for piece in self.chunks(client):
            if self.is_refusing and piece.startswith((b"PUT ", b"POST ", b"DELETE ")):
                return
            server.sendall(piece)


class PulsarRelays:
    """A broker relay and an admin relay in front of one Pulsar."""

    def __init__(self, settings: PulsarSettings) -> None:
        self.broker = BrokerRelay(settings.service_url)
        self.admin = AdminRelay(settings.admin_url)
        self.settings = replace(settings, service_url=self.broker.url, admin_url=self.admin.url)
        """The given settings with the addresses of the relays."""
        self._addresses = {
            settings.service_url: self.broker.url,
            settings.admin_url: self.admin.url,
        }

    def redirected(self, words: Sequence[str]) -> list[str]:
        """Arguments of a gateway with the addresses of the relays."""
        made = list(words)
        for address, relayed in self._addresses.items():
            made = [word.replace(address, relayed) for word in made]
        return made

    @contextmanager
    def dropping(self, *commands: int) -> Iterator[None]:
        """Drop these commands, and refuse changes through the admin API, while in the context."""
        self.broker.lost, self.admin.is_refusing = frozenset(commands), True
        try:
            yield
        finally:
            self.broker.lost, self.admin.is_refusing = frozenset(), False

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Cut both relays (see `Relay.cut`)."""
        with self.broker.cut(), self.admin.cut():
            yield

    def close(self) -> None:
        self.broker.close()
        self.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
