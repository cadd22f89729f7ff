"""Every producer, with every codec it has, to topics that nobody created; read back by two of today's consumers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.legacy_clients.brokers import Broker
from tests.legacy_clients.cases import NEAR_MS, PLAIN_HEADERS, create_where_old_clients_need_it, difference, records, seen, sendable
from tests.legacy_clients.clients import Client, Record, Span, consume, produce, table

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

PRODUCERS = tuple(row.name for row in table().values() if row.produces)
READERS = ("kafka-python-3.0.12", "java-3.9.2")


@pytest.mark.parametrize("name", PRODUCERS)
def test_what_a_producer_sent_is_read_back_whole(name: str, broker: Broker, client: Callable[[str], Client]) -> None:
    producer = client(name)
    topics = {f"all-{name}-{codec}": codec for codec in producer.codecs}
    sent = {topic: sendable(producer, codec, records(topic, 0, 7, PLAIN_HEADERS)) for topic, codec in topics.items()}
    create_where_old_clients_need_it(broker, list(sent))
    for topic, given in sent.items():
        answers = produce(producer, broker.bootstrap, given, codec=topics[topic], batch_bytes=2048)
        offsets = list(range(len(given))) if producer.tells_offsets else [None] * len(given)
        assert [answer.offset for answer in answers] == offsets, topic
    spans = [Span(topic, 0, 0, len(given)) for topic, given in sent.items()]
    for reader in map(client, READERS):
        got = consume(reader, broker.bootstrap, spans)
        wrong = {topic: found for topic, given in sent.items() if (found := mistakes(given, got, topic, producer, reader))}
        assert wrong == {}, reader


def mistakes(given: list[Record], got: list[Record], topic: str, producer: Client, reader: Client) -> str:
    expected = [seen(replace(one, offset=offset), producer, reader) for offset, one in enumerate(given)]
    have = [one for one in got if one.topic == topic]
    if producer.writes and not producer.sets_timestamps:
        now = time.time() * 1000
        if any(one.timestamp is None or abs(one.timestamp - now) > NEAR_MS for one in have):
            return "a timestamp that is not the producer's clock"
        have = [replace(one, timestamp=None) for one in have]
    return difference(expected, have)
