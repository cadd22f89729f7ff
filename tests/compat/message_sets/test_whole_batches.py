"""Batches converted in one kernel call: same output as the general path, which handles everything
unusual or invalid.
"""

from __future__ import annotations

import random
from struct import pack_into

import crc32c
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import down_convert, down_convert_all, read_records
from compat.message_sets.down_conversion import convert_single
from records import RecordsError
from tests.records.sample_records import (
    GZIP,
    LZ4,
    LZ4_HISTORIC,
    NONE,
    ZSTD,
    Sample,
    batch,
    lz4_frame,
    message_set,
    record,
)
from tests.records.strategies import prop, samples

kernel = pytest.importorskip("records._kernel", reason="the kernel is not compiled")

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def implementation():
    """Uses the kernel only: the plain-Python loops do not implement this."""


def framed(content: bytes, frame: bytes, **header) -> bytes:
    """A batch of `content` whose records are stored as `frame`."""
    whole = bytearray(batch(content, codec=LZ4, **header)[:61] + frame)
    pack_into(">i", whole, 8, len(whole) - 12)
    pack_into(">I", whole, 17, crc32c.crc32c(bytes(whole[21:])))
    return bytes(whole)


def raw(found: list[Sample]) -> bytes:
    return b"".join(record(one, found[0].offset, found[0].timestamp) for one in found)


def some(
    count: int, size: int, *, seed: int = 1, letters: bytes = bytes(range(256))
) -> list[Sample]:
    chance = random.Random(seed)
    return [
        Sample(n, 1000 + n, b"k%d" % n, bytes(chance.choices(letters, k=size)))
        for n in range(count)
    ]


def made(payload: bytes, magic: int = 1, limit: int = LIMIT) -> bytes | None:
    (result,) = kernel.down_all([payload], magic, limit)
    return result


def inner(message: bytes) -> bytes:
    """The content of a wrapper."""
    return lz4.frame.decompress(message[18 + 8 * message[16] + 8 :])


@prop
@given(
    samples(), st.sampled_from((NONE, LZ4)), st.integers(0, 1), st.none() | st.integers(0, 2**42)
)
def test_output_equals_general_path(found, codec, magic, append_time):
    payload = batch(found, codec=codec, append_time=append_time)
    ours, ordinary = made(payload, magic), convert_single(payload, magic, LIMIT)
    assert ours is not None
    assert list(read_records(ours)) == list(read_records(ordinary))
    if codec == NONE:
        assert ours == ordinary
    else:
        # The offset of the last message; then everything except size and checksum, up to the
        # value's length.
        assert (ours[:8], ours[16 : 22 + 8 * magic]) == (
            ordinary[:8],
            ordinary[16 : 22 + 8 * magic],
        )


@pytest.mark.parametrize("letters", [b"ab", bytes(range(256))], ids=["shrinks", "does not shrink"])
@pytest.mark.parametrize(("count", "size"), [(1, 0), (15, 1024), (3, 65_000), (300, 1024)])
@pytest.mark.parametrize("magic", [0, 1])
def test_content_of_any_size_is_complete(letters, count, size, magic):
    found = some(count, size, letters=letters)
    payload = batch(found, codec=LZ4)
    ours = made(payload, magic)
    assert [(one.offset, one.key, one.value) for one in read_records(ours)] == [
        (one.offset, one.key, one.value) for one in found
    ]
    assert len(ours) < 1.02 * len(convert_single(payload, magic, LIMIT)) + 10


@pytest.mark.parametrize(("magic", "checksum"), [(0, LZ4_HISTORIC), (1, 0x82)])
def test_header_checksum_matches_consumer_format(magic, checksum):
    frame_at = 26 + 8 * magic
    assert made(batch(some(3, 100), codec=LZ4), magic)[frame_at : frame_at + 7] == bytes.fromhex(
        "04224d186040"
    ) + bytes((checksum,))


def test_uncompressible_records_are_compressed_after_conversion_overhead():
    found = some(200, 12)
    payload = framed(
        found,
        b"\x04\x22\x4d\x18\x60\x40\x82"
        + (len(raw(found)) | 1 << 31).to_bytes(4, "little")
        + raw(found)
        + bytes(4),
    )
    ours = made(payload)
    assert len(ours) < len(inner(ours)) * 0.8


@pytest.mark.parametrize("size", [4, 5, 6, 7], ids=["64 KiB", "256 KiB", "1 MiB", "4 MiB"])
def test_all_lz4_block_sizes_are_handled(size):
    found = some(100, 1024, letters=b"abcdefgh")
    frame = lz4.frame.compress(raw(found), block_size=size, block_linked=False, store_size=False)
    assert [one.value for one in read_records(made(framed(found, frame)))] == [
        one.value for one in found
    ]


ODD_FRAMES = {
    "content size": lambda content: lz4.frame.compress(
        content, block_linked=False, store_size=True
    ),
    "content checksum": lambda content: lz4.frame.compress(
        content, block_linked=False, store_size=False, content_checksum=True
    ),
    "block checksums": lambda content: lz4.frame.compress(
        content, block_linked=False, store_size=False, block_checksum=True
    ),
    "linked blocks": lambda content: lz4.frame.compress(
        content, block_size=4, block_linked=True, store_size=False
    ),
    "historic checksum": lambda content: lz4_frame(content, historic=True),
}


@pytest.mark.parametrize("name", ODD_FRAMES)
def test_frames_unlike_kafka_clients_use_general_path(name):
    found = some(100, 1024)
    payload = framed(found, ODD_FRAMES[name](raw(found)))
    assert made(payload) is None
    assert [one.value for one in read_records(down_convert(payload, 1))] == [
        one.value for one in found
    ]


def test_other_codec_uses_general_path():
    assert made(batch(some(3, 10), codec=ZSTD)) is None


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(batch(some(3, 10))[:60], id="half a header"),
        pytest.param(batch(some(3, 10))[:-1], id="cut short"),
        pytest.param(batch(some(3, 10)) + b"\0", id="too long"),
        pytest.param(batch(some(3, 10))[:-1] + b"\xff", id="checksum"),
        pytest.param(batch(some(3, 10), count=4), id="too few"),
        pytest.param(batch(some(3, 10), count=2), id="too many"),
        pytest.param(batch(some(3, 10), count=2**31 - 1, codec=LZ4), id="very many"),
        pytest.param(batch(some(3, 10), count=-1), id="a negative count"),
        pytest.param(batch(some(3, 10), attributes=0x20), id="control"),
        pytest.param(batch([], base_offset=5, last_offset=9), id="empty"),
        pytest.param(batch(some(3, 10), attributes=7), id="unknown codec"),
        pytest.param(batch(some(3, 10), content=b"nonsense"), id="nonsense"),
        pytest.param(framed(some(3, 10), b""), id="no frame"),
        pytest.param(framed(some(3, 10), lz4_frame(raw(some(3, 10)))[:-4]), id="no end mark"),
        pytest.param(framed(some(3, 10), lz4_frame(raw(some(3, 10)))[:-6]), id="half a block"),
        pytest.param(
            framed(
                some(3, 10),
                lz4_frame(raw(some(3, 10)))[:7] + b"\x05\0\0\0\xff\xff\xff\xff\xff\0\0\0\0",
            ),
            id="a block of nonsense",
        ),
        pytest.param(message_set(some(3, 10), magic=1), id="a message set"),
    ],
)
@pytest.mark.parametrize("magic", [0, 1])
def test_invalid_input_uses_general_path(payload, magic):
    assert made(payload, magic) is None


def test_limit_is_exact():
    found = some(100, 1024)
    size = len(raw(found))
    assert made(batch(found, codec=LZ4), limit=size) is not None
    assert made(batch(found, codec=LZ4), limit=size - 1) is None
    assert made(batch(found), limit=1) is not None


def test_bomb_is_not_decompressed():
    found = [Sample(0, 0, None, bytes(50 << 20))]
    assert made(batch(found, codec=LZ4)) is None


def test_many_units_return_in_order():
    units = [
        batch(some(15, 1024, seed=n), codec=codec)
        for n, codec in enumerate((NONE, LZ4, GZIP, LZ4, NONE) * 20)
    ]
    units.insert(7, b"junk")
    units.insert(30, message_set(some(2, 10), magic=0))
    outcomes = down_convert_all(units, 1)
    assert isinstance(outcomes[7], RecordsError)
    assert outcomes[30] == units[30]
    for unit, outcome in zip(units[31:], outcomes[31:], strict=True):
        assert [one.value for one in read_records(outcome)] == [
            one.value for one in read_records(unit)
        ]


def test_buffers_are_released():
    """A bytearray with an exported buffer cannot be resized."""
    units = [bytearray(batch(some(3, 10), codec=LZ4)), bytearray(b"junk")]
    kernel.down_all(units, 1, LIMIT)
    with pytest.raises(TypeError):
        kernel.down_all([units[0], 7], 1, LIMIT)
    for unit in units:
        unit.append(0)
