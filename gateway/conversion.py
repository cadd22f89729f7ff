"""Records for consumers that are older than they are: converted off the reactor thread, once for all who ask.

The conversion itself is `compat.records`; here are the threads, the cache and the single flight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any

from isal.isal_zlib import crc32

from compat.records import RecordsError, down_convert, gzip_for_zstd
from gateway.errors import ErrorCode, KafkaError, release
from gateway.records import ATTRIBUTES, HEADER_BYTES, magic_of
from gateway.waiting import Shared, start
from storage.log import Buffer, Entry

#: (topic id, partition, base offset, size, checksum, magic). An entry changes by compaction, which may even leave a packed one its size.
Key = tuple[bytes, int, int, int, int, int]

#: What an entry of the cache takes besides its bytes, about: without it, many small or empty results would not count.
ENTRY_OVERHEAD = 512

_CONTROL = 0x20
_ZSTD = 4

#: As a consumer's format: all of them, but no zstd.
WITHOUT_ZSTD = 2
_CRC = Struct(">I")
_CRC_AT = 17


class Converter:
    """`run(function, *args)` runs a function on another thread. `cache_bytes` bounds what is kept."""

    def __init__(self, run: Callable[..., Awaitable[Any]], *, cache_bytes: int, max_decompressed_bytes: int) -> None:
        self._run = run
        self._cache_bytes = cache_bytes
        self._max_decompressed_bytes = max_decompressed_bytes
        self._cache: OrderedDict[Key, bytes] = OrderedDict()
        self._flights: dict[Key, Shared[Buffer | KafkaError]] = {}
        self.cached_bytes = 0
        self.conversions = 0

    async def convert(self, topic_id: bytes, partition: int, entries: Sequence[Entry], magic: int) -> list[Buffer | KafkaError]:
        """Each entry's payload in a format that a consumer of `magic` reads; the payload itself where that is as old already.

        Empty where nothing in it exists for such a consumer (control batches); KafkaError(CORRUPT_MESSAGE) where it cannot be converted.
        """
        results: list[Buffer | KafkaError | Shared[Buffer | KafkaError]] = []
        missing: list[tuple[Key, Entry]] = []
        for entry in entries:
            stored = magic_of(entry.payload)
            if stored <= magic and not (magic == WITHOUT_ZSTD and is_zstd(entry.payload)):
                results.append(entry.payload)
            elif magic < 2 and stored == 2 and entry.payload[ATTRIBUTES] & _CONTROL:
                results.append(b"")
            else:
                key = (topic_id, partition, entry.base_offset, len(entry.payload), _checksum(entry.payload, stored), magic)
                known = self._known(key)
                results.append(self._take_off(key, entry, missing) if known is None else known)
        if missing:
            # On its own: the consumer that asked first may go away, and the others still want it.
            flights = [self._flights[key] for key, _ in missing]
            start(self._fly(missing, flights, magic), _nothing, partial(_crash, flights))
        return [await result if isinstance(result, Shared) else result for result in results]

    def _known(self, key: Key) -> bytes | Shared[Buffer | KafkaError] | None:
        kept = self._cache.get(key)
        if kept is None:
            return self._flights.get(key)
        self._cache.move_to_end(key)
        return kept

    def _take_off(self, key: Key, entry: Entry, missing: list[tuple[Key, Entry]]) -> Shared[Buffer | KafkaError]:
        flight = self._flights[key] = Shared()
        missing.append((key, entry))
        return flight

    async def _fly(self, missing: list[tuple[Key, Entry]], flights: list[Shared[Buffer | KafkaError]], magic: int) -> None:
        """Convert these in one go on another thread: for small batches the way there costs more than the work."""
        try:
            payloads = [entry.payload for _, entry in missing]
            outcomes: list[bytes | RecordsError] = await self._run(_convert_all, payloads, magic, self._max_decompressed_bytes)
        finally:
            for key, _ in missing:
                del self._flights[key]
        for (key, entry), flight, outcome in zip(missing, flights, outcomes, strict=True):
            if isinstance(outcome, RecordsError):
                message = f"offset {entry.base_offset} cannot be converted: {outcome}"
                flight.succeed(KafkaError(ErrorCode.CORRUPT_MESSAGE, message))
            else:
                self.conversions += 1
                self._keep(key, outcome)
                flight.succeed(outcome)

    def _keep(self, key: Key, converted: bytes) -> None:
        size = len(converted) + ENTRY_OVERHEAD
        if size > self._cache_bytes:
            return
        self._cache[key] = converted
        self.cached_bytes += size
        while self.cached_bytes > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self.cached_bytes -= len(oldest) + ENTRY_OVERHEAD


def _checksum(payload: Buffer, magic: int) -> int:
    """Over all that compaction may change: a batch bears it, a message set only those of its messages."""
    if magic == 2 and len(payload) >= HEADER_BYTES:
        checksum: int = _CRC.unpack_from(payload, _CRC_AT)[0]
        return checksum
    return int(crc32(payload))


def is_zstd(payload: Buffer) -> bool:
    """Whether a payload is a batch that needs a consumer of Fetch 10."""
    return magic_of(payload) >= 2 and payload[ATTRIBUTES] & 7 == _ZSTD


def _convert_all(payloads: list[Buffer], magic: int, max_decompressed_bytes: int) -> list[bytes | RecordsError]:
    outcomes: list[bytes | RecordsError] = []
    for payload in payloads:
        try:
            if magic == WITHOUT_ZSTD:
                outcomes.append(gzip_for_zstd(payload, max_decompressed_bytes=max_decompressed_bytes))
            else:
                outcomes.append(down_convert(payload, magic, max_decompressed_bytes=max_decompressed_bytes))
        except RecordsError as failure:
            release(failure)
            outcomes.append(failure)
    return outcomes


def _nothing(_: object) -> None:
    return


def _crash(flights: list[Shared[Buffer | KafkaError]], failure: BaseException) -> None:
    """A bug in a conversion: everyone who waits for it is told."""
    for flight in flights:
        flight.fail(failure)
