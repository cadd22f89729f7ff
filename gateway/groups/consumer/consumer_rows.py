"""Storage format of consumer groups: a row for the group and one per member, in the table `groups`.

A key is a marker byte that no group id starts with, the row number (0 for the group itself) and the
group id. Related changes are written atomically, so a restart finds a consistent group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

import msgspec

from gateway.groups.consumer.consumer_member import ConsumerGroupMember

#: A byte that never occurs in UTF-8. Distinguishes these keys from those of classic groups.
_KEY_MARK = 0xFF
_PREFIX = Struct(">BI")

#: Row number of the group itself.
GROUP_ROW = 0


class ConsumerGroupRow(msgspec.Struct, frozen=True, array_like=True):
    """The group without its members.

    `topics_digest` identifies the subscribed topics at the start of the epoch. `changed_at` is in
    ms since 1970: the time of creation or of the last member's removal.
    """

    epoch: int
    target_epoch: int
    next_number: int
    topics_digest: bytes
    changed_at: int
    regex_topics: Mapping[str, frozenset[str]] = {}
    """Matching topics of each regular expression."""


class StoredGroup(NamedTuple):
    row: ConsumerGroupRow
    members: tuple[ConsumerGroupMember, ...]


def row_key(group_id: str, number: int) -> bytes:
    return _PREFIX.pack(_KEY_MARK, number) + group_id.encode()


def is_consumer_key(key: bytes) -> bool:
    """Whether the key belongs to a consumer group."""
    return len(key) > _PREFIX.size and key[0] == _KEY_MARK


def parse_key(key: bytes) -> tuple[str, int]:
    """Returns the group id and row number. Raises ValueError for a malformed key."""
    if not is_consumer_key(key):
        raise ValueError("not a key of a consumer group")
    return key[_PREFIX.size :].decode(), _PREFIX.unpack_from(key)[1]


def encode(row: ConsumerGroupRow | ConsumerGroupMember) -> bytes:
    return _ENCODER.encode(row)


def decode_group(rows: Iterable[tuple[int, bytes]]) -> StoredGroup:
    """Decode a group from its numbered rows. Raises ValueError if they are inconsistent."""
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
        raise ValueError("member number out of range")
    if len({member.member_id for member in members}) < len(members):
        raise ValueError("duplicate member id")
    return StoredGroup(group, tuple(members))


_ENCODER = msgspec.msgpack.Encoder()
_GROUP_DECODER = msgspec.msgpack.Decoder(ConsumerGroupRow)
_MEMBER_DECODER = msgspec.msgpack.Decoder(ConsumerGroupMember)
