"""Finds the Pulsar messages of a partition by bisection over the BookKeeper entries of its topic.

Offset, greatest timestamp and byte count in the headers never decrease.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import accumulate

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import InternalStats, PulsarAdmin
from storage.pulsar.client.stored_messages import StoredMessage
from storage.pulsar.client.topic_readers import ReaderSource, find_message
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import IndexEntry, OffsetIndex, Position

SEQUENTIAL_READ_BYTES = 512 << 10
SEQUENTIAL_READ_MESSAGES = 1000
"""Up to this distance messages are read sequentially: another lookup takes about 5 ms."""

MESSAGES_PER_LOOKUP = 4096
"""Messages examined in one call, so that it does not occupy its thread for long."""


class EntryNumbering:
    """The entries of a topic, numbered from 0 across its ledgers."""

    def __init__(self, ledgers: Iterable[tuple[int, int]]) -> None:
        """`ledgers`: id and number of entries of each, in ascending order of ids."""
        found = list(ledgers)
        self._ids = [ledger_id for ledger_id, _ in found]
        self._begins = [0, *accumulate(count for _, count in found)]

    @classmethod
    def of(cls, stats: InternalStats) -> EntryNumbering:
        """From the broker's statistics, which list no entries for the ledger being written to."""
        counts = [(one.ledger_id, one.entries) for one in stats.ledgers]
        if counts and not counts[-1][1]:
            counts[-1] = (counts[-1][0], stats.current_ledger_entries)
        return cls(counts)

    def __len__(self) -> int:
        return self._begins[-1]

    def number(self, position: Position) -> int:
        """The number of the first entry at or after `position`; `len` if there is none."""
        index = bisect_left(self._ids, position.ledger_id)
        if index == len(self._ids) or self._ids[index] != position.ledger_id:
            return self._begins[index]
        return min(self._begins[index] + max(0, position.entry_id), self._begins[index + 1])

    def position(self, number: int) -> Position:
        """The position of the entry with that number, which must be below `len`."""
        index = bisect_right(self._begins, number) - 1
        return Position(self._ids[index], number - self._begins[index])


class MessageSearch:
    """Searches one partition's topic; messages that it finds are added to `index`."""

    def __init__(self, source: ReaderSource, admin: PulsarAdmin, index: OffsetIndex) -> None:
        self._source = source
        self._admin = admin
        self._index = index

    async def end(self) -> Position | None:
        """The position of the topic's last entry, including entries of other writers."""
        last = await self._admin.last_message_id(self._source.topic)
        if last.entry_id >= 0:
            return Position(last.ledger_id, last.entry_id)
        # The current ledger has no entries yet.
        entries = await self._entries()
        return entries.position(len(entries) - 1) if len(entries) else None

    async def first(self) -> StoredMessage | None:
        """The store's first message; messages of other writers before it are skipped."""
        entries = await self._entries()
        begin, most = 0, min(len(entries), self._source.settings.foreign_messages)
        while begin < most:
            end = min(begin + MESSAGES_PER_LOOKUP, most)
            found = await self._lookup(entries.position(begin), entries.position(end - 1))
            if found:
                return found
            begin = end
        if begin < len(entries):
            raise self._too_many_foreign(begin, "first")
        return None

    async def last(self, before: Position | None = None) -> StoredMessage | None:
        """The store's last message, or its last one before `before`.

        Searches backwards in growing steps past messages of other writers.
        """
        end = await self.end()
        if end is None:
            return None
        if before is None or end < before:
            found = await self._lookup(end, end, for_last=True)
            if found:
                return found
            before = end
        entries = await self._entries()
        upper = begin = entries.number(before)
        span = 1
        least = max(0, begin - self._source.settings.foreign_messages)
        while upper > least:
            lower = max(least, upper - span)
            found = await self._lookup(
                entries.position(lower), entries.position(upper - 1), for_last=True
            )
            if found:
                return found
            upper, span = lower, min(8 * span, MESSAGES_PER_LOOKUP)
        if upper:
            raise self._too_many_foreign(begin - upper, "last")
        return None

    async def narrow(
        self, low: IndexEntry, high: Position, high_bytes: int, is_before: Callable[[Header], bool]
    ) -> Position:
        """A position at or after `low`, shortly before the first message that fails `is_before`.

        That message is at `high` or earlier. `is_before` holds at `low`, and for no message after
        one that fails it, except for messages that the library sent twice.
        """
        if low.position.ledger_id == high.ledger_id:
            entries = EntryNumbering([(high.ledger_id, high.entry_id + 1)])
        elif high_bytes - low.bytes_before <= SEQUENTIAL_READ_BYTES // 8:
            return low.position
        else:
            entries = await self._entries()
        begin, end = entries.number(low.position), entries.number(high)
        position, low_bytes = low.position, low.bytes_before
        while end - begin > 1 and (
            end - begin > SEQUENTIAL_READ_MESSAGES or high_bytes - low_bytes > SEQUENTIAL_READ_BYTES
        ):
            middle = (begin + end) // 2
            found = await self._lookup(
                entries.position(middle),
                entries.position(min(middle + MESSAGES_PER_LOOKUP, end) - 1),
            )
            if found is None:
                # Only messages of other writers here. A read from an earlier position passes them.
                end = middle
                continue
            self._index.found(found.header, found.position)
            if is_before(found.header):
                begin, position, low_bytes = (
                    max(middle, entries.number(found.position)),
                    found.position,
                    found.header.bytes_before,
                )
            else:
                end, high_bytes = middle, found.header.bytes_before
        return position

    def _too_many_foreign(self, count: int, which: str) -> StorageFailed:
        return StorageFailed(
            f"{self._source.topic}: the {which} {count} messages are from other writers, "
            "and no more are searched (foreign_messages): stop the other writers"
        )

    async def _entries(self) -> EntryNumbering:
        return EntryNumbering.of(await self._admin.internal_stats(self._source.topic))

    def _lookup(
        self, start: Position, last: Position, *, for_last: bool = False
    ) -> Awaitable[StoredMessage | None]:
        return self._source.client.run(
            partial(find_message, self._source, start, last, for_last=for_last)
        )
