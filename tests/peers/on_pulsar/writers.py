"""Clients that write to a gateway while a fault occurs, and the acknowledgements they received."""

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
from tests.testkit.gateway import Peer, encode_request, one_record, produce_request
from tests.testkit.verifiable import TOPIC

#: Clients that write to a gateway concurrently, and thus the least number of requests in flight.
WRITERS = 4
#: Limit for a reply, and for all in-flight requests to be answered.
WAIT_SECONDS = 240.0
#: Enough for each client to receive many replies.
ANSWERS = 200
#: Requests that wait in the sockets of a suspended gateway.
QUEUED = 50
GROUP = "readers"


class Writers:
    """Clients that send one record after the other to one gateway.

    `stored` maps acknowledged offsets to values (`NAME WRITER NUMBER`); `codes` are the error codes
    received.
    """

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
            # The gateway closed the connection: it has lost the topics and is exiting.
            return

    def _told(self, answer: Any, value: str) -> None:
        with self._change:
            if answer.error_code:
                self.codes.add(answer.error_code)
            else:
                self.stored[answer.base_offset] = value
            self._change.notify_all()
        if answer.error_code:
            # Clients wait before they retry.
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
            assert not thread.is_alive(), "a client received no reply"


class IdempotentProducer:
    """A current idempotent producer, which only reports failures that are final."""

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
    """Suspend the gateway while produce requests and a commit of offset 6 wait in its sockets.

    Yields the connection that sent the commit. The gateway is not resumed.
    """
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
    """The error code of an offset commit."""
    code: int = (
        peer.request(commit_request(offset), OffsetCommitResponse, 2)
        .topics[0]
        .partitions[0]
        .error_code
    )
    return code


def assert_written_in_turn(log: Log, first: Writers, second: Writers) -> None:
    """Check a partition that was written by one gateway and then by another.

    Every acknowledged record is at its offset, and no record of `first` follows the first one of
    `second`.
    """
    assert {offset for _, offset in log.values} == set(range(log.ends[0]))
    for writers in (first, second):
        assert [
            one for one in writers.stored.items() if log.values.get((0, one[0])) != one[1]
        ] == []
    of_first = [offset for (_, offset), value in log.values.items() if value.startswith("first ")]
    of_second = [offset for (_, offset), value in log.values.items() if value.startswith("second ")]
    assert max(of_first) < min(of_second)
    assert len(set(log.values.values())) == len(log.values), "duplicate values"
