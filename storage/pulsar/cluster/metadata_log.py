"""The metadata log on a compacted topic, written by the process that holds the store's lock.

The process that holds the lock is the writer. It fences the topic, so its predecessor can no longer
write, then writes an end marker and replays the log up to it. All bursts of the predecessor precede
the marker.

A burst is applied when it is acknowledged or when the follower reads it, whichever is first. After
a failed burst, the writer writes another end marker and waits until it is replayed. So the next
burst has the right revision, whether the failed one was stored or not.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock, succeed

from storage.bridge import Reactor
from storage.cluster import Rows
from storage.log import EntryTooLarge, Fenced, LogClosed, StorageError
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.cluster.log_entries import REVISION_KEY, encode_revision
from storage.pulsar.cluster.log_follower import LogFollower
from storage.pulsar.cluster.replay import Replay
from storage.pulsar.lock import StoreLock
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import (
    END_KEY,
    MAX_MESSAGE_OVERHEAD,
    MAX_STORED_KEY_BYTES,
    max_batch_bytes,
    table_topic,
)
from storage.pulsar.tables.table_compaction import TableCompactor
from storage.pulsar.tables.table_writer import TableWriter, failed, queue_full

TABLE = "metadata"

CATCH_UP_SECONDS = 0.5
"""Pause between attempts to replay the log after a failed burst."""

log = logging.getLogger(__name__)


class WaitingPut:
    """The rows of one put, and their bytes. `result` fires when they are durable and replayed."""

    __slots__ = ("result", "rows", "size")

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows = rows
        self.size = size
        self.result: Deferred[None] = Deferred()

    def settle(self, failure: StorageError | None) -> None:
        if self.result.called:
            return
        if failure is None:
            self.result.callback(None)
        else:
            # A new exception for each put: the traceback of one raised repeatedly would grow.
            self.result.errback(type(failure)(str(failure)))


class WriterTerm:
    """Objects that exist while this process is the writer."""

    __slots__ = ("compactor", "writer")

    def __init__(self, compactor: TableCompactor, writer: TableWriter) -> None:
        self.compactor = compactor
        self.writer = writer


class PulsarMetadataLog:
    """A `MetadataLog`."""

    def __init__(
        self, client: PulsarClient, admin: PulsarAdmin, settings: PulsarSettings, reactor: Reactor
    ) -> None:
        self._client = client
        self._admin = admin
        self._settings = settings
        self._reactor = reactor
        self.topic = table_topic(settings, TABLE)
        self._replay = Replay()
        self._follower = LogFollower(client, admin, reactor, self.topic, self._replay)
        self._lock = StoreLock(client, admin, settings, reactor)
        self._lock.when_lost(self._lost)
        self._changing_role = DeferredLock()
        self._term: WriterTerm | None = None
        self._waiting: deque[WaitingPut] = deque()
        self._waiting_bytes = 0
        self._is_sending = False
        self._on_lost: Callable[[str], None] = lambda reason: None

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        return self._replay.rows

    @property
    def revision(self) -> int:
        return self._replay.revision

    @property
    def is_writer(self) -> bool:
        return self._term is not None

    def watch(self, call: Callable[[Rows], None]) -> None:
        self._replay.watch(call)

    def when_lost(self, call: Callable[[str], None]) -> None:
        self._on_lost = call

    async def open(self) -> None:
        await self._compactor().prepare()
        await self._follower.open()

    async def acquire(self, force: bool) -> None:
        """`MetadataLog.acquire`. If it fails, everything acquired so far is released."""
        async with self._changing_role:
            if self._term is not None:
                return
            await self._lock.take(
                self._settings.node, self._settings.takeover, replace_controller=force
            )
            compactor = self._compactor()
            writer = TableWriter(
                self._client, self._settings, self._reactor, self.topic, compactor.add_written
            )
            try:
                await writer.open()
                await self._catch_up(writer)
                # The topic of a process that took the lock meanwhile may have been fenced here.
                await self._lock.confirm()
            except BaseException:
                await writer.close()
                await self._lock.release()
                raise
            compactor.start()
            self._term = WriterTerm(compactor, writer)

    async def release(self) -> None:
        async with self._changing_role:
            term, self._term = self._term, None
            if term is None:
                return
            term.compactor.stop()
            self._fail_waiting(Fenced("this gateway is no longer the controller"))
            await term.writer.close()
            await self._lock.release()

    def confirm(self) -> Awaitable[None]:
        if self._term is None:
            return failed(lambda: Fenced("this gateway is not the controller"))
        return self._lock.confirm()

    def put(self, rows: Rows) -> Awaitable[None]:
        if self._term is None:
            return failed(lambda: Fenced("this gateway is not the controller"))
        if not all(1 <= len(key) <= MAX_STORED_KEY_BYTES and key != REVISION_KEY for key in rows):
            return failed(
                lambda: ValueError(
                    f"a key has 1 to {MAX_STORED_KEY_BYTES} bytes and is not "
                    f"{REVISION_KEY.decode()}"
                )
            )
        if not rows:
            return succeed(None)
        size = max_batch_bytes(rows)
        limit = self._settings.table_burst_bytes - max_batch_bytes(revision_row(0))
        if size > limit:
            return failed(
                lambda: EntryTooLarge(
                    f"{len(rows)} rows take {size} bytes, more than the limit of {limit} "
                    "(table_burst_bytes)"
                )
            )
        full = queue_full(self._settings, len(self._waiting), self._waiting_bytes, size)
        if full is not None:
            return failed(full)
        put = WaitingPut(rows, size)
        self._waiting.append(put)
        self._waiting_bytes += size
        if not self._is_sending:
            Deferred.fromCoroutine(self._send_waiting(self._term))
        return put.result

    async def wait_for(self, revision: int) -> None:
        await self._replay.wait_for(revision)

    async def close(self) -> None:
        await self.release()
        self._follower.close()
        self._replay.close()

    def _compactor(self) -> TableCompactor:
        return TableCompactor(self._admin, self._settings, self._reactor, self.topic)

    async def _catch_up(self, writer: TableWriter) -> None:
        """Replay everything stored before this call. Raises StorageFailed, Fenced."""
        await self._follower.reach(
            lambda token: writer.send({END_KEY: token}, MAX_MESSAGE_OVERHEAD)
        )

    async def _send_waiting(self, term: WriterTerm) -> None:
        """Store the waiting puts, one burst at a time."""
        self._is_sending = True
        try:
            while self._waiting and self._term is term:
                await self._send_burst(term)
        except Exception:
            log.exception("bug: writing the metadata log failed")
            self._lost("an internal error")
        finally:
            self._is_sending = False
        if self._waiting and self._term is not None:
            # This process lost the role and became the writer again during the last burst.
            Deferred.fromCoroutine(self._send_waiting(self._term))

    async def _send_burst(self, term: WriterTerm) -> None:
        limit = self._settings.table_burst_bytes - max_batch_bytes(revision_row(0))
        burst: list[WaitingPut] = []
        rows: dict[bytes, bytes | None] = {}
        size = 0
        while self._waiting and (not burst or size + self._waiting[0].size <= limit):
            put = self._waiting.popleft()
            self._waiting_bytes -= put.size
            size += put.size
            burst.append(put)
            rows.update(put.rows)
        # The outcome after a bug.
        failure: StorageError | None = Fenced("this gateway is no longer the controller")
        try:
            failure = await self._store(term, rows)
            if isinstance(failure, LogClosed):
                failure = Fenced("this gateway is no longer the controller; the outcome is unknown")
            elif isinstance(failure, Fenced):
                self._lost(str(failure), term)
        finally:
            for put in burst:
                put.settle(failure)
        if failure is not None and not isinstance(failure, (Fenced, EntryTooLarge)):
            await self._learn_outcome(term)

    async def _store(self, term: WriterTerm, rows: Rows) -> StorageError | None:
        """Store and replay a burst. Returns the failure; raises only after a bug."""
        revision = self._replay.revision + 1
        try:
            await term.writer.put({**rows, **revision_row(revision)})
        except StorageError as error:
            return error
        if not self._replay.apply(revision, rows):
            raise AssertionError(f"revision {revision} after {self._replay.revision}")
        return None

    async def _learn_outcome(self, term: WriterTerm) -> None:
        """Replay the log after a failed burst. Repeats this until Pulsar answers."""
        while self._term is term:
            try:
                await self._catch_up(term.writer)
            except Fenced as error:
                self._lost(str(error), term)
            except LogClosed:
                return
            except StorageError:
                await self._client.pause(CATCH_UP_SECONDS)
            else:
                return

    def _lost(self, reason: str, lost: WriterTerm | None = None) -> None:
        """End this process's role as the writer: another process took the lock or the topic."""
        term = self._term
        if term is None or (lost is not None and lost is not term):
            return
        self._term = None
        term.compactor.stop()
        self._fail_waiting(Fenced(f"this gateway is no longer the controller: {reason}"))
        Deferred.fromCoroutine(self._clean_up(term)).addErrback(
            lambda failure: log.error("closing the metadata log failed: %s", failure.value)
        )
        try:
            self._on_lost(reason)
        except Exception:
            log.exception("bug: the loss of the metadata log was not handled")

    async def _clean_up(self, term: WriterTerm) -> None:
        async with self._changing_role:
            await term.writer.close()
            await self._lock.release()

    def _fail_waiting(self, failure: StorageError) -> None:
        waiting = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        for put in waiting:
            put.settle(failure)


def revision_row(revision: int) -> dict[bytes, Any]:
    """The last row of a burst."""
    return {REVISION_KEY: encode_revision(revision)}
