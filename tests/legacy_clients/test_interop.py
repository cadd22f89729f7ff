"""What one age of producers wrote, every age of consumers reads: the same records at the same offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from tests.legacy_clients.brokers import Broker
from tests.legacy_clients.cases import create_topics, difference, records, seen
from tests.legacy_clients.clients import Client, DriverFailed, Record, Span, consume, produce, table

# 300 s: the first run on a machine also downloads and builds the clients.
pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

# One for each record format: 0, 1 and 2.
PRODUCERS = ("java-0.8.2.2", "java-0.10.2.2", "java-3.9.2")
CONSUMERS = tuple(row.name for row in table().values() if row.consumes)
BELOW_FETCH_10 = (
    "java-0.11.0.3",
    "java-1.0.0",
    "java-1.1.1",
    "kafka-python-2.0.2",
    "confluent-0.11.6",
    "confluent-1.0.0",
    "sarama-1.19.0-as-2.0.0",
    "franz-go-1.22.2-as-0.11",
)
"""They read format 2 and send a Fetch that is older than zstd: the gateway gives them gzip."""
PARTITIONS = 2
# Small enough that thirty records make several batches in each partition.
BATCH_BYTES = 2048
# A broker that answers nobody must not cost a deadline for every topic.
ENOUGH_FAILURES = 3

Turn = tuple[str, str]
"""A producer's name and the codec it compresses with."""

# Every codec of every producer in a topic of its own, and all formats side by side in one, in codecs that every consumer has.
PLAN: dict[str, tuple[Turn, ...]] = {f"{name}-{codec}": ((name, codec),) for name in PRODUCERS for codec in table()[name].codecs} | {
    "mixed": (("java-0.8.2.2", "snappy"), ("java-3.9.2", "gzip"), ("java-0.10.2.2", "none"), ("java-0.8.2.2", "none"))
}


@dataclass(frozen=True, slots=True)
class Written:
    """A record with the offset that its producer was told."""

    producer: Client
    record: Record


@dataclass(frozen=True, slots=True)
class Stored:
    """What stands in a topic, by partition, and which turns wrote it."""

    turns: tuple[Turn, ...]
    partitions: tuple[tuple[Written, ...], ...]

    @property
    def kinds(self) -> set[str]:
        """What some clients cannot read though they know each format and each codec (`cannot_read` in clients.toml)."""
        written = [(table()[name].writes, codec) for name, codec in self.turns]
        return {f"{codec}-in-{format}" for format, codec in written} | ({"mixed"} if len({format for format, _ in written}) > 1 else set())


@pytest.fixture(scope="session")
def stored(bootstrap: str, client: Callable[[str], Client]) -> Mapping[str, Stored]:
    """The plan, carried out."""
    create_topics(bootstrap, list(PLAN), PARTITIONS)
    made = {}
    for seed, (topic, turns) in enumerate(PLAN.items()):
        written = [one for given, (name, codec) in shares(topic, seed, turns) for one in write(client(name), bootstrap, given, codec)]
        by_partition = tuple(tuple(one for one in written if one.record.partition == partition) for partition in range(PARTITIONS))
        made[topic] = Stored(turns, by_partition)
    return made


def shares(topic: str, seed: int, turns: tuple[Turn, ...]) -> Iterator[tuple[list[Record], Turn]]:
    """The topic's records, an equal share of each partition for every turn."""
    whole = [records(topic, partition, seed) for partition in range(PARTITIONS)]
    size = -(-len(whole[0]) // len(turns))
    for number, turn in enumerate(turns):
        yield [one for partition in whole for one in partition[number * size : (number + 1) * size]], turn


def write(producer: Client, bootstrap: str, given: list[Record], codec: str) -> list[Written]:
    answers = produce(producer, bootstrap, given, codec=codec, batch_bytes=BATCH_BYTES)
    return [Written(producer, replace(record, offset=answer.offset)) for record, answer in zip(given, answers, strict=True)]


def test_a_producer_is_told_consecutive_offsets_from_0(stored: Mapping[str, Stored]) -> None:
    told = {topic: [[one.record.offset for one in partition] for partition in what.partitions] for topic, what in stored.items()}
    assert told == {topic: [list(range(len(partition))) for partition in what.partitions] for topic, what in stored.items()}


@pytest.mark.parametrize("name", CONSUMERS)
def test_every_consumer_reads_what_every_age_of_producer_wrote(
    name: str, broker: Broker, stored: Mapping[str, Stored], client: Callable[[str], Client]
) -> None:
    consumer = able(client(name), broker)
    topics = {topic: what for topic, what in stored.items() if can_read(consumer, what, broker.is_reference)}
    got = read(consumer, broker.bootstrap, topics)
    wrong = {
        topic: found
        for topic, what in topics.items()
        for partition, written in enumerate(what.partitions)
        if (found := compare(written, got[topic, partition], consumer))
    }
    assert wrong == {}


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_may_begin_inside_a_batch_and_fetch_less_than_one(
    name: str, broker: Broker, stored: Mapping[str, Stored], client: Callable[[str], Client]
) -> None:
    """From offset 3 on, with a fetch size that not every batch fits in."""
    consumer = able(client(name), broker)
    codecs = {"none", "gzip", "snappy"} & set(consumer.decodes)
    topics = {topic: what for topic, what in stored.items() if {codec for _, codec in what.turns} <= codecs}
    start, count = 3, 4
    got = consume(consumer, broker.bootstrap, [Span(topic, 0, start, count) for topic in topics], fetch_bytes=BATCH_BYTES)
    wrong = {
        topic: found
        for topic, what in topics.items()
        if (found := compare(what.partitions[0][start : start + count], [one for one in got if one.topic == topic], consumer))
    }
    assert wrong == {}


def able(consumer: Client, broker: Broker) -> Client:
    if broker.is_reference and consumer.unlike_kafka:
        pytest.skip(consumer.unlike_kafka)
    return consumer


def can_read(consumer: Client, what: Stored, is_reference: bool) -> bool:
    """Whoever has the codecs. And the gateway, unlike Kafka, turns zstd into gzip for whoever may not have it."""
    codecs = {codec for _, codec in what.turns}
    if not is_reference and (what.kinds & set(consumer.cannot_read)):
        return False
    if "zstd" in codecs and not is_reference:
        return consumer.reads < 2 or consumer.name in BELOW_FETCH_10 or "zstd" in consumer.decodes
    return codecs <= set(consumer.decodes)


def read(consumer: Client, bootstrap: str, topics: Mapping[str, Stored]) -> dict[tuple[str, int], list[Record]]:
    """All in one process, as an application does; when that fails, topic by topic, so that the failure names those that cannot be read."""
    spans = [Span(topic, partition, 0, len(written)) for topic, what in topics.items() for partition, written in enumerate(what.partitions)]
    try:
        got = consume(consumer, bootstrap, spans)
    except DriverFailed as whole:
        failures = [f"all at once: {whole}"]
        for topic in topics:
            if len(failures) > ENOUGH_FAILURES:
                break
            try:
                consume(consumer, bootstrap, [span for span in spans if span.topic == topic], timeout=8)
            except DriverFailed as one:
                failures.append(f"{topic} alone: {one}")
        pytest.fail("\n".join(failures))
    return {
        (span.topic, span.partition): [one for one in got if (one.topic, one.partition) == (span.topic, span.partition)] for span in spans
    }


def compare(written: tuple[Written, ...], got: list[Record], consumer: Client) -> str:
    return difference([seen(one.record, one.producer, consumer) for one in written], got)
