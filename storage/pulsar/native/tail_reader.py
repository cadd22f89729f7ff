"""Follows the end of a topic with other writers: a reader that receives each new message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pulsar
from twisted.internet.defer import CancelledError, Deferred

from storage.log import LOG_CLOSED, LogClosed, StorageError, StorageFailed
from storage.plain_records import BatchFormat
from storage.pulsar.client.reconnection import Reconnection
from storage.pulsar.client.topic_readers import ReaderSource
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.message_offsets import START, EntryAssembler, MessageIdParser
from storage.pulsar.native.native_reader import (
    PackedEntry,
    message_fields,
    pack_entry,
    reading_start,
)

CHECK_SECONDS = 30.0
"""Interval at which a reader is checked, without I/O, for a connection."""


class ByteGate:
    """Limits the bytes in flight from the library's thread to the reactor's; blocks above it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()
        self._is_open = True

    def acquire(self, size: int) -> bool:
        """Returns False if closed. An entry larger than the limit is admitted alone."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._is_open or not self._held or self._held + size <= self._limit
            )
            self._held += size
            return self._is_open

    def release(self, size: int) -> None:
        with self._changed:
            self._held -= size
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify_all()


class TailReader:
    """Passes each entry after `after` to `on_entry`, in order.

    Calls `on_failure` once if it cannot continue. Call `release` for each entry that was processed.
    """

    def __init__(
        self,
        source: ReaderSource,
        batch_format: BatchFormat,
        after: Position,
        on_entry: Callable[[PackedEntry], None],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._source = source
        self._client = source.client
        self._format = batch_format
        self._after = after
        self._assembler = EntryAssembler(after)
        self._id_parser = MessageIdParser()
        self._on_entry = on_entry
        self._on_failure = on_failure
        self._gate = ByteGate(source.client.settings.arriving_bytes)
        self._is_closed = False
        self._reader: Any = None
        self._reconnection = Reconnection(time.monotonic)
        self._pause: Deferred[None] | None = None
        """The time until the next check."""

    async def open(self) -> None:
        """Open the reader. Raises StorageError, and LogClosed if this is closed meanwhile."""
        start = None if self._after == START else reading_start(self._after)
        reader = await self._client.run(lambda: self._source.open(start, listener=self._on_message))
        if self._is_closed:
            await self._client.run(lambda: self._source.close(reader))
            raise LogClosed(LOG_CLOSED)
        self._reader = reader
        Deferred.fromCoroutine(self._check(reader))

    async def _check(self, reader: Any) -> None:
        """Fail if the library does not reconnect the reader."""
        while not self._is_closed:
            self._pause = self._client.pause(CHECK_SECONDS)
            try:
                await self._pause
            except CancelledError:
                return
            if not self._is_closed and self._reconnection.has_given_up(reader):
                self._is_closed = True
                self._on_failure(StorageFailed("the reader is not reconnected"))

    def _on_message(self, reader: Any, message: pulsar.Message) -> None:
        """Called in the library's thread. Must not raise."""
        if self._is_closed:
            return
        try:
            location = self._id_parser.parse(message.message_id())
            entry = self._assembler.add(location, lambda: message_fields(message))
            if entry is None:
                return
            packed = pack_entry(self._format, location, entry)
        except Exception as error:  # noqa: BLE001 - any failure ends the log
            self._is_closed = True
            failure = (
                error
                if isinstance(error, StorageError)
                else StorageFailed(f"reading an entry failed: {error!r}")
            )
            self._client.reactor_calls.post(partial(self._on_failure, failure))
            return
        if self._gate.acquire(len(packed.payload)):
            self._client.reactor_calls.post(partial(self._on_entry, packed))

    def release(self, packed: PackedEntry) -> None:
        self._gate.release(len(packed.payload))

    async def close(self) -> None:
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._gate.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            await self._client.run(lambda: self._source.close(reader))
