"""Builds record sets field by field from the protocol guide, where possible with other libraries
than the code under test.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack

import crc32c
import lz4.block
from aiokafka.codec import gzip_encode, snappy_encode, zstd_encode

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

LZ4_RIGHT, LZ4_HISTORIC = 0x82, 0x1A
"""Second byte of the XXH32 of 60 40 and of 04 22 4D 18 60 40, computed with the reference
library.
"""


@dataclass(frozen=True)
class Sample:
    """The fields of a test record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def random_samples(count: int, size: int, *, letters: bytes = bytes(range(256))) -> list[Sample]:
    """Records with values of `size` random letters, the same in each call."""
    chance = random.Random(1)
    table = bytes(letters[n % len(letters)] for n in range(256))
    return [
        Sample(n, 1000 + n, b"k%d" % n, chance.randbytes(size).translate(table))
        for n in range(count)
    ]


def field(content: bytes | None) -> bytes:
    return pack(">i", -1) if content is None else pack(">i", len(content)) + content


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 1,
    timestamp: int = -1,
    attributes: int = 0,
    crc: int | None = None,
) -> bytes:
    body = (
        bytes((magic, attributes))
        + (pack(">q", timestamp) if magic else b"")
        + field(key)
        + field(value)
    )
    return pack(">qiI", offset, len(body) + 4, zlib.crc32(body) if crc is None else crc) + body


def message_set(samples: Sequence[Sample], *, magic: int, attributes: int = 0) -> bytes:
    return b"".join(
        message(s.offset, s.key, s.value, magic=magic, timestamp=s.timestamp, attributes=attributes)
        for s in samples
    )


def wrapper(
    samples: Sequence[Sample],
    codec: int,
    *,
    magic: int,
    inner_offsets: Sequence[int] | None = None,
    offset: int | None = None,
    timestamp: int | None = None,
    append_time: bool = False,
) -> bytes:
    """A compressed message around `samples`, by default as a stored one."""
    if inner_offsets is None:
        inner_offsets = [s.offset - (samples[0].offset if magic else 0) for s in samples]
    inner = b"".join(
        message(inner_offset, s.key, s.value, magic=magic, timestamp=s.timestamp)
        for inner_offset, s in zip(inner_offsets, samples, strict=True)
    )
    offset = samples[-1].offset if offset is None else offset
    timestamp = max(s.timestamp for s in samples) if timestamp is None else timestamp
    attributes = codec | (8 if append_time else 0)
    return message(
        offset,
        None,
        compress(codec, inner, magic=magic),
        magic=magic,
        timestamp=timestamp,
        attributes=attributes,
    )


def varint(value: int) -> bytes:
    raw = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while raw > 127:
        out.append(raw % 128 + 128)
        raw //= 128
    out.append(raw)
    return bytes(out)


def var_field(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record(sample: Sample, base_offset: int, base_timestamp: int) -> bytes:
    body = (
        b"\x00"
        + varint(sample.timestamp - base_timestamp)
        + varint(sample.offset - base_offset)
        + var_field(sample.key)
        + var_field(sample.value)
    )
    body += varint(len(sample.headers)) + b"".join(
        var_field(name) + var_field(value) for name, value in sample.headers
    )
    return varint(len(body)) + body


def records_of(samples: Sequence[Sample]) -> bytes:
    """The records of a batch, uncompressed."""
    return b"".join(record(s, samples[0].offset, samples[0].timestamp) for s in samples)


def batch(
    samples: Sequence[Sample],
    *,
    codec: int = NONE,
    base_offset: int | None = None,
    last_offset: int | None = None,
    append_time: int | None = None,
    attributes: int = 0,
    count: int | None = None,
    content: bytes | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A magic-2 batch. `content` replaces the encoded records before compression."""
    base_offset = (samples[0].offset if samples else 0) if base_offset is None else base_offset
    last_offset = (
        (samples[-1].offset if samples else base_offset) if last_offset is None else last_offset
    )
    base_timestamp = samples[0].timestamp if samples else -1
    max_timestamp = (
        append_time if append_time is not None else max((s.timestamp for s in samples), default=-1)
    )
    if content is None:
        content = b"".join(record(s, base_offset, base_timestamp) for s in samples)
    content = compress(codec, content, magic=2)
    attributes |= codec | (0 if append_time is None else 8)
    count = len(samples) if count is None else count
    tail = (
        pack(
            ">hiqqqhii",
            attributes,
            last_offset - base_offset,
            base_timestamp,
            max_timestamp,
            *producer,
            count,
        )
        + content
    )
    return pack(">qiiBI", base_offset, len(tail) + 9, 0, 2, crc32c.crc32c(tail)) + tail


def compress(codec: int, content: bytes, *, magic: int) -> bytes:
    match codec:
        case 0:
            return content
        case 1:
            return gzip_encode(content)
        case 2:
            return snappy_encode(content)
        case 3:
            return lz4_frame(content, historic=magic == 0)
        case _:
            return zstd_encode(content)


def lz4_frame(content: bytes, *, historic: bool = False) -> bytes:
    """Independent blocks of 64 KiB with only the header checksum, as Kafka's Lz4BlockOutputStream
    writes them.
    """
    out = [b"\x04\x22\x4d\x18\x60\x40", bytes((LZ4_HISTORIC if historic else LZ4_RIGHT,))]
    for start in range(0, len(content), 65536):
        plain = content[start : start + 65536]
        block = lz4.block.compress(plain, store_size=False)
        out += (
            (len(block).to_bytes(4, "little"), block)
            if len(block) < len(plain)
            else ((len(plain) | 1 << 31).to_bytes(4, "little"), plain)
        )
    return b"".join((*out, b"\0\0\0\0"))
