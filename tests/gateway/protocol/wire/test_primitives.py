"""Varints, strings, counts and tagged fields: encoded as by Kafka, refused if malformed."""

from __future__ import annotations

from struct import error

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.wire.primitives import (
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    MAX_TAGS,
    read_count,
    read_nullable_string,
    read_uvarint,
    skip_tags,
    write_string,
    write_uvarint,
)
from tests.gateway.protocol.wire import flexible
from tests.gateway.protocol.wire.values import texts


@pytest.mark.parametrize(
    ("value", "written"),
    # The examples of KIP-482, and the bounds of each length.
    [
        (0, "00"),
        (3, "03"),
        (127, "7f"),
        (128, "8001"),
        (150, "9601"),
        (8192, "8040"),
        (16383, "ff7f"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_varint_has_seven_bits_per_byte_lowest_first(value, written):
    assert write_uvarint(value) == bytes.fromhex(written)
    assert read_uvarint(bytes.fromhex(written), 0) == (value, len(written) // 2)


@given(value=st.integers(0, 2**32 - 1), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_varint_round_trips_at_any_position(value, before, after):
    assert read_uvarint(before + write_uvarint(value) + after, len(before)) == (
        value,
        len(before) + len(write_uvarint(value)),
    )


@pytest.mark.parametrize("endless", [b"\xff" * 5, b"\x80" * 6, b"\xff" * 100_000])
def test_varint_of_more_than_five_bytes_is_refused(endless):
    with pytest.raises(ValueError):
        read_uvarint(endless + b"\0", 0)


@pytest.mark.parametrize("cut", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_truncated_varint_is_refused(cut):
    with pytest.raises(IndexError):
        read_uvarint(cut, 0)


@given(text=texts, compact=st.booleans())
def test_string_round_trips(text, compact):
    written = write_string(text, compact=compact)
    assert read_nullable_string(written + b"more", 0, compact=compact) == (text, len(written))


@pytest.mark.parametrize(("null", "compact"), [(b"\xff\xff", False), (b"\0", True)])
def test_null_string_is_none(null, compact):
    assert read_nullable_string(null, 0, compact=compact) == (None, len(null))


@pytest.mark.parametrize(
    ("lying", "compact"),
    [
        (b"\0\x05abcd", False),
        (b"\x7f\xffab", False),
        (b"\x06abcd", True),
        (b"\xff\xff\xff\xff\x0f", True),
    ],
)
def test_string_longer_than_message_is_refused(lying, compact):
    with pytest.raises(ValueError):
        read_nullable_string(lying, 0, compact=compact)


def test_string_that_is_not_utf8_is_refused():
    with pytest.raises(UnicodeDecodeError):
        read_nullable_string(b"\x02\xff", 0, compact=True)


@pytest.mark.parametrize("count", [-1, -2, 5, 2**31 - 1, -(2**31)])
def test_impossible_count_is_refused_before_looping(count):
    with pytest.raises(ValueError):
        read_count(flexible.int32(count) + bytes(8), 0, compact=False, smallest=2)


def test_null_array_is_refused():
    with pytest.raises(ValueError):
        read_count(b"\0" + bytes(8), 0, compact=True, smallest=1)


def test_count_above_element_limit_is_refused():
    rows = bytes(MAX_ELEMENTS + 1)
    assert read_count(flexible.int32(MAX_ELEMENTS) + rows, 0, compact=False, smallest=1) == (
        MAX_ELEMENTS,
        4,
    )
    with pytest.raises(ValueError):
        read_count(flexible.int32(MAX_ELEMENTS + 1) + rows, 0, compact=False, smallest=1)


@given(
    fields=st.dictionaries(st.integers(0, 2**31), st.binary(max_size=200), max_size=5),
    after=st.binary(max_size=3),
)
def test_unknown_tagged_fields_are_skipped(fields, after):
    written = flexible.tags(fields)
    assert skip_tags(written + after, 0) == len(written)


@pytest.mark.parametrize(
    "lying", [b"\x01\x00\x02a", b"\x01\x00\xff\xff\xff\xff\x0f", b"\x02\x00\x01a"]
)
def test_tagged_field_longer_than_message_is_refused(lying):
    with pytest.raises((ValueError, IndexError, error)):
        skip_tags(lying, 0)


def test_too_many_tagged_fields_are_refused():
    assert skip_tags(write_uvarint(MAX_TAGS) + b"\0\0" * MAX_TAGS, 0) == 2 + 2 * MAX_TAGS
    with pytest.raises(ValueError):
        skip_tags(write_uvarint(MAX_TAGS + 1) + b"\0\0" * (MAX_TAGS + 1), 0)


@pytest.mark.parametrize("compact", [True, False])
def test_string_length_is_limited_to_16_bits(compact):
    longest = "x" * MAX_STRING_BYTES
    assert (
        read_nullable_string(write_string(longest, compact=compact), 0, compact=compact)[0]
        == longest
    )


def test_compact_string_above_16_bit_length_is_refused():
    with pytest.raises(ValueError, match="32768"):
        read_nullable_string(
            write_string("x" * (MAX_STRING_BYTES + 1), compact=True), 0, compact=True
        )
