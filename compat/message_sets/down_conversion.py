"""Down-conversion of stored records for consumers of older formats.

Follows RecordsUtil.downConvert of Kafka 3.9, except that zstd becomes gzip (Kafka returns an error)
and that whole units are converted: records before the fetch offset are cut off afterwards (`cut`),
so that one conversion serves all consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from compat.message_sets.wrappers import DecompressionBudget, Wrapper, segments, wrap
from records import kernel
from records.batch import read_batch
from records.codecs import MAX_DECOMPRESSED_BYTES
from records.errors import CorruptRecords, RecordsError
from records.layout import NO_TIMESTAMP, Buffer, Codec, magic_of
from records.record_reader import read_content


def down_convert(
    payload: Buffer, magic: int, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """Convert one stored unit (a magic-2 batch or a message set) to a message set of format `magic`
    (0 or 1).

    Offsets including gaps, keys, null values, timestamps and timestamp types are kept; headers and
    producer ids are dropped. Control batches and empty batches become b"". The codec is kept,
    except that zstd becomes gzip. A unit that is already old enough is returned unverified. Raises
    CorruptRecords, InvalidRecords, UnsupportedCodec and RecordsTooLarge, and ValueError for another
    `magic`.
    """
    if magic not in (0, 1):
        raise ValueError(f"magic {magic} is not a message set format")
    (made,) = kernel.down_all((payload,), magic, max_decompressed_bytes)
    return convert_single(payload, magic, max_decompressed_bytes) if made is None else made


def down_convert_all(
    payloads: Sequence[Buffer], magic: int, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[bytes | RecordsError]:
    """Return for each payload the result of `down_convert`, or the error that it raises.

    As much as possible is converted in one call without the GIL.
    """
    converted = kernel.down_all(payloads, magic, max_decompressed_bytes)
    if None not in converted:
        # mypy does not know that the list has no None.
        return cast(list[bytes | RecordsError], converted)
    outcomes: list[bytes | RecordsError] = []
    for payload, made in zip(payloads, converted, strict=True):
        try:
            outcomes.append(
                convert_single(payload, magic, max_decompressed_bytes) if made is None else made
            )
        except RecordsError as failure:
            outcomes.append(failure)
    return outcomes


def convert_single(payload: Buffer, magic: int, max_decompressed_bytes: int) -> bytes:
    """Convert a unit that `kernel.down_all` does not handle."""
    stored = magic_of(payload)
    if stored <= magic:
        return bytes(payload)
    if stored == 2:
        return _from_batch(payload, magic, max_decompressed_bytes)
    return _from_messages(payload, max_decompressed_bytes)


def _from_batch(payload: Buffer, magic: int, limit: int) -> bytes:
    batch = read_batch(payload)
    if batch.is_control or not batch.count:
        return b""
    codec = batch.codec
    if codec is Codec.SNAPPY:
        kernel.use_snappy()
    is_relative = bool(codec) and magic == 1
    messages = kernel.down_batch(
        read_content(payload, batch, limit),
        batch.count,
        batch.base_offset,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.append_time,
        magic,
        is_relative,
    )
    if not codec:
        return messages.content
    return wrap(
        Codec.GZIP if codec is Codec.ZSTD else codec,
        messages.content,
        magic=magic,
        offset=messages.last_offset,
        timestamp=messages.max_timestamp,
        is_append_time=batch.append_time is not None,
    )


def _from_messages(payload: Buffer, limit: int) -> bytes:
    """Convert magic 1 to magic 0."""
    view = memoryview(payload)
    parts: list[bytes] = []
    last = -1
    for segment in segments(payload, DecompressionBudget(limit)):
        if isinstance(segment, Wrapper):
            messages = kernel.down_messages(segment.inner, segment.shift)
            parts.append(
                wrap(
                    segment.codec,
                    messages.content,
                    magic=0,
                    offset=messages.last_offset,
                    timestamp=NO_TIMESTAMP,
                    is_append_time=False,
                )
            )
        else:
            messages = kernel.down_messages(view[segment], 0)
            parts.append(messages.content)
        if messages.first_offset <= last:
            raise CorruptRecords("the offsets of the message set do not ascend")
        last = messages.last_offset
    return b"".join(parts) if len(parts) != 1 else parts[0]
