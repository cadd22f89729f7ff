"""Producers and consumers of every age on one topic at the same time.

The consumers start first; each sees all records in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.cases import create_topics
from tests.legacy_clients.clients import Client, Record, Span, consume, produce

pytestmark = [pytest.mark.peer]

# Record formats 0, 1 and 2, in codecs that all of the consumers support.
PRODUCERS = (
    ("kafka-python-1.0.2", "snappy"),
    ("java-0.10.2.2", "gzip"),
    ("franz-go-1.22.2", "gzip"),
)
CONSUMERS = ("java-0.9.0.1", "kafka-python-1.3.5", "confluent-2.16.1", "java-4.4.0")
EACH = 200
TOPIC = "together"


@pytest.fixture(scope="module")
def logs(broker: RunningBroker, client: Callable[[str], Client]) -> dict[str, list[Record]]:
    """What each consumer read, having started before the producers."""
    producers = [(client(name), codec) for name, codec in PRODUCERS]
    consumers = [client(name) for name in CONSUMERS]
    create_topics(broker.bootstrap, [TOPIC], 1)
    span = [Span(TOPIC, 0, 0, EACH * len(producers))]
    with ThreadPoolExecutor(len(producers) + len(consumers)) as pool:
        reading = {one.name: pool.submit(consume, one, broker.bootstrap, span) for one in consumers}
        writing = [
            pool.submit(produce, one, broker.bootstrap, sent_by(one), codec=codec, batch_bytes=1024)
            for one, codec in producers
        ]
        for outcome in writing:
            outcome.result()
        return {name: outcome.result() for name, outcome in reading.items()}


def sent_by(client: Client) -> list[Record]:
    return [Record(TOPIC, 0, client.name.encode(), b"%d" % number) for number in range(EACH)]


def test_consumers_see_the_same_records_at_the_same_offsets(
    logs: dict[str, list[Record]],
) -> None:
    told = {name: [(one.offset, one.key, one.value) for one in log] for name, log in logs.items()}
    first = told[CONSUMERS[0]]
    assert [offset for offset, _, _ in first] == list(range(EACH * len(PRODUCERS)))
    assert {name for name, log in told.items() if log != first} == set()


def test_records_of_each_producer_are_complete_and_in_order(logs: dict[str, list[Record]]) -> None:
    log = logs[CONSUMERS[0]]
    by_producer = {
        name: [int(one.value or b"-1") for one in log if one.key == name.encode()]
        for name, _ in PRODUCERS
    }
    assert by_producer == {name: list(range(EACH)) for name, _ in PRODUCERS}
