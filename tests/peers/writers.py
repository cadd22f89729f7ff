"""Clients that write to a gateway while something happens to it or to its store, and what they were told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetCommitResponse

from tests.peers.chaos.evidence import Log
from tests.peers.chaos.servers import RestartableGateway
from tests.peers.gateway import Peer, encode_request, one_record, produce_request
from tests.peers.verifiable import TOPIC

#: Clients that write to a gateway at the same time, and so the least that is under way at any moment.
WRITERS = 4
#: For an answer, and for everything that is under way to be answered.
WAIT_SECONDS = 240.0
#: So many that each client has been answered many times.
ANSWERS = 200
#: Requests that wait in the sockets of a gateway that stands still.
QUEUED = 50
GROUP = "readers"


class Writers:
    """Clients that send one record after the other to one gateway, and what they were told: `name WRITER NUMBER` by its offset, and codes of refusals."""

    def __init__(self, gateway: RestartableGateway, name: str) -> None:
        self._gateway = gateway
        self._name = name
        self._change = threading.Condition()
        self._is_over = False
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(WRITERS)
        ]
        self.stored: dict[int, str] = {}
        self.codes: set[int] = set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self, writer: int) -> None:
        try:
            with self._gateway.peer(seconds=WAIT_SECONDS) as peer:
                number = 0
                while not self._is_over:
                    value = f"{self._name} {writer} {number}"
                    number += 1
                    self._told(peer.produce(TOPIC, one_record(value.encode())), value)
        except (OSError, AssertionError):
            # Hung up on: whoever has lost the topics ends.
            return

    def _told(self, answer: Any, value: str) -> None:
        with self._change:
            if answer.error_code:
                self.codes.add(answer.error_code)
            else:
                self.stored[answer.base_offset] = value
            self._change.notify_all()
        if answer.error_code:
            # As clients do before they try again.
            time.sleep(0.1)

    def wait_for_answers(self, count: int = ANSWERS, seconds: float = WAIT_SECONDS) -> None:
        with self._change:
            goal = len(self.stored) + count
            assert self._change.wait_for(lambda: len(self.stored) >= goal, seconds), (
                f"{self._name}: {len(self.stored)}, {self.codes}\n{self._gateway.log()}"
            )

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive(), "a client was left without an answer"


class IdempotentProducer:
    """One of today's, idempotent, which is only told of failures that are for good."""

    def __init__(self, gateway: RestartableGateway) -> None:
        settings = {
            "bootstrap.servers": gateway.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 600_000,
        }
        self._producer = confluent_kafka.Producer({**settings, "log_level": 0})
        self._is_over = threading.Event()
        self.stored: dict[int, str] = {}
        self.failures: list[str] = []
        self.sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            self._producer.produce(
                TOPIC, f"application-{self.sent}".encode(), on_delivery=self._told
            )
            self.sent += 1
            self._producer.poll(0)

    def _told(self, failure: Any, message: Any) -> None:
        if failure is None:
            self.stored[message.offset()] = message.value().decode()
        else:
            self.failures.append(str(failure))

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(WAIT_SECONDS) == 0


@contextmanager
def paused_with_queue(gateway: RestartableGateway, name: str) -> Iterator[Peer]:
    """It stands still within, with requests to write and to commit offset 6 waiting in its sockets. Who commits is given."""
    with gateway.peer() as writer, gateway.peer() as committer:
        gateway.pause()
        writer.send(
            *(
                encode_request(
                    produce_request(TOPIC, one_record(b"%s queued %d" % (name.encode(), number))),
                    7,
                    number,
                )
                for number in range(QUEUED)
            )
        )
        committer.send(encode_request(commit_request(6), 2))
        yield committer


def commit_request(offset: int) -> Any:
    row = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, commit_timestamp=-1, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=[row])
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=[topic],
    )


def commit(peer: Peer, offset: int) -> None:
    assert commit_error_code(peer, offset) == 0


def commit_error_code(peer: Peer, offset: int) -> int:
    """The code that a commit is answered with."""
    code: int = (
        peer.request(commit_request(offset), OffsetCommitResponse, 2)
        .topics[0]
        .partitions[0]
        .error_code
    )
    return code


def assert_written_in_turn(log: Log, first: Writers, second: Writers) -> None:
    """The partition was written by one gateway and then by another: every acknowledged record is where it was said to be, and nothing of the first came after the second's first."""
    assert {offset for _, offset in log.values} == set(range(log.ends[0]))
    for writers in (first, second):
        assert [
            one for one in writers.stored.items() if log.values.get((0, one[0])) != one[1]
        ] == []
    of_first = [offset for (_, offset), value in log.values.items() if value.startswith("first ")]
    of_second = [offset for (_, offset), value in log.values.items() if value.startswith("second ")]
    assert max(of_first) < min(of_second)
    assert len(set(log.values.values())) == len(log.values), "something is there twice"
