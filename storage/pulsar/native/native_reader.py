"""Reads native messages and packs them into one record batch per entry."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pulsar

from storage.log import LOG_CLOSED, LogClosed
from storage.plain_records import BatchFormat, PlainBatch
from storage.pulsar.client.topic_readers import ReaderSource
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.message_offsets import (
    START,
    EntryAssembler,
    MessageIdParser,
    MessageLocation,
)
from storage.pulsar.native.record_messages import MessageFields, record_from_message

CHUNK_LOOKBACK = 20
"""Entries by which a read starts earlier.

A chunked message is delivered only to readers that start at or before its first chunk.
"""

MESSAGE_WAIT_MS = 2000
"""Time to wait for a message that must exist.

After that the reader asks the broker whether there are more, and waits once more if so.
"""


class PackedEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry as a record batch without offsets. `location` is that of its last message."""

    location: MessageLocation
    payload: bytearray
    max_timestamp: int


def message_fields(message: pulsar.Message) -> MessageFields:
    """The fields of a message.

    The library raises for each text field that is not UTF-8, which Pulsar's protocol does not
    allow.
    """
    # Calling the inner object avoids one Python call per field.
    raw = message._message
    content = None if raw.has_null_value() else raw.data()
    ordering_key: bytes | None
    try:
        ordering_key = raw.ordering_key().encode()
    except UnicodeDecodeError:
        ordering_key = None
    try:
        partition_key = raw.partition_key()
    except UnicodeDecodeError:
        partition_key = None
    try:
        properties = raw.properties()
    except UnicodeDecodeError:
        properties = None
    return MessageFields(
        content,
        partition_key,
        ordering_key,
        properties,
        raw.event_timestamp(),
        raw.publish_timestamp(),
    )


def pack_entry(
    batch_format: BatchFormat, location: MessageLocation, messages: Sequence[MessageFields]
) -> PackedEntry:
    """The messages of one entry as a record batch."""
    found = [record_from_message(message) for message in messages]
    batch = PlainBatch([record for record, _ in found], found[0][1])
    return PackedEntry(
        location, batch_format.pack(batch), max(record.timestamp for record in batch.records)
    )


def reading_start(position: Position) -> Position:
    """Where to start so that a chunked message ending at, or shortly after, `position` is read."""
    return Position(position.ledger_id, max(0, position.entry_id - CHUNK_LOOKBACK))


class NativeReader:
    """Reads a topic's entries from `position` on. `read` blocks; used by one thread at a time.

    It may be closed by another thread.
    """

    def __init__(
        self, source: ReaderSource, batch_format: BatchFormat, position: Position, queue: int
    ) -> None:
        self._source = source
        self._format = batch_format
        self._position = position
        self._queue = queue
        self._assembler = EntryAssembler(START)
        self._id_parser = MessageIdParser()
        self._lock = threading.Lock()
        self._reader: Any = None
        self._is_closed = False

    def read(self, max_bytes: int, last: Position) -> list[PackedEntry]:
        """Entries up to and including the one at `last`, until they exceed `max_bytes`.

        Returns at least one, if there is one. The last entry is returned even if it exceeds
        `max_bytes`, because it would not be read again. Raises LogClosed.
        """
        reader = self._opened()
        found: list[PackedEntry] = []
        was_quiet = False
        while max_bytes > 0 and self._assembler.last_complete < last:
            try:
                message = reader.read_next(MESSAGE_WAIT_MS)
            except pulsar.Timeout:
                if was_quiet or not reader.has_message_available():
                    # The remaining entries are never delivered, but count as available.
                    break
                was_quiet = True
                continue
            was_quiet = False
            location = self._id_parser.parse(message.message_id())
            if location.position < self._position:
                continue
            entry = self._assembler.add(location, partial(message_fields, message))
            if entry is not None:
                found.append(pack_entry(self._format, location, entry))
                max_bytes -= len(found[-1].payload)
        return found

    def _opened(self) -> Any:
        if self._reader is None:
            reader = self._source.open(reading_start(self._position), self._queue)
            with self._lock:
                if not self._is_closed:
                    self._reader = reader
            if self._reader is not reader:
                self._source.close(reader)
        if self._is_closed:
            raise LogClosed(LOG_CLOSED)
        return self._reader

    def close(self) -> None:
        """Close it, in a thread. A read in progress fails."""
        reader = self._taken()
        if reader is not None:
            self._source.close(reader)

    def drop(self) -> None:
        """Leave the library's reader to its last reference, because it cannot be closed."""
        if self._taken() is not None:
            self._source.dropped()

    def _taken(self) -> Any:
        with self._lock:
            self._is_closed = True
            reader, self._reader = self._reader, None
        return reader
