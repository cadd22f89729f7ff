"""Batches in snappy converted in one kernel call, as all producers write them; the general path
handles those that are invalid.
"""

from __future__ import annotations

import itertools
import random
from struct import pack, unpack_from

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import down_convert_all, read_records
from compat.message_sets.down_conversion import convert_single
from records import CorruptRecords, RecordsError, RecordsTooLarge
from records.codec_libraries import find_snappy_functions
from tests.records.sample_records import NONE, SNAPPY, ZSTD, Sample, batch, message_set, record
from tests.records.strategies import magics, prop, samples

kernel = pytest.importorskip("records._kernel", reason="the kernel is not compiled")

functions = find_snappy_functions()
if functions is None:
    pytest.skip("pulsar-client's library does not export snappy", allow_module_level=True)
kernel.use_snappy(*functions)

LIMIT = 1 << 20
MAGIC = b"\x82SNAPPY\x00"
HEADER = MAGIC + pack(">ii", 1, 1)
"""Of snappy-java's SnappyOutputStream: magic, version, compatible version."""


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


def block(content: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(content))


def framed(*blocks: bytes, header: bytes = HEADER) -> bytes:
    return header + b"".join(pack(">i", len(one)) + one for one in blocks)


def stored(found: list[Sample], stream: bytes, **header) -> bytes:
    """A batch whose records are stored as `stream`."""
    return batch(found, content=stream, attributes=SNAPPY, **header)


def made(payload: bytes, magic: int = 1, limit: int = LIMIT) -> bytes | None:
    (result,) = kernel.down_all([payload], magic, limit)
    return result


def blocks_of(message: bytes) -> list[bytes]:
    """The blocks in the value of a wrapper, decompressed."""
    value = message[18 + 8 * message[16] + 8 :]
    assert value[:16] == HEADER
    found, at = [], 16
    while at < len(value):
        (size,) = unpack_from(">i", value, at)
        found.append(bytes(cramjam.snappy.decompress_raw(value[at + 4 : at + 4 + size])))
        at += 4 + size
    assert at == len(value)
    return found


@prop
@given(
    samples(),
    magics,
    st.none() | st.integers(0, 2**42),
    st.none() | st.lists(st.integers(0, 3000), max_size=4),
)
def test_output_equals_general_path(found, magic, append_time, cuts):
    """Of one block, or of blocks in the framing of snappy-java, which end anywhere."""
    content = raw(found)
    if cuts is None:
        stream = block(content)
    else:
        ends = sorted(min(end, len(content)) for end in (0, *cuts, len(content)))
        parts = itertools.pairwise(ends)
        stream = framed(*(block(content[start:end]) for start, end in parts))
    payload = stored(found, stream, append_time=append_time)
    ours, ordinary = made(payload, magic), convert_single(payload, magic, LIMIT)
    assert ours is not None
    assert list(read_records(ours)) == list(read_records(ordinary))
    assert b"".join(blocks_of(ours)) == b"".join(blocks_of(ordinary))
    # The offset of the last message; then everything except size and checksum, up to the value's
    # length.
    assert (ours[:8], ours[16 : 22 + 8 * magic]) == (ordinary[:8], ordinary[16 : 22 + 8 * magic])


@pytest.mark.parametrize("letters", [b"ab", bytes(range(256))], ids=["shrinks", "does not shrink"])
@pytest.mark.parametrize(
    ("count", "size"), [(1, 0), (15, 1024), (1, 32_768), (3, 65_000), (300, 1024)]
)
@pytest.mark.parametrize("magic", [0, 1])
def test_content_is_complete_in_blocks_of_32_kib(letters, count, size, magic):
    found = some(count, size, letters=letters)
    payload = stored(found, framed(block(raw(found))))
    ours = made(payload, magic)
    # Inner offsets are relative in format 1, and here they begin with 0.
    expected = message_set(found, magic=magic)
    blocks = blocks_of(ours)
    assert b"".join(blocks) == expected
    assert [len(one) for one in blocks[:-1]] == [32 * 1024] * (len(expected) // (32 * 1024))
    assert len(ours) < 1.1 * len(convert_single(payload, magic, LIMIT)) + 10


@pytest.mark.parametrize(
    "header",
    [MAGIC + pack(">ii", 2, 1), MAGIC + bytes(8)],
    ids=["another version", "no version"],
)
def test_versions_in_the_framing_are_ignored(header):
    found = some(3, 10)
    payload = stored(found, framed(block(raw(found)), header=header))
    assert list(read_records(made(payload))) == list(read_records(convert_single(payload, 1, 999)))


GOOD = some(3, 10)
CONTENT = raw(GOOD)
INVALID = {
    "nothing": b"",
    "half a header": HEADER[:12],
    "no block": HEADER,
    "half a length": framed(block(CONTENT)) + b"\0\0",
    "an empty block": framed(block(CONTENT), b""),
    "a negative length": framed(block(CONTENT)) + pack(">i", -1),
    "a length beyond the end": framed(block(CONTENT)) + pack(">i", 5) + block(b"")[:4],
    "the largest length": framed(block(CONTENT)) + pack(">i", 2**31 - 1) + bytes(9),
    "bytes after the block": block(CONTENT) + b"\0",
    "a smaller size than the content": b"\x01" + block(CONTENT)[1:],
    "a larger size than the content": bytes([block(CONTENT)[0] + 1]) + block(CONTENT)[1:],
    "a size of 4 GiB": b"\xff\xff\xff\xff\x0f" + bytes(30),
    "a size of 64 bits": b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(30),
    "a size without an end": b"\xff\xff\xff\xff\xff\xff" * 5,
    "a copy from before the start": b"\x08" + b"\x0f\x09" + bytes(3),
    "a literal beyond the end": b"\x10" + b"\xf0\xff",
    # 22 bytes for each of a block's are possible.
    "an impossible size": b"\xb8\x17" + bytes(28),
}


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("magic", [0, 1])
def test_invalid_stream_is_left_to_the_general_path(name, magic):
    payload = stored(GOOD, INVALID[name])
    assert made(payload, magic) is None
    (refused,) = down_convert_all([payload], magic)
    assert isinstance(refused, RecordsError)


@pytest.mark.parametrize(
    "stream", [block(CONTENT), framed(block(CONTENT[:50]), block(CONTENT[50:]))]
)
def test_every_truncated_stream_is_left_to_the_general_path(stream):
    assert made(stored(GOOD, stream)) is not None
    assert [size for size in range(len(stream)) if made(stored(GOOD, stream[:size]))] == []


@prop
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
    st.binary(max_size=20),
    st.integers(0, 400),
    magics,
)
def test_damaged_stream_is_converted_as_by_the_general_path(is_framed, changes, more, at, magic):
    """The checksum does not protect against hostile producers."""
    found = some(5, 60, letters=b"abc")
    stream = bytearray(framed(block(raw(found))) if is_framed else block(raw(found)))
    for place, value in changes:
        stream[place % len(stream)] = value
    stream[at % len(stream) : at % len(stream)] = more
    payload = stored(found, bytes(stream))
    ours = made(payload, magic)
    if ours is not None:
        ordinary = convert_single(payload, magic, LIMIT)
        assert list(read_records(ours)) == list(read_records(ordinary))


@prop
@given(st.binary(max_size=100), st.sampled_from([b"", HEADER, HEADER + b"\0\0\0\x20"]))
def test_foreign_bytes_are_converted_as_by_the_general_path(content, header):
    payload = stored(GOOD, header + content)
    ours = made(payload)
    if ours is not None:
        assert list(read_records(ours)) == list(read_records(convert_single(payload, 1, LIMIT)))


@pytest.mark.parametrize("cut", [0, 1000], ids=["one block", "blocks"])
def test_limit_is_exact(cut):
    found = some(100, 1024, letters=b"ab")
    content = raw(found)
    stream = framed(block(content[:cut]), block(content[cut:])) if cut else block(content)
    assert made(stored(found, stream), limit=len(content)) is not None
    assert made(stored(found, stream), limit=len(content) - 1) is None


@pytest.mark.parametrize("is_framed", [False, True])
def test_bomb_is_not_decompressed(is_framed):
    found = [Sample(0, 0, None, bytes(50 << 20))]
    packed = block(raw(found))
    payload = stored(found, framed(packed) if is_framed else packed)
    assert made(payload) is None
    with pytest.raises(RecordsTooLarge):
        convert_single(payload, 1, LIMIT)


def test_stream_of_too_many_blocks_is_left_to_the_general_path():
    empty = block(b"")
    blocks = [block(CONTENT), *[empty] * 99_999]
    assert made(stored(GOOD, framed(*blocks))) is not None
    payload = stored(GOOD, framed(*blocks, empty))
    assert made(payload) is None
    with pytest.raises(CorruptRecords):
        convert_single(payload, 1, LIMIT)


def test_many_units_return_in_order():
    units = [
        batch(some(15, 1024 + n, letters=b"abcdef"), codec=codec)
        for n, codec in enumerate((NONE, SNAPPY, ZSTD, SNAPPY, NONE) * 20)
    ]
    for unit, outcome in zip(units, down_convert_all(units, 1), strict=True):
        assert [one.value for one in read_records(outcome)] == [
            one.value for one in read_records(unit)
        ]


@pytest.mark.parametrize(
    ("count", "attributes"), [(4, 0), (2, 0), (2**31 - 1, 0), (-1, 0), (3, 0x20)]
)
def test_invalid_header_is_left_to_the_general_path(count, attributes):
    payload = batch(
        GOOD, content=framed(block(CONTENT)), attributes=SNAPPY | attributes, count=count
    )
    assert made(payload) is None


def test_snappy_is_left_to_the_general_path_without_the_functions():
    payload = batch(GOOD, codec=SNAPPY)
    kernel.use_snappy(0, 0, 0, 0)
    try:
        assert made(payload) is None
        assert kernel.down_run([payload], 1, 1, 0, LIMIT, False, 100, LIMIT) is None
    finally:
        kernel.use_snappy(*functions)
    assert made(payload) is not None
