"""A lost connection is an error, never an empty producer, reader or topic."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pulsar as library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.log import NotReady
from storage.pulsar.client.partition_producers import error_of
from storage.pulsar.client.pulsar_client import PulsarClient, to_storage_error
from storage.pulsar.client.unraised_results import answer_within, has_message_available
from storage.pulsar.settings import PulsarSettings
from tests.storage.pulsar.partition_topics import PartitionTopic, ReadingStack
from tests.testkit.pulsar_relay import GET_LAST_MESSAGE_ID, PulsarRelays

TOPIC = "persistent://public/default/t"


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


@pytest.mark.parametrize(
    "create",
    [
        lambda client: client.producer(TOPIC, library.ProducerAccessMode.Exclusive),
        lambda client: client.partition_producer(TOPIC),
        lambda client: client.reader(TOPIC, library.MessageId.earliest),
        lambda client: client.bulk_reader(TOPIC, None, 1),
    ],
    ids=["producer", "partition producer", "reader", "bulk reader"],
)
@ensureDeferred
async def test_creation_fails_if_the_client_is_closed_meanwhile(
    silent: socket.socket, kind: str, create: Callable[[PulsarClient], Any]
) -> None:
    address = "{}:{}".format(*silent.getsockname())
    settings = PulsarSettings(
        f"pulsar://{address}", f"http://{address}", operation_timeout_seconds=3600
    )
    client = PulsarClient(settings, reactor)
    await client.open()
    created = client.run(lambda: create(client))
    connection, _ = silent.accept()
    with connection:
        await client.close()
        with pytest.raises(NotReady, match="connection to the broker was lost"):
            await created


@pytest.mark.peer
@ensureDeferred
async def test_lost_connection_is_not_the_end_of_the_topic(
    reading_settings: PulsarSettings, partition: PartitionTopic, kind: str
) -> None:
    with PulsarRelays(reading_settings) as relays:
        side = ReadingStack(relays.settings, reactor)
        await side.client.open()
        reader = await side.client.run(lambda: side.client.bulk_reader(partition.topic, None, 1))
        relays.broker.fatal = frozenset({GET_LAST_MESSAGE_ID})
        with pytest.raises(NotReady, match="connection to the broker was lost"):
            await side.client.run(reader.has_message_available)
        relays.broker.fatal = frozenset()
        assert not await side.client.run(reader.has_message_available)
        await side.close()


class SilentReader:
    """A reader of the binding that answers after the limit."""

    def has_message_available_async(self, answer: Callable[[library.Result, bool], None]) -> None:
        self.answer = answer


@pytest.mark.timeout(60)
def test_check_for_messages_times_out_without_a_response() -> None:
    reader = SilentReader()
    with pytest.raises(library.Timeout):
        has_message_available(reader, 0.001)
    reader.answer(library.Result.Ok, True)


def test_call_without_a_limit_is_given_up() -> None:
    assert answer_within(60, lambda: 7) == 7
    may_answer = Event()
    with pytest.raises(library.Timeout):
        answer_within(0.001, may_answer.wait)
    may_answer.set()


@pytest.mark.parametrize(("result", "name"), [(46, "Disconnected"), (-1, "Retryable")])
def test_results_unknown_to_the_binding_are_lost_connections(result: int, name: str) -> None:
    error = error_of(result)
    assert name in str(error)
    assert type(to_storage_error(error)) is NotReady
