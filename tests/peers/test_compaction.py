"""The same writes to a compacted topic leave the same records in the gateway and in Apache Kafka
3.9.2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import InvalidRecordError

from tests.legacy_clients.brokers import are_required, gateway, in_pulsar
from tests.legacy_clients.clients import Record, Span, consume, produce, table
from tests.testkit.cache import CannotInstall
from tests.testkit.kafka import Kafka

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("compaction")]

TOPIC = "table"
SECONDS = 180.0
#: The last record fills the active segment, which is not compacted.
SEGMENT_BYTES = 1024
LAST_VALUE = b"." * 930
VALUE = b"." * 600
FREQUENT_CLEANING = [
    "--set",
    "log_cleaner_backoff_ms=200",
    "--set",
    "log_retention_check_interval_ms=200",
]

CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}


@dataclass(frozen=True, slots=True)
class Seen:
    offset: int
    key: bytes | None
    value: bytes | None


@pytest.fixture(
    scope="module",
    params=["gateway", "gateway on Pulsar", pytest.param("kafka", marks=pytest.mark.slow)],
)
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    try:
        if request.param == "gateway":
            with gateway(
                tmp_path_factory.mktemp("gateway"), arguments=FREQUENT_CLEANING
            ) as running:
                yield running.bootstrap
        elif request.param == "gateway on Pulsar":
            tenant = request.getfixturevalue("pulsar")
            with gateway(
                tmp_path_factory.mktemp("gateway"),
                arguments=FREQUENT_CLEANING,
                stored=lambda _: in_pulsar(tenant),
            ) as running:
                yield running.bootstrap
        else:
            with Kafka.start(log_cleaner_backoff_ms="200") as reference:
                yield reference.bootstrap
    except CannotInstall as reason:
        (pytest.fail if are_required() else pytest.skip)(str(reason))


def create(bootstrap: str, topic: str, **configs: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics(
            [
                NewTopic(
                    topic,
                    num_partitions=1,
                    replication_factor=1,
                    topic_configs={**CONFIGS, **configs},
                )
            ]
        )
    finally:
        admin.close()


def read_all(bootstrap: str, topic: str) -> list[Seen]:
    """All records up to the current log end offset, read with kafka-python."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        found: list[Seen] = []
        deadline = time.monotonic() + SECONDS
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, (
                f"the consumer stays at {consumer.position(partition)} of {end}"
            )
            for records in consumer.poll(timeout_ms=200).values():
                found += [Seen(one.offset, one.key, one.value) for one in records]
        return found
    finally:
        consumer.close()


def read_until(bootstrap: str, topic: str, expected: list[Seen]) -> None:
    """Read until compaction is done; before that there may be additional records."""
    deadline = time.monotonic() + SECONDS
    found = read_all(bootstrap, topic)
    while found != expected and time.monotonic() < deadline:
        assert [one for one in found if one in expected] == expected, (
            "a record that must stay was removed"
        )
        time.sleep(0.2)
        found = read_all(bootstrap, topic)
    assert found == expected


def test_compaction_keeps_last_record_of_each_key_for_all_clients(bootstrap):
    create(bootstrap, TOPIC)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0)
    try:
        for number in range(3):
            for key in (b"a", b"b", b"c"):
                value = None if (number, key) == (1, b"c") else key * 600 if number == 2 else VALUE
                if (number, key) != (2, b"c"):
                    producer.send(TOPIC, value=value, key=key, partition=0).get(SECONDS)
        last = (
            producer.send(TOPIC, value=LAST_VALUE, key=b"the last", partition=0).get(SECONDS).offset
        )
    finally:
        producer.close()
    assert last == 8
    expected = [
        Seen(5, b"c", None),
        Seen(6, b"a", b"a" * 600),
        Seen(7, b"b", b"b" * 600),
        Seen(8, b"the last", LAST_VALUE),
    ]
    read_until(bootstrap, TOPIC, expected)
    for name in ("java-0.9.0.1", "java-0.10.0.1"):
        got = consume(table()[name], bootstrap, [Span(TOPIC, 0, 0, len(expected))])
        assert [Seen(one.offset, one.key, one.value) for one in got] == expected


def test_records_of_old_producers_are_compacted_in_their_format(bootstrap):
    topic = "old-table"
    create(bootstrap, topic)
    for name in ("java-0.9.0.1", "java-0.10.0.1"):
        for codec in ("none", "gzip"):
            records = [
                Record(topic, 0, b"%d" % n, f"{name} {codec} ".encode().ljust(300, b"."))
                for n in range(3)
            ]
            produce(table()[name], bootstrap, records, codec=codec, batch_bytes=900)
    (closing,) = produce(
        table()["java-0.9.0.1"], bootstrap, [Record(topic, 0, b"the last", LAST_VALUE)]
    )
    value = b"java-0.10.0.1 gzip ".ljust(300, b".")
    expected = [
        *(Seen(9 + n, b"%d" % n, value) for n in range(3)),
        Seen(12, b"the last", LAST_VALUE),
    ]
    assert closing.offset == 12
    read_until(bootstrap, topic, expected)
    got = consume(table()["java-0.9.0.1"], bootstrap, [Span(topic, 0, 0, len(expected))])
    assert [Seen(one.offset, one.key, one.value) for one in got] == expected


def test_record_without_key_is_refused(bootstrap):
    topic = "strict-table"
    create(bootstrap, topic)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=False)
    try:
        with pytest.raises(InvalidRecordError):
            producer.send(topic, value=b"v", partition=0).get(SECONDS)
        assert producer.send(topic, key=b"k", value=b"v", partition=0).get(SECONDS).offset == 0
    finally:
        producer.close()
