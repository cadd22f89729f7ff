"""The codec of Fetch. The reply is a list of buffers, so that no record is copied.

Versions: 3 adds max_bytes, 4 the isolation level, 5 log start offsets, 7 sessions (KIP-227), 9
leader epochs, 11 the rack; 12 is flexible; 13 identifies topics by id, 15 moves the replica id into
a tagged field, 17 and 18 add tagged fields of replicas, which are skipped. The reply has tagged
fields with a diverging epoch and the current leader (12), and the leaders' addresses (16).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from struct import Struct
from typing import Any, Self

import msgspec

from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire import compiled
from gateway.protocol.wire.leader_fields import (
    CURRENT_LEADER_SIZE,
    CurrentLeader,
    NodeEndpoint,
    current_leader_field,
    node_endpoints_tags,
)
from gateway.protocol.wire.primitives import (
    INT32,
    MAX_ELEMENTS,
    read_count,
    read_nullable_string,
    skip_tags,
    write_string,
    write_uvarint,
)
from storage.log import Buffer

FIRST_FLEXIBLE = 12
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_ENDPOINTS = 16

_MAX_BYTES_DEFAULT = 0x7FFFFFFF
_REPLICA_WAIT_MIN = Struct(">iii")
_WAIT_MIN = Struct(">ii")
_SESSION = Struct(">ii")
_PARTITION = {
    # version: index, [current leader epoch], fetch offset, [last fetched epoch], [log start
    # offset], max bytes
    0: Struct(">iqi"),
    5: Struct(">iqqi"),
    9: Struct(">iiqqi"),
    12: Struct(">iiqiqi"),
}


class FetchPartition(msgspec.Struct, frozen=True, gc=False):
    """The position of a consumer in a partition.

    `current_leader_epoch` and `last_fetched_epoch` are -1 if the consumer does not know them.
    """

    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


class FetchTopic(msgspec.Struct, frozen=True, gc=False):
    """`topic` is a name, or from version 13 a topic id of 16 bytes."""

    topic: str | bytes
    partitions: Sequence[FetchPartition]


class FetchRequest(msgspec.Struct, frozen=True, gc=False):
    """`forgotten` lists partitions to remove from the session.

    `session_epoch` -1 is for no session, 0 creates one.
    """

    version: int
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[FetchTopic]
    forgotten: Sequence[tuple[str | bytes, Sequence[int]]]
    rack_id: str = ""


class PartitionFetched(msgspec.Struct, frozen=True, gc=False):
    """`records` are whole batches or messages, one buffer each; a compiled `Entry` is one, too.

    `aborted` is None for read_uncommitted, as in Kafka.
    """

    index: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Buffer] = ()
    aborted: Sequence[tuple[int, int]] | None = None
    diverging: tuple[int, int] | None = None
    current_leader: CurrentLeader | None = None


class FetchResponse(msgspec.Struct, frozen=True, gc=False):
    """One row per topic.

    `error_code` applies to the whole request, for example an unknown session. `node_endpoints` are
    the addresses of the rows' current leaders. Awaiting it returns it at once.
    """

    topics: Sequence[tuple[str | bytes, Sequence[PartitionFetched]]]
    error_code: int = ErrorCode.NONE
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


def read_fetch(frame: bytearray, position: int, version: int) -> FetchRequest:
    """Read the request whose body begins at `position`.

    Raises ValueError, IndexError or struct.error if it is malformed.
    """
    plain: FetchRequest | None = compiled.fetch_request(
        frame, position, version, FetchRequest, FetchTopic, FetchPartition
    )
    if plain is not None:
        return plain
    compact = version >= FIRST_FLEXIBLE
    replica_id = -1
    if version < 15:
        replica_id, max_wait_ms, min_bytes = _REPLICA_WAIT_MIN.unpack_from(frame, position)
        position += 12
    else:
        max_wait_ms, min_bytes = _WAIT_MIN.unpack_from(frame, position)
        position += 8
    max_bytes, isolation_level, session_id, session_epoch = _MAX_BYTES_DEFAULT, 0, 0, -1
    if version >= 3:
        (max_bytes,) = INT32.unpack_from(frame, position)
        position += 4
    if version >= 4:
        isolation_level = frame[position]
        position += 1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(frame, position)
        position += 8
    topics, position = _read_topics(frame, position, version)
    forgotten: list[tuple[str | bytes, Sequence[int]]] = []
    if version >= 7:
        forgotten, position = _read_forgotten(frame, position, version)
    rack_id: str | None = ""
    if version >= 11:
        rack_id, position = read_nullable_string(frame, position, compact=compact)
    return FetchRequest(
        version,
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id or "",
    )


def _read_topics(frame: bytearray, position: int, version: int) -> tuple[list[FetchTopic], int]:
    compact = version >= FIRST_FLEXIBLE
    layout = _PARTITION[12 if version >= 12 else 9 if version >= 9 else 5 if version >= 5 else 0]
    count, position = read_count(frame, position, compact=compact, smallest=3)
    left = MAX_ELEMENTS - count
    topics = []
    for _ in range(count):
        topic, position = _read_topic(frame, position, version)
        partition_count, position = read_count(
            frame, position, compact=compact, smallest=layout.size, most=left
        )
        left -= partition_count
        partitions = []
        for _ in range(partition_count):
            fields = layout.unpack_from(frame, position)
            position += layout.size
            if compact:
                position = skip_tags(frame, position)
            if version >= 12:
                partitions.append(
                    FetchPartition(fields[0], fields[2], fields[5], fields[1], fields[3])
                )
            elif version >= 9:
                partitions.append(FetchPartition(fields[0], fields[2], fields[4], fields[1]))
            else:
                partitions.append(FetchPartition(fields[0], fields[1], fields[-1]))
        if compact:
            position = skip_tags(frame, position)
        topics.append(FetchTopic(topic, partitions))
    return topics, position


def _read_forgotten(
    frame: bytearray, position: int, version: int
) -> tuple[list[tuple[str | bytes, Sequence[int]]], int]:
    compact = version >= FIRST_FLEXIBLE
    count, position = read_count(frame, position, compact=compact, smallest=3)
    left = MAX_ELEMENTS - count
    forgotten: list[tuple[str | bytes, Sequence[int]]] = []
    for _ in range(count):
        topic, position = _read_topic(frame, position, version)
        indexes, position = read_count(frame, position, compact=compact, smallest=4, most=left)
        left -= indexes
        forgotten.append(
            (topic, [INT32.unpack_from(frame, position + 4 * i)[0] for i in range(indexes)])
        )
        position += 4 * indexes
        if compact:
            position = skip_tags(frame, position)
    return forgotten, position


def _read_topic(frame: bytearray, position: int, version: int) -> tuple[str | bytes, int]:
    topic: str | bytes | None
    if version >= FIRST_WITH_TOPIC_IDS:
        topic = bytes(frame[position : position + 16])
        position += 16
    else:
        topic, position = read_nullable_string(frame, position, compact=version >= FIRST_FLEXIBLE)
    if not topic:
        raise ValueError("topic name is null or empty")
    return topic, position


_HEAD = Struct(">ihq")
_STABLE = Struct(">q")
_STABLE_START = Struct(">qq")
_ABORTED = Struct(">qq")
_TOP = Struct(">ihi")
_SIZE = Struct(">i")
_DIVERGING = Struct(">iq")
#: Bytes of the tagged field without the number of fields.
_DIVERGING_SIZE = 2 + _DIVERGING.size + 1


def write_fetch_response(response: FetchResponse, version: int) -> list[Buffer]:
    """Return the body of the reply, without header, as buffers to be sent in order."""
    plain: list[Buffer] | None = compiled.fetch_reply(response, version)
    if plain is not None:
        return plain
    compact = version >= FIRST_FLEXIBLE
    buffers: list[Buffer] = []
    glue = bytearray()
    if version >= 7:
        glue += _TOP.pack(response.throttle_time_ms, response.error_code, response.session_id)
    elif version >= 1:
        glue += INT32.pack(response.throttle_time_ms)
    glue += _count(len(response.topics), compact)
    for topic, partitions in response.topics:
        glue += topic if isinstance(topic, bytes) else write_string(topic, compact=compact)
        glue += _count(len(partitions), compact)
        for partition in partitions:
            glue = _write_partition(buffers, glue, partition, version)
        if compact:
            glue.append(0)
    if compact:
        endpoints = response.node_endpoints if version >= FIRST_WITH_ENDPOINTS else ()
        glue += node_endpoints_tags(endpoints)
    buffers.append(glue)
    return buffers


def fetch_response_size(
    topics: Sequence[tuple[str | bytes, Sequence[PartitionFetched]]], version: int
) -> int:
    """Return the length of what `write_fetch_response` returns for these topics.

    As in Kafka (FetchResponse.sizeOf), without the addresses of leaders.
    """
    compact = version >= FIRST_FLEXIBLE
    # Each struct of a flexible version has at least one byte of tagged fields.
    size = _count_size(len(topics), compact) + compact
    size += _TOP.size if version >= 7 else INT32.size if version >= 1 else 0
    fixed = _HEAD.size + compact
    fixed += _STABLE_START.size if version >= 5 else _STABLE.size if version >= 4 else 0
    fixed += 4 if version >= 11 else 0  # preferred_read_replica
    for topic, partitions in topics:
        size += len(topic if isinstance(topic, bytes) else write_string(topic, compact=compact))
        size += _count_size(len(partitions), compact) + compact + fixed * len(partitions)
        for partition in partitions:
            records = sum(map(len, partition.records))
            # The length of records is encoded as the count of an array is.
            size += records + _count_size(records, compact)
            if version >= 4:
                aborted = len(partition.aborted or ())
                size += _count_size(aborted, compact) + aborted * (_ABORTED.size + compact)
            if compact and partition.diverging is not None:
                size += _DIVERGING_SIZE
            if compact and partition.current_leader is not None:
                size += CURRENT_LEADER_SIZE
    return size


def _write_partition(
    buffers: list[Buffer], glue: bytearray, partition: PartitionFetched, version: int
) -> bytearray:
    compact = version >= FIRST_FLEXIBLE
    glue += _HEAD.pack(partition.index, partition.error_code, partition.high_watermark)
    if version >= 5:
        glue += _STABLE_START.pack(partition.last_stable_offset, partition.log_start_offset)
    elif version >= 4:
        glue += _STABLE.pack(partition.last_stable_offset)
    if version >= 4:
        _write_aborted(glue, partition.aborted, compact)
    if version >= 11:
        glue += b"\xff\xff\xff\xff"  # preferred_read_replica: none
    size = sum(map(len, partition.records))
    # Never null: the Java client 0.9 fails on a record set of length -1.
    glue += write_uvarint(size + 1) if compact else _SIZE.pack(size)
    if size:
        buffers.append(glue)
        buffers.extend(partition.records)
        glue = bytearray()
    if compact:
        _write_tags(glue, partition)
    return glue


def _write_aborted(
    glue: bytearray, aborted: Sequence[tuple[int, int]] | None, compact: bool
) -> None:
    if aborted is None:
        glue += b"\0" if compact else b"\xff\xff\xff\xff"
        return
    glue += _count(len(aborted), compact)
    for producer_id, first_offset in aborted:
        glue += _ABORTED.pack(producer_id, first_offset)
        if compact:
            glue.append(0)


def _write_tags(glue: bytearray, partition: PartitionFetched) -> None:
    diverging, leader = partition.diverging, partition.current_leader
    glue.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        # A tagged field, number 0, of 13 bytes: epoch, end offset, no nested tagged fields.
        glue += b"\x00\x0d" + _DIVERGING.pack(*diverging) + b"\0"
    if leader is not None:
        glue += current_leader_field(1, leader)


def _count(count: int, compact: bool) -> bytes:
    return write_uvarint(count + 1) if compact else INT32.pack(count)


def _count_size(count: int, compact: bool) -> int:
    return ((count + 1).bit_length() + 6) // 7 if compact else INT32.size
