"""The gateway is killed repeatedly under load: no acknowledged record is lost, and no record of an
idempotent producer is duplicated.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest

from tests.testkit.forks.prepared_gateway import start_gateway
from tests.testkit.kafka import free_ports

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

TOPIC = "load"
PARTITIONS = 3
START_SECONDS = 480.0
RECOVER_SECONDS = 240.0
DRAIN_SECONDS = 180.0
#: Limit of unacknowledged records per producer; together they always keep the gateway busy.
UNANSWERED = 400
#: Acknowledgements per producer before the next signal.
ANSWERS = 300

Stored = tuple[int, int, bytes]
"""Partition, offset, value."""


class Gateway:
    """One gateway process at a time, always on the same port and store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
        self._process: subprocess.Popen[str] | None = None
        self._log = (folder / "gateway.log").open("a")

    def start(self) -> None:
        listener, store = f"PLAINTEXT://{self.bootstrap}", f"lmdb:{self._folder / 'store'}"
        argv = [
            "serve",
            "--listener",
            listener,
            "--store",
            store,
            "--set",
            f"num_partitions={PARTITIONS}",
        ]
        self._process = process = start_gateway(argv, self._log)
        assert process.stdout
        overdue = threading.Timer(START_SECONDS, process.kill)
        overdue.start()
        line = process.stdout.readline()
        overdue.cancel()
        assert re.match(r"ready listeners=", line), f"{line!r}\n{self.log()}"

    def send_signal(self, signal_number: signal.Signals) -> int:
        """Send the process a signal and return its exit code."""
        assert self._process
        self._process.send_signal(signal_number)
        return self._process.wait(DRAIN_SECONDS)

    def close(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process and self._process.stdout:
            self._process.stdout.close()
        self._log.close()

    def log(self) -> str:
        return (self._folder / "gateway.log").read_text(errors="replace")


@dataclass
class Load:
    """A producer, the thread that sends, and the results.

    `client` sends one value and reports the result to `acknowledged` or `failed`.
    """

    name: str
    client: Any
    is_idempotent: bool
    sent: int = 0
    stored: list[Stored] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._change = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=self.name)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._change:
                while (
                    not self._is_over
                    and self.sent - len(self.stored) - len(self.failures) >= UNANSWERED
                ):
                    self._change.wait(0.1)
                if self._is_over:
                    return
                value = b"%s %d" % (self.name.encode(), self.sent) + b"." * (self.sent % 700)
                self.sent += 1
            self.client.send(value, self)

    def acknowledged(self, partition: int, offset: int, value: bytes) -> None:
        with self._change:
            self.stored.append((partition, offset, value))
            self._change.notify_all()

    def failed(self, reason: str) -> None:
        with self._change:
            self.failures.append(reason)
            self._change.notify_all()

    def wait_for_answers(self, count: int) -> None:
        """Wait until `count` more records are acknowledged."""
        with self._change:
            goal = len(self.stored) + count
            came = self._change.wait_for(
                lambda: len(self.stored) >= goal or self.failures, RECOVER_SECONDS
            )
            assert came, (
                f"{self.name}: fewer than {count} acknowledgements within {RECOVER_SECONDS:.0f} s"
            )

    def stop(self) -> None:
        """Stop sending and wait until all records are acknowledged or failed."""
        self._is_over = True
        self._thread.join()
        self.client.finish()


class KafkaPython:
    def __init__(self, bootstrap: str, *, is_idempotent: bool) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=is_idempotent,
            linger_ms=2,
            retry_backoff_ms=50,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            request_timeout_ms=10_000,
            # A start may take longer than the producer's buffer lasts.
            max_block_ms=300_000,
            delivery_timeout_ms=300_000,
        )

    def send(self, value: bytes, load: Load) -> None:
        sending = self._producer.send(TOPIC, value)
        sending.add_callback(lambda where: load.acknowledged(where.partition, where.offset, value))
        sending.add_errback(lambda failure: load.failed(repr(failure)))

    def finish(self) -> None:
        self._producer.flush(RECOVER_SECONDS)
        self._producer.close()


class Confluent:
    def __init__(self, bootstrap: str, *, is_idempotent: bool) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": is_idempotent,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 50,
                "retry.backoff.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def send(self, value: bytes, load: Load) -> None:
        def report(failure: Any, message: Any) -> None:
            if failure is None:
                load.acknowledged(message.partition(), message.offset(), value)
            else:
                load.failed(str(failure))

        self._producer.produce(TOPIC, value, on_delivery=report)
        # Delivery reports are only processed by poll().
        while self._producer.poll(0) or len(self._producer) >= UNANSWERED:
            self._producer.poll(0.05)

    def finish(self) -> None:
        self._producer.flush(RECOVER_SECONDS)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path)
    gateway.start()
    yield gateway
    gateway.close()


def create_loads(bootstrap: str) -> list[Load]:
    return [
        Load("plain", KafkaPython(bootstrap, is_idempotent=False), is_idempotent=False),
        Load("python", KafkaPython(bootstrap, is_idempotent=True), is_idempotent=True),
        Load("librdkafka", Confluent(bootstrap, is_idempotent=True), is_idempotent=True),
        Load("librdkafka-2", Confluent(bootstrap, is_idempotent=True), is_idempotent=True),
    ]


def read_all(gateway: Gateway) -> list[Stored]:
    """Every record of the topic; the consumer checks the CRCs."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=gateway.bootstrap, check_crcs=True, fetch_max_wait_ms=100
    )
    partitions = [kafka.TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    found: list[Stored] = []
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        polled = consumer.poll(timeout_ms=RECOVER_SECONDS * 1000)
        assert polled, f"no records before the log end offset\n{gateway.log()}"
        found += [
            (record.partition, record.offset, record.value)
            for records in polled.values()
            for record in records
        ]
    consumer.close()
    return found


def check(loads: list[Load], found: list[Stored]) -> None:
    for partition in range(PARTITIONS):
        offsets = [offset for where, offset, _ in found if where == partition]
        assert offsets == list(range(len(offsets))), "offsets are not continuous"
    there = {(partition, offset): value for partition, offset, value in found}
    times = Counter(value for _, _, value in found)
    for load in loads:
        assert not load.failures, f"{load.name}: {load.failures[:3]}"
        assert len(load.stored) == load.sent
        lost = [one for one in load.stored if there.get(one[:2]) != one[2]]
        assert not lost, f"{load.name}: acknowledged and lost: {lost[:3]}"
        if load.is_idempotent:
            mine = [value for _, _, value in load.stored]
            assert all(times[value] == 1 for value in mine), f"{load.name}: duplicates"


def run_with_restarts(
    gateway: Gateway, rounds: int, signal_number: signal.Signals, expected_code: int, seed: int
) -> None:
    chance = random.Random(seed)
    loads = create_loads(gateway.bootstrap)
    never = threading.Event()
    try:
        for load in loads:
            load.start()
        for _ in range(rounds):
            for load in loads:
                load.wait_for_answers(ANSWERS)
            never.wait(chance.uniform(0, 0.4))
            assert gateway.send_signal(signal_number) == expected_code, gateway.log()
            gateway.start()
        for load in loads:
            load.wait_for_answers(ANSWERS)
    finally:
        for load in loads:
            load.stop()
    check(loads, read_all(gateway))
    assert " error " not in gateway.log()


def test_kills_lose_and_duplicate_nothing(gateway: Gateway) -> None:
    run_with_restarts(gateway, 2, signal.SIGKILL, -signal.SIGKILL, seed=3)


def test_shutdowns_under_load_succeed_and_lose_nothing(gateway: Gateway) -> None:
    run_with_restarts(gateway, 2, signal.SIGTERM, 0, seed=5)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", [11, 12])
def test_twelve_kills_lose_and_duplicate_nothing(gateway: Gateway, seed: int) -> None:
    run_with_restarts(
        gateway,
        12,
        signal.SIGKILL,
        -signal.SIGKILL,
        seed=int(os.environ.get("TESTS_CRASH_SEED", seed)),
    )
