"""The transport on real sockets, with and without TLS, and on a scripted one.

Covers partial sends, many buffers, slow readers and all ways to close.
"""

from __future__ import annotations

import errno
import socket
import ssl
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.internet.testing import MemoryReactorClock
from zope.interface import directlyProvides

from auth.tls import TlsContextFactory, TlsFiles
from gateway.net import transport
from gateway.net.flow_control import OutgoingBytes
from gateway.net.listeners import TlsListener
from gateway.net.transport import (
    MAX_ACCEPTS_PER_TURN,
    MAX_UNSENT_BYTES,
    SEND_BUFFERS,
    Port,
    TcpConnection,
    acknowledge,
    no_delay,
)
from tests.testkit.certificates import Authority
from tests.testkit.settle import settle

MIB = 1 << 20


class RecordingPeer(Protocol):
    """The server side: records received bytes and calls."""

    def __init__(self):
        self.got = bytearray()
        self.chunks = []
        self.told = []
        self.lost = []

    def connectionMade(self):
        no_delay(self.transport)

    def received(self, chunk):
        self.chunks.append(len(chunk))
        self.got += chunk

    def dataReceived(self, data):
        self.received(memoryview(data))

    def connectionLost(self, reason):
        self.lost.append(reason.type)

    def pauseProducing(self):
        self.told.append("pause")

    def resumeProducing(self):
        self.told.append("resume")

    def stopProducing(self):
        pass


class Peers(Factory):
    noisy = False

    def __init__(self):
        self.made = []

    def buildProtocol(self, addr):
        self.made.append(RecordingPeer())
        return self.made[-1]


async def until(is_true, seconds=60.0):
    end = reactor.seconds() + seconds
    while not is_true():
        assert reactor.seconds() < end, "it did not happen in time"
        await deferLater(reactor, 0.002)


class TransportBench:
    """A port and the clients on it."""

    def __init__(self, tls=None):
        self.peers = Peers()
        self.tls = tls
        self.outgoing = OutgoingBytes()
        factory = self.peers
        if tls is not None:
            directlyProvides(tls, IOpenSSLServerConnectionCreator)
            factory = TlsListener(tls, False, self.peers)
        self.port = Port(0, factory, 10, "127.0.0.1", reactor, self.outgoing)
        self.port.startListening()
        self.sockets = []

    async def connect(self, receive_buffer=None):
        """Return (client socket, server side)."""
        made = len(self.peers.made)
        client = socket.socket()
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.setblocking(False)
        self.sockets.append(client)
        client.connect_ex(self.port.socket.getsockname())
        await until(lambda: len(self.peers.made) > made and self.peers.made[-1].transport)
        return client, self.peers.made[-1]

    async def close(self):
        for client in self.sockets:
            client.close()
        await self.port.stopListening()
        await until(lambda: all(peer.lost for peer in self.peers.made))
        assert self.outgoing.unsent == 0


@pytest.fixture
def bench():
    made = TransportBench()
    yield made
    settle(made.close())


async def read(client, size, step=MIB):
    got = bytearray()
    while len(got) < size:
        try:
            piece = client.recv(step)
        except BlockingIOError:
            await deferLater(reactor, 0.001)
            continue
        if not piece:
            break
        got += piece
    return bytes(got)


async def read_to_the_end(client):
    """Return the number of bytes until the peer closes or resets the connection."""
    got = 0
    try:
        while piece := await read(client, 1):
            got += len(piece)
    except ConnectionResetError:
        return got
    pytest.fail("the connection ended in good order")


@pytest.mark.parametrize("port", ["bench", "secure"])
@ensureDeferred
async def test_acknowledge_ends_the_delay_of_tcp_acknowledgements(request, port):
    _, peer = await request.getfixturevalue(port).connect()
    connection = peer.transport
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    acknowledge(connection)
    assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


def pattern(size):
    """Bytes in which adjacent megabytes differ."""
    return b"".join(struct.pack(">I", index) for index in range(size // 4))


@ensureDeferred
async def test_received_bytes_reach_protocol_in_order(bench):
    client, peer = await bench.connect()
    sent = pattern(4 * MIB)
    position = 0
    while position < len(sent):
        try:
            position += client.send(sent[position:])
        except BlockingIOError:
            await deferLater(reactor, 0.001)
    await until(lambda: len(peer.got) == len(sent))
    assert peer.got == sent
    assert max(peer.chunks) <= 256 << 10


@ensureDeferred
async def test_bytes_that_were_not_read_yet_are_seen(bench):
    client, peer = await bench.connect()
    assert not peer.transport.has_unread()
    peer.transport.stopReading()
    client.send(b"request")
    await until(peer.transport.has_unread)
    peer.transport.startReading()
    await until(lambda: peer.got == b"request")
    assert not peer.transport.has_unread()


@ensureDeferred
async def test_write_larger_than_socket_buffer_arrives_in_order(bench):
    client, peer = await bench.connect(receive_buffer=4096)
    sent = pattern(8 * MIB)
    peer.transport.writeSequence(
        [sent[: 3 * MIB], bytearray(sent[3 * MIB : 5 * MIB]), memoryview(sent)[5 * MIB :]]
    )
    assert await read(client, len(sent)) == sent
    await until(lambda: peer.transport.unsent_bytes == 0)


@ensureDeferred
async def test_more_buffers_than_one_sendmsg_allows_arrive_in_order(bench):
    client, peer = await bench.connect()
    buffers = [struct.pack(">I", index) for index in range(5 * SEND_BUFFERS + 7)]
    peer.transport.writeSequence(buffers)
    assert await read(client, 4 * len(buffers)) == b"".join(buffers)


@ensureDeferred
async def test_empty_buffers_are_ignored(bench):
    client, peer = await bench.connect()
    peer.transport.writeSequence([b"", bytearray(), memoryview(b"")])
    assert peer.transport.unsent_bytes == 0
    peer.transport.writeSequence([b"", b"ab", b"", b"c", b""])
    peer.transport.write(b"d")
    assert await read(client, 4) == b"abcd"


@ensureDeferred
async def test_slow_reader_pauses_and_resumes_producer(bench):
    client, peer = await bench.connect(receive_buffer=4096)
    peer.transport.registerProducer(peer, True)
    size = MAX_UNSENT_BYTES + 16 * MIB
    peer.transport.write(bytes(size))
    await until(lambda: peer.told == ["pause"])
    await deferLater(reactor, 0.05)
    assert peer.told == ["pause"]
    assert peer.transport.unsent_bytes > MAX_UNSENT_BYTES
    await read(client, size)
    await until(lambda: peer.told == ["pause", "resume"])
    peer.transport.write(b"x")
    assert await read(client, 1) == b"x"
    peer.transport.unregisterProducer()


@ensureDeferred
async def test_fast_reader_leaves_producer_resumed(bench):
    client, peer = await bench.connect()
    peer.transport.registerProducer(peer, True)
    for _ in range(20):
        peer.transport.write(bytes(MAX_UNSENT_BYTES + 1))
        await read(client, MAX_UNSENT_BYTES + 1)
    await until(lambda: peer.told[-1:] != ["pause"])
    peer.transport.unregisterProducer()


@ensureDeferred
async def test_writes_before_close_are_sent_and_later_ones_ignored(bench):
    client, peer = await bench.connect(receive_buffer=4096)
    peer.transport.write(bytes(4 * MIB))
    peer.transport.loseConnection()
    peer.transport.write(b"late")
    assert await read(client, 5 * MIB) == bytes(4 * MIB)
    await until(lambda: peer.lost)


@ensureDeferred
async def test_close_after_paused_write_completes(bench):
    client, peer = await bench.connect(receive_buffer=4096)
    peer.transport.registerProducer(peer, True)
    peer.transport.write(bytes(8 * MIB))
    await until(lambda: peer.told == ["pause"])
    peer.transport.unregisterProducer()
    peer.transport.loseConnection()
    assert len(await read(client, 9 * MIB)) == 8 * MIB
    await until(lambda: peer.lost)


@ensureDeferred
async def test_close_does_not_reset_peer_that_still_sends(bench, monkeypatch):
    # Longer than the test takes on any machine.
    monkeypatch.setattr(transport, "HALF_CLOSE_SECONDS", 60.0)
    client, peer = await bench.connect(receive_buffer=4096)
    peer.transport.pauseProducing()
    client.send(bytes(100_000))
    peer.transport.write(bytes(4 * MIB))
    peer.transport.loseConnection()
    assert await read(client, 4 * MIB) == bytes(4 * MIB)
    client.send(b"more")
    await deferLater(reactor, 0.01)
    client.send(b"and more")
    assert await read(client, 1) == b""
    assert (peer.got, peer.lost) == (b"", [])
    client.close()
    await until(lambda: peer.lost == [ConnectionDone])


@ensureDeferred
async def test_half_close_has_timeout(bench, monkeypatch):
    monkeypatch.setattr(transport, "HALF_CLOSE_SECONDS", 0.05)
    client, peer = await bench.connect()
    peer.transport.write(b"last words")
    peer.transport.loseConnection()
    await until(lambda: peer.lost == [ConnectionDone])
    assert await read(client, 100) == b"last words"


@ensureDeferred
async def test_close_of_idle_connection_skips_half_close(bench, monkeypatch):
    monkeypatch.setattr(transport, "HALF_CLOSE_SECONDS", 3600.0)
    client, peer = await bench.connect()
    peer.transport.skips_half_close = True
    peer.transport.loseConnection()
    await until(lambda: peer.lost == [ConnectionDone])
    assert await read(client, 1) == b""


@ensureDeferred
async def test_abort_during_half_close_does_not_reset(bench):
    client, peer = await bench.connect()
    peer.transport.write(b"last words")
    peer.transport.loseConnection()
    assert await read(client, 100) == b"last words"
    peer.transport.abortConnection()
    await until(lambda: peer.lost == [ConnectionDone])
    assert await read(client, 1) == b""


@ensureDeferred
async def test_abort_frees_unsent_bytes(bench):
    client, peer = await bench.connect(receive_buffer=4096)
    peer.transport.write(bytes(16 * MIB))
    await until(lambda: 0 < peer.transport.unsent_bytes < 16 * MIB)
    peer.transport.abortConnection()
    peer.transport.write(b"late")
    await until(lambda: peer.lost)
    assert len(peer.lost) == 1
    assert peer.transport.unsent_bytes == 0
    assert await read_to_the_end(client) < 16 * MIB


@ensureDeferred
async def test_reset_with_unsent_bytes_reports_one_loss(bench):
    client, peer = await bench.connect(receive_buffer=4096)
    peer.transport.write(bytes(16 * MIB))
    await until(lambda: 0 < peer.transport.unsent_bytes < 16 * MIB)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    await until(lambda: peer.lost)
    await deferLater(reactor, 0.01)
    assert len(peer.lost) == 1
    assert peer.transport.unsent_bytes == 0


@ensureDeferred
async def test_flood_of_connections_is_accepted_in_limited_turns():
    peers = Peers()
    port = Port(0, peers, 400, "127.0.0.1", reactor, OutgoingBytes())
    port.startListening()
    port.stopReading()
    clients = [socket.create_connection(port.socket.getsockname()) for _ in range(400)]
    turns = []
    while len(peers.made) < len(clients):
        before = len(peers.made)
        port.doRead()
        turns.append(len(peers.made) - before)
    # Twisted alone accepts 100, 120, 140 and 40.
    assert turns == [MAX_ACCEPTS_PER_TURN] * (400 // MAX_ACCEPTS_PER_TURN)
    # Afterwards a turn tries as few as the last one found, and again more when there are more.
    port.doRead()
    clients += [socket.create_connection(port.socket.getsockname()) for _ in range(30)]
    await until(lambda: port.doRead() or len(peers.made) == len(clients))
    for client in clients:
        client.close()
    await port.stopListening()
    await until(lambda: all(peer.lost for peer in peers.made))


@ensureDeferred
async def test_half_close_by_peer_closes_connection(bench):
    # As in Kafka: the client no longer waits for replies.
    client, peer = await bench.connect()
    client.send(b"last words")
    client.shutdown(socket.SHUT_WR)
    await until(lambda: peer.lost)
    assert peer.lost == [ConnectionDone]
    assert peer.got == b"last words"


@ensureDeferred
async def test_paused_connection_is_not_read_until_resumed(bench):
    client, peer = await bench.connect()
    peer.transport.pauseProducing()
    client.send(b"abc")
    await deferLater(reactor, 0.05)
    assert peer.got == b""
    peer.transport.resumeProducing()
    await until(lambda: peer.got == b"abc")


@pytest.mark.parametrize("end", ["loseConnection", "abortConnection"])
@ensureDeferred
async def test_resume_during_close_reads_nothing(bench, end):
    client, peer = await bench.connect(receive_buffer=4096)
    peer.transport.write(bytes(8 * MIB))
    peer.transport.pauseProducing()
    client.send(b"abc")
    getattr(peer.transport, end)()
    peer.transport.resumeProducing()
    await deferLater(reactor, 0.05)
    assert peer.got == b""


@ensureDeferred
async def test_resume_after_close_has_no_effect(bench):
    client, peer = await bench.connect()
    client.close()
    await until(lambda: peer.lost)
    peer.transport.resumeProducing()
    peer.transport.write(b"late")
    peer.transport.flush()
    await deferLater(reactor, 0.01)
    assert len(peer.lost) == 1


# TLS


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def secure(authority, tmp_path):
    certificate, key = authority.sign("server").write(tmp_path, "server")
    made = TransportBench(
        TlsContextFactory(TlsFiles(certificate, key), reactor.seconds, lambda problem: None)
    )
    made.context = ssl.create_default_context(cafile=str(authority.write(tmp_path)))
    yield made
    settle(made.close())


class TlsClient:
    """The client side of TLS, non-blocking."""

    def __init__(self, client, context):
        self.client = client
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def does(self, act):
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                await self._push()
                try:
                    piece = self.client.recv(MIB)
                except BlockingIOError:
                    await deferLater(reactor, 0.001)
                    continue
                if piece:
                    self.incoming.write(piece)
                else:
                    self.incoming.write_eof()
            finally:
                await self._push()

    async def _push(self):
        out = self.outgoing.read()
        while out:
            try:
                out = out[self.client.send(out) :]
            except BlockingIOError:
                await deferLater(reactor, 0.001)

    async def read(self, size):
        got = bytearray()
        while len(got) < size:
            got += await self.does(lambda: self.tls.read(MIB))
        return bytes(got)


async def connect_tls(secure, **options):
    client, peer = await secure.connect(**options)
    secured = TlsClient(client, secure.context)
    await secured.does(secured.tls.do_handshake)
    return secured, peer


@ensureDeferred
async def test_large_transfers_work_both_ways_over_tls(secure):
    client, peer = await connect_tls(secure)
    sent = pattern(2 * MIB)
    for position in range(0, len(sent), 1 << 16):
        await client.does(
            lambda piece=sent[position : position + (1 << 16)]: client.tls.write(piece)
        )
    await until(lambda: len(peer.got) == len(sent))
    assert peer.got == sent
    peer.transport.writeSequence(
        [sent[:MIB], bytearray(sent[MIB : MIB + 1000]), memoryview(sent)[MIB + 1000 :], b""]
    )
    assert await client.read(len(sent)) == sent


@ensureDeferred
async def test_slow_reader_pauses_producer_over_tls(secure):
    client, peer = await connect_tls(secure, receive_buffer=4096)
    peer.transport.registerProducer(peer, True)
    peer.transport.write(bytes(16 * MIB))
    await until(lambda: peer.told == ["pause"])
    await client.read(16 * MIB)
    await until(lambda: peer.told == ["pause", "resume"])
    peer.transport.unregisterProducer()


@ensureDeferred
async def test_tls_close_sends_pending_writes_and_close_notify(secure):
    client, peer = await connect_tls(secure)
    peer.transport.write(bytes(4 * MIB))
    peer.transport.loseConnection()
    assert await client.read(4 * MIB) == bytes(4 * MIB)
    assert await client.does(lambda: client.tls.read(1)) == b""
    client.tls.unwrap()
    await client._push()
    await until(lambda: peer.lost)


@ensureDeferred
async def test_tls_abort_closes_at_once(secure):
    _, peer = await connect_tls(secure)
    peer.transport.abortConnection()
    await until(lambda: peer.lost)


# a scripted socket


class ScriptedSocket:
    """Accepts the given number of bytes in each call; None means that it would block."""

    def __init__(self, takes):
        self.takes = list(takes)
        self.taken = b""
        self.most_buffers = 0

    def sendmsg(self, buffers):
        buffers = list(buffers)
        self.most_buffers = max(self.most_buffers, len(buffers))
        most = self.takes.pop(0) if self.takes else 1 << 30
        if most is None:
            raise BlockingIOError(errno.EAGAIN, "not now")
        piece = b"".join(buffers)[:most]
        self.taken += piece
        return len(piece)

    def fileno(self):
        return 7

    def setblocking(self, on):
        pass


def scripted_connection(takes, protocol):
    flush_queue = SimpleNamespace(add=lambda connection: connection.flush())
    scripted, outgoing = ScriptedSocket(takes), OutgoingBytes()
    server = SimpleNamespace(flush_queue=flush_queue, outgoing=outgoing, _realPortNumber=9092)
    connection = TcpConnection(
        scripted, protocol, ("192.0.2.1", 1), server, 1, MemoryReactorClock()
    )
    return scripted, outgoing, connection


def test_unsent_small_part_of_a_request_does_not_keep_it():
    request = bytearray(b"a part of a request, and another one")
    scripted, _, connection = scripted_connection([5, None], RecordingPeer())
    connection.send([b"head", memoryview(request)[2:6], memoryview(request)[7:19]])
    # Fails while a part of it is unsent.
    request.clear()
    connection.doWrite()
    assert scripted.taken == b"headpartof a request"


@given(
    writes=st.lists(
        st.tuples(st.lists(st.binary(max_size=20), max_size=5), st.booleans()), max_size=10
    ),
    takes=st.lists(st.none() | st.integers(1, 40), max_size=40),
    # A protocol with `received` is sent to at once, any other (TLS) from the queue.
    protocol=st.sampled_from([Protocol, RecordingPeer]),
)
def test_bytes_do_not_depend_on_partial_sends(writes, takes, protocol):
    scripted, outgoing, connection = scripted_connection(takes, protocol())
    for buffers, is_writable in writes:
        connection.writeSequence(buffers)
        if is_writable:
            connection.doWrite()
    for _ in range(len(takes) + 2):
        connection.doWrite()
    assert scripted.taken == b"".join(b"".join(buffers) for buffers, _ in writes)
    assert connection.unsent_bytes == outgoing.unsent == 0
