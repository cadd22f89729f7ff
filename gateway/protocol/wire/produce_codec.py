"""The codec of Produce. Requests are read without copying records.

Versions: 0-2 carry message sets, 3 adds the transactional id; 9 is flexible; 13 identifies topics
by id. The reply gains throttle time (1), log append time (2), log start offset (5), record errors
and a message (8), and tagged fields with the current leader (10).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import msgspec

from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire import compiled
from gateway.protocol.wire.leader_fields import (
    CurrentLeader,
    NodeEndpoint,
    current_leader_field,
    node_endpoints_tags,
)
from gateway.protocol.wire.primitives import (
    INT16,
    INT32,
    read_count,
    read_nullable_string,
    read_uvarint,
    skip_tags,
    write_string,
    write_uvarint,
)
from records import BatchHeader

FIRST_FLEXIBLE = 9
FIRST_WITH_LEADERS = 10
FIRST_WITH_TOPIC_IDS = 13

_ACKS_TIMEOUT = Struct(">hi")
_INDEX_SIZE = Struct(">ii")
_RESULT = Struct(">ihq")
_TIME_START = Struct(">qq")
_TIME = Struct(">q")


class PartitionRecords(msgspec.Struct, frozen=True, gc=False):
    """`records` is a writable view into the frame of the request, or None if the producer sent
    null.

    `batch` is the header if the compiled decoder found that they are one valid batch. If it is
    None, they have to be checked.
    """

    index: int
    records: memoryview | None
    batch: BatchHeader | None = None


class TopicRecords(msgspec.Struct, frozen=True, gc=False):
    """`topic` is a name, or from version 13 a topic id of 16 bytes."""

    topic: str | bytes
    partitions: Sequence[PartitionRecords]


class ProduceRequest(msgspec.Struct, frozen=True, gc=False):
    """`acks` is unchecked (valid values are -1, 0 and 1). `timeout_ms` is as sent."""

    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[TopicRecords]


class RecordError(msgspec.Struct, frozen=True, gc=False):
    """An invalid record, by its index in the batch (KIP-467)."""

    batch_index: int
    message: str


class PartitionProduced(msgspec.Struct, frozen=True, gc=False):
    """The result for one partition.

    `log_append_time` is -1 if the topic keeps the producer's timestamps. `record_errors` lists the
    invalid records of a rejected batch; `error_message` is then set. `current_leader` is set only
    with an `error_message`, too: the compiled codec writes neither.
    """

    index: int
    error_code: int = ErrorCode.NONE
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()
    current_leader: CurrentLeader | None = None


class ProduceResponse(msgspec.Struct, frozen=True, gc=False):
    """One row per topic, in the order of the request.

    `node_endpoints` are the addresses of the rows' current leaders.
    """

    topics: Sequence[tuple[str | bytes, Sequence[PartitionProduced]]]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


#: Topics plus partitions of one request, which is read on the reactor thread. A request of 1 MiB,
#: the default of Java's max.request.size, cannot hold more batches.
MAX_PARTITIONS = 10_000


def read_produce(frame: bytearray, position: int, version: int) -> ProduceRequest:
    """Read the request whose body begins at `position`.

    Raises ValueError, IndexError or struct.error if it is malformed.
    """
    found: ProduceRequest | None = compiled.request(
        frame, position, version, ProduceRequest, TopicRecords, PartitionRecords, BatchHeader
    )
    if found is not None:
        return found
    compact = version >= FIRST_FLEXIBLE
    transactional_id = None
    if version >= 3:
        transactional_id, position = read_nullable_string(frame, position, compact=compact)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    count, position = read_count(
        frame, position + 6, compact=compact, smallest=3, most=MAX_PARTITIONS
    )
    left = MAX_PARTITIONS - count
    view = memoryview(frame)
    topics = []
    for _ in range(count):
        topic: str | bytes | None
        if version >= FIRST_WITH_TOPIC_IDS:
            topic = bytes(view[position : position + 16])
            position += 16
        else:
            topic, position = read_nullable_string(frame, position, compact=compact)
        if not topic:
            raise ValueError("topic name is null or empty")
        partitions, position = _read_partitions(view, frame, position, compact, left)
        left -= len(partitions)
        if compact:
            position = skip_tags(frame, position)
        topics.append(TopicRecords(topic, partitions))
    return ProduceRequest(version, transactional_id, acks, timeout_ms, topics)


def _read_partitions(
    view: memoryview, frame: bytearray, position: int, compact: bool, most: int
) -> tuple[list[PartitionRecords], int]:
    count, position = read_count(frame, position, compact=compact, smallest=5, most=most)
    partitions = []
    for _ in range(count):
        if compact:
            (index,) = INT32.unpack_from(frame, position)
            size, position = read_uvarint(frame, position + 4)
            size -= 1
        else:
            index, size = _INDEX_SIZE.unpack_from(frame, position)
            position += 8
        records = None
        if size >= 0:
            records = view[position : position + size]
            position += size
        if position > len(frame):
            raise ValueError("records exceed the request")
        if compact:
            position = skip_tags(frame, position)
        partitions.append(PartitionRecords(index, records))
    return partitions, position


def write_produce_response(response: ProduceResponse, version: int) -> bytes:
    """Return the body of the reply, without header."""
    if not response.node_endpoints:
        body: bytes | None = compiled.reply(response.topics, response.throttle_time_ms, version)
        if body is not None:
            return body
    compact = version >= FIRST_FLEXIBLE
    out = [_count(len(response.topics), compact)]
    for topic, partitions in response.topics:
        out.append(topic if isinstance(topic, bytes) else write_string(topic, compact=compact))
        out.append(_count(len(partitions), compact))
        for partition in partitions:
            _write_partition(out, partition, version)
        if compact:
            out.append(b"\0")
    if version >= 1:
        out.append(INT32.pack(response.throttle_time_ms))
    if compact:
        endpoints = response.node_endpoints if version >= FIRST_WITH_LEADERS else ()
        out.append(node_endpoints_tags(endpoints))
    return b"".join(out)


def _write_partition(out: list[bytes], partition: PartitionProduced, version: int) -> None:
    out.append(_RESULT.pack(partition.index, partition.error_code, partition.base_offset))
    if version >= 5:
        out.append(_TIME_START.pack(partition.log_append_time, partition.log_start_offset))
    elif version >= 2:
        out.append(_TIME.pack(partition.log_append_time))
    if version < 8:
        return
    compact = version >= FIRST_FLEXIBLE
    out.append(_count(len(partition.record_errors), compact))
    for record in partition.record_errors:
        out += INT32.pack(record.batch_index), write_string(record.message, compact=compact)
        if compact:
            out.append(b"\0")
    if partition.error_message is None:
        out.append(b"\0" if compact else INT16.pack(-1))
    else:
        out.append(write_string(partition.error_message, compact=compact))
    if partition.current_leader is not None and version >= FIRST_WITH_LEADERS:
        out += b"\1", current_leader_field(0, partition.current_leader)
    elif compact:
        out.append(b"\0")


def _count(count: int, compact: bool) -> bytes:
    return write_uvarint(count + 1) if compact else INT32.pack(count)
