"""Produce requests like the last one of a connection, on real sockets.

In the common case compiled code receives, queues and answers them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall, deferLater

from gateway.net.connection import KafkaConnection
from gateway.net.flow_control import LoginBudget, MemoryBudget, OutgoingBytes
from gateway.net.transport import Port
from gateway.partitions.partition import Partition
from gateway.protocol.long_poll import MIN_WAIT_SECONDS
from gateway.protocol.wire.header import read_header
from tests.fakes.broker import open_environment
from tests.fakes.connection import MemoryClient, produce_request, request
from tests.gateway.protocol.wire.implementations import IMPLEMENTATIONS, use
from tests.testkit.settle import settle


def produce(correlation_id: int, records: int = 1) -> bytes:
    """A request with its length."""
    framed = request(produce_request(records), correlation_id=correlation_id, client_id="me")
    return struct.pack(">i", len(framed)) + framed


class Gateway(Factory):
    """A listener of a gateway with a topic "orders" in memory. `read` counts headers that were
    decoded.
    """

    name = "PLAINTEXT"
    mechanisms = principal_rules = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.env = open_environment()
        self.env.topic("orders")
        self.partition = self.env.partition("orders")
        self.broker = self.env.broker
        self.budget = MemoryBudget(1 << 30, self.env.clock)
        self.login_budget = LoginBudget(1 << 20)
        self.outgoing = OutgoingBytes()
        self.connections: list[Any] = []
        self.read = self.closed_connections = 0
        self.port = Port(0, self, 10, "127.0.0.1", reactor, self.outgoing)
        self.port.startListening()
        self.sockets: list[socket.socket] = []
        # What the broker's clock runs at the end of a turn.
        self.turns = LoopingCall(self.env.clock.advance, 0)
        self.turns.start(0.001)

        def record(*given: Any) -> Any:
            self.read += 1
            return read_header(*given)

        monkeypatch.setattr("gateway.protocol.dispatch.read_header", record)

    def buildProtocol(self, address: Any) -> KafkaConnection:
        return KafkaConnection(self, address.host, address.port)

    def opened(self, connection: Any) -> None:
        self.connections.append(connection)

    def closed(self, connection: Any) -> None:
        self.closed_connections += 1

    async def connect(self) -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        self.sockets.append(client)
        client.connect_ex(self.port.socket.getsockname())
        await until(lambda: len(self.connections) == len(self.sockets))
        return client

    async def producer(self, monkeypatch: pytest.MonkeyPatch) -> tuple[socket.socket, Any]:
        """A client whose next requests are plain, and its connection."""
        use("cython", monkeypatch)
        client = await self.connect()
        await send(client, produce(0))
        await replies(client, 1)
        return client, self.connections[-1]

    async def close(self) -> None:
        for client in self.sockets:
            client.close()
        await self.port.stopListening()
        await until(lambda: self.closed_connections == len(self.connections))
        self.env.store.release()
        self.turns.stop()
        assert (self.budget.used, self.outgoing.unsent, self.env.bugs) == (0, 0, [])


async def until(is_true: Any) -> None:
    end = reactor.seconds() + 60
    while not is_true():
        assert reactor.seconds() < end, "it did not happen in time"
        await deferLater(reactor, 0.001)


async def send(client: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[client.send(data) :]
        except BlockingIOError:
            await deferLater(reactor, 0.001)


async def replies(client: socket.socket, count: int) -> list[bytes]:
    """Receive this many replies, without their lengths."""
    found: list[bytes] = []
    received = b""
    end = reactor.seconds() + 60
    while len(found) < count:
        assert reactor.seconds() < end, f"{len(found)} of {count} replies"
        try:
            received += client.recv(1 << 16)
        except BlockingIOError:
            await deferLater(reactor, 0.001)
        while len(received) >= 4 and len(received) >= 4 + struct.unpack_from(">i", received)[0]:
            (size,) = struct.unpack_from(">i", received)
            found.append(received[4 : 4 + size])
            received = received[4 + size :]
    assert received == b""
    return found


def correlation_ids(found: list[bytes]) -> list[int]:
    return [struct.unpack_from(">i", reply)[0] for reply in found]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    made = Gateway(monkeypatch)
    yield made
    settle(made.close())


def effects_of(partition: Partition) -> tuple[Any, ...]:
    entries = [
        (entry.base_offset, entry.last_offset, entry.max_timestamp, bytes(entry.payload))
        for entry in partition.log.read_resident(0, 1 << 30) or ()
    ]
    return entries, partition.unsaved_batches, partition.unsaved_bytes, partition.snapshot()


def served_alone(requests: list[bytes]) -> tuple[list[bytes], tuple[Any, ...]]:
    """The replies to requests that arrive one by one, and their effects, in Python."""
    with pytest.MonkeyPatch.context() as patch:
        use("python", patch)
        env = open_environment()
        env.topic("orders")
        client = MemoryClient(broker=env.broker, listener="PLAINTEXT")
        found: list[bytes] = []
        for one in requests:
            client.send(one[4:])
            found += client.receive()
        return found, effects_of(env.partition("orders"))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", range(3))
@ensureDeferred
async def test_requests_are_answered_however_their_bytes_arrive(
    gateway: Gateway, implementation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    requests = [produce(number, random.choice([1, 1, 300])) for number in range(200)]
    stream = b"".join(requests)
    expected = served_alone(requests)
    use(implementation, monkeypatch)
    client = await gateway.connect()
    position = 0
    while position < len(stream):
        size = random.choice([1, 5, len(requests[0]), 3000, 40_000])
        await send(client, stream[position : position + size])
        position += size
        if random.random() < 0.3:
            await deferLater(reactor, 0)
    found = await replies(client, len(requests))
    assert correlation_ids(found) == list(range(len(requests)))
    assert (found, effects_of(gateway.partition)) == expected


@ensureDeferred
async def test_whole_requests_of_one_read_need_no_header_of_their_own(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = await gateway.producer(monkeypatch)
    gateway.env.store.hold()
    await send(client, b"".join(map(produce, range(1, 31))))
    await until(lambda: len(connection._dispatch._in_flight) == 30)
    assert (gateway.read, gateway.budget.used > 0) == (1, True)
    gateway.env.store.release()
    assert correlation_ids(await replies(client, 30)) == list(range(1, 31))


@ensureDeferred
async def test_plain_requests_shorten_the_next_wait_of_a_fetch(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = await gateway.producer(monkeypatch)
    await send(client, produce(1))
    await replies(client, 1)
    poll = connection._dispatch._long_poll
    assert (gateway.read, poll.wait_seconds(500)) == (1, MIN_WAIT_SECONDS)


@ensureDeferred
async def test_replies_to_a_peer_that_does_not_read_arrive_later(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = await gateway.producer(monkeypatch)
    connection.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    count = 0
    while not connection.transport.unsent_bytes:
        await send(client, b"".join(produce(count + number) for number in range(50)))
        count += 50
        await deferLater(reactor, 0)
    assert correlation_ids(await replies(client, count)) == list(range(count))
    assert gateway.read == 1


@ensureDeferred
async def test_reset_while_appends_are_running_closes_the_connection_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = await gateway.producer(monkeypatch)
    gateway.env.store.hold()
    await send(client, b"".join(map(produce, range(1, 6))))
    await until(lambda: len(connection._dispatch._in_flight) == 5)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    gateway.env.store.release()
    await until(lambda: gateway.closed_connections)
    assert gateway.closed_connections == 1
    assert len(gateway.partition.log.read_resident(0, 1 << 30)) == 6
