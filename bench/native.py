"""A minimal native Pulsar application: the cost of the same load without a gateway.

- `python -m bench.native produce URL TOPIC COUNT SIZE PENDING` sends COUNT messages, with at most
  PENDING in flight.
- `python -m bench.native read URL TOPIC COUNT PREFETCHED` reads messages; the reader prefetches
  PREFETCHED.
- `python -m bench.native pace URL TOPIC SIZE RATE WARM_UP_SECONDS SECONDS` sends at a steady pace,
  in batches like those of Kafka's producers.

The last line printed has MiB/s and the CPU seconds of this process; `pace` prints p50 and p99 in ms
before them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar

MIB = 1 << 20
LINGER_MS = 5
BATCH_BYTES = 16384
READ_MS = 60_000


class Acknowledgements:
    """Waits for `count` acknowledgements and keeps the last failure."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._is_over = threading.Event()
        self.failure: Any = None

    def one(self, result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            self.failure = result
        self._left -= 1
        if not self._left:
            self._is_over.set()

    def wait(self) -> None:
        self._is_over.wait()
        if self.failure is not None:
            raise RuntimeError(f"not all messages were stored: {self.failure}")


def produce(client: pulsar.Client, topic: str, count: int, size: int, pending: int) -> str:
    producer = client.create_producer(
        topic,
        max_pending_messages=pending,
        max_pending_messages_across_partitions=pending,
        block_if_queue_full=True,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    payload = os.urandom(size)

    def send() -> None:
        told = Acknowledgements(count)
        for _ in range(count):
            producer.send_async(payload, told.one)
        told.wait()

    return _measured(send, count * size)


def read(client: pulsar.Client, topic: str, count: int, prefetched: int) -> str:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=prefetched)
    size = 0

    def read_all() -> None:
        nonlocal size
        for _ in range(count):
            size += len(reader.read_next(READ_MS).data())

    seconds, cpu = _taken(read_all)
    return f"{size / MIB / seconds} {cpu}"


def pace(
    client: pulsar.Client, topic: str, size: int, rate: int, warm_up_seconds: int, seconds: int
) -> str:
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=LINGER_MS,
        batching_max_allowed_size_in_bytes=BATCH_BYTES,
        # As Kafka's producer, it waits if the broker has not answered for half a second.
        block_if_queue_full=True,
    )
    payload = os.urandom(size)
    _send_at(producer, payload, rate, rate * warm_up_seconds)
    taken: list[float] = []
    line = _measured(
        lambda: taken.extend(_send_at(producer, payload, rate, rate * seconds)),
        rate * seconds * size,
    )
    taken.sort()
    return f"{taken[len(taken) // 2] * 1000} {taken[len(taken) * 99 // 100] * 1000} {line}"


def _send_at(producer: pulsar.Producer, payload: bytes, rate: int, count: int) -> list[float]:
    told = Acknowledgements(count)
    taken: list[float] = []

    def send() -> None:
        began = time.monotonic()

        def acknowledged(result: Any, message_id: Any) -> None:
            taken.append(time.monotonic() - began)
            told.one(result, message_id)

        producer.send_async(payload, acknowledged)

    start = time.monotonic()
    for number in range(count):
        if (wait := start + number / rate - time.monotonic()) > 0:
            time.sleep(wait)
        send()
    told.wait()
    return taken


def _measured(call: Callable[[], object], size: int) -> str:
    seconds, cpu = _taken(call)
    return f"{size / MIB / seconds} {cpu}"


def _taken(call: Callable[[], object]) -> tuple[float, float]:
    """Elapsed seconds, and CPU seconds of all threads."""
    began, before = time.monotonic(), time.process_time()
    call()
    return time.monotonic() - began, time.process_time() - before


def main() -> None:
    what, url, topic, *numbers = sys.argv[1:]
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    call: Callable[..., str] = {"produce": produce, "read": read, "pace": pace}[what]
    print(call(client, topic, *map(int, numbers)), flush=True)
    # Skip closing the library's connections one by one; it is not part of the measurement.
    os._exit(0)


if __name__ == "__main__":
    main()
