"""A relay between clients and a broker that records the highest API versions by client id.

The broker advertises the relay's address, so that clients connect only to the relay.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHUNK_BYTES = 64 * 1024

#: API key -> highest version sent.
Versions = dict[int, int]


class RequestParser:
    """Splits a client's bytes into requests; calls `heard` with client id, API key and version."""

    def __init__(self, heard: Callable[[str, int, int], None]) -> None:
        self._heard = heard
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            end = 4 + int(struct.unpack_from(">i", self._buffer)[0])
            if len(self._buffer) < end:
                return
            key, version, _, length = struct.unpack_from(">hhih", self._buffer, 4)
            self._heard(bytes(self._buffer[14 : 14 + max(length, 0)]).decode(), key, version)
            del self._buffer[:end]


class VersionRelay:
    """Listens from its creation, so that a broker can advertise it before `target` is set."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        self.spoken: defaultdict[str, Versions] = defaultdict(dict)
        """Versions by client id."""

    def run(self) -> None:
        """Accept connections until the relay is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        # Closing alone does not interrupt accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        with client, socket.create_connection((host, int(port))) as broker:
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_pump, args=(broker, client, None), daemon=True)
            back.start()
            _pump(client, broker, RequestParser(self._note))
            back.join()

    def _note(self, client_id: str, key: int, version: int) -> None:
        spoken = self.spoken[client_id]
        spoken[key] = max(version, spoken.get(key, version))


def _pump(source: socket.socket, sink: socket.socket, requests: RequestParser | None) -> None:
    """Copy bytes until the source closes, then shut down the sink."""
    try:
        while data := source.recv(CHUNK_BYTES):
            if requests:
                requests.feed(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            end.close()


@contextmanager
def relay() -> Iterator[VersionRelay]:
    """A running relay."""
    running = VersionRelay()
    accepting = threading.Thread(target=running.run, daemon=True)
    accepting.start()
    try:
        yield running
    finally:
        running.close()
        accepting.join()
