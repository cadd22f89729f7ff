"""Clients that run while gateways fail: an idempotent producer, groups of old and new clients."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from tests.peers.chaos.client_processes import GROUPS, ChaosMember, GroupLibrary
from tests.peers.chaos.evidence import Commits, Observations, ProducerRecords, complaints
from tests.peers.chaos.observers import query_offsets, read_whole_log
from tests.peers.chaos.servers import GatewayDied
from tests.peers.cluster.gateways import Gateways, batch_epochs
from tests.testkit.gateway import MIB, Peer
from tests.testkit.verifiable import TOPIC

PARTITIONS = 12
#: Seconds between two rounds of the producer, which sends one record to each partition.
ROUND_SECONDS = 0.05
#: Seconds within which each client must make progress after a failure, on a busy machine.
RECOVER_SECONDS = 300.0
ANSWERS = 3 * PARTITIONS
#: Seconds between two queries of the committed offsets.
PAUSE_SECONDS = 0.3
#: Seconds to wait for the reason of a fatal error of the producer.
REPORT_SECONDS = 1.0
#: While the coordinator moves, librdkafka 1.0 passes the errors of commits on to the application.
NOT_RETRIED = ("NOT_COORDINATOR_FOR_GROUP", "_NODE_UPDATE")

_PROGRAMS = Path(__file__).parent.parent / "groups" / "members"


def _program(name: str) -> Callable[[], Sequence[str]]:
    return lambda: [sys.executable, str(_PROGRAMS / name)]


#: Java 0.9.0.1 and librdkafka 1.0, as in `tests/peers/chaos`, and two current libraries, one of
#: them with the protocol of KIP-848.
LIBRARIES = (
    *GROUPS[:2],
    GroupLibrary("kafka-python", _program("kafka_python_member.py")),
    GroupLibrary("confluent", _program("confluent_member.py"), {"group.protocol": "consumer"}),
)


@dataclass(slots=True)
class SteadyProducer:
    """An idempotent producer in a thread."""

    bootstrap: str
    sightings: Observations
    round_seconds: float = ROUND_SECONDS
    sent: ProducerRecords = field(
        default_factory=lambda: ProducerRecords("producer", "p", is_idempotent=True)
    )
    errors: list[str] = field(default_factory=list)
    _gaps: dict[int, float] = field(default_factory=dict)
    _last: dict[int, float] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _reported: deque[str] = field(default_factory=lambda: deque(maxlen=10))
    _thread: threading.Thread | None = None
    unanswered: int = 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._is_over.set()
        assert self._thread
        self._thread.join()

    def longest_gap(self) -> float:
        """Longest pause of a partition's acknowledgements since the last call, in seconds."""
        gaps, self._gaps = self._gaps, {}
        return max(gaps.values(), default=0.0)

    def state(self) -> str:
        """What is known about it, for an error message."""
        assert self._thread
        now = time.monotonic()
        silent = {number: round(now - last, 1) for number, last in sorted(self._last.items())}
        return (
            f"the producer is {'alive' if self._thread.is_alive() else 'dead'}, seconds since the "
            f"last acknowledgement: {silent}; failures: {self.errors[-5:]}; "
            f"reported: {list(self._reported)}"
        )

    def has_failed(self) -> bool:
        """Whether it has ended before `finish` or `stop`, with a fatal error."""
        assert self._thread
        return not self._thread.is_alive() and not self._is_over.is_set()

    def stop(self) -> None:
        """Stop sending. Does not wait for acknowledgements."""
        self._is_over.set()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": int(RECOVER_SECONDS * 1000),
                "log_level": 0,
                "error_cb": lambda error: self._reported.append(str(error)),
            }
        )
        number = 0
        while not self._is_over.wait(self.round_seconds):
            for partition in range(PARTITIONS):
                number += 1
                try:
                    producer.produce(
                        TOPIC,
                        f"p.{number}".encode(),
                        partition=partition,
                        on_delivery=self._answered,
                    )
                except KafkaException:
                    # A fatal error. Its reason is only passed to `error_cb`.
                    producer.poll(REPORT_SECONDS)
                    raise
            producer.poll(0)
        self.unanswered = producer.flush(RECOVER_SECONDS)

    def _answered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        now, partition = time.monotonic(), message.partition()
        gap = now - self._last.get(partition, now)
        self._gaps[partition] = max(self._gaps.get(partition, 0.0), gap)
        self._last[partition] = now
        place, value = (partition, message.offset()), message.value().decode()
        self.sent.stored.append((place, value))
        self.sightings.note("producer", place, value)


class GroupClient(ChaosMember):
    """A member that keeps its errors in `failed`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.failed: list[str] = []

    def handle(self, event: Any) -> None:
        super().handle(event)
        if "failed" in event:
            self.failed.append(str(event["failed"]))

    def unexpected(self, allowed: Sequence[str]) -> list[str]:
        """The errors that contain none of the words in `allowed`."""
        return [one for one in self.failed if not any(code in one for code in allowed)]


class ClusterLoad:
    """The producer, the groups, and a thread that reads their committed offsets."""

    def __init__(
        self,
        folder: Path,
        gateways: Gateways,
        libraries: Sequence[GroupLibrary] = LIBRARIES,
        round_seconds: float = ROUND_SECONDS,
    ) -> None:
        self._folder = folder
        self._gateways = gateways
        self._libraries = libraries
        self.sightings = Observations()
        self.producer = SteadyProducer(gateways.bootstrap, self.sightings, round_seconds)
        self.commits = {library.name: Commits(library.name) for library in libraries}
        self.members: list[GroupClient] = []
        self._is_over = threading.Event()
        self._observer = threading.Thread(target=self._observe, daemon=True)
        self._stack = ExitStack()
        self.queries = 0

    def start(self) -> None:
        create_topic(self._gateways.bootstrap, TOPIC, PARTITIONS)
        self.producer.start()
        for library in self._libraries:
            member = GroupClient(
                self._folder,
                self._gateways.bootstrap,
                library,
                0,
                self.sightings,
                self.commits[library.name],
            )
            self._stack.callback(member.close)
            self.members.append(member)
        self._observer.start()
        self.wait_for_progress()

    def __enter__(self) -> ClusterLoad:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.producer.stop()
        self._stack.close()

    def wait_for_progress(self) -> float:
        """Wait until each partition has new records, and each group has committed them.

        Returns the seconds that this took.
        """
        began = time.monotonic()
        before = len(self.producer.sent.stored)

        def has_all(_: object = None) -> bool:
            new = self.producer.sent.stored[before:]
            return len({place[0] for place, _ in new}) == PARTITIONS and len(new) >= ANSWERS

        self._wait(has_all, lambda: "acknowledgements of each partition")
        ends = self._ends()
        self._wait(
            lambda: self._have_read(ends), lambda: f"groups read to {ends}: {self._positions()}"
        )
        return time.monotonic() - began

    def finish(self, allowed: Sequence[str] = NOT_RETRIED) -> list[str]:
        """Stop all clients, and return the violations. Members may report the errors `allowed`."""
        self.producer.finish()
        ends = self._ends()
        self._wait(
            lambda: self._have_read(ends), lambda: f"groups read to {ends}: {self._positions()}"
        )
        for member in self.members:
            member.finish()
        self._is_over.set()
        self._observer.join()
        log = read_whole_log(self._gateways.bootstrap, PARTITIONS)
        found = complaints(log, [self.producer.sent], self.sightings, self.commits.values())
        found += [f"producer: {error}" for error in self.producer.errors[:3]]
        if self.producer.unanswered:
            found.append(f"producer: {self.producer.unanswered} records without an answer")
        found += [
            f"{member.name}: {error}"
            for member in self.members
            for error in member.unexpected(allowed)[:3]
        ]
        return [*found, *falling_epochs(self._gateways, TOPIC), *self._gateways.unexpected_errors()]

    def _ends(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        for (partition, offset), _ in list(self.producer.sent.stored):
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        return ends

    def _positions(self) -> dict[str, Any]:
        return {name: dict(one.minimums()) for name, one in self.commits.items()}

    def _have_read(self, ends: dict[int, int]) -> bool:
        return all(
            one.minimums().get(partition, 0) >= end
            for one in self.commits.values()
            for partition, end in ends.items()
        )

    def _wait(self, is_so: Callable[[], bool], what: Callable[[], str]) -> None:
        end = time.monotonic() + RECOVER_SECONDS
        while True:
            for member in self.members:
                member.receive()
                if member.process.poll() is not None:
                    raise GatewayDied(f"the client exited: {member.errors()}")
            if is_so():
                return
            if time.monotonic() > end or self.producer.has_failed():
                words = [self.producer.state(), *(member.errors() for member in self.members)]
                raise GatewayDied("\n".join([f"no {what()}", *words, self._gateways.log()]))
            time.sleep(0.02)

    def _observe(self) -> None:
        """Check that the committed offsets of each group never decrease."""
        addresses = cycle(self._gateways.bootstrap.split(","))
        while not self._is_over.wait(PAUSE_SECONDS):
            for name, commits in self.commits.items():
                promised = commits.minimums()
                try:
                    answer = query_offsets(next(addresses), name, PARTITIONS)
                except OSError:
                    # A gateway is failing; the next answer is checked.
                    continue
                if answer is not None:
                    commits.check(answer, promised)
                    self.queries += 1


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    end = time.monotonic() + RECOVER_SECONDS
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, -1)])[topic].result(RECOVER_SECONDS)
            return
        except KafkaException as failure:
            # The topic exists if the answer to an earlier attempt was lost.
            if failure.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            # librdkafka does not retry after an error of the store, on a busy machine.
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def falling_epochs(gateways: Gateways, topic: str) -> list[str]:
    """Describe batches whose leader epoch is lower than that of the batch before."""
    found = []
    for index, leader in gateways.wait_until_led(topic).items():
        with gateways.nodes[leader].peer() as peer:
            last = -1
            for base, epoch in stored_epochs(peer, topic, index):
                if epoch < last:
                    found.append(f"partition {index}: epoch {epoch} at {base} after {last}")
                last = epoch
    return found


def stored_epochs(peer: Peer, topic: str, index: int) -> Iterator[tuple[int, int]]:
    """Last offset and leader epoch of each batch of a partition."""
    offset = 0
    while True:
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=MIB
        )
        rows = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
        asked = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=rows)
        found = peer.request(asked, FetchResponse, 4).responses[0].partitions[0]
        assert found.error_code == 0
        batches = list(batch_epochs(bytes(found.records or b"")))
        if not batches:
            return
        yield from batches
        offset = batches[-1][0] + 1
