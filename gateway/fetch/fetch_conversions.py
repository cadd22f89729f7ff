"""Conversions for one pass of a fetch: their budget, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

from gateway.fetch import entry_loops
from gateway.fetch.conversion import (
    LONG_RUN_BATCHES,
    LONG_RUN_LAG,
    ConversionBudget,
    SourcePartition,
    is_readable,
    is_zstd,
)
from gateway.fetch.conversion_calls import V2_WITH_ZSTD, V2_WITHOUT_ZSTD, ConvertedRun, RunKey
from gateway.fetch.entry_loops import PAYLOAD
from gateway.fetch.fetch_sessions import CachedPartition
from gateway.partitions.partition import Partition
from gateway.partitions.stored_records import fix_lz4_checksums
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire.api_keys import ApiKey
from records import RecordsError, kernel, peek_magic
from records.layout import MAGIC_AT
from storage.log import Buffer, Entry


class FetchConversions:
    """Converts what was read for a consumer of format `magic`: 0, 1, or 2 with or without zstd."""

    __slots__ = ("_budget", "_caller", "_is_short", "_magic", "_version")

    def __init__(self, caller: Caller, version: int, magic: int) -> None:
        self._caller = caller
        self._version = version
        self._magic = magic
        self._budget = ConversionBudget(caller.owner)
        self._is_short = False

    @property
    def has_more(self) -> bool:
        """Whether a limit on conversions was reached, so that the next fetch converts the rest."""
        return self._is_short or self._budget.left_us <= 0

    def convert_run(
        self,
        cached: CachedPartition,
        partition: Partition,
        payloads: list[Buffer],
        batches: int,
        offset: int,
        limit: int,
        *,
        at_least_one: bool,
    ) -> list[Buffer]:
        """See `Converter.convert_run`. Returns a list without messages instead of None.

        A longer run is returned if it is cached.
        """
        if not partition.config.downconversion_enabled:
            return []
        converter = self._caller.broker.converter
        found = converter.convert_run(
            payloads,
            batches,
            self._magic,
            offset,
            limit,
            self._budget,
            at_least_one=at_least_one,
        )
        if found is None:
            key = self._long_run_key(
                cached, partition, payloads, offset, limit, at_least_one=at_least_one
            )
            found = None if key is None else converter.cached_run(key)
        return self._count_run(cached, found)

    async def convert_long_run(
        self,
        cached: CachedPartition,
        partition: Partition,
        entries: list[Entry],
        offset: int,
        limit: int,
        *,
        at_least_one: bool,
    ) -> list[Buffer]:
        """See `Converter.convert_long_run`. Returns a list without messages instead of None."""
        if not partition.config.downconversion_enabled:
            return []
        payloads = list(map(PAYLOAD, entries))
        # The limit may have changed since the cache was searched.
        key = self._long_run_key(
            cached, partition, payloads, offset, limit, at_least_one=at_least_one
        )
        if key is None:
            return []
        found = await self._caller.broker.converter.convert_long_run(
            key, payloads, self._on_cpu_spent(cached), self._budget
        )
        return self._count_run(cached, found)

    async def convert(
        self, cached: CachedPartition, partition: Partition, entries: list[Entry]
    ) -> Sequence[Buffer | KafkaError]:
        """Return the entries in a format that the consumer can read.

        An item is empty if it has no records for the consumer, and an error if it may not be
        converted. The list is shorter than `entries` if the conversion budget is exhausted.
        """
        newest = self._magic
        if newest in (V2_WITHOUT_ZSTD, V2_WITH_ZSTD) and all(
            len(entry.payload) > MAGIC_AT
            and entry.payload[MAGIC_AT] == 2
            and (newest == V2_WITH_ZSTD or not is_zstd(entry.payload))
            for entry in entries
        ):
            return list(map(PAYLOAD, entries))
        source = SourcePartition(partition.topic, cached.topic_id, partition.index)
        convertible = entries
        if not partition.config.downconversion_enabled:
            convertible = list(
                takewhile(lambda entry: not _needs_down_conversion(entry.payload, newest), entries)
            )
        readable: Sequence[Buffer | KafkaError] = await self._caller.broker.converter.convert(
            source, convertible, newest, self._on_cpu_spent(cached), self._budget
        )
        if len(readable) == len(convertible) < len(entries):
            readable = [
                *readable,
                *[_down_conversion_error(newest)] * (len(entries) - len(convertible)),
            ]
        if newest == 1:
            # Converted entries have the right checksum.
            legacy = entry_loops.loops.legacy_lz4(entries, readable)
            if legacy:
                readable = list(readable)
                for number in legacy:
                    readable[number] = _fix_lz4_checksum(entries[number].payload)
        return readable

    def _long_run_key(
        self,
        cached: CachedPartition,
        partition: Partition,
        payloads: list[Buffer],
        offset: int,
        limit: int,
        *,
        at_least_one: bool,
    ) -> RunKey | None:
        """Return the key of payloads that are a long run with batches that the kernel unpacks."""
        if not kernel.PACKED_CODECS:
            return None
        mark = entry_loops.loops.run_mark(
            payloads,
            LONG_RUN_BATCHES,
            partition.log.end_offset + 1 - LONG_RUN_LAG,
            kernel.PACKED_CODECS,
        )
        if mark is None:
            return None
        return RunKey(
            cached.topic_id, partition.index, mark, self._magic, offset, limit, at_least_one
        )

    def _count_run(self, cached: CachedPartition, found: ConvertedRun | None) -> list[Buffer]:
        """Count a run that the consumer gets, and return its messages."""
        if found is None or not found.messages:
            return []
        self._is_short = self._is_short or found.is_short
        traffic, version, topic = self._caller.traffic, self._version, cached.key[0]
        batches, records, size = found.counts
        if found.cpu_us:
            traffic.conversion_cpu_used(ApiKey.FETCH, version, topic, found.cpu_us)
        traffic.converted(ApiKey.FETCH, version, topic, batches=batches, records=records, size=size)
        return [found.messages]

    def _on_cpu_spent(self, cached: CachedPartition) -> Callable[[int], None]:
        """Return what receives the CPU time of conversions for a partition."""
        return partial(self._caller.conversion_cpu_used, ApiKey.FETCH, self._version, cached.key[0])


def _needs_down_conversion(payload: Buffer, newest: int) -> bool:
    return not is_readable(payload, newest) and peek_magic(payload) > min(newest, 1)


def _down_conversion_error(newest: int) -> KafkaError:
    """Return the error for topics with down-conversion disabled."""
    return KafkaError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if newest == V2_WITHOUT_ZSTD
        else ErrorCode.UNSUPPORTED_VERSION
    )


def _fix_lz4_checksum(payload: Buffer) -> Buffer | KafkaError:
    """Replace the wrong lz4 frame checksum of format 0, which only consumers of format 0 expect."""
    try:
        return fix_lz4_checksums(payload)
    except RecordsError as failure:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(failure))
