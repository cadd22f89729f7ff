"""Readers that take many messages in one call: their interface, and the one on the binding.

The other one is compiled (`bulk_client.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from storage.log import Buffer
from storage.pulsar.log.entry_messages import Header, parse_header

ReceivedMessage = tuple[Header | None, int, int, Buffer]
"""Header of a message of the store, else None; ledger id, entry id, payload."""


class UsualMessages(Protocol):
    """Messages of one call of a compiled reader, to be used once."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ReceivedMessage]: ...
    def stored(
        self, offset: int, expected: int, fence: Callable[[tuple[int, int]], int]
    ) -> tuple[list[Any], int, int, int] | None:
        """The messages from the one that contains `offset`, if all are usual; otherwise None, and
        the caller iterates over them.

        Usual is a message of this store with one entry, at offset `expected` or after the one
        before it, and not void: `fence` returns for its writer (`Header.writer`) the offset from
        which messages are void.

        Returns them with the attributes of `StoredMessage`, then the offset after the last message
        received, its ledger id and its entry id.
        """
        ...


ReceivedMessages = list[ReceivedMessage] | UsualMessages


class BulkReader(Protocol):
    """Its methods block and raise the library's errors. It has one user at a time."""

    def topic(self) -> str: ...

    def read(self, room: int, end: int, wait_ms: int, most: int) -> ReceivedMessages:
        """The next messages: at least one, at most `most`, before `wait_ms` have passed.

        None is received after `room` bytes of payload, or after one that reaches offset `end`.
        Raises pulsar.Timeout if there are none. After a call that returned some because its wait
        was over, the next call raises pulsar.Timeout at once.
        """
        ...

    def has_message_available(self) -> bool: ...
    def close(self) -> None: ...


class SingleReader:
    """A `BulkReader` on the binding: one message per call."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        # Bypasses the library's wrapper, which adds an object per message and a call per field.
        self._read_next = reader._reader.read_next
        self.topic: Callable[[], str] = reader.topic
        self.has_message_available: Callable[[], bool] = reader.has_message_available
        self.close: Callable[[], None] = reader.close

    def read(self, room: int, end: int, wait_ms: int, most: int) -> list[ReceivedMessage]:
        message = self._read_next(wait_ms)
        place = message.message_id()
        return [(header_of(message), place.ledger_id(), place.entry_id(), message.data())]


def header_of(message: Any) -> Header | None:
    """The header of a message of the store, else None."""
    try:
        return parse_header(message.properties())
    # Other producers may write properties that are not UTF-8; the library does not check.
    except UnicodeDecodeError:
        return None
