"""Topics in the entry format `pulsar`, used by Kafka clients of every age and native Pulsar
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pulsar as native
import pytest

from tests.legacy_clients.brokers import (
    FEW_SHARDS,
    NO_REBALANCE_DELAY,
    RunningBroker,
    gateway,
)
from tests.legacy_clients.cases import create_topics
from tests.legacy_clients.clients import Client, Record, Span, consume, consume_in_group, produce
from tests.testkit.tenant import Tenant

pytestmark = [pytest.mark.peer]

#: Record formats 0, 1 and 2.
PRODUCERS = ("java-0.9.0.1", "java-0.10.2.2", "kafka-python-3.0.12")
#: With Fetch 0-1, 2-3 and later.
CONSUMERS = ("java-0.9.0.1", "java-0.10.2.2", "kafka-python-3.0.12")
#: In CI this client only runs in the test with all clients at the same time.
SLOW = {"java-0.10.2.2"}
TIME = 1_700_000_000_000
WAIT_MS = 180_000


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway with native topics by default, and a native Pulsar client."""

    broker: RunningBroker
    client: native.Client
    namespace: str

    def topic(self, name: str) -> str:
        """Create a topic; return the Pulsar topic of its only partition."""
        create_topics(self.broker.bootstrap, [name], 1)
        return f"persistent://{self.namespace}/{name}-partition-0"

    def send(self, topic: str, *values: bytes, chunked: bool = False) -> None:
        codec = native.CompressionType.NONE if chunked else native.CompressionType.ZSTD
        producer = self.client.create_producer(
            topic, batching_enabled=False, chunking_enabled=chunked, compression_type=codec
        )
        for value in values:
            producer.send(
                value, partition_key="native", properties={"from": "pulsar"}, event_timestamp=TIME
            )
        producer.close()

    def read(self, topic: str, count: int) -> list[native.Message]:
        reader = self.client.create_reader(topic, native.MessageId.earliest)
        try:
            return [reader.read_next(WAIT_MS) for _ in range(count)]
        finally:
            reader.close()


@pytest.fixture(scope="module")
def scene(pulsar: Tenant, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    places = {f"pulsar_{name}": pulsar.namespace() for name in ("namespace", "metadata_namespace")}
    settings = {
        "offsets_shards": FEW_SHARDS,
        "pulsar_admin": pulsar.admin_url,
        "pulsar_tenant": pulsar.name,
        "pulsar_metadata_tenant": pulsar.name,
        **places,
    }

    def stored(_: Path) -> list[str]:
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return ["--store", pulsar.service_url, *words, "--entry-format", "pulsar"]

    client = native.Client(pulsar.service_url)
    with gateway(
        tmp_path_factory.mktemp("gateway"), arguments=NO_REBALANCE_DELAY, stored=stored
    ) as broker:
        yield Scene(broker, client, f"{pulsar.name}/{places['pulsar_namespace']}")
    client.close()


def some(topic: str, who: str, count: int = 20) -> list[Record]:
    return [
        Record(topic, 0, b"key-%d" % number, f"{who}-{number}".encode()) for number in range(count)
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PRODUCERS]
)
def test_native_consumer_reads_records_of_kafka_producer(
    scene: Scene, client: Callable[[str], Client], name: str
) -> None:
    topic = scene.topic(f"to-native-{name}")
    records = some(f"to-native-{name}", name)
    told = produce(client(name), scene.broker.bootstrap, records, codec="gzip")
    assert [one.offset for one in told] == list(range(len(records)))
    messages = scene.read(topic, len(records))
    assert [(one.partition_key().encode(), one.data()) for one in messages] == [
        (one.key, one.value) for one in records
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CONSUMERS]
)
def test_kafka_consumer_reads_messages_of_native_producer(
    scene: Scene, client: Callable[[str], Client], name: str
) -> None:
    topic = scene.topic(f"from-native-{name}")
    scene.send(topic, *(b"%d" % number for number in range(20)))
    scene.send(topic, b"c" * 6_000_000, chunked=True)
    scene.send(topic, b"last")
    found = consume(
        client(name),
        scene.broker.bootstrap,
        [Span(f"from-native-{name}", 0, 0, 22)],
        fetch_bytes=8_000_000,
    )
    assert [(one.offset, one.key, one.value) for one in found] == [
        *((number, b"native", b"%d" % number) for number in range(20)),
        # Each of its two chunks has an offset.
        (21, b"native", b"c" * 6_000_000),
        (22, b"native", b"last"),
    ]


def test_concurrent_kafka_and_native_clients_see_the_same_log(
    scene: Scene, client: Callable[[str], Client]
) -> None:
    topic = scene.topic("shared")
    producers, consumers = (
        [client(name) for name in PRODUCERS],
        [client(name) for name in CONSUMERS],
    )
    each = 100
    span = [Span("shared", 0, 0, each * (len(producers) + 1))]
    with ThreadPoolExecutor(len(producers) + len(consumers) + 1) as pool:
        reading = [pool.submit(consume, one, scene.broker.bootstrap, span) for one in consumers]
        writing = [
            pool.submit(
                produce,
                one,
                scene.broker.bootstrap,
                some("shared", one.name, each),
                codec="gzip",
                batch_bytes=512,
            )
            for one in producers
        ]
        shared = pool.submit(scene.send, topic, *(b"native-%d" % number for number in range(each)))
        told = {one.name: outcome.result() for one, outcome in zip(producers, writing, strict=True)}
        shared.result()
        found = [[(one.offset, one.value) for one in outcome.result()] for outcome in reading]
    assert [offset for offset, _ in found[0]] == list(range(each * (len(producers) + 1)))
    assert found[1:] == found[:1] * (len(consumers) - 1)
    at = {value: offset for offset, value in found[0]}
    for name in [*told, "native"]:
        offsets = [at[f"{name}-{number}".encode()] for number in range(each)]
        assert offsets == sorted(offsets)
        if name != "native":
            assert [one.offset for one in told[name]] == offsets
    assert [message.data() for message in scene.read(topic, len(at))] == [
        value for _, value in found[0]
    ]


def test_group_continues_at_its_commit_in_a_native_topic(
    scene: Scene, client: Callable[[str], Client]
) -> None:
    topic = scene.topic("grouped")
    old = client("java-0.9.0.1")
    scene.send(topic, b"a", b"b", b"c")
    first = consume_in_group(old, scene.broker.bootstrap, "group", "grouped", 2)
    produce(old, scene.broker.bootstrap, [Record("grouped", 0, b"k", b"d")])
    second = consume_in_group(old, scene.broker.bootstrap, "group", "grouped", 2)
    assert [one.value for one in first + second] == [b"a", b"b", b"c", b"d"]
