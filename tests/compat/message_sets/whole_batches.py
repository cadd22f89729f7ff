"""Converts a batch in one kernel call, and reads the wrappers that the kernel writes."""

from __future__ import annotations

import zlib
from struct import unpack_from

import cramjam
import lz4.frame
import pytest

from compat.message_sets import read_records
from compat.message_sets.down_conversion import convert_single
from records.codec_libraries import find_gzip_functions, find_lz4_functions, find_snappy_functions
from records.layout import Codec
from tests.compat.message_sets.streams import XERIAL_HEADER
from tests.records.sample_records import GZIP, LZ4, LZ4_RIGHT, NONE, SNAPPY

kernel = pytest.importorskip("records._kernel", reason="the kernel is not compiled")

FUNCTIONS = {
    LZ4: (kernel.use_lz4, find_lz4_functions()),
    GZIP: (kernel.use_gzip, find_gzip_functions()),
    SNAPPY: (kernel.use_snappy, find_snappy_functions()),
}
HANDLED = [NONE, *(codec for codec, (_, functions) in FUNCTIONS.items() if functions is not None)]
"""The codecs in which the kernel converts batches."""

for use, functions in FUNCTIONS.values():
    if functions is not None:
        use(*functions)

LIMIT = 1 << 20
"""Maximum bytes of the decompressed records."""


def needs(codec: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        codec not in HANDLED, reason=f"no library has the functions of {Codec(codec).name}"
    )


def convert_whole(payload: bytes | memoryview, magic: int = 1, limit: int = LIMIT) -> bytes | None:
    """Convert a batch in one kernel call. None if it is left to the general path."""
    (result,) = kernel.down_all([payload], magic, limit)
    return result


def convert_twice(payload: bytes, magic: int = 1) -> tuple[bytes | None, bytes]:
    """Convert a batch in one kernel call, and by the general path."""
    return convert_whole(payload, magic), convert_single(payload, magic, LIMIT)


def is_left_or_equal(payload: bytes, magic: int = 1) -> bool:
    """Whether a batch is left to the general path, or converted to the same records."""
    ours = convert_whole(payload, magic)
    return ours is None or list(read_records(ours)) == list(
        read_records(convert_single(payload, magic, LIMIT))
    )


def fields_of(wrapper: bytes) -> tuple[bytes, bytes, bytes]:
    """Everything that does not depend on the compressor: the offset of the last message, what is
    between checksum and value's length, and the content.
    """
    return wrapper[:8], wrapper[16 : 22 + 8 * wrapper[16]], content_of(wrapper)


def content_of(wrapper: bytes) -> bytes:
    codec, value = wrapper[17] & 7, value_of(wrapper)
    if codec == GZIP:
        return zlib.decompress(value, 31)
    if codec == SNAPPY:
        return b"".join(snappy_blocks(value))
    # In format 0 the header checksum is the historic one, which the library refuses.
    return lz4.frame.decompress(value[:6] + bytes((LZ4_RIGHT,)) + value[7:])


def value_of(wrapper: bytes) -> bytes:
    return wrapper[18 + 8 * wrapper[16] + 8 :]


def snappy_blocks(value: bytes) -> list[bytes]:
    """The blocks in the framing of snappy-java, decompressed."""
    assert value[:16] == XERIAL_HEADER
    found, at = [], 16
    while at < len(value):
        (size,) = unpack_from(">i", value, at)
        found.append(bytes(cramjam.snappy.decompress_raw(value[at + 4 : at + 4 + size])))
        at += 4 + size
    assert at == len(value)
    return found
