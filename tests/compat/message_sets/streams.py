"""Compressed records of a batch: as producers write them, unusual and invalid."""

from __future__ import annotations

import zlib
from struct import pack

import cramjam
import lz4.frame

from tests.records.sample_records import (
    GZIP,
    LZ4,
    SNAPPY,
    lz4_frame,
    random_samples,
    records_of,
)

GZIP_HEADER = b"\x1f\x8b\x08" + bytes(7)
"""That of Java's GZIPOutputStream until version 15: no time, no operating system."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + pack(">ii", 1, 1)
"""Of snappy-java's SnappyOutputStream: magic, version, compatible version."""


def gzip_member(
    content: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY, header=GZIP_HEADER
) -> bytes:
    """A stream by zlib, as most producers write it."""
    deflate = zlib.compressobj(level, wbits=-15, strategy=strategy)
    return with_trailer(deflate.compress(content) + deflate.flush(), content, header)


def with_trailer(body: bytes, content: bytes, header: bytes = GZIP_HEADER) -> bytes:
    """A stream whose `body` may be invalid, with checksum and size of `content`."""
    return header + body + pack("<II", zlib.crc32(content), len(content))


def snappy_block(content: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(content))


def xerial(*blocks: bytes, header: bytes = XERIAL_HEADER) -> bytes:
    """Blocks in the framing of snappy-java."""
    return header + b"".join(pack(">i", len(one)) + one for one in blocks)


FORMS = {
    LZ4: {"frame": lz4_frame},
    GZIP: {"member": gzip_member},
    SNAPPY: {
        "block": snappy_block,
        "xerial block": lambda content: xerial(snappy_block(content)),
        "xerial blocks": lambda content: xerial(
            snappy_block(content[:50]), snappy_block(content[50:])
        ),
    },
}
"""How producers compress the content."""

GOOD = random_samples(3, 10)
CONTENT = records_of(GOOD)
FRAME = lz4_frame(CONTENT)
MEMBER = gzip_member(CONTENT)
BODY = MEMBER[10:-8]
BLOCK = snappy_block(CONTENT)

OTHER_HEADERS = {
    GZIP: {
        "Java 16": gzip_member(CONTENT, header=GZIP_HEADER[:9] + b"\xff"),
        "librdkafka": gzip_member(CONTENT, header=GZIP_HEADER[:9] + b"\x03"),
        "a time and the best compression": gzip_member(
            CONTENT, header=b"\x1f\x8b\x08\x00\x80\x01\x02\x03\x02\x03"
        ),
    },
    SNAPPY: {
        "another version": xerial(BLOCK, header=XERIAL_MAGIC + pack(">ii", 2, 1)),
        "no version": xerial(BLOCK, header=XERIAL_MAGIC + bytes(8)),
    },
}
"""`CONTENT` with other values of header fields that do not matter."""

MANY = random_samples(100, 1024)
MANY_CONTENT = records_of(MANY)
UNUSUAL = {
    LZ4: {
        "content size": lz4.frame.compress(MANY_CONTENT, block_linked=False, store_size=True),
        "content checksum": lz4.frame.compress(
            MANY_CONTENT, block_linked=False, store_size=False, content_checksum=True
        ),
        "block checksums": lz4.frame.compress(
            MANY_CONTENT, block_linked=False, store_size=False, block_checksum=True
        ),
        "linked blocks": lz4.frame.compress(
            MANY_CONTENT, block_size=4, block_linked=True, store_size=False
        ),
        "historic checksum": lz4_frame(MANY_CONTENT, historic=True),
    },
    GZIP: {
        "a name": gzip_member(MANY_CONTENT, header=b"\x1f\x8b\x08\x08" + bytes(6) + b"name\0"),
        "two members": gzip_member(MANY_CONTENT[:9]) + gzip_member(MANY_CONTENT[9:]),
        "an empty second member": gzip_member(MANY_CONTENT) + gzip_member(b""),
        "bytes after the stream": gzip_member(MANY_CONTENT) + b"junk",
    },
}
"""`MANY_CONTENT` in valid streams that Kafka's clients do not write."""

INVALID = {
    LZ4: {
        "nothing": b"",
        "no end mark": FRAME[:-4],
        "half a block": FRAME[:-6],
        "a block of nonsense": FRAME[:7] + b"\x05\0\0\0\xff\xff\xff\xff\xff\0\0\0\0",
    },
    GZIP: {
        "nothing": b"",
        "half a header": GZIP_HEADER[:5],
        "no content": GZIP_HEADER,
        "another method": gzip_member(CONTENT, header=b"\x1f\x8b\x07" + bytes(7)),
        "another checksum": MEMBER[:-8] + pack("<II", zlib.crc32(CONTENT) ^ 1, len(CONTENT)),
        "a smaller size": MEMBER[:-4] + pack("<I", len(CONTENT) - 1),
        "a larger size": MEMBER[:-4] + pack("<I", len(CONTENT) + 1),
        "a size of 4 GiB": MEMBER[:-4] + b"\xff\xff\xff\xff",
        "no trailer": MEMBER[:-8],
        "a block of an unknown type": with_trailer(b"\x07" + BODY[1:], CONTENT),
        "a stored block with a wrong size": with_trailer(b"\x01\x05\0\0\0" + CONTENT, CONTENT),
        # Fixed codes: a copy of three bytes, from one byte before.
        "a copy from before the start": with_trailer(b"\x03\x02\x00" + bytes(8), CONTENT),
        "codes of impossible lengths": with_trailer(b"\x05\xc0\x81\x00" + b"\xff" * 40, CONTENT),
        "half a block": with_trailer(BODY[: len(BODY) // 2], CONTENT),
        "no last block": with_trailer(b"\x00\x00\x00\xff\xff", b""),
    },
    SNAPPY: {
        "nothing": b"",
        "half a header": XERIAL_HEADER[:12],
        "no block": XERIAL_HEADER,
        "half a length": xerial(BLOCK) + b"\0\0",
        "an empty block": xerial(BLOCK, b""),
        "a negative length": xerial(BLOCK) + pack(">i", -1),
        "a length beyond the end": xerial(BLOCK) + pack(">i", 5) + snappy_block(b"")[:4],
        "the largest length": xerial(BLOCK) + pack(">i", 2**31 - 1) + bytes(9),
        "bytes after the block": BLOCK + b"\0",
        "a smaller size than the content": b"\x01" + BLOCK[1:],
        "a larger size than the content": bytes([BLOCK[0] + 1]) + BLOCK[1:],
        "a size of 4 GiB": b"\xff\xff\xff\xff\x0f" + bytes(30),
        "a size of 64 bits": b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(30),
        "a size without an end": b"\xff\xff\xff\xff\xff\xff" * 5,
        "a copy from before the start": b"\x08" + b"\x0f\x09" + bytes(3),
        "a literal beyond the end": b"\x10" + b"\xf0\xff",
        # 22 bytes for each of a block's are possible.
        "an impossible size": b"\xb8\x17" + bytes(28),
    },
}
"""The general path refuses them."""
