"""How a group is stored: one row of the table `groups`, by its id. Enough for a restart to go on as if nothing had been."""

from __future__ import annotations

import msgspec

from gateway.groups.classic.classic_member import Protocols


class MemberRow(msgspec.Struct, frozen=True, array_like=True):
    """A member of the generation that is stored."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """A generation with its members and their assignments, or an empty group. `changed_at` is in ms since 1970."""

    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    changed_at: int
    members: tuple[MemberRow, ...] = ()


def row_key(group_id: str) -> bytes:
    return group_id.encode()


def parse_key(key: bytes) -> str:
    """Raises ValueError for what is no such key."""
    return key.decode()


def encode(row: GroupRow) -> bytes:
    return _ENCODER.encode(row)


def decode(value: bytes) -> GroupRow:
    """Raises ValueError for what is no such row."""
    return _DECODER.decode(value)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(GroupRow)
