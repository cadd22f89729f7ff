import gzip
import tracemalloc
import zlib
from struct import pack

import cramjam
import lz4.frame
import pytest
import xxhash
import zstandard
from aiokafka.codec import (
    gzip_decode,
    gzip_encode,
    lz4_decode,
    lz4_encode,
    snappy_decode,
    snappy_encode,
    zstd_decode,
    zstd_encode,
)
from hypothesis import given
from hypothesis import strategies as st

from records import Codec, CorruptRecords, RecordsTooLarge, UnsupportedCodec
from records.codecs import compress, decompress
from tests.records.sample_records import lz4_frame
from tests.records.strategies import prop

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
PEER = {
    Codec.GZIP: (gzip_encode, gzip_decode),
    Codec.SNAPPY: (snappy_encode, snappy_decode),
    Codec.LZ4: (lz4_encode, lz4_decode),
    Codec.ZSTD: (zstd_encode, zstd_decode),
}
contents = st.binary(max_size=300) | st.binary(min_size=1, max_size=4).map(
    lambda part: part * 30_000
)


@prop
@given(st.sampled_from(COMPRESSING), contents.filter(len))
def test_other_library_reads_compressed_output(codec, content):
    assert PEER[codec][1](compress(codec, content)) == content


@prop
@given(st.sampled_from(COMPRESSING), contents.filter(len))
def test_output_of_other_library_is_decompressed(codec, content):
    assert decompress(codec, PEER[codec][0](content), len(content)) == content


@pytest.mark.parametrize("codec", COMPRESSING)
def test_limit_is_exact(codec):
    written = compress(codec, b"ab" * 50_000)
    assert decompress(codec, written, 100_000) == b"ab" * 50_000
    with pytest.raises(RecordsTooLarge):
        decompress(codec, written, 99_999)


BOMBS = {
    Codec.GZIP: gzip.compress(b"\0" * 30_000_000, 9),
    Codec.SNAPPY: cramjam.snappy.compress_raw(b"\0" * 50_000_000),
    Codec.LZ4: lz4.frame.compress(b"\0" * 30_000_000, store_size=True),
    Codec.ZSTD: zstandard.compress(b"\0" * 30_000_000),
}


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bomb_is_rejected_before_inflating(codec):
    tracemalloc.start()
    try:
        with pytest.raises(RecordsTooLarge):
            decompress(codec, bytes(BOMBS[codec]), 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000 + 2 * len(BOMBS[codec])
    finally:
        tracemalloc.stop()


def test_raw_snappy_is_decompressed():
    assert decompress(Codec.SNAPPY, cramjam.snappy.compress_raw(b"abc" * 100), 1000) == b"abc" * 100


def test_snappy_stream_with_too_many_blocks_is_rejected():
    block = bytes(cramjam.snappy.compress_raw(b"x"))
    with pytest.raises(CorruptRecords):
        decompress(
            Codec.SNAPPY,
            b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1" + (pack(">i", len(block)) + block) * 100_001,
            1_000_000,
        )


def test_all_gzip_members_are_read_and_trailing_bytes_ignored():
    assert (
        decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0", 100)
        == b"one two"
    )


def test_gzip_stream_with_too_many_members_is_rejected():
    with pytest.raises(CorruptRecords):
        decompress(Codec.GZIP, gzip.compress(b"") * 10_000, 100)


@pytest.mark.parametrize("limit", [100, 10_000_000])
@pytest.mark.parametrize("has_size", [False, True])
def test_bytes_after_lz4_frame_are_ignored(limit, has_size):
    assert (
        decompress(Codec.LZ4, lz4.frame.compress(b"one", store_size=has_size) + b"junk", limit)
        == b"one"
    )


@pytest.mark.parametrize("limit", [100, 10_000_000])
@pytest.mark.parametrize("historic", [False, True])
def test_lz4_with_either_header_checksum_is_decompressed(limit, historic):
    assert decompress(Codec.LZ4, lz4_frame(b"content", historic=historic), limit) == b"content"


def test_false_lz4_content_size_reserves_no_memory():
    frame = bytearray(lz4.frame.compress(b"one", store_size=True))
    frame[6:14] = (2**40).to_bytes(8, "little")
    frame[14] = xxhash.xxh32_intdigest(bytes(frame[4:14])) >> 8 & 0xFF
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecords):
            decompress(Codec.LZ4, bytes(frame), 10_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("codec", "content"),
    [
        pytest.param(Codec.GZIP, gzip.compress(b"abc" * 100)[:-4], id="gzip cut short"),
        pytest.param(Codec.GZIP, gzip.compress(b"abc" * 100)[:-8] + b"\0" * 8, id="gzip checksum"),
        pytest.param(Codec.GZIP, zlib.compress(b"abc"), id="zlib is not gzip"),
        pytest.param(Codec.GZIP, b"", id="gzip of nothing"),
        pytest.param(Codec.SNAPPY, b"", id="snappy of nothing"),
        pytest.param(Codec.SNAPPY, b"\x82SNAPPY\x00\0\0", id="xerial header cut short"),
        pytest.param(
            Codec.SNAPPY, b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1\0\0", id="xerial length cut short"
        ),
        pytest.param(
            Codec.SNAPPY,
            b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1" + pack(">i", 50) + b"abc",
            id="xerial block cut short",
        ),
        pytest.param(
            Codec.SNAPPY,
            b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1" + pack(">i", -1),
            id="xerial block of negative length",
        ),
        pytest.param(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"a" * 20, id="snappy claims 4 GiB"),
        pytest.param(Codec.LZ4, b"", id="lz4 of nothing"),
        pytest.param(Codec.LZ4, lz4.frame.compress(b"abc" * 100)[:-4], id="lz4 without end mark"),
        pytest.param(Codec.LZ4, lz4_frame(b"abc" * 100)[:-4], id="lz4 without end mark, in one go"),
        pytest.param(Codec.LZ4, lz4_frame(b"abc" * 100)[:-9], id="lz4 cut short, in one go"),
        pytest.param(Codec.ZSTD, b"junk", id="zstd junk"),
    ],
)
def test_damaged_stream_is_rejected(codec, content):
    with pytest.raises(CorruptRecords):
        decompress(codec, content, 10_000_000)


def test_codec_none_cannot_compress():
    with pytest.raises(UnsupportedCodec):
        compress(Codec.NONE, b"")
    with pytest.raises(UnsupportedCodec):
        decompress(Codec.NONE, b"", 1)
