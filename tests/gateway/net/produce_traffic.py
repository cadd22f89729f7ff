"""What happens to a connection of a producer: bytes arrive, and the store or the clock moves."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from struct import pack, pack_into

from crc32c import crc32c
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.producer.produce import ProduceRequest

from tests.fakes.connection import request, versions
from tests.records.record_sets import batch, old_set

Topic = ProduceRequest.TopicProduceData
SentPartition = Topic.PartitionProduceData

#: Topics with their configs, in the order of their creation. "absent" does not exist.
TOPICS: dict[str, dict[str, str]] = {
    "orders": {},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "compacted": {"cleanup_policy": "compact"},
    "small": {"max_message_bytes": "100"},
}
NAMES = (*TOPICS, "absent", "__consumer_offsets")
#: The store holds, completes, refuses and accepts writes; it refuses and accepts to open logs, and
#: fences one; the topic "orders" is created again; time passes; the client id "me" gets a quota,
#: and loses it.
EVENTS = (
    *("hold", "release", "release", "refuse", "accept", "accept", "create again", "wait"),
    *("refuse logs", "accept logs", "fence", "limit", "unlimit"),
)

#: An event: the bytes of one read, or one of EVENTS.
Event = bytes | str


def record_set(random: Random) -> bytes | None:
    """Mostly valid batches, of a few producers with few sequences, so that some are repeated."""
    kind = random.choice(["batch"] * 8 + ["mutated", "old", "transactional", "none"])
    if kind == "none":
        return random.choice([None, b""])
    if kind == "old":
        return bytes(old_set(2, magic=random.choice([0, 1])))
    producer = random.choice(
        [(-1, -1, -1), (random.choice([7, 8]), random.choice([0, 0, 1]), random.randrange(5))]
    )
    records = bytearray(
        batch(
            random.randint(1, 3),
            producer=producer,
            codec=random.choice([0, 0, 3, 4]),
            timestamp=random.choice([1_600_000_000_000, -1]),
            is_transactional=kind == "transactional",
        )
    )
    if kind == "mutated":
        records[random.randrange(len(records))] ^= random.randint(1, 255)
        if random.random() < 0.5:
            pack_into(">I", records, 17, crc32c(bytes(records[21:])))
    return bytes(records)


def header_of(random: Random) -> tuple[int, str | None]:
    """A version of Produce and a client id."""
    return random.choice([*range(14), *range(3, 14)]), random.choice(["me", "you", None])


def sent_to(name: str, version: int, partitions: Iterable[tuple[int, bytes | None]]) -> Topic:
    return Topic(
        version=version,
        name=name if version < 13 else None,
        topic_id=None if version < 13 else uuid.UUID(int=NAMES.index(name) + 1),
        partition_data=[SentPartition(index=index, records=sent) for index, sent in partitions],
    )


def produce(random: Random, header: tuple[int, str | None]) -> bytes:
    version, client_id = header
    topics = [
        sent_to(
            name,
            version,
            [
                (random.choice([0, 0, 0, 1, 1, 2]), record_set(random))
                for _ in range(random.choice([1, 1, 2]))
            ],
        )
        for name in random.choices(NAMES[:4] * 3 + NAMES, k=random.choice([1, 1, 2]))
    ]
    asked = ProduceRequest(
        version=version,
        transactional_id=random.choice([None] * 9 + ["tx"]) if version >= 3 else None,
        acks=random.choice([-1] * 8 + [1] * 4 + [0, 2]),
        timeout_ms=random.choice([1000, 1000, 0]),
        topic_data=topics,
    )
    return request(asked, correlation_id=random.randrange(1 << 31), client_id=client_id)


def plain_produce(
    random: Random, header: tuple[int, str | None], sequences: dict[int, int]
) -> bytes:
    """A request that compiled code serves, if the topic is open.

    `sequences` has the next sequence of each producer.
    """
    version, client_id = header
    count, producer_id = random.randint(1, 3), random.choice([-1, -1, 7, 8])
    producer = (-1, -1, -1)
    if producer_id >= 0:
        producer = producer_id, 0, sequences.get(producer_id, 0)
        sequences[producer_id] = producer[2] + count
    # A producer has sequences for each partition.
    index = producer_id - 7 if producer_id >= 0 else random.randrange(2)
    name = random.choice(["orders", "orders", "orders", "stamped"])
    asked = ProduceRequest(
        version=version,
        transactional_id=None,
        acks=random.choice([-1, -1, -1, 1, 0]),
        timeout_ms=random.choice([1000, 1000, 0]),
        topic_data=[sent_to(name, version, [(index, bytes(batch(count, producer=producer)))])],
    )
    return request(asked, correlation_id=random.randrange(1 << 31), client_id=client_id)


def fetch(random: Random, client_id: str | None) -> bytes:
    """A request for a partition, without a session."""
    version, name = random.choice([4, 11, 12, 13]), random.choice(NAMES)
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(
        version=version,
        partition=random.choice([0, 0, 1]),
        fetch_offset=random.choice([0, 0, 3]),
        partition_max_bytes=1000,
    )
    asked = FetchRequest(
        version=version,
        max_wait_ms=random.choice([0, 500, 500]),
        min_bytes=random.choice([1, 1 << 20]),
        max_bytes=5000,
        topics=[
            topic(
                version=version,
                topic=name if version < 13 else None,
                topic_id=None if version < 13 else uuid.UUID(int=NAMES.index(name) + 1),
                partitions=[partition],
            )
        ],
    )
    return request(asked, correlation_id=random.randrange(1 << 31), client_id=client_id)


def damaged(random: Random, framed: bytes) -> bytes:
    """A frame, with its length, in which one thing is wrong."""
    changed = bytearray(framed)
    match random.choice(["length", "byte", "byte of the header", "size"]):
        case "length":
            size = random.choice([len(framed) - 4 + random.randint(-40, 40), -1, 0, 1, 1 << 30])
            pack_into(">i", changed, 0, size)
        case "byte":
            changed[random.randrange(len(changed))] ^= random.randint(1, 255)
        case "byte of the header":
            changed[random.randrange(min(40, len(changed)))] ^= random.choice([1, 2, 8, 128, 255])
        case "size":
            # The length is right, but bytes are missing or left over.
            body = framed[4:]
            position = random.randrange(len(body))
            body = random.choice([body[:position], body + body[:position], b""])
            return pack(">i", len(body)) + body
    return bytes(changed)


def cut(random: Random, stream: bytes, starts: list[int]) -> list[bytes]:
    """The stream in pieces, which end anywhere, or in the first bytes of a frame.

    `starts` are the positions of the frames.
    """
    ends = {
        random.choice(
            [random.randrange(len(stream) + 1), random.choice(starts) + random.randrange(20)]
        )
        for _ in range(random.randint(1, 4))
    }
    positions = [0, *sorted(end for end in ends if 0 < end < len(stream)), len(stream)]
    return [stream[a:b] for a, b in pairwise(positions)]


def some_events(random: Random) -> list[Event]:
    """What happens to a connection.

    Most frames have the header of the frame before them. In half of the cases most requests are
    plain, in half of them the reads end anywhere, in a third of them some frames are damaged.
    """
    header = header_of(random)
    are_plain, are_cut = random.random() < 0.5, random.random() < 0.5
    are_damaged = random.random() < 0.3
    sequences: dict[int, int] = {}
    events: list[Event] = []
    rest = b""

    def next_frame() -> bytes:
        nonlocal header
        if random.random() < (0.05 if are_plain else 0.2):
            header = header_of(random)
        kind = random.random()
        if kind < 0.08:
            frame = fetch(random, header[1])
        elif kind < 0.1:
            frame = versions(random.choice([0, 3]), random.randrange(1 << 31))
        elif are_plain and kind < 0.95 and header[0] >= 3:
            frame = plain_produce(random, header, sequences)
        else:
            frame = produce(random, header)
        framed = pack(">i", len(frame)) + frame
        return damaged(random, framed) if are_damaged and random.random() < 0.15 else framed

    for _ in range(8):
        if random.random() < 0.3:
            events.append(random.choice(EVENTS))
            continue
        frames = [next_frame() for _ in range(random.randint(1, 4))]
        starts = [sum(map(len, frames[:number])) + len(rest) for number in range(len(frames))]
        stream = rest + b"".join(frames)
        if not are_cut:
            events.append(stream)
            continue
        *pieces, rest = cut(random, stream, starts)
        events += pieces
        if random.random() < 0.5:
            events.append(rest)
            rest = b""
    return [*events, rest] if rest and random.random() < 0.8 else events
