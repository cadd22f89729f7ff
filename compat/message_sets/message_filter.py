"""Compaction of a stored unit of any format: listing its keys, and removing some of its records.

Batches are passed to the functions of the same names in `records`; the same rules apply to message
sets.
"""

from __future__ import annotations

from collections.abc import Iterator

import records
from compat.message_sets.wrappers import DecompressionBudget, Wrapper, segments, wrap
from records import MAX_DECOMPRESSED_BYTES, kernel
from records.batch_rewrite import Keep, iterate_verified, message_timestamp
from records.layout import (
    LOG_OVERHEAD,
    MESSAGE_HEADER,
    NO_TIMESTAMP,
    OFFSET,
    Buffer,
    magic_of,
)  # fmt: skip


def record_keys(
    payload: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[tuple[int, bytes | None, bool]]:
    """Yield (offset, key, whether the value is null) for each record, in offset order.

    A control batch has no keys. Raises CorruptRecords, InvalidRecords, UnsupportedCodec and
    RecordsTooLarge, also while iterating.
    """
    if magic_of(payload) == 2:
        return records.record_keys(payload, max_decompressed_bytes=max_decompressed_bytes)
    return _message_keys(payload, max_decompressed_bytes)


def filter_records(
    payload: Buffer, keep: Keep, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes | None:
    """Return the unit without the records that `keep` rejects, in the same format and codec.

    None if no record is left. The unit is returned unchanged if all records are kept, and always
    for a control batch. Raises CorruptRecords, InvalidRecords, UnsupportedCodec and
    RecordsTooLarge.
    """
    if magic_of(payload) == 2:
        return records.filter_records(payload, keep, max_decompressed_bytes=max_decompressed_bytes)
    view = memoryview(payload)
    parts: list[Buffer] = []
    for segment in segments(payload, DecompressionBudget(max_decompressed_bytes)):
        if isinstance(segment, Wrapper):
            parts.append(_filter_wrapper(view, segment, keep))
        else:
            run = _verified(view[segment])
            parts += [
                run[start:end]
                for start, end, offset, key, is_tombstone in iterate_verified(run)
                if keep(offset, key, is_tombstone)
            ]
    return b"".join(parts) or None


def newest_timestamp(payload: Buffer) -> int:
    """Return the max timestamp in the headers of a stored unit, -1 if there is none.

    Raises CorruptRecords, InvalidRecords and UnsupportedCodec.
    """
    if magic_of(payload) == 2:
        return records.newest_timestamp(payload)
    found = kernel.scan(payload, -1, False).max_timestamp
    at = 0
    while at < len(payload):
        _, size, _, magic, _ = MESSAGE_HEADER.unpack_from(payload, at)
        if magic:
            found = max(found, message_timestamp(payload, at))
        at += LOG_OVERHEAD + size
    return found


def _message_keys(payload: Buffer, limit: int) -> Iterator[tuple[int, bytes | None, bool]]:
    view = memoryview(payload)
    for segment in segments(payload, DecompressionBudget(limit)):
        messages, shift = (
            (segment.inner, segment.shift)
            if isinstance(segment, Wrapper)
            else (_verified(view[segment]), 0)
        )
        for _, _, offset, key, is_tombstone in iterate_verified(messages):
            yield offset + shift, key, is_tombstone


def _filter_wrapper(view: memoryview, wrapper: Wrapper, keep: Keep) -> Buffer:
    """The wrapper with the kept messages; b"" if there are none."""
    inner, shift = wrapper.inner, wrapper.shift
    kept = [one for one in iterate_verified(inner) if keep(one[2] + shift, one[3], one[4])]
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
            max(message_timestamp(inner, start) for start, *_ in kept)
            if wrapper.magic
            else NO_TIMESTAMP
        )
    return wrap(
        wrapper.codec,
        content,
        magic=wrapper.magic,
        offset=kept[-1][2] + shift,
        timestamp=timestamp,
        is_append_time=wrapper.append_time is not None,
    )


def _verified(run: memoryview) -> memoryview:
    kernel.scan(run, -1, True)
    return run
