"""Requests like those of Kafka's clients at full speed, with the same bytes in every run.

With identical requests, small differences in a server's CPU time can be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from bench.clients import ClientFailed
from gateway.partitions.record_batch import check_batch
from tests.testkit.gateway import MIB, Peer, encode_request, fetch_request

PRODUCE_VERSION, FETCH_VERSION = 8, 11
"""The newest versions whose layout is the same for all fields used here."""
MAX_IN_FLIGHT = 5
"""Produce requests in flight per connection, as in Kafka's producer."""
SECONDS = 30.0
"""Time limit for a reply."""


def connected(bootstrap: str) -> Peer:
    host, _, port = bootstrap.rpartition(":")
    return Peer((host, int(port)), seconds=SECONDS)


def produce_frame(topic: str, partitions: int, records: bytes) -> bytes:
    """A Produce request with the batch `records` for each partition."""
    data = ProduceRequest.TopicProduceData
    rows = [data.PartitionProduceData(index=index, records=records) for index in range(partitions)]
    topics = [data(name=topic, partition_data=rows)]
    request = ProduceRequest(
        version=PRODUCE_VERSION,
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=topics,
    )
    return encode_request(request, PRODUCE_VERSION)


def produce(peer: Peer, frame: bytes, requests: int) -> None:
    """Send the frame `requests` times. Raises ClientFailed if a request is refused."""
    for number in range(requests + MAX_IN_FLIGHT):
        if number >= MAX_IN_FLIGHT:
            reply = ProduceResponse.decode(_read_reply(peer)[4:], version=PRODUCE_VERSION)
            codes = {
                row.error_code for topic in reply.responses for row in topic.partition_responses
            }
            if codes != {0}:
                raise ClientFailed(f"records were refused: {codes}")
        if number < requests:
            peer.send(frame)


def fetch_frames(topic: str, records: bytes, batches: int) -> Iterator[bytes]:
    """Fetch requests that read `batches` equal batches of a partition, 1 MiB per request."""
    count = check_batch(memoryview(records), PRODUCE_VERSION).count
    for first in range(0, batches, MIB // len(records)):
        yield encode_request(
            fetch_request(topic, first * count, FETCH_VERSION, max_wait_ms=500, max_bytes=MIB),
            FETCH_VERSION,
        )


def fetch(peer: Peer, frames: Sequence[bytes]) -> int:
    """Send the requests one after the other. Returns the number of bytes received."""
    size = 0
    for frame in frames:
        peer.send(frame)
        size += len(_read_reply(peer))
    return size


def _read_reply(peer: Peer) -> bytes:
    frame = peer.receive()
    if frame is None:
        raise ClientFailed("the server closed the connection")
    return frame
