"""Rewriting a batch: without some of its records, for compaction, or with another codec.

Compaction follows Kafka's MemoryRecords.filterTo: offsets do not change, and a batch keeps its
first and last offset and its producer's sequence, so that readers and sequence checks see no
difference.

Records are verified by the compiled conversion loop; Python then only walks fixed fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

from msgspec.structs import replace

from records import codecs, kernel
from records.batch import HEADER_BYTES, BatchHeader, build_batch, read_batch
from records.codecs import MAX_DECOMPRESSED_BYTES
from records.layout import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_AT,
    NO_TIMESTAMP,
    OFFSET,
    TIMESTAMP_AT,
    Buffer,
    Codec,
)  # fmt: skip
from records.record_reader import read_content

Keep = Callable[[int, bytes | None, bool], bool]
"""(offset, key, whether the value is null) -> whether to keep the record. Called once per record,
in offset order.
"""

_KEY_SIZE_AND_BEFORE = (Struct(">qi6xi"), Struct(">qi14xi"))
"""Offset, size and key length of a message, by magic."""

VerifiedMessage = tuple[int, int, int, bytes | None, bool]
"""A verified uncompressed message: start, end, offset, key, whether the value is null."""


def record_keys(
    payload: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[tuple[int, bytes | None, bool]]:
    """Yield (offset, key, whether the value is null) for each record.

    A control batch has no keys. Raises CorruptRecords, UnsupportedCodec and RecordsTooLarge while
    iterating.
    """
    batch = read_batch(payload)
    if batch.is_control:
        return
    for _, _, offset, key, is_tombstone in iterate_verified(
        _as_messages(read_content(payload, batch, max_decompressed_bytes), batch)
    ):
        yield offset, key, is_tombstone


def filter_records(
    payload: Buffer, keep: Keep, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes | None:
    """Return the batch without the records that `keep` rejects, in the same codec.

    None if no record is left. The batch is returned unchanged if all records are kept, and always
    if it is a control batch. Raises CorruptRecords, UnsupportedCodec and RecordsTooLarge.
    """
    batch = read_batch(payload)
    if batch.is_control:
        return bytes(payload)
    content = read_content(payload, batch, max_decompressed_bytes)
    messages = _as_messages(content, batch)
    kept = bytearray()
    count = position = 0
    max_timestamp = NO_TIMESTAMP
    for start, _, offset, key, is_tombstone in iterate_verified(messages):
        end = _record_end(content, position)
        if keep(offset, key, is_tombstone):
            kept += content[position:end]
            count += 1
            max_timestamp = max(max_timestamp, message_timestamp(messages, start))
        position = end
    if not count:
        return None
    if count == batch.count:
        return bytes(payload)
    # Records store offset and timestamp as deltas to the header's, which do not change, so their
    # bytes stay the same.
    header = replace(batch, count=count, max_timestamp=max_timestamp)
    return build_batch(header, codecs.compress(batch.codec, kept) if batch.codec else kept)


def empty_batch(payload: Buffer) -> bytes:
    """Return the batch with its records removed.

    Compaction keeps such a batch if it is the producer's last one, because it holds the sequence.
    As DefaultRecordBatch.writeEmptyHeader: offsets, producer, max timestamp and timestamp type
    stay; codec and base timestamp are cleared. Raises CorruptRecords.
    """
    batch = read_batch(payload)
    return build_batch(
        replace(
            batch, attributes=batch.attributes & ~CODEC_MASK, base_timestamp=NO_TIMESTAMP, count=0
        ),
        b"",
    )


def zstd_to_gzip(payload: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Recompress a zstd batch with gzip, for consumers that know magic 2 but not zstd.

    These are consumers with Fetch v4 to v9 (KIP-110). Raises CorruptRecords, UnsupportedCodec and
    RecordsTooLarge.
    """
    batch = read_batch(payload)
    attributes = batch.attributes & ~CODEC_MASK
    if not batch.count:
        return build_batch(replace(batch, attributes=attributes), b"")
    content = codecs.decompress(
        Codec.ZSTD, memoryview(payload)[HEADER_BYTES:], max_decompressed_bytes
    )
    return build_batch(
        replace(batch, attributes=attributes | Codec.GZIP), codecs.compress(Codec.GZIP, content)
    )


def newest_timestamp(payload: Buffer) -> int:
    """Return the max timestamp in the header of a batch, -1 if it has no records.

    Raises CorruptRecords.
    """
    batch = read_batch(payload)
    return batch.max_timestamp if batch.count else NO_TIMESTAMP


def iterate_verified(messages: Buffer) -> Iterator[VerifiedMessage]:
    """Iterate over a verified set of uncompressed messages of one magic."""
    if not len(messages):
        return
    magic = messages[MAGIC_AT]
    fields, at = _KEY_SIZE_AND_BEFORE[magic], 0
    while at < len(messages):
        offset, size, key_size = fields.unpack_from(messages, at)
        key_at = at + fields.size
        value_at = key_at + max(key_size, 0)
        # A null value has length -1, the only length whose first bit is set.
        key = None if key_size < 0 else bytes(messages[key_at:value_at])
        end = at + LOG_OVERHEAD + size
        yield at, end, offset, key, messages[value_at] > 0x7F
        at = end


def message_timestamp(messages: Buffer, start: int) -> int:
    """Timestamp of a magic-1 message."""
    timestamp: int = OFFSET.unpack_from(messages, start + TIMESTAMP_AT)[0]
    return timestamp


def _as_messages(content: Buffer, batch: BatchHeader) -> bytes:
    """Convert the records one to one to magic-1 messages: this verifies them and puts fields at
    fixed offsets.
    """
    made = kernel.down_batch(
        content,
        batch.count,
        batch.base_offset,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.append_time,
        1,
        False,
    )
    return made.content


def _record_end(records: Buffer, position: int) -> int:
    """End of the verified magic-2 record at `position`, from its zigzag length."""
    raw = shift = 0
    while True:
        byte = records[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position + (raw >> 1)
        shift += 7
