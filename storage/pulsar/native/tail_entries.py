"""Processes new entries of a topic in the reactor's thread.

Assigns offsets, and matches the log's own batches by position to complete their appends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from storage.log import Entry, Fenced, StorageError, StorageFailed
from storage.pulsar.admin.admin_api import NotFound
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.message_offsets import IndexCounter
from storage.pulsar.native.native_reader import PackedEntry
from storage.pulsar.native.native_sender import PendingAppend
from storage.pulsar.native.stored_entries import NativeEntries

logger = logging.getLogger(__name__)

INDEX_ATTEMPTS, INDEX_RETRY_SECONDS = 10, 1.0
"""Attempts and their interval to read an entry's index before the log ends.

While a broker starts, its admin API may be available later than its topics.
"""


class TailEntries:
    """Queue of entries from the tail reader.

    `on_entry` receives each entry, in order. `on_pause` is called when the queue is empty, before
    the appends among those entries are completed. `on_failure` is called once if processing fails.
    """

    def __init__(
        self,
        stored: NativeEntries,
        on_entry: Callable[[Position, Entry], None],
        on_pause: Callable[[], None],
        on_failure: Callable[[StorageError], object],
    ) -> None:
        self._stored = stored
        self._on_entry = on_entry
        self._on_pause = on_pause
        self._on_failure = on_failure
        self._counter = IndexCounter()
        self._queue: deque[PackedEntry] = deque()
        self._is_processing = False
        self._has_ended = False
        # Own batches that were acknowledged but have not been read yet, and entries read while a
        # batch was in flight, which may turn out to be that batch.
        self._acknowledged: dict[Position, PendingAppend] = {}
        self._received: dict[Position, int] = {}
        self._completed: list[tuple[PendingAppend, int]] = []
        #: Called for each entry after it was processed.
        self.release: Callable[[PackedEntry], None] = lambda packed: None
        #: Number of own batches in flight.
        self.in_flight = 0

    def add(self, packed: PackedEntry) -> None:
        self._queue.append(packed)
        if not self._is_processing and not self._has_ended:
            self._is_processing = True
            Deferred.fromCoroutine(self._process()).addErrback(self._failed)

    def append_acknowledged(self, pending: PendingAppend) -> None:
        """An own batch is stored; its append completes when the batch has been read."""
        assert pending.location
        base_offset = self._received.pop(pending.location.position, None)
        if base_offset is None:
            self._acknowledged[pending.location.position] = pending
        else:
            pending.result.callback(base_offset)

    def append_finished(self) -> None:
        """An append has completed or failed."""
        self.in_flight -= 1
        if not self.in_flight:
            self._received.clear()

    def end(self, error: StorageError) -> None:
        """Stop processing.

        Appends that were acknowledged but not read fail with `error`; those that were read
        complete.
        """
        self._has_ended = True
        self._queue.clear()
        self._complete_appends()
        unfinished = list(self._acknowledged.values())
        self._acknowledged.clear()
        for pending in unfinished:
            pending.result.errback(error)

    async def _process(self) -> None:
        while self._queue:
            packed = self._queue[0]
            entry = await self._assign_offsets(packed)
            if not self._queue:
                # The log ended meanwhile.
                return
            self._queue.popleft()
            self.release(packed)
            position = packed.location.position
            self._on_entry(position, entry)
            pending = self._acknowledged.pop(position, None)
            if pending is not None:
                self._completed.append((pending, entry.base_offset))
            elif self.in_flight:
                self._received[position] = entry.base_offset
            if not self._queue:
                self._pause()
        self._is_processing = False

    def _pause(self) -> None:
        self._on_pause()
        self._complete_appends()

    def _complete_appends(self) -> None:
        completed, self._completed = self._completed, []
        for pending, base_offset in completed:
            pending.result.callback(base_offset)

    async def _assign_offsets(self, packed: PackedEntry) -> Entry:
        for _ in range(INDEX_ATTEMPTS):
            try:
                return await self._stored.assign_offsets(self._counter, packed)
            except NotFound:
                raise
            except StorageFailed as error:
                logger.warning(
                    "index of an entry not read, retrying topic=%s error=%s",
                    self._stored.finder.topic,
                    error,
                )
                await self._stored.client.pause(INDEX_RETRY_SECONDS)
        return await self._stored.assign_offsets(self._counter, packed)

    def _failed(self, failure: Any) -> None:
        error = failure.value
        if not isinstance(error, StorageError):
            logger.error(
                "bug: processing entries of %s failed",
                self._stored.finder.topic,
                exc_info=error,
            )
        self._on_failure(Fenced(f"reading the topic's tail failed: {error}"))
