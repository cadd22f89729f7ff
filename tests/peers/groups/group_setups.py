"""Sets up consumer groups through librdkafka: topics with records, committed offsets, static
members.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SECONDS = 90.0

#: Range assignment, by a member or by the coordinator (KIP-848).
_ASSIGNOR: dict[str, dict[str, str | bool]] = {
    "classic": {"partition.assignment.strategy": "range"},
    "consumer": {"group.protocol": "consumer", "group.remote.assignor": "range"},
}


def create_topic(bootstrap: str, name: str, *records: int) -> None:
    """Create a topic with this number of records in each partition, with timestamps 1000, 2000,
    ...
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, len(records), 1)])[name].result(SECONDS)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 0,
            "topic.metadata.refresh.fast.interval.ms": 20,
        }
    )
    for partition, count in enumerate(records):
        for number in range(count):
            producer.produce(name, b"value", partition=partition, timestamp=1000 * (number + 1))
    assert producer.flush(SECONDS) == 0


def commit_offsets(bootstrap: str, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit offsets of a group without members."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    rows = [
        TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()
    ]
    committed_offsets = consumer.commit(offsets=rows, asynchronous=False)
    consumer.close()
    assert all(row.error is None for row in committed_offsets), committed_offsets


def committed_offsets(bootstrap: str, group: str, *partitions: tuple[str, int]) -> list[int | None]:
    """Committed offsets of the group in these partitions, or None if there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    rows = consumer.committed(
        [TopicPartition(*partition) for partition in partitions], timeout=SECONDS
    )
    consumer.close()
    assert all(row.error is None for row in rows), rows
    return [row.offset if row.offset >= 0 else None for row in rows]


@contextmanager
def members(
    bootstrap: str, group: str, topic: str, *names: str, protocol: str = "classic"
) -> Iterator[None]:
    """Members with these client ids that have partitions and keep them.

    A name that begins with "static" is also the member's group.instance.id.
    """
    consumers = [
        Consumer(_settings(bootstrap, group, name) | _ASSIGNOR[protocol]) for name in names
    ]
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        deadline = time.monotonic() + SECONDS
        while not all(consumer.assignment() for consumer in consumers):
            assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
            for consumer in consumers:
                consumer.poll(0.05)
        yield
    finally:
        for consumer in consumers:
            consumer.close()


def _settings(bootstrap: str, group: str, name: str) -> dict[str, str | bool]:
    settings: dict[str, str | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": name,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        # Members do not poll while Kafka's tools run.
        "max.poll.interval.ms": "1800000",
    }
    return {**settings, "group.instance.id": name} if name.startswith("static") else settings
