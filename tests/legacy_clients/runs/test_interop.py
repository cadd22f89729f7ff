"""Consumers of every age read what producers of every age wrote, at the same offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.cases import create_topics, records
from tests.legacy_clients.clients import Client, Record, Span, consume, produce, table
from tests.legacy_clients.stored import (
    ProducerAndCodec,
    StoredTopic,
    Written,
    can_read,
    compare,
    find_mistakes,
)

pytestmark = [pytest.mark.peer]

# One per record format: 0, 1 and 2.
PRODUCERS = ("java-0.8.2.2", "java-0.10.2.2", "java-3.9.2")
CONSUMERS = tuple(row.name for row in table().values() if row.consumes)
PARTITIONS = 2
# Small enough for several batches per partition.
BATCH_BYTES = 2048

# A topic per producer and codec, and one topic with all formats, in codecs that every consumer
# supports.
PLAN: dict[str, tuple[ProducerAndCodec, ...]] = {
    f"{name}-{codec}": ((name, codec),) for name in PRODUCERS for codec in table()[name].codecs
} | {
    "mixed": (
        ("java-0.8.2.2", "snappy"),
        ("java-3.9.2", "gzip"),
        ("java-0.10.2.2", "none"),
        ("java-0.8.2.2", "none"),
    )
}


@pytest.fixture(scope="session")
def stored(bootstrap: str, client: Callable[[str], Client]) -> Mapping[str, StoredTopic]:
    """The topics of the plan, written by their producers."""
    create_topics(bootstrap, list(PLAN), PARTITIONS)
    made = {}
    for seed, (topic, turns) in enumerate(PLAN.items()):
        written = [
            one
            for given, (name, codec) in split_records(topic, seed, turns)
            for one in write(client(name), bootstrap, given, codec)
        ]
        by_partition = tuple(
            tuple(one for one in written if one.record.partition == partition)
            for partition in range(PARTITIONS)
        )
        made[topic] = StoredTopic(turns, by_partition)
    return made


def split_records(
    topic: str, seed: int, turns: tuple[ProducerAndCodec, ...]
) -> Iterator[tuple[list[Record], ProducerAndCodec]]:
    """The topic's records, divided equally among the producers in each partition."""
    whole = [records(topic, partition, seed) for partition in range(PARTITIONS)]
    size = -(-len(whole[0]) // len(turns))
    for number, turn in enumerate(turns):
        yield (
            [one for partition in whole for one in partition[number * size : (number + 1) * size]],
            turn,
        )


def write(producer: Client, bootstrap: str, given: list[Record], codec: str) -> list[Written]:
    answers = produce(producer, bootstrap, given, codec=codec, batch_bytes=BATCH_BYTES)
    return [
        Written(producer, replace(record, offset=answer.offset))
        for record, answer in zip(given, answers, strict=True)
    ]


def test_producers_get_consecutive_offsets_from_0(stored: Mapping[str, StoredTopic]) -> None:
    told = {
        topic: [[one.record.offset for one in partition] for partition in what.partitions]
        for topic, what in stored.items()
    }
    assert told == {
        topic: [list(range(len(partition))) for partition in what.partitions]
        for topic, what in stored.items()
    }


@pytest.mark.parametrize("name", CONSUMERS)
def test_consumer_reads_records_of_all_producers(
    name: str,
    broker: RunningBroker,
    stored: Mapping[str, StoredTopic],
    client: Callable[[str], Client],
) -> None:
    consumer = skip_unlike_kafka(client(name), broker)
    topics = {
        topic: what
        for topic, what in stored.items()
        if can_read(consumer, what, broker.is_reference)
    }
    assert find_mistakes(consumer, broker.bootstrap, topics) == {}


@pytest.mark.parametrize("name", CONSUMERS)
def test_consumer_can_start_inside_a_batch_with_a_small_fetch_size(
    name: str,
    broker: RunningBroker,
    stored: Mapping[str, StoredTopic],
    client: Callable[[str], Client],
) -> None:
    """From offset 3, with a fetch size smaller than some batches."""
    consumer = skip_unlike_kafka(client(name), broker)
    codecs = {"none", "gzip", "snappy"}
    readable = {
        topic: what
        for topic, what in stored.items()
        if can_read(consumer, what, broker.is_reference)
    }
    topics = {
        topic: what
        for topic, what in readable.items()
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
