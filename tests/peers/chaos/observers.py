"""Observers that run during the faults (a tail reader and an OffsetFetch loop), and a reader of the
whole log.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import cycle

import kafka
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

from tests.peers.chaos.evidence import Commits, Log, Observations
from tests.testkit.gateway import Peer
from tests.testkit.verifiable import TOPIC

#: Between two OffsetFetch requests.
PACE_SECONDS = 0.3
#: The newest version that the oldest members use as well.
OFFSET_FETCH_VERSION = 7
#: Timeout of a reader that receives nothing before the log end offset.
READ_MS = 240_000
END_OFFSETS_MS, END_OFFSET_ATTEMPTS = 10_000, 24
#: Timeout of a request while servers are killed and paused; the next request is answered.
REQUEST_MS = 10_000
#: Timeout of a connection during faults; the next attempt is answered.
ASK_SECONDS = 5.0


class Observer:
    """Two threads that survive every outage. `bootstrap` has the addresses of all gateways."""

    def __init__(
        self,
        bootstrap: str,
        partitions: int,
        sightings: Observations,
        commits: Sequence[Commits],
    ) -> None:
        self._bootstrap = bootstrap
        self._addresses = cycle(bootstrap.split(","))
        self._partitions = partitions
        self._sightings = sightings
        self._commits = commits
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._tail, self._poll_offsets)
        ]
        self.failure: BaseException | None = None
        self.queries = 0

    def __enter__(self) -> Observer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _tail(self) -> None:
        places = dict.fromkeys(partitions_of(self._partitions), 0)
        try:
            while not self._is_over.is_set():
                try:
                    self._tail_from(places)
                except KafkaError as failure:
                    # A failed metadata refresh is raised by kafka-python's poll() and constructor.
                    # The consumer cannot be used afterwards.
                    if not failure.retriable:
                        raise
        except BaseException as failure:
            self.failure = failure

    def _tail_from(self, places: dict[kafka.TopicPartition, int]) -> None:
        """Read from these offsets on until a failure or the end of the run."""
        with closing(reader(self._bootstrap, REQUEST_MS)) as consumer:
            consumer.assign([*places])
            for place, offset in places.items():
                consumer.seek(place, offset)
            while not self._is_over.is_set():
                for place, records in consumer.poll(timeout_ms=200).items():
                    for record in records:
                        self._sightings.note(
                            "the reader at the tail",
                            (record.partition, record.offset),
                            record.value.decode(),
                        )
                        places[place] = record.offset + 1

    def _poll_offsets(self) -> None:
        try:
            while not self._is_over.wait(PACE_SECONDS):
                self._query_offsets()
        except BaseException as failure:
            self.failure = failure

    def _query_offsets(self) -> None:
        address = next(self._addresses)
        for group in self._commits:
            promised = group.minimums()
            try:
                answer = query_offsets(address, group.group, self._partitions)
            except OSError:
                # A fault is active; retry in the next round.
                return
            if answer is not None:
                group.check(answer, promised)
                self.queries += 1


def query_offsets(address: str, group: str, partitions: int) -> Mapping[int, int] | None:
    """`committed_offsets` of the group's coordinator, as named by the gateway at this address."""
    with _connect(address) as peer:
        asked = FindCoordinatorRequest(key=group, key_type=0)
        try:
            found = peer.request(asked, FindCoordinatorResponse, 1)
        except AssertionError:
            return None
    if found.error_code:
        return None
    with _connect(f"{found.host}:{found.port}") as peer:
        return committed_offsets(peer, group, partitions)


def _connect(address: str) -> Peer:
    host, _, port = address.rpartition(":")
    return Peer((host, int(port)), seconds=ASK_SECONDS)


def committed_offsets(peer: Peer, group: str, partitions: int) -> Mapping[int, int] | None:
    """Committed offsets of a group by partition, or None if the broker returns an error. Raises
    OSError.
    """
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(
        name=TOPIC, partition_indexes=list(range(partitions))
    )
    try:
        reply = peer.request(
            OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True),
            OffsetFetchResponse,
            OFFSET_FETCH_VERSION,
        )
    except AssertionError:
        return None
    rows = [row for topic in reply.topics for row in topic.partitions]
    if reply.error_code or any(row.error_code for row in rows):
        return None
    return {row.partition_index: max(row.committed_offset, 0) for row in rows}


def reader(bootstrap: str, request_ms: int = READ_MS) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        check_crcs=True,
        fetch_max_wait_ms=100,
        enable_auto_commit=False,
        # Fail if an offset no longer exists, instead of silently skipping records.
        auto_offset_reset="none",
        request_timeout_ms=request_ms,
        # kafka-python's minimum.
        bootstrap_timeout_ms=max(request_ms, 30_000),
        reconnect_backoff_max_ms=500,
    )


def partitions_of(count: int) -> list[kafka.TopicPartition]:
    return [kafka.TopicPartition(TOPIC, number) for number in range(count)]


def end_offsets(bootstrap: str, partitions: int) -> dict[kafka.TopicPartition, int]:
    """The log end offsets of the topic.

    After NOT_LEADER_OR_FOLLOWER, kafka-python 3.0 sends ListOffsets to the same broker until its
    timeout, without new metadata. So another consumer tries again.
    """
    for _ in range(END_OFFSET_ATTEMPTS):
        with closing(reader(bootstrap)) as consumer, suppress(KafkaTimeoutError):
            return consumer.end_offsets(partitions_of(partitions), timeout_ms=END_OFFSETS_MS)
    raise KafkaError("no log end offsets")


def read_whole_log(bootstrap: str, partitions: int) -> Log:
    """Every record of the topic."""
    found: dict[tuple[int, int], str] = {}
    ends = end_offsets(bootstrap, partitions)
    with closing(reader(bootstrap)) as consumer:
        consumer.assign(places := partitions_of(partitions))
        consumer.seek_to_beginning(*places)
        while any(consumer.position(place) < ends[place] for place in places):
            polled = consumer.poll(timeout_ms=READ_MS)
            if not polled:
                raise KafkaError("no records before the log end offset")
            found |= {
                (one.partition, one.offset): one.value.decode()
                for records in polled.values()
                for one in records
            }
    return Log(found, {place.partition: end for place, end in ends.items()})
