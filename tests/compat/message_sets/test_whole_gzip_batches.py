"""Batches in gzip, as Java clients and librdkafka write them, converted in one kernel call; the
general path handles those that are unusual or invalid.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
import zlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import down_convert_all, read_records
from compat.message_sets.down_conversion import convert_single
from records import RecordsError, RecordsTooLarge
from records.codec_libraries import find_gzip_functions
from tests.records.sample_records import GZIP, NONE, ZSTD, Sample, batch, message_set, record
from tests.records.strategies import magics, prop, samples

kernel = pytest.importorskip("records._kernel", reason="the kernel is not compiled")

functions = find_gzip_functions()
if functions is None:
    pytest.skip("the isal package does not export ISA-L", allow_module_level=True)
kernel.use_gzip(*functions)

LIMIT = 1 << 20
HEADER = b"\x1f\x8b\x08" + bytes(7)
"""That of Java's GZIPOutputStream until version 15: no time, no operating system."""


@pytest.fixture(autouse=True)
def implementation():
    """Uses the kernel only: the plain-Python loops do not implement this."""


def some(count: int, size: int, *, letters: bytes = bytes(range(256))) -> list[Sample]:
    chance = random.Random(1)
    return [
        Sample(n, 1000 + n, b"k%d" % n, bytes(chance.choices(letters, k=size)))
        for n in range(count)
    ]


def raw(found: list[Sample]) -> bytes:
    return b"".join(record(one, found[0].offset, found[0].timestamp) for one in found)


def member(
    content: bytes, *, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY, header=HEADER
) -> bytes:
    """A stream by zlib, as most producers write it."""
    deflate = zlib.compressobj(level, wbits=-15, strategy=strategy)
    body = deflate.compress(content) + deflate.flush()
    return header + body + pack("<II", zlib.crc32(content), len(content))


def with_trailer(body: bytes, content: bytes) -> bytes:
    """A stream whose `body` may be invalid, with checksum and size of `content`."""
    return HEADER + body + pack("<II", zlib.crc32(content), len(content))


def stored(found: list[Sample], stream: bytes, **header) -> bytes:
    """A batch whose records are stored as `stream`."""
    return batch(found, content=stream, attributes=GZIP, **header)


def made(payload: bytes | memoryview, magic: int = 1, limit: int = LIMIT) -> bytes | None:
    (result,) = kernel.down_all([payload], magic, limit)
    return result


def inner(message: bytes) -> bytes:
    """The content of a wrapper."""
    return zlib.decompress(message[18 + 8 * message[16] + 8 :], 31)


@prop
@given(samples(), magics, st.none() | st.integers(0, 2**42), st.integers(0, 9), st.integers(0, 4))
def test_output_equals_general_path(found, magic, append_time, level, strategy):
    stream = member(raw(found), level=level, strategy=strategy)
    payload = stored(found, stream, append_time=append_time)
    ours, ordinary = made(payload, magic), convert_single(payload, magic, LIMIT)
    assert ours is not None
    assert list(read_records(ours)) == list(read_records(ordinary))
    assert inner(ours) == inner(ordinary)
    # The offset of the last message; then everything except size and checksum, up to the value's
    # length.
    assert (ours[:8], ours[16 : 22 + 8 * magic]) == (ordinary[:8], ordinary[16 : 22 + 8 * magic])


@pytest.mark.parametrize("letters", [b"ab", bytes(range(256))], ids=["shrinks", "does not shrink"])
@pytest.mark.parametrize(
    ("count", "size"), [(1, 0), (15, 1024), (1, 65_600), (3, 300_000), (300, 1024)]
)
@pytest.mark.parametrize("magic", [0, 1])
def test_content_of_any_size_is_complete(letters, count, size, magic):
    found = some(count, size, letters=letters)
    payload = stored(found, member(raw(found)))
    ours = made(payload, magic)
    # Inner offsets are relative in format 1, and here they begin with 0.
    assert inner(ours) == message_set(found, magic=magic)
    assert len(ours) < 1.05 * len(convert_single(payload, magic, LIMIT)) + 10


@pytest.mark.parametrize(
    "header",
    [
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
        b"\x1f\x8b\x08\x00\x80\x01\x02\x03\x02\x03",
    ],
    ids=["Java 16", "librdkafka", "a time and the best compression"],
)
def test_fields_of_fixed_size_in_the_header_are_ignored(header):
    found = some(3, 10)
    payload = stored(found, member(raw(found), header=header))
    assert list(read_records(made(payload))) == list(read_records(convert_single(payload, 1, 999)))


GOOD = some(3, 10)
CONTENT = raw(GOOD)
STREAM = member(CONTENT)
BODY = STREAM[10:-8]
UNUSUAL = {
    "a name": member(CONTENT, header=b"\x1f\x8b\x08\x08" + bytes(6) + b"name\0"),
    "two members": member(CONTENT[:9]) + member(CONTENT[9:]),
    "an empty second member": STREAM + member(b""),
    "bytes after the stream": STREAM + b"junk",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_stream_is_converted_by_the_general_path(name):
    payload = stored(GOOD, UNUSUAL[name])
    assert made(payload) is None
    (ordinary,) = down_convert_all([payload], 1)
    assert [one.value for one in read_records(ordinary)] == [one.value for one in GOOD]


INVALID = {
    "nothing": b"",
    "half a header": HEADER[:5],
    "no content": HEADER,
    "another method": member(CONTENT, header=b"\x1f\x8b\x07" + bytes(7)),
    "another checksum": STREAM[:-8] + pack("<II", zlib.crc32(CONTENT) ^ 1, len(CONTENT)),
    "a smaller size": STREAM[:-4] + pack("<I", len(CONTENT) - 1),
    "a larger size": STREAM[:-4] + pack("<I", len(CONTENT) + 1),
    "a size of 4 GiB": STREAM[:-4] + b"\xff\xff\xff\xff",
    "no trailer": STREAM[:-8],
    "a block of an unknown type": with_trailer(b"\x07" + BODY[1:], CONTENT),
    "a stored block with a wrong size": with_trailer(b"\x01\x05\x00\x00\x00" + CONTENT, CONTENT),
    # Fixed codes: a copy of three bytes, from one byte before.
    "a copy from before the start": with_trailer(b"\x03\x02\x00" + bytes(8), CONTENT),
    "codes of impossible lengths": with_trailer(b"\x05\xc0\x81\x00" + b"\xff" * 40, CONTENT),
    "half a block": with_trailer(BODY[: len(BODY) // 2], CONTENT),
    "no last block": with_trailer(b"\x00\x00\x00\xff\xff", b""),
}


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("magic", [0, 1])
def test_invalid_stream_is_left_to_the_general_path(name, magic):
    payload = stored(GOOD, INVALID[name])
    assert made(payload, magic) is None
    (refused,) = down_convert_all([payload], magic)
    assert isinstance(refused, RecordsError)


def test_every_truncated_stream_is_left_to_the_general_path():
    assert made(stored(GOOD, STREAM)) is not None
    assert [size for size in range(len(STREAM)) if made(stored(GOOD, STREAM[:size]))] == []
    shorter = [with_trailer(BODY[:size], CONTENT) for size in range(len(BODY))]
    assert [stream for stream in shorter if made(stored(GOOD, stream))] == []


@prop
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
    st.binary(max_size=20),
    st.integers(0, 400),
    magics,
    st.booleans(),
)
def test_damaged_stream_is_converted_as_by_the_general_path(changes, more, at, magic, is_valid):
    """The checksum of the batch does not protect against hostile producers, nor does that of the
    stream.
    """
    found = some(5, 60, letters=b"abc")
    stream = bytearray(member(raw(found)))
    for place, value in changes:
        stream[place % len(stream)] = value
    stream[at % len(stream) : at % len(stream)] = more
    inflate = zlib.decompressobj(-15)
    if is_valid:
        # What is left is a stream with the right trailer, if it can be decompressed.
        try:
            content = inflate.decompress(stream[10:], LIMIT)
        except zlib.error:
            pass
        else:
            stream[-8:] = pack("<II", zlib.crc32(content), len(content))
    payload = stored(found, bytes(stream))
    ours = made(payload, magic)
    if ours is not None:
        ordinary = convert_single(payload, magic, LIMIT)
        assert list(read_records(ours)) == list(read_records(ordinary))


@prop
@given(st.binary(max_size=100), st.integers(0, 300))
def test_foreign_bytes_are_converted_as_by_the_general_path(content, size):
    payload = stored(GOOD, with_trailer(content, bytes(size)))
    ours = made(payload)
    if ours is not None:
        assert list(read_records(ours)) == list(read_records(convert_single(payload, 1, LIMIT)))


@pytest.mark.skipif(sys.platform != "linux", reason="it uses Linux's numbers")
@pytest.mark.parametrize("level", [0, 1, 6])
def test_nothing_behind_the_batch_is_read(level):
    """The page after the batch is not readable: a read there would end the process."""
    area = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    end = 2 * mmap.PAGESIZE
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert mprotect(address + end, mmap.PAGESIZE, 0) == 0
    for size in (0, 1, 7, 100, 1000, 2000):
        found = some(2, size, letters=b"abcdef")
        stream = member(raw(found), level=level)
        body = stream[10:-8]
        streams = [with_trailer(body[:cut], raw(found)) for cut in (0, 1, 5, len(body) - 1)]
        streams += [stream[:-1], stream[:-8], stream[:-9]]
        for one in (stream, *streams):
            payload = stored(found, one)
            area[end - len(payload) : end] = payload
            with memoryview(area) as whole, whole[end - len(payload) : end] as view:
                assert (made(view) is None) == (one is not stream)


def test_run_of_streams_that_take_long_ends_before_its_last_batch():
    """Empty blocks: each of them takes as long as a block with content, and unpacks to nothing."""
    blocks = (2 | 2 << 10 | 2 << 20 | 2 << 30).to_bytes(5, "little")
    slow = stored(GOOD, with_trailer(blocks * (500_000 // 5) + BODY, CONTENT))
    assert made(slow) is not None
    _, counts, is_short = kernel.down_run([slow] * 40, 40, 1, 0, LIMIT, False, 1000, LIMIT)
    assert is_short
    assert counts[0] < 40


def test_limit_is_exact():
    found = some(100, 1024, letters=b"ab")
    payload = stored(found, member(raw(found)))
    assert made(payload, limit=len(raw(found))) is not None
    assert made(payload, limit=len(raw(found)) - 1) is None


@pytest.mark.parametrize("size", [None, 100], ids=["its size", "a smaller size"])
def test_bomb_is_not_decompressed(size):
    found = [Sample(0, 0, None, bytes(50 << 20))]
    stream = member(raw(found))
    if size is not None:
        stream = stream[:-4] + pack("<I", size)
    payload = stored(found, stream)
    assert made(payload) is None
    with pytest.raises(RecordsTooLarge):
        convert_single(payload, 1, LIMIT)


def test_largest_expansion_is_converted():
    """Deflate expands 1,032 times at most."""
    found = [Sample(0, 0, None, bytes(900 << 10))]
    payload = stored(found, member(raw(found), level=9))
    assert len(raw(found)) > 900 * (len(payload) - 61)
    assert [len(one.value) for one in read_records(made(payload))] == [900 << 10]


def test_many_units_return_in_order():
    units = [
        batch(some(15, 1024 + n, letters=b"abcdef"), codec=codec)
        for n, codec in enumerate((NONE, GZIP, ZSTD, GZIP, NONE) * 20)
    ]
    for unit, outcome in zip(units, down_convert_all(units, 1), strict=True):
        assert [one.value for one in read_records(outcome)] == [
            one.value for one in read_records(unit)
        ]


@pytest.mark.parametrize(
    ("count", "attributes"), [(4, 0), (2, 0), (2**31 - 1, 0), (-1, 0), (3, 0x20)]
)
def test_invalid_header_is_left_to_the_general_path(count, attributes):
    payload = batch(GOOD, content=STREAM, attributes=GZIP | attributes, count=count)
    assert made(payload) is None


def test_gzip_is_left_to_the_general_path_without_the_functions():
    payload = batch(GOOD, codec=GZIP)
    kernel.use_gzip(0, 0, 0, 0, 0, 0)
    try:
        assert made(payload) is None
        assert kernel.down_run([payload], 1, 1, 0, LIMIT, False, 100, LIMIT) is None
    finally:
        kernel.use_gzip(*functions)
    assert made(payload) is not None
