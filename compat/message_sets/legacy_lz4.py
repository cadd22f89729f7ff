"""Corrects stored magic-0 lz4 sets for modern consumers.

They are stored with the historic header checksum, which consumers of Fetch v0 and v1 verify. Java
and librdkafka ignore the checksum in magic 0. Sarama and franz-go accept only the standard one:
Kafka itself has converted such sets at produce time since 0.10.
"""

from __future__ import annotations

from isal.isal_zlib import crc32

from compat.message_sets.wrappers import value_at
from records import lz4_header
from records.errors import CorruptRecords
from records.layout import (
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

_SIZE_AT = 8


def has_legacy_lz4(payload: Buffer) -> bool:
    """Whether the set starts with a magic-0 lz4 message; a producer uses one codec for a whole
    set.
    """
    return (
        len(payload) > ATTRIBUTES_AT
        and payload[MAGIC_AT] == 0
        and payload[ATTRIBUTES_AT] & CODEC_MASK == Codec.LZ4
    )


def fix_lz4_checksums(payload: Buffer) -> bytes:
    """Replace the header checksum of each lz4 frame with the standard one and update message CRCs.

    Raises CorruptRecords.
    """
    whole = bytearray(payload)
    view = memoryview(whole)
    position = 0
    while position < len(whole):
        if len(whole) - position < LOG_OVERHEAD + SMALLEST[0]:
            raise CorruptRecords(f"record at byte {position}: truncated message")
        end = position + LOG_OVERHEAD + LENGTH.unpack_from(whole, position + _SIZE_AT)[0]
        if not position + LOG_OVERHEAD + SMALLEST[0] <= end <= len(whole):
            raise CorruptRecords(f"record at byte {position}: invalid message size")
        message = view[position:end]
        if has_legacy_lz4(message):
            start = value_at(view, position, end, 0)
            view[start:end] = lz4_header.with_standard_checksum(view[start:end])
            CRC.pack_into(message, CRC_AT, crc32(message[CRC_FROM:]))
        position = end
    return bytes(whole)
