"""Storage format of committed offsets: one row per group and partition in the table `offsets`.

Keys contain the topic id, so a new topic with the name of a deleted one does not inherit its
offsets.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import msgspec

#: Topic id and partition; the group id follows.
_KEY_PREFIX = Struct(">16sI")


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A committed offset. `leader_epoch` is -1 if unset.

    `committed_at` and `expires_at` are in ms since 1970. Only OffsetCommit v2 to v4 with a
    retention time sets `expires_at`.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_at: int
    expires_at: int | None = None


class OffsetKey(NamedTuple):
    group_id: str
    topic_id: bytes
    partition: int


def encode_key(key: OffsetKey) -> bytes:
    return _KEY_PREFIX.pack(key.topic_id, key.partition) + key.group_id.encode()


def decode_key(key: bytes) -> OffsetKey:
    """Raises ValueError for a malformed key."""
    if len(key) < _KEY_PREFIX.size:
        raise ValueError(f"key of {len(key)} bytes is too short")
    topic_id, partition = _KEY_PREFIX.unpack_from(key)
    return OffsetKey(key[_KEY_PREFIX.size :].decode(), topic_id, partition)


def encode_value(committed: CommittedOffset) -> bytes:
    return _ENCODER.encode(committed)


def decode_value(value: bytes) -> CommittedOffset:
    """Raises ValueError for a malformed value."""
    return _DECODER.decode(value)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(CommittedOffset)
