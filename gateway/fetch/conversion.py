"""Converts records for consumers of other formats, off the reactor thread.

`compat.message_sets` and `records` do the conversion. This module adds threads, a cache, and jobs
shared by all consumers that need the same entries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from time import thread_time_ns
from typing import Any, NamedTuple

from isal.isal_zlib import crc32

from gateway import logs
from gateway.coroutines import Cancel, SharedResult, start
from gateway.partitions.stored_records import down_convert_all, up_convert
from gateway.protocol.errors import ErrorCode, KafkaError, clear_frames
from records import (
    HEADER_BYTES,
    Codec,
    NoMemory,
    RecordsError,
    RecordsTooLarge,
    kernel,
    peek_magic,
    zstd_to_gzip,
)
from records.batch import BATCH_ATTRIBUTES_AT, BATCH_CRC_AT
from records.layout import CODEC_MASK, CRC, FIRST_OF_BATCHES, READABLE
from storage.log import Buffer, Entry

#: (topic id, partition, base offset, size, checksum, magic). Compaction changes entries, and a
#: compressed entry may even keep its size.
CacheKey = tuple[bytes, int, int, int, int, int]


#: CPU time, in microseconds, that one fetch may spend on conversions. The entry that exceeds it is
#: finished; the rest is left to the next fetch. Ordinary batches take some milliseconds; one of
#: `max_decompressed_bytes` takes longer than this.
FETCH_CPU_US = 200_000

#: Entries that together may unpack to this many bytes are converted in one call. Between calls a
#: job checks whether it is cancelled.
MAX_CALL_BYTES = 32 << 20

#: Maximum expansion of lz4: bytes unpacked per compressed byte.
_LZ4_EXPANSION = 255


class ConversionBudget:
    """CPU time left for the conversions of one fetch, and their owner (`Workers.run_for`)."""

    __slots__ = ("left_us", "owner")

    def __init__(self, owner: Hashable = None) -> None:
        self.owner = owner
        self.left_us = FETCH_CPU_US


class ConversionJob(SharedResult[Mapping[CacheKey, Buffer | KafkaError]]):
    """A running conversion.

    The result maps keys to converted entries; a job that exceeds its CPU time omits the last ones.
    `cpu_us` is the CPU time used, in microseconds. `waiters` counts waiting requests; without any
    the job is cancelled.
    """

    __slots__ = ("cancel", "cpu_us", "is_cancelled", "waiters")

    def __init__(self) -> None:
        super().__init__()
        self.cpu_us = 0
        self.waiters = 0
        self.is_cancelled = False
        self.cancel: Cancel | None = None

    def remove_waiter(self) -> None:
        """Remove a waiting request; cancel the job if it was the last."""
        self.waiters -= 1
        if not self.waiters:
            # The converting thread checks this between two calls.
            self.is_cancelled = True
            if self.cancel is not None:
                self.cancel()


#: Approximate overhead of a cache entry, in bytes, so that many small or empty results count, too.
ENTRY_OVERHEAD = 512

#: Unreadable entries remembered as logged, some 300 bytes each; older ones may be logged again.
MAX_REPORTED_UNREADABLE = 1_000

#: Consumer formats beyond 0 and 1: format 2 without zstd, and format 2 with any codec.
V2_WITHOUT_ZSTD, V2_WITH_ZSTD = 2, 3

_log = logs.get_logger(__name__)

_JOB: Callable[[tuple[int, CacheKey, ConversionJob]], ConversionJob] = itemgetter(2)


class SourcePartition(NamedTuple):
    """The partition that entries come from."""

    topic: str
    topic_id: bytes
    partition: int


class Converter:
    """Converts entries and caches the results.

    `run_for(owner, function, *args)` runs a function on another thread. `cache_bytes` limits the
    cache.
    """

    def __init__(
        self,
        run_for: Callable[..., Awaitable[Any]],
        *,
        cache_bytes: int,
        max_decompressed_bytes: int,
    ) -> None:
        self._run_for = run_for
        self._cache_bytes = cache_bytes
        self._max_decompressed_bytes = max_decompressed_bytes
        self._cache: OrderedDict[CacheKey, bytes] = OrderedDict()
        self._jobs: dict[CacheKey, ConversionJob] = {}
        # Unreadable entries that were logged, as keys without the format.
        self._reported: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self.cached_bytes = 0
        self.conversions = 0

    async def convert(
        self,
        source: SourcePartition,
        entries: Sequence[Entry],
        magic: int,
        on_cpu_spent: Callable[[int], None] | None = None,
        budget: ConversionBudget | None = None,
    ) -> list[Buffer | KafkaError]:
        """Return each entry's payload in a format that consumers of `magic` can read.

        The payload is returned as is if it is already readable. Consumers that support format 2 get
        only format 2, as from Kafka since 3.0: many of them no longer read older formats. A payload
        is empty if no record in it exists for such a consumer (control batches) or if it is
        unreadable, which is logged. It is KafkaError(UNKNOWN_SERVER_ERROR) if there was not enough
        memory to convert it.

        The result is shorter than `entries` if `budget` is exhausted; a budget that is not
        exhausted converts at least one entry. `on_cpu_spent` receives the CPU time, in
        microseconds, of conversions that this call started.
        """
        budget = budget or ConversionBudget()
        while True:
            own_job = ConversionJob()
            results, pending, missing = self._look_up(
                source, entries, magic, own_job if budget.left_us > 0 else None
            )
            if missing:
                # Run in a separate coroutine: the first consumer may disconnect while others wait.
                own_job.cancel = start(
                    self._run_job(source, missing, own_job, magic, budget.owner),
                    _ignore,
                    own_job.fail,
                )
            try:
                awaited: ConversionJob | None = None
                found: Mapping[CacheKey, Buffer | KafkaError] = {}
                for index, key, job in pending:
                    if job is not awaited:
                        awaited, found = job, await job
                    converted = found.get(key)
                    if converted is None:
                        del results[index:]
                        break
                    results[index] = converted
            finally:
                for job in _jobs_of(pending):
                    job.remove_waiter()
            if missing:
                budget.left_us -= own_job.cpu_us
                if on_cpu_spent is not None:
                    on_cpu_spent(own_job.cpu_us)
            if results or not entries or budget.left_us <= 0:
                return results
            # Another request's job ended before it reached the first entry: retry.

    def _look_up(
        self,
        source: SourcePartition,
        entries: Sequence[Entry],
        magic: int,
        own_job: ConversionJob | None,
    ) -> tuple[
        list[Buffer | KafkaError],
        list[tuple[int, CacheKey, ConversionJob]],
        list[tuple[CacheKey, Entry]],
    ]:
        """Return known results, results pending in jobs, and entries missing for `own_job`.

        Without `own_job`, the list ends before the first missing entry.
        """
        results: list[Buffer | KafkaError] = []
        pending: list[tuple[int, CacheKey, ConversionJob]] = []
        missing: list[tuple[CacheKey, Entry]] = []
        topic_id, partition, cache, jobs = (
            source.topic_id,
            source.partition,
            self._cache,
            self._jobs,
        )
        checksums = kernel.conversions([entry.payload for entry in entries], magic)
        for entry, checksum in zip(entries, checksums, strict=True):
            payload = entry.payload
            if checksum < 0:
                results.append(payload if checksum == READABLE else b"")
                continue
            key = (topic_id, partition, entry.base_offset, len(payload), checksum, magic)
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
                missing.append((key, entry))
            pending.append((len(results), key, job))
            results.append(b"")
        for job in _jobs_of(pending):
            job.waiters += 1
        return results, pending, missing

    async def _run_job(
        self,
        source: SourcePartition,
        missing: list[tuple[CacheKey, Entry]],
        job: ConversionJob,
        magic: int,
        owner: Hashable,
    ) -> None:
        """Convert entries one after the other in one call: for small batches, the thread switch
        costs more than the conversion.
        """
        try:
            payloads = [entry.payload for _, entry in missing]
            outcomes: list[bytes | RecordsError]
            outcomes, job.cpu_us = await self._run_for(
                owner, _convert_all, payloads, magic, self._max_decompressed_bytes, job
            )
        finally:
            for key, _ in missing:
                if self._jobs.get(key) is job:
                    del self._jobs[key]
        results: dict[CacheKey, bytes | KafkaError] = {}
        for (key, entry), outcome in zip(missing, outcomes, strict=False):
            if not isinstance(outcome, RecordsError):
                results[key] = outcome
                self.conversions += 1
            elif isinstance(outcome, NoMemory):
                # Clients before 0.11 know few error codes; they retry after this one.
                results[key] = KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"offset {entry.base_offset} is not converted: {outcome}",
                )
            else:
                self.log_unreadable(source, entry, outcome)
                results[key] = b""
        self._cache_results(results)
        job.succeed(results)

    def log_unreadable(self, source: SourcePartition, entry: Entry, failure: RecordsError) -> None:
        """Log once that an entry is unreadable and skipped for old consumers."""
        payload = entry.payload
        unit = (
            source.topic_id,
            source.partition,
            entry.base_offset,
            len(payload),
            _checksum(payload, peek_magic(payload)),
        )
        if unit in self._reported:
            return
        self._reported[unit] = None
        if len(self._reported) > MAX_REPORTED_UNREADABLE:
            self._reported.popitem(last=False)
        if isinstance(failure, RecordsTooLarge):
            event = (
                "records skipped for old consumers: they unpack to more than "
                "max_decompressed_bytes; increase it and restart"
            )
        else:
            event = "unreadable records skipped for old consumers"
        first, last = entry.base_offset, entry.last_offset
        _log.warning(
            event,
            topic=source.topic,
            partition=source.partition,
            first_offset=first,
            last_offset=last,
            reason=str(failure),
        )

    def _cache_results(self, results: Mapping[CacheKey, bytes | KafkaError]) -> None:
        cache, limit, cached_bytes = self._cache, self._cache_bytes, self.cached_bytes
        for key, converted in results.items():
            if isinstance(converted, KafkaError):
                continue
            size = len(converted) + ENTRY_OVERHEAD
            if size <= limit:
                cache[key] = converted
                cached_bytes += size
        while cached_bytes > limit:
            _, oldest = cache.popitem(last=False)
            cached_bytes -= len(oldest) + ENTRY_OVERHEAD
        self.cached_bytes = cached_bytes


def _jobs_of(pending: Iterable[tuple[int, CacheKey, ConversionJob]]) -> set[ConversionJob]:
    return set(map(_JOB, pending))


def _checksum(payload: Buffer, magic: int) -> int:
    """Return a checksum of everything that compaction may change.

    A batch contains one; in a message set, only the messages do.
    """
    if magic == 2 and len(payload) >= HEADER_BYTES:
        checksum: int = CRC.unpack_from(payload, BATCH_CRC_AT)[0]
        return checksum
    return int(crc32(payload))


def is_zstd(payload: Buffer) -> bool:
    """Whether the payload is a batch that requires Fetch v10."""
    return peek_magic(payload) >= 2 and _attributes(payload) & CODEC_MASK == Codec.ZSTD


def _attributes(payload: Buffer) -> int:
    """The attributes of a batch, 0 if it is too short to have any; stores do not check payloads."""
    return payload[BATCH_ATTRIBUTES_AT] if len(payload) > BATCH_ATTRIBUTES_AT else 0


def is_readable(payload: Buffer, magic: int) -> bool:
    """Whether consumers of `magic` can read the payload as it is."""
    stored = peek_magic(payload)
    if magic < V2_WITHOUT_ZSTD:
        return stored <= magic
    return stored not in (0, 1) and not (magic == V2_WITHOUT_ZSTD and is_zstd(payload))


def _convert_all(
    payloads: Sequence[Buffer], magic: int, max_decompressed_bytes: int, job: ConversionJob
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
    for outcome in outcomes:
        if isinstance(outcome, RecordsError):
            clear_frames(outcome)
    return outcomes, cpu_us


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
        codec = payload[BATCH_ATTRIBUTES_AT] & CODEC_MASK
        if codec == 0:
            return len(payload)
        if codec == Codec.LZ4:
            return len(payload) * _LZ4_EXPANSION
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


def _ignore(_: object) -> None:
    return
