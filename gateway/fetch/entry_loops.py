"""Loops over the entries of a Fetch, which can be thousands: one call per partition.

The functions are the reference of the compiled ones in `_entry_loops.pyx`. `loops` has those that
are used.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any, Protocol, TypeVar

from gateway.partitions.stored_records import has_legacy_lz4
from gateway.protocol.errors import KafkaError
from records import HEADER_BYTES, Codec, kernel
from records.batch import BATCH_ATTRIBUTES_AT, BATCH_CRC_AT, LAST_OFFSET_DELTA_AT
from records.layout import (
    CODEC_MASK,
    CRC,
    FIRST_OF_BATCHES,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC_AT,
    OFFSET,
    READABLE,
)
from records.lz4_header import KAFKA_HEADERS, LZ4_HEADER_BYTES
from storage.log import Buffer, Entry, compiled

_INTERFACE = 6
"""Expected INTERFACE of the compiled module; incremented when one of its functions changes."""

PAYLOAD: Callable[[Entry], Buffer] = attrgetter("payload")

#: Topic id, partition, base offset, size, checksum and magic of an entry to be converted.
#: Compaction changes entries, and a compressed entry may even keep its size.
CacheKey = bytes
_KEY = Struct(">iqqIb")

GZIP_START = b"\x1f\x8b\x08\x00"
"""Of a gzip stream without optional fields, as Java clients and librdkafka write it."""

MAX_UINT64 = (1 << 64) - 1
MIXER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, as in Knuth's multiplicative hashing."""


class RunningJob(Protocol):
    """A running conversion."""

    is_cancelled: bool


J = TypeVar("J", bound=RunningJob)


def look_up(
    entries: Sequence[Entry],
    checksums: list[int],
    topic_id: bytes,
    partition: int,
    magic: int,
    cache: OrderedDict[CacheKey, bytes],
    jobs: dict[CacheKey, J],
    own_job: J | None,
) -> tuple[list[Buffer | KafkaError], list[tuple[int, CacheKey, J]], list[CacheKey], list[Entry]]:
    """Find conversions. `checksums` are what `kernel.conversions` returned for the entries.

    Returns the results that are known, with b"" for the others; those that are pending in jobs, as
    index, key and job; keys and entries that are missing for `own_job`. It is then their job.
    Without `own_job`, the results end before the first missing entry.
    """
    results: list[Buffer | KafkaError] = []
    pending: list[tuple[int, CacheKey, J]] = []
    keys: list[CacheKey] = []
    missing: list[Entry] = []
    for entry, checksum in zip(entries, checksums, strict=True):
        payload = entry.payload
        if checksum < 0:
            results.append(payload if checksum == READABLE else b"")
            continue
        key = topic_id + _KEY.pack(partition, entry.base_offset, len(payload), checksum, magic)
        kept = cache.get(key)
        if kept is not None:
            cache.move_to_end(key)
            results.append(kept)
            continue
        job = jobs.get(key)
        if job is None or job.is_cancelled:
            if own_job is None:
                break
            job = jobs[key] = own_job
            keys.append(key)
            missing.append(entry)
        pending.append((len(results), key, job))
        results.append(b"")
    return results, pending, keys, missing


def fill(
    results: list[Buffer | KafkaError],
    pending: list[tuple[int, CacheKey, Any]],
    first: int,
    found: Mapping[CacheKey, Buffer | KafkaError],
) -> int:
    """Fill in results of the job of `pending[first]`, which has found these.

    Returns the index of the next job's first one. If a result is missing, `results` ends before it,
    and the index is the end of `pending`.
    """
    job = pending[first][2]
    for number in range(first, len(pending)):
        index, key, of = pending[number]
        if of is not job:
            return number
        converted = found.get(key)
        if converted is None:
            del results[index:]
            return len(pending)
        results[index] = converted
    return len(pending)


def remove_job(jobs: dict[CacheKey, J], keys: list[CacheKey], job: J) -> None:
    """Remove a job that has ended. Another one may have replaced it."""
    for key in keys:
        if jobs.get(key) is job:
            del jobs[key]


def keep(
    cache: OrderedDict[CacheKey, bytes],
    results: Mapping[CacheKey, bytes | KafkaError],
    cached_bytes: int,
    limit: int,
    overhead: int,
) -> int:
    """Add results to a cache of `cached_bytes`, and evict the least recently used ones.

    Each counts as its size and `overhead`. Returns the bytes then in the cache, at most `limit`.
    """
    for key, converted in results.items():
        if isinstance(converted, KafkaError):
            continue
        size = len(converted) + overhead
        if size <= limit:
            cache[key] = converted
            cached_bytes += size
    while cached_bytes > limit:
        _, oldest = cache.popitem(last=False)
        cached_bytes -= len(oldest) + overhead
    return cached_bytes


def is_converted(payload: Buffer, entry: Entry) -> bool:
    """Whether a payload is what the entry was converted to.

    An entry that is a part of its request has a new payload at each access.
    """
    stored = entry.payload
    return payload is not stored and payload != stored


def select_whole(
    entries: Sequence[Entry], payloads: Sequence[Buffer | KafkaError], first: int, limit: int
) -> tuple[int, list[Buffer], int, tuple[int, int, int]]:
    """Select payloads from `first` on that fit into `limit` bytes as a whole, up to an error.

    `payloads` are those of the entries or what they were converted to. Returns the index of the
    next one, those that are not empty, their bytes, and of the converted ones among them the
    number, the number of records, and the stored bytes.
    """
    selected: list[Buffer] = []
    batches = records = stored = 0
    left = limit
    number = first
    while number < len(payloads):
        payload = payloads[number]
        if isinstance(payload, KafkaError) or len(payload) > left:
            break
        if payload:
            selected.append(payload)
            left -= len(payload)
            entry = entries[number]
            if is_converted(payload, entry):
                batches += 1
                records += entry.last_offset - entry.base_offset + 1
                stored += len(entry.payload)
        number += 1
    return number, selected, limit - left, (batches, records, stored)


def legacy_lz4(entries: Sequence[Entry], payloads: Sequence[Buffer | KafkaError]) -> list[int]:
    """Return where a payload is as it is stored and has the lz4 checksums of format 0."""
    return [
        number
        for number, payload in enumerate(payloads)
        if payload is entries[number].payload and has_legacy_lz4(payload)
    ]


def whole_batches(
    entries: Sequence[Entry], offset: int, limit: int, *, with_zstd: bool
) -> tuple[list[Buffer], int]:
    """Return the payloads if the consumer can be sent all of them as they are, else an empty list;
    and the size of all payloads in both cases. Compiled entries may stand for their payloads: they
    are buffers.

    That is: they begin at or after `offset`, fit in `limit` bytes, and all are batches of format 2,
    none in zstd unless `with_zstd`.
    """
    payloads: list[Buffer] = list(map(PAYLOAD, entries))
    counts, _, size = kernel.tally(payloads)
    are_whole = (
        len(payloads) > 0
        and offset <= entries[0].base_offset
        and sum(counts[FIRST_OF_BATCHES:]) == len(payloads)
        and (with_zstd or not counts[FIRST_OF_BATCHES + Codec.ZSTD])
        and size <= limit
    )
    return payloads if are_whole else [], size


def are_batches(payload: Buffer, count: int, *, with_zstd: bool) -> bool:
    """Whether `payload` is `count` batches of format 2, joined, none in zstd unless `with_zstd`."""
    at = found = 0
    while at + HEADER_BYTES <= len(payload):
        size = LOG_OVERHEAD + LENGTH.unpack_from(payload, at + LOG_OVERHEAD - LENGTH.size)[0]
        if payload[at + MAGIC_AT] != 2 or size < HEADER_BYTES or size > len(payload) - at:
            return False
        codec = payload[at + BATCH_ATTRIBUTES_AT] & CODEC_MASK
        if codec == Codec.ZSTD and not with_zstd:
            return False
        at += size
        found += 1
    return at == len(payload) and found == count


def run_mark(payloads: Sequence[Buffer], least: int, before: int, codecs: int) -> int | None:
    """Return a hash of the offsets, sizes and checksums of the batches joined in the payloads.

    None unless these are at least `least` whole batches of format 2 that end before the offset
    `before`, some in `codecs` (see `kernel.PACKED_CODECS`), and the others uncompressed. lz4 frames
    and gzip streams must begin as those that the kernel handles.
    """
    mark = found = 0
    end = before
    is_packed = False
    for payload in payloads:
        at = 0
        while at + HEADER_BYTES <= len(payload):
            size = LOG_OVERHEAD + LENGTH.unpack_from(payload, at + LOG_OVERHEAD - LENGTH.size)[0]
            if payload[at + MAGIC_AT] != 2 or not HEADER_BYTES <= size <= len(payload) - at:
                break
            codec = payload[at + BATCH_ATTRIBUTES_AT] & CODEC_MASK
            if codec:
                if not codecs >> codec & 1:
                    break
                header = bytes(payload[at + HEADER_BYTES : at + size][:LZ4_HEADER_BYTES])
                if codec == Codec.LZ4 and header not in KAFKA_HEADERS:
                    break
                if codec == Codec.GZIP and not header.startswith(GZIP_START):
                    break
                is_packed = True
            (offset,) = OFFSET.unpack_from(payload, at)
            (checksum,) = CRC.unpack_from(payload, at + BATCH_CRC_AT)
            for field in (offset, size << 32 | checksum):
                mark = (mark ^ field) * MIXER & MAX_UINT64
                # Otherwise the upper bits of a field would change only the upper bits of the mark.
                mark ^= mark >> 32
            (last_delta,) = LENGTH.unpack_from(payload, at + LAST_OFFSET_DELTA_AT)
            end = offset + last_delta + 1
            at += size
            found += 1
        if at < len(payload):
            return None
    return mark if is_packed and found >= least and end < before else None


#: The module whose functions are used: the compiled one, or this one.
loops: Any = sys.modules[__name__]

if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import gateway.fetch._entry_loops as _entry_loops
    except ImportError:
        pass
    else:
        # It uses the fields of compiled entries, and returns them as buffers, which the kernel in
        # Python could not read.
        if _entry_loops.INTERFACE == _INTERFACE and compiled and kernel.KERNEL == "cython":
            loops = _entry_loops
