"""Converts message sets (magic 0 and 1) to one batch of format 2.

Used when topics are stored in format 2 only, and for consumers of Fetch v4 and later.
"""

from __future__ import annotations

from dataclasses import dataclass

from compat.message_sets.wrappers import DecompressionBudget, Wrapper, segments
from records import codecs, kernel
from records.batch import BatchHeader, build_batch
from records.codecs import MAX_DECOMPRESSED_BYTES
from records.errors import CorruptRecords, InvalidRecords
from records.layout import (
    APPEND_TIME_BIT,
    MAX_INT64,
    NO_TIMESTAMP,
    OFFSET,
    TIMESTAMP_AT,
    Buffer,
    Codec,
    Converted,
    magic_of,
)  # fmt: skip

_NO_PRODUCER = -1


@dataclass(frozen=True, slots=True)
class _MessageRun:
    """Uncompressed messages with the offset shift and the append time of their wrapper, if any."""

    messages: Buffer
    shift: int
    append_time: int | None


def up_convert(
    payload: Buffer,
    *,
    base_offset: int | None = None,
    log_append_time: int | None = None,
    leader_epoch: int = -1,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """Convert a message set to one magic-2 batch of the same codec, without producer id.

    With `base_offset` (a produced set) records get consecutive offsets from there; without it (a
    stored set) they keep their offsets including gaps. Timestamps are kept, -1 for magic 0 as in
    Kafka, unless `log_append_time` (ms) replaces them. Raises CorruptRecords, InvalidRecords (empty
    set, or offsets out of range), UnsupportedCodec and RecordsTooLarge.
    """
    if not len(payload):
        raise InvalidRecords("the message set is empty")
    magic = magic_of(payload)
    if magic > 1:
        raise InvalidRecords("only message sets can be up-converted")
    codec, runs = _message_runs(payload, max_decompressed_bytes)
    if base_offset is not None:
        runs = _renumbered(runs, base_offset)
    first = base_offset if base_offset is not None else _first_offset(runs[0])
    first_timestamp = (
        log_append_time if log_append_time is not None else _first_timestamp(runs[0], magic)
    )
    parts: list[Converted] = []
    for run in runs:
        append_time = run.append_time if log_append_time is None else log_append_time
        part = kernel.up_messages(
            run.messages, magic, run.shift, first, first_timestamp, append_time
        )
        if parts and part.first_offset <= parts[-1].last_offset:
            raise CorruptRecords("the offsets of the message set do not ascend")
        parts.append(part)
    is_append_time = log_append_time is not None or all(run.append_time is not None for run in runs)
    content: Buffer = b"".join(part.content for part in parts)
    batch = BatchHeader(
        base_offset=first,
        leader_epoch=leader_epoch,
        attributes=codec | (APPEND_TIME_BIT if is_append_time else 0),
        last_offset_delta=parts[-1].last_offset - first,
        base_timestamp=first_timestamp,
        max_timestamp=max(part.max_timestamp for part in parts),
        producer_id=_NO_PRODUCER,
        producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER,
        count=sum(part.records for part in parts),
    )
    return build_batch(batch, codecs.compress(codec, content) if codec else content)


def _message_runs(payload: Buffer, limit: int) -> tuple[Codec, list[_MessageRun]]:
    """The set's decompressed messages and the codec of the last wrapper."""
    view = memoryview(payload)
    codec = Codec.NONE
    runs: list[_MessageRun] = []
    for segment in segments(payload, DecompressionBudget(limit)):
        if isinstance(segment, Wrapper):
            codec = segment.codec
            runs.append(_MessageRun(segment.inner, segment.shift, segment.append_time))
        else:
            runs.append(_MessageRun(view[segment], 0, _append_time(view[segment])))
    return codec, runs


def _append_time(messages: memoryview) -> int | None:
    """The log append time of uncompressed messages, or None if they have CreateTime.

    All messages of a stored set have the same timestamp type. Raises CorruptRecords, InvalidRecords
    and UnsupportedCodec.
    """
    found = kernel.scan(messages, -1, True)
    if not found.magic or not found.has_append_time:
        return None
    return found.max_timestamp


def _renumbered(runs: list[_MessageRun], base_offset: int) -> list[_MessageRun]:
    """The runs with consecutive offsets from `base_offset`."""
    if not 0 <= base_offset <= MAX_INT64 - sum(len(run.messages) for run in runs):
        raise InvalidRecords(f"no offsets left for the records at offset {base_offset}")
    renumbered: list[_MessageRun] = []
    for run in runs:
        messages = bytearray(run.messages)
        base_offset += kernel.stamp(messages, base_offset, None)
        renumbered.append(_MessageRun(messages, 0, run.append_time))
    return renumbered


def _first_offset(run: _MessageRun) -> int:
    offset: int = OFFSET.unpack_from(run.messages)[0] + run.shift
    if offset < 0:
        raise CorruptRecords("the first offset of the message set is negative")
    return offset


def _first_timestamp(run: _MessageRun, magic: int) -> int:
    if run.append_time is not None:
        return run.append_time
    timestamp: int = OFFSET.unpack_from(run.messages, TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
    return timestamp
