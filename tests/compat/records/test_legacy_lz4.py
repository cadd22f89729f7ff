"""Stored lz4 sets of format 0, for consumers that know nothing of Kafka's historic checksum."""

import contextlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from compat.records import (
    CorruptRecords,
    RecordsError,
    check_message_set,
    fix_lz4_checksums,
    has_legacy_lz4,
    read_records,
    stamp_message_set,
)
from compat.records.layout import Codec
from compat.records.wrappers import value_at, wrap

LIMIT = 1 << 20


def a_set(codec=0, count=3):
    """Messages as kafka-python writes them, compressed by us: its own lz4 needs another package."""
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


def test_the_frame_can_be_read_by_a_reader_that_checks_it_as_specified():
    stored = a_set(Codec.LZ4)
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frame_of(stored))
    assert lz4.frame.decompress(frame_of(fix_lz4_checksums(stored))) == a_set()


def test_the_records_and_the_crc_still_hold():
    repaired = fix_lz4_checksums(a_set(Codec.LZ4))
    assert (
        check_message_set(memoryview(bytearray(repaired)), max_decompressed_bytes=LIMIT).count == 3
    )
    assert list(read_records(repaired)) == list(read_records(a_set()))


def test_every_message_of_the_set_is_put_right():
    one = a_set(Codec.LZ4)
    both = fix_lz4_checksums(one + one)
    assert both == fix_lz4_checksums(one) * 2


@pytest.mark.parametrize(
    ("codec", "expected"),
    [(0, False), (Codec.GZIP, False), (Codec.SNAPPY, False), (Codec.LZ4, True)],
)
def test_only_lz4_of_format_0_is_in_question(codec, expected):
    assert has_legacy_lz4(a_set(codec)) is expected


def test_what_was_stamped_for_storage_is_in_question():
    raw = bytearray(a_set(Codec.LZ4))
    stamped = stamp_message_set(
        raw, check_message_set(memoryview(raw), max_decompressed_bytes=LIMIT), 7, None
    )
    assert has_legacy_lz4(stamped)


def test_a_message_that_is_cut_short_is_refused():
    with pytest.raises(CorruptRecords):
        fix_lz4_checksums(a_set(Codec.LZ4)[:-1])


@given(st.binary(max_size=200), st.integers(0, 300), st.binary(max_size=4))
def test_no_bytes_make_it_fail_otherwise(noise, at, splice):
    whole = bytearray(a_set(Codec.LZ4))
    whole[at : at + len(splice)] = splice
    for payload in (noise, bytes(whole)):
        with contextlib.suppress(RecordsError):
            fix_lz4_checksums(payload)
