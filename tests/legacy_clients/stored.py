"""The expected content of topics, which clients can read it, and whether they did."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.legacy_clients.cases import NEAR_MS, difference, expected_record
from tests.legacy_clients.clients import Client, DriverFailed, Record, Span, consume, table

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
"""They read format 2 with Fetch versions before zstd: the gateway sends them gzip."""
# Do not wait for a deadline per topic if the broker answers no client.
ENOUGH_FAILURES = 3

ProducerAndCodec = tuple[str, str]
"""A producer's name and its compression codec."""


@dataclass(frozen=True, slots=True)
class Written:
    """A record with its expected offset."""

    producer: Client
    record: Record


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """The expected content of a topic by partition, and its producers."""

    turns: tuple[ProducerAndCodec, ...]
    partitions: tuple[tuple[Written, ...], ...]

    @property
    def kinds(self) -> set[str]:
        """Properties that some clients cannot read although they support each format and codec
        (`cannot_read` in clients.toml).
        """
        written = [(table()[name].writes, codec) for name, codec in self.turns]
        formats = {format for format, _ in written}
        older = {"older"} if formats & {0, 1} else set()
        of = {f"{codec}-of-{name}" for name, codec in self.turns}
        return (
            of
            | {f"{codec}-in-{format}" for format, codec in written}
            | older
            | ({"mixed"} if len(formats) > 1 else set())
        )


def can_read(consumer: Client, what: StoredTopic, is_reference: bool) -> bool:
    """Whether the consumer supports the codecs.

    Unlike Kafka, the gateway converts zstd to gzip for consumers that may not receive it.
    """
    codecs = {codec for _, codec in what.turns}
    unreadable = what.kinds & set(consumer.cannot_read)
    if any(not is_reference or "-of-" in kind for kind in unreadable):
        return False
    if "zstd" in codecs and not is_reference:
        return consumer.reads < 2 or consumer.name in BELOW_FETCH_10 or "zstd" in consumer.decodes
    return codecs <= set(consumer.decodes)


def find_mistakes(
    consumer: Client, bootstrap: str, topics: Mapping[str, StoredTopic]
) -> Mapping[str, str]:
    """Read these topics in one process; return the first mistake per topic, if any."""
    got = _read(consumer, bootstrap, topics)
    return {
        topic: found
        for topic, what in topics.items()
        for partition, written in enumerate(what.partitions)
        if (
            found := compare(
                written,
                [one for one in got if (one.topic, one.partition) == (topic, partition)],
                consumer,
            )
        )
    }


def _read(consumer: Client, bootstrap: str, topics: Mapping[str, StoredTopic]) -> list[Record]:
    """Read all spans at once; if that fails, read each topic to name those that fail."""
    spans = [
        Span(topic, partition, 0, len(written))
        for topic, what in topics.items()
        for partition, written in enumerate(what.partitions)
    ]
    try:
        return consume(consumer, bootstrap, spans, timeout=600)
    except DriverFailed as whole:
        failures = [f"all at once: {whole}"]
        for topic in topics:
            if len(failures) > ENOUGH_FAILURES:
                break
            try:
                consume(
                    consumer, bootstrap, [span for span in spans if span.topic == topic], timeout=8
                )
            except DriverFailed as one:
                failures.append(f"{topic} alone: {one}")
        raise AssertionError("\n".join(failures)) from None


def compare(written: Sequence[Written], got: Sequence[Record], consumer: Client) -> str:
    """The first mistake of the consumer; empty if there is none."""
    stamped = [
        _without_current_time(one, have, consumer) for one, have in zip(written, got, strict=False)
    ]
    return difference(
        [expected_record(one.record, one.producer, consumer) for one in written],
        [*stamped, *got[len(written) :]],
    )


def _without_current_time(one: Written, have: Record, consumer: Client) -> Record:
    """Replace the timestamp of a producer that cannot set timestamps.

    Where the formats have timestamps: None for a current time, as in `expected_record`; otherwise
    -1.
    """
    if one.producer.sets_timestamps or min(one.producer.writes, consumer.reads) < 1:
        return have
    is_now = have.timestamp is not None and abs(have.timestamp - time.time() * 1000) < NEAR_MS
    return replace(have, timestamp=None if is_now else -1)
