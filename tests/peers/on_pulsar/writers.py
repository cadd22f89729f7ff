"""Clients that write to a gateway while a fault occurs, and the acknowledgements they received."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetCommitResponse
from kafka.protocol.producer.produce import ProduceResponse

from gateway.protocol.errors import ErrorCode
from tests.peers.chaos.evidence import Log
from tests.peers.chaos.observers import committed_offsets
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
    """A current idempotent producer, which only reports failures that are final.

    If a request times out in the client and a later one succeeds, librdkafka takes the records of
    the first as stored too (`rd_kafka_dr_implicit_ack`), at an unknown offset: `stored_anywhere`.
    """

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
        self.stored_anywhere: list[str] = []
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
        if failure is not None:
            self.failures.append(str(failure))
        elif message.offset() is None:
            self.stored_anywhere.append(message.value().decode())
        else:
            self.stored[message.offset()] = message.value().decode()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(WAIT_SECONDS) == 0

    def assert_all_stored_once(self, log: Mapping[int, Any]) -> None:
        """Every record was acknowledged and is in `log`, once."""
        assert self.failures == []
        assert {offset: log.get(offset) for offset in self.stored} == self.stored
        sent = [f"application-{number}" for number in range(self.sent)]
        assert sorted([*self.stored.values(), *self.stored_anywhere]) == sorted(sent)
        found = [value for value in log.values() if value.startswith("application-")]
        assert sorted(found) == sorted(sent)


@contextmanager
def paused_with_queue(gateway: RestartableGateway, name: str) -> Iterator[tuple[Peer, Peer]]:
    """Suspend the gateway while produce requests and a commit of offset 6 wait in its sockets.

    Yields the connections that sent them. The gateway is not resumed.
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
        yield writer, committer


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
    peer.send(encode_request(commit_request(offset), 2))
    return received_commit_error_code(peer)


def received_commit_error_code(peer: Peer) -> int:
    """The error code of an offset commit that has been sent."""
    frame = peer.receive()
    assert frame is not None, "the connection was closed"
    code: int = OffsetCommitResponse.decode(frame[4:], version=2).topics[0].partitions[0].error_code
    return code


def commit_once_coordinated(gateway: RestartableGateway, offset: int) -> None:
    """Commit as soon as the gateway coordinates the group."""
    end = time.monotonic() + WAIT_SECONDS
    with gateway.peer() as peer:
        while (code := commit_error_code(peer, offset)) != 0:
            assert code == ErrorCode.NOT_COORDINATOR
            assert time.monotonic() < end, gateway.log()
            time.sleep(0.1)


def assert_queue_not_stale(
    writer: Peer, committer: Peer, last: Writers, *gateways: RestartableGateway
) -> None:
    """The requests of `paused_with_queue` are refused, or executed after what `last` has stored.

    The latter is possible if the resumed gateway becomes the leader again. Offset 9 was committed
    while it was suspended.
    """
    for _ in range(QUEUED):
        frame = writer.receive()
        assert frame is not None, "the connection was closed"
        (topic,) = ProduceResponse.decode(frame[4:], version=7).responses
        (answer,) = topic.partition_responses
        if answer.error_code == 0:
            assert answer.base_offset > max(last.stored)
        else:
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    code = received_commit_error_code(committer)
    assert code in (0, ErrorCode.NOT_COORDINATOR)
    assert committed_offset(gateways) == (9 if code else 6)


def committed_offset(gateways: Sequence[RestartableGateway]) -> int:
    """The group's offset of partition 0, from the gateway that coordinates it."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        for gateway in gateways:
            with gateway.peer() as peer:
                found = committed_offsets(peer, GROUP, 1)
            if found is not None:
                return found[0]
    raise AssertionError("no gateway coordinates the group")


def assert_written_once(log: Log, *all_writers: Writers) -> None:
    """Every acknowledged record is at its offset, and none was written twice."""
    assert {offset for _, offset in log.values} == set(range(log.ends[0]))
    for writers in all_writers:
        assert {offset: log.values.get((0, offset)) for offset in writers.stored} == writers.stored
    assert len(set(log.values.values())) == len(log.values), "duplicate values"
