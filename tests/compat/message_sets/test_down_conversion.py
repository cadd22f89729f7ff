import gzip
import zlib
from struct import unpack_from

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from compat.message_sets import down_convert
from records import CorruptRecords, RecordsTooLarge, UnsupportedCodec
from tests.records.peers import read_with_aiokafka, read_with_kafka_python
from tests.records.sample_records import (
    GZIP,
    LZ4,
    LZ4_HISTORIC,
    LZ4_RIGHT,
    NONE,
    SNAPPY,
    ZSTD,
    Sample,
    batch,
    message,
    message_set,
    record,
    varint,
    wrapper,
)
from tests.records.strategies import codecs, legacy_codecs, magics, prop, samples

A = Sample(7, 1000, b"k", b"first", ((b"h", b"x"),))
B = Sample(9, 990, None, None)


def expected(found, magic, append_time=None):
    """What a reader must return: no headers, and no timestamps in magic 0."""
    if magic == 0:
        return [(s.offset, None, None, s.key, s.value, ()) for s in found]
    if append_time is not None:
        return [(s.offset, append_time, 1, s.key, s.value, ()) for s in found]
    return [(s.offset, s.timestamp, 0, s.key, s.value, ()) for s in found]


def test_uncompressed_batch_becomes_one_message_per_record():
    assert down_convert(batch([A, B]), 1) == message(7, b"k", b"first", timestamp=1000) + message(
        9, None, None, timestamp=990
    )
    assert down_convert(batch([A, B]), 0) == message(7, b"k", b"first", magic=0) + message(
        9, None, None, magic=0
    )


def test_compressed_batch_becomes_magic_1_wrapper_with_relative_offsets():
    converted = down_convert(batch([A, B], codec=GZIP), 1)
    offset, size, crc, magic, attributes, timestamp, key, value = unpack_from(
        ">qiIBBqii", converted
    )
    assert (offset, size, magic, attributes, timestamp, key, value) == (
        9,
        len(converted) - 12,
        1,
        GZIP,
        1000,
        -1,
        len(converted) - 34,
    )
    assert crc == zlib.crc32(converted[16:])
    assert gzip.decompress(converted[34:]) == message(0, b"k", b"first", timestamp=1000) + message(
        2, None, None, timestamp=990
    )


def test_compressed_batch_becomes_magic_0_wrapper_with_absolute_offsets():
    converted = down_convert(batch([A, B], codec=GZIP), 0)
    assert unpack_from(">q", converted) == (9,)
    assert gzip.decompress(converted[26:]) == message(7, b"k", b"first", magic=0) + message(
        9, None, None, magic=0
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_becomes_gzip(magic):
    converted = down_convert(batch([A, B], codec=ZSTD), magic)
    assert converted[17] & 7 == GZIP
    assert read_with_kafka_python(converted) == expected([A, B], magic)


@pytest.mark.parametrize(("magic", "checksum"), [(0, LZ4_HISTORIC), (1, LZ4_RIGHT)])
def test_lz4_header_checksum_matches_consumer_format(magic, checksum):
    converted = down_convert(batch([A, B], codec=LZ4), magic)
    frame = converted[34 if magic else 26 :]
    assert frame[:7] == b"\x04\x22\x4d\x18\x60\x40" + bytes([checksum])


def test_snappy_uses_snappy_java_framing():
    converted = down_convert(batch([A, B], codec=SNAPPY), 1)
    assert converted[34:50] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_log_append_time_applies_to_every_record(codec):
    converted = down_convert(batch([A, B], codec=codec, append_time=5000), 1)
    assert read_with_kafka_python(converted) == expected([A, B], 1, append_time=5000)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_control_batch_converts_to_nothing(magic, codec):
    marker = Sample(3, 1000, b"\0\0\0\1", b"\0\0\0\0\0\0")
    assert (
        down_convert(batch([marker], codec=codec, attributes=0x30, producer=(4, 0, -1)), magic)
        == b""
    )


def test_batch_emptied_by_compaction_converts_to_nothing():
    assert down_convert(batch([], base_offset=4, last_offset=9), 1) == b""


def test_transactional_batch_loses_producer():
    converted = down_convert(batch([A, B], attributes=0x10, producer=(9, 1, 5)), 1)
    assert converted == down_convert(batch([A, B]), 1)


@pytest.mark.parametrize(("stored", "magic"), [(0, 0), (0, 1), (1, 1)])
def test_set_of_same_or_older_format_is_unchanged(stored, magic):
    payload = message_set([A, B], magic=stored)
    assert down_convert(payload, magic) == payload


def test_magic_0_has_no_timestamps_of_magic_1():
    assert down_convert(message_set([A, B], magic=1, attributes=8), 0) == message_set(
        [A, B], magic=0
    )


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_magic_1_wrapper_becomes_magic_0_wrapper_of_same_codec(codec):
    converted = down_convert(wrapper([A, B], codec, magic=1), 0)
    assert (converted[16], converted[17]) == (0, codec)
    assert read_with_kafka_python(converted) == expected([A, B], 0)


def test_wrappers_and_plain_messages_keep_their_order():
    plain, later = Sample(3, 1, b"p", b"q"), Sample(12, 2, None, b"z")
    stored = (
        message_set([plain], magic=1)
        + wrapper([A, B], GZIP, magic=1)
        + message_set([later], magic=1)
    )
    assert read_with_kafka_python(down_convert(stored, 0)) == expected([plain, A, B, later], 0)


@prop
@given(samples(), codecs, magics, st.none() | st.integers(min_value=0, max_value=2**42))
def test_other_libraries_read_same_records_from_converted_batch(found, codec, magic, append_time):
    converted = down_convert(batch(found, codec=codec, append_time=append_time), magic)
    assert read_with_kafka_python(converted) == expected(found, magic, append_time)
    if not (magic == 0 and codec == LZ4):
        unknown = [
            one if one[1] != -1 else (one[0], None, None, *one[3:])
            for one in expected(found, magic, append_time)
        ]
        assert read_with_aiokafka(converted) == unknown


@prop
@given(samples(), legacy_codecs)
def test_other_libraries_read_same_records_from_converted_message_set(found, codec):
    stored = wrapper(found, codec, magic=1) if codec else message_set(found, magic=1)
    converted = down_convert(stored, 0)
    assert read_with_kafka_python(converted) == expected(found, 0)


@pytest.mark.parametrize("codec", range(5))
def test_aiokafka_producer_batches_convert(codec):
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset in range(50):
        builder.append(offset, 1000 - offset, b"key", b"value" * offset, [("h", b"1")])
    found = [Sample(offset, 1000 - offset, b"key", b"value" * offset) for offset in range(50)]
    assert read_with_kafka_python(down_convert(bytes(builder.build()), 1)) == expected(found, 1)


@pytest.mark.parametrize("codec", range(5))
def test_kafka_python_producer_batches_convert(codec):
    builder = KafkaPythonBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for offset in range(50):
        builder.append(offset, 1000 - offset, b"key", b"value" * offset, [("h", b"1")])
    found = [Sample(offset, 1000 - offset, b"key", b"value" * offset) for offset in range(50)]
    assert read_with_kafka_python(down_convert(bytes(builder.build()), 0)) == expected(found, 0)


def with_content(content, count=1, **fields):
    return batch([A], content=content, count=count, **fields)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(batch([A])[:-1], id="cut short"),
        pytest.param(batch([A]) + b"\0", id="longer than it says"),
        pytest.param(batch([A])[:-1] + b"!", id="wrong CRC"),
        pytest.param(batch([A], count=2), id="fewer records than announced"),
        pytest.param(batch([A, B], count=1), id="more records than announced"),
        pytest.param(batch([A], count=-1), id="negative count"),
        pytest.param(batch([A], count=2**31 - 1), id="huge count"),
        pytest.param(with_content(record(A, 7, 1000)[:-1]), id="record cut short"),
        pytest.param(with_content(varint(-5) + b"\0" * 20), id="negative record length"),
        pytest.param(with_content(b"\xff\xff\xff\xff\xff\xff\xff"), id="endless varint"),
        pytest.param(
            with_content(varint(2**31 - 1) + b"\0" * 20), id="record length beyond the end"
        ),
        pytest.param(
            with_content(varint(6) + b"\0\0\0" + varint(50) + b"\0\0"), id="key beyond the record"
        ),
        pytest.param(
            with_content(varint(6) + b"\0\0\0" + varint(-2) + b"\0\0"), id="key length -2"
        ),
        pytest.param(
            with_content(varint(6) + b"\0\0\0" + varint(-1) * 2 + varint(1)), id="missing header"
        ),
        pytest.param(
            with_content(varint(6) + b"\0\0\0" + varint(-1) * 2 + varint(-1)),
            id="negative header count",
        ),
        pytest.param(
            with_content(varint(7) + b"\0\0\0" + varint(-1) * 2 + b"\0\0"),
            id="bytes left in the record",
        ),
        pytest.param(with_content(record(A, 7, 1000) * 2, count=2), id="offset repeated"),
        pytest.param(with_content(record(A, 0, 1000)), id="offset beyond the last"),
        pytest.param(with_content(record(A, 8, 1000)), id="offset below the first"),
        pytest.param(
            with_content(
                varint(15) + b"\0" + varint(2**63 - 1) + varint(0) + varint(-1) * 2 + b"\0"
            ),
            id="timestamp past 2^63",
        ),
        pytest.param(batch([A], base_offset=-1), id="negative base offset"),
        pytest.param(b"\0" * 16 + b"\x03" + b"\0" * 80, id="unknown magic"),
    ],
)
@pytest.mark.parametrize("magic", [0, 1])
def test_corrupt_unit_is_rejected(payload, magic):
    with pytest.raises(CorruptRecords):
        down_convert(payload, magic)


def test_unknown_codec_is_rejected():
    with pytest.raises(UnsupportedCodec):
        down_convert(batch([A], attributes=5), 1)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_bomb_is_rejected(codec):
    bomb = batch([Sample(0, 0, None, b"\0" * 1_000_000)], codec=codec)
    with pytest.raises(RecordsTooLarge):
        down_convert(bomb, 1, max_decompressed_bytes=100_000)


def test_other_target_magic_is_rejected():
    with pytest.raises(ValueError, match="magic 2"):
        down_convert(batch([A]), 2)
