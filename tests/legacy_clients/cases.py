"""The records that producers send and what each consumer must receive."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from kafka.admin import KafkaAdminClient

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.clients import Client, Record

# An hour ago, in whole seconds: distinguishable from the current time, and within any retention.
EPOCH = int(time.time()) * 1000 - 3_600_000
NEAR_MS = 600_000
LZ4_BLOCK_BYTES = 64 * 1024

PLAIN_HEADERS: tuple[tuple[str, bytes | None], ...] = (
    ("trace", b"42"),
    ("leer", b""),
    ("schl\u00fcssel", b"\xff\xfe\x80"),
)
# Repeated names and null values are legal, but some libraries cannot send them.
ALL_HEADERS = (*PLAIN_HEADERS, ("trace", b"43"), ("null", None))


def records(
    topic: str,
    partition: int,
    seed: int,
    headers: tuple[tuple[str, bytes | None], ...] = ALL_HEADERS,
) -> list[Record]:
    """Thirty different records.

    They have nulls, empty values, every byte, headers, 100 KiB, and enough small values for several
    batches of 2 KiB.
    """
    noise = random.Random(seed)
    every_byte = bytes(range(256))
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (b"key", b"value"),
        (None, b"without a key"),
        (b"tombstone", None),
        (b"empty value", b""),
        (b"", b"empty key"),
        (every_byte, every_byte[::-1]),
        (None, None),
        (b"large", noise.randbytes(50 * 1024) + b"compressible " * 3938),
        *((b"%d" % number, noise.randbytes(150) + b"-" * 250) for number in range(22)),
    ]
    made = [
        Record(topic, partition, key, value, EPOCH + 1000 * index)
        for index, (key, value) in enumerate(pairs)
    ]
    made[1] = replace(made[1], headers=headers)
    made[20] = replace(made[20], headers=headers[:1])
    # Timestamps need not increase.
    made[9] = replace(made[9], timestamp=EPOCH - 5000)
    return made


def sendable_records(client: Client, codec: str, wanted: Sequence[Record]) -> list[Record]:
    """The records that a client can send (`cannot_send` in clients.toml)."""
    not_sendable = {"null-null": {None}, "null-empty": {None, b""}}
    pairs = [not_sendable[kind] for kind in client.cannot_send if kind in not_sendable]
    limit = LZ4_BLOCK_BYTES if codec == "lz4" and "large-lz4" in client.cannot_send else sys.maxsize
    return [
        one for one in wanted if {one.key, one.value} not in pairs and len(one.value or b"") < limit
    ]


def expected_record(record: Record, producer: Client, consumer: Client) -> Record:
    """The record as the consumer must receive it.

    Formats 0 and 1 have no headers and format 0 no timestamp; the older format of both sides
    applies.
    """
    carried = min(producer.writes, consumer.reads)
    timestamp = record.timestamp if carried >= 1 and producer.sets_timestamps else None
    headers = record.headers if carried == 2 else ()
    if consumer.gathers_headers:
        names = [name for name, _ in headers]
        headers = tuple(sorted(headers, key=lambda header: names.index(header[0])))
    return replace(record, timestamp=timestamp, headers=headers)


def create_topics(bootstrap: str, names: Sequence[str], partitions: int) -> None:
    """Create the topics with kafka-python's admin client."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        wanted = {name: {"num_partitions": partitions, "replication_factor": 1} for name in names}
        admin.create_topics(wanted, timeout_ms=120_000, wait_for_metadata=True)
    finally:
        admin.close()


def create_topics_on_kafka(broker: RunningBroker, names: Sequence[str]) -> None:
    """Create the topics on Kafka only.

    Kafka returns error 3 while it creates a topic automatically, which confluent-kafka 1.0 does not
    retry; the gateway creates the topic first.
    """
    if broker.is_reference:
        create_topics(broker.bootstrap, names, 1)


def difference(expected: Sequence[Record], got: Sequence[Record]) -> str:
    """Describe the first difference between two lists; empty if they are equal."""
    for index, (want, have) in enumerate(zip(expected, got, strict=False)):
        if want != have:
            fields = [
                name
                for name in Record.__dataclass_fields__
                if getattr(want, name) != getattr(have, name)
            ]
            words = [
                f"{name}: expected {_short(getattr(want, name))}, got {_short(getattr(have, name))}"
                for name in fields
            ]
            return f"record {index} of {want.topic}:{want.partition}: " + "; ".join(words)
    return "" if len(expected) == len(got) else f"{len(got)} records instead of {len(expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:60]}... ({len(text)} characters)"
