"""Byte layout of message sets (magic 0 and 1) and record batches (magic 2): constants and headers.

Sources: "Message sets" and "Record batch" in the protocol guide; KIP-31 (relative offsets), KIP-32
(timestamps), KIP-98 (magic 2).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import crc32c

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

NO_TIMESTAMP = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1

BATCH_HEADER = Struct(">qiiBIhiqqqhii")
BATCH_OVERHEAD = 61
BATCH_CRC_AT = 17
BATCH_CRC_FROM = 21
"""The CRC-32C of a batch covers everything from the attributes."""

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


class BatchHeader(NamedTuple):
    """The header of a magic-2 batch, with the protocol guide's field names.

    A tuple because one is created per conversion, and a tuple costs a quarter of a dataclass.
    """

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def codec(self) -> Codec:
        """Raises UnsupportedCodec."""
        return codec_of(self.attributes)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def append_time(self) -> int | None:
        """The timestamp of all records if the timestamp type is LogAppendTime, else None."""
        return self.max_timestamp if self.attributes & APPEND_TIME_BIT else None


def codec_of(attributes: int) -> Codec:
    """Raises UnsupportedCodec for unassigned codec numbers."""
    number = attributes & CODEC_MASK
    if number > Codec.ZSTD:
        raise UnsupportedCodec(f"unknown codec {number}")
    return Codec(number)


def magic_of(payload: Buffer) -> int:
    """The format of a stored unit: 0, 1 or 2. Raises CorruptRecords."""
    if len(payload) <= MAGIC_AT:
        raise CorruptRecords(f"{len(payload)} bytes are too short for any record set")
    magic = payload[MAGIC_AT]
    if magic > 2:
        raise CorruptRecords(f"unknown magic byte {magic}")
    return magic


def read_batch(payload: Buffer) -> BatchHeader:
    """Check length, magic and CRC-32C of a single magic-2 batch and return its header. Raises
    CorruptRecords.
    """
    if len(payload) < BATCH_OVERHEAD:
        raise CorruptRecords(f"{len(payload)} bytes are too short for a record batch")
    (
        base,
        size,
        epoch,
        magic,
        crc,
        attributes,
        last_delta,
        base_time,
        max_time,
        pid,
        pepoch,
        sequence,
        count,
    ) = BATCH_HEADER.unpack_from(payload)
    if magic != 2 or size + LOG_OVERHEAD != len(payload):
        raise CorruptRecords(
            f"record batch length is {size + LOG_OVERHEAD} bytes, received {len(payload)}"
        )
    if crc32c.crc32c(memoryview(payload)[BATCH_CRC_FROM:]) != crc:
        raise CorruptRecords("record batch checksum does not match")
    if base < 0 or last_delta < 0 or base > MAX_INT64 - last_delta or count < 0:
        raise CorruptRecords("record batch has an invalid offset or record count")
    return BatchHeader(
        base, epoch, attributes, last_delta, base_time, max_time, pid, pepoch, sequence, count
    )


def build_batch(batch: BatchHeader, records: Buffer) -> bytes:
    """Build a batch from a header and `records`, which are already compressed as the attributes
    say.
    """
    whole = bytearray(BATCH_OVERHEAD + len(records))
    size = len(whole) - LOG_OVERHEAD
    BATCH_HEADER.pack_into(
        whole, 0, batch.base_offset, size, batch.leader_epoch, 2, 0, batch.attributes,
        batch.last_offset_delta, batch.base_timestamp, batch.max_timestamp, batch.producer_id,
        batch.producer_epoch, batch.base_sequence, batch.records,
    )  # fmt: skip
    whole[BATCH_OVERHEAD:] = records
    CRC.pack_into(whole, BATCH_CRC_AT, crc32c.crc32c(memoryview(whole)[BATCH_CRC_FROM:]))
    return bytes(whole)
