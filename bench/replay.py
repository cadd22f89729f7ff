"""What Kafka's own clients send at full speed, byte for byte the same each time: so that what two runs of a server take can be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from bench.clients import ClientFailed
from gateway.partitions.record_batch import check_batch
from tests.peers.gateway import MIB, Peer, fetching, framed

PRODUCE_VERSION, FETCH_VERSION = 8, 11
"""The newest with one layout for all of what they have."""
MAX_IN_FLIGHT = 5
"""Produce requests of a connection that wait for their replies, as in Kafka's producer."""
SECONDS = 30.0
"""A server that takes longer for a request hangs."""


def connected(bootstrap: str) -> Peer:
    host, _, port = bootstrap.rpartition(":")
    return Peer((host, int(port)), seconds=SECONDS)


def produce_frame(topic: str, partitions: int, records: bytes) -> bytes:
    """One batch for each partition."""
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
    return framed(request, PRODUCE_VERSION)


def produce(peer: Peer, frame: bytes, requests: int) -> None:
    """So many of them. Raises ClientFailed where one is refused."""
    for number in range(requests + MAX_IN_FLIGHT):
        if number >= MAX_IN_FLIGHT:
            reply = ProduceResponse.decode(_read_reply(peer)[4:], version=PRODUCE_VERSION)
            codes = {
                row.error_code for topic in reply.responses for row in topic.partition_responses
            }
            if codes != {0}:
                raise ClientFailed(f"records were refused: {codes}")
        if number < requests:
            peer.sends(frame)


def fetch_frames(topic: str, records: bytes, batches: int) -> Iterator[bytes]:
    """Requests that read a partition of so many equal batches from its beginning to its end, as much as Kafka's consumer asks of a partition at a time."""
    count = check_batch(memoryview(records), PRODUCE_VERSION).count
    for first in range(0, batches, MIB // len(records)):
        yield framed(
            fetching(topic, first * count, FETCH_VERSION, max_wait_ms=500, max_bytes=MIB),
            FETCH_VERSION,
        )


def fetch(peer: Peer, frames: Sequence[bytes]) -> int:
    """One after the other; the bytes that came."""
    size = 0
    for frame in frames:
        peer.sends(frame)
        size += len(_read_reply(peer))
    return size


def _read_reply(peer: Peer) -> bytes:
    frame = peer.hears()
    if frame is None:
        raise ClientFailed("the server hung up")
    return frame
