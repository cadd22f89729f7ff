"""Storage format of consumer groups, including malformed rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.classic import classic_rows
from gateway.groups.consumer.consumer_member import (
    ClassicMemberMetadata,
    ConsumerGroupMember,
    MemberState,
)
from gateway.groups.consumer.consumer_rows import (
    GROUP_ROW,
    ConsumerGroupRow,
    decode_group,
    encode,
    is_consumer_key,
    parse_key,
    row_key,
)
from gateway.settings.field_types import MAX_GROUP_ID_BYTES

GROUP = ConsumerGroupRow(7, 6, 3, b"12345678", 1_700_000_000_000, {"a.*": frozenset({"a1", "a2"})})
MEMBER = ConsumerGroupMember(
    2,
    "m",
    "i",
    "r",
    "c",
    "/h",
    60_000,
    frozenset({"a", "größe"}),
    "a.*",
    "range",
    ClassicMemberMetadata(45_000, (("range", b"\0\1"),)),
    MemberState.UNREVOKED,
    6,
    5,
    {b"a" * 16: {0: 5, 1: 6}},
    {b"a" * 16: {2: 4}},
    {b"b" * 16: frozenset({0})},
)


def test_group_round_trip():
    assert decode_group([(2, encode(MEMBER)), (GROUP_ROW, encode(GROUP))]) == (GROUP, (MEMBER,))


def test_members_are_ordered_by_number():
    members = [ConsumerGroupMember(number, f"m{number}") for number in (2, 1)]
    stored = decode_group(
        [(GROUP_ROW, encode(GROUP)), *((one.number, encode(one)) for one in members)]
    )
    assert [member.member_id for member in stored.members] == ["m1", "m2"]


@given(
    st.text(min_size=1).filter(lambda name: len(name.encode()) <= MAX_GROUP_ID_BYTES),
    st.integers(0, (1 << 32) - 1),
)
def test_key_round_trip_and_distinct_from_classic_keys(group_id, number):
    key = row_key(group_id, number)
    assert parse_key(key) == (group_id, number)
    assert is_consumer_key(key)
    assert not is_consumer_key(classic_rows.row_key(group_id))
    assert len(key) <= 480


@pytest.mark.parametrize(
    "found",
    [
        [(1, encode(MEMBER))],
        [(GROUP_ROW, b"?")],
        [(GROUP_ROW, encode(GROUP)), (2, b"?")],
        [(GROUP_ROW, encode(GROUP)), (3, encode(ConsumerGroupMember(3, "m")))],
        [
            (GROUP_ROW, encode(GROUP)),
            (1, encode(ConsumerGroupMember(1, "m"))),
            (2, encode(ConsumerGroupMember(2, "m"))),
        ],
    ],
)
def test_inconsistent_rows_are_refused(found):
    with pytest.raises(ValueError):
        decode_group(found)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_raise_value_error(value):
    try:
        decode_group([(GROUP_ROW, value), (1, value)])
    except ValueError:
        return
