"""The codec of OffsetCommit, which every group member sends every few seconds.

Versions: 1 adds the member and a commit timestamp, 2 replaces the timestamp by a retention time, 5
removes the latter, 6 adds leader epochs, 7 static members; 8 is flexible; 10 identifies topics by
id. The reply gains throttle time (3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

import msgspec

from gateway.protocol.wire.primitives import (
    INT32,
    INT64,
    MAX_ELEMENTS,
    Bytes,
    read_count,
    read_nullable_string,
    read_string,
    skip_tags,
    write_string,
    write_uvarint,
)

FIRST_FLEXIBLE = 8
FIRST_WITH_TOPIC_IDS = 10

_PARTITION = Struct(">iq")
_PARTITION_EPOCH = Struct(">iqi")
_PARTITION_TIME = Struct(">iqq")
_RESULT = Struct(">ih")
_FLEXIBLE_RESULT = Struct(">ihB")


class CommittedPartition(msgspec.Struct, frozen=True, gc=False):
    """`committed_leader_epoch` and `commit_timestamp` (ms since 1970) are -1 if the client sends
    none.
    """

    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1
    commit_timestamp: int = -1


class CommittedTopic(msgspec.Struct, frozen=True, gc=False):
    """`topic` is a name, or from version 10 a topic id of 16 bytes."""

    topic: str | bytes
    partitions: Sequence[CommittedPartition]


class OffsetCommitRequest(msgspec.Struct, frozen=True, gc=False):
    """A Kafka 0.8 client sends neither generation nor member.

    `retention_time_ms` is -1 for the broker's default.
    """

    group_id: str
    topics: Sequence[CommittedTopic]
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1


class OffsetCommitResponse(msgspec.Struct, frozen=True, gc=False):
    """Error codes by topic, named as in the request, and partition."""

    topics: Mapping[str | bytes, Mapping[int, int]]


def read_offset_commit(frame: bytearray, position: int, version: int) -> OffsetCommitRequest:
    """Read the request whose body begins at `position`.

    Raises ValueError, IndexError or struct.error if it is malformed.
    """
    compact = version >= FIRST_FLEXIBLE
    generation, member_id, group_instance_id, retention = -1, "", None, -1
    group_id, position = read_string(frame, position, compact=compact)
    if version >= 1:
        (generation,) = INT32.unpack_from(frame, position)
        member_id, position = read_string(frame, position + 4, compact=compact)
    if version >= 7:
        group_instance_id, position = read_nullable_string(frame, position, compact=compact)
    if 2 <= version <= 4:
        (retention,) = INT64.unpack_from(frame, position)
        position += 8
    count, position = read_count(frame, position, compact=compact, smallest=3)
    left = MAX_ELEMENTS - count
    topics = []
    for _ in range(count):
        topic: str | bytes
        if version >= FIRST_WITH_TOPIC_IDS:
            topic = bytes(frame[position : position + 16])
            position += 16
        else:
            topic, position = read_string(frame, position, compact=compact)
        partitions, position = _read_partitions(frame, position, version, left)
        left -= len(partitions)
        if compact:
            position = skip_tags(frame, position)
        topics.append(CommittedTopic(topic, partitions))
    if compact:
        skip_tags(frame, position)
    return OffsetCommitRequest(
        group_id, topics, generation, member_id, group_instance_id, retention
    )


def _read_partitions(
    frame: Bytes, position: int, version: int, most: int
) -> tuple[list[CommittedPartition], int]:
    compact = version >= FIRST_FLEXIBLE
    count, position = read_count(frame, position, compact=compact, smallest=14, most=most)
    partitions = []
    for _ in range(count):
        epoch = time = -1
        if version >= 6:
            index, offset, epoch = _PARTITION_EPOCH.unpack_from(frame, position)
            position += 16
        elif version == 1:
            index, offset, time = _PARTITION_TIME.unpack_from(frame, position)
            position += 20
        else:
            index, offset = _PARTITION.unpack_from(frame, position)
            position += 12
        metadata, position = read_nullable_string(frame, position, compact=compact)
        if compact:
            position = skip_tags(frame, position)
        partitions.append(CommittedPartition(index, offset, metadata, epoch, time))
    return partitions, position


def write_offset_commit_response(response: OffsetCommitResponse, version: int) -> bytes:
    """Return the body of the reply, without header."""
    compact = version >= FIRST_FLEXIBLE
    out = [INT32.pack(0)] if version >= 3 else []
    out.append(_count(len(response.topics), compact))
    for topic, codes in response.topics.items():
        out.append(topic if isinstance(topic, bytes) else write_string(topic, compact=compact))
        out.append(_count(len(codes), compact))
        if compact:
            out += [_FLEXIBLE_RESULT.pack(index, code, 0) for index, code in codes.items()]
            out.append(b"\0")
        else:
            out += [_RESULT.pack(index, code) for index, code in codes.items()]
    if compact:
        out.append(b"\0")
    return b"".join(out)


def _count(count: int, compact: bool) -> bytes:
    return write_uvarint(count + 1) if compact else INT32.pack(count)
