"""Where a message is, and its offset: pulsar-client does not show the broker's index of an entry, so entries are counted from one whose index is known.

The index counts messages: an entry's is that of its last one, and the next entry of the same ledger goes on from there. Each chunk of a chunked
message takes one; a reader shows the message at its last chunk. Some entries are shown to no reader (markers of transactions, what was aborted), so
whatever does not follow at once is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from storage.log import StorageFailed
from storage.pulsar.log.offset_index import Position

START = Position(-1, -1)
"""Before every entry."""


class MessageLocation(NamedTuple):
    """Of one message: its entry (the last chunk's, if it has several), its number in it and how many that has, and the first chunk's entry."""

    position: Position
    number: int = 0
    messages: int = 1
    first_chunk: Position | None = None

    @property
    def is_last(self) -> bool:
        return self.number == self.messages - 1


def parse_message_id(message_id: bytes) -> MessageLocation:
    """The place that a serialized message id (Pulsar's MessageIdData) tells. Raises StorageFailed for another kind of bytes.

    The id's own attributes leave out how many messages the entry has.
    """
    fields = _parse_fields(message_id)
    ledger, entry = fields.get(_LEDGER), fields.get(_ENTRY)
    first_chunk = fields.get(_FIRST_CHUNK)
    if not isinstance(ledger, int) or not isinstance(entry, int):
        raise StorageFailed("pulsar-client gave a message id that names no entry")
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
    """The places of one message after another. Of an entry's messages only the first id is taken apart, which costs as much as all the rest."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = MessageLocation(START)

    def parse(self, message_id: Any) -> MessageLocation:
        """Raises StorageFailed."""
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
    """Gives the index of one entry after another, in their order."""

    __slots__ = ("_index", "_position")

    def __init__(self) -> None:
        self._position = START
        self._index = -1

    def anchor(self, position: Position, last_index: int) -> None:
        """The index of that entry is known."""
        self._position, self._index = position, last_index

    def next(self, location: MessageLocation) -> int | None:
        """The index of the last message of the entry at `location`; None where it must be asked for, and told by `anchor`."""
        ledger, entry = self._position
        if location.position != (ledger, entry + 1) or location.first_chunk is not None:
            return None
        self._position = location.position
        self._index += location.messages
        return self._index


class EntryAssembler:
    """Messages, one by one, become entries: whole ones, each once. After a reconnect a reader may show again what it has shown before."""

    __slots__ = ("_found", "_position", "last_complete")

    def __init__(self, after: Position = START) -> None:
        #: The last entry that came.
        self.last_complete = after
        self._position = after
        self._found: list[Any] = []

    def add(self, location: MessageLocation, message: Callable[[], Any]) -> list[Any] | None:
        """The messages of the entry that this one makes whole, or None. `message` is called where it is wanted.

        Raises StorageFailed where an entry came in part: then the offsets of what is missing cannot be told apart.
        """
        if location.position <= self.last_complete:
            return None
        if location.position != self._position:
            if self._found:
                raise StorageFailed(
                    f"of the messages of entry {self._position} only {len(self._found)} came"
                )
            self._position = location.position
        if location.number < len(self._found):
            return None
        if location.number > len(self._found):
            raise StorageFailed(
                f"a message of entry {location.position} came before the {location.number - len(self._found)} in front of it"
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
    """The fields of a protobuf message by their number, of those with varints and bytes; the last of each."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _parse_varint(message, at)
        number, at = _parse_varint(message, at)
        if tag & 7 == _BYTES and number <= len(message) - at:
            fields[tag >> 3] = message[at : at + number]
            at += number
        elif tag & 7 == _VARINT:
            # Negative numbers are written as their two's complement in 64 bits.
            fields[tag >> 3] = number - (1 << 64) if number >> 63 else number
        else:
            raise StorageFailed("pulsar-client gave a message id of an unknown kind")
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
    raise StorageFailed("pulsar-client gave a message id that is cut short")
