"""Storage format of classic groups: one row per group in the table `groups`, keyed by group id.

The row has all that a restarted gateway needs to continue the group.
"""

from __future__ import annotations

import msgspec

from gateway.groups.classic.classic_member import Protocols


class MemberRow(msgspec.Struct, frozen=True, array_like=True):
    """A member of the stored generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """A generation with its members and assignments, or an empty group.

    `changed_at` is in ms since 1970.
    """

    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    changed_at: int
    members: tuple[MemberRow, ...] = ()


def row_key(group_id: str) -> bytes:
    return group_id.encode()


def parse_key(key: bytes) -> str:
    """Raises ValueError for a malformed key."""
    return key.decode()


def encode(row: GroupRow) -> bytes:
    return _ENCODER.encode(row)


def decode(value: bytes) -> GroupRow:
    """Raises ValueError for a malformed row."""
    return _DECODER.decode(value)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(GroupRow)
