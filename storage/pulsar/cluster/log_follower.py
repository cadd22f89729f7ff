"""Keeps the replayed rows of the metadata log up to date.

The compacted topic is loaded once, to its end as the broker reports it. After that, new messages
are read as they arrive (`log_tail`). If a burst is missing, the topic is loaded again and the
difference is delivered. A load is repeated if the topic was compacted or moved in the meantime, for
the reasons given in `tables/table_loader.py`, or if the loaded rows are older than the replayed
ones.

Unlike the owner of a state table, a follower cannot write an end marker, and needs none. The last
burst always keeps its revision, so compaction does not remove the end. If the broker reports an end
too early, the later bursts arrive by the tail, or their revisions show that bursts are missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pulsar
from twisted.internet.defer import Deferred, DeferredLock

from storage.bridge import Reactor, SharedResult
from storage.cluster import Rows
from storage.log import LogClosed, StorageError, StorageFailed
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.client.topic_readers import close
from storage.pulsar.cluster.log_entries import (
    BurstReader,
    EndMarker,
    LogBurst,
    LogEvent,
    Place,
)
from storage.pulsar.cluster.log_tail import LogTail
from storage.pulsar.cluster.replay import Replay
from storage.pulsar.tables.table_loader import ATTEMPTS, topic_space

RELOAD_SECONDS = 0.5
"""Pause before a failed load is repeated."""

MARKER_SECONDS = 2.0
"""How long to wait for an end marker from the tail before the log is loaded instead."""

END_MS = 1000
"""How long to wait for a message that the broker has announced."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """All rows at a revision. `place` is the entry of the last burst, None for an empty log."""

    rows: dict[bytes, bytes]
    revision: int
    place: Place | None
    has_end: bool
    """Whether the given end marker was found."""


def read_log(client: PulsarClient, topic: str, end: bytes | None) -> LoadedLog:
    """Read the compacted topic to its end, or to the end marker with this token. Blocks."""
    reader = client.reader(
        topic,
        pulsar.MessageId.earliest,
        compacted=True,
        queue=client.settings.table_reader_messages,
    )
    rows: dict[bytes, bytes] = {}
    bursts = BurstReader()
    revision = 0
    has_end = False
    try:
        while not has_end and reader.has_message_available():
            try:
                message = reader._reader.read_next(END_MS)
            except pulsar.Timeout:
                break
            try:
                key = message.partition_key()
            except UnicodeDecodeError:
                bursts.foreign += 1
                continue
            place = message.message_id()
            left = bursts.leftover()
            for event in bursts.add((place.ledger_id(), place.entry_id()), key, message.data()):
                if isinstance(event, LogBurst):
                    # A burst that is delivered again must not undo later ones.
                    if event.revision >= revision:
                        update(rows, event.rows)
                        revision = event.revision
                elif isinstance(event, EndMarker):
                    has_end = event.token == end
                else:
                    # The rows that compaction left of an older burst.
                    update(rows, left)
    finally:
        close(reader)
    if bursts.foreign:
        log.warning(
            "ignored messages that are not table rows topic=%s count=%d", topic, bursts.foreign
        )
    return LoadedLog(rows, revision, bursts.place, has_end)


def update(rows: dict[bytes, bytes], changed: Rows) -> None:
    """Apply changed rows to all rows."""
    for key, value in changed.items():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


class LogFollower:
    """Replays the topic into `replay` until `close`."""

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        reactor: Reactor,
        topic: str,
        replay: Replay,
    ) -> None:
        self._client = client
        self._admin = admin
        self._reactor = reactor
        self._topic = topic
        self._replay = replay
        self._tail: LogTail | None = None
        self._markers: dict[bytes, SharedResult[None]] = {}
        self._loading = DeferredLock()
        self._is_closed = False
        self._is_failing = False

    async def open(self) -> None:
        """Load the rows and begin to follow the log. Raises StorageFailed."""
        await self.load()

    def close(self) -> None:
        self._is_closed = True
        self._stop_tail()
        markers, self._markers = self._markers, {}
        for arrived in markers.values():
            arrived.fail(LogClosed("the metadata log is closed"))

    async def reach(self, store_marker: Callable[[bytes], Awaitable[None]]) -> None:
        """Replay everything up to a new end marker, which `store_marker(token)` stores.

        Raises StorageFailed, and what `store_marker` raises.
        """
        token = os.urandom(16)
        arrived = self._markers[token] = SharedResult()
        try:
            await store_marker(token)
            try:
                await arrived.with_timeout(self._reactor, MARKER_SECONDS)
            except TimeoutError:
                await self.load(token)
        finally:
            self._markers.pop(token, None)

    async def load(self, end: bytes | None = None) -> None:
        """Load all rows, at least up to the end marker `end` if given, then follow the log.

        Raises StorageFailed.
        """
        async with self._loading:
            for _ in range(ATTEMPTS):
                before = (await topic_space(self._admin, self._topic)).state
                loaded = await self._client.run(lambda: read_log(self._client, self._topic, end))
                is_same = (await topic_space(self._admin, self._topic)).state == before
                if self._is_closed:
                    raise LogClosed("the metadata log is closed")
                if (
                    is_same
                    and (end is None or loaded.has_end)
                    and self._replay.replace(loaded.revision, loaded.rows)
                ):
                    self._stop_tail()
                    self._tail = LogTail(self._client, self._topic, loaded.place, self._on_event)
                    return
            raise StorageFailed(
                f"{self._topic} was compacted or moved during each of {ATTEMPTS} reads: retry later"
            )

    def _on_event(self, event: LogEvent) -> None:
        if isinstance(event, EndMarker):
            arrived = self._markers.get(event.token)
            if arrived is not None:
                arrived.succeed(None)
        elif not isinstance(event, LogBurst) or not self._replay.apply(event.revision, event.rows):
            log.info("metadata log has a gap, loading it again topic=%s", self._topic)
            self._stop_tail()
            Deferred.fromCoroutine(self._load_until_successful())

    async def _load_until_successful(self) -> None:
        while not self._is_closed:
            try:
                await self.load()
            except LogClosed:
                return
            except StorageError as error:
                if not self._is_failing:
                    self._is_failing = True
                    log.error("loading the metadata log failed, retrying: %s", error)
                await self._client.pause(RELOAD_SECONDS)
            except Exception:
                log.exception("bug: loading the metadata log failed")
                await self._client.pause(RELOAD_SECONDS)
            else:
                if self._is_failing:
                    self._is_failing = False
                    log.warning("metadata log loaded again topic=%s", self._topic)
                return

    def _stop_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.stop()
