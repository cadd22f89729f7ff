"""Every producer with each of its codecs, to automatically created topics.

Two current consumers read all topics, and every other consumer those in one codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.cases import (
    PLAIN_HEADERS,
    create_topics_on_kafka,
    records,
    sendable_records,
)
from tests.legacy_clients.clients import Client, produce, table
from tests.legacy_clients.install import install
from tests.legacy_clients.stored import StoredTopic, Written, can_read, find_mistakes

# Half an hour: the first test waits until all producers are done.
pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

PRODUCERS = tuple(row.name for row in table().values() if row.produces)
CONSUMERS = tuple(row.name for row in table().values() if row.consumes)
# They read everything. Other consumers read the codec that all support; everything with
# --every-pair.
READERS = ("kafka-python-3.0.12", "java-3.9.2")
COMMON_CODEC = "gzip"
AT_ONCE = 3

Sent = Mapping[str, StoredTopic]
"""The expected content of a producer's topics."""
Misread = Mapping[str, str]
"""The first mistake of a consumer, by topic."""


@pytest.fixture(scope="module")
def sent(
    request: pytest.FixtureRequest, broker: RunningBroker
) -> Iterator[Mapping[str, Future[Sent]]]:
    """The topics by producer."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            name: pool.submit(send, table()[name], broker)
            for name in clients_tested_as(request, "producer")
        }


@pytest.fixture(scope="module")
def reading(
    request: pytest.FixtureRequest, broker: RunningBroker, sent: Mapping[str, Future[Sent]]
) -> Iterator[Mapping[str, Future[Misread]]]:
    """The mistakes by consumer.

    Topics of a failed producer are missing; that producer's test reports it.
    """
    topics = {
        topic: what
        for one in sent.values()
        if not one.exception()
        for topic, what in one.result().items()
    }
    common = {
        topic: what
        for topic, what in topics.items()
        if {codec for _, codec in what.turns} == {COMMON_CODEC}
    }
    eager = table() if request.config.getoption("--every-pair") else READERS
    with ThreadPoolExecutor(AT_ONCE) as pool:
        names = dict.fromkeys([*READERS, *clients_tested_as(request, "consumer")])
        yield {
            name: pool.submit(read, table()[name], broker, topics if name in eager else common)
            for name in names
        }


def clients_tested_as(request: pytest.FixtureRequest, role: str) -> Sequence[str]:
    """The clients that this run tests in this role."""
    items = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    return [item.callspec.params[role] for item in items if role in item.callspec.params]


def send(producer: Client, broker: RunningBroker) -> Sent:
    install(producer)
    topics = {f"all-{producer.name}-{codec}": codec for codec in producer.codecs}
    create_topics_on_kafka(broker, list(topics))
    return {
        topic: StoredTopic(((producer.name, codec),), (written(producer, broker, topic, codec),))
        for topic, codec in topics.items()
    }


def written(producer: Client, broker: RunningBroker, topic: str, codec: str) -> tuple[Written, ...]:
    given = sendable_records(producer, codec, records(topic, 0, 7, PLAIN_HEADERS))
    answers = produce(producer, broker.bootstrap, given, codec=codec, batch_bytes=2048)
    told = [answer.offset for answer in answers]
    assert told == (list(range(len(given))) if producer.tells_offsets else [None] * len(given)), (
        topic
    )
    return tuple(Written(producer, replace(one, offset=offset)) for offset, one in enumerate(given))


def read(consumer: Client, broker: RunningBroker, topics: Sent) -> Misread:
    install(consumer)
    return find_mistakes(
        consumer,
        broker.bootstrap,
        {
            topic: what
            for topic, what in topics.items()
            if can_read(consumer, what, broker.is_reference)
        },
    )


@pytest.mark.parametrize("producer", PRODUCERS)
def test_records_of_a_producer_are_read_back(
    producer: str,
    sent: Mapping[str, Future[Sent]],
    reading: Mapping[str, Future[Misread]],
    client: Callable[[str], Client],
) -> None:
    client(producer)
    topics = sent[producer].result()
    found = [
        (reader, topic, mistake)
        for reader in READERS
        for topic, mistake in reading[reader].result().items()
        if topic in topics
    ]
    assert found == []


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_consumer_reads_records_of_every_producer(
    consumer: str,
    broker: RunningBroker,
    reading: Mapping[str, Future[Misread]],
    client: Callable[[str], Client],
) -> None:
    row = client(consumer)
    if broker.is_reference and row.unlike_kafka:
        pytest.skip(row.unlike_kafka)
    assert reading[consumer].result() == {}
