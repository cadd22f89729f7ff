import gzip
import zlib
from struct import pack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from compat.message_sets import check_message_set
from records import (
    Codec,
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    RecordsTooLarge,
    UnsupportedCodec,
)
from tests.records.peers import read_with_kafka_python
from tests.records.sample_records import (
    GZIP,
    LZ4,
    LZ4_HISTORIC,
    LZ4_RIGHT,
    NONE,
    SNAPPY,
    Sample,
    compress,
    field,
    lz4_frame,
    message,
    message_set,
    wrapper,
)
from tests.records.strategies import legacy_codecs, magics, prop, samples

LIMIT = 1 << 20
A = Sample(0, 1000, b"k", b"first")
B = Sample(1, 990, None, None)


def check(payload, limit=LIMIT):
    return check_message_set(payload, max_decompressed_bytes=limit)


def stamp(payload, base_offset, log_append_time=None):
    buffer = bytearray(payload)
    return bytes(check(buffer).stamp(buffer, base_offset, log_append_time))


def test_plain_set_is_described():
    found = check(message_set([A, B], magic=1))
    assert (found.magic, found.count, found.max_timestamp, found.codec) == (1, 2, 1000, Codec.NONE)
    assert (found.largest, found.has_null_key, found.repack) == (12 + 22 + 1 + 5, True, False)


def test_magic_0_has_no_timestamps():
    assert check(message_set([A], magic=0)).max_timestamp == -1


def test_compressed_set_is_described_by_inner_records():
    payload = wrapper([A, Sample(1, 2000, b"j", None)], SNAPPY, magic=1, timestamp=5)
    found = check(payload)
    assert (found.magic, found.count, found.max_timestamp, found.codec) == (
        1,
        2,
        2000,
        Codec.SNAPPY,
    )
    assert (found.largest, found.has_null_key, found.repack) == (len(payload), False, False)


def test_empty_set_has_no_records():
    assert check(b"").count == 0
    assert stamp(b"", 5) == b""


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_messages_are_stamped_in_place(magic):
    buffer = bytearray(message_set([A, B], magic=magic))
    assert check(buffer).stamp(buffer, 70, None) is buffer
    assert buffer == message_set(
        [Sample(70, 1000, b"k", b"first"), Sample(71, 990, None, None)], magic=magic
    )


def test_valid_magic_1_wrapper_is_stamped_in_place_with_last_offset():
    buffer = bytearray(wrapper([A, B], GZIP, magic=1))
    before = bytes(buffer)
    assert check(buffer).stamp(buffer, 70, None) is buffer
    assert buffer == pack(">q", 71) + before[8:]


def test_wrapper_gets_max_timestamp_of_its_records():
    assert stamp(wrapper([A, B], GZIP, magic=1, timestamp=-1), 0) == wrapper(
        [A, B], GZIP, magic=1, timestamp=1000
    )


def test_zero_inner_offsets_from_sarama_become_relative():
    payload = wrapper([A, B, A], GZIP, magic=1, inner_offsets=[0, 0, 0], offset=0)
    assert check(payload).repack
    stamped = stamp(payload, 70)
    assert unpack_from(">q", stamped) == (72,)
    assert gzip.decompress(stamped[34:]) == message_set(
        [A, B, Sample(2, 1000, b"k", b"first")], magic=1
    )


def test_magic_0_wrapper_is_repacked_with_absolute_inner_offsets():
    payload = wrapper([A, B], GZIP, magic=0)
    assert check(payload).repack
    stamped = stamp(payload, 70)
    assert unpack_from(">q", stamped) == (71,)
    assert gzip.decompress(stamped[26:]) == message_set(
        [Sample(70, -1, b"k", b"first"), Sample(71, -1, None, None)], magic=0
    )


def test_wrappers_and_plain_messages_get_consecutive_offsets():
    payload = (
        message_set([A], magic=1)
        + wrapper([A, B], GZIP, magic=1, inner_offsets=[0, 0])
        + message_set([B], magic=1)
        + wrapper([A], LZ4, magic=1)
    )
    assert check(payload).count == 5
    assert [one[0] for one in read_with_kafka_python(stamp(payload, 100))] == [
        100,
        101,
        102,
        103,
        104,
    ]


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_log_append_time_replaces_timestamps_of_magic_1(codec):
    payload = wrapper([A, B], codec, magic=1) if codec else message_set([A, B], magic=1)
    found = read_with_kafka_python(stamp(payload, 5, 7777))
    assert [one[:3] for one in found] == [(5, 7777, 1), (6, 7777, 1)]


def test_log_append_time_is_ignored_in_magic_0():
    assert stamp(message_set([A], magic=0), 0, 7777) == message_set([A], magic=0)


@pytest.mark.parametrize(("magic", "written"), [(0, LZ4_HISTORIC), (1, LZ4_RIGHT)])
@pytest.mark.parametrize("sent", [False, True], ids=["right", "historic"])
def test_either_lz4_checksum_is_accepted_and_stored_as_format_requires(magic, written, sent):
    inner = message_set([A, B], magic=magic)
    payload = message(
        1, None, lz4_frame(inner, historic=sent), magic=magic, timestamp=1000, attributes=LZ4
    )
    stamped = stamp(payload, 0)
    assert stamped[32 + 8 * magic] == written
    assert [one[3:5] for one in read_with_kafka_python(stamped)] == [(b"k", b"first"), (None, None)]


def test_wrong_lz4_header_checksum_is_rejected():
    frame = bytearray(lz4_frame(message_set([A], magic=1)))
    frame[6] ^= 0xFF
    with pytest.raises(CorruptRecords):
        check(message(0, None, bytes(frame), attributes=LZ4))


def test_dependent_lz4_blocks_are_rejected():
    frame = bytearray(lz4_frame(message_set([A], magic=1)))
    # block independence off, with the matching checksum (reference library)
    frame[4:7] = b"\x40\x40\xc0"
    with pytest.raises(InvalidRecords):
        check(message(0, None, bytes(frame), attributes=LZ4))


def inner_of(content, magic=1, codec=GZIP):
    return message(0, None, compress(codec, content, magic=magic), magic=magic, attributes=codec)


def with_size(payload, size):
    return payload[:8] + pack(">i", size) + payload[12:]


PLAIN = message(0, b"k", b"v")


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        pytest.param(PLAIN[:-1], CorruptRecords, id="cut short"),
        pytest.param(PLAIN + PLAIN[:20], CorruptRecords, id="second message cut short"),
        pytest.param(PLAIN + b"\0" * 40, CorruptRecords, id="zeros behind"),
        pytest.param(message(0, b"k", b"v", crc=1), CorruptRecords, id="wrong CRC"),
        pytest.param(with_size(PLAIN, -1), CorruptRecords, id="negative size"),
        pytest.param(with_size(PLAIN, 21), CorruptRecords, id="size below the overhead"),
        pytest.param(with_size(PLAIN, 2**31 - 1), CorruptRecords, id="huge size"),
        pytest.param(
            b"\0" * 8 + pack(">i", 30) + pack(">I", zlib.crc32(b"\x01" * 26)) + b"\x01" * 26,
            CorruptRecords,
            id="key too long",
        ),
        pytest.param(
            message(0, b"k", b"v") + message(0, b"k", b"v", magic=0),
            InvalidRecords,
            id="mixed formats",
        ),
        pytest.param(message(0, b"k", b"v", magic=2), InvalidRecords, id="magic 2"),
        pytest.param(message(0, b"k", b"v", attributes=4), UnsupportedCodec, id="zstd"),
        pytest.param(message(0, b"k", b"v", attributes=7), UnsupportedCodec, id="codec 7"),
        pytest.param(message(0, b"k", b"v", attributes=8), InvalidTimestamp, id="LogAppendTime"),
        pytest.param(
            message(0, None, None, attributes=GZIP), InvalidRecords, id="wrapper without value"
        ),
        pytest.param(
            message(0, None, b"junk", attributes=GZIP), CorruptRecords, id="wrapper of junk"
        ),
        pytest.param(inner_of(b""), InvalidRecords, id="empty wrapper"),
        pytest.param(inner_of(PLAIN[:-1]), CorruptRecords, id="inner cut short"),
        pytest.param(inner_of(message(0, b"k", b"v", crc=1)), CorruptRecords, id="inner CRC"),
        pytest.param(
            inner_of(message(0, b"k", b"v", magic=0)), InvalidRecords, id="inner format differs"
        ),
        pytest.param(inner_of(inner_of(PLAIN)), InvalidRecords, id="nested"),
    ],
)
def test_invalid_set_is_rejected(payload, error):
    with pytest.raises(error):
        check(payload)


def test_message_not_filled_by_its_fields_is_rejected():
    body = b"\x01\0" + pack(">q", 5) + field(b"k") + field(b"v") + b"left over"
    with pytest.raises(CorruptRecords):
        check(pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_bomb_is_rejected(codec):
    with pytest.raises(RecordsTooLarge):
        check(inner_of(b"\0" * 3_000_000, codec=codec), limit=1_000_000)


def test_limit_applies_to_all_wrappers_together():
    one = wrapper([Sample(0, 0, None, b"x" * 900)], GZIP, magic=1)
    assert check(one * 2, limit=2000).count == 2
    with pytest.raises(RecordsTooLarge):
        check(one * 3, limit=2000)


def test_offsets_beyond_63_bits_are_rejected():
    with pytest.raises(InvalidRecords):
        stamp(message_set([A, B], magic=1), 2**63 - 2)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(4))
def test_kafka_python_producer_sets_are_accepted(magic, codec):
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset in range(20):
        builder.append(offset, 5000 + offset, b"key", b"value" * offset)
    found = read_with_kafka_python(stamp(bytes(builder.build()), 300))
    assert [(one[0], one[1], one[4]) for one in found] == [
        (300 + n, 5000 + n if magic else None, b"value" * n) for n in range(20)
    ]


@prop
@given(samples(), magics, legacy_codecs, st.integers(0, 2**62), st.none() | st.integers(0, 2**42))
def test_stamped_set_has_same_records_at_consecutive_offsets(
    found, magic, codec, base_offset, append_time
):
    payload = wrapper(found, codec, magic=magic) if codec else message_set(found, magic=magic)
    read = read_with_kafka_python(stamp(payload, base_offset, append_time))
    if magic == 0:
        times = [(None, None) for _ in found]
    elif append_time is not None:
        times = [(append_time, 1) for _ in found]
    else:
        times = [(s.timestamp, 0) for s in found]
    assert read == [
        (base_offset + n, *time, s.key, s.value, ())
        for n, (s, time) in enumerate(zip(found, times, strict=True))
    ]


@pytest.mark.parametrize("log_append_time", [None, 5])
def test_unknown_attribute_bits_are_kept(log_append_time):
    stamped = stamp(message(0, b"k", b"v", attributes=0xF0), 0, log_append_time)
    assert stamped[17] == (0xF0 if log_append_time is None else 0xF8)


def test_set_with_too_many_wrappers_is_rejected():
    one = wrapper([A], GZIP, magic=1)
    assert check(one * 1000).count == 1000
    with pytest.raises(InvalidRecords):
        check(one * 1001)
