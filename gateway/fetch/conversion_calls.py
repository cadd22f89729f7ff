"""Conversions as they are called in another thread, or in the reactor's if they are short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import thread_time_ns
from typing import NamedTuple

from msgspec import Struct

from gateway.fetch.entry_loops import RunningJob
from gateway.partitions.stored_records import down_convert_all, up_convert
from gateway.protocol.errors import clear_frames
from records import Codec, NoMemory, RecordsError, kernel, peek_magic, zstd_to_gzip
from records.batch import BATCH_ATTRIBUTES_AT
from records.codecs import MAX_SNAPPY_EXPANSION
from records.layout import CODEC_MASK, FIRST_OF_BATCHES
from storage.log import Buffer

#: CPU time, in microseconds, that one fetch may spend on conversions. The entry that exceeds it is
#: finished; the rest is left to the next fetch. Ordinary batches take some milliseconds; one of
#: `max_decompressed_bytes` takes longer than this.
FETCH_CPU_US = 200_000

#: Entries that together may unpack to this many bytes are converted in one call. Between calls a
#: job checks whether it is cancelled.
MAX_CALL_BYTES = 32 << 20

#: Records of a run that is converted in one call, as many as small ones of MAX_CALL_BYTES.
MAX_RUN_RECORDS = 1 << 20

#: Consumer formats beyond 0 and 1: format 2 without zstd, and format 2 with any codec.
V2_WITHOUT_ZSTD, V2_WITH_ZSTD = 2, 3

#: Maximum expansion by codec: bytes unpacked per compressed byte.
_EXPANSION: dict[int, int] = {
    Codec.NONE: 1,
    Codec.GZIP: 1032,
    Codec.SNAPPY: MAX_SNAPPY_EXPANSION,
    Codec.LZ4: 255,
}


class RunKey(NamedTuple):
    """Identifies a run: the partition, its batches (`entry_loops.run_mark`), and what a consumer of
    format `magic` is to get of them.
    """

    topic_id: bytes
    partition: int
    mark: int
    magic: int
    offset: int
    max_bytes: int
    at_least_one: bool


class ConvertedRun(Struct, frozen=True, gc=False):
    """Messages for a consumer; the number of batches that they are from, of their offsets, and of
    their bytes.

    With `is_short` the conversion ended at one of its limits, and the next fetch continues.
    `cpu_us` is the CPU time in microseconds if it was spent in the reactor's thread. Without
    messages, the run is one for `Converter.convert`.
    """

    messages: bytes
    counts: tuple[int, int, int]
    is_short: bool = False
    cpu_us: int = 0

    def __len__(self) -> int:
        """Its bytes in the cache."""
        return len(self.messages)


def convert_run(
    key: RunKey, payloads: Sequence[Buffer], max_decompressed_bytes: int, _: RunningJob
) -> tuple[ConvertedRun | None, int]:
    """Convert a run; each payload is a batch.

    Returns the result, None if there was not enough memory; and the CPU time used, in microseconds.
    """
    begun = thread_time_ns()
    run: ConvertedRun | None = None
    with suppress(MemoryError):
        found = kernel.down_run(
            payloads,
            len(payloads),
            key.magic,
            key.offset,
            key.max_bytes,
            key.at_least_one,
            MAX_RUN_RECORDS,
            max_decompressed_bytes,
        )
        run = ConvertedRun(b"", (0, 0, 0)) if found is None else ConvertedRun(*found)
    return run, (thread_time_ns() - begun) // 1000


def convert_all(
    payloads: Sequence[Buffer], magic: int, max_decompressed_bytes: int, job: RunningJob
) -> tuple[list[bytes | RecordsError], int]:
    """Convert at least the first payload.

    Returns the results and the CPU time used, in microseconds.
    """
    begun = thread_time_ns()
    cpu_us = 0
    outcomes: list[bytes | RecordsError] = []
    for units in _split_into_calls(payloads, max_decompressed_bytes):
        if magic < V2_WITHOUT_ZSTD:
            outcomes += down_convert_all(
                units, magic, max_decompressed_bytes=max_decompressed_bytes
            )
        else:
            outcomes += [_to_v2(payload, max_decompressed_bytes) for payload in units]
        cpu_us = (thread_time_ns() - begun) // 1000
        if job.is_cancelled or cpu_us > FETCH_CPU_US:
            break
    for _, failure in failures(outcomes):
        clear_frames(failure)
    return outcomes, cpu_us


def failures(outcomes: list[bytes | RecordsError]) -> list[tuple[int, RecordsError]]:
    """Return the errors with their indexes; nearly always there are none."""
    if set(map(type, outcomes)) <= {bytes}:
        return []
    return [
        (number, outcome)
        for number, outcome in enumerate(outcomes)
        if isinstance(outcome, RecordsError)
    ]


def _split_into_calls(
    payloads: Sequence[Buffer], max_decompressed_bytes: int
) -> Iterator[list[Buffer]]:
    """Group the payloads by the size to which they may unpack."""
    counts, _, size = kernel.tally(payloads)
    if counts[FIRST_OF_BATCHES] == len(payloads) and size <= MAX_CALL_BYTES:
        # The common case: batches without compression.
        yield list(payloads)
        return
    units: list[Buffer] = []
    left = MAX_CALL_BYTES
    for payload in payloads:
        worst = min(_max_unpacked_size(payload), max_decompressed_bytes)
        if units and worst > left:
            yield units
            units, left = [], MAX_CALL_BYTES
        units.append(payload)
        left -= worst
    if units:
        yield units


def _max_unpacked_size(payload: Buffer) -> int:
    """Return the size to which a payload may unpack, regardless of its header."""
    if peek_magic(payload) == 2 and len(payload) > BATCH_ATTRIBUTES_AT:
        expansion = _EXPANSION.get(payload[BATCH_ATTRIBUTES_AT] & CODEC_MASK)
        if expansion is not None:
            return len(payload) * expansion
    return MAX_CALL_BYTES


def _to_v2(payload: Buffer, max_decompressed_bytes: int) -> bytes | RecordsError:
    """Convert a payload to format 2 without zstd.

    An older message set that cannot be converted is returned unchanged: the consumer supports its
    format and reports the problem itself.
    """
    is_batch = peek_magic(payload) == 2
    convert = zstd_to_gzip if is_batch else up_convert
    try:
        return convert(payload, max_decompressed_bytes=max_decompressed_bytes)
    except RecordsError as failure:
        return failure if is_batch or isinstance(failure, NoMemory) else bytes(payload)
