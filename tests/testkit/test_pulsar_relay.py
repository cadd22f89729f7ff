"""The relays in front of Pulsar forward everything except what they are set to drop."""

from __future__ import annotations

import time

import pulsar as client_library
import pytest

from tests.testkit.pulsar_relay import SEND, SEND_RECEIPT, PulsarRelays
from tests.testkit.tenant import rest

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def between(pulsar):
    with PulsarRelays(pulsar.settings()) as relays:
        yield relays


@pytest.fixture
def topic(between):
    settings = between.settings
    status, _ = rest(
        "PUT",
        f"{settings.admin_url}/admin/v2/persistent/{settings.tenant}/{settings.namespace}/orders/partitions",
        1,
    )
    assert status == 204
    return f"persistent://{settings.tenant}/{settings.namespace}/orders-partition-0"


@pytest.fixture
def client(between):
    quiet = client_library.ConsoleLogger(client_library.LoggerLevel.Error)
    connected = client_library.Client(between.settings.service_url, logger=quiet)
    yield connected
    connected.close()


def impatient_producer(client, topic):
    """A producer with a short send timeout."""
    return client.create_producer(topic, send_timeout_millis=500)


def stored(client, topic):
    reader = client.create_reader(topic, client_library.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    reader.close()
    return found


@pytest.mark.peer
def test_request_lost_on_the_way_to_the_broker_is_not_stored(between, topic, client):
    producer = client.create_producer(topic)
    producer.send(b"before")
    with between.dropping(SEND):
        with pytest.raises(client_library.Timeout):
            impatient_producer(client, topic).send(b"lost")
        assert stored(client, topic) == [b"before"]
    producer.send(b"after")
    assert stored(client, topic) == [b"before", b"after"]


@pytest.mark.peer
def test_message_with_a_lost_receipt_is_stored(between, topic, client):
    producer = impatient_producer(client, topic)
    with between.dropping(SEND_RECEIPT):
        with pytest.raises(client_library.Timeout):
            producer.send(b"unknown")
        # The broker may be slower than the producer's timeout.
        end = time.monotonic() + 60
        while not (found := stored(client, topic)) and time.monotonic() < end:
            time.sleep(0.05)
    assert found == [b"unknown"]


@pytest.mark.peer
def test_client_does_not_bypass_the_relay(between, topic, client):
    producer = impatient_producer(client, topic)
    between.broker.close()
    with pytest.raises(client_library.Timeout):
        producer.send(b"nowhere to go")


@pytest.mark.peer
def test_admin_api_is_read_only_while_losing(between, topic):
    settings = between.settings
    api = f"{settings.admin_url}/admin/v2/persistent/{settings.tenant}/{settings.namespace}"
    with between.dropping():
        assert len(rest("GET", f"{api}/partitioned")[1]) == 1
        with pytest.raises(OSError):
            rest("PUT", f"{api}/bills/partitions", 1)
    assert len(rest("GET", f"{api}/partitioned")[1]) == 1


@pytest.mark.peer
def test_cut_relay_keeps_connections_open_and_serves_new_ones_afterwards(between, topic, client):
    producer = impatient_producer(client, topic)
    with between.cut():
        with pytest.raises(client_library.Timeout):
            producer.send(b"dropped")
        assert producer.is_connected()
    with pytest.raises(client_library.Timeout):
        producer.send(b"on a connection that never works again")
    fresh = client_library.Client(
        between.settings.service_url,
        logger=client_library.ConsoleLogger(client_library.LoggerLevel.Error),
    )
    fresh.create_producer(topic).send(b"new")
    assert stored(fresh, topic) == [b"new"]
    fresh.close()


@pytest.mark.peer
def test_relay_knows_the_producers_that_its_clients_opened(between, topic, client, pulsar):
    name = client.create_producer(topic).producer_name()
    other = client_library.Client(
        pulsar.service_url, logger=client_library.ConsoleLogger(client_library.LoggerLevel.Error)
    )
    name_of_other = other.create_producer(topic).producer_name()
    other.close()
    assert between.broker.has_opened(name)
    assert not between.broker.has_opened(name_of_other)
    assert not between.broker.has_opened(name[:-1])
