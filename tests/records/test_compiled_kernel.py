"""The compiled kernel and the plain-Python loops give the same results and errors for valid and
invalid bytes.
"""

from __future__ import annotations

import zlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import RecordsError, _pure
from tests.records.sample_records import Sample, batch, message, message_set, records_of, varint
from tests.records.strategies import prop, samples

kernel = pytest.importorskip("records._kernel", reason="the kernel is not compiled")


@pytest.fixture(autouse=True)
def implementation():
    """These tests use both implementations at once."""


def outcome(function, *arguments):
    """The result or error, and the content of the buffer afterwards."""
    arguments = tuple(bytearray(one) if isinstance(one, bytes) else one for one in arguments)
    try:
        return function(*arguments), arguments[0]
    except RecordsError as error:
        return type(error), str(error), arguments[0]


def agree(name, *arguments):
    assert outcome(getattr(kernel, name), *arguments) == outcome(getattr(_pure, name), *arguments)


stored = st.lists(
    st.binary(max_size=80)
    | st.builds(
        lambda start, magic, rest: start + bytes([magic]) + rest,
        st.binary(min_size=16, max_size=16),
        st.integers(0, 3),
        st.binary(max_size=60),
    ),
    max_size=6,
)


@prop
@given(stored, st.sampled_from([bytes, bytearray, memoryview]))
def test_tallies_agree(payloads, kind):
    agree("tally", [kind(payload) for payload in payloads])


@prop
@given(stored, st.integers(0, 3))
def test_conversions_agree(payloads, magic):
    agree("conversions", list(map(memoryview, payloads)), magic)


edges = st.sampled_from((-(2**31), -2, -1, 0, 1, 2, 7, 13, 14, 21, 22, 26, 100, 2**31 - 1))
offsets = st.sampled_from((-(2**63), -1, 0, 1, 5, 2**62, 2**63 - 1)) | st.integers(0, 50)
times = st.sampled_from((-(2**63), -1, 0, 5, 2**63 - 1)) | st.integers(0, 2**42)


@st.composite
def fields(draw) -> bytes:
    """A 4-byte length followed by that many bytes, or a wrong number."""
    content = draw(st.binary(max_size=20))
    size = draw(st.just(len(content)) | edges)
    return pack(">i", size) + content


@st.composite
def loose_messages(draw) -> bytes:
    """Messages with arbitrary content and mostly correct CRC, as only a hostile producer sends."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        magic = draw(st.sampled_from((0, 1, 1, 1, 2)))
        attributes = draw(st.sampled_from((0, 0, 0, 1, 4, 7, 8, 9, 0xF0)))
        body = (
            bytes((magic, attributes))
            + (pack(">q", draw(times)) if magic else b"")
            + draw(fields())
            + draw(fields())
        )
        size = draw(st.just(len(body) + 4) | edges) if draw(st.booleans()) else len(body) + 4
        crc = zlib.crc32(body) if draw(st.integers(0, 9)) else 1
        found.append(pack(">qiI", draw(st.just(number) | offsets), size, crc) + body)
    whole = b"".join(found)
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.integers(0, 5)) == 0 else whole


wide = st.sampled_from(
    (-(2**63), -(2**31) - 1, -(2**31), -2, -1, 0, 1, 5, 2**31 - 1, 2**31, 2**63 - 1)
)


@st.composite
def loose_records(draw) -> tuple[bytes, int]:
    """(magic-2 records with arbitrary fields, record count)"""
    found = []
    count = draw(st.integers(0, 4))
    for number in range(count):
        body = (
            bytes(1) + varint(draw(st.integers(0, 9) | wide)) + varint(draw(st.just(number) | wide))
        )
        for _ in range(2):
            content = draw(st.none() | st.binary(max_size=10))
            size = -1 if content is None else len(content)
            body += varint(draw(st.just(size)) if draw(st.integers(0, 5)) else draw(wide)) + (
                content or b""
            )
        body += draw(
            st.sampled_from(
                (
                    b"\0",
                    b"\0",
                    b"\0",
                    b"\2\2a\1",
                    b"\2\2a\2b",
                    b"\1",
                    b"\4\2a\1",
                    b"\2\1\1",
                    b"\xff\xff\xff\xff\xff\xff",
                )
            )
        )
        found.append(varint(len(body) if draw(st.integers(0, 9)) else draw(wide)) + body)
    whole = b"".join(found)
    if draw(st.integers(0, 5)) == 0:
        whole = whole[: draw(st.integers(0, len(whole)))]
    return whole, count


anything = (
    loose_messages()
    | st.binary(max_size=80)
    | samples().map(lambda found: message_set(found, magic=1))
)


@prop
@given(anything, st.integers(-1, 1), st.booleans())
def test_compiled_scan_equals_pure_python(messages, magic, is_inner):
    agree("scan", messages, magic, is_inner)


@prop
@given(anything, st.integers(0, 100))
def test_compiled_plain_run_equals_pure_python(messages, start):
    agree("plain_run", messages, start)


@prop
@given(anything, offsets, st.integers(0, 200))
def test_compiled_cut_equals_pure_python(messages, offset, max_bytes):
    agree("cut", messages, offset, max_bytes)


@prop
@given(anything, st.integers(0, 2**62), st.none() | times)
def test_compiled_stamp_equals_pure_python(messages, base_offset, append_time):
    agree("stamp", messages, base_offset, append_time)


@prop
@given(anything, offsets)
def test_compiled_down_messages_equals_pure_python(messages, shift):
    agree("down_messages", messages, shift)


@prop
@given(anything, st.integers(0, 1), offsets, st.integers(0, 60), times, st.none() | times)
def test_compiled_up_messages_equals_pure_python(
    messages, magic, shift, base_offset, base_timestamp, append_time
):
    agree("up_messages", messages, magic, shift, base_offset, base_timestamp, append_time)


@prop
@given(
    loose_records(),
    st.integers(-1, 1),
    st.integers(0, 2**62),
    st.sampled_from((0, 3, 2**31 - 1)),
    times,
    st.none() | times,
    st.integers(0, 1),
    st.booleans(),
)
def test_compiled_down_batch_equals_pure_python(
    found, more, base_offset, last_delta, base_timestamp, append_time, magic, is_relative
):
    records, count = found
    agree(
        "down_batch",
        records,
        max(count + more, 0),
        base_offset,
        last_delta,
        base_timestamp,
        append_time,
        magic,
        is_relative,
    )


@prop
@given(st.binary(max_size=100), st.integers(0, 9))
def test_compiled_down_batch_equals_pure_python_on_garbage(records, count):
    agree("down_batch", records, count, 0, 100, 0, None, 1, False)


@prop
@given(samples(), st.integers(0, 1), st.booleans())
def test_compiled_down_batch_equals_pure_python_on_valid_records(found, magic, is_relative):
    base = found[0]
    agree(
        "down_batch",
        records_of(found),
        len(found),
        base.offset,
        found[-1].offset - base.offset,
        base.timestamp,
        None,
        magic,
        is_relative,
    )


#: From 256 bytes on, AVX-512 is used if the processor has it: 256, 64 and 16 bytes at a time;
#: otherwise AVX2, 128 and 16 bytes at a time.
CRC_SIZES = [*range(130), *range(200, 660, 7), *range(252, 262), 1000, 4095, 65_537]


@pytest.mark.parametrize("size", CRC_SIZES)
def test_crc_equals_zlib_for_every_length(size):
    content = bytes(n * 7 % 251 for n in range(size))
    assert kernel.scan(message(0, None, content), -1, False).messages == 1


@pytest.mark.parametrize("size", CRC_SIZES)
def test_crc_of_batch_equals_that_of_library_for_every_length(size):
    """The conversion checks the CRC-32C that `batch` has from the library."""
    content = bytes(n * 7 % 251 for n in range(size))
    payload = bytearray(batch([Sample(0, 0, None, content)]))
    assert kernel.down_all([payload], 1, 1 << 20) != [None]
    payload[-1] ^= 1
    assert kernel.down_all([payload], 1, 1 << 20) == [None]


def test_large_batch_converts_equally_without_gil():
    found = [Sample(n, 1000 + n, b"key", bytes(100)) for n in range(2000)]
    payload = batch(found)[61:]
    agree("down_batch", payload, 2000, 0, 1999, 1000, None, 1, False)
    agree("scan", message_set(found, magic=1), -1, False)
    agree("stamp", message_set(found, magic=1), 70, 5)


@pytest.mark.parametrize("name", ["scan", "plain_run", "cut", "down_messages"])
def test_buffers_are_released(name):
    """A bytearray with an exported buffer cannot be resized."""
    arguments = {"scan": (-1, False), "plain_run": (0,), "cut": (0, 10), "down_messages": (0,)}[
        name
    ]
    for content in (message_set([Sample(0, 0, b"k", b"v")], magic=1), b"junk" * 10):
        buffer = bytearray(content)
        outcome(lambda *rest, buffer=buffer: getattr(kernel, name)(buffer, *rest), *arguments)
        buffer.append(0)
