"""Reads the messages of one partition by offset, timestamp and size. Used in the reactor's thread.

Messages carry their offsets (`entry_messages.Header`), so only an index of messages seen is kept.
Messages of other writers, duplicates, and messages that a fenced leader stored too late are
skipped.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred

from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.compiled_client import ReaderState
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.client.reader_cache import ReaderCache
from storage.pulsar.client.stored_messages import StoredMessage
from storage.pulsar.client.topic_readers import OpenReader, ReaderSource
from storage.pulsar.log.entry_messages import Header, entry_payload_bytes
from storage.pulsar.log.offset_index import IndexEntry, OffsetIndex, Position, index_entry
from storage.pulsar.log.offset_search import MessageSearch
from storage.pulsar.settings import MIB, PulsarSettings

__all__ = ["PartitionReader", "Position", "ReaderCache", "StoredMessage"]

SCAN_BYTES = MIB
SCAN_MESSAGES = 500
"""Bytes and messages per step of a scan, which runs in the reactor's thread."""

MAX_SKIPPING_STEPS = 6
"""Limit on the steps of a read, each of up to `read_timeout_seconds`, that only skip messages."""


class PartitionReader(ReaderState):
    """The messages of `topic`, the full name of a partition's topic.

    Raises StorageFailed and what `PulsarClient.run` raises.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        cache: ReaderCache,
        topic: str,
        settings: PulsarSettings,
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._source = ReaderSource(client, topic)
        self._index = OffsetIndex(settings.index_marks)
        self._message_search = MessageSearch(self._source, admin, self._index)
        self._newest: tuple[Header, Position] | None = None
        self._first_search: Deferred[StoredMessage | None] | None = None

    def add_epoch(self, leader_epoch: int, first_offset: int, opening: int = 0) -> None:
        """Record that this writer (`Header.writer`) assigned offsets from `first_offset` on.

        Messages of earlier writers from there on are void: they were never acknowledged.
        """
        writer = leader_epoch, opening
        began = [one for one in self._source.began if one[0] != writer]
        insort(began, (writer, first_offset))
        self._source.began = tuple(began[-self._settings.index_marks :])

    def appended(self, header: Header, position: Position) -> None:
        """Add an acknowledged message, the newest of the partition."""
        self._index.appended(header, position)
        self._newest = header, position

    def search_first(self) -> None:
        """Begin the search of the next `first`, beside other calls."""
        self._first_search = Deferred.fromCoroutine(self._message_search.first())

    async def first(self) -> StoredMessage | None:
        """The first message, which may be a marker; None if there is none."""
        search, self._first_search = self._first_search, None
        stored = await (search or self._message_search.first())
        if search and stored and self._source.is_from_fenced_leader(stored.header):
            # A later call of `add_epoch` has shown that.
            stored = await self._message_search.first()
        if stored:
            self._index.found(stored.header, stored.position)
        return stored

    async def last(self, before: Position | None = None) -> StoredMessage | None:
        """The last message, or the last before `before`, possibly a marker; None if there is none.

        The client library may resend messages, so that the last one ends at a lower offset than
        messages sent earlier. Those were never acknowledged, and are void after `add_epoch` for the
        next leader.

        Raises StorageFailed if too many messages of other writers follow it (`foreign_messages`).
        """
        stored = await self._message_search.last(before)
        if stored:
            self._index.found(stored.header, stored.position)
            if before is None and (self._newest is None or self._newest[1] < stored.position):
                self._newest = stored.header, stored.position
        return stored

    async def read(self, offset: int, end_offset: int, max_bytes: int) -> list[StoredMessage]:
        """`PartitionLog.read`, as messages that begin before `end_offset`.

        Returns fewer if the rest does not arrive within `read_timeout_seconds`, but none only if
        there is none: a caller that replays the partition takes that for its end. Raises
        StorageFailed if the first one does not arrive in time.
        """
        found, _ = await self._read(offset, end_offset, max_bytes)
        return found

    async def scan(
        self,
        offset: int,
        end_offset: int,
        visit: Callable[[StoredMessage], bool],
        max_bytes: int,
        *,
        since: Callable[[], int] | None = None,
    ) -> int:
        """Call `visit` with the messages from `offset` on, in order; return the offset reached.

        Stops when `visit` returns True, or after `max_bytes`. With `since` (milliseconds, called
        before each step), segments whose messages are all older are skipped.
        """
        reached, scanned_bytes = offset, 0
        while reached < end_offset and scanned_bytes < max_bytes:
            passed = self._index.skip_older(reached, since()) if since else reached
            if passed > reached:
                reached = min(passed, end_offset)
                continue
            found, has_reached_end = await self._read(
                reached, end_offset, SCAN_BYTES, SCAN_MESSAGES
            )
            if not found:
                return end_offset if has_reached_end else reached
            begin = min(reached, found[0].header.base_offset)
            visited = []
            for stored in found:
                visited.append((stored.header, stored.position))
                scanned_bytes += len(stored.payload)
                reached = stored.header.last_offset + 1
                if visit(stored):
                    max_bytes = 0
                    break
            self._index.scanned(begin, visited)
        return reached

    async def at_time(
        self, timestamp: int, start_offset: int, end_offset: int
    ) -> StoredMessage | None:
        """The first message with a `max_timestamp` of at least `timestamp`.

        Searches from the message that contains `start_offset` to before `end_offset`.
        """
        found = await self._first_reaching(timestamp, end_offset)
        if found is None or (
            found.header.last_offset >= start_offset and found.header.max_timestamp >= timestamp
        ):
            return found
        # The message that reached this timestamp was deleted; later ones may be older.
        reaching: list[StoredMessage] = []

        def visit(stored: StoredMessage) -> bool:
            if stored.header.max_timestamp >= timestamp:
                reaching.append(stored)
            return bool(reaching)

        await self._scan_all(start_offset, end_offset, visit, lambda: timestamp)
        return reaching[0] if reaching else None

    async def latest(self, start_offset: int, end_offset: int) -> StoredMessage | None:
        """The first message with the greatest `max_timestamp` between the two offsets.

        Returns None if no message has a timestamp.
        """
        newest = await self._newest_index_entry()
        if newest is None or newest.greatest_timestamp < 0:
            return None
        found = await self._first_reaching(newest.greatest_timestamp, end_offset)
        if (
            found
            and found.header.last_offset >= start_offset
            and found.header.max_timestamp == newest.greatest_timestamp
        ):
            return found
        best: list[StoredMessage] = []

        def visit(stored: StoredMessage) -> bool:
            if stored.header.max_timestamp > (best[-1].header.max_timestamp if best else -1):
                best[:] = [stored]
            return False

        await self._scan_all(
            start_offset,
            end_offset,
            visit,
            lambda: best[-1].header.max_timestamp + 1 if best else 0,
        )
        return best[0] if best else None

    async def at_byte(
        self, number: int, start_offset: int, end_offset: int
    ) -> StoredMessage | None:
        """The first message whose last byte lies after payload byte `number` of the partition.

        Bytes are counted like `Header.bytes_before`. Searches from the message that contains
        `start_offset` to before `end_offset`.
        """
        found = await self._search(
            (self._index.before_byte(number), self._index.after_byte(number)),
            end_offset,
            lambda one: one.bytes_before <= number,
            lambda stored: (
                stored.header.bytes_before + entry_payload_bytes(stored.header, stored.payload)
                > number
            ),
        )
        if found and found.header.last_offset < start_offset:
            found = next(iter(await self.read(start_offset, end_offset, 0)), None)
        return found

    def forget_before(self, offset: int) -> None:
        """Drop index entries that are not needed for reads from `offset` on."""
        self._index.forget_before(offset)

    async def position_of(self, offset: int) -> Position | None:
        """The position of the message with `offset`; None if it does not exist."""
        found = await self.read(offset, offset + 1, 0)
        return found[0].position if found else None

    async def close(self) -> None:
        """Close the partition's readers; those in use are closed when their read ends."""
        self._forget()

    def disconnect(self) -> Deferred[None]:
        """Close the partition's readers, and open no more. Fires when all are closed."""
        self._forget()
        return self._source.disconnect()

    def _forget(self) -> None:
        if self._first_search is not None:
            self._first_search.addErrback(lambda _: None)
        self._cache.forget(self._source)

    async def _read(
        self, offset: int, end: int, max_bytes: int, max_messages: int = 1 << 63
    ) -> tuple[list[StoredMessage], bool]:
        """Messages, and whether the topic has no more."""
        if offset >= end:
            return [], False
        reader = self._cache.take(self._source, offset)
        if reader:
            found = await self._read_with(reader, offset, end, max_bytes, max_messages)
        if reader is None or (not found and reader.has_reached_end):
            # A cached reader without messages may be at the end of a ledger that was deleted.
            reader = OpenReader(self._source, await self._reading_position(offset))
            found = await self._read_with(reader, offset, end, max_bytes, max_messages)
        if found:
            self._index.found(found[0].header, found[0].position)
        return found, reader.has_reached_end

    async def _read_with(
        self, reader: OpenReader, offset: int, end: int, max_bytes: int, max_messages: int
    ) -> list[StoredMessage]:
        """The next messages of `reader`; none only if there is none before `end`.

        On a busy machine, a step may end before the reader has skipped the messages before
        `offset`. The next step continues there.
        """
        for step in range(MAX_SKIPPING_STEPS):
            if step and not self._cache.retake(reader):
                break
            found = await self._cache.use(
                reader, partial(reader.read, offset, end, max_bytes, max_messages)
            )
            if found or not reader.has_timed_out:
                return found
        raise self._source.timeout_error()

    async def _reading_position(self, offset: int) -> Position | None:
        """Where to start reading for `offset`; None for the beginning of the topic."""
        low = self._index.floor(offset) or await self._first_index_entry()
        if low is None or low.offset >= offset:
            return low.position if low else None
        high = self._index.above(offset) or await self._newest_index_entry()
        if high is None or high.offset <= offset:
            return max(low.position, high.position) if high else low.position
        return await self._message_search.narrow(
            low, high.position, high.bytes_before, lambda header: header.base_offset <= offset
        )

    async def _first_reaching(self, timestamp: int, end: int) -> StoredMessage | None:
        """The first message before `end` whose `greatest_timestamp` is at least `timestamp`."""
        low, high = (
            self._index.before_time(timestamp),
            self._index.at_time(timestamp) or await self._newest_index_entry(),
        )
        if high is None or high.greatest_timestamp < timestamp:
            return None
        return await self._search(
            (low, high),
            end,
            lambda one: one.greatest_timestamp < timestamp,
            lambda stored: stored.header.greatest_timestamp >= timestamp,
        )

    async def _search(
        self,
        around: tuple[IndexEntry | None, IndexEntry | None],
        end: int,
        is_before: Callable[[Header | IndexEntry], bool],
        is_it: Callable[[StoredMessage], bool],
    ) -> StoredMessage | None:
        """The first message before `end` for which `is_it` returns True.

        `around` are index entries before and after that message, if known. `is_before` selects
        where to start reading (`MessageSearch.narrow`): it is True for all earlier messages, except
        possibly for the last of them.
        """
        low, high = (
            around[0] or await self._first_index_entry(),
            around[1] or await self._newest_index_entry(),
        )
        if low is None or high is None:
            return None
        position = (
            await self._message_search.narrow(low, high.position, high.bytes_before, is_before)
            if is_before(low)
            else low.position
        )
        reader = OpenReader(self._source, position)
        found = await self._read_with(reader, 0, end, SCAN_BYTES, SCAN_MESSAGES)
        while found:
            for stored in found:
                if is_it(stored):
                    return stored
            found, _ = await self._read(
                found[-1].header.last_offset + 1, end, SCAN_BYTES, SCAN_MESSAGES
            )
        return None

    async def _scan_all(
        self, start: int, end: int, visit: Callable[[StoredMessage], bool], since: Callable[[], int]
    ) -> None:
        while start < end:
            reached = await self.scan(start, end, visit, 1 << 63, since=since)
            if reached == start:
                return
            start = reached

    async def _first_index_entry(self) -> IndexEntry | None:
        stored = await self.first()
        return index_entry(stored.header, stored.position) if stored else None

    async def _newest_index_entry(self) -> IndexEntry | None:
        if self._newest is None:
            await self.last()
        return index_entry(*self._newest) if self._newest else None
