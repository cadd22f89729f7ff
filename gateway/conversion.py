"""Records for consumers that are older than they are: converted off the reactor thread, once for all who ask.

The conversion itself is `compat.records`; here are the threads, the cache and the single flight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from compat.records import RecordsError, down_convert
from gateway.errors import ErrorCode, KafkaError
from gateway.records import magic_of
from gateway.waiting import Shared, start
from storage.log import Buffer, Entry

#: (topic id, partition, base offset, size, magic): an entry never changes but by compaction, which also changes its size.
Key = tuple[bytes, int, int, int, int]

#: What an entry of the cache takes besides its bytes, about: without it, many small or empty results would not count.
ENTRY_OVERHEAD = 512


class Converter:
    """`run(function, *args)` runs a function on another thread. `cache_bytes` bounds what is kept."""

    def __init__(self, run: Callable[..., Awaitable[Any]], *, cache_bytes: int, max_decompressed_bytes: int) -> None:
        self._run = run
        self._cache_bytes = cache_bytes
        self._max_decompressed_bytes = max_decompressed_bytes
        self._cache: OrderedDict[Key, bytes] = OrderedDict()
        self._flights: dict[Key, Shared[bytes]] = {}
        self.cached_bytes = 0
        self.conversions = 0

    async def convert(self, topic_id: bytes, partition: int, entry: Entry, magic: int) -> Buffer:
        """The entry's payload in a format that a consumer of `magic` reads; the payload itself where that is as old already.

        Empty where nothing in it exists for such a consumer (control batches). Raises KafkaError(CORRUPT_MESSAGE).
        """
        if magic_of(entry.payload) <= magic:
            return entry.payload
        key = (topic_id, partition, entry.base_offset, len(entry.payload), magic)
        kept = self._cache.get(key)
        if kept is not None:
            self._cache.move_to_end(key)
            return kept
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Shared()
            # On its own: the consumer that asked first may go away, and the others still want it.
            start(self._fly(key, entry, magic), flight.succeed, flight.fail)
        converted: bytes = await flight
        return converted

    async def _fly(self, key: Key, entry: Entry, magic: int) -> bytes:
        try:
            converted: bytes = await self._run(_convert, entry.payload, magic, self._max_decompressed_bytes)
        except RecordsError as failure:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"offset {entry.base_offset} cannot be converted: {failure}") from failure
        finally:
            del self._flights[key]
        self.conversions += 1
        self._keep(key, converted)
        return converted

    def _keep(self, key: Key, converted: bytes) -> None:
        size = len(converted) + ENTRY_OVERHEAD
        if size > self._cache_bytes:
            return
        self._cache[key] = converted
        self.cached_bytes += size
        while self.cached_bytes > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self.cached_bytes -= len(oldest) + ENTRY_OVERHEAD


def _convert(payload: Buffer, magic: int, max_decompressed_bytes: int) -> bytes:
    return down_convert(payload, magic, max_decompressed_bytes=max_decompressed_bytes)
