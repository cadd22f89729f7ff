"""Cache of the most recently appended entries of all logs of a store.

Consumers at the end of a log are served from here, without a transaction and without copying.

One size limit holds for the store; entries are evicted in append order across all logs. So the
cache holds a contiguous tail of each log, or nothing of it.

`_log.pyx` has `TailCache`, and the state of a `CachedTail` in C fields with its `has` and `read`.
The compiled cache also keeps a request with several payloads that are most of its bytes; the one
here copies each of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from storage.log import Entry, compiled

ENTRY_OVERHEAD = 300
"""Estimated memory of an entry in bytes besides its payload; bounds the number of empty entries."""

ENTRIES_AT_A_TIME = 128
"""Entries whose sizes a read adds up at a time, without a Python loop over them."""

LAST_OFFSET = attrgetter("last_offset")
PAYLOAD = attrgetter("payload")

EVICTED = Entry(-1, -1, -1, b"")
"""Placeholder for an evicted entry until the list is trimmed; frees the payload at once."""


class _CachedTailState:
    __slots__ = ("begin", "cleared", "entries")

    entries: list[Entry]
    begin: int
    cleared: int


if not TYPE_CHECKING and compiled:
    _CachedTailState = compiled.CachedTailState


class CachedTail(_CachedTailState):
    """The cached entries of one log.

    `begin` is the index of the first one: evicted entries are removed from the list in larger
    pieces. `cleared` is the number of entries that were removed by `clear` before their eviction
    was due.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.entries = []
        self.begin = 0
        self.cleared = 0

    def evict_oldest(self) -> None:
        """Drop the entry that was added first; no effect if it was cleared."""
        if self.cleared:
            self.cleared -= 1
            return
        self.entries[self.begin] = EVICTED
        self.begin += 1
        if self.begin * 2 > len(self.entries):
            del self.entries[: self.begin]
            self.begin = 0

    def clear(self) -> None:
        """Remove all entries. Entries added later are not evicted before their turn."""
        self.cleared += len(self.entries) - self.begin
        self.entries.clear()
        self.begin = 0

    def has(self, offset: int) -> bool:
        """Whether `offset` is not before the cached entries."""
        entries, begin = self.entries, self.begin
        return begin < len(entries) and offset >= entries[begin].base_offset

    def read(self, offset: int, max_bytes: int) -> list[Entry] | None:
        """As `PartitionLog.read`; None if `offset` is before the cached entries."""
        entries = self.entries
        if not self.has(offset):
            return None
        first = bisect_left(entries, offset, self.begin, key=LAST_OFFSET)
        found: list[Entry] = []
        room = max(max_bytes, 0)
        while some := entries[first : first + ENTRIES_AT_A_TIME]:
            ends = list(accumulate(map(len, map(PAYLOAD, some))))
            fitting = bisect_right(ends, room)
            if not found and not fitting:
                return some[:1]
            found += some[:fitting]
            if fitting < len(some):
                break
            room -= ends[-1]
            first += len(some)
        return found

    if not TYPE_CHECKING and compiled:
        has, read = _CachedTailState.has, _CachedTailState.read


class TailCache:
    """The cached tails of all logs of a store, under a common limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._arrivals: deque[tuple[CachedTail, int]] = deque()

    def add(self, log_tail: CachedTail, entry: Entry) -> None:
        """Append `entry` to `log_tail`. Its payload is copied if it is a view of a buffer that is
        more than 1/7 larger, or not bytes.
        """
        payload = entry.payload
        cost = len(payload)
        if isinstance(payload, memoryview):
            buffer = payload.obj
            if isinstance(buffer, bytes | bytearray) and cost * 8 >= len(buffer) * 7:
                cost = len(buffer)
            else:
                entry = Entry(
                    entry.base_offset, entry.last_offset, entry.max_timestamp, bytes(payload)
                )
        cost += ENTRY_OVERHEAD
        log_tail.entries.append(entry)
        self._arrivals.append((log_tail, cost))
        self._held += cost
        if self._held > self._limit:
            self.evict()

    def evict(self) -> None:
        """Evict the oldest entries until the limit is kept."""
        while self._held > self._limit:
            oldest, cost = self._arrivals.popleft()
            oldest.evict_oldest()
            self._held -= cost


if not TYPE_CHECKING and compiled:
    TailCache = compiled.TailCache
