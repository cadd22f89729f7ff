"""Compaction of one stored unit: the same unit with some of its records only.

Follows Kafka's MemoryRecords.filterTo: offsets do not change, and a batch keeps its first and last offset and its producer's sequence, so that neither
readers nor sequence checks see a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compat.records import codecs
from compat.records.layout import BATCH_OVERHEAD, NO_TIMESTAMP, OFFSET, Batch, Buffer, build_batch, magic_of, read_batch
from compat.records.limits import MAX_DECOMPRESSED_BYTES
from compat.records.walk import Message, walk_messages, walk_records
from compat.records.wrappers import Budget, Wrapper, segments, wrap

Keep = Callable[[int, bytes | None, bool], bool]
"""(offset, key, whether the value is null) -> whether the record stays. Called once for each record, in offset order."""


def filter_records(payload: Buffer, keep: Keep, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes | None:
    """The unit without the records that `keep` refuses, in the same format and codec; None where none is left.

    Where all stay (and always for a control batch, whose markers have no keys of that kind) it is the unit as it was.
    Raises CorruptRecords, InvalidRecords, UnsupportedCodec, RecordsTooLarge.
    """
    if magic_of(payload) == 2:
        return _filter_batch(payload, keep, max_decompressed_bytes)
    view = memoryview(payload)
    parts: list[Buffer] = []
    for segment in segments(payload, Budget(max_decompressed_bytes)):
        if isinstance(segment, Wrapper):
            parts.append(_filter_wrapper(view, segment, keep))
        else:
            run = view[segment]
            parts += [run[one.start : one.end] for one in walk_messages(run, -1, is_inner=True) if _stays(run, one, 0, keep)]
    return b"".join(parts) or None


def _filter_batch(payload: Buffer, keep: Keep, limit: int) -> bytes | None:
    batch = read_batch(payload)
    if batch.is_control:
        return bytes(payload)
    content: Buffer = memoryview(payload)[BATCH_OVERHEAD:]
    if batch.codec:
        content = codecs.decompress(batch.codec, content, limit)
    kept: list[Buffer] = []
    max_timestamp = NO_TIMESTAMP
    for one in walk_records(content, batch.count, batch.base_offset, batch.last_offset_delta, batch.base_timestamp, batch.append_time):
        key = None if one.key_size < 0 else bytes(content[one.key_at : one.key_at + one.key_size])
        if keep(one.offset, key, one.value_size < 0):
            kept.append(content[one.start : one.end])
            max_timestamp = max(max_timestamp, one.timestamp)
    if not kept:
        return None
    if len(kept) == batch.count:
        return bytes(payload)
    return _rebuilt(replace(batch, count=len(kept), max_timestamp=max_timestamp), b"".join(kept))


def _rebuilt(batch: Batch, content: bytes) -> bytes:
    """Records bear their offset and timestamp as distances from the header's, which stay, so that their bytes stay too."""
    return build_batch(batch, codecs.compress(batch.codec, content, magic=2) if batch.codec else content)


def _filter_wrapper(view: memoryview, wrapper: Wrapper, keep: Keep) -> Buffer:
    """The wrapper with what is left in it; b"" where that is nothing."""
    inner = wrapper.inner
    kept = [one for one in walk_messages(inner, wrapper.magic, is_inner=True) if _stays(inner, one, wrapper.shift, keep)]
    if len(kept) == wrapper.scan.messages:
        return view[wrapper.start : wrapper.end]
    if not kept:
        return b""
    # Magic 1 counts the inner offsets from the first record left, magic 0 from 0 (KIP-31).
    first = kept[0].offset if wrapper.magic else 0
    content = b"".join(OFFSET.pack(one.offset - first) + inner[one.start + OFFSET.size : one.end] for one in kept)
    timestamp = max(one.timestamp for one in kept) if wrapper.append_time is None else wrapper.append_time
    return wrap(
        wrapper.codec,
        content,
        magic=wrapper.magic,
        offset=kept[-1].offset + wrapper.shift,
        timestamp=timestamp,
        is_append_time=wrapper.append_time is not None,
    )


def _stays(messages: Buffer, one: Message, shift: int, keep: Keep) -> bool:
    key = None if one.key_size < 0 else bytes(messages[one.key_at : one.key_at + one.key_size])
    return keep(one.offset + shift, key, one.value_size < 0)
