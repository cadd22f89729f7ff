"""How a consumer group is stored: a row for the group and one for each member, in the table `groups`, beside those of classic groups.

A key begins with a byte that no group's name begins with; then come a member's number, 0 for the group itself, and the group's name. What changes
together is stored together, so that a restart finds the group as it was at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

import msgspec

from gateway.groups.consumer.consumer_member import ConsumerGroupMember

#: UTF-8 never has this byte.
_KEY_MARK = 0xFF
_PREFIX = Struct(">BI")

#: The number of the group's own row.
GROUP_ROW = 0


class ConsumerGroupRow(msgspec.Struct, frozen=True, array_like=True):
    """The group without its members. `topics_digest` tells what its topics were when its epoch began, `changed_at`, in ms since 1970, when it was made or
    lost its last member."""

    epoch: int
    target_epoch: int
    next_number: int
    topics_digest: bytes
    changed_at: int
    regex_topics: Mapping[str, frozenset[str]] = {}
    """The topics of each regular expression."""


class StoredGroup(NamedTuple):
    """A group as it was stored."""

    row: ConsumerGroupRow
    members: tuple[ConsumerGroupMember, ...]


def row_key(group_id: str, number: int) -> bytes:
    return _PREFIX.pack(_KEY_MARK, number) + group_id.encode()


def is_consumer_key(key: bytes) -> bool:
    """Whether this is a key of these rows, and not a classic group's."""
    return len(key) > _PREFIX.size and key[0] == _KEY_MARK


def parse_key(key: bytes) -> tuple[str, int]:
    """Whose row it is, and its number. Raises ValueError for what is no such key."""
    if not is_consumer_key(key):
        raise ValueError("no key of a consumer group")
    return key[_PREFIX.size :].decode(), _PREFIX.unpack_from(key)[1]


def encode(row: ConsumerGroupRow | ConsumerGroupMember) -> bytes:
    return _ENCODER.encode(row)


def decode_group(rows: Iterable[tuple[int, bytes]]) -> StoredGroup:
    """The group of these rows, by their numbers. Raises ValueError where they make no group."""
    group, members = None, []
    for number, value in rows:
        if number == GROUP_ROW:
            group = _GROUP_DECODER.decode(value)
        else:
            members.append(_MEMBER_DECODER.decode(value))
    if group is None:
        raise ValueError("members without a group")
    members.sort(key=lambda member: member.number)
    if members and members[-1].number >= group.next_number:
        raise ValueError("a member that the group does not know of")
    if len({member.member_id for member in members}) < len(members):
        raise ValueError("two members of the same id")
    return StoredGroup(group, tuple(members))


_ENCODER = msgspec.msgpack.Encoder()
_GROUP_DECODER = msgspec.msgpack.Decoder(ConsumerGroupRow)
_MEMBER_DECODER = msgspec.msgpack.Decoder(ConsumerGroupMember)
