"""Produce responses and consumed records equal those of Kafka 3.9.2."""

from __future__ import annotations

import time

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.legacy_clients.clients import Record, Span, consume, produce, table
from tests.peers.comparison import ComparedBrokers
from tests.peers.tools.test_admin_clients import argv_or_skip, assert_same_output, java

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("records alike"),
]


@pytest.fixture(scope="module")
def sides(compared_brokers: ComparedBrokers) -> ComparedBrokers:
    return compared_brokers


@pytest.mark.parametrize("codec", ["none", pytest.param("gzip", marks=pytest.mark.slow)])
def test_java_producer_gets_the_invalid_records_of_a_batch(
    sides: ComparedBrokers, codec: str
) -> None:
    ours, theirs = sides.run([*argv_or_skip(lambda: java("InvalidRecords.java", "3.9.2")), codec])
    assert_same_output(ours, theirs)
    assert ours.output.count("Compacted topic cannot accept message without key") == 10


LOG_APPEND_TIME = 1


@pytest.mark.parametrize(
    ("producer", "codec"),
    [
        ("java-0.9.0.1", "gzip"),
        ("java-0.10.0.1", "none"),
        pytest.param("java-0.9.0.1", "none", marks=pytest.mark.slow),
        pytest.param("java-0.10.0.1", "gzip", marks=pytest.mark.slow),
    ],
)
def test_log_append_time_replaces_timestamps_of_old_producers(
    sides: ComparedBrokers, producer: str, codec: str
) -> None:
    """Formats 0 and 1. Timestamps of the producers, if any, are from 1970."""
    topic = f"stamped-{producer}-{codec}"
    sent = [
        Record(topic, 0, b"k", b"%d" % n, 1000 + n if producer == "java-0.10.0.1" else None)
        for n in range(3)
    ]
    for address in (sides.gateway, sides.kafka):
        admin = KafkaAdminClient(bootstrap_servers=address)
        admin.create_topics(
            [NewTopic(topic, 1, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})]
        )
        admin.close()
        begun = int(time.time() * 1000)
        produce(table()[producer], address, sent, codec=codec)
        ended = int(time.time() * 1000)
        for offset, timestamp, kind in read(address, topic, len(sent)):
            assert (kind, begun <= timestamp <= ended) == (LOG_APPEND_TIME, True), (
                address,
                offset,
                timestamp,
            )
        # Fetch 2, so format 1; and format 0, which has no timestamps.
        for consumer in ("java-0.10.0.1", "java-0.9.0.1"):
            got = consume(table()[consumer], address, [Span(topic, 0, 0, len(sent))])
            assert [(one.offset, one.value) for one in got] == [(n, b"%d" % n) for n in range(3)]
            if consumer == "java-0.10.0.1":
                assert all(
                    one.timestamp is not None and begun <= one.timestamp <= ended for one in got
                ), (address, got)


def read(address: str, topic: str, count: int) -> list[tuple[int, int, int]]:
    """Return offset, timestamp and timestamp type of each record, read with kafka-python."""
    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        found: list[tuple[int, int, int]] = []
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, found
            for records in consumer.poll(timeout_ms=500).values():
                found += [(one.offset, one.timestamp, one.timestamp_type) for one in records]
        return found
    finally:
        consumer.close()
