"""Byte layout shared by message sets (magic 0 and 1) and record batches (magic 2).

Sources: "Message sets" and "Record batch" in the protocol guide; KIP-31 (relative offsets), KIP-32
(timestamps), KIP-98 (magic 2).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from records.errors import CorruptRecords, UnsupportedCodec

Buffer = bytes | bytearray | memoryview

MAGIC_AT = 16
"""Position of the magic byte in all formats: after offset (8), size (4), and CRC or leader epoch
(4).
"""

LOG_OVERHEAD = 12
"""Offset and size fields, which the size does not include."""

CRC_AT = 12
CRC_FROM = 16
"""The CRC-32 of a message covers everything from the magic byte."""

SMALLEST = (14, 22)
"""Minimum message size by magic: CRC, magic, attributes, (timestamp,) key and value length."""

ATTRIBUTES_AT = 17
TIMESTAMP_AT = 18

KEY_AT = (18, 26)
"""Position of the key length, by magic."""

MESSAGE_HEADER = Struct(">qiIBB")
"""Offset, size, CRC, magic, attributes."""

OFFSET = Struct(">q")
LENGTH = Struct(">i")
CRC = Struct(">I")

CODEC_MASK = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

FIRST_OF_BATCHES = 2 << 3
"""Index of uncompressed batches in the counts of `tally`; add the codec's number for the others."""

READABLE, EMPTY = -1, -2
"""Results of `conversions` instead of a checksum."""

NO_TIMESTAMP = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1

SMALLEST_RECORD = 7
"""Minimum size of a magic-2 record: seven one-byte fields."""

MAX_INT64 = (1 << 63) - 1
MIN_INT64 = -(1 << 63)


class Codec(IntEnum):
    """Codecs by their number in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Scan(NamedTuple):
    """Result of `scan` for a set of complete messages of one magic with correct CRCs.

    `messages` counts a wrapper as one message; `wrappers` counts wrappers only. `largest` is the
    size of the largest message including offset and size fields. `max_timestamp` (-1: none) and
    `has_null_key` ignore wrappers. `is_ordinal`: the offsets are 0, 1, 2, ... `has_append_time`: a
    message or wrapper has type LogAppendTime.
    """

    magic: int
    messages: int
    wrappers: int
    largest: int
    max_timestamp: int
    last_offset: int
    is_ordinal: bool
    has_null_key: bool
    has_append_time: bool


class Converted(NamedTuple):
    """Converted records and the values for their header. `max_timestamp` is -1 if there is none."""

    content: bytes
    records: int
    first_offset: int
    last_offset: int
    max_timestamp: int


def codec_of(attributes: int) -> Codec:
    """Raises UnsupportedCodec for unassigned codec numbers."""
    number = attributes & CODEC_MASK
    if number > Codec.ZSTD:
        raise UnsupportedCodec(f"unknown codec {number}")
    return Codec(number)


def peek_magic(payload: Buffer) -> int:
    """The signed magic byte of the first batch or message, or -1 if `payload` is too short."""
    if len(payload) <= MAGIC_AT:
        return -1
    magic = payload[MAGIC_AT]
    return magic if magic < 0x80 else magic - 0x100


def magic_of(payload: Buffer) -> int:
    """The format of a stored unit: 0, 1 or 2. Raises CorruptRecords."""
    if len(payload) <= MAGIC_AT:
        raise CorruptRecords(f"{len(payload)} bytes are too short for any record set")
    magic = payload[MAGIC_AT]
    if magic > 2:
        raise CorruptRecords(f"unknown magic byte {magic}")
    return magic
