"""Without the package `compat` the gateway serves current clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse

from gateway.protocol.wire.api_keys import ApiKey
from tests.records.sample_records import Sample, message_set
from tests.testkit.gateway import GatewayProcess, gateway

pytestmark = [pytest.mark.peer]

OLD_VALUES = [b"old-1", b"old-2"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that cannot import `compat`, with message sets stored by one that can."""
    folder = tmp_path_factory.mktemp("gateway")
    with gateway(folder) as complete, complete.peer() as peer:
        peer.create_topic("old")
        samples = [Sample(n, 1000, None, value) for n, value in enumerate(OLD_VALUES)]
        assert peer.produce("old", message_set(samples, magic=1), version=2).error_code == 0
        assert complete.stop() == 0
    hidden = {"PYTHONPATH": hiding_place(folder)}
    with gateway(folder, environment=hidden, group_initial_rebalance_delay_ms=0) as started:
        yield started


def hiding_place(folder: Path) -> str:
    """A folder for PYTHONPATH that makes `import compat` fail."""
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['compat'] = None\n")
    return str(folder)


def bootstrap(running: GatewayProcess) -> str:
    return "{}:{}".format(*running.address)


def fetched_by_kafka_python(running: GatewayProcess, topic: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap(running),
        group_id="kafka-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    found = [next(consumer).value for _ in range(2)]
    consumer.close()
    return found


def fetched_by_librdkafka(running: GatewayProcess, topic: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap(running),
            "group.id": "librdkafka",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found = [message.value() for message in consumer.consume(2, timeout=60)]
    consumer.close()
    return found


FETCHED_BY = [fetched_by_kafka_python, fetched_by_librdkafka]


def test_api_versions_lists_only_versions_that_do_not_need_compat(running):
    with running.peer() as peer:
        reply = peer.request(ApiVersionsRequest(version=0), ApiVersionsResponse, 0)
    lowest = {one.api_key: one.min_version for one in reply.api_keys if one.min_version}
    assert lowest == {
        ApiKey.PRODUCE: 3,
        ApiKey.FETCH: 4,
        ApiKey.LIST_OFFSETS: 1,
        ApiKey.METADATA: 1,
        ApiKey.OFFSET_COMMIT: 2,
        ApiKey.OFFSET_FETCH: 1,
    }


@pytest.mark.parametrize("fetched", FETCHED_BY)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_client_produces_and_fetches(running, codec, fetched):
    topic = f"{codec}-{fetched.__name__}"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap(running), "compression.type": codec}
    )
    for value in (b"1" * 1000, b"2" * 1000):
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    assert fetched(running, topic) == [b"1" * 1000, b"2" * 1000]


@pytest.mark.parametrize("fetched", FETCHED_BY)
def test_stored_message_set_is_returned_as_it_is(running, fetched):
    assert fetched(running, "old") == OLD_VALUES
