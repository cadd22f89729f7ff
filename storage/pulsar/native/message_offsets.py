"""Positions of messages, and their broker index.

pulsar-client does not show the broker's index of an entry. It is counted from an entry whose index
is known: an entry has the index of its last message, and the next entry of the same ledger
continues from there. Each chunk of a chunked message takes one index; a reader delivers the message
at its last chunk.

Some entries are never delivered to readers (transaction markers, aborted messages). The index of an
entry that does not directly follow the previous one is therefore read from the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from storage.log import StorageFailed
from storage.pulsar.log.offset_index import Position

START = Position(-1, -1)
"""Before every entry."""


class MessageLocation(NamedTuple):
    """Location of a message.

    `position` is its entry (that of the last chunk, if chunked), `number` its place among the
    `messages` of the entry, and `first_chunk` the entry of the first chunk.
    """

    position: Position
    number: int = 0
    messages: int = 1
    first_chunk: Position | None = None

    @property
    def is_last(self) -> bool:
        return self.number == self.messages - 1


def parse_message_id(message_id: bytes) -> MessageLocation:
    """The location in a serialized message id (Pulsar's MessageIdData). Raises StorageFailed.

    The attributes of pulsar-client's message id lack the number of messages in the entry.
    """
    fields = _parse_fields(message_id)
    ledger, entry = fields.get(_LEDGER), fields.get(_ENTRY)
    first_chunk = fields.get(_FIRST_CHUNK)
    if not isinstance(ledger, int) or not isinstance(entry, int):
        raise StorageFailed("pulsar-client returned a message id without an entry")
    count, index = fields.get(_BATCH_SIZE, 0), fields.get(_BATCH_INDEX, 0)
    first = parse_message_id(first_chunk).position if isinstance(first_chunk, bytes) else None
    if (
        not isinstance(count, int)
        or not isinstance(index, int)
        or count <= 1
        or not 0 <= index < count
    ):
        return MessageLocation(Position(ledger, entry), 0, 1, first)
    return MessageLocation(Position(ledger, entry), index, count, first)


class MessageIdParser:
    """Locations of consecutive messages.

    Serialized ids are parsed only for the first message of an entry, because parsing costs as much
    as all other work per message.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = MessageLocation(START)

    def parse(self, message_id: Any) -> MessageLocation:
        number = message_id.batch_index()
        last = self._last
        if (
            number > 0
            and number < last.messages
            and last.position == (message_id.ledger_id(), message_id.entry_id())
        ):
            location = last._replace(number=number)
        else:
            location = parse_message_id(message_id.serialize())
        self._last = location
        return location


class IndexCounter:
    """Counts the index of consecutive entries."""

    __slots__ = ("_index", "_position")

    def __init__(self) -> None:
        self._position = START
        self._index = -1

    def anchor(self, position: Position, last_index: int) -> None:
        """Continue counting from the entry at `position`, whose index the broker reported."""
        self._position, self._index = position, last_index

    def next(self, location: MessageLocation) -> int | None:
        """The index of the entry's last message; None if it must be read and set with `anchor`."""
        ledger, entry = self._position
        if location.position != (ledger, entry + 1) or location.first_chunk is not None:
            return None
        self._position = location.position
        self._index += location.messages
        return self._index


class EntryAssembler:
    """Collects messages into complete entries, each once.

    After a reconnect a reader may deliver messages again.
    """

    __slots__ = ("_found", "_position", "last_complete")

    def __init__(self, after: Position = START) -> None:
        #: The last complete entry.
        self.last_complete = after
        self._position = after
        self._found: list[Any] = []

    def add(self, location: MessageLocation, message: Callable[[], Any]) -> list[Any] | None:
        """The messages of the entry that this message completes, or None.

        `message` is called if the message is needed. Raises StorageFailed if a message of an entry
        is missing, because the offsets of the others would be ambiguous.
        """
        if location.position <= self.last_complete:
            return None
        if location.position != self._position:
            if self._found:
                raise StorageFailed(
                    f"entry {self._position} is incomplete: received {len(self._found)} messages"
                )
            self._position = location.position
        if location.number < len(self._found):
            return None
        if location.number > len(self._found):
            raise StorageFailed(
                f"entry {location.position} is incomplete: received message {location.number}, "
                f"expected {len(self._found)}"
            )
        self._found.append(message())
        if not location.is_last:
            return None
        self.last_complete = location.position
        found, self._found = self._found, []
        return found


_LEDGER, _ENTRY, _BATCH_INDEX, _BATCH_SIZE, _FIRST_CHUNK = 1, 2, 4, 6, 7
_VARINT, _BYTES = 0, 2


def _parse_fields(message: bytes) -> dict[int, int | bytes]:
    """Varint and bytes fields of a protobuf message by number; the last value of each."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _parse_varint(message, at)
        number, at = _parse_varint(message, at)
        if tag & 7 == _BYTES and number <= len(message) - at:
            fields[tag >> 3] = message[at : at + number]
            at += number
        elif tag & 7 == _VARINT:
            # Negative numbers are encoded as 64-bit two's complement.
            fields[tag >> 3] = number - (1 << 64) if number >> 63 else number
        else:
            raise StorageFailed("pulsar-client returned a message id of unknown format")
    return fields


def _parse_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at == len(message):
            break
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise StorageFailed("pulsar-client returned a truncated message id")
