"""The entries appended last, by all logs together, kept in memory: consumers at the tail are answered without a transaction or a copy.

One bound holds for the store; what was appended first leaves first, whichever log it belongs to. So each log keeps an unbroken run of entries
up to its end, or nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import attrgetter

from storage.log import Entry

ENTRY_OVERHEAD = 300
"""Bytes that an entry takes beside its payload: the objects and their places in the lists. An estimate, so that empty entries count too."""

LAST_OFFSET = attrgetter("last_offset")

_EVICTED = Entry(-1, -1, -1, b"")
"""In the place of an entry that left, until that place is cut off: the payload is freed at once."""


class CachedTail:
    """The unbroken run of one log. `begin` is the index of its first entry: what left is cut off in larger pieces."""

    __slots__ = ("begin", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.begin = 0

    def evict_oldest(self) -> None:
        """The oldest goes. Nothing happens where the run was cleared before."""
        if self.begin < len(self.entries):
            self.entries[self.begin] = _EVICTED
            self.begin += 1
            if self.begin * 2 > len(self.entries):
                del self.entries[: self.begin]
                self.begin = 0

    def clear(self) -> None:
        self.entries.clear()
        self.begin = 0

    def read(self, offset: int, max_bytes: int) -> list[Entry] | None:
        """`PartitionLog.read`, or None where the log_tail does not reach back to `offset`."""
        entries = self.entries
        if self.begin == len(entries) or offset < entries[self.begin].base_offset:
            return None
        found: list[Entry] = []
        room = max_bytes
        for index in range(bisect_left(entries, offset, self.begin, key=LAST_OFFSET), len(entries)):
            entry = entries[index]
            room -= len(entry.payload)
            if found and room < 0:
                break
            found.append(entry)
        return found


class TailCache:
    """All runs of a store, bounded together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._arrivals: deque[tuple[CachedTail, int]] = deque()

    def add(self, log_tail: CachedTail, entry: Entry) -> None:
        """`entry` is the newest of `log_tail`. A view of someone else's buffer is copied, lest it keep all of that buffer alive."""
        payload = entry.payload
        if isinstance(payload, memoryview):
            entry = Entry(entry.base_offset, entry.last_offset, entry.max_timestamp, bytes(payload))
        cost = len(payload) + ENTRY_OVERHEAD
        log_tail.entries.append(entry)
        self._arrivals.append((log_tail, cost))
        self._held += cost
        while self._held > self._limit:
            oldest, cost = self._arrivals.popleft()
            oldest.evict_oldest()
            self._held -= cost
