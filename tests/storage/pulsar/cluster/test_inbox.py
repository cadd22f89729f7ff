"""Messages between gateways on Pulsar."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, threads
from twisted.internet.task import deferLater

from storage.cluster import MAX_CALL_BYTES
from storage.pulsar.cluster.inbox import WAITING_MESSAGES, inbox_path
from tests.storage.pulsar.cluster.pulsar_bench import PulsarClusterBench
from tests.testkit.settle import until
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer


@pytest.fixture
def bench(pulsar: Tenant) -> Iterator[PulsarClusterBench]:
    made = PulsarClusterBench(pulsar.settings())
    yield made
    made.close()


@ensureDeferred
async def test_messages_arrive_again_after_the_topic_moved(
    bench: PulsarClusterBench, pulsar: Tenant
) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    received: list[bytes] = []
    await two.inbox.open(2, received.append)
    numbers = itertools.count(1)

    async def arrives(word: bytes) -> bool:
        # The broker drops messages that arrive before the consumer's first request for some.
        one.inbox.send(2, b"%s %d" % (word, next(numbers)))
        await deferLater(reactor, 0.05)
        return any(message.startswith(word) for message in received)

    await until(lambda: arrives(b"before"))
    path = f"non-persistent/{inbox_path(bench.settings, 2)}-partition-0"
    await threads.deferToThread(pulsar.admin, "PUT", f"{path}/unload")
    await until(lambda: arrives(b"after"))
    arrived = [int(message.split()[1]) for message in received if message.startswith(b"after")]
    assert arrived == sorted(set(arrived))


@ensureDeferred
async def test_next_process_with_the_same_id_receives_messages(bench: PulsarClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    former: list[bytes] = []
    await two.inbox.open(2, former.append)
    one.inbox.send(2, b"1")
    await until(lambda: former)
    bench.kill(two)
    three = await bench.process("three")
    received: list[bytes] = []
    await three.inbox.open(2, received.append)
    one.inbox.send(2, b"2")
    await until(lambda: received)
    assert (former, received) == ([b"1"], [b"2"])


@ensureDeferred
async def test_messages_above_the_limits_are_dropped(
    bench: PulsarClusterBench, caplog: pytest.LogCaptureFixture
) -> None:
    one = await bench.process("one")
    await one.inbox.open(1, lambda message: None)
    for _ in range(WAITING_MESSAGES + 1):
        one.inbox.send(1, b"x")
    outbox = one.inbox._outboxes[1]
    assert outbox._messages == WAITING_MESSAGES
    assert caplog.text.count("too many messages are waiting") == 1
    await until(lambda: not outbox._messages)
    assert outbox._bytes == 0
    for _ in range(10):
        one.inbox.send(1, bytes(MAX_CALL_BYTES))
    assert outbox._bytes == 4 * MAX_CALL_BYTES
