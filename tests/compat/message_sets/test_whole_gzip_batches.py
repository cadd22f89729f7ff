"""Batches in gzip, as Java clients and librdkafka write them, converted in one kernel call."""

from __future__ import annotations

import ctypes
import mmap
import sys
import zlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import read_records
from compat.message_sets.down_conversion import convert_single
from records import RecordsTooLarge
from tests.compat.message_sets.streams import BODY, CONTENT, GOOD, gzip_member, with_trailer
from tests.compat.message_sets.whole_batches import (
    LIMIT,
    convert_twice,
    convert_whole,
    fields_of,
    is_left_or_equal,
    kernel,
    needs,
)
from tests.records.kernels import kernel_only
from tests.records.sample_records import GZIP, Sample, batch, random_samples, records_of
from tests.records.strategies import damaged, magics, prop, samples

pytestmark = [kernel_only, needs(GZIP)]


def stored(found: list[Sample], stream: bytes) -> bytes:
    return batch(found, content=stream, attributes=GZIP)


@prop
@given(samples(), magics, st.integers(0, 9), st.integers(0, 4))
def test_output_equals_general_path_with_each_level_and_strategy(found, magic, level, strategy):
    stream = gzip_member(records_of(found), level, strategy)
    ours, ordinary = convert_twice(stored(found, stream), magic)
    assert list(read_records(ours)) == list(read_records(ordinary))
    assert fields_of(ours) == fields_of(ordinary)


def test_every_truncated_body_is_left_to_the_general_path():
    for size in range(len(BODY)):
        assert convert_whole(stored(GOOD, with_trailer(BODY[:size], CONTENT))) is None


COMPRESSIBLE = random_samples(5, 60, letters=b"abc")


@prop
@given(damaged(gzip_member(records_of(COMPRESSIBLE))), magics)
def test_damaged_stream_with_matching_trailer_is_converted_as_by_the_general_path(stream, magic):
    """The checksum of the stream does not protect against hostile producers, either."""
    try:
        content = zlib.decompressobj(-15).decompress(stream[10:], LIMIT)
    except zlib.error:
        content = b""
    stream = with_trailer(stream[10:-8], content, stream[:10])
    assert is_left_or_equal(stored(COMPRESSIBLE, stream), magic)


@prop
@given(st.binary(max_size=100), st.integers(0, 300))
def test_foreign_bytes_are_converted_as_by_the_general_path(content, size):
    assert is_left_or_equal(stored(GOOD, with_trailer(content, bytes(size))))


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
        found = random_samples(2, size, letters=b"abcdef")
        stream = gzip_member(records_of(found), level)
        body = stream[10:-8]
        streams = [with_trailer(body[:cut], records_of(found)) for cut in (0, 1, 5, len(body) - 1)]
        streams += [stream[:-1], stream[:-8], stream[:-9]]
        for one in (stream, *streams):
            payload = stored(found, one)
            area[end - len(payload) : end] = payload
            with memoryview(area) as whole, whole[end - len(payload) : end] as view:
                assert (convert_whole(view) is None) == (one is not stream)


def test_run_of_streams_that_take_long_ends_before_its_last_batch():
    """Empty blocks: each of them takes as long as a block with content, and unpacks to nothing."""
    blocks = (2 | 2 << 10 | 2 << 20 | 2 << 30).to_bytes(5, "little")
    slow = stored(GOOD, with_trailer(blocks * (500_000 // 5) + BODY, CONTENT))
    assert convert_whole(slow) is not None
    _, counts, is_short = kernel.down_run([slow] * 40, 40, 1, 0, LIMIT, False, 1000, LIMIT)
    assert is_short
    assert counts[0] < 40


def test_bomb_with_a_smaller_size_is_not_decompressed():
    found = [Sample(0, 0, None, bytes(50 << 20))]
    payload = stored(found, gzip_member(records_of(found))[:-4] + pack("<I", 100))
    assert convert_whole(payload) is None
    with pytest.raises(RecordsTooLarge):
        convert_single(payload, 1, LIMIT)


def test_largest_expansion_is_converted():
    """Deflate expands 1,032 times at most."""
    found = [Sample(0, 0, None, bytes(900 << 10))]
    payload = stored(found, gzip_member(records_of(found), 9))
    assert len(records_of(found)) > 900 * (len(payload) - 61)
    assert [len(one.value) for one in read_records(convert_whole(payload))] == [900 << 10]
