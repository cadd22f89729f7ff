"""Stored lz4 sets of magic 0 for consumers of today.

They are kept with the historic header checksum, which consumers of Fetch 0 and 1 verify. Java and librdkafka ignore the checksum in magic 0;
Sarama and franz-go know the specification only, for Kafka itself has converted such sets at produce time since 0.10.
"""

from __future__ import annotations

from isal.isal_zlib import crc32

from compat.records import lz4_header
from compat.records.errors import CorruptRecords
from compat.records.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC,
    CRC_AT,
    CRC_FROM,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC_AT,
    SMALLEST,
    Buffer,
    Codec,
)
from compat.records.wrappers import value_at

_SIZE_AT = 8


def has_legacy_lz4(payload: Buffer) -> bool:
    """Whether the set begins with an lz4 message of magic 0: a producer has one codec for all it sends."""
    return (
        len(payload) > ATTRIBUTES_AT
        and payload[MAGIC_AT] == 0
        and payload[ATTRIBUTES_AT] & CODEC_MASK == Codec.LZ4
    )


def fix_lz4_checksums(payload: Buffer) -> bytes:
    """The set with the header checksum of each lz4 frame as specified, and with the CRC of each message that this changes. Raises CorruptRecords."""
    whole = bytearray(payload)
    view = memoryview(whole)
    position = 0
    while position < len(whole):
        if len(whole) - position < LOG_OVERHEAD + SMALLEST[0]:
            raise CorruptRecords(f"record at byte {position}: the message is cut short")
        end = position + LOG_OVERHEAD + LENGTH.unpack_from(whole, position + _SIZE_AT)[0]
        if not position + LOG_OVERHEAD + SMALLEST[0] <= end <= len(whole):
            raise CorruptRecords(f"record at byte {position}: its size does not fit")
        message = view[position:end]
        if has_legacy_lz4(message):
            start = value_at(view, position, end, 0)
            view[start:end] = lz4_header.with_standard_checksum(view[start:end])
            CRC.pack_into(message, CRC_AT, crc32(message[CRC_FROM:]))
        position = end
    return bytes(whole)
