"""A sparse, bounded index of one partition: positions of messages by offset, timestamp and size.

Messages carry their offsets, so the index is only a cache: losing it costs extra reads.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from storage.pulsar.client.compiled_client import IndexState
from storage.pulsar.log.entry_messages import Header

UNKNOWN_TIMESTAMP = (1 << 63) - 1
"""Upper bound of the timestamps of messages that have not been read."""

INITIAL_SPACING = 64 << 10
"""Initial distance of index entries in payload bytes; doubles each time the index is full."""


class Position(NamedTuple):
    """Position of a message in its topic.

    Later messages compare greater, because Pulsar assigns ledger ids in ascending order.
    """

    ledger_id: int
    entry_id: int


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    """The message with base offset `offset` is at `position`; the rest is from its header."""

    offset: int
    position: Position
    bytes_before: int
    greatest_timestamp: int


def index_entry(header: Header, position: Position) -> IndexEntry:
    return IndexEntry(header.base_offset, position, header.bytes_before, header.greatest_timestamp)


class OffsetIndex(IndexState):
    """At most `limit` entries in offset order.

    A segment reaches from one entry to before the next. `_greatest` has an upper bound of
    `max_timestamp` for each segment. For the last segment the bound covers offsets below
    `_known_until`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(2, limit)
        self._spacing = INITIAL_SPACING
        self._offsets = array("q")
        self._ledgers = array("q")
        self._entries = array("q")
        self._bytes = array("q")
        self._times = array("q")
        self._greatest = array("q")
        self._known_until = -1
        self._scan = SequentialScan(-1)

    def __len__(self) -> int:
        return len(self._offsets)

    def floor(self, offset: int) -> IndexEntry | None:
        """The last entry at or before `offset`."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def above(self, offset: int) -> IndexEntry | None:
        """The first entry after `offset`."""
        return self._entry(bisect_right(self._offsets, offset))

    def before_time(self, timestamp: int) -> IndexEntry | None:
        """The last entry whose `greatest_timestamp` is below `timestamp`."""
        return self._entry(bisect_left(self._times, timestamp) - 1)

    def at_time(self, timestamp: int) -> IndexEntry | None:
        """The first entry whose `greatest_timestamp` is at least `timestamp`."""
        return self._entry(bisect_left(self._times, timestamp))

    def before_byte(self, number: int) -> IndexEntry | None:
        """The last entry with at most `number` payload bytes before it."""
        return self._entry(bisect_right(self._bytes, number) - 1)

    def after_byte(self, number: int) -> IndexEntry | None:
        """The first entry with more than `number` payload bytes before it."""
        return self._entry(bisect_right(self._bytes, number))

    def appended(self, header: Header, position: Position) -> None:
        """Add the partition's newest message, which has been acknowledged."""
        base, time, bytes_before = header.base_offset, header.max_timestamp, header.bytes_before
        # First the common cases of the last branch: one more message in a segment known to its end,
        # and the first message of the next segment.
        distance = (
            bytes_before - self._bytes[-1] if base == self._known_until and self._bytes else -1
        )
        if 0 <= distance < self._spacing:
            if time > self._greatest[-1]:
                self._greatest[-1] = time
            self._known_until = header.last_offset + 1
        elif (
            distance > 0
            and self._offsets[-1] < base <= header.last_offset
            and len(self._offsets) < self._limit
        ):
            self._offsets.append(base)
            self._ledgers.append(position[0])
            self._entries.append(position[1])
            self._bytes.append(bytes_before)
            self._times.append(header.greatest_timestamp)
            self._greatest.append(time)
            self._known_until = header.last_offset + 1
        elif (
            not self._insert(header, position, is_required=base > self._known_until)
            and base == self._known_until
        ):
            self._greatest[-1] = max(self._greatest[-1], time)
            self._known_until = header.last_offset + 1

    def found(self, header: Header, position: Position) -> None:
        """Add a message that was found by a read."""
        self._insert(header, position)

    def scanned(self, start: int, passed: Sequence[tuple[Header, Position]]) -> None:
        """Add messages read without a gap, from offset `start` to the last of `passed`.

        A call that continues where the last one ended extends the same scan.
        """
        if start != self._scan.reached:
            self._scan = SequentialScan(start)
        for header, position in passed:
            self._insert(header, position)
            self._extend_scan(header)

    def skip_older(self, offset: int, timestamp: int) -> int:
        """The first offset from `offset` on at which a message may have reached `timestamp`."""
        index = bisect_right(self._offsets, offset) - 1
        while 0 <= index < len(self._offsets) and self._greatest[index] < timestamp:
            index += 1
            offset = (
                self._offsets[index]
                if index < len(self._offsets)
                else max(offset, self._known_until)
            )
        return offset

    def forget_before(self, offset: int) -> None:
        """Drop entries that are not needed for reads from `offset` on."""
        gone = bisect_right(self._offsets, offset) - 1
        if gone > 0:
            for column in self._columns():
                del column[:gone]

    def _extend_scan(self, header: Header) -> None:
        """Extend the scan by one message; a completed segment gets its exact greatest timestamp."""
        scan = self._scan
        index = bisect_right(self._offsets, header.base_offset) - 1
        begin = self._offsets[index] if index >= 0 else -1
        if begin >= scan.reached:
            if index and scan.begin <= self._offsets[index - 1]:
                self._greatest[index - 1] = min(self._greatest[index - 1], scan.greatest)
            scan.begin, scan.greatest = begin, -1
        scan.greatest = max(scan.greatest, header.max_timestamp)
        scan.reached = header.last_offset + 1
        if index < 0 or begin < scan.begin:
            return
        if index + 1 == len(self._offsets):
            if scan.reached >= self._known_until:
                self._greatest[index] = scan.greatest
                self._known_until = scan.reached
        elif scan.reached >= self._offsets[index + 1]:
            self._greatest[index] = min(self._greatest[index], scan.greatest)

    def _insert(self, header: Header, position: Position, *, is_required: bool = False) -> bool:
        """Add an entry for this message, unless one is near; returns whether it was added."""
        offset = header.base_offset
        index = bisect_left(self._offsets, offset)
        if header.last_offset < offset or (
            index < len(self._offsets) and self._offsets[index] == offset
        ):
            return False
        if not is_required and not self._has_room(index, header.bytes_before):
            return False
        if index == len(self._offsets) and offset >= self._known_until:
            if offset > self._known_until and self._greatest:
                # The messages in between have not been read.
                self._greatest[-1] = UNKNOWN_TIMESTAMP
            greatest, self._known_until = header.max_timestamp, header.last_offset + 1
        else:
            # The bound of a segment also holds for its parts.
            greatest = self._greatest[index - 1] if index else UNKNOWN_TIMESTAMP
        for column, value in zip(
            self._columns(),
            (offset, *position, header.bytes_before, header.greatest_timestamp, greatest),
            strict=True,
        ):
            column.insert(index, value)
        if len(self._offsets) > self._limit:
            self._thin()
        return True

    def _has_room(self, index: int, bytes_before: int) -> bool:
        is_far = index == 0 or bytes_before - self._bytes[index - 1] >= self._spacing
        return is_far and (
            index == len(self._bytes) or self._bytes[index] - bytes_before >= self._spacing
        )

    def _thin(self) -> None:
        """Drop every second entry; its segment is merged into the one before."""
        self._spacing *= 2
        merged = [max(self._greatest[n : n + 2]) for n in range(0, len(self._greatest), 2)]
        for column in self._columns():
            del column[1::2]
        self._greatest[:] = array("q", merged)

    def _entry(self, index: int) -> IndexEntry | None:
        if not 0 <= index < len(self._offsets):
            return None
        position = Position(self._ledgers[index], self._entries[index])
        return IndexEntry(self._offsets[index], position, self._bytes[index], self._times[index])

    def _columns(self) -> tuple[array[int], ...]:
        return self._offsets, self._ledgers, self._entries, self._bytes, self._times, self._greatest


class SequentialScan:
    """A gapless read: from `begin` to before `reached` the greatest timestamp is `greatest`."""

    __slots__ = ("begin", "greatest", "reached")

    def __init__(self, start: int) -> None:
        self.begin = self.reached = start
        self.greatest = -1
