"""Kafka's VerifiableProducer and VerifiableConsumer while the gateway is killed repeatedly.

Each prints as JSON what the broker answered. It is compared with the stored records, and with the
committed offsets after the restart, before any client has reconnected.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse

from tests.legacy_clients.brokers import are_required
from tests.testkit.cache import CannotInstall
from tests.testkit.gateway import GatewayProcess, gateway
from tests.testkit.kafka import free_ports
from tests.testkit.verifiable import (
    GROUP,
    TOPIC,
    ToolProcess,
    VerifiableConsumer,
    VerifiableProducer,
)

pytestmark = [pytest.mark.peer]

#: KafkaProducer's errors for a send while another thread closes it.
CLOSING = re.compile("producer has been closed|Producer closed while send in progress")

PARTITIONS = 4
#: Acknowledgements that each producer must get before the next kill.
ANSWERS = 300
#: Limit of every wait; a JVM on a busy machine starts in seconds.
SECONDS = 180.0
#: Longer than all restarts: no member may have to rejoin.
PATIENT_MS = 60_000
#: Kafka's minimum. A member that left just before a kill may be in the group again, and the others
#: wait this long for it.
IMPATIENT_MS = 6_000

RELIABLE = {"enable.idempotence": "true", "retries": "2147483647", "delivery.timeout.ms": "600000"}
"""Replaces the tool's own settings, which have no retries and therefore no idempotence."""


class Scene:
    """A gateway that restarts at the same address and store, two producers, and the members of one
    group.
    """

    def __init__(self, folder: Path, stack: ExitStack, session_ms: int) -> None:
        self.bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
        self._folder = folder
        self._stack = stack
        self._session_ms = session_ms
        self._gateway: Any = None
        self.gateway: GatewayProcess | None = None
        self.producers: list[VerifiableProducer] = []
        self.consumers: list[VerifiableConsumer] = []
        self.read: dict[tuple[int, int], str] = {}
        self.committed: dict[int, int] = {}
        self._last_committed: dict[int, int] = {}

    def start(self) -> None:
        arguments = ("--listener", f"PLAINTEXT://{self.bootstrap}")
        self._gateway = gateway(
            self._folder,
            *arguments,
            listeners=(),
            num_partitions=PARTITIONS,
            group_initial_rebalance_delay_ms=500,
        )
        self.gateway = self._gateway.__enter__()

    def kill(self) -> None:
        if self._gateway is not None:
            self._gateway.__exit__(None, None, None)
            self._gateway = None

    def produce(self, config: Mapping[str, str]) -> VerifiableProducer:
        producer = VerifiableProducer(self._folder, self.bootstrap, len(self.producers), config)
        self._stack.callback(producer.close)
        self.producers.append(producer)
        return producer

    def join(self) -> VerifiableConsumer:
        number = len(list(self._folder.glob("consumer-*.jsonl")))
        consumer = VerifiableConsumer(
            self._folder, self.bootstrap, number, self._session_ms, self.read, self.committed
        )
        self._stack.callback(consumer.close)
        self.consumers.append(consumer)
        return consumer

    def leave(self, consumer: VerifiableConsumer) -> None:
        self.consumers.remove(consumer)
        consumer.finish()

    def tools(self) -> Sequence[ToolProcess]:
        return [*self.producers, *self.consumers]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SECONDS
        while True:
            for tool in self.tools():
                tool.receive()
            if is_so():
                return
            ended = [tool for tool in self.tools() if tool.process.poll() is not None]
            assert not ended, "\n".join(tool.errors() for tool in ended)
            assert time.monotonic() < end, f"not within {SECONDS:.0f} s: {what}\n{self.log()}"
            time.sleep(0.02)

    def wait_for_progress(self) -> None:
        """Wait until every producer has ANSWERS more acknowledgements and every member another
        commit.
        """
        answers = {id(one): len(one.stored) + ANSWERS for one in self.producers}
        commits = {id(one): one.commits for one in self.consumers}
        self.wait_until(
            lambda: all(len(one.stored) >= answers[id(one)] for one in self.producers),
            "every producer's records are stored",
        )
        self.wait_until(
            lambda: all(one.commits > commits[id(one)] for one in self.consumers),
            "every member commits",
        )

    def kill_and_restart(self) -> None:
        """Kill and restart the gateway.

        The clients are suspended meanwhile, so the committed offsets are those stored at the kill.
        """
        assert " error " not in self.log()
        self.kill()
        for tool in self.tools():
            tool.set_paused(True)
        self.start()
        for tool in self.tools():
            tool.receive()
        self.check_committed_offsets()
        for tool in self.tools():
            tool.set_paused(False)

    def check_committed_offsets(self) -> None:
        """Committed offsets are not below acknowledged commits or earlier offsets, nor above the
        records read.
        """
        stands = self.stands()
        for partition, offset in stands.items():
            assert offset >= self.committed.get(partition, 0), (
                f"partition {partition}: a commit is lost"
            )
            assert offset >= self._last_committed.get(partition, 0), (
                f"partition {partition}: the group went back"
            )
            assert not offset or (partition, offset - 1) in self.read, (
                f"partition {partition}: a commit that no member made"
            )
        self._last_committed = stands

    def stands(self) -> dict[int, int]:
        """Committed offsets by partition, 0 without a commit."""
        assert self.gateway is not None
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(
            name=TOPIC, partition_indexes=list(range(PARTITIONS))
        )
        with self.gateway.peer() as peer:
            reply = peer.request(
                OffsetFetchRequest(group_id=GROUP, topics=[topic], require_stable=True),
                OffsetFetchResponse,
                7,
            )
        rows = reply.topics[0].partitions
        assert [row.error_code for row in rows] == [0] * PARTITIONS
        return {row.partition_index: max(row.committed_offset, 0) for row in rows}

    def log(self) -> str:
        return "" if self.gateway is None else "\n".join(self.gateway.lines()[-60:])


@contextmanager
def scene(folder: Path, session_ms: int) -> Iterator[Scene]:
    """A scene with two producers, one with the tool's settings and one idempotent, and two members,
    all running.
    """
    with ExitStack() as stack:
        made = Scene(folder, stack, session_ms)
        made.start()
        stack.callback(made.kill)
        assert made.gateway is not None
        with made.gateway.peer() as peer:
            peer.create_topic(TOPIC)
        try:
            for config in ({}, RELIABLE):
                made.produce(config)
        except CannotInstall as missing:
            (pytest.fail if are_required() else pytest.skip)(str(missing))
        for _ in range(2):
            made.join()
        shared = [2, 2]
        made.wait_until(
            lambda: [len(one.assigned[-1]) for one in made.consumers if one.assigned] == shared,
            "the members share the topic",
        )
        made.wait_for_progress()
        yield made


def end_and_check(here: Scene) -> None:
    """End all clients and check what they reported against the stored records."""
    producers, here.producers = here.producers, []
    for producer in producers:
        producer.finish()
    stored = read_all(here)
    here.wait_until(lambda: here.read.keys() >= stored.keys(), "the group reads everything")
    here.wait_until(
        lambda: sum(here.committed.values()) == len(stored), "the group commits everything"
    )
    while here.consumers:
        here.leave(here.consumers[0])
    here.check_committed_offsets()
    assert here.read == stored
    assert here.stands() == Counter(partition for partition, _ in stored)
    times = Counter(stored.values())
    for producer in producers:
        lost = [one for one in producer.stored if stored.get(one[:2]) != one[2]]
        assert not lost, f"{producer.name}: acknowledged and not there: {lost[:3]}"
        assert len(producer.stored) + len(producer.failed) == producer.sent
    # The producer without retries sends nothing twice either.
    assert [value for value, count in times.items() if count > 1] == []
    # At its end the tool closes the producer in one thread while another may still be sending.
    failed = [one for one in producers[-1].failed if not CLOSING.search(one)]
    assert (failed, len(producers[-1].failed) <= 1) == ([], True), (
        "the idempotent producer retries until it is answered"
    )
    assert " error " not in here.log()


def read_all(here: Scene) -> dict[tuple[int, int], str]:
    """Read every record of the topic with another client; check that offsets have no gaps."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=here.bootstrap, check_crcs=True, fetch_max_wait_ms=100
    )
    partitions = [kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    found: dict[tuple[int, int], str] = {}
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        polled = consumer.poll(timeout_ms=60_000)
        assert polled, f"no records although the end is not reached\n{here.log()}"
        found |= {
            (record.partition, record.offset): record.value.decode()
            for records in polled.values()
            for record in records
        }
    consumer.close()
    assert found.keys() == {
        (partition.partition, offset)
        for partition in partitions
        for offset in range(ends[partition])
    }
    return found


def test_kills_lose_no_record_or_commit_and_cause_no_rebalance(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    never = threading.Event()
    with scene(tmp_path, PATIENT_MS) as here:
        assigned = [one.assigned[:] for one in here.consumers]
        for _ in range(2):
            never.wait(chance.uniform(0, 0.3))
            here.kill_and_restart()
            here.wait_for_progress()
        assert [one.assigned for one in here.consumers] == assigned, "a member had to rejoin"
        end_and_check(here)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [21])
def test_twenty_kills_lose_no_record_or_commit_while_members_join_and_leave(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(int(os.environ.get("TESTS_CRASH_SEED", seed)))
    never = threading.Event()
    with scene(tmp_path, IMPATIENT_MS) as here:
        for number in range(20):
            if number % 4 == 1:
                here.join()
            elif number % 4 == 3:
                here.leave(chance.choice(here.consumers))
            # A new member's JVM starts in about a second: these kills fall before, during and after
            # the rebalance.
            never.wait(chance.uniform(0, 3) if number % 4 == 1 else chance.uniform(0, 0.3))
            here.kill_and_restart()
            here.wait_for_progress()
        end_and_check(here)
