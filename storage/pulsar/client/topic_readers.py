"""Open readers of Pulsar topics: what they deliver is the store's own, each message once and in order.

A reader blocks: what is called here runs in a thread of `PulsarClient.run`, and a reader belongs to one caller at a time.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pulsar

from storage.log import StorageFailed
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.entry_messages import Header, parse_header
from storage.pulsar.log.offset_index import Position

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""So long a reader waits for a message before it asks the broker whether there is one: asking costs a round trip."""

MAX_QUEUE_MESSAGES = 64
"""No reader fetches more messages ahead: more make it no faster, and they may be larger than those that it met before."""

QUEUE_MISMATCH_FACTOR = 4
"""A reader whose queue is so many times too long or too short for the messages that it met gives place to another."""

_AFTER_ALL = 1 << 63


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of the store's: what it bears, where it is, its bytes."""

    header: Header
    position: Position
    payload: bytes

    def __repr__(self) -> str:
        """Without the payload, which is nobody's business in a log."""
        return f"StoredMessage({self.header.base_offset}-{self.header.last_offset} at {self.position.ledger_id}:{self.position.entry_id})"


class ReaderSource:
    """The topic of one partition, and what its readers share. `began` is replaced, never changed: threads look at it."""

    def __init__(self, session: PulsarClient, topic: str) -> None:
        self.session = session
        self.topic = topic
        self.settings = session.settings
        self.began: tuple[tuple[int, int], ...] = ()
        self.is_closed = False
        self._message_bytes = 0.0
        self.has_foreign_messages = False

    @property
    def queue(self) -> int:
        """How many messages a reader fetches ahead, by the size of those that were met."""
        if not self._message_bytes:
            return self.settings.reader_queue_messages
        return max(
            1, min(MAX_QUEUE_MESSAGES, int(self.settings.reader_queue_bytes / self._message_bytes))
        )

    def note_sizes(self, messages: list[StoredMessage]) -> None:
        """These were delivered."""
        if messages:
            average = sum(len(one.payload) for one in messages) / len(messages) + 1
            self._message_bytes += (average - self._message_bytes) / (
                4 if self._message_bytes else 1
            )

    def is_from_fenced_leader(self, header: Header) -> bool:
        """Whether a leader wrote this that had been replaced: the next one had begun at its offset or before. Nothing of it was acknowledged."""
        began = self.began
        if not began or header.leader_epoch >= began[-1][0]:
            return False
        _, first_offset = began[bisect_right(began, (header.leader_epoch, _AFTER_ALL))]
        return header.base_offset >= first_offset

    def own_header(self, message: Any) -> Header | None:
        """The header of a message that counts."""
        try:
            header = parse_header(message.properties())
        except UnicodeDecodeError:  # the library does not look what others write
            header = None
        if header is None:
            if not self.has_foreign_messages:
                self.has_foreign_messages = True
                log.warning(
                    "%s holds messages that kopgate did not write, the first at %s; they are passed over",
                    self.topic,
                    message.message_id(),
                )
            return None
        return None if self.is_from_fenced_leader(header) else header

    def messages(self, reader: Any, deadline: float) -> Iterator[Any]:
        """What `reader` gives until the topic has no more. Raises pulsar's Timeout at `deadline`."""
        # The library's own: its wrapper adds an object to each message, and a call to each of its fields.
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
            f"{self.topic}: what was asked for did not come within {self.settings.read_timeout_seconds:g} s (read_timeout_seconds)"
        )


def position_of(message: Any) -> Position:
    place = message.message_id()
    return Position(place.ledger_id(), place.entry_id())


def message_id_of(position: Position | None) -> Any:
    """Where a reader begins, in the library's terms; None is the beginning of the topic."""
    return pulsar.MessageId(-1, *position, -1) if position else pulsar.MessageId.earliest


def close(reader: Any) -> None:
    """What a reader gave is good even where the broker does not hear any more that it is done with."""
    try:
        reader.close()
    except pulsar.PulsarException as error:
        log.warning("a reader of %s did not close: %s", reader.topic(), type(error).__name__)


def find_message(
    source: ReaderSource, start: Position, last: Position, *, for_last: bool = False
) -> StoredMessage | None:
    """The first message of the store's (or the last one) from `start` up to and including `last`, those that only mark an offset too."""
    found: tuple[Header, Position, Any] | None = None
    reader = source.session.reader(
        source.topic,
        message_id_of(start),
        queue=source.queue if for_last or source.has_foreign_messages else 1,
    )
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
        close(reader)
    return StoredMessage(found[0], found[1], found[2].data()) if found else None


class OpenReader:
    """A reader of `source` from `start` on; it opens when it is first used.

    It passes over what others wrote, what was sent again after a broker's crash (known by its offset), and what a leader that had been
    replaced stored too late (known by its epoch). It keeps the message that it delivered last, since a consumer which took a part of it
    asks for the rest, and one that it fetched and had no room for.
    """

    def __init__(self, source: ReaderSource, start: Position | None) -> None:
        self.source = source
        self._start = start
        self._reader: Any = None
        self._queue = 0
        self._begin = self._expected = 0
        self._held: list[StoredMessage] = []
        self._received_messages = 0
        self.has_reached_end = False
        """The last read came to the end of the topic."""

    def is_positioned_at(self, offset: int) -> bool:
        """Whether what it delivers next is what a read from `offset` gives."""
        return self._begin <= offset <= self._expected

    def has_received_messages(self) -> bool:
        """Messages came; a reader that has none may stand where none will ever come."""
        return self._received_messages > 0

    def read(
        self, offset: int, end: int, max_bytes: int, max_messages: int = _AFTER_ALL
    ) -> list[StoredMessage]:
        """As `PartitionReader.read`. Whoever gets an exception closes the reader."""
        found: list[StoredMessage] = []
        room = max_bytes
        waiting = deque(one for one in self._held if one.header.last_offset >= offset)
        stream = self._own_messages(offset)
        self.has_reached_end = False
        while not found or (room > 0 and len(found) < max_messages):
            stored = waiting.popleft() if waiting else self._next(stream, bool(found))
            if stored is None:
                break
            if stored.header.base_offset >= end or (found and len(stored.payload) > room):
                waiting.appendleft(stored)
                break
            found.append(stored)
            room -= len(stored.payload)
            if stored.header.last_offset + 1 >= end:
                break
        self._held = [*found[-1:], *waiting]
        self._begin = found[-1].header.base_offset if found else offset
        self.source.note_sizes(found)
        return found

    def close(self) -> None:
        reader, self._reader = self._reader, None
        self._held.clear()
        if reader:
            close(reader)

    def _next(self, stream: Iterator[StoredMessage], has_some: bool) -> StoredMessage | None:
        """None where there is no more, or it does not come in time while there was something to go on with."""
        passed = self._received_messages
        try:
            stored = next(stream, None)
        except pulsar.Timeout:
            if has_some or self._received_messages > passed:
                return None
            raise self.source.timeout_error() from None
        self.has_reached_end = stored is None
        return stored

    def _own_messages(self, offset: int) -> Iterator[StoredMessage]:
        """The messages from the one that holds `offset` on."""
        source = self.source
        deadline = source.deadline()
        for message in source.messages(self._opened(), deadline):
            self._received_messages += 1
            header = source.own_header(message)
            if header is None or header.base_offset < self._expected:
                continue
            self._expected = header.last_offset + 1
            self._start = position = position_of(message)
            if header.last_offset >= offset and header.last_offset >= header.base_offset:
                yield StoredMessage(header, position, message.data())

    def _opened(self) -> Any:
        """The library's reader; another one from the last message on where the queue does not suit the messages that were met."""
        queue = self.source.queue
        if (
            self._reader
            and not self._queue / QUEUE_MISMATCH_FACTOR
            < queue
            < self._queue * QUEUE_MISMATCH_FACTOR
        ):
            close(self._reader)
            self._reader = None
        if self._reader is None:
            self._queue = queue
            self._reader = self.source.session.reader(
                self.source.topic, message_id_of(self._start), queue=queue
            )
        return self._reader
