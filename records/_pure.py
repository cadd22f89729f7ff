"""The inner loops in plain Python: reference for `_kernel.pyx` and fallback without a C compiler.

Both implementations have the same functions, results and faults, in the same order of checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from isal.isal_zlib import crc32

from records.batch import BATCH_ATTRIBUTES_AT, BATCH_CRC_AT, HEADER_BYTES
from records.errors import Fault, error_of
from records.iteration import iterate_messages, iterate_records
from records.layout import (
    APPEND_TIME_BIT,
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC,
    CRC_AT,
    CRC_FROM,
    EMPTY,
    FIRST_OF_BATCHES,
    KEY_AT,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_INT64,
    MESSAGE_HEADER,
    MIN_INT64,
    NO_TIMESTAMP,
    OFFSET,
    READABLE,
    SMALLEST,
    TIMESTAMP_AT,
    Buffer,
    Codec,
    Converted,
    Scan,
    peek_magic,
)  # fmt: skip

#: Low byte of a batch's attributes and its record count, from the attributes on.
_ATTRIBUTES_COUNT = Struct(">B34xi")

_NULL = LENGTH.pack(-1)
_MAX_DELTA = (1 << 31) - 1


def tally(payloads: Sequence[Buffer]) -> tuple[list[int], int, int]:
    """Count batches and message sets by `magic << 3 | codec`, the batches' records, and bytes.

    The first message of a set counts for all. What is malformed counts as bytes only.
    """
    counts = [0] * (FIRST_OF_BATCHES + CODEC_MASK + 1)
    records = size = 0
    for payload in payloads:
        length = len(payload)
        size += length
        if length < LOG_OVERHEAD + SMALLEST[0]:
            continue
        magic = payload[MAGIC_AT]
        if magic == 2 and length >= HEADER_BYTES:
            attributes, count = _ATTRIBUTES_COUNT.unpack_from(payload, BATCH_ATTRIBUTES_AT)
            counts[FIRST_OF_BATCHES | attributes & CODEC_MASK] += 1
            records += count
        elif magic < 2:
            counts[magic << 3 | payload[ATTRIBUTES_AT] & CODEC_MASK] += 1
    return counts, records, size


def conversions(payloads: Sequence[Buffer], magic: int) -> list[int]:
    """Return for each payload whether consumers of `magic` need it in another format.

    They read formats up to `magic`; 2 stands for format 2 without zstd, 3 for format 2 with any
    codec, and both for no other format. READABLE: they can read it as it is. EMPTY: it has no
    records for them. Otherwise the result is a checksum of all that compaction may change. A batch
    contains one; in a message set, only the messages do.
    """
    found = []
    for payload in payloads:
        stored = peek_magic(payload)
        attributes = payload[BATCH_ATTRIBUTES_AT] if len(payload) > BATCH_ATTRIBUTES_AT else 0
        if magic < 2:
            is_readable = stored <= magic
        else:
            is_zstd = stored >= 2 and attributes & CODEC_MASK == Codec.ZSTD
            is_readable = stored not in (0, 1) and not (magic == 2 and is_zstd)
        if is_readable:
            found.append(READABLE)
        elif magic < 2 and stored == 2 and attributes & CONTROL_BIT:
            found.append(EMPTY)
        elif stored == 2 and len(payload) >= HEADER_BYTES:
            found.append(CRC.unpack_from(payload, BATCH_CRC_AT)[0])
        else:
            found.append(crc32(payload))
    return found


def scan(messages: Buffer, magic: int, is_inner: bool) -> Scan:
    """Verify length, magic, CRC, fields and codec of every message of a set.

    `magic` is the expected format of all messages, -1 for that of the first. `is_inner` forbids
    compressed messages. For an empty set the result's magic is -1 or `magic`. Raises
    CorruptRecords, InvalidRecords and UnsupportedCodec.
    """
    count = wrappers = largest = 0
    max_timestamp = last_offset = -1
    is_ordinal = True
    has_null_key = has_append_time = False
    for message in iterate_messages(messages, magic, is_inner=is_inner):
        magic = message.magic
        largest = max(largest, message.end - message.start)
        last_offset = message.offset
        is_ordinal = is_ordinal and message.offset == count
        has_append_time = has_append_time or bool(magic and message.attributes & APPEND_TIME_BIT)
        if message.attributes & CODEC_MASK:
            wrappers += 1
        else:
            max_timestamp = max(max_timestamp, message.timestamp)
            has_null_key = has_null_key or message.key_size < 0
        count += 1
    return Scan(
        magic,
        count,
        wrappers,
        largest,
        max_timestamp,
        last_offset,
        is_ordinal,
        has_null_key,
        has_append_time,
    )


def plain_run(messages: Buffer, start: int) -> int:
    """Return the end of the run of uncompressed messages that starts at `start`, from the headers
    only.
    """
    while start < len(messages):
        _, end, _, attributes = _read_header(messages, start)
        if attributes & CODEC_MASK:
            break
        start = end
    return start


def cut(messages: Buffer, offset: int, max_bytes: int) -> tuple[int, int]:
    """Return (start, end) of the messages from the first one at or after `offset`, up to
    `max_bytes`.

    At least one message is included if there is one.
    """
    start = 0
    while start < len(messages):
        found, end, _, _ = _read_header(messages, start)
        if found >= offset:
            break
        start = end
    last = start
    while last < len(messages):
        _, end, _, _ = _read_header(messages, last)
        if end - start > max_bytes and last > start:
            break
        last = end
    return start, last


def _read_header(messages: Buffer, start: int) -> tuple[int, int, int, int]:
    """Return (offset, end, magic, attributes) of the message at `start`."""
    if len(messages) - start < LOG_OVERHEAD + SMALLEST[0]:
        raise error_of(Fault.TRUNCATED, start)
    offset, size, _, magic, attributes = MESSAGE_HEADER.unpack_from(messages, start)
    if size < SMALLEST[0]:
        raise error_of(Fault.SIZE, start)
    if magic > 1:
        raise error_of(Fault.MAGIC, start)
    if size < SMALLEST[magic]:
        raise error_of(Fault.SIZE, start)
    if size > len(messages) - start - LOG_OVERHEAD:
        raise error_of(Fault.TRUNCATED, start)
    return offset, start + LOG_OVERHEAD + size, magic, attributes


def stamp(messages: bytearray | memoryview, base_offset: int, append_time: int | None) -> int:
    """Assign offsets from `base_offset` and, in magic 1, `append_time` if given; return the message
    count.
    """
    view = memoryview(messages)
    start = count = 0
    while start < len(view):
        _, end, magic, attributes = _read_header(view, start)
        OFFSET.pack_into(view, start, base_offset + count)
        if magic and append_time is not None:
            view[start + ATTRIBUTES_AT] = attributes | APPEND_TIME_BIT
            OFFSET.pack_into(view, start + TIMESTAMP_AT, append_time)
            CRC.pack_into(view, start + CRC_AT, crc32(view[start + CRC_FROM : end]))
        start = end
        count += 1
    return count


def down_batch(
    records: Buffer,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    append_time: int | None,
    magic: int,
    is_relative: bool,
) -> Converted:
    """Convert the `count` uncompressed magic-2 records to messages of format `magic`.

    Headers are dropped; message sets have no place for them. `append_time` replaces all timestamps
    and sets the timestamp type bit. With `is_relative`, offsets are relative to the first record
    (the content of a magic-1 wrapper, KIP-31). Raises CorruptRecords.
    """
    out = bytearray()
    attributes = APPEND_TIME_BIT if append_time is not None and magic else 0
    first = last = max_timestamp = -1
    found = 0
    for record in iterate_records(
        records, count, base_offset, last_delta, base_timestamp, append_time
    ):
        first = record.offset if found == 0 else first
        last = record.offset
        max_timestamp = max(max_timestamp, record.timestamp)
        key = (
            None
            if record.key_size < 0
            else records[record.key_at : record.key_at + record.key_size]
        )
        value = (
            None
            if record.value_size < 0
            else records[record.value_at : record.value_at + record.value_size]
        )
        _append(
            out,
            magic,
            last - first if is_relative else last,
            attributes,
            record.timestamp,
            key,
            value,
        )
        found += 1
    return Converted(bytes(out), found, first, last, max_timestamp)


def down_all(payloads: Sequence[Buffer], magic: int, limit: int) -> list[bytes | None]:
    """Convert stored units to message sets of format `magic` in one call; None for units not
    handled.

    The kernel handles valid magic-2 batches that are uncompressed or in the codecs of
    `kernel.PACKED_CODECS`; this implementation handles none.
    """
    return [None] * len(payloads)


def down_run(
    payloads: Sequence[Buffer],
    batches: int,
    magic: int,
    offset: int,
    max_bytes: int,
    at_least_one: bool,
    most_records: int,
    limit: int,
    codecs: int = -1,
) -> tuple[bytes, tuple[int, int, int], bool] | None:
    """Convert `batches` batches to messages of format 0 or 1 from `offset` on.

    Each payload is one or more whole batches, uncompressed or in a codec that `down_all` handles
    and whose bit is set in `codecs`. Each compressed one may unpack to `limit` bytes; none is
    handled if that is 0.

    Returns the whole messages that fit in `max_bytes`, with `at_least_one` the first one in any
    case; the number of batches that they are from, of the offsets of these batches, and of their
    bytes; and whether they end with the batch with which 16 MiB were unpacked, or 0.2 s of CPU time
    used. None if there are no such messages, the batches have more than `most_records` records, or
    one of them is invalid, a control batch, empty, in another codec, or in an lz4 frame or a gzip
    stream that neither Java clients nor librdkafka write: these are for the general conversion
    path. This implementation handles none.
    """
    return None


def down_messages(messages: Buffer, shift: int) -> Converted:
    """Convert uncompressed magic-1 messages to magic 0, with offsets shifted by `shift`.

    Raises CorruptRecords, also if offsets do not ascend, InvalidRecords and UnsupportedCodec.
    """
    out = bytearray()
    first = last = -1
    count = 0
    for message in iterate_messages(messages, 1, is_inner=True):
        offset = message.offset + shift
        if not last < offset <= MAX_INT64:
            raise error_of(Fault.OFFSET, message.start)
        first = offset if count == 0 else first
        last = offset
        start = len(out)
        out += MESSAGE_HEADER.pack(
            offset, message.end - message.start - LOG_OVERHEAD - OFFSET.size, 0, 0, 0
        )
        out += messages[message.start + KEY_AT[1] : message.end]
        CRC.pack_into(out, start + CRC_AT, crc32(memoryview(out)[start + CRC_FROM :]))
        count += 1
    return Converted(bytes(out), count, first, last, NO_TIMESTAMP)


def _append(
    out: bytearray,
    magic: int,
    offset: int,
    attributes: int,
    timestamp: int,
    key: Buffer | None,
    value: Buffer | None,
) -> None:
    """Append a message to `out`."""
    start = len(out)
    size = (
        SMALLEST[magic]
        + (len(key) if key is not None else 0)
        + (len(value) if value is not None else 0)
    )
    out += MESSAGE_HEADER.pack(offset, size, 0, magic, attributes)
    if magic:
        out += OFFSET.pack(timestamp)
    for part in (key, value):
        if part is None:
            out += _NULL
        else:
            out += LENGTH.pack(len(part))
            out += part
    CRC.pack_into(out, start + CRC_AT, crc32(memoryview(out)[start + CRC_FROM :]))


def up_messages(
    messages: Buffer,
    magic: int,
    shift: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> Converted:
    """Convert uncompressed messages of format `magic` to magic-2 records.

    Offsets are shifted by `shift` and stored relative to `base_offset`. Raises InvalidRecords,
    UnsupportedCodec and CorruptRecords, also if offsets do not ascend or are more than 31 bits from
    `base_offset`.
    """
    out = bytearray()
    first = last = max_timestamp = -1
    count = 0
    for message in iterate_messages(messages, magic, is_inner=True):
        offset = message.offset + shift
        if not last < offset <= MAX_INT64 or not 0 <= offset - base_offset <= _MAX_DELTA:
            raise error_of(Fault.OFFSET, message.start)
        first = offset if count == 0 else first
        last = offset
        timestamp = message.timestamp if append_time is None else append_time
        max_timestamp = max(max_timestamp, timestamp)
        if not MIN_INT64 <= timestamp - base_timestamp <= MAX_INT64:
            raise error_of(Fault.TIMESTAMP, message.start)
        body = bytearray(1)
        _put_varint(body, timestamp - base_timestamp)
        _put_varint(body, offset - base_offset)
        _put_varint(body, message.key_size)
        body += messages[message.key_at : message.key_at + max(message.key_size, 0)]
        _put_varint(body, message.value_size)
        body += messages[message.value_at : message.value_at + max(message.value_size, 0)]
        body.append(0)
        _put_varint(out, len(body))
        out += body
        count += 1
    return Converted(bytes(out), count, first, last, max_timestamp)


def _put_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
