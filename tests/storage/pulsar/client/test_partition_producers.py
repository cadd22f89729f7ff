"""Producers of partitions through both interfaces of the client library, on a real broker."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pulsar as library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.log import LogClosed
from storage.pulsar.client import compiled_client
from storage.pulsar.client.partition_producers import (
    OK,
    PartitionProducer,
    Response,
    SingleProducer,
    error_of,
    result_name,
)
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.offset_index import Position
from tests.storage.pulsar.partition_topics import PartitionTopic, header
from tests.testkit.pulsar_relay import SEND, PulsarRelays
from tests.testkit.settle import settle, until
from tests.testkit.tenant import Tenant

PROPERTIES = {"entry.format": "kafka", "kopgate": "[1,0]"}

ClientOpener = Callable[..., Awaitable[PulsarClient]]


class Sender:
    """Sends numbers, and collects the bursts of responses."""

    def __init__(self, client: PulsarClient, producer: PartitionProducer) -> None:
        self._client = client
        self.producer = producer
        self.bursts: list[list[Response]] = []
        producer.on_responses = self.bursts.append

    @classmethod
    async def open(cls, client: PulsarClient, topic: str) -> Sender:
        return cls(client, await client.run(lambda: client.partition_producer(topic)))

    def send(self, begin: int, end: int) -> None:
        for number in range(begin, end):
            self.producer.send(number, b"%d" % number, PROPERTIES)

    async def answered(self, count: int) -> list[tuple[int, str]]:
        """Numbers and results of the next `count` responses, in the order of their arrival."""
        await until(lambda: sum(map(len, self.bursts)) >= count)
        found = [(number, result_name(result)) for number, result, *_ in self.responses()]
        self.bursts.clear()
        assert len(found) == count
        return found

    def responses(self) -> list[Response]:
        return [one for burst in self.bursts for one in burst]

    async def close(self) -> None:
        await self._client.run(self.producer.close)


def results(begin: int, end: int, name: str = "Ok") -> list[tuple[int, str]]:
    return [(number, name) for number in range(begin, end)]


@pytest.fixture
def between(pulsar: Tenant) -> Iterator[PulsarRelays]:
    with PulsarRelays(pulsar.settings(close_timeout_seconds=10)) as relays:
        yield relays


@pytest.fixture
def open_client(between: PulsarRelays, kind: str) -> Iterator[ClientOpener]:
    """Opens a client behind the relays; closed after the test."""
    opened: list[PulsarClient] = []

    async def open_one(**others: Any) -> PulsarClient:
        client = PulsarClient(replace(between.settings, **others), reactor)
        await client.open()
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        settle(client.close())


@pytest.fixture
def target(pulsar: Tenant, between: PulsarRelays, writer: library.Client) -> PartitionTopic:
    """An empty topic."""
    return PartitionTopic(pulsar, between.settings, writer)


def stored(writer: library.Client, topic: str) -> list[tuple[bytes, dict[str, str], Position]]:
    reader = writer.create_reader(topic, library.MessageId.earliest)
    found = []
    while reader.has_message_available():
        one = reader.read_next(60_000)
        place = one.message_id()
        found.append((one.data(), one.properties(), Position(place.ledger_id(), place.entry_id())))
    reader.close()
    return found


def numbers(writer: library.Client, topic: str) -> list[int]:
    return [int(payload) for payload, *_ in stored(writer, topic)]


@pytest.mark.peer
@ensureDeferred
async def test_responses_have_positions_of_stored_messages_in_order(
    open_client, kind, target, writer
):
    sender = await Sender.open(await open_client(), target.topic)
    assert isinstance(sender.producer, SingleProducer) == (kind == "binding")
    one = header(7, 9, time=5)
    sent = [
        (b"", {}),
        (b"a\0b", one.properties("kafka")),
        (bytes(range(256)) * 4096, one.properties("mixed_kafka")),
    ]
    for number, (payload, properties) in enumerate(sent):
        sender.producer.send(number, payload, properties)
    await until(lambda: len(sender.responses()) == len(sent))
    assert [(number, result) for number, result, *_ in sender.responses()] == [
        (number, OK) for number in range(len(sent))
    ]
    assert stored(writer, target.topic) == [
        (*one, Position(*place))
        for one, (_, _, *place) in zip(sent, sender.responses(), strict=True)
    ]


@pytest.mark.peer
@ensureDeferred
async def test_responses_that_came_before_a_wake_up_are_one_burst(open_client, target, between):
    sender = await Sender.open(await open_client(), target.topic)
    with between.dropping(SEND):
        sender.send(0, 200)
        # In the reactor's thread: all messages have a response when it returns.
        sender.producer.close()
        assert sender.bursts == []
        await until(lambda: sender.bursts)
    assert [len(burst) for burst in sender.bursts] == [200]
    assert await sender.answered(200) == results(0, 200, "AlreadyClosed")


@pytest.mark.peer
@ensureDeferred
async def test_responses_do_not_keep_their_producer(open_client, target):
    sender = await Sender.open(await open_client(), target.topic)
    references = []
    for _ in range(3):
        sender.send(0, 5)
        assert await sender.answered(5) == results(0, 5)
        references.append(sys.getrefcount(sender.producer))
    assert references[1] == references[2]


@pytest.mark.peer
@ensureDeferred
async def test_deduplication_drops_no_message_after_a_lost_connection(
    open_client, pulsar, between, writer
):
    """Without a first sequence id the library numbers messages from 0 again if it reconnects before
    the first acknowledgement.
    """
    namespace = f"{between.settings.tenant}/{between.settings.namespace}"
    pulsar.admin("POST", f"namespaces/{namespace}/deduplication", True)
    target = PartitionTopic(pulsar, between.settings, writer)
    sender = await Sender.open(await open_client(), target.topic)
    with between.cut():
        sender.send(0, 5)
        between.broker.disconnect()
    assert await sender.answered(5) == results(0, 5)
    sender.send(5, 10)
    assert await sender.answered(5) == results(5, 10)
    assert numbers(writer, target.topic) == list(range(10))


@pytest.mark.peer
@ensureDeferred
async def test_each_producer_gets_its_own_responses(open_client, pulsar, between, writer):
    client = await open_client()
    senders = [
        await Sender.open(client, PartitionTopic(pulsar, between.settings, writer).topic)
        for _ in range(3)
    ]
    for number in range(50):
        for sender in senders:
            sender.send(number, number + 1)
    for sender in senders:
        assert await sender.answered(50) == results(0, 50)


@pytest.mark.peer
@ensureDeferred
async def test_failing_handler_does_not_affect_other_producers(
    open_client, pulsar, between, writer, caplog
):
    client = await open_client()
    first, second = [
        await Sender.open(client, PartitionTopic(pulsar, between.settings, writer).topic)
        for _ in range(2)
    ]

    def fail(responses: list[Response]) -> None:
        raise RuntimeError("a bug")

    first.producer.on_responses = fail
    with between.dropping(SEND):
        for sender in (first, second, first, second):
            sender.send(0, 1)
        # In the reactor's thread: their responses are taken together.
        for sender in (first, second):
            sender.producer.close()
        assert await second.answered(2) == [(0, "AlreadyClosed")] * 2
    await until(lambda: "RuntimeError: a bug" in caplog.text)


@pytest.mark.peer
@ensureDeferred
async def test_next_exclusive_producer_fences_the_one_before(open_client, target, writer):
    client = await open_client()
    first = await Sender.open(client, target.topic)
    first.send(0, 2)
    assert await first.answered(2) == results(0, 2)
    second = await Sender.open(await open_client(), target.topic)
    first.send(2, 5)
    assert await first.answered(3) == results(2, 5, "ProducerFenced")
    second.send(5, 6)
    assert await second.answered(1) == results(5, 6)
    assert numbers(writer, target.topic) == [0, 1, 5]


@pytest.mark.peer
@ensureDeferred
async def test_messages_in_flight_are_failed_when_their_producer_is_fenced(
    open_client, target, writer, between
):
    first = await Sender.open(await open_client(send_timeout_seconds=600), target.topic)
    with between.cut():
        first.send(0, 3)
        # Not through the relay. The broker then refuses to let the first one reconnect.
        other = writer.create_producer(
            target.topic, access_mode=library.ProducerAccessMode.ExclusiveWithFencing
        )
        between.broker.disconnect()
    assert await first.answered(3) == results(0, 3, "ProducerFenced")
    assert numbers(writer, target.topic) == []
    other.close()


@pytest.mark.peer
@ensureDeferred
async def test_messages_in_flight_are_sent_again_after_a_lost_connection(
    open_client, target, writer, between
):
    sender = await Sender.open(await open_client(), target.topic)
    sender.send(0, 2)
    assert await sender.answered(2) == results(0, 2)
    with between.cut():
        sender.send(2, 20)
        between.broker.disconnect()
        sender.send(20, 30)
    assert await sender.answered(28) == results(2, 30)
    assert numbers(writer, target.topic) == list(range(30))


@pytest.mark.peer
@ensureDeferred
async def test_unanswered_messages_time_out(open_client, target, writer, between):
    sender = await Sender.open(await open_client(send_timeout_seconds=1), target.topic)
    with between.dropping(SEND):
        sender.send(0, 3)
        assert await sender.answered(3) == results(0, 3, "Timeout")
    assert numbers(writer, target.topic) == []


@pytest.mark.peer
@ensureDeferred
async def test_message_beyond_the_limit_is_refused_without_waiting(open_client, target, between):
    sender = await Sender.open(await open_client(queue_operations=2), target.topic)
    with between.dropping(SEND):
        sender.send(0, 3)
        assert await sender.answered(1) == results(2, 3, "ProducerQueueIsFull")
        await sender.close()
    assert await sender.answered(2) == results(0, 2, "AlreadyClosed")


@pytest.mark.peer
@ensureDeferred
async def test_closed_producer_refuses_messages(open_client, target):
    sender = await Sender.open(await open_client(), target.topic)
    await sender.close()
    sender.send(0, 2)
    assert await sender.answered(2) == results(0, 2, "AlreadyClosed")


@pytest.mark.peer
@ensureDeferred
async def test_closing_the_client_answers_messages_in_flight(open_client, kind, target, between):
    client = await open_client()
    sender = await Sender.open(client, target.topic)
    context = object()
    references = sys.getrefcount(context)
    with between.dropping(SEND):
        for _ in range(3):
            sender.producer.send(context, b"x", PROPERTIES)
        await client.close()
    if kind == "compiled":
        # The last ones are dispatched when the client is closed.
        assert len(sender.responses()) == 3
    await until(lambda: len(sender.responses()) == 3)
    assert [(one, result_name(result)) for one, result, *_ in sender.responses()] == [
        (context, "AlreadyClosed")
    ] * 3
    sender.bursts.clear()
    assert sys.getrefcount(context) == references


@pytest.mark.peer
@ensureDeferred
async def test_producer_of_a_terminated_topic_is_refused(open_client, target, writer, pulsar):
    client = await open_client()
    pulsar.admin("POST", f"{target.topic.replace('://', '/')}/terminate")
    with pytest.raises(LogClosed, match="terminated"):
        await client.run(lambda: client.partition_producer(target.topic))


def test_module_with_another_interface_is_not_used(compiled, monkeypatch):
    monkeypatch.setattr(compiled, "INTERFACE", compiled.INTERFACE - 1)
    loaded = runpy.run_path(compiled_client.__file__)
    assert loaded["compiled"] is None
    assert "version" in loaded["BINDING_REASON"]


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (library.Result.ProducerFenced, library.ProducerFenced),
        (library.Result.Timeout, library.Timeout),
    ],
)
def test_results_have_the_errors_of_the_binding(result, kind):
    assert type(error_of(result.value)) is kind
    assert result_name(result.value) == result.name
