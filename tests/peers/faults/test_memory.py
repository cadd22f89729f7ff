"""Memory used by large messages is returned after the load ends, with real clients."""

from __future__ import annotations

import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.testkit.gateway import MIB, gateway

pytestmark = [pytest.mark.peer]

CLIENTS = 5
RECORDS = 8
SIZES = [1 * MIB, 2 * MIB, 5 * MIB, 10 * MIB, 20 * MIB, 30 * MIB]
LARGEST = 64 * MIB

#: Allowed above the memory before the load: interpreter, threads and what the allocator cannot
#: return. The requests served total about 400 MiB.
ALLOWED_GROWTH = 160 * MIB
RETURNED_WITHIN_SECONDS = 120.0


def memory_within(server, bound):
    """Return the gateway's private memory in bytes once it is within `bound`, or after the time
    limit.
    """
    end = time.monotonic() + RETURNED_WITHIN_SECONDS
    while (size := server.memory()) > bound and time.monotonic() < end:
        time.sleep(0.5)
    return size


def produce(address, partition):
    chance = random.Random(partition)
    block = chance.randbytes(max(SIZES))
    producer = Producer(
        {"bootstrap.servers": address, "message.max.bytes": LARGEST, "linger.ms": 0}
    )
    failed = []
    for number in range(RECORDS):
        size = chance.choice(SIZES)
        producer.produce(
            "large",
            block[:size],
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        if number % 4 == 3:
            producer.flush()
    return producer.flush(), failed


def fetch(address, partition):
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"of-{partition}",
            "message.max.bytes": LARGEST,
            "fetch.message.max.bytes": LARGEST,
            "fetch.max.bytes": LARGEST,
            "receive.message.max.bytes": 2 * LARGEST,
        }
    )
    consumer.assign([TopicPartition("large", partition, 0)])
    found = 0
    while found < RECORDS:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        found += 1
    consumer.close()
    return found


def test_memory_of_large_messages_is_returned(tmp_path):
    """With librdkafka. An idle gateway does not run the garbage collector, so requests must not
    form cycles.
    """
    limits = {
        "message_max_bytes": LARGEST,
        "lmdb_resident_bytes": MIB,
        "conversion_cache_bytes": MIB,
    }
    with gateway(tmp_path, by_fork=False, **limits) as server:
        address = "{}:{}".format(*server.address)
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("large", CLIENTS, 1)])["large"].result()
        bound = server.memory() + ALLOWED_GROWTH
        with ThreadPoolExecutor(CLIENTS) as clients:
            produced = list(clients.map(produce, [address] * CLIENTS, range(CLIENTS)))
            assert produced == [(0, [])] * CLIENTS
            assert memory_within(server, bound) <= bound
            assert (
                list(clients.map(fetch, [address] * CLIENTS, range(CLIENTS))) == [RECORDS] * CLIENTS
            )
        assert memory_within(server, bound) <= bound


def test_memory_of_partial_frames_of_closed_connections_is_returned(tmp_path):
    with gateway(tmp_path, by_fork=False) as server:
        server.peer().reset()
        bound = server.memory() + ALLOWED_GROWTH
        begun = struct.pack(">i", 21 * MIB) + bytes(20 * MIB)
        for _ in range(24):
            with socket.create_connection(server.address) as peer:
                peer.sendall(begun)
        assert memory_within(server, bound) <= bound
