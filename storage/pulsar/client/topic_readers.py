"""Open readers of Pulsar topics, which deliver the store's own messages in order, once each.

A reader blocks: its functions run in a thread of `PulsarClient.run`, and a reader has one user at a
time.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pulsar
from twisted.internet.defer import Deferred

from storage.log import LOG_CLOSED, LogClosed, StorageFailed
from storage.pulsar.client.bulk_readers import BulkReader, ReceivedMessages, header_of
from storage.pulsar.client.pulsar_client import Listener, PulsarClient, message_id_of
from storage.pulsar.client.stored_messages import StoredMessage, functions
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import Position

R = TypeVar("R")
log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How long a reader waits for a message before it asks the broker whether there is one, a round
trip.
"""

MAX_QUEUE_MESSAGES = 64
"""Limit on prefetched messages: more are not faster, and may be larger than earlier ones."""

MOST_RECEIVED = 128
"""Limit on messages received in one call."""

QUEUE_MISMATCH_FACTOR = 4
"""A reader is replaced if its queue is this many times too long or short for the message sizes."""

_AFTER_ALL = 1 << 63


class ReaderSource:
    """The topic of one partition, with the state that its readers share.

    `began` holds each writer (`Header.writer`) and the offset at which it began, in order. It is
    replaced, never modified, since threads read it.
    """

    def __init__(self, client: PulsarClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.settings = client.settings
        self.began: tuple[tuple[tuple[int, int], int], ...] = ()
        self.is_closed = False
        """Whether readers are closed when their read ends."""
        self._message_bytes = 0.0
        self.has_foreign_messages = False
        self._lock = threading.Lock()
        self._connected = 0
        """Number of the library's readers that are open or being opened."""
        self._disconnecting: list[Deferred[None]] | None = None
        """Waiting calls of `disconnect`; None before the first."""

    def open(
        self, start: Position | None, queue: int | None = None, listener: Listener | None = None
    ) -> Any:
        """Open a reader of the library in a thread. Close it with `close`.

        Raises LogClosed once `disconnect` was called, because it might create the topic again.
        """
        return self._open(
            lambda: self.client.reader(
                self.topic, message_id_of(start), queue=queue, listener=listener
            )
        )

    def open_bulk(self, start: Position | None, queue: int) -> BulkReader:
        """As `open`, for reading many messages."""
        return self._open(lambda: self.client.bulk_reader(self.topic, start, queue))

    def _open(self, connect: Callable[[], R]) -> R:
        with self._lock:
            if self._disconnecting is not None:
                raise LogClosed(LOG_CLOSED)
            self._connected += 1
        try:
            return connect()
        except BaseException:
            self.dropped()
            raise

    def close(self, reader: Any) -> None:
        """Close a reader in a thread."""
        try:
            close(reader)
        finally:
            self.dropped()

    def disconnect(self) -> Deferred[None]:
        """Open no more readers. Fires when all are closed, in the reactor's thread."""
        done: Deferred[None] = Deferred()
        self.is_closed = True
        with self._lock:
            waiting = self._disconnecting = self._disconnecting or []
            if self._connected:
                waiting.append(done)
                return done
        done.callback(None)
        return done

    def dropped(self) -> None:
        """A reader is closed, or was never opened, or its last reference is gone."""
        with self._lock:
            self._connected -= 1
            if self._connected or not self._disconnecting:
                return
            waiting, self._disconnecting = self._disconnecting, []
        for done in waiting:
            self.client.reactor_calls.post(partial(done.callback, None))

    @property
    def queue(self) -> int:
        """The number of messages a reader prefetches, from the average size of messages so far."""
        if not self._message_bytes:
            return self.settings.reader_queue_messages
        return max(
            1, min(MAX_QUEUE_MESSAGES, int(self.settings.reader_queue_bytes / self._message_bytes))
        )

    def note_sizes(self, messages: int, size: int) -> None:
        """Update the average message size by `messages` messages with `size` bytes of payload."""
        if messages:
            average = size / messages + 1
            self._message_bytes += (average - self._message_bytes) / (
                4 if self._message_bytes else 1
            )

    def fence(self, writer: tuple[int, int]) -> int:
        """The offset from which messages of this writer (`Header.writer`) are void: the next leader
        had begun there or before. They were never acknowledged.
        """
        began = self.began
        if not began or writer >= began[-1][0]:
            return _AFTER_ALL
        return began[bisect_right(began, (writer, _AFTER_ALL))][1]

    def is_from_fenced_leader(self, header: Header) -> bool:
        """Whether a replaced leader wrote this message after its successor had begun."""
        return header.base_offset >= self.fence(header.writer)

    def own_header(self, message: Any) -> Header | None:
        """The header of a valid message of the store, else None."""
        header = header_of(message)
        if header is None:
            self.note_foreign(position_of(message))
            return None
        return None if self.is_from_fenced_leader(header) else header

    def note_foreign(self, position: Position) -> None:
        """Log the first message of another writer."""
        if not self.has_foreign_messages:
            self.has_foreign_messages = True
            log.warning(
                "%s holds messages not written by kopgate, the first at %s:%s; they are skipped",
                self.topic,
                *position,
            )

    def messages(self, reader: Any, deadline: float) -> Iterator[Any]:
        """Messages of `reader` until the end of the topic. Raises pulsar.Timeout at `deadline`."""
        # Bypasses the library's wrapper, which adds an object per message and a call per field.
        read_next = reader._reader.read_next
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = read_next(1 + int(1000 * min(POLL_SECONDS, left)))
            except pulsar.Timeout:
                if not reader.has_message_available():
                    return
            else:
                yield message
        raise pulsar.Timeout

    def deadline(self) -> float:
        return time.monotonic() + self.settings.read_timeout_seconds

    def timeout_error(self) -> StorageFailed:
        return StorageFailed(
            f"{self.topic}: the read timed out after {self.settings.read_timeout_seconds:g} s "
            "(read_timeout_seconds)"
        )


def position_of(message: Any) -> Position:
    place = message.message_id()
    return Position(place.ledger_id(), place.entry_id())


def close(reader: Any) -> None:
    """Close a reader. Errors are only logged: the messages it delivered are valid."""
    try:
        reader.close()
    except pulsar.PulsarException as error:
        log.warning("closing a reader of %s failed: %s", reader.topic(), type(error).__name__)


def next_messages(
    reader: BulkReader, room: int, end: int, most: int, deadline: float
) -> ReceivedMessages:
    """As `BulkReader.read`; none at the end of the topic. Raises pulsar.Timeout at `deadline`."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            return reader.read(room, end, 1 + int(1000 * min(POLL_SECONDS, left)), most)
        except pulsar.Timeout:
            if not reader.has_message_available():
                return []
    raise pulsar.Timeout


def find_message(
    source: ReaderSource, start: Position, last: Position, *, for_last: bool = False
) -> StoredMessage | None:
    """The store's first (or last) message from `start` up to and including `last`.

    Includes messages that only mark an offset.
    """
    found: tuple[Header, Position, Any] | None = None
    reader = source.open(start, source.queue if for_last or source.has_foreign_messages else 1)
    try:
        for message in source.messages(reader, source.deadline()):
            position = position_of(message)
            if position > last:
                break
            header = source.own_header(message)
            if header:
                found = header, position, message
            if position == last or (header and not for_last):
                break
    except pulsar.Timeout:
        raise source.timeout_error() from None
    finally:
        source.close(reader)
    return StoredMessage(found[0], found[1], found[2].data()) if found else None


class OpenReader:
    """A reader of `source` from `start`, opened on first use.

    It skips messages of other producers, duplicates resent after a broker crash (recognized by
    offset), and messages stored too late by a replaced leader (recognized by epoch). It keeps the
    last delivered message, because a consumer that took part of it requests the rest, and one
    prefetched message that did not fit.
    """

    def __init__(self, source: ReaderSource, start: Position | None) -> None:
        self.source = source
        self._start = start
        self._reader: BulkReader | None = None
        self._queue = 0
        self._begin = self._expected = 0
        self._held: list[StoredMessage] = []
        self._received_messages = 0
        self.has_reached_end = False
        """Whether the last read reached the end of the topic."""
        self.has_timed_out = False
        """Whether the last read ended because no more messages arrived in time."""

    def is_positioned_at(self, offset: int) -> bool:
        """Whether its next messages are those that a read from `offset` returns."""
        return self._begin <= offset <= self._expected

    def has_received_messages(self) -> bool:
        """Whether any message was received; otherwise it may be at a position without messages."""
        return self._received_messages > 0

    def read(
        self, offset: int, end: int, max_bytes: int, max_messages: int = _AFTER_ALL
    ) -> list[StoredMessage]:
        """As `PartitionReader.read`. The caller closes the reader after an exception."""
        found: list[StoredMessage] = []
        room = max_bytes
        waiting = [one for one in self._held if one.header.last_offset >= offset]
        deadline = self.source.deadline()
        self.has_reached_end = self.has_timed_out = is_full = False
        while not is_full and (not found or (room > 0 and len(found) < max_messages)):
            if not waiting:
                most = min(max_messages - len(found), MOST_RECEIVED)
                self._receive(waiting, (offset, end, room, most), deadline, bool(found))
                if not waiting:
                    break
            room, is_full = functions.take(waiting, found, end, room, max_messages)
        self._held = [*found[-1:], *waiting]
        self._begin = found[-1].header.base_offset if found else offset
        self.source.note_sizes(len(found), max_bytes - room)
        return found

    def close(self) -> None:
        reader, self._reader = self._reader, None
        self._held.clear()
        if reader:
            self.source.close(reader)

    def drop(self) -> None:
        """Leave the library's reader to its last reference, because it cannot be closed."""
        reader, self._reader = self._reader, None
        if reader:
            self.source.dropped()

    def _receive(
        self,
        waiting: list[StoredMessage],
        wanted: tuple[int, int, int, int],
        deadline: float,
        has_some: bool,
    ) -> None:
        """Add the next messages to `waiting`, from the one that contains the offset.

        Adds none at the end, or on a timeout if there is something to return already. `wanted`: the
        offset, the end offset, and how many bytes and messages are received at a time.
        """
        source = self.source
        offset, end, room, most = wanted
        reader = self._opened()
        while not waiting:
            try:
                received = next_messages(reader, room, end, most, deadline)
            except pulsar.Timeout:
                if has_some:
                    self.has_timed_out = True
                    return
                raise source.timeout_error() from None
            if not received:
                self.has_reached_end = True
                return
            has_some = True
            self._received_messages += len(received)
            usual = (
                None
                if isinstance(received, list)
                else received.stored(offset, self._expected, source.fence)
            )
            if usual is not None:
                stored, self._expected, ledger_id, entry_id = usual
                self._start = Position(ledger_id, entry_id)
                waiting += stored
                continue
            for header, ledger_id, entry_id, payload in received:
                if header is None:
                    source.note_foreign(Position(ledger_id, entry_id))
                    continue
                if header.base_offset < self._expected or source.is_from_fenced_leader(header):
                    continue
                last = header.last_offset
                self._expected = last + 1
                self._start = position = Position(ledger_id, entry_id)
                if offset <= last >= header.base_offset:
                    waiting.append(StoredMessage(header, position, payload))

    def _opened(self) -> BulkReader:
        """The library's reader, reopened if its queue does not suit the message sizes."""
        queue = self.source.queue
        if (
            self._reader
            and not self._queue / QUEUE_MISMATCH_FACTOR
            < queue
            < self._queue * QUEUE_MISMATCH_FACTOR
        ):
            reader, self._reader = self._reader, None
            self.source.close(reader)
        if self._reader is None:
            self._queue = queue
            self._reader = self.source.open_bulk(self._start, queue)
        return self._reader
