"""Converts records for consumers of other formats, off the reactor thread unless that is short.

`conversion_calls` does the conversion. This module adds threads, a cache, and jobs shared by all
consumers that need the same entries or the same run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from time import thread_time_ns
from typing import Any, NamedTuple

from isal.isal_zlib import crc32

from gateway import logs
from gateway.coroutines import Cancel, SharedResult, start
from gateway.fetch import entry_loops
from gateway.fetch.conversion_calls import (
    FETCH_CPU_US,
    V2_WITHOUT_ZSTD,
    ConvertedRun,
    RunKey,
    convert_all,
    convert_run,
    failures,
)
from gateway.fetch.entry_loops import PAYLOAD, CacheKey
from gateway.protocol.errors import ErrorCode, KafkaError
from records import (
    HEADER_BYTES,
    Codec,
    NoMemory,
    RecordsError,
    RecordsTooLarge,
    kernel,
    peek_magic,
)
from records.batch import BATCH_ATTRIBUTES_AT, BATCH_CRC_AT
from records.layout import CODEC_MASK, CRC, FIRST_OF_BATCHES
from storage.log import Buffer, Entry

#: Bytes and records of uncompressed batches that one fetch may convert in the reactor thread, in
#: about 0.5 ms at most: a thread switch costs nearly as much.
AT_ONCE_BYTES, AT_ONCE_RECORDS = 1 << 20, 8192

#: Batches in lz4 or snappy are also converted in the reactor thread if AT_ONCE_EXPANSION times
#: their bytes are at most AT_ONCE_UNPACKED_BYTES for one fetch. Each may unpack to an equal share
#: of that product. This takes about 0.3 ms, with the smallest records 1 ms. Consumers at the end
#: of the log usually read less. If the first is in gzip, which takes longer, they count
#: AT_ONCE_GZIP_WEIGHT times: a stream of blocks without content then takes 1.3 ms. If not, none of
#: the others may be in gzip.
AT_ONCE_UNPACKED_BYTES, AT_ONCE_EXPANSION, AT_ONCE_GZIP_WEIGHT = 128 << 10, 8, 4

#: A longer run with compressed batches is converted in another thread and cached as a whole if it
#: has as many batches, and ends as many offsets before the end of the log. Others are converted by
#: batch, so that consumers at the end of the log, whose fetches begin at different offsets, share
#: the results, and a fetch that waits for more records does not convert the first ones again.
LONG_RUN_BATCHES, LONG_RUN_LAG = 16, 1


class ConversionBudget:
    """CPU time left for the conversions of one fetch, and their owner (`Workers.run_for`)."""

    __slots__ = ("at_once_bytes", "at_once_records", "at_once_unpacked", "left_us", "owner")

    def __init__(self, owner: Hashable = None) -> None:
        self.owner = owner
        self.left_us = FETCH_CPU_US
        self.at_once_bytes = AT_ONCE_BYTES
        self.at_once_records = AT_ONCE_RECORDS
        self.at_once_unpacked = AT_ONCE_UNPACKED_BYTES


class ConversionJob(SharedResult[Mapping[Any, Any]]):
    """A running conversion.

    The result maps keys to what is cached, or to KafkaError; a job that exceeds its CPU time omits
    the last ones. `cpu_us` is the CPU time used, in microseconds. `waiters` counts waiting
    requests; without any the job is cancelled.
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
    cache. With `converts_at_once`, short conversions are not run on another thread.
    """

    def __init__(
        self,
        run_for: Callable[..., Awaitable[Any]],
        *,
        cache_bytes: int,
        max_decompressed_bytes: int,
        converts_at_once: bool = False,
    ) -> None:
        self._run_for = run_for
        self._converts_at_once = converts_at_once
        self._cache_bytes = cache_bytes
        self._max_decompressed_bytes = max_decompressed_bytes
        # Converted entries of type bytes by CacheKey, and ConvertedRun by RunKey.
        self._cache: OrderedDict[Any, Any] = OrderedDict()
        self._jobs: dict[CacheKey | RunKey, ConversionJob] = {}
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
            results, pending, keys, missing = self._look_up(
                source, entries, magic, own_job if budget.left_us > 0 else None
            )
            try:
                if missing and not self._convert_at_once(
                    source, keys, missing, own_job, magic, budget
                ):
                    self._start_job(
                        own_job,
                        keys,
                        budget.owner,
                        partial(self._entry_results, source, keys, missing),
                        convert_all,
                        list(map(PAYLOAD, missing)),
                        magic,
                    )
                filled = 0
                while filled < len(pending):
                    found = await pending[filled][2]
                    filled = entry_loops.loops.fill(results, pending, filled, found)
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

    def convert_run(
        self,
        payloads: Sequence[Buffer],
        batches: int,
        magic: int,
        offset: int,
        max_bytes: int,
        budget: ConversionBudget,
        *,
        at_least_one: bool,
    ) -> ConvertedRun | None:
        """Convert `batches` consecutive batches in this thread if that is short.

        Returns what a consumer of `magic` 0 or 1 gets from `offset` on: the whole messages that fit
        in `max_bytes`, and with `at_least_one` the first one in any case. None if that is nothing,
        or if a batch is invalid or anything else that `convert` has to handle.

        The result is not cached: to find uncompressed batches in the cache takes as long as this,
        and a job for another thread takes longer than to convert a few compressed batches. A batch
        that takes several fetches is for `convert`, which converts it once. For more compressed
        batches see `convert_long_run`.
        """
        size = sum(map(len, payloads))
        if not self._converts_at_once or not 0 < size <= budget.at_once_bytes:
            return None
        if batches == 1 and size > max_bytes:
            return None
        unpacked = 0
        codec = _attributes(payloads[0]) & CODEC_MASK
        if codec:
            unpacked = size * AT_ONCE_EXPANSION
            spent = unpacked * (AT_ONCE_GZIP_WEIGHT if codec == Codec.GZIP else 1)
            if spent > budget.at_once_unpacked:
                return None
            # Spent even if a batch unpacks to more, and another thread converts it.
            budget.at_once_unpacked -= spent
        begun = thread_time_ns()
        try:
            found = kernel.down_run(
                payloads,
                batches,
                magic,
                offset,
                max_bytes,
                at_least_one,
                budget.at_once_records,
                unpacked // batches,
                # The budget was charged for gzip, or for the other codecs.
                -1 if codec == Codec.GZIP else ~(1 << Codec.GZIP),
            )
        except MemoryError:
            found = None
        cpu_us = (thread_time_ns() - begun) // 1000
        budget.left_us -= cpu_us
        if found is None:
            return None
        messages, counts, is_short = found
        self.conversions += counts[0]
        budget.at_once_bytes -= size
        budget.at_once_records -= counts[1]
        return ConvertedRun(messages, counts, is_short, cpu_us)

    def cached_run(self, key: RunKey) -> ConvertedRun | None:
        """Return the result of `convert_long_run` if it is cached."""
        found: ConvertedRun | None = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
        return found

    async def convert_long_run(
        self,
        key: RunKey,
        payloads: Sequence[Buffer],
        on_cpu_spent: Callable[[int], None],
        budget: ConversionBudget,
    ) -> ConvertedRun | None:
        """As `convert_run`, for payloads that are a batch each, some of them compressed.

        They are converted in another thread in one call, and the result is cached as a whole: in
        the reactor's thread, a key, an entry and an object for each batch take half as long as the
        conversion. It has no messages, or is None, if the run is one for `convert`.
        """
        found = self.cached_run(key)
        if found is not None:
            return found
        job = self._jobs.get(key)
        is_own = job is None or job.is_cancelled
        if job is None or is_own:
            if budget.left_us <= 0:
                return None
            job = self._jobs[key] = ConversionJob()
        job.waiters += 1
        try:
            if is_own:
                self._start_job(
                    job,
                    [key],
                    budget.owner,
                    partial(self._run_results, key),
                    convert_run,
                    key,
                    payloads,
                )
            results: Mapping[RunKey, ConvertedRun] = await job
        finally:
            job.remove_waiter()
        run = results.get(key)
        if is_own:
            budget.left_us -= job.cpu_us
            if run is None or not run.messages:
                # `convert` must convert at least one batch, or the consumer would not advance.
                budget.left_us = max(budget.left_us, 1)
            on_cpu_spent(job.cpu_us)
        return run

    def _look_up(
        self,
        source: SourcePartition,
        entries: Sequence[Entry],
        magic: int,
        own_job: ConversionJob | None,
    ) -> tuple[
        list[Buffer | KafkaError],
        list[tuple[int, CacheKey, ConversionJob]],
        list[CacheKey],
        list[Entry],
    ]:
        """See `entry_loops.look_up`."""
        found: tuple[Any, list[tuple[int, CacheKey, ConversionJob]], Any, Any]
        found = entry_loops.loops.look_up(
            entries,
            kernel.conversions(list(map(PAYLOAD, entries)), magic),
            source.topic_id,
            source.partition,
            magic,
            self._cache,
            self._jobs,
            own_job,
        )
        for job in _jobs_of(found[1]):
            job.waiters += 1
        return found

    def _start_job(
        self,
        job: ConversionJob,
        keys: Sequence[CacheKey | RunKey],
        owner: Hashable,
        results_of: Callable[[Any], dict[Any, Any]],
        function: Callable[..., tuple[Any, int]],
        *arguments: Any,
    ) -> None:
        """Run `function` in another thread; `results_of` returns the job's results from its result.

        It runs in a separate coroutine: the first consumer may disconnect while others wait.
        """
        work = self._run_job(job, keys, owner, results_of, function, *arguments)
        job.cancel = start(work, _ignore, job.fail)

    async def _run_job(
        self,
        job: ConversionJob,
        keys: Sequence[CacheKey | RunKey],
        owner: Hashable,
        results_of: Callable[[Any], dict[Any, Any]],
        function: Callable[..., tuple[Any, int]],
        *arguments: Any,
    ) -> None:
        try:
            outcome, job.cpu_us = await self._run_for(
                owner, function, *arguments, self._max_decompressed_bytes, job
            )
        finally:
            entry_loops.loops.remove_job(self._jobs, keys, job)
        self._end_job(job, results_of(outcome))

    def _convert_at_once(
        self,
        source: SourcePartition,
        keys: list[CacheKey],
        missing: list[Entry],
        job: ConversionJob,
        magic: int,
        budget: ConversionBudget,
    ) -> bool:
        """Convert entries in this thread if that is short; return whether it was done."""
        if not self._converts_at_once or magic >= V2_WITHOUT_ZSTD or budget.at_once_bytes <= 0:
            return False
        payloads = list(map(PAYLOAD, missing))
        counts, records, size = kernel.tally(payloads)
        if (
            counts[FIRST_OF_BATCHES] < len(payloads)
            or size > budget.at_once_bytes
            or records > budget.at_once_records
        ):
            return False
        budget.at_once_bytes -= size
        budget.at_once_records -= records
        try:
            outcomes, job.cpu_us = convert_all(payloads, magic, self._max_decompressed_bytes, job)
        finally:
            entry_loops.loops.remove_job(self._jobs, keys, job)
        self._end_job(job, self._entry_results(source, keys, missing, outcomes))
        return True

    def _entry_results(
        self,
        source: SourcePartition,
        keys: list[CacheKey],
        missing: list[Entry],
        outcomes: list[bytes | RecordsError],
    ) -> dict[CacheKey, bytes | KafkaError]:
        """Return results of entries, and report the errors."""
        # Fewer if the job has exceeded its CPU time.
        results: dict[CacheKey, bytes | KafkaError]
        results = dict(zip(keys, outcomes, strict=False))  # type: ignore[arg-type]
        failed = failures(outcomes)
        self.conversions += len(outcomes) - len(failed)
        for number, failure in failed:
            entry = missing[number]
            if isinstance(failure, NoMemory):
                # Clients before 0.11 know few error codes; they retry after this one.
                results[keys[number]] = KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"offset {entry.base_offset} is not converted: {failure}",
                )
            else:
                self.log_unreadable(source, entry, failure)
                results[keys[number]] = b""
        return results

    def _run_results(self, key: RunKey, run: ConvertedRun | None) -> dict[RunKey, ConvertedRun]:
        """Return the results of a run: none if there was not enough memory."""
        if run is None:
            return {}
        self.conversions += run.counts[0]
        return {key: run}

    def _end_job(self, job: ConversionJob, results: dict[Any, Any]) -> None:
        """Cache and return the results of a job."""
        self.cached_bytes = entry_loops.loops.keep(
            self._cache, results, self.cached_bytes, self._cache_bytes, ENTRY_OVERHEAD
        )
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


def _ignore(_: object) -> None:
    return
