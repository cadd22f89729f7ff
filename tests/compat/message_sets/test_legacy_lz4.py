"""Stored magic-0 lz4 sets, for consumers that accept only the standard header checksum."""

import contextlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from compat.message_sets import (
    check_message_set,
    fix_lz4_checksums,
    has_legacy_lz4,
    read_records,
)
from compat.message_sets.wrappers import value_at, wrap
from records import CorruptRecords, RecordsError
from records.layout import Codec

LIMIT = 1 << 20


def a_set(codec=0, count=3):
    """Messages from kafka-python, compressed by the code under test: kafka-python's lz4 needs
    another package.
    """
    builder = LegacyRecordBatchBuilder(0, 0, LIMIT)
    for number in range(count):
        builder.append(number, timestamp=None, key=b"k", value=b"v%d" % number * 100)
    inner = bytes(builder.build())
    return (
        inner
        if not codec
        else wrap(
            Codec(codec), inner, magic=0, offset=count - 1, timestamp=-1, is_append_time=False
        )
    )


def frame_of(payload):
    return payload[value_at(memoryview(payload), 0, len(payload), 0) :]


def test_frame_is_readable_with_standard_checksum():
    stored = a_set(Codec.LZ4)
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frame_of(stored))
    assert lz4.frame.decompress(frame_of(fix_lz4_checksums(stored))) == a_set()


def test_records_and_crc_stay_valid():
    repaired = fix_lz4_checksums(a_set(Codec.LZ4))
    assert (
        check_message_set(memoryview(bytearray(repaired)), max_decompressed_bytes=LIMIT).count == 3
    )
    assert list(read_records(repaired)) == list(read_records(a_set()))


def test_every_message_of_the_set_is_fixed():
    one = a_set(Codec.LZ4)
    both = fix_lz4_checksums(one + one)
    assert both == fix_lz4_checksums(one) * 2


@pytest.mark.parametrize(
    ("codec", "expected"),
    [(0, False), (Codec.GZIP, False), (Codec.SNAPPY, False), (Codec.LZ4, True)],
)
def test_only_magic_0_lz4_is_legacy(codec, expected):
    assert has_legacy_lz4(a_set(codec)) is expected


def test_set_stamped_for_storage_is_legacy():
    raw = bytearray(a_set(Codec.LZ4))
    stamped = check_message_set(memoryview(raw), max_decompressed_bytes=LIMIT).stamp(raw, 7, None)
    assert has_legacy_lz4(stamped)


def test_truncated_message_is_rejected():
    with pytest.raises(CorruptRecords):
        fix_lz4_checksums(a_set(Codec.LZ4)[:-1])


@given(st.binary(max_size=200), st.integers(0, 300), st.binary(max_size=4))
def test_any_bytes_are_fixed_or_rejected(noise, at, splice):
    whole = bytearray(a_set(Codec.LZ4))
    whole[at : at + len(splice)] = splice
    for payload in (noise, bytes(whole)):
        with contextlib.suppress(RecordsError):
            fix_lz4_checksums(payload)
