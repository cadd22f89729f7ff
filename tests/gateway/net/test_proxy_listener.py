"""Connections behind a proxy, on real sockets, with and without TLS.

The deadline has a fake clock.
"""

from __future__ import annotations

import socket
import ssl
from ipaddress import ip_network
from types import SimpleNamespace

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock, deferLater
from zope.interface import directlyProvides

from auth.tls import TlsContextFactory, TlsFiles
from gateway.net.flow_control import OutgoingBytes
from gateway.net.listeners import ConnectionLimits, TlsListener
from gateway.net.proxy_listener import HEADER_SECONDS, ProxyListener
from gateway.net.transport import Port
from tests.fakes.connection import events
from tests.testkit.certificates import Authority
from tests.testkit.settle import settle

HEADER = b"PROXY TCP4 192.0.2.7 192.0.2.9 56324 9092\r\n"


class EchoPeer(Protocol):
    """The server side of a connection, after the header."""

    def __init__(self, peer):
        self.peer = peer
        self.got = b""

    def received(self, chunk):
        self.got += chunk
        self.transport.write(bytes(chunk))

    def dataReceived(self, data):
        self.received(memoryview(data))


class EchoPeers(Factory):
    noisy = False

    def __init__(self):
        self.made = []
        self.refuses = False

    def buildProtocol(self, addr):
        if self.refuses:
            return None
        self.made.append(EchoPeer((addr.host, addr.port)))
        return self.made[-1]


async def until(is_true, seconds=60.0):
    end = reactor.seconds() + seconds
    while not is_true():
        assert reactor.seconds() < end, "it did not happen in time"
        await deferLater(reactor, 0.002)


class BenchBehindProxy:
    """A port that is reached from 127.0.0.1, and the listener behind it."""

    def __init__(self, proxies=("127.0.0.1",), tls=None, max_connections=100):
        self.clients = EchoPeers()
        factory = self.clients
        if tls is not None:
            directlyProvides(tls, IOpenSSLServerConnectionCreator)
            factory = TlsListener(tls, False, self.clients)
        self.clock = Clock()
        self.limits = ConnectionLimits(
            SimpleNamespace(max_connections=max_connections, max_connections_per_ip=1)
        )
        networks = tuple(ip_network(text) for text in proxies)
        self.listener = ProxyListener("PLAINTEXT", factory, self.limits, networks, self.clock)
        self.port = Port(0, self.listener, 10, "127.0.0.1", reactor, OutgoingBytes())
        self.port.startListening()
        self.sockets = []

    def connect(self):
        client = socket.socket()
        client.setblocking(False)
        self.sockets.append(client)
        client.connect_ex(self.port.socket.getsockname())
        return client

    async def send(self, client, data):
        await until(lambda: _sends(client, data))

    async def close(self):
        for client in self.sockets:
            client.close()
        await self.port.stopListening()
        await until(lambda: not reactor_sockets(self.port))
        assert not self.limits.without_header
        assert not self.clock.getDelayedCalls()


def reactor_sockets(port):
    return [one for one in reactor.getReaders() if getattr(one, "server", None) is port]


def _sends(client, data):
    try:
        return client.send(data) == len(data)
    except BlockingIOError:
        return False


async def read(client):
    """The next bytes; empty once the connection is closed or reset."""
    while True:
        try:
            return client.recv(1 << 16)
        except BlockingIOError:
            await deferLater(reactor, 0.002)
        except ConnectionResetError:
            return b""


@pytest.fixture
def bench():
    made = BenchBehindProxy()
    yield made
    settle(made.close())


@ensureDeferred
async def test_header_and_first_request_in_one_segment_reach_their_readers(bench):
    client = bench.connect()
    await bench.send(client, HEADER + b"request")
    assert await read(client) == b"request"
    await bench.send(client, b"more")
    assert await read(client) == b"more"
    (made,) = bench.clients.made
    assert (made.peer, made.got) == (("192.0.2.7", 56324), b"requestmore")


@ensureDeferred
async def test_header_may_arrive_byte_by_byte(bench):
    client = bench.connect()
    for index in range(len(HEADER)):
        assert not bench.clients.made
        await bench.send(client, HEADER[index : index + 1])
        await deferLater(reactor, 0)
    await bench.send(client, b"request")
    assert await read(client) == b"request"
    assert bench.clients.made[0].peer == ("192.0.2.7", 56324)


@ensureDeferred
async def test_unknown_client_has_the_address_of_the_proxy(bench):
    client = bench.connect()
    await bench.send(client, b"PROXY UNKNOWN\r\nrequest")
    assert await read(client) == b"request"
    assert bench.clients.made[0].peer == client.getsockname()


@ensureDeferred
async def test_connection_from_another_address_is_refused(caplog):
    bench = BenchBehindProxy(proxies=("192.0.2.0/24", "2001:db8::1"))
    try:
        client = bench.connect()
        assert await read(client) == b""
        ((event, fields),) = events(caplog)
        assert (event, fields["reason"]) == (
            "connection refused",
            "its address is not in proxy_protocol_from",
        )
    finally:
        await bench.close()


@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [
        ("192.0.2.7", True),
        ("::ffff:192.0.2.7", True),
        ("2001:db8::1", True),
        ("192.0.3.7", False),
        ("::ffff:192.0.3.7", False),
        ("2001:db8::2", False),
        ("fe80::1%eth0", False),
    ],
)
def test_networks_hold_mapped_addresses_as_well(host, is_accepted):
    limits = ConnectionLimits(SimpleNamespace(max_connections=9, max_connections_per_ip=9))
    networks = [ip_network("192.0.2.0/24"), ip_network("2001:db8::1")]
    listener = ProxyListener("PLAINTEXT", EchoPeers(), limits, networks, Clock())
    address = (IPv6Address if ":" in host else IPv4Address)("TCP", host, 5000)
    assert (listener.buildProtocol(address) is not None) == is_accepted


@pytest.mark.parametrize("sent", [b"\0\0\0\x0a\0\x12", b"PROXY TCP4 nonsense\r\n"])
@ensureDeferred
async def test_malformed_header_closes_the_connection_with_one_log_line(bench, caplog, sent):
    client = bench.connect()
    await bench.send(client, sent)
    assert await read(client) == b""
    ((event, fields),) = events(caplog)
    host, port = client.getsockname()
    assert (event, fields["peer"], fields["listener"]) == (
        "connection refused",
        f"{host}:{port}",
        "PLAINTEXT",
    )
    assert "PROXY" in fields["reason"]
    assert not bench.clients.made


@ensureDeferred
async def test_header_has_a_deadline(bench, caplog):
    client = bench.connect()
    await bench.send(client, HEADER[:-1])
    await until(lambda: bench.limits.without_header)
    bench.clock.advance(HEADER_SECONDS - 0.1)
    assert bench.limits.without_header
    bench.clock.advance(0.2)
    assert await read(client) == b""
    assert [fields["reason"] for _, fields in events(caplog)] == ["PROXY header timed out"]


@ensureDeferred
async def test_connection_that_ends_before_its_header_is_not_logged(bench, caplog):
    client = bench.connect()
    await until(lambda: bench.limits.without_header)
    client.close()
    await until(lambda: not bench.limits.without_header)
    assert not events(caplog)


@ensureDeferred
async def test_incomplete_headers_count_as_connections():
    bench = BenchBehindProxy(max_connections=2)
    try:
        for _ in range(2):
            bench.connect()
        await until(lambda: len(bench.limits.without_header) == 2)
        assert await read(bench.connect()) == b""
        bench.limits.abort_without_header()
        await until(lambda: not bench.limits.without_header)
    finally:
        await bench.close()


@ensureDeferred
async def test_connection_that_the_listener_refuses_is_closed(bench):
    bench.clients.refuses = True
    client = bench.connect()
    await bench.send(client, HEADER + b"request")
    assert await read(client) == b""


@pytest.mark.parametrize("is_together", [True, False])
@ensureDeferred
async def test_header_precedes_tls(tmp_path, is_together):
    authority = Authority()
    certificate, key = authority.sign("server").write(tmp_path, "server")
    context = ssl.create_default_context(cafile=str(authority.write(tmp_path)))
    files = TlsFiles(certificate, key)
    bench = BenchBehindProxy(tls=TlsContextFactory(files, reactor.seconds, lambda problem: None))
    try:
        client = bench.connect()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        header = HEADER
        if not is_together:
            await bench.send(client, HEADER)
            header = b""

        async def completed(act):
            nonlocal header
            while True:
                try:
                    return act()
                except ssl.SSLWantReadError:
                    await bench.send(client, header + outgoing.read())
                    header = b""
                    incoming.write(await read(client))

        await completed(tls.do_handshake)
        tls.write(b"request")
        assert await completed(lambda: tls.read(100)) == b"request"
        assert bench.clients.made[0].peer == ("192.0.2.7", 56324)
    finally:
        await bench.close()
