"""Compaction of a stored unit: listing its keys, and removing some of its records.

Follows Kafka's MemoryRecords.filterTo: offsets do not change, and a batch keeps its first and last
offset and its producer's sequence, so that readers and sequence checks see no difference.

Records are verified by the compiled conversion and scan loops; Python then only walks fixed fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

from compat.message_sets.wrappers import DecompressionBudget, Wrapper, segments, wrap
from records import codecs, kernel
from records.codecs import MAX_DECOMPRESSED_BYTES
from records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_HEADER,
    NO_TIMESTAMP,
    OFFSET,
    TIMESTAMP_AT,
    BatchHeader,
    Buffer,
    build_batch,
    magic_of,
    read_batch,
)  # fmt: skip

Keep = Callable[[int, bytes | None, bool], bool]
"""(offset, key, whether the value is null) -> whether to keep the record. Called once per record,
in offset order.
"""

_KEY_SIZE_AND_BEFORE = (Struct(">qi6xi"), Struct(">qi14xi"))
"""Offset, size and key length of a message, by magic."""

_Message = tuple[int, int, int, bytes | None, bool]
"""A verified uncompressed message: start, end, offset, key, whether the value is null."""


def record_keys(
    payload: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[tuple[int, bytes | None, bool]]:
    """Yield (offset, key, whether the value is null) for each record, in offset order.

    A control batch has no keys. Raises CorruptRecords, InvalidRecords, UnsupportedCodec and
    RecordsTooLarge while iterating.
    """
    if magic_of(payload) == 2:
        batch = read_batch(payload)
        if batch.is_control:
            return
        for _, _, offset, key, is_tombstone in _messages(
            _as_messages(_content(payload, batch, max_decompressed_bytes), batch)
        ):
            yield offset, key, is_tombstone
        return
    view = memoryview(payload)
    for segment in segments(payload, DecompressionBudget(max_decompressed_bytes)):
        messages, shift = (
            (segment.inner, segment.shift)
            if isinstance(segment, Wrapper)
            else (_verified(view[segment]), 0)
        )
        for _, _, offset, key, is_tombstone in _messages(messages):
            yield offset + shift, key, is_tombstone


def filter_records(
    payload: Buffer, keep: Keep, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes | None:
    """Return the unit without the records that `keep` rejects, in the same format and codec.

    None if no record is left. The unit is returned unchanged if all records are kept, and always
    for a control batch. Raises CorruptRecords, InvalidRecords, UnsupportedCodec and
    RecordsTooLarge.
    """
    if magic_of(payload) == 2:
        return _filter_batch(payload, keep, max_decompressed_bytes)
    view = memoryview(payload)
    parts: list[Buffer] = []
    for segment in segments(payload, DecompressionBudget(max_decompressed_bytes)):
        if isinstance(segment, Wrapper):
            parts.append(_filter_wrapper(view, segment, keep))
        else:
            run = _verified(view[segment])
            parts += [
                run[start:end]
                for start, end, offset, key, is_tombstone in _messages(run)
                if keep(offset, key, is_tombstone)
            ]
    return b"".join(parts) or None


def empty_batch(payload: Buffer) -> bytes:
    """Return a magic-2 batch without its records, kept for the sequence of a producer's last batch.

    As DefaultRecordBatch.writeEmptyHeader: offsets, producer, max timestamp and timestamp type
    stay; codec and base timestamp are cleared. Raises CorruptRecords.
    """
    batch = read_batch(payload)
    return build_batch(
        batch._replace(
            attributes=batch.attributes & ~CODEC_MASK, base_timestamp=NO_TIMESTAMP, records=0
        ),
        b"",
    )


def newest_timestamp(payload: Buffer) -> int:
    """Return the max timestamp in the headers of a stored unit, -1 if there is none.

    Raises CorruptRecords, InvalidRecords and UnsupportedCodec.
    """
    if magic_of(payload) == 2:
        batch = read_batch(payload)
        return batch.max_timestamp if batch.records else NO_TIMESTAMP
    found = kernel.scan(payload, -1, False).max_timestamp
    at = 0
    while at < len(payload):
        _, size, _, magic, _ = MESSAGE_HEADER.unpack_from(payload, at)
        if magic:
            found = max(found, _timestamp(payload, at))
        at += LOG_OVERHEAD + size
    return found


def _filter_batch(payload: Buffer, keep: Keep, limit: int) -> bytes | None:
    batch = read_batch(payload)
    if batch.is_control:
        return bytes(payload)
    content = _content(payload, batch, limit)
    messages = _as_messages(content, batch)
    kept = bytearray()
    count = position = 0
    max_timestamp = NO_TIMESTAMP
    for start, _, offset, key, is_tombstone in _messages(messages):
        end = _record_end(content, position)
        if keep(offset, key, is_tombstone):
            kept += content[position:end]
            count += 1
            max_timestamp = max(max_timestamp, _timestamp(messages, start))
        position = end
    if not count:
        return None
    if count == batch.records:
        return bytes(payload)
    # Records store offset and timestamp as deltas to the header's, which do not change, so their
    # bytes stay the same.
    header = batch._replace(records=count, max_timestamp=max_timestamp)
    return build_batch(header, codecs.compress(batch.codec, kept, magic=2) if batch.codec else kept)


def _filter_wrapper(view: memoryview, wrapper: Wrapper, keep: Keep) -> Buffer:
    """The wrapper with the kept messages; b"" if there are none."""
    inner, shift = wrapper.inner, wrapper.shift
    kept = [one for one in _messages(inner) if keep(one[2] + shift, one[3], one[4])]
    if len(kept) == wrapper.scan.messages:
        return view[wrapper.start : wrapper.end]
    if not kept:
        return b""
    # In magic 1 inner offsets are relative to the first kept record; in magic 0 they are absolute
    # (KIP-31).
    first = kept[0][2] if wrapper.magic else 0
    content = b"".join(
        OFFSET.pack(offset - first) + inner[start + OFFSET.size : end]
        for start, end, offset, *_ in kept
    )
    if wrapper.append_time is not None:
        timestamp = wrapper.append_time
    else:
        timestamp = (
            max(_timestamp(inner, start) for start, *_ in kept) if wrapper.magic else NO_TIMESTAMP
        )
    return wrap(
        wrapper.codec,
        content,
        magic=wrapper.magic,
        offset=kept[-1][2] + shift,
        timestamp=timestamp,
        is_append_time=wrapper.append_time is not None,
    )


def _content(payload: Buffer, batch: BatchHeader, limit: int) -> Buffer:
    """The batch's records, decompressed."""
    content = memoryview(payload)[BATCH_OVERHEAD:]
    return codecs.decompress(batch.codec, content, limit) if batch.codec else content


def _as_messages(content: Buffer, batch: BatchHeader) -> bytes:
    """Convert the records one to one to magic-1 messages: this verifies them and puts fields at
    fixed offsets.
    """
    made = kernel.down_batch(
        content,
        batch.records,
        batch.base_offset,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.append_time,
        1,
        False,
    )
    return made.content


def _verified(run: memoryview) -> memoryview:
    kernel.scan(run, -1, True)
    return run


def _messages(messages: Buffer) -> Iterator[_Message]:
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


def _timestamp(messages: Buffer, start: int) -> int:
    """Timestamp of a magic-1 message."""
    timestamp: int = OFFSET.unpack_from(messages, start + TIMESTAMP_AT)[0]
    return timestamp


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
