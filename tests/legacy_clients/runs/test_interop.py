"""Consumers of every age read what producers of every age wrote, at the same offsets.

Every producer writes a topic with each of its codecs. Two current consumers read all topics; every
other consumer reads those in one codec, and those of a producer per record format. In CI the oldest
and the newest producer of each library write with all of their codecs, others with that codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.cases import (
    ALL_HEADERS,
    PLAIN_HEADERS,
    create_topics,
    create_topics_on_kafka,
    records,
    sendable_records,
)
from tests.legacy_clients.clients import (
    Client,
    Record,
    Span,
    consume,
    ends_of_libraries,
    produce,
    table,
)
from tests.legacy_clients.install import install
from tests.legacy_clients.stored import (
    ProducerAndCodec,
    StoredTopic,
    Written,
    can_read,
    compare,
    find_mistakes,
)

# Half an hour: the first test waits until all producers are done.
pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

PRODUCERS = tuple(row.name for row in table().values() if row.produces)
CONSUMERS = tuple(row.name for row in table().values() if row.consumes)
# One per record format, 0, 1 and 2. Every consumer reads their topics in all codecs.
OF_EACH_FORMAT = ("java-0.8.2.2", "java-0.10.2.2", "java-3.9.2")
# They read everything. Other consumers read the codec that all support; everything with
# --every-pair.
READERS = ("kafka-python-3.0.12", "java-3.9.2")
COMMON_CODEC = "gzip"
# In CI these write with all of their codecs.
IN_EACH_CODEC = {*OF_EACH_FORMAT, *ends_of_libraries(table()[name] for name in PRODUCERS)}
# In CI these read with a small fetch size: the oldest of each library, and the newest in Java.
WITH_SMALL_FETCHES = {
    "java-4.4.0",
    *{table()[name].library: name for name in reversed(CONSUMERS)}.values(),
}
AT_ONCE = 3
# Small enough for several batches per partition.
BATCH_BYTES = 2048

# A topic with all formats, in codecs that every consumer supports.
MIXED = "mixed"
MIXED_PARTITIONS = 2
MIXED_TURNS = (
    ("java-0.8.2.2", "snappy"),
    ("java-3.9.2", "gzip"),
    ("java-0.10.2.2", "none"),
    ("java-0.8.2.2", "none"),
)

Sent = Mapping[str, StoredTopic]
"""The expected content of topics."""
Misread = Mapping[str, str]
"""The first mistake of a consumer, by topic."""


@pytest.fixture(scope="module")
def mixed(broker: RunningBroker, client: Callable[[str], Client]) -> StoredTopic:
    """The topic to which several producers write in turn."""
    create_topics(broker.bootstrap, [MIXED], MIXED_PARTITIONS)
    found = [
        one
        for given, (name, codec) in split_records()
        for one in write(client(name), broker, given, codec)
    ]
    by_partition = tuple(
        tuple(one for one in found if one.record.partition == partition)
        for partition in range(MIXED_PARTITIONS)
    )
    return StoredTopic(MIXED_TURNS, by_partition)


def split_records() -> Iterator[tuple[list[Record], ProducerAndCodec]]:
    """The records of the topic `mixed`, divided equally among the producers in each partition."""
    whole = [records(MIXED, partition, 7) for partition in range(MIXED_PARTITIONS)]
    size = -(-len(whole[0]) // len(MIXED_TURNS))
    for number, turn in enumerate(MIXED_TURNS):
        yield (
            [one for partition in whole for one in partition[number * size : (number + 1) * size]],
            turn,
        )


@pytest.fixture(scope="module")
def sent(
    request: pytest.FixtureRequest, broker: RunningBroker, mixed: StoredTopic
) -> Iterator[Mapping[str, Future[Sent]]]:
    """The topics by producer."""
    codecs: dict[str, list[str]] = {name: [*table()[name].codecs] for name in OF_EACH_FORMAT}
    for params in tested_params(request):
        if "producer" in params and params["producer"] not in OF_EACH_FORMAT:
            codecs.setdefault(params["producer"], []).append(params["codec"])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            name: pool.submit(send, table()[name], some, broker) for name, some in codecs.items()
        }


@pytest.fixture(scope="module")
def reading(
    request: pytest.FixtureRequest,
    broker: RunningBroker,
    mixed: StoredTopic,
    sent: Mapping[str, Future[Sent]],
) -> Iterator[Mapping[str, Future[Misread]]]:
    """The mistakes by consumer.

    Topics of a failed producer are missing; that producer's test reports it.
    """
    topics = {MIXED: mixed} | {
        topic: what
        for one in sent.values()
        if not one.exception()
        for topic, what in one.result().items()
    }
    common = {topic: what for topic, what in topics.items() if is_read_by_all(what)}
    eager = table() if request.config.getoption("--every-pair") else READERS
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tested = [one["consumer"] for one in tested_params(request) if "consumer" in one]
        yield {
            name: pool.submit(read, table()[name], broker, topics if name in eager else common)
            for name in dict.fromkeys([*READERS, *tested])
        }


def is_read_by_all(what: StoredTopic) -> bool:
    producers = {name for name, _ in what.turns}
    return producers <= {*OF_EACH_FORMAT} or {codec for _, codec in what.turns} == {COMMON_CODEC}


def tested_params(request: pytest.FixtureRequest) -> Sequence[Mapping[str, str]]:
    """The parameters of the tests in this run."""
    items = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    return [item.callspec.params for item in items if hasattr(item, "callspec")]


def topic_of(producer: str, codec: str) -> str:
    return f"all-{producer}-{codec}"


def send(producer: Client, codecs: Sequence[str], broker: RunningBroker) -> Sent:
    install(producer)
    topics = {topic_of(producer.name, codec): codec for codec in codecs}
    create_topics_on_kafka(broker, list(topics))
    return {
        topic: StoredTopic(((producer.name, codec),), (written(producer, broker, topic, codec),))
        for topic, codec in topics.items()
    }


def written(producer: Client, broker: RunningBroker, topic: str, codec: str) -> tuple[Written, ...]:
    headers = ALL_HEADERS if producer.name in OF_EACH_FORMAT else PLAIN_HEADERS
    given = sendable_records(producer, codec, records(topic, 0, 7, headers))
    told = [one.record.offset for one in write(producer, broker, given, codec)]
    assert told == (list(range(len(given))) if producer.tells_offsets else [None] * len(given)), (
        topic
    )
    return tuple(Written(producer, replace(one, offset=offset)) for offset, one in enumerate(given))


def write(
    producer: Client, broker: RunningBroker, given: list[Record], codec: str
) -> list[Written]:
    """The records with the offsets of the producer's responses."""
    answers = produce(producer, broker.bootstrap, given, codec=codec, batch_bytes=BATCH_BYTES)
    return [
        Written(producer, replace(record, offset=answer.offset))
        for record, answer in zip(given, answers, strict=True)
    ]


def read(consumer: Client, broker: RunningBroker, topics: Sent) -> Misread:
    install(consumer)
    return find_mistakes(consumer, broker.bootstrap, readable(consumer, broker, topics))


def readable(consumer: Client, broker: RunningBroker, topics: Sent) -> Sent:
    return {
        topic: what
        for topic, what in topics.items()
        if can_read(consumer, what, broker.is_reference)
    }


def test_producers_of_one_topic_get_consecutive_offsets_from_0(mixed: StoredTopic) -> None:
    told = [[one.record.offset for one in partition] for partition in mixed.partitions]
    assert told == [list(range(len(partition))) for partition in mixed.partitions]


def producer_cases() -> Iterator[Any]:
    for name in PRODUCERS:
        for codec in table()[name].codecs:
            in_ci = codec == COMMON_CODEC or name in IN_EACH_CODEC
            marks = () if in_ci else (pytest.mark.slow,)
            yield pytest.param(name, codec, id=f"{name}+{codec}", marks=marks)


@pytest.mark.parametrize(("producer", "codec"), tuple(producer_cases()))
def test_records_of_a_producer_are_read_back(
    producer: str,
    codec: str,
    sent: Mapping[str, Future[Sent]],
    reading: Mapping[str, Future[Misread]],
    client: Callable[[str], Client],
) -> None:
    client(producer)
    topic = topic_of(producer, codec)
    assert topic in sent[producer].result()
    mistakes = {reader: reading[reader].result().get(topic, "") for reader in READERS}
    assert mistakes == dict.fromkeys(READERS, "")


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_consumer_reads_records_of_every_producer(
    consumer: str,
    broker: RunningBroker,
    reading: Mapping[str, Future[Misread]],
    client: Callable[[str], Client],
) -> None:
    skip_unlike_kafka(client(consumer), broker)
    assert reading[consumer].result() == {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in WITH_SMALL_FETCHES else (pytest.mark.slow,))
        for name in CONSUMERS
    ],
)
def test_consumer_can_start_inside_a_batch_with_a_small_fetch_size(
    name: str,
    broker: RunningBroker,
    mixed: StoredTopic,
    sent: Mapping[str, Future[Sent]],
    client: Callable[[str], Client],
) -> None:
    """From offset 3, with a fetch size smaller than some batches."""
    consumer = skip_unlike_kafka(client(name), broker)
    codecs = {"none", "gzip", "snappy"}
    stored = {MIXED: mixed}
    for producer in OF_EACH_FORMAT:
        stored |= sent[producer].result()
    topics = {
        topic: what
        for topic, what in readable(consumer, broker, stored).items()
        if {codec for _, codec in what.turns} <= codecs
    }
    start, count = 3, 4
    got = consume(
        consumer,
        broker.bootstrap,
        [Span(topic, 0, start, count) for topic in topics],
        fetch_bytes=BATCH_BYTES,
    )
    wrong = {
        topic: found
        for topic, what in topics.items()
        if (
            found := compare(
                what.partitions[0][start : start + count],
                [one for one in got if one.topic == topic],
                consumer,
            )
        )
    }
    assert wrong == {}


def skip_unlike_kafka(consumer: Client, broker: RunningBroker) -> Client:
    if broker.is_reference and consumer.unlike_kafka:
        pytest.skip(consumer.unlike_kafka)
    return consumer
