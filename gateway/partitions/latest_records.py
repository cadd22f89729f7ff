"""Finds the last record of each key and removes the others, for log compaction.

Runs off the reactor thread, since it unpacks and packs records; needs no broker and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from hashlib import blake2b
from time import sleep

import msgspec

from gateway.partitions.stored_records import filter_records, newest_timestamp, record_keys
from records import HEADER_BYTES, RecordsError, empty_batch, peek_magic, read_header
from storage.log import Entry, EntryDamaged

#: Keys of at least this many bytes are replaced by a hash of this size, as in Kafka's
#: SkimpyOffsetMap. Collisions are practically impossible.
HASH_BYTES = 16

#: Granularity of delete horizons: passes within 1/64 of delete.retention.ms share one.
_HORIZON_STEPS = 64
_MAX_HORIZONS = 256

#: After this many bytes (about 0.3 ms of work on records of 1 KiB) the GIL is released. The pauses
#: cost 2 s per GiB, and no CPU.
_TURN_BYTES = 64 << 10
_TURN_PAUSE_SECONDS = 50e-6


class DeleteHorizon(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tombstones before offset `end` may be removed from `time` (ms) on.

    Earlier horizons apply to the offsets before their own `end`.
    """

    end: int
    time: int


def add_delete_horizon(
    horizons: Sequence[DeleteHorizon], end: int, now: int, delete_retention_ms: int
) -> list[DeleteHorizon]:
    """Return the horizons after a pass up to offset `end`.

    Tombstones of the pass stay for at least `delete_retention_ms` from `now`. Times are rounded up,
    and ranges that have expired are merged, to keep the list short.
    """
    step = max(1, delete_retention_ms // _HORIZON_STEPS)
    time = -(-(now + delete_retention_ms) // step) * step
    joined: list[DeleteHorizon] = []
    for one in (*horizons, DeleteHorizon(end, time)):
        if joined and (joined[-1].time == one.time or max(joined[-1].time, one.time) <= now):
            one = DeleteHorizon(one.end, max(joined.pop().time, one.time))
        joined.append(one)
    while len(joined) > _MAX_HORIZONS:
        first, second, *rest = joined
        joined = [DeleteHorizon(second.end, max(first.time, second.time)), *rest]
    return joined


class OffsetMap:
    """The last offset of each key from offset `start` to before `end`; at most `limit` keys."""

    __slots__ = (
        "_limit",
        "_max_decompressed_bytes",
        "_offsets",
        "end",
        "is_full",
        "start",
        "unreadable",
    )

    def __init__(self, start: int, limit: int, max_decompressed_bytes: int) -> None:
        self.start = self.end = start
        self.is_full = False
        #: Reasons by base offset for entries that could not be read; they are left unchanged.
        self.unreadable: dict[int, str] = {}
        self._limit = limit
        self._max_decompressed_bytes = max_decompressed_bytes
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add the keys of the next entries.

        When the limit is reached, `end` is the offset of the first record that does not fit,
        possibly in the middle of an entry.
        """
        for entry in _yielding_gil(entries):
            try:
                self._add(entry)
            except RecordsError as failure:
                # The keys read before the error are valid: what they supersede may be removed.
                self.unreadable[entry.base_offset] = str(failure)
            if self.is_full:
                return
            self.end = entry.last_offset + 1

    def skip(self, damaged: EntryDamaged) -> None:
        """Leave out the next entry, which is damaged."""
        self.unreadable[damaged.base_offset] = str(damaged)
        self.end = damaged.last_offset + 1

    def _add(self, entry: Entry) -> None:
        for offset, key, _ in record_keys(
            entry.payload, max_decompressed_bytes=self._max_decompressed_bytes
        ):
            if key is None or offset < self.start:
                continue
            short = _hashed_key(key)
            if len(self._offsets) >= self._limit and short not in self._offsets:
                self.is_full = True
                self.end = offset
                return
            self._offsets[short] = offset

    def has_later(self, key: bytes, offset: int) -> bool:
        """Whether `key` has a later record than `offset`."""
        return self._offsets.get(_hashed_key(key), -1) > offset


def _yielding_gil(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the entries, pausing so that other threads get the GIL; by default it changes hands
    only every 5 ms.
    """
    size = 0
    for entry in entries:
        yield entry
        size += len(entry.payload)
        if size >= _TURN_BYTES:
            size = 0
            sleep(_TURN_PAUSE_SECONDS)


def _hashed_key(key: bytes) -> bytes:
    return key if len(key) < HASH_BYTES else blake2b(key, digest_size=HASH_BYTES).digest()


class Cleaner:
    """Removes superseded records in one pass; `now` (ms) decides which tombstones expire."""

    __slots__ = ("_ends", "_horizons", "_last_offsets", "_max_decompressed_bytes", "_now")

    def __init__(
        self,
        last_offsets: OffsetMap,
        horizons: Sequence[DeleteHorizon],
        now: int,
        max_decompressed_bytes: int,
    ) -> None:
        self._last_offsets = last_offsets
        self._horizons = horizons
        self._ends = [one.end for one in horizons]
        self._now = now
        self._max_decompressed_bytes = max_decompressed_bytes

    def rewrite(self, entries: Sequence[Entry], last_batches: Container[int]) -> list[Entry | None]:
        """Return for each entry itself, a smaller entry with the same offsets, or None.

        `last_batches` are the last offsets of batches that keep at least their header, which is the
        only record of a producer's sequence.
        """
        return [self._rewrite(entry, last_batches) for entry in _yielding_gil(entries)]

    def _rewrite(self, entry: Entry, last_batches: Container[int]) -> Entry | None:
        unreadable, payload = self._last_offsets.unreadable, entry.payload
        if entry.base_offset in unreadable:
            return entry
        try:
            left = filter_records(
                payload, self._stays, max_decompressed_bytes=self._max_decompressed_bytes
            )
            if left is None:
                return _emptied_batch(entry) if _is_last_of_producer(entry, last_batches) else None
            # Of bytes, since a memoryview is compared element by element.
            if left == bytes(payload):
                return entry
            newest_left = newest_timestamp(left)
        except RecordsError as failure:
            unreadable[entry.base_offset] = str(failure)
            return entry
        # Entries without a timestamp have their arrival time.
        timestamp = (
            entry.max_timestamp if newest_left < 0 else min(entry.max_timestamp, newest_left)
        )
        return Entry(entry.base_offset, entry.last_offset, timestamp, left)

    def _stays(self, offset: int, key: bytes | None, is_tombstone: bool) -> bool:
        """As Cleaner.shouldRetainRecord: records without a key, written before the policy, are
        removed.
        """
        if offset >= self._last_offsets.end:
            return True
        if key is None or self._last_offsets.has_later(key, offset):
            return False
        return not (is_tombstone and self._may_tombstone_go(offset))

    def _may_tombstone_go(self, offset: int) -> bool:
        index = bisect_right(self._ends, offset)
        return index < len(self._ends) and self._horizons[index].time <= self._now


def _is_last_of_producer(entry: Entry, last_batches: Container[int]) -> bool:
    payload = entry.payload
    if (
        peek_magic(payload) != 2
        or len(payload) < HEADER_BYTES
        or entry.last_offset not in last_batches
    ):
        return False
    return read_header(payload).has_producer


def _emptied_batch(entry: Entry) -> Entry:
    """Return the entry without records; no record needs its timestamp."""
    return Entry(entry.base_offset, entry.last_offset, -1, empty_batch(entry.payload))
