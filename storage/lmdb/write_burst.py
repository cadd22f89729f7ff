"""One burst of writes, and the state that the writer keeps between bursts.

`Burst` collects the new state and `publish` makes it current when everything is durable. Until then
a burst can be dropped and retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

from storage.bridge import Completion
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.frames import FRAME, PendingState, compiled, encode_table_rows
from storage.lmdb.journal import Journal
from storage.lmdb.layout import (
    CHECKPOINT,
    SEGMENT_USE,
    SLOT,
    U64,
    LogRow,
    Place,
    Row,
    SegmentUse,
    Slot,
)
from storage.lmdb.settings import LmdbSettings
from storage.log import Entry, LogClosed, LogStatus, StorageError
from storage.tail import TailCache

T = TypeVar("T")

SIZE_IN_ROW = SLOT.size - 16
ROW_SIZE_AND_SEGMENT = Struct(">IQ").unpack_from
"""Two fields of a row, which are read for each of them; it has one more behind these."""

CLEANED_PART = 1 / 2
"""A segment is cleaned if less than this part of what was written to it is left."""


@dataclass(slots=True)
class DurableLog:
    """State of a log after the last commit: its end, and the running sums of the next entry's key.

    `size` counts readable payload bytes.
    """

    log_id: int
    start_offset: int
    end_offset: int
    running_timestamp: int
    position: int
    size: int

    def copy(self) -> DurableLog:
        return DurableLog(
            self.log_id,
            self.start_offset,
            self.end_offset,
            self.running_timestamp,
            self.position,
            self.size,
        )


class AppendingLog(Protocol):
    """The log of an append in the reactor thread."""

    def append_completed(self, append: Append, error: Exception | None, /) -> None: ...


class Append(Completion[None]):
    """Contiguous entries for one log, and the completion that its caller waits for.

    `log.append_completed` is called in the reactor thread before it, with the error if the append
    failed.
    """

    __slots__ = ("entries", "log", "log_id", "size")

    def __init__(
        self,
        log_id: int,
        entries: Sequence[Entry],
        size: int,
        log: AppendingLog,
    ) -> None:
        super().__init__()
        self.log_id = log_id
        self.entries = entries
        self.size = size
        self.log = log


if not TYPE_CHECKING and compiled:
    # The same two in C.
    Append, DurableLog = compiled.Append, compiled.DurableLog


class Task(Generic[T]):
    """Any other write.

    `run` is called in the writer thread (again if the burst is retried), then `on_complete` in the
    reactor thread if it succeeded. To refuse, `run` raises a StorageError or ValueError before it
    writes anything. `writes_entries` is set if it writes to the journal.
    """

    __slots__ = ("done", "on_complete", "run", "size", "writes_entries")

    def __init__(
        self,
        run: Callable[[Burst], T],
        on_complete: Callable[[T], None] | None = None,
        size: int = 0,
        *,
        writes_entries: bool = False,
    ) -> None:
        self.run = run
        self.on_complete = on_complete
        self.size = size
        self.writes_entries = writes_entries
        self.done: Deferred[T] = Deferred()


class TablePut(Task[None]):
    """A write of table rows, by their keys in LMDB; None deletes one.

    It needs the journal, or LMDB if the burst has a transaction anyway, too many table rows would
    wait, or the journal refuses it.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Mapping[bytes, bytes | None], size: int) -> None:
        super().__init__(lambda burst: burst.table_rows.update(rows), size=size)
        self.rows = rows


Operation = Append | Task[Any]
Outcome = tuple[Operation, Any, Exception | None]


class StoreAccess(Protocol):
    """The store as its logs and tables use it; implemented by `LmdbStore`."""

    tail: TailCache

    def write(self, task: Task[T], /) -> Deferred[T]: ...
    def submit(self, operation: Operation, /) -> None: ...
    def mark_changed(self, log: LogStatus, /) -> None: ...
    def read_table(self, table_id: int, /) -> Deferred[list[tuple[bytes, bytes]]]: ...
    def query_log(
        self, log_id: int, call: Callable[[Any, Callable[[], LogRow]], T], /
    ) -> Deferred[T]: ...
    async def read_entries(
        self, log_id: int, find: Callable[[Any], list[Row]], name: str, /
    ) -> list[Entry]: ...
    def read_cached(self, segment: int, rows: bytes, first: int, stop: int, /) -> bytes | None: ...
    def has_segment(self, segment: int, /) -> bool: ...
    def keep_ahead(self, log: Any, size: int, /) -> None: ...


class PendingIndex(PendingState):
    """Rows that are not committed yet: of `entries`, per log in the order of offsets, and of
    `tables`, where None deletes a row.

    They continue what LMDB has up to `since`. While they are being committed, later rows are in a
    new index, whose `older` is this one. This one does not change any more.

    The thread that has the turn adds rows, any thread reads them: a reader takes the `generations`
    before it begins its transaction, and then those that the transaction lacks (`lacking`).
    """

    def __init__(self, since: Place, older: PendingIndex | None = None) -> None:
        self.since = since
        self.older = older
        self.rows: dict[int, list[bytes]] = {}
        self.table_rows: dict[bytes, bytes | None] = {}
        self.count = 0
        """Rows of both kinds, without older ones."""
        self.table_bytes: dict[int, int] = {}
        """Bytes of the frames with table rows, by segment."""

    def generations(self) -> tuple[PendingIndex, ...]:
        """The older rows, if there are any, and these."""
        older = self.older
        return (self,) if older is None else (older, self)

    def add(self, added: Iterable[tuple[int, Sequence[bytes]]]) -> None:
        """Add rows of logs, by log id."""
        rows = self.rows
        for log_id, keys in added:
            known = rows.get(log_id)
            if known is None:
                known = rows[log_id] = []
            known += keys
            self.count += len(keys)

    def add_table_rows(
        self, rows: Mapping[bytes, bytes | None], segment: int, payload_bytes: int
    ) -> None:
        """Add the rows of a frame in `segment`, by their keys in LMDB."""
        known = len(self.table_rows)
        self.table_rows.update(rows)
        self.count += len(self.table_rows) - known
        written = self.table_bytes.get(segment, 0)
        self.table_bytes[segment] = written + FRAME.size + payload_bytes

    def has_room(
        self, rows: Mapping[bytes, bytes | None], payload_bytes: int, most: int, most_bytes: int
    ) -> bool:
        """Whether these limits of table rows, with older ones, allow a frame with `rows`."""
        known, size = self.table_rows, FRAME.size + payload_bytes
        count = sum(key not in known for key in rows)
        for one in self.generations():
            count += len(one.table_rows)
            size += sum(one.table_bytes.values())
        return count <= most and size <= most_bytes

    def are_many(self, settings: LmdbSettings) -> bool:
        """Whether to commit the rows now. As many table rows can be added meanwhile."""
        return (
            self.count >= settings.index_entries
            or len(self.table_rows) * 2 >= settings.table_rows
            or sum(self.table_bytes.values()) * 2 >= settings.table_bytes
        )

    def merged(self) -> PendingIndex:
        """All rows in one index: the commit of the older ones has failed."""
        if self.older is None:
            return self
        merged = PendingIndex(self.older.since)
        for one in self.generations():
            merged.add(one.rows.items())
            merged.table_rows.update(one.table_rows)
            for segment, size in one.table_bytes.items():
                merged.table_bytes[segment] = merged.table_bytes.get(segment, 0) + size
        merged.count += len(merged.table_rows)
        return merged


def lacking(generations: Sequence[PendingIndex], checkpoint: Place) -> Sequence[PendingIndex]:
    """The generations that a transaction with this checkpoint lacks.

    It has all of them if they were taken before it began and the checkpoint is later than theirs.
    """
    for number, one in enumerate(generations):
        if one.since == checkpoint:
            return generations[number:]
    return ()


@dataclass(slots=True)
class WriterState:
    """What the writer keeps between bursts.

    Every open log; which entries are to be freed (log id -> all below this offset); the rows that
    are not committed; the use of each segment as committed.
    """

    logs: dict[int, DurableLog] = field(default_factory=dict)
    freeing: dict[int, int] = field(default_factory=dict)
    next_table_write: int = 0
    """The number of the next write of table rows."""

    pending: PendingIndex = field(default_factory=lambda: PendingIndex(Place()))
    segments: dict[int, SegmentUse] = field(default_factory=dict)
    unused: set[int] = field(default_factory=set)
    """Segments without entries, whose files can be deleted."""

    sparse: set[int] = field(default_factory=set)
    """Segments with few entries."""

    damaged: set[int] = field(default_factory=set)
    """Segments that are not cleaned, and not deleted unless all of their entries were."""

    forgotten: list[int] = field(default_factory=list)
    """Segments whose files are gone, but not their rows."""

    failing: set[str] = field(default_factory=set)
    """What fails at present and was logged."""

    is_unresolved: bool = False
    """Whether it stays unknown if the last commit was written, or rows of stored entries are lost.

    Then nothing is written until a restart.
    """

    def review(self, segments: Iterable[int]) -> None:
        """Update `unused` and `sparse` for segments whose use has changed.

        Entries may still be added to the segment of the checkpoint, and to later ones: these are
        reviewed when the checkpoint has passed them.
        """
        for segment in segments:
            if segment >= self.pending.since.segment:
                continue
            use = self.segments.get(segment, SegmentUse())
            self.sparse.discard(segment)
            if not use.live_frames:
                if use.written_bytes or segment not in self.damaged:
                    self.unused.add(segment)
            elif use.live_bytes < use.written_bytes * CLEANED_PART and segment not in self.damaged:
                self.sparse.add(segment)

    def forget(self, segment: int) -> None:
        """The file of an unused segment is gone."""
        self.unused.discard(segment)
        self.damaged.discard(segment)
        if self.segments.pop(segment, None):
            self.forgotten.append(segment)


class SegmentChanges:
    """Changes of the use of segments within a transaction."""

    def __init__(self, uses: Mapping[int, SegmentUse]) -> None:
        self._uses = uses
        self.changed: dict[int, SegmentUse] = {}

    def add(self, slot: Slot) -> None:
        """Count an entry that was written to the journal."""
        self._add(slot.segment, FRAME.size + slot.size, 1)

    def add_rows(self, rows: Iterable[bytes]) -> None:
        """As `add`, for the entries of these rows."""
        segment = added = frames = 0
        for row in rows:
            size, its_segment = ROW_SIZE_AND_SEGMENT(row, SIZE_IN_ROW)
            if its_segment != segment:
                self._add(segment, added, frames)
                segment, added, frames = its_segment, 0, 0
            added += FRAME.size + size
            frames += 1
        self._add(segment, added, frames)

    def _add(self, segment: int, added: int, frames: int) -> None:
        if frames:
            written, live, known = self._use(segment)
            self.changed[segment] = SegmentUse(written + added, live + added, known + frames)

    def add_unneeded(self, segment: int, size: int) -> None:
        """Count frames of `size` bytes that are not needed any more."""
        written, live, frames = self._use(segment)
        self.changed[segment] = SegmentUse(written + size, live, frames)

    def remove(self, slot: Slot) -> None:
        """Count a deleted entry; no effect for one that is not in the journal."""
        if slot.segment:
            written, live, frames = self._use(slot.segment)
            live -= FRAME.size + slot.size
            self.changed[slot.segment] = SegmentUse(written, live, frames - 1)

    def put(self, txn: Any, database: Any) -> None:
        """Write what changed."""
        for segment, use in self.changed.items():
            txn.put(U64.pack(segment), SEGMENT_USE.pack(*use), db=database)

    def _use(self, segment: int) -> SegmentUse:
        return self.changed.get(segment) or self._uses.get(segment) or SegmentUse()


class Burst:
    """The writes of one burst: frames for the journal and, if needed, an LMDB transaction.

    The transaction begins with all rows that are pending, so that tasks find every entry. A burst
    of appends and writes of table rows alone has none; its rows become pending.
    """

    def __init__(
        self, environment: LmdbEnvironment, journal: Journal, state: WriterState, size: int
    ) -> None:
        """`size` is about the number of bytes that are written to the journal."""
        self.table_rows: dict[bytes, bytes | None] = {}
        """Rows of tables to set or delete, by their keys in LMDB: all or none.

        They are in one frame, or in the transaction if there is one. Both count as a write of table
        rows. So if the journal refuses a frame, and the rows are committed instead, a restart that
        finds the frame nevertheless ignores it by its number.
        """
        self.databases = environment.databases
        self.staging = journal.stage(size)
        self.segments = SegmentChanges(state.segments)
        self._environment = environment
        self._state = state
        self._pending = state.pending
        self._txn: Any = None
        self._logs: dict[int, DurableLog] = {}
        self._closed: set[int] = set()
        self._freeing: dict[int, int] = {}
        self._rows: list[tuple[int, list[bytes]]] = []
        self._next_table_write = state.next_table_write
        self._table_payload_bytes = 0

    @property
    def has_txn(self) -> bool:
        return self._txn is not None

    @property
    def txn(self) -> Any:
        """The transaction, begun if necessary, with all rows. Raises lmdb.Error."""
        if self._txn is None:
            pending = self._pending
            if pending.older is not None:
                # The checkpoint of this transaction would be behind them.
                raise RuntimeError("the rows that were set aside before are not committed")
            self._txn = self._environment.begin()
            self._put_rows(key for keys in pending.rows.values() for key in keys)
            self._put_table_rows(pending.table_rows)
            for segment, size in pending.table_bytes.items():
                self.segments.add_unneeded(segment, size)
        if self._rows:
            rows, self._rows = self._rows, []
            self._put_rows(key for _, keys in rows for key in keys)
        if self.table_rows:
            self._next_table_write = self._state.next_table_write + 1
            table_rows, self.table_rows = self.table_rows, {}
            self._put_table_rows(table_rows)
        return self._txn

    def view(self, call: Callable[[Any], T]) -> T:
        """Run `call` with a transaction that need not have the rows of entries.

        Opening must succeed while nothing can be committed. Raises StorageFailed.
        """
        return call(self.txn) if self.has_txn else self._environment.read(call)

    def pending_rows(self, log_id: int) -> Sequence[bytes]:
        """The rows of a log that is not open, as far as the transaction of `view` lacks them."""
        return () if self.has_txn else self._state.pending.rows.get(log_id, ())

    def open_log(self, log_id: int) -> DurableLog | None:
        """The log, if it was opened before."""
        return None if log_id in self._closed or not self._knows(log_id) else self.log(log_id)

    def _knows(self, log_id: int) -> bool:
        return log_id in self._logs or log_id in self._state.logs

    def log(self, log_id: int) -> DurableLog:
        """The log as changed by this burst so far. Raises LogClosed.

        Changes to the returned object take effect when the burst is committed.
        """
        staged = self._logs.get(log_id)
        if staged is None:
            known = self._state.logs.get(log_id)
            if known is None or log_id in self._closed:
                raise LogClosed("the log is closed: its topic was deleted")
            staged = self._logs[log_id] = known.copy()
        return staged

    def add_log(self, log: DurableLog) -> None:
        """Register a log that was opened."""
        self._logs[log.log_id] = log

    def close_log(self, log_id: int) -> None:
        """Refuse further appends: the topic was deleted."""
        self._logs.pop(log_id, None)
        self._closed.add(log_id)

    def free(self, log_id: int, below: int) -> None:
        """Mark entries wholly below this offset to be freed."""
        self.txn.put(U64.pack(log_id), U64.pack(below), db=self.databases["freeing"])
        self._freeing[log_id] = below

    def place(self, log_id: int, entry: Entry, running: int, position: int) -> Slot:
        """Write an entry to the journal whose row the caller puts; return its slot."""
        segment, at = self.staging.place(log_id, entry)
        slot = Slot(
            log_id,
            entry.base_offset,
            entry.last_offset,
            entry.max_timestamp,
            running,
            position,
            len(entry.payload),
            segment,
            at,
        )
        self.segments.add(slot)
        return slot

    def run(
        self, operations: Sequence[Operation], most_table_rows: int, most_table_bytes: int
    ) -> list[Outcome]:
        """Run all operations in order. A refused one does not affect the others; an lmdb.Error
        fails all.

        If more table rows would be pending than these limits allow, the burst has a transaction.
        """
        outcomes: list[Outcome] = []
        run: Callable[..., Iterable[Outcome]]
        some: Any
        for kind, some in groupby(operations, type):
            run = self._append if kind is Append else self._run_tasks
            outcomes += run(some)
        if self.table_rows and not self.has_txn:
            payload = encode_table_rows(self.table_rows)
            if self._pending.has_room(
                self.table_rows, len(payload), most_table_rows, most_table_bytes
            ):
                self.staging.put_table_rows(self._next_table_write, payload)
                self._next_table_write += 1
                self._table_payload_bytes = len(payload)
                return outcomes
        if self.has_txn or self.table_rows:
            # The rows of the last operations.
            _ = self.txn
        return outcomes

    def _append(self, appends: Iterable[Append]) -> list[Outcome]:
        return self.staging.append(self._logs, self.log, appends, self._rows)

    def _run_tasks(self, tasks: Iterable[Task[Any]]) -> Iterator[Outcome]:
        for task in tasks:
            value, refusal = None, None
            try:
                value = task.run(self)
            except (StorageError, ValueError) as error:
                # Its traceback would refer to this frame, and so to the outcomes.
                refusal = error.with_traceback(None)
            yield task, value, refusal

    def commit(self) -> None:
        """Commit the transaction, if there is one, with the checkpoint. Raises lmdb.Error."""
        if self._txn is not None:
            if self.segments.changed:
                for segment in self._state.forgotten:
                    self._txn.delete(U64.pack(segment), db=self.databases["segments"])
                self.segments.put(self._txn, self.databases["segments"])
            if self._moves_checkpoint:
                checkpoint = CHECKPOINT.pack(*self.staging.end)
                self._txn.put(b"journal", checkpoint, db=self.databases["meta"])
            number = U64.pack(self._next_table_write)
            self._txn.put(b"next_table_write", number, db=self.databases["meta"])
            self._txn.commit()

    @property
    def _moves_checkpoint(self) -> bool:
        return self.staging.end != self._pending.since

    def abort(self) -> None:
        if self._txn is not None:
            self._txn.abort()

    def publish(self) -> None:
        """Make the collected state current, after everything is durable."""
        state = self._state
        state.logs.update(self._logs)
        state.freeing.update(self._freeing)
        state.next_table_write = self._next_table_write
        for log_id in self._closed:
            state.logs.pop(log_id, None)
        if self._txn is not None:
            state.pending = PendingIndex(self.staging.end)
            self._publish_segments()
        else:
            state.pending.add(self._rows)
            if self.table_rows:
                state.pending.add_table_rows(
                    self.table_rows, self.staging.segment, self._table_payload_bytes
                )

    def set_aside(self) -> None:
        """Leave the rows that are pending to this burst, which does nothing but commit them.

        Then only `txn`, `commit`, `abort` and `publish_commit` may be called, the first three
        without the turn.
        """
        if self._pending.older is not None:
            raise RuntimeError("the rows that were set aside before are not committed")
        self._state.pending = PendingIndex(self.staging.end, self._pending)

    def publish_commit(self) -> None:
        """The rows that were set aside are committed."""
        self._state.pending.older = None
        self._publish_segments()

    def _publish_segments(self) -> None:
        """Make their use current, after the checkpoint has moved to that of `pending`."""
        state = self._state
        if self.segments.changed:
            state.segments.update(self.segments.changed)
            state.forgotten.clear()
        since = max(self._pending.since.segment, 1)
        state.review({*self.segments.changed, *range(since, self.staging.end.segment)})

    def _put_rows(self, keys: Iterable[bytes]) -> None:
        """Put rows in key order, the cheapest order for the B+ tree."""
        rows = [(key, b"") for key in sorted(keys)]
        if rows:
            with self._txn.cursor(db=self.databases["entries"]) as cursor:
                cursor.putmulti(rows)
            self.segments.add_rows(key for key, _ in rows)

    def _put_table_rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        tables = self.databases["tables"]
        for key, value in sorted(rows.items()):
            if value is None:
                self._txn.delete(key, db=tables)
            else:
                self._txn.put(key, value, db=tables)
