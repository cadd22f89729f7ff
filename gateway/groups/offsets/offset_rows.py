"""How a committed offset is stored: one row of the table `offsets` for each group and partition.

The key names the topic by its id: what was committed for a topic never becomes another one's, even if that has the same name.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import msgspec

#: Topic id and partition, and after them the group's name.
_KEY_PREFIX = Struct(">16sI")


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a group stands in a partition. `leader_epoch` is -1 where the client said none; `committed_at` is in ms since 1970, as is
    `expires_at`, which only OffsetCommit 2-4 with a retention time of their own set."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at: int
    expires_at: int | None = None


class OffsetKey(NamedTuple):
    """Whose offset of which partition it is."""

    group_id: str
    topic_id: bytes
    partition: int


def encode_key(key: OffsetKey) -> bytes:
    return _KEY_PREFIX.pack(key.topic_id, key.partition) + key.group_id.encode()


def decode_key(key: bytes) -> OffsetKey:
    """Raises ValueError for what is no such key."""
    if len(key) < _KEY_PREFIX.size:
        raise ValueError(f"a key of {len(key)} bytes is too short")
    topic_id, partition = _KEY_PREFIX.unpack_from(key)
    return OffsetKey(key[_KEY_PREFIX.size :].decode(), topic_id, partition)


def encode_value(committed: CommittedOffset) -> bytes:
    return _ENCODER.encode(committed)


def decode_value(value: bytes) -> CommittedOffset:
    """Raises ValueError for what is no such value."""
    return _DECODER.decode(value)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(CommittedOffset)
