"""Message sets of magic 0 and 1 as they come from a producer: checked, then stamped with their offsets.

The rules are those of Kafka 3.9's LogValidator, with two liberties for old clients: a set may hold several compressed messages (brokers before
0.11 took that), and inner offsets may be anything (Sarama writes zeros), since the leader assigns them itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isal.isal_zlib import crc32

from compat.records import kernel, lz4_header
from compat.records.errors import InvalidRecords, InvalidTimestamp
from compat.records.layout import (
    APPEND_TIME_BIT,
    ATTRIBUTES_AT,
    CRC,
    CRC_AT,
    CRC_FROM,
    MAX_INT64,
    OFFSET,
    TIMESTAMP_AT,
    Buffer,
    Codec,
)
from compat.records.wrappers import DecompressionBudget, Wrapper, segments, wrap


@dataclass(frozen=True, slots=True)
class CompressedMessage:
    """What stamping must know of one compressed message: where it is, how many records it holds, their greatest timestamp.

    `inner` is kept (decompressed) only where the message cannot be stamped in place.
    """

    start: int
    end: int
    codec: Codec
    count: int
    max_timestamp: int
    inner: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class MessageSet:
    """A checked message set.

    `count` records; `max_timestamp` in ms, -1 where there is none (always in magic 0); `codec` of the compressed messages, the last one's if
    they differ; `largest` is the bytes of the greatest shallow message with its 12-byte header, to hold against max.message.bytes; `has_null_key`: a
    compacted topic must refuse it; `repack`: stamping cannot be done in place (and compresses, so it is work for another thread).
    """

    magic: int
    count: int
    max_timestamp: int
    codec: Codec
    largest: int
    has_null_key: bool
    repack: bool
    compressed: tuple[CompressedMessage, ...] = field(default=(), repr=False)


def check_message_set(records: Buffer, *, max_decompressed_bytes: int) -> MessageSet:
    """Verify a set as a Produce request (v0-2) carries it, down to the last inner record; an empty one has count 0.

    `max_decompressed_bytes` bounds all its compressed messages together. Raises CorruptRecords (a cut-off last message too), InvalidRecords,
    InvalidTimestamp, UnsupportedCodec, RecordsTooLarge.
    """
    found = kernel.scan(records, -1, False)
    if found.has_append_time:
        raise InvalidTimestamp("a producer may not set the timestamp type LogAppendTime")
    if not found.wrappers:
        return MessageSet(
            max(found.magic, 0),
            found.messages,
            found.max_timestamp,
            Codec.NONE,
            found.largest,
            found.has_null_key,
            repack=False,
        )
    opened: list[CompressedMessage] = []
    codec = Codec.NONE
    count = found.messages - found.wrappers
    max_timestamp, has_null_key = found.max_timestamp, found.has_null_key
    for segment in segments(records, DecompressionBudget(max_decompressed_bytes)):
        if isinstance(segment, slice):
            continue
        codec = segment.codec
        keeps = _needs_rewrite(records, segment)
        inner = segment.scan
        opened.append(
            CompressedMessage(
                segment.start,
                segment.end,
                codec,
                inner.messages,
                inner.max_timestamp,
                segment.inner if keeps else None,
            )
        )
        count += inner.messages
        max_timestamp = max(max_timestamp, inner.max_timestamp)
        has_null_key = has_null_key or inner.has_null_key
    repack = any(one.inner is not None for one in opened)
    return MessageSet(
        found.magic, count, max_timestamp, codec, found.largest, has_null_key, repack, tuple(opened)
    )


def stamp_message_set(
    records: bytearray | memoryview,
    checked: MessageSet,
    base_offset: int,
    log_append_time: int | None,
) -> Buffer:
    """The set with absolute offsets from `base_offset` on, in place in `records` unless `checked.repack`, else in new bytes.

    `log_append_time` (ms, for topics with message.timestamp.type=LogAppendTime) becomes the timestamp of magic 1; magic 0 has none. Without it a
    wrapper gets the greatest timestamp of its records, as in Kafka. `checked` must be what `check_message_set` said of these very bytes.
    Raises InvalidRecords for a base offset that leaves no room.
    """
    if not 0 <= base_offset <= MAX_INT64 - checked.count:
        raise InvalidRecords(f"{checked.count} records do not fit behind offset {base_offset}")
    view = memoryview(records)
    parts: list[Buffer] = []
    offset, position = base_offset, 0
    for one in checked.compressed:
        run = view[position : one.start]
        offset += kernel.stamp(run, offset, log_append_time)
        whole = view[one.start : one.end]
        if one.inner is None:
            _stamp_wrapper(whole, offset + one.count - 1, one.max_timestamp, log_append_time)
            parts += (run, whole)
        else:
            parts += (run, _repack(one, checked.magic, offset, log_append_time))
        offset += one.count
        position = one.end
    kernel.stamp(view[position:], offset, log_append_time)
    if not checked.repack:
        return records
    return b"".join((*parts, view[position:]))


def _needs_rewrite(records: Buffer, wrapper: Wrapper) -> bool:
    """Magic 0 bears absolute offsets within; in magic 1 it is enough that the relative ones are right and that a consumer can read the codec."""
    frame = memoryview(records)[wrapper.value_at : wrapper.end]
    if wrapper.codec is Codec.LZ4:
        lz4_header.require_independent_blocks(frame)
    if wrapper.magic == 0 or not wrapper.scan.is_ordinal:
        return True
    return wrapper.codec is Codec.LZ4 and lz4_header.has_historic_checksum(frame)


def _stamp_wrapper(
    message: memoryview, last_offset: int, max_timestamp: int, log_append_time: int | None
) -> None:
    """A magic-1 wrapper in place: offset, and where they change, timestamp and CRC."""
    OFFSET.pack_into(message, 0, last_offset)
    timestamp = max_timestamp if log_append_time is None else log_append_time
    attributes = message[ATTRIBUTES_AT] | (0 if log_append_time is None else APPEND_TIME_BIT)
    if (timestamp, attributes) == (
        OFFSET.unpack_from(message, TIMESTAMP_AT)[0],
        message[ATTRIBUTES_AT],
    ):
        return
    message[ATTRIBUTES_AT] = attributes
    OFFSET.pack_into(message, TIMESTAMP_AT, timestamp)
    CRC.pack_into(message, CRC_AT, crc32(message[CRC_FROM:]))


def _repack(one: CompressedMessage, magic: int, offset: int, log_append_time: int | None) -> bytes:
    """The wrapper anew around its records with right offsets: absolute in magic 0, from 0 in magic 1."""
    inner = bytearray(one.inner or b"")
    kernel.stamp(inner, 0 if magic else offset, log_append_time)
    timestamp = one.max_timestamp if log_append_time is None else log_append_time
    is_append_time = log_append_time is not None
    return wrap(
        one.codec,
        inner,
        magic=magic,
        offset=offset + one.count - 1,
        timestamp=timestamp,
        is_append_time=is_append_time,
    )
