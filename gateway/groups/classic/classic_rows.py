"""Storage format of classic groups: one row per group in the table `groups`, keyed by group id.

The row has all that a restarted gateway needs to continue the group.
"""

from __future__ import annotations

import msgspec

from gateway.groups.classic.classic_member import ClassicGroupMember, Protocols


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

    A group of members without a leader rebalances after a restart. `changed_at` is in ms since
    1970.
    """

    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    changed_at: int
    members: tuple[MemberRow, ...] = ()


def member_row(member: ClassicGroupMember, assignment: bytes) -> MemberRow:
    return MemberRow(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.protocols,
        assignment,
    )


def restored_member(row: MemberRow) -> ClassicGroupMember:
    """The stored member. Its session has not started."""
    return ClassicGroupMember(
        row.member_id,
        row.instance_id,
        row.client_id,
        row.client_host,
        row.protocols,
        row.session_timeout_ms,
        row.rebalance_timeout_ms,
        deadline=0,
        assignment=row.assignment,
    )


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
