"""The embedded store: opens the environment and its threads, holds topics, logs and tables."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import lmdb
from twisted.internet.defer import Deferred

from storage.bridge import Reactor, ReactorCallQueue, SingleFlightCache, WorkerPool
from storage.files import CompiledDiskFiles, Files
from storage.lmdb import changes
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.frames import StoreState, compiled
from storage.lmdb.journal import (
    Journal,
    Unreadable,
    check_room_for_journal,
    make_journal_folder,
    read_entries,
)
from storage.lmdb.layout import U32, U64, LogRow, Row, TopicRow, decode_topic, key_of
from storage.lmdb.log import LmdbLog
from storage.lmdb.queries import LogCursor, log_row
from storage.lmdb.recovery import checkpoint_of, recover
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.table import LmdbTable
from storage.lmdb.write_burst import (
    Append,
    DurableLog,
    Operation,
    Outcome,
    Task,
    WriterState,
    lacking,
)
from storage.lmdb.write_queue import WriteQueue
from storage.lmdb.writer import LmdbWriter
from storage.log import (
    Entry,
    EntryDamaged,
    LogClosed,
    LogStatus,
    StorageFailed,
    Topic,
    UnknownTopic,
    VolumeUsage,
)
from storage.shards import partition_shard
from storage.tail import TailCache

T = TypeVar("T")
logger = logging.getLogger(__name__)

MAX_NAME_BYTES = 480
"""LMDB keys are at most 511 bytes. Kafka topic names have up to 249; tenant and namespace add to
that.
"""

CLOSED = "the store is closed"

MOST_AHEAD_BYTES = 16 << 20
"""Memory for the rows that logs have found in advance: those of 256 partitions in batches of 16
KiB, or of 64 in small batches.
"""

MOST_REPORTED = 1000
"""Maximum number of damaged entries that are logged, each once."""


class LmdbStore(StoreState):
    """A `Store` in `directory`, for the thread of `reactor`. Held by one process at a time.

    All its shards are open while it is, with leader epoch 0 unless `open_shard` sets another.
    Products use one shard; more of them are for tests.
    """

    retains_by_itself = False
    is_shared = False
    first_epoch = 0
    may_be_lost = False
    """The kernel's lock on the directory is held until the process ends."""

    def __init__(
        self,
        directory: Path,
        *,
        reactor: Reactor,
        settings: LmdbSettings | None = None,
        shard_count: int = 1,
        files: Files | None = None,
    ) -> None:
        """`files` are the journal's."""
        self.shard_count = shard_count
        self.directory = Path(directory)
        self.settings = settings or LmdbSettings()
        self.tail = TailCache(self.settings.tail_bytes)
        self.uuid = b""
        self._reactor = reactor
        self._files = files or CompiledDiskFiles()
        self._reactor_calls = ReactorCallQueue(reactor)
        self._environment: LmdbEnvironment | None = None
        self._readers: WorkerPool | None = None
        self._writer: LmdbWriter | None = None
        self._queue: WriteQueue | None = None
        """Of the writer."""
        self._journal: Journal | None = None
        self._state = WriterState()
        self._reported: set[tuple[int, int]] = set()
        self._is_open = False
        self._queued_bytes = self._queued_operations = 0
        self._leader_epochs: dict[int, int] = {}
        self._topics: dict[str, TopicRow] = {}
        self._topics_by_name: dict[str, Topic] = {}
        self._logs: SingleFlightCache[tuple[str, int], LmdbLog] = SingleFlightCache()
        self._tables: SingleFlightCache[str, LmdbTable] = SingleFlightCache()
        self._changed_logs: dict[LogStatus, None] = {}
        # The sizes of the rows that logs have found in advance, the oldest first.
        self._ahead: dict[LmdbLog, int] = {}
        self._ahead_bytes = 0

    async def open(self) -> None:
        """`Store.open`; creates the directory if missing."""
        readers = WorkerPool(
            self._reactor_calls, self.settings.readers, self.settings.reads_waiting
        )
        state = WriterState()

        def prepare() -> tuple[LmdbEnvironment, Journal, list[TopicRow]]:
            folder = self.directory / "journal"

            def prepare_journal(older_format: int) -> None:
                if older_format:
                    check_room_for_journal(folder, self._files, self.settings)
                make_journal_folder(folder, self._files)

            environment = LmdbEnvironment(
                self.directory, self.settings.map_bytes, self.settings.held_bytes, prepare_journal
            )
            try:
                mark = environment.read(
                    lambda txn: txn.get(b"journal_mark", db=environment.databases["meta"])
                )
                journal = Journal(folder, self._files, self.settings, mark)
                recover(environment, journal, state)
                journal.held_bytes = environment.hold_room()
                rows = environment.read(lambda txn: self._load(txn, environment, state))
                return environment, journal, rows
            except (OSError, lmdb.Error) as error:
                environment.close()
                raise StorageFailed(f"cannot open {self.directory}: {error}") from error
            except BaseException:
                environment.close()
                raise

        try:
            environment, journal, rows = await readers.run(prepare)
        except BaseException:
            readers.stop(lambda: None)
            raise
        self._logs, self._tables = SingleFlightCache(), SingleFlightCache()
        self._topics.clear()
        self._topics_by_name.clear()
        for row in rows:
            self._add_topic(row)
        self._environment, self._readers = environment, readers
        self._journal, self._state = journal, state
        self._writer = LmdbWriter(
            environment,
            journal,
            self.settings,
            self._reactor,
            self._reactor_calls,
            state,
            self._deliver,
        )
        self._queue = self._writer.queue
        self._is_open = True

    def _load(self, txn: Any, environment: LmdbEnvironment, state: WriterState) -> list[TopicRow]:
        databases = environment.databases
        self.uuid = txn.get(b"uuid", db=databases["meta"])
        with txn.cursor(db=databases["freeing"]) as cursor:
            state.freeing = {
                U64.unpack(key)[0]: U64.unpack(value)[0] for key, value in cursor.iternext()
            }
        with txn.cursor(db=databases["topics"]) as cursor:
            return [decode_topic(key.decode(), value) for key, value in cursor.iternext()]

    async def close(self) -> None:
        """`Store.close`."""
        if not self._is_open:
            return
        assert self._environment
        assert self._readers
        assert self._writer
        self._is_open = False
        await self._writer.stop()
        for log in self._logs.created.values():
            log.close()
        assert self._journal
        await self._readers.stop(self._environment.close)
        self._journal.close()

    async def confirm_held(self) -> None:
        return

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Never called: the directory lock cannot be taken over."""

    async def open_shard(self, shard: int, leader_epoch: int) -> None:
        """Set the leader epoch: no other process can have the shard."""
        self._leader_epochs[shard] = leader_epoch

    async def close_shard(self, shard: int) -> None:
        """Close the open logs of the shard. New ones can be opened, since nothing else uses it."""
        if not self._is_open:
            return
        await self.write(Task(lambda burst: None))
        for (topic, partition), log in list(self._logs.created.items()):
            if self._shard_of(topic, partition) == shard:
                del self._logs.created[topic, partition]
                log.close()

    def _shard_of(self, topic: str, partition: int) -> int:
        return partition_shard(self._topics[topic].topic.topic_id, partition, self.shard_count)

    def when_shard_lost(self, call: Callable[[int, str], None]) -> None:
        """Never called, like `when_lost`."""

    async def shard_table(self, shard: int, name: str) -> LmdbTable:
        return await self.table(f"{name}.{shard}" if shard else name)

    def watch_topics(self, on_change: Callable[[], None]) -> None:
        """Never called: no other process writes to this store."""

    def watch_deletions(self, on_deletion: Callable[[Topic], None]) -> None:
        """Never called, like `watch_topics`."""

    def is_deleted(self, topic_id: bytes) -> bool:
        return False

    def canonical(self, name: str) -> str:
        if "/" in name:
            raise ValueError("a topic name of this store has no slash")
        return name

    def note_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Ignored: the gateway is the only interface to this store."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        return MappingProxyType(self._topics_by_name)

    async def create_topic(self, topic: Topic) -> None:
        if (
            len(topic.topic_id) != 16
            or topic.partitions < 1
            or not 1 <= len(topic.name.encode()) <= MAX_NAME_BYTES
        ):
            raise ValueError(
                f"topic {topic.name}: the id must have 16 bytes, the name 1 to {MAX_NAME_BYTES} "
                "bytes, and there must be at least one partition"
            )
        await self.write(Task(lambda burst: changes.create_topic(burst, topic), self._add_topic))

    async def alter_topic(self, topic: Topic) -> None:
        await self.write(Task(lambda burst: changes.alter_topic(burst, topic), self._add_topic))

    def _add_topic(self, row: TopicRow) -> None:
        self._topics[row.topic.name] = row
        self._topics_by_name[row.topic.name] = row.topic

    async def delete_topic(self, name: str) -> None:
        def forget(_: None) -> None:
            row = self._topics.pop(name)
            del self._topics_by_name[name]
            for partition in range(row.topic.partitions):
                log = self._logs.created.pop((name, partition), None)
                if log:
                    log.close()

        await self.write(Task(lambda burst: changes.delete_topic(burst, name), forget))

    async def log(self, topic: str, partition: int) -> LmdbLog:
        self._check_open()

        def make() -> Deferred[LmdbLog]:
            made: list[LmdbLog] = []

            def keep(durable: DurableLog) -> None:
                epoch = self._leader_epochs.get(self._shard_of(topic, partition), 0)
                made.append(LmdbLog(self, durable, epoch, f"{topic}-{partition}"))
                self._logs.created[topic, partition] = made[0]

            return self.write(
                Task(lambda burst: changes.open_log(burst, topic, partition), keep)
            ).addCallback(lambda _: made[0])

        row = self._topics.get(topic)
        if row is None or not 0 <= partition < row.topic.partitions:
            raise UnknownTopic(f"no partition {partition} of a topic {topic}")
        return await self._logs.get((topic, partition), make)

    async def table(self, name: str) -> LmdbTable:
        self._check_open()
        if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
            raise ValueError(f"a table's name has 1 to {MAX_NAME_BYTES} bytes")

        def make() -> Deferred[LmdbTable]:
            def keep(table_id: int) -> None:
                self._tables.created[name] = LmdbTable(self, table_id)

            return self.write(
                Task(lambda burst: changes.open_table(burst, name), keep)
            ).addCallback(lambda _: self._tables.created[name])

        return await self._tables.get(name, make)

    async def permissions(self) -> None:
        """`Store.permissions`: a database has no users."""

    def usage(self) -> Iterable[VolumeUsage]:
        try:
            volume = os.statvfs(self.directory)
        except OSError:
            return [VolumeUsage(str(self.directory), -1, -1)]
        return [
            VolumeUsage(
                str(self.directory),
                volume.f_blocks * volume.f_frsize,
                volume.f_bavail * volume.f_frsize,
            )
        ]

    def write(self, task: Task[T]) -> Deferred[T]:
        """Queue `task`; the Deferred gets its result once it is on disk."""
        try:
            self.submit(task)
        except (LogClosed, StorageFailed) as error:
            task.done.errback(error)
        return task.done

    def submit(self, operation: Operation) -> None:
        """Queue an operation for the writer.

        Raises LogClosed, and StorageFailed if the queue is full.
        """
        if self._queue is None or not self._is_open:
            raise LogClosed(CLOSED)
        settings = self.settings
        queued_bytes = self._queued_bytes + operation.size
        if self._queued_operations and (
            queued_bytes > settings.queue_bytes
            or self._queued_operations >= settings.queue_operations
        ):
            raise StorageFailed(
                f"{self._queued_bytes} bytes in {self._queued_operations} writes already wait for "
                f"the disk, of at most {settings.queue_bytes} bytes in "
                f"{settings.queue_operations} writes: retry later"
            )
        self._queued_bytes = queued_bytes
        self._queued_operations += 1
        self._queue.add(operation)

    def _deliver(self, outcomes: list[Outcome]) -> None:
        """Apply a burst's outcomes, then notify watchers once per log, then complete the calls.

        Watchers and callers thus see the whole burst. A failed append is applied just before its
        completion: its log accepts nothing new until the last of the appends queued behind it has
        failed too.
        """
        if compiled and compiled.complete_outcomes(outcomes):
            return
        for operation, value, error in outcomes:
            self._queued_bytes -= operation.size
            self._queued_operations -= 1
            if error is not None:
                continue
            if isinstance(operation, Append):
                operation.log.append_completed(operation, None)
            elif operation.on_complete:
                operation.on_complete(value)
        self.notify_changed()
        for operation, value, error in outcomes:
            if isinstance(operation, Append):
                if error is None:
                    operation.callback(None)
                else:
                    operation.log.append_completed(operation, error)
                    operation.errback(error)
            elif error is None:
                operation.done.callback(value)
            else:
                operation.done.errback(error)

    def mark_changed(self, log: LogStatus) -> None:
        """Notify the watchers of `log` after the current burst."""
        self._changed_logs[log] = None

    def notify_changed(self) -> None:
        """Notify the watchers of all logs that the current burst has changed."""
        moved, self._changed_logs = self._changed_logs, {}
        for log in moved:
            if log.watchers:
                log.notify()

    def read_table(self, table_id: int) -> Deferred[list[tuple[bytes, bytes]]]:
        """The rows of a table in key order, also those that are not committed yet."""
        prefix = U32.pack(table_id)
        # Before the transaction begins: see `PendingIndex`.
        generations = self._state.pending.generations()

        def read(txn: Any, databases: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
            found: dict[bytes, bytes] = {}
            with txn.cursor(db=databases["tables"]) as cursor:
                if cursor.set_range(prefix):
                    for key, value in cursor.iternext():
                        if not key.startswith(prefix):
                            break
                        found[key] = value
            for pending in lacking(generations, checkpoint_of(txn, databases)):
                # A copy, which takes one step: another thread may add rows.
                for key, changed in dict(pending.table_rows).items():
                    if key.startswith(prefix):
                        if changed is None:
                            found.pop(key, None)
                        else:
                            found[key] = changed
            return [(key[len(prefix) :], value) for key, value in sorted(found.items())]

        return self._read(read)

    def query_log(self, log_id: int, call: Callable[[Any, Callable[[], LogRow]], T]) -> Deferred[T]:
        """Run `call(cursor, row)` in a worker thread.

        The cursor is on the log's entries, also on those whose rows are not committed yet. `row()`
        returns the row of the log.
        """
        return self._read(self._log_query(log_id, call))

    def _log_query(
        self, log_id: int, call: Callable[[Any, Callable[[], LogRow]], T]
    ) -> Callable[[Any, Mapping[str, Any]], T]:
        # Before the transaction begins: see `PendingIndex`.
        generations = self._state.pending.generations()

        def read(txn: Any, databases: Mapping[str, Any]) -> T:
            with txn.cursor(db=databases["entries"]) as cursor:
                row = partial(log_row, txn, databases["logs"], log_id)
                if not any(log_id in one.rows for one in generations):
                    return call(cursor, row)
                pending = lacking(generations, checkpoint_of(txn, databases))
                parts = [rows for one in pending if (rows := one.rows.get(log_id))]
                if not parts:
                    return call(cursor, row)
                rows = parts[0] if len(parts) == 1 else parts[0] + parts[1]
                return call(LogCursor(cursor, log_id, rows), row)

        return read

    def read_cached(self, segment: int, rows: bytes, first: int, stop: int) -> bytes | None:
        """See `frames.read_run`."""
        return None if self._journal is None else self._journal.read_run(segment, rows, first, stop)

    def has_segment(self, segment: int) -> bool:
        """Whether the journal has this segment, as far as is known."""
        return self._journal is None or segment in self._journal.numbers

    def keep_ahead(self, log: LmdbLog, size: int) -> None:
        """Count the rows that `log` has found in advance; others' are freed beyond a limit."""
        self._ahead_bytes += size - self._ahead.pop(log, 0)
        if size:
            self._ahead[log] = size
        while self._ahead_bytes > MOST_AHEAD_BYTES:
            oldest = next(iter(self._ahead))
            self._ahead_bytes -= self._ahead.pop(oldest)
            oldest.forget_ahead()

    async def read_entries(
        self, log_id: int, find: Callable[[Any], list[Row]], name: str
    ) -> list[Entry]:
        """The entries of the rows that `find(cursor)` returns, up to the first damaged one.

        `name` is that of the partition. Raises EntryDamaged if the first one is damaged.
        """

        def find_rows(cursor: Any, _: Callable[[], LogRow]) -> list[Row]:
            return find(cursor)

        while True:
            self._check_open()
            journal, environment, readers = self._journal, self._environment, self._readers
            assert journal
            assert environment
            assert readers
            query = self._log_query(log_id, find_rows)
            try:
                return await readers.run(partial(_read_found, journal, environment, query))
            except Unreadable as failed:
                slot = failed.slot
                # It may have been deleted or moved meanwhile.
                if key_of(slot) not in await self.query_log(log_id, find_rows):
                    continue
                if failed.before:
                    return failed.before
                reason = (
                    f"offsets {slot.base_offset} to {slot.last_offset} of {name} are damaged: "
                    f"{failed.reason} (segment {slot.segment} of the journal in {self.directory}, "
                    f"position {slot.at})"
                )
                self._report_damage((log_id, slot.base_offset), reason)
                raise EntryDamaged(
                    reason,
                    slot.base_offset,
                    slot.last_offset,
                    slot.timestamp,
                    may_recover=failed.is_error,
                ) from failed

    def _report_damage(self, place: tuple[int, int], reason: str) -> None:
        """Log a damaged entry once. `place` is the id of its log, and its base offset."""
        if place in self._reported or len(self._reported) > MOST_REPORTED:
            return
        self._reported.add(place)
        if len(self._reported) > MOST_REPORTED:
            logger.error("more than %d entries are damaged: no more are logged", MOST_REPORTED)
        else:
            logger.error("%s", reason)

    def _read(self, call: Callable[[Any, Mapping[str, Any]], T]) -> Deferred[T]:
        environment = self._environment
        if not self._is_open or environment is None or self._readers is None:
            refused: Deferred[T] = Deferred()
            refused.errback(LogClosed(CLOSED))
            return refused
        return self._readers.run(
            lambda: environment.read(lambda txn: call(txn, environment.databases))
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise LogClosed(CLOSED)


def _read_found(
    journal: Journal,
    environment: LmdbEnvironment,
    query: Callable[[Any, Mapping[str, Any]], list[Row]],
) -> list[Entry]:
    """The entries of the rows that `query` finds, in one call of a worker thread."""
    rows = environment.read(lambda txn: query(txn, environment.databases))
    return read_entries(journal, rows)
