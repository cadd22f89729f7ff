"""Records for consumers that are older or younger than they are: converted off the reactor thread, once for all who ask.

The conversion itself is `compat.records`; here are the threads, the cache and the single flight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from struct import Struct
from time import thread_time_ns
from typing import Any, NamedTuple

from isal.isal_zlib import crc32

from compat.records import NoMemory, RecordsError, RecordsTooLarge, down_convert_all, gzip_for_zstd, up_convert
from gateway import logs
from gateway.errors import ErrorCode, KafkaError, release
from gateway.records import ATTRIBUTES, HEADER_BYTES, magic_of
from gateway.waiting import Shared, start
from storage.log import Buffer, Entry

#: (topic id, partition, base offset, size, checksum, magic). An entry changes by compaction, which may even leave a packed one its size.
Key = tuple[bytes, int, int, int, int, int]


class Flight(Shared[dict[Key, Buffer | KafkaError]]):
    """A job under way: what each of its entries came to is there when all are, and the CPU time that it took, in microseconds."""

    __slots__ = ("cpu_us",)

    def __init__(self) -> None:
        super().__init__()
        self.cpu_us = 0


#: What an entry of the cache takes besides its bytes, about: without it, many small or empty results would not count.
ENTRY_OVERHEAD = 512

#: Unreadable entries that are remembered to have been told of, some 300 bytes each; beyond it the log may be told of one again.
TOLD_MAX = 1_000

_CONTROL = 0x20
_ZSTD = 4

#: As a consumer's format: 2, in any codec but zstd; and 2 in any.
WITHOUT_ZSTD, WITH_ZSTD = 2, 3
_CRC = Struct(">I")
_CRC_AT = 17

_log = logs.part(__name__)


class Source(NamedTuple):
    """The partition that entries come from."""

    topic: str
    topic_id: bytes
    partition: int


class Converter:
    """`run(function, *args)` runs a function on another thread. `cache_bytes` bounds what is kept."""

    def __init__(self, run: Callable[..., Awaitable[Any]], *, cache_bytes: int, max_decompressed_bytes: int) -> None:
        self._run = run
        self._cache_bytes = cache_bytes
        self._max_decompressed_bytes = max_decompressed_bytes
        self._cache: OrderedDict[Key, bytes] = OrderedDict()
        self._flights: dict[Key, Flight] = {}
        # Of the unreadable entries those that the log has been told of, as keys without the format.
        self._told: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self.cached_bytes = 0
        self.conversions = 0

    async def convert(
        self, source: Source, entries: Sequence[Entry], magic: int, spent: Callable[[int], None] | None = None
    ) -> list[Buffer | KafkaError]:
        """Each entry's payload in a format that a consumer of `magic` reads; the payload itself where it is in one already.

        Whoever knows format 2 gets nothing else, as from Kafka since 3.0: many of them have forgotten how to read what is older.
        Empty where nothing in it exists for such a consumer (control batches) or it cannot be read at all, which is then in the log;
        KafkaError(UNKNOWN_SERVER_ERROR) where there was no memory to convert it. `spent` is told how many microseconds of CPU time it took, where
        nobody had asked before.
        """
        results: list[Buffer | KafkaError] = []
        coming: list[tuple[int, Key, Flight]] = []
        missing: list[tuple[Key, Entry]] = []
        own = Flight()
        for entry in entries:
            payload = entry.payload
            stored = magic_of(payload)
            if is_readable(payload, magic):
                results.append(payload)
                continue
            if magic < 2 and stored == 2 and payload[ATTRIBUTES] & _CONTROL:
                results.append(b"")
                continue
            key = (source.topic_id, source.partition, entry.base_offset, len(payload), _checksum(payload, stored), magic)
            kept = self._cache.get(key)
            if kept is not None:
                self._cache.move_to_end(key)
                results.append(kept)
                continue
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = own
                missing.append((key, entry))
            coming.append((len(results), key, flight))
            results.append(b"")
        if missing:
            # On its own: the consumer that asked first may go away, and the others still want it.
            start(self._fly(source, missing, own, magic), _nothing, own.fail)
        for index, key, flight in coming:
            results[index] = (await flight)[key]
        if missing and spent is not None:
            spent(own.cpu_us)
        return results

    async def _fly(self, source: Source, missing: list[tuple[Key, Entry]], flight: Flight, magic: int) -> None:
        """Convert these in one go on another thread: for small batches the way there costs more than the work."""
        try:
            payloads = [entry.payload for _, entry in missing]
            outcomes: list[bytes | RecordsError]
            outcomes, flight.cpu_us = await self._run(_convert_all, payloads, magic, self._max_decompressed_bytes)
        finally:
            for key, _ in missing:
                del self._flights[key]
        results: dict[Key, Buffer | KafkaError] = {}
        for (key, entry), outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, NoMemory):
                # Clients before 0.11 know few codes; after this one they ask again.
                results[key] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"offset {entry.base_offset} is not converted: {outcome}")
                continue
            if isinstance(outcome, RecordsError):
                self.tell(source, entry, outcome)
                outcome = b""
            else:
                self.conversions += 1
            self._keep(key, outcome)
            results[key] = outcome
        flight.succeed(results)

    def tell(self, source: Source, entry: Entry, failure: RecordsError) -> None:
        """Say once that an entry cannot be read, so that old consumers miss it, and why."""
        payload = entry.payload
        unit = (source.topic_id, source.partition, entry.base_offset, len(payload), _checksum(payload, magic_of(payload)))
        if unit in self._told:
            return
        self._told[unit] = None
        if len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
        if isinstance(failure, RecordsTooLarge):
            event = (
                "records unpack to more than max_decompressed_bytes, old consumers do not get them; a greater one and a restart would help"
            )
        else:
            event = "records cannot be read, old consumers do not get them"
        first, last = entry.base_offset, entry.last_offset
        _log.warning(event, topic=source.topic, partition=source.partition, first_offset=first, last_offset=last, reason=str(failure))

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


def is_readable(payload: Buffer, magic: int) -> bool:
    """Whether a consumer of `magic` gets the payload as it is."""
    stored = magic_of(payload)
    if magic < WITHOUT_ZSTD:
        return stored <= magic
    return stored not in (0, 1) and not (magic == WITHOUT_ZSTD and is_zstd(payload))


def _convert_all(payloads: list[Buffer], magic: int, max_decompressed_bytes: int) -> tuple[list[bytes | RecordsError], int]:
    """What each came to, and the microseconds of CPU time of all."""
    begun = thread_time_ns()
    if magic < WITHOUT_ZSTD:
        outcomes = down_convert_all(payloads, magic, max_decompressed_bytes=max_decompressed_bytes)
    else:
        outcomes = [_in_format_2(payload, max_decompressed_bytes) for payload in payloads]
    for outcome in outcomes:
        if isinstance(outcome, RecordsError):
            release(outcome)
    return outcomes, (thread_time_ns() - begun) // 1000


def _in_format_2(payload: Buffer, max_decompressed_bytes: int) -> bytes | RecordsError:
    """An older set that cannot be converted stays as it is: its consumer knows the format, and its library says what it thinks of it."""
    is_batch = magic_of(payload) == 2
    convert = gzip_for_zstd if is_batch else up_convert
    try:
        return convert(payload, max_decompressed_bytes=max_decompressed_bytes)
    except RecordsError as failure:
        return failure if is_batch or isinstance(failure, NoMemory) else bytes(payload)


def _nothing(_: object) -> None:
    return
