"""A partition's entries, unpacked from its messages: reading and searching."""

from __future__ import annotations

from storage.log import Entry
from storage.pulsar.client.stored_messages import StoredMessage, functions
from storage.pulsar.log.entry_messages import entry_payload_bytes, unpack_entries
from storage.pulsar.log.partition_reader import PartitionReader

SCAN_BYTES = 1 << 20
"""Bytes per read when entries are scanned one by one."""


def limit_entries(entries: list[Entry], offset: int, max_bytes: int) -> list[Entry]:
    """The entries that a read of `max_bytes` from `offset` returns; at least one, if any."""
    found: list[Entry] = []
    for entry in entries:
        if entry.last_offset < offset or entry.last_offset < entry.base_offset:
            continue
        max_bytes -= len(entry.payload)
        if found and max_bytes < 0:
            break
        found.append(entry)
    return found


class PartitionEntries:
    """The entries of one partition by offset, timestamp and size.

    Searches cover the entries from the one that contains `start` up to, but without, offset `end`.
    """

    def __init__(self, messages: PartitionReader) -> None:
        self._messages = messages

    async def read(self, offset: int, end: int, max_bytes: int) -> list[Entry]:
        """`PartitionLog.read`, limited to offsets below `end`."""
        messages = await self._messages.read(offset, end, max_bytes)
        entries: list[Entry] | None = functions.entries_of(messages)
        if entries is not None:
            # The read has applied the limits to messages.
            return entries
        unpacked: list[Entry] = []
        is_limited = True
        for stored in messages:
            unpacked += unpack_entries(stored.header, stored.payload)
            is_limited = is_limited and stored.header.entries == 1
        return unpacked if is_limited else limit_entries(unpacked, offset, max_bytes)

    async def at_time(self, start: int, end: int, timestamp: int) -> Entry | None:
        """The first entry with a `max_timestamp` of at least `timestamp`."""
        while start < end and (reached := await self._messages.at_time(timestamp, start, end)):
            # If the message has several entries, the one with that timestamp may have been deleted.
            for entry in unpack_entries(reached.header, reached.payload):
                if entry.last_offset >= start and entry.max_timestamp >= timestamp:
                    return entry
            start = reached.header.last_offset + 1
        return None

    async def latest(self, start: int, end: int) -> Entry | None:
        """The first entry with the greatest `max_timestamp`; None if no entry has a timestamp."""
        stored = await self._messages.latest(start, end)
        if stored is None:
            return None
        newest = max(
            unpack_entries(stored.header, stored.payload), key=lambda entry: entry.max_timestamp
        )
        if newest.last_offset >= start:
            return newest
        # The latest entry was deleted with the beginning of its message. The message headers do not
        # show which of the remaining entries is the latest, so scan them all.
        found: Entry | None = None
        while entries := await self.read(start, end, SCAN_BYTES):
            for entry in entries:
                if entry.max_timestamp > (found.max_timestamp if found else -1):
                    found = entry
            start = entries[-1].last_offset + 1
        return found

    async def bytes_before(self, offset: int, end: int, end_bytes: int) -> int:
        """Payload bytes before the entry that contains `offset`, or before the next one.

        `end_bytes` is the number of bytes before `end`.
        """
        for stored in await self._messages.read(offset, end, 1):
            before = stored.header.bytes_before
            for entry in unpack_entries(stored.header, stored.payload):
                if entry.last_offset >= offset:
                    return before
                before += len(entry.payload)
        return end_bytes

    async def after_bytes(self, start: int, end: int, position: int) -> Entry | None:
        """The first entry whose last byte lies after the first `position` payload bytes."""
        stored = await self._message_after_bytes(start, end, position)
        if stored is None:
            return None
        before = stored.header.bytes_before
        for entry in unpack_entries(stored.header, stored.payload):
            before += len(entry.payload)
            if entry.last_offset >= start and before > position:
                return entry
        return None

    async def _message_after_bytes(
        self, start: int, end: int, position: int
    ) -> StoredMessage | None:
        """Bisects by offset: the bytes before a message's end never decrease."""
        found = None
        while start < end:
            middle = (start + end) // 2
            some = await self._messages.read(middle, end, 1)
            if not some:
                end = middle
            elif (
                some[0].header.bytes_before + entry_payload_bytes(some[0].header, some[0].payload)
                > position
            ):
                found = some[0]
                end = min(middle, found.header.base_offset)
            else:
                start = some[0].header.last_offset + 1
        return found
