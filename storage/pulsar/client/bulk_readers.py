"""Readers that take many messages in one call, without the GIL, if the library's C API is there.

The binding takes one message per call and copies its payload twice. The C API needs a client, and
so a connection, beside the binding's: the two share no objects (decision 050). It has no setting
for the connection timeout, which is the library's default there, 10 s. Its readers begin behind
their start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import pulsar

from storage.log import Buffer
from storage.pulsar.log.entry_messages import Header, parse_header
from storage.pulsar.log.offset_index import Position

ReceivedMessage = tuple[Header | None, int, int, Buffer]
"""Header of a message of the store, else None; ledger id, entry id, payload."""


class BulkReader(Protocol):
    """Its methods block and raise the library's errors. It has one user at a time."""

    def topic(self) -> str: ...

    def read(self, room: int, end: int, wait_ms: int, most: int) -> list[ReceivedMessage]:
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


_INTERFACE = 1
"""Expected INTERFACE of the compiled module; incremented when one of its functions changes."""

compiled: Any = None
"""The compiled module; None if it is not built, or the library lacks a function."""

BINDING_REASON = ""
"""Why `compiled` is None."""

if os.environ.get("KOPGATE_PURE_PYTHON", "") not in ("", "0"):
    BINDING_REASON = "KOPGATE_PURE_PYTHON is set"
else:
    try:
        import storage.pulsar.client._library as _library
    except ImportError as error:
        BINDING_REASON = str(error)
    else:
        if _library.INTERFACE == _INTERFACE:
            compiled = _library
        else:
            BINDING_REASON = "the compiled module has another version"


class BulkClient:
    """A client of the library's C API. It connects on first use."""

    def __init__(
        self,
        service_url: str,
        operation_timeout_seconds: int,
        token: Callable[[], str] | None,
        trust_file: str | None,
        certificate_file: str | None,
        key_file: str | None,
    ) -> None:
        if trust_file is None:
            # The binding's default, on which it depends.
            import certifi

            trust_file = certifi.where()
        self._client = compiled.Client(
            service_url.encode(),
            operation_timeout_seconds,
            token,
            os.fsencode(trust_file),
            None if certificate_file is None else os.fsencode(certificate_file),
            None if key_file is None else os.fsencode(key_file),
        )

    def reader(self, topic: str, start: Position | None, queue: int) -> BulkReader:
        """A reader that starts at the position, or at the beginning.

        Messages of a batch that precede the position may be delivered, too; callers filter by
        offset. Blocks. Raises the library's errors.
        """
        id = (
            pulsar.MessageId(-1, start.ledger_id, start.entry_id - 1, -1)
            if start
            else pulsar.MessageId.earliest
        )
        # The message before the start uses one place of the queue, because the broker sends it.
        made: BulkReader = self._client.create_reader(topic.encode(), id.serialize(), queue + 1)
        return made

    def close(self) -> None:
        self._client.close()
