"""What is stored of a consumer group is read back as it was, and whatever else is in the store is no such group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.classic import classic_rows
from gateway.groups.consumer.consumer_member import ClassicWords, ConsumerMember
from gateway.groups.consumer.consumer_rows import (
    ITSELF,
    ConsumerGroupRow,
    is_key,
    key_of,
    place_of,
    stored_group,
    value_of,
)
from gateway.groups.consumer.consumer_states import MemberState
from gateway.settings.model import MAX_GROUP_ID_BYTES

GROUP = ConsumerGroupRow(7, 6, 3, b"12345678", 1_700_000_000_000, {"a.*": frozenset({"a1", "a2"})})
MEMBER = ConsumerMember(
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
    ClassicWords(45_000, (("range", b"\0\1"),)),
    MemberState.UNREVOKED,
    6,
    5,
    {b"a" * 16: {0: 5, 1: 6}},
    {b"a" * 16: {2: 4}},
    {b"b" * 16: frozenset({0})},
)


def test_a_group_is_read_as_it_was_written():
    assert stored_group([(2, value_of(MEMBER)), (ITSELF, value_of(GROUP))]) == (GROUP, (MEMBER,))


def test_members_come_in_the_order_in_which_they_came():
    members = [ConsumerMember(number, f"m{number}") for number in (2, 1)]
    stored = stored_group(
        [(ITSELF, value_of(GROUP)), *((one.number, value_of(one)) for one in members)]
    )
    assert [member.member_id for member in stored.members] == ["m1", "m2"]


@given(
    st.text(min_size=1).filter(lambda name: len(name.encode()) <= MAX_GROUP_ID_BYTES),
    st.integers(0, (1 << 32) - 1),
)
def test_a_key_names_its_group_and_is_none_of_a_classic_group(group_id, number):
    key = key_of(group_id, number)
    assert place_of(key) == (group_id, number)
    assert is_key(key)
    assert not is_key(classic_rows.key_of(group_id))
    assert len(key) <= 480


@pytest.mark.parametrize(
    "found",
    [
        [(1, value_of(MEMBER))],
        [(ITSELF, b"?")],
        [(ITSELF, value_of(GROUP)), (2, b"?")],
        [(ITSELF, value_of(GROUP)), (3, value_of(ConsumerMember(3, "m")))],
        [
            (ITSELF, value_of(GROUP)),
            (1, value_of(ConsumerMember(1, "m"))),
            (2, value_of(ConsumerMember(2, "m"))),
        ],
    ],
)
def test_rows_that_make_no_group_are_refused(found):
    with pytest.raises(ValueError):
        stored_group(found)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_group_or_refused(value):
    try:
        stored_group([(ITSELF, value), (1, value)])
    except ValueError:
        return
