"""Message sets of magic 0 and 1 from producers: checking, and stamping with offsets.

The rules are those of LogValidator in Kafka 3.9, relaxed in two ways for old clients: a set may
contain several compressed messages (brokers before 0.11 accepted that), and inner offsets may have
any value (Sarama writes zeros), because the leader assigns them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isal.isal_zlib import crc32

from compat.message_sets.wrappers import DecompressionBudget, Wrapper, segments, wrap
from records import kernel, lz4_header
from records.errors import InvalidRecords, InvalidTimestamp
from records.layout import (
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


@dataclass(frozen=True, slots=True)
class CompressedMessage:
    """Data about a compressed message needed for stamping: position, record count and max
    timestamp.

    `inner` holds the decompressed content, only if the message cannot be stamped in place.
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

    `count` is the number of records. `max_timestamp` is in ms, -1 if there is none (always in magic
    0). `codec` is that of the last compressed message. `largest` is the size of the largest shallow
    message with its 12-byte header, to compare with max.message.bytes. `has_null_key`: a compacted
    topic must reject the set. `repack`: the set cannot be stamped in place; stamping compresses and
    belongs in a worker thread.
    """

    magic: int
    count: int
    max_timestamp: int
    codec: Codec
    largest: int
    has_null_key: bool
    repack: bool
    compressed: tuple[CompressedMessage, ...] = field(default=(), repr=False)

    def stamp(
        self, records: bytearray | memoryview, base_offset: int, log_append_time: int | None
    ) -> Buffer:
        """Assign absolute offsets from `base_offset`, in place unless `repack`.

        `log_append_time` (ms, for topics with message.timestamp.type=LogAppendTime) replaces the
        timestamps of magic 1; magic 0 has none. Without it a wrapper gets the max timestamp of its
        records, as in Kafka. `records` must be the bytes that `check_message_set` checked. Raises
        InvalidRecords if the offsets would exceed 63 bits.
        """
        if not 0 <= base_offset <= MAX_INT64 - self.count:
            raise InvalidRecords(
                f"no offsets left for {self.count} records at offset {base_offset}"
            )
        view = memoryview(records)
        parts: list[Buffer] = []
        offset, position = base_offset, 0
        for one in self.compressed:
            run = view[position : one.start]
            offset += kernel.stamp(run, offset, log_append_time)
            whole = view[one.start : one.end]
            if one.inner is None:
                _stamp_wrapper(whole, offset + one.count - 1, one.max_timestamp, log_append_time)
                parts += (run, whole)
            else:
                parts += (run, _repack(one, self.magic, offset, log_append_time))
            offset += one.count
            position = one.end
        kernel.stamp(view[position:], offset, log_append_time)
        if not self.repack:
            return records
        return b"".join((*parts, view[position:]))


def check_message_set(records: Buffer, *, max_decompressed_bytes: int) -> MessageSet:
    """Verify the set of a Produce request (v0 to v2) down to the inner records; an empty set has
    count 0.

    `max_decompressed_bytes` limits all compressed messages together. Raises CorruptRecords (also
    for a truncated last message), InvalidRecords, InvalidTimestamp, UnsupportedCodec and
    RecordsTooLarge.
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


def _needs_rewrite(records: Buffer, wrapper: Wrapper) -> bool:
    """Whether the wrapper must be compressed again.

    Always in magic 0, whose inner offsets are absolute. In magic 1 only if the relative offsets are
    wrong or consumers cannot read the lz4 header.
    """
    frame = memoryview(records)[wrapper.value_at : wrapper.end]
    if wrapper.codec is Codec.LZ4:
        lz4_header.require_independent_blocks(frame)
    if wrapper.magic == 0 or not wrapper.scan.is_ordinal:
        return True
    return wrapper.codec is Codec.LZ4 and lz4_header.has_historic_checksum(frame)


def _stamp_wrapper(
    message: memoryview, last_offset: int, max_timestamp: int, log_append_time: int | None
) -> None:
    """Stamp a magic-1 wrapper in place: offset, and timestamp and CRC if they change."""
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
    """Compress the records again with correct offsets: absolute in magic 0, from 0 in magic 1."""
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
