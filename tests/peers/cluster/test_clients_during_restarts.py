"""Every real client while the gateways are restarted and killed, one after the other.

A client produces to a topic and reads it, in a group where it has groups, while the nodes of a
cluster of three are stopped in turn by SIGTERM and SIGKILL, and started again. It must not lose an
acknowledged record, and its application must not see an error. An idempotent producer must not
store a record twice, or in another order. Several clients run at a time.

TESTS_ON_KAFKA=1 runs the same with three brokers of Apache Kafka 3.9.2 instead of gateways.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pytest

from tests.legacy_clients.brokers import are_required, in_pulsar
from tests.legacy_clients.clients import Client, Record, consume_in_group, table
from tests.legacy_clients.install import install
from tests.peers.cluster.gateways import Gateways
from tests.peers.cluster.kafka_brokers import KafkaBrokers
from tests.peers.cluster.load import create_topic
from tests.peers.cluster.restarts import Brokers, Place, Restarts, produce_blocks, read_log
from tests.testkit.cache import CannotInstall

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(3600)]

T = TypeVar("T")

SHARDS = 12
SETTINGS = {"group_initial_rebalance_delay_ms": 0}
PARTITIONS = 6
#: Records of a block are for one partition: kcat is a process for each.
BLOCKS, BLOCK_RECORDS = 30, 8
PAUSE_SECONDS = 0.4
#: Restarts until the last block is sent: each node is restarted at least once.
RESTARTS = 3
#: Seconds of one run of a driver, on a busy machine.
CLIENT_SECONDS = 200.0
#: Clients that run at a time.
CONCURRENT_RUNS = 6
#: The restarts wait until the partitions of this topic are served.
SETTLED = "settled"
#: Runs of a group until it has read all records. More than one is needed when a record was read
#: twice, or stored twice.
GROUP_RUNS = 5

#: Drivers that collect batches themselves: they send each record as they read it.
AT_ONCE = dict.fromkeys(["kafkajs", "kafka_node"], ("--batch-bytes", "1"))

#: Retries for producers whose library gives up within a second by default: 600 at its own backoff
#: of 100 ms. kafka-node never sends again; its driver does, as an application has to.
JAVA_RETRIES = ("--property", "retries=600")
RETRIES = ("--retries", "600")
MORE_RETRIES = {
    "java-0.8.2.2": JAVA_RETRIES,
    "java-0.9.0.1": JAVA_RETRIES,
    "java-0.10.0.1": JAVA_RETRIES,
    "java-0.10.1.1": JAVA_RETRIES,
    "java-0.10.2.2": JAVA_RETRIES,
    "kafka-python-1.0.2": RETRIES,
    "kafka-python-1.3.5": RETRIES,
    "kafka-python-2.0.2": RETRIES,
    "kafka-python-2.0.2-as-0.9": RETRIES,
    "kafka-python-2.0.2-as-0.10": RETRIES,
    "confluent-0.11.6": RETRIES,
    "confluent-1.0.0-as-0.9": RETRIES,
    "kafka-node-2.0.0": RETRIES,
    "kafka-node-5.0.0": RETRIES,
    "kafkajs-1.0.1": RETRIES,
    "sarama-1.10.0": RETRIES,
    "sarama-1.19.0": RETRIES,
    "sarama-1.19.0-as-0.10.2": RETRIES,
    "sarama-1.19.0-as-2.0.0": RETRIES,
    "sarama-1.61.1": RETRIES,
}

#: Consumers that report a refused commit (NOT_COORDINATOR), or a broker that they cannot reach, to
#: the application, which has to repeat the call, or to make the consumer again.
REPEATED_BY_APPLICATION = frozenset(
    {
        "aiokafka-0.3.1",
        "kafka-python-1.0.2",
        "confluent-0.11.6",
        "confluent-1.0.0",
        "confluent-1.0.0-as-0.9",
        "kafka-node-2.0.0",
        "kafka-node-5.0.0",
        "sarama-1.10.0",
        "sarama-1.19.0",
        "sarama-1.19.0-as-0.10.2",
        "sarama-1.19.0-as-2.0.0",
        "sarama-1.61.1",
        "franz-go-1.22.2",
        "franz-go-1.22.2-as-0.9",
        "franz-go-1.22.2-as-0.10",
        "franz-go-1.22.2-as-0.11",
    }
)

#: Clients whose producer is configured as idempotent, or is so by default. It retries by itself.
IDEMPOTENT = frozenset(
    {
        "java-0.11.0.3",
        "java-1.0.0",
        "java-1.1.1",
        "java-2.1.1",
        "java-2.8.2",
        "java-3.9.2",
        "java-4.3.1",
        "java-4.4.0",
        "kafka-python-3.0.12",
        "confluent-1.0.0",
        "confluent-2.8.0",
        "confluent-2.16.1",
        "aiokafka-0.14.0",
        "kafkajs-2.2.4",
        "sarama-1.61.1",
        "franz-go-1.22.2",
        "franz-go-1.22.2-as-0.11",
        "kcat-1.7.1",
    }
)


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Brokers]:
    if os.environ.get("TESTS_ON_KAFKA"):
        with _installed_or_skipped(KafkaBrokers) as running:
            yield running
        return
    store = in_pulsar(request.getfixturevalue("pulsar"), SHARDS)
    with Gateways(tmp_path_factory.mktemp("gateways"), store, 3, SETTINGS) as gateways:
        gateways.launch()
        yield gateways


@pytest.fixture(scope="module")
def runs(
    brokers: Brokers, request: pytest.FixtureRequest
) -> Iterator[Mapping[str, Future[ClientRun]]]:
    """The runs of the selected clients by name, several at a time, during the same restarts."""
    names = [
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
    ]
    clients = [table()[name] for name in names]
    for client in {*clients, *map(reader_of, clients)}:
        _installed_or_skipped(partial(install, client))
    for topic in (SETTLED, *map(topic_of, clients)):
        create_topic(brokers.bootstrap, topic, PARTITIONS)
        brokers.wait_until_settled(topic)
    with Restarts(brokers, SETTLED) as restarts, ThreadPoolExecutor(CONCURRENT_RUNS) as threads:
        started = {
            client.name: threads.submit(run_client, client, brokers, restarts) for client in clients
        }
        yield started
        for run in started.values():
            run.cancel()


def _installed_or_skipped(make: Callable[[], T]) -> T:
    try:
        return make()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


@pytest.mark.parametrize("name", table())
def test_client_loses_no_record_and_reports_no_error_during_restarts(
    name: str, runs: Mapping[str, Future[ClientRun]]
) -> None:
    try:
        run = runs[name].result()
    except Exception as failure:
        print(f"\n{name}: {failure}", flush=True)
        raise
    print(f"\n{name}: {run.summary}", flush=True)
    check_log(table()[name], run)
    assert run.read == run.log


def test_gateways_log_no_bug_during_restarts(
    brokers: Brokers, runs: Mapping[str, Future[ClientRun]]
) -> None:
    wait(runs.values())
    assert brokers.unexpected_errors() == []


@dataclass(frozen=True, slots=True)
class ClientRun:
    """What a client sent, the acknowledged offsets, and what the client read and the log has."""

    sent: list[Record]
    answers: list[tuple[int, int | None]]
    read: dict[Place, str]
    log: dict[Place, str]
    summary: str


def run_client(client: Client, brokers: Brokers, restarts: Restarts) -> ClientRun:
    """Produce and read meanwhile, until three nodes have been restarted."""
    topic, name = topic_of(client), client.name
    blocks = blocks_of(topic)
    began, before = time.monotonic(), len(restarts.seconds)

    def paced() -> Iterator[list[Record]]:
        for block in blocks[:-1]:
            yield block
            time.sleep(PAUSE_SECONDS)
        restarts.wait_for(before + RESTARTS)
        yield blocks[-1]

    words = ["--acks", "all", *AT_ONCE.get(client.driver, ()), *MORE_RETRIES.get(name, ())]
    words += ["--idempotent"] if name in IDEMPOTENT else []
    sent = [record for block in blocks for record in block]
    read: dict[Place, str] = {}
    reader = reader_of(client)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(read_in_group, reader, brokers, topic, len(sent), read)
        # If it fails, the reader waits until its timeout.
        answers = produce_blocks(client, brokers.bootstrap, words, paced(), CLIENT_SECONDS)
        produced = time.monotonic() - began
        first.result()
    log = read_log(brokers.bootstrap, topic, PARTITIONS)
    group_runs = 1
    while (missing := len(log.keys() - read.keys())) and group_runs < GROUP_RUNS:
        read_in_group(reader, brokers, topic, missing, read)
        group_runs += 1
    summary = (
        f"{len(restarts.seconds) - before} restarts, produced in {produced:.0f} s, read in "
        f"{time.monotonic() - began:.0f} s and {group_runs} runs of the group, "
        f"{len(log) - len(sent)} records stored again"
    )
    places = [(one.partition, one.offset) for one in answers]
    return ClientRun(sent, places, read, log, summary)


def blocks_of(topic: str) -> list[list[Record]]:
    return [
        [
            Record(topic, block % PARTITIONS, b"key", b"%d" % (block * BLOCK_RECORDS + number))
            for number in range(BLOCK_RECORDS)
        ]
        for block in range(BLOCKS)
    ]


def topic_of(client: Client) -> str:
    return f"of-{client.name}"


def reader_of(client: Client) -> Client:
    """The client itself, unless it cannot read."""
    return client if client.consumes else table()["java-0.9.0.1"]


def read_in_group(
    client: Client, brokers: Brokers, topic: str, count: int, read: dict[Place, str]
) -> None:
    """Read this many records from the committed offsets on, into `read`."""
    words = RETRIES if client.name in REPEATED_BY_APPLICATION else ()
    records = consume_in_group(
        client, brokers.bootstrap, topic, topic, count, *words, timeout=CLIENT_SECONDS
    )
    for one in records:
        assert one.value is not None
        assert one.offset is not None
        place = one.partition, one.offset
        assert read.setdefault(place, one.value.decode()) == one.value.decode()


def check_log(client: Client, run: ClientRun) -> None:
    """Check that the log has each record.

    Of an idempotent producer it has each once, in order, and at the acknowledged offset.
    """
    values = [(one.partition, (one.value or b"").decode()) for one in run.sent]
    stored = [(place[0], run.log[place]) for place in sorted(run.log)]
    assert set(stored) == set(values)
    if client.name not in IDEMPOTENT:
        return
    assert stored == sorted(values, key=lambda value: value[0])
    if client.tells_offsets:
        found = [
            run.log[partition, offset] for partition, offset in run.answers if offset is not None
        ]
        assert found == [value for _, value in values]
