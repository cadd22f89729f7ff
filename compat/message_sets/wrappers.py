"""Compressed messages (wrappers): magic-0 and magic-1 messages whose value is a compressed message
set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from isal.isal_zlib import crc32

from records import codecs, kernel, lz4_header
from records.errors import CorruptRecords, InvalidRecords, RecordsTooLarge, UnsupportedCodec
from records.layout import (
    APPEND_TIME_BIT,
    CRC,
    CRC_AT,
    CRC_FROM,
    KEY_AT,
    LENGTH,
    LOG_OVERHEAD,
    MAX_INT64,
    MESSAGE_HEADER,
    OFFSET,
    SMALLEST,
    TIMESTAMP_AT,
    Buffer,
    Codec,
    Scan,
    codec_of,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper's position, header and verified content. `timestamp` is -1 in magic 0."""

    start: int
    end: int
    offset: int
    magic: int
    attributes: int
    timestamp: int
    value_at: int
    inner: bytes = field(repr=False)
    scan: Scan

    @property
    def codec(self) -> Codec:
        return codec_of(self.attributes)

    @property
    def shift(self) -> int:
        """Difference between absolute and inner offsets.

        In magic 1 the wrapper has the absolute offset of the last inner message (KIP-31). Old
        librdkafka versions do not know that and write 0; the shift is then 0.
        """
        return self.offset - self.scan.last_offset if self.magic and self.offset else 0

    @property
    def append_time(self) -> int | None:
        """The timestamp of all inner messages if the wrapper has type LogAppendTime, else None."""
        return self.timestamp if self.magic and self.attributes & APPEND_TIME_BIT else None


MAX_WRAPPERS = 1000
"""Wrappers per set. Producers write one, brokers before 0.11 accepted several; the smallest wrapper
costs as much work as a thousand times its bytes.
"""


@dataclass(slots=True)
class DecompressionBudget:
    """Bytes and wrappers that one call may still decompress."""

    remaining: int
    wrappers: int = MAX_WRAPPERS

    def take(self, size: int) -> None:
        self.remaining -= size
        self.wrappers -= 1
        if self.remaining < 0:
            raise RecordsTooLarge("decompressed records exceed the limit")
        if self.wrappers < 0:
            raise InvalidRecords(f"more than {MAX_WRAPPERS} compressed messages in one set")


def segments(messages: Buffer, budget: DecompressionBudget) -> Iterator[Wrapper | slice]:
    """Iterate over a set: runs of uncompressed messages as unverified slices, wrappers decompressed
    and verified.

    Raises CorruptRecords, InvalidRecords, UnsupportedCodec and RecordsTooLarge.
    """
    view = memoryview(messages)
    position = 0
    while position < len(view):
        end = kernel.plain_run(view, position)
        if end > position:
            yield slice(position, end)
        if end < len(view):
            wrapper = _open(view, end, budget)
            yield wrapper
            end = wrapper.end
        position = end


def wrap(
    codec: Codec, inner: Buffer, *, magic: int, offset: int, timestamp: int, is_append_time: bool
) -> bytes:
    """Compress `inner` into one message of format `magic`. `offset` is the last inner message's
    absolute offset.
    """
    value = codecs.compress(codec, inner)
    if codec is Codec.LZ4 and magic == 0:
        value = lz4_header.with_historic_checksum(value)
    attributes = codec | (APPEND_TIME_BIT if is_append_time and magic else 0)
    head = bytearray(
        MESSAGE_HEADER.pack(offset, SMALLEST[magic] + len(value), 0, magic, attributes)
    )
    if magic:
        head += OFFSET.pack(timestamp)
    head += LENGTH.pack(-1)
    head += LENGTH.pack(len(value))
    CRC.pack_into(head, CRC_AT, crc32(value, crc32(memoryview(head)[CRC_FROM:])))
    return b"".join((head, value))


def _open(view: memoryview, start: int, budget: DecompressionBudget) -> Wrapper:
    offset, size, crc, magic, attributes = MESSAGE_HEADER.unpack_from(view, start)
    end = start + LOG_OVERHEAD + size
    if crc32(view[start + CRC_FROM : end]) != crc:
        raise CorruptRecords(f"record at byte {start}: checksum does not match")
    codec = codec_of(attributes)
    if codec > Codec.LZ4:
        raise UnsupportedCodec(
            f"record at byte {start}: magic {magic} does not support {codec.name.lower()}"
        )
    begin = value_at(view, start, end, magic)
    inner = codecs.decompress(codec, view[begin:end], budget.remaining)
    budget.take(len(inner))
    found = kernel.scan(inner, magic, True)
    if not found.messages:
        raise InvalidRecords(f"record at byte {start}: the compressed set is empty")
    timestamp = OFFSET.unpack_from(view, start + TIMESTAMP_AT)[0] if magic else -1
    wrapper = Wrapper(start, end, offset, magic, attributes, timestamp, begin, inner, found)
    if not -MAX_INT64 <= wrapper.shift <= MAX_INT64:
        raise CorruptRecords(f"record at byte {start}: offset is out of range")
    return wrapper


def value_at(view: memoryview, start: int, end: int, magic: int) -> int:
    """Return the start of the value (which ends with the message) of a message of known size and
    magic.
    """
    at: int = start + KEY_AT[magic]
    (key_size,) = LENGTH.unpack_from(view, at)
    at += LENGTH.size + max(key_size, 0)
    if key_size < -1 or at > end - LENGTH.size:
        raise CorruptRecords(f"record at byte {start}: key extends beyond the message")
    (value_size,) = LENGTH.unpack_from(view, at)
    if value_size < 0:
        raise InvalidRecords(f"record at byte {start}: compressed message without a value")
    at += LENGTH.size
    if at + value_size != end:
        raise CorruptRecords(f"record at byte {start}: value does not end with the message")
    return at
