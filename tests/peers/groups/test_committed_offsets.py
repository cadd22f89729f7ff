"""Real clients commit and resume from their offsets, also after the gateway was killed:
acknowledged commits are never lost.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.structs import OffsetAndMetadata

from tests.testkit.gateway import GatewayProcess, Peer, encode_request, gateway
from tests.testkit.kafka import free_ports

pytestmark = [pytest.mark.peer]

TOPIC = "orders"
RECORDS = 40
SECONDS = 90.0

#: A member that leaves just before a kill may still be in its group until its session times out.
#: Longer than pauses of a busy machine.
SESSION_MS = 15_000
HEARTBEAT_MS = 1_000


def bootstrap(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def commit_request(group: str, offset: int, retention_ms: int = -1) -> OffsetCommitRequest:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    row = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, commit_timestamp=-1, committed_metadata="mine"
    )
    return OffsetCommitRequest(
        group_id=group, retention_time_ms=retention_ms, topics=[topic(name=TOPIC, partitions=[row])]
    )


def commit_offset(peer: Peer, group: str, offset: int, version: int, retention_ms: int = -1) -> int:
    """Commit an offset and return the error code."""
    return (
        peer.request(commit_request(group, offset, retention_ms), OffsetCommitResponse, version)
        .topics[0]
        .partitions[0]
        .error_code
    )


def fetch_offset(peer: Peer, group: str, version: int = 1, topic: str = TOPIC) -> tuple[int, int]:
    """Committed offset and error code of partition 0."""
    asked = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    row = (
        peer.request(
            OffsetFetchRequest(group_id=group, topics=[asked]), OffsetFetchResponse, version
        )
        .topics[0]
        .partitions[0]
    )
    return row.committed_offset, row.error_code


def fill(address: tuple[str, int]) -> None:
    """Write records 0, 1, 2, ... to one partition."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap(address))
    for number in range(RECORDS):
        producer.send(TOPIC, b"%d" % number, partition=0)
    producer.flush(SECONDS)
    producer.close()


# Raw requests of Kafka 0.8 clients


def test_commits_of_old_clients_survive_kill(tmp_path: Path) -> None:
    with gateway(tmp_path) as first, first.peer() as peer:
        peer.create_topic(TOPIC)
        for version in (0, 1, 2):
            group = f"with-{version}"
            assert fetch_offset(peer, group, 0) == (-1, 3)
            assert [commit_offset(peer, group, offset, version) for offset in (3, 7)] == [0, 0]
    with gateway(tmp_path) as second, second.peer() as peer:
        for group in ("with-0", "with-1", "with-2"):
            assert [fetch_offset(peer, group, version) for version in (0, 1, 5)] == [(7, 0)] * 3
            assert fetch_offset(peer, group, 0, topic="nothing") == (-1, 3)


def test_offsets_of_deleted_topic_stay_deleted_after_kill(tmp_path: Path) -> None:
    with gateway(tmp_path) as first, first.peer() as peer:
        peer.create_topic(TOPIC)
        assert commit_offset(peer, "g", 7, 1) == 0
        admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap(first.address))
        admin.delete_topics([TOPIC])
        assert commit_offset(peer, "g", 8, 1) == 3
        admin.close()
    with gateway(tmp_path) as second, second.peer() as peer:
        peer.create_topic(TOPIC)
        assert fetch_offset(peer, "g") == (-1, 0)


def test_offset_expires_after_requested_retention_and_stays_expired_after_kill(
    tmp_path: Path,
) -> None:
    with gateway(tmp_path, offsets_retention_check_interval_ms=50) as first, first.peer() as peer:
        peer.create_topic(TOPIC)
        assert commit_offset(peer, "kept", 7, 2, retention_ms=600_000) == 0
        assert commit_offset(peer, "g", 7, 2, retention_ms=1) == 0
        assert first.wait_for_lines(1, "offsets expired")
        assert [fetch_offset(peer, group) for group in ("g", "kept")] == [(-1, 0), (7, 0)]
    with gateway(tmp_path) as second, second.peer() as peer:
        assert [fetch_offset(peer, group) for group in ("g", "kept")] == [(-1, 0), (7, 0)]


# Kills


class Committer(threading.Thread):
    """Commits offsets 1, 2, 3, ... for one group, four requests at a time, until the connection
    breaks.
    """

    def __init__(self, address: tuple[str, int], group: str, first: int) -> None:
        super().__init__(daemon=True)
        self.peer = Peer(address)
        self.group = group
        self.acknowledged = first - 1
        self.sent = first - 1
        self.errors: list[int] = []

    def run(self) -> None:
        try:
            while True:
                for _ in range(4):
                    self.sent += 1
                    self.peer.send(encode_request(commit_request(self.group, self.sent), 2))
                for _ in range(4):
                    frame = self.peer.receive()
                    if frame is None:
                        return
                    # Correlation id; one topic, its name, one partition: index and error.
                    (error,) = struct.unpack(">h", frame[-2:])
                    if error:
                        self.errors.append(error)
                    self.acknowledged += 1
        except OSError:
            return


def test_acknowledged_commits_survive_repeated_kills(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    stood = {f"g{number}": 0 for number in range(8)}
    committers: list[Committer] = []
    for _ in range(3):
        with gateway(tmp_path) as running:
            check(running, committers, stood)
            committers = [
                Committer(running.address, group, offset + 1) for group, offset in stood.items()
            ]
            for one in committers:
                one.start()
            wait_for_commits(committers, stood)
            committers[0].join(chance.uniform(0.1, 0.4))
            running.process.kill()
            for one in committers:
                one.join(SECONDS)
    with gateway(tmp_path) as running:
        check(running, committers, stood)


def wait_for_commits(committers: list[Committer], stood: dict[str, int]) -> None:
    end = time.monotonic() + SECONDS
    while not all(one.acknowledged > stood[one.group] for one in committers):
        assert time.monotonic() < end, "nothing is committed"
        time.sleep(0.01)


def check(running: GatewayProcess, committers: list[Committer], stood: dict[str, int]) -> None:
    """Check that each group's offset is the last acknowledged commit or a later one in flight, and
    update `stood`.
    """
    with running.peer() as peer:
        peer.create_topic(TOPIC)
        for one in committers:
            assert one.errors == []
            offset, error = fetch_offset(peer, one.group)
            assert error == 0
            assert one.acknowledged <= offset <= one.sent
            stood[one.group] = offset


# Current clients


def librdkafka(
    address: tuple[str, int], group: str = "g", **more: object
) -> confluent_kafka.Consumer:
    settings = {
        "bootstrap.servers": bootstrap(address),
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_MS,
    }
    return confluent_kafka.Consumer({**settings, **more})


def kafka_python(address: tuple[str, int], group: str) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=bootstrap(address),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )


def numbers(values: Iterable[bytes]) -> list[int]:
    return [int(value) for value in values]


def consume_librdkafka(address: tuple[str, int], *, is_member: bool, group: str = "g") -> list[int]:
    """Read ten records and commit the offset after them."""
    consumer = librdkafka(address, group)
    if is_member:
        consumer.subscribe([TOPIC])
    else:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0)])
    messages = consumer.consume(10, SECONDS)
    assert not any(message.error() for message in messages)
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(TOPIC, 0, messages[-1].offset() + 1)],
        asynchronous=False,
    )
    consumer.close()
    return numbers(message.value() for message in messages)


def consume_kafka_python(
    address: tuple[str, int], *, is_member: bool, group: str = "g"
) -> list[int]:
    consumer = kafka_python(address, group)
    partition = kafka.TopicPartition(TOPIC, 0)
    if is_member:
        consumer.subscribe([TOPIC])
    else:
        consumer.assign([partition])
    found: list[Any] = []
    while len(found) < 10:
        found += consumer.poll(timeout_ms=SECONDS * 1000, max_records=10 - len(found)).get(
            partition, []
        )
    consumer.commit({partition: OffsetAndMetadata(found[-1].offset + 1, "mine", -1)})
    consumer.close()
    return numbers(record.value for record in found)


def test_consumers_resume_at_committed_offset(tmp_path: Path) -> None:
    def reads(running: GatewayProcess, first: int) -> None:
        for consume in (consume_librdkafka, consume_kafka_python):
            for is_member in (False, True):
                group = f"{consume.__name__}-{'member' if is_member else 'alone'}"
                found = consume(running.address, is_member=is_member, group=group)
                assert found == list(range(first, first + 10)), group

    with gateway(tmp_path, group_initial_rebalance_delay_ms=0) as running:
        fill(running.address)
        reads(running, 0)
        reads(running, 10)
    with gateway(tmp_path, group_initial_rebalance_delay_ms=0) as running:
        reads(running, 20)


def test_committed_offsets_are_shared_between_libraries(tmp_path: Path) -> None:
    with gateway(tmp_path, group_initial_rebalance_delay_ms=0) as running, running.peer() as peer:
        fill(running.address)
        assert consume_librdkafka(running.address, is_member=True) == list(range(10))
        assert consume_kafka_python(running.address, is_member=False) == list(range(10, 20))
        assert fetch_offset(peer, "g", 0) == (20, 0)
        assert commit_offset(peer, "g", 25, 0) == 0
        assert consume_kafka_python(running.address, is_member=True) == list(range(25, 35))


def test_running_consumer_continues_to_commit_after_kills(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    arguments = ("--listener", f"PLAINTEXT://127.0.0.1:{port}")
    consumer = None
    stood = -1
    for _ in range(3):
        with gateway(tmp_path, *arguments, listeners=()) as running:
            if consumer is None:
                fill(running.address)
                consumer = librdkafka(
                    running.address, **{"reconnect.backoff.max.ms": 200, "log_level": 0}
                )
                consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0)])
            for message in consumer.consume(10, SECONDS):
                assert message.error() is None
                assert message.offset() == stood + 1
                stood = message.offset()
                consumer.commit(message, asynchronous=False)
    assert consumer is not None
    consumer.close()
    with gateway(tmp_path) as last, last.peer() as peer:
        assert fetch_offset(peer, "g") == (stood + 1, 0)
    assert stood == 29
