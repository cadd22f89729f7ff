"""Storage format of classic groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.classic.classic_rows import (
    GroupRow,
    MemberRow,
    decode,
    encode,
    parse_key,
    row_key,
)

MEMBER = MemberRow(
    "m-1",
    None,
    "client",
    "/10.0.0.1",
    10_000,
    60_000,
    (("range", b"\0\xff"), ("sticky", b"")),
    b"assigned",
)
STATIC = MemberRow("m-2", "one", "", "/::1", 1, -1, (("range", b""),), b"")


@pytest.mark.parametrize(
    "row",
    [
        GroupRow(7, "consumer", "range", "m-1", 1_700_000_000_000, (MEMBER, STATIC)),
        GroupRow(8, "consumer", None, None, 0),
    ],
)
def test_row_round_trip(row):
    assert decode(encode(row)) == row


@given(
    st.text(min_size=1).filter(
        lambda name: not any("\ud800" <= letter <= "\udfff" for letter in name)
    )
)
def test_key_is_group_id(name):
    assert parse_key(row_key(name)) == name


@given(st.binary(max_size=100))
def test_malformed_row_raises_value_error(value):
    try:
        decode(value)
    except ValueError:
        return
    assert encode(decode(value))
