"""`make bench-idle`: memory of a gateway per idle connection, with and without TLS.

All clients connect; then each sends ApiVersions and Metadata, as Java 3.9 does, and stays idle. The
figures are the growth of the gateway's anonymous memory (RssAnon), divided by the connections, once
the gateway is idle and has returned free memory to the kernel. The kernel's memory for sockets is
not in it.

Each row is a new gateway on an embedded store. The traffic log writes its rows every ten seconds,
so that the counters of the requests are not counted. TLS connections are fewer, because each takes
a millisecond of CPU for its handshake, and the client some 40 KiB.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from bench.servers import BenchGateway
from gateway.memory import TRIM_INTERVAL_SECONDS
from tests.testkit.certificates import Authority
from tests.testkit.gateway import Peer

#: Clients that connect, send the same requests and close before memory is measured, so that the
#: gateway has loaded and cached what does not belong to a connection.
FIRST_CLIENTS = 20

#: Files of this process that are not connections, at most.
OTHER_FILES = 200

TRAFFIC_INTERVAL_MS = 10_000

#: The gateway trims its heap at the end of an idle interval.
SETTLE_SECONDS = 2 * TRIM_INTERVAL_SECONDS + 1


class IdleMemory(msgspec.Struct, frozen=True):
    """Bytes of the gateway per connection: after connecting, and after the requests."""

    name: str
    connections: int
    connected: float
    served: float

    def __str__(self) -> str:
        cells = (f"{size / 1024:.1f}" for size in (self.connected, self.served))
        return f"| {self.name} | {self.connections:,} | {' | '.join(cells)} |"


def table(rows: list[IdleMemory]) -> str:
    heads = ("connections", "number", "KiB each, connected", "KiB each, after the requests")
    return "\n".join([f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *map(str, rows)])


def requests_of(client: int) -> list[bytes]:
    """The frames that a Java client sends first; each client has its own client id."""
    frames = []
    for version, asked in (
        (4, ApiVersionsRequest(client_software_name="java", client_software_version="3.9.2")),
        (12, MetadataRequest(topics=[], allow_auto_topic_creation=True)),
    ):
        request: Any = asked
        request.API_VERSION = version
        request.with_header(1, f"consumer-orders-{client}")
        frames.append(bytes(request.encode(version=version, header=True)))
    return frames


def measure(
    name: str,
    connections: int,
    *,
    has_tls: bool = False,
    has_traffic_log: bool = False,
    settle_seconds: float = SETTLE_SECONDS,
) -> IdleMemory:
    """Start a gateway and measure it, `settle_seconds` after it has become idle."""

    def settled_bytes() -> int:
        gateway.wait_until_idle()
        time.sleep(settle_seconds)
        return gateway.own_memory_bytes()

    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kopgate-idle-")))
        arguments: list[str] = []
        authority = Authority()
        if has_tls:
            certificate, key = authority.sign("server").write(folder, "server")
            arguments = ["--listener", "SSL://127.0.0.1:0"]
            arguments += ["--set", f"ssl_certificate_file={certificate}"]
            arguments += ["--set", f"ssl_key_file={key}"]
        if has_traffic_log:
            arguments += ["--set", f"traffic_log={folder / 'traffic'}"]
            arguments += ["--set", f"traffic_log_interval_ms={TRAFFIC_INTERVAL_MS}"]
        arguments += ["--set", f"max_connections={connections + FIRST_CLIENTS}"]
        arguments += ["--set", f"max_connections_per_ip={connections + FIRST_CLIENTS}"]
        gateway = BenchGateway.start(subprocess.DEVNULL, arguments=arguments)
        running.callback(gateway.stop)
        context = ssl.create_default_context(cafile=str(authority.write(folder)))
        connect = _connector(gateway, context if has_tls else None)
        for client in range(FIRST_CLIENTS):
            with connect() as peer:
                _serve(peer, client)
        empty = settled_bytes()
        peers = [running.enter_context(connect()) for _ in range(connections)]
        connected = settled_bytes()
        for client, peer in enumerate(peers):
            _serve(peer, client)
        served = settled_bytes()
    return IdleMemory(
        name, connections, (connected - empty) / connections, (served - empty) / connections
    )


def _connector(gateway: BenchGateway, context: ssl.SSLContext | None) -> Callable[[], Peer]:
    addresses = [gateway.bootstrap, *gateway.others]
    host, _, port = addresses[0 if context is None else 1].partition(":")

    def connect() -> Peer:
        peer = Peer((host, int(port)))
        if context is not None:
            peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
        return peer

    return connect


def _serve(peer: Peer, client: int) -> None:
    for frame in requests_of(client):
        peer.send(frame)
        if peer.receive() is None:
            raise RuntimeError("the gateway closed the connection")


def main() -> int:
    options = _options()
    _allow_files(max(options.connections, options.tls))
    # Objects of thousands of clients are not worth collecting.
    gc.disable()
    rows = [
        measure("plain", options.connections),
        measure("plain, traffic log", options.connections, has_traffic_log=True),
    ]
    if options.tls:
        rows.append(measure("TLS", options.tls, has_tls=True))
    print(
        f'Measured with `make bench-idle ARGS="--connections {options.connections} '
        f'--tls {options.tls}"`, Python {platform.python_version()}, '
        f"{os.cpu_count()} cores of {platform.machine()}.\n\n{table(rows)}"
    )
    return 0


def _allow_files(connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--connections", type=int, default=10_000, help="connections without TLS (10000)"
    )
    parser.add_argument(
        "--tls", type=int, default=2_000, help="connections with TLS, 0 for none (2000)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
