"""Splitting a stream into frames: in one chunk, byte by byte, and with further bytes behind."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.framing import FrameSplitter
from tests.gateway.protocol.wire.implementations import IMPLEMENTATIONS, use

LIMIT = 1000


@pytest.fixture(autouse=True, scope="module", params=IMPLEMENTATIONS)
def implementation(request):
    """Whole frames are split by compiled code, all others in Python."""
    with pytest.MonkeyPatch.context() as patch:
        use(request.param, patch)
        yield


contents = st.lists(st.binary(max_size=300) | st.just(b"") | st.just(bytes(LIMIT)), max_size=6)


def framed(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@given(bodies=contents)
def test_frames_in_one_chunk_are_split(bodies):
    assert FrameSplitter(LIMIT).feed(framed(*bodies)) == bodies


@given(bodies=contents)
def test_frames_received_byte_by_byte_are_joined(bodies):
    splitter = FrameSplitter(LIMIT)
    stream = framed(*bodies)
    assert [
        frame for index in range(len(stream)) for frame in splitter.feed(stream[index : index + 1])
    ] == bodies
    assert splitter.partial_bytes == 0


@given(bodies=contents, data=st.data())
def test_frames_do_not_depend_on_chunk_boundaries(bodies, data):
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = FrameSplitter(LIMIT)
    pieces = [
        stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    assert [frame for piece in pieces for frame in splitter.feed(memoryview(piece))] == bodies


@given(bodies=contents, begun=st.binary(min_size=1, max_size=50))
def test_partial_frame_after_whole_frames_is_kept(bodies, begun):
    stream = framed(begun)
    for length in range(1, len(stream)):
        splitter = FrameSplitter(LIMIT)
        assert splitter.feed(framed(*bodies) + stream[:length]) == bodies
        assert splitter.partial_bytes == length
        assert splitter.feed(stream[length:]) == [begun]
        assert splitter.partial_bytes == 0


@given(
    pieces=st.lists(
        st.binary(max_size=60) | st.integers(-3, 60).map(lambda length: struct.pack(">i", length)),
        max_size=12,
    )
)
def test_any_bytes_are_frames_or_refused_without_extra_memory(pieces):
    splitter = FrameSplitter(50)
    came = given_out = 0
    for piece in pieces:
        came += len(piece)
        frames = splitter.feed(piece)
        given_out += sum(4 + len(frame) for frame in frames)
        assert all(len(frame) <= 50 for frame in frames)
        if splitter.refusal is not None:
            assert given_out < came
            return
        assert splitter.partial_bytes == came - given_out < 4 + 50


def test_empty_frame_is_returned():
    assert FrameSplitter(LIMIT).feed(bytes(8)) == [b"", b""]


@pytest.mark.parametrize("length", [-1, -(2**31), LIMIT + 1, 2**31 - 1, 0x16030100, 0x47455420])
def test_invalid_length_is_refused_before_content(length):
    refusal = f"frame length {length} is outside 0..{LIMIT}"
    splitter = FrameSplitter(LIMIT)
    assert (splitter.feed(struct.pack(">i", length)), splitter.refusal) == ([], refusal)
    splitter = FrameSplitter(LIMIT)
    for byte in struct.pack(">i", length)[:3]:
        splitter.feed(bytes([byte]))
    assert splitter.refusal is None
    assert (splitter.feed(struct.pack(">i", length)[3:]), splitter.refusal) == ([], refusal)


def test_frames_before_an_invalid_length_are_returned():
    splitter = FrameSplitter(LIMIT)
    stream = framed(b"abc", b"def") + struct.pack(">i", -1) + framed(b"ghi")
    assert splitter.feed(stream) == [b"abc", b"def"]
    assert splitter.refusal == f"frame length -1 is outside 0..{LIMIT}"


def test_frame_of_exactly_the_limit_is_accepted():
    assert FrameSplitter(LIMIT).feed(framed(bytes(LIMIT))) == [bytes(LIMIT)]


def test_new_limit_applies_to_next_frame():
    splitter = FrameSplitter(10)
    splitter.feed(framed(bytes(10))[:-1])
    splitter.limit = 20
    assert splitter.feed(b"\0" + framed(bytes(20))) == [bytes(10), bytes(20)]
    splitter.limit = 10
    assert (splitter.feed(framed(bytes(11))), splitter.refusal is None) == ([], False)


def test_frame_is_independent_of_received_buffer():
    stream = bytearray(framed(b"abc", b"def"))
    first, second = FrameSplitter(LIMIT).feed(memoryview(stream))
    stream[:] = bytes(len(stream))
    first[0:1] = b"x"
    assert (first, second) == (b"xbc", b"def")


def test_announced_frame_allocates_no_memory():
    splitter = FrameSplitter(1 << 30)
    splitter.feed(struct.pack(">i", 1 << 30) + b"abc")
    assert splitter.partial_bytes == 7


def test_frame_in_many_reads_is_copied_once():
    """Joining all parts at each read would hold the frame twice and cost quadratic time."""
    size, chunk = 4 << 20, 1460  # one Ethernet frame, the most reads that a stream can take
    stream = memoryview(framed(bytes(size)))
    splitter = FrameSplitter(size)
    frames = []
    tracemalloc.start()
    try:
        for position in range(0, len(stream), chunk):
            frames += splitter.feed(stream[position : position + chunk])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert frames == [bytes(size)]
    assert peak < 1.5 * size


def test_discarded_partial_frame_frees_memory():
    splitter = FrameSplitter(1 << 20)
    splitter.feed(framed(bytes(1 << 20))[:-1])
    splitter.discard_partial()
    assert (splitter.partial_bytes, splitter.partial_start) == (0, b"")
    assert splitter.feed(framed(b"abc")) == [b"abc"]
