"""One write transaction, and the log state that the writer keeps between transactions.

`Burst` collects the new state and `publish` makes it current after the commit. Until then a burst
can be dropped and retried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.layout import SLOT, U64, LogRow
from storage.log import Entry, LogClosed, LogStatus, StorageError, StorageFailed
from storage.tail import TailCache

T = TypeVar("T")


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


class Append:
    """Contiguous entries for one log.

    `on_complete` is called in the reactor thread, with the error if it failed.
    """

    __slots__ = ("done", "entries", "log_id", "on_complete", "size")

    def __init__(
        self,
        log_id: int,
        entries: Sequence[Entry],
        size: int,
        on_complete: Callable[[Append, Exception | None], None],
    ) -> None:
        self.log_id = log_id
        self.entries = entries
        self.size = size
        self.on_complete = on_complete
        self.done: Deferred[None] = Deferred()


class Task(Generic[T]):
    """Any other write.

    `run` is called in the writer thread (again if the burst is retried), then `on_complete` in the
    reactor thread if it succeeded. To refuse, `run` raises a StorageError or ValueError before it
    writes anything.
    """

    __slots__ = ("done", "on_complete", "run", "size")

    def __init__(
        self,
        run: Callable[[Burst], T],
        on_complete: Callable[[T], None] | None = None,
        size: int = 0,
    ) -> None:
        self.run = run
        self.on_complete = on_complete
        self.size = size
        self.done: Deferred[T] = Deferred()


Operation = Append | Task[Any]
Outcome = tuple[Operation, Any, Exception | None]


class StoreAccess(Protocol):
    """The store as its logs and tables use it; implemented by `LmdbStore`."""

    tail: TailCache

    def write(self, task: Task[T], /) -> Deferred[T]: ...
    def submit(self, operation: Operation, /) -> None: ...
    def mark_changed(self, log: LogStatus, /) -> None: ...
    def query(self, database: str, call: Callable[[Any], T], /) -> Deferred[T]: ...
    def query_log(self, log_id: int, call: Callable[[Any, LogRow], T], /) -> Deferred[T]: ...


@dataclass(slots=True)
class WriterState:
    """Every open log, and which entries are to be freed (log id -> all below this offset)."""

    logs: dict[int, DurableLog] = field(default_factory=dict)
    freeing: dict[int, int] = field(default_factory=dict)


class Burst:
    """One write transaction. Tasks use `txn` and `databases`."""

    def __init__(self, environment: LmdbEnvironment, txn: Any, state: WriterState) -> None:
        self.txn = txn
        self.databases = environment.databases
        self._state = state
        self._logs: dict[int, DurableLog] = {}
        self._closed: set[int] = set()
        self._freeing: dict[int, int] = {}
        self._puts: list[tuple[bytes, Any]] = []

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

    def run(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Run all operations in order. A refused one does not affect the others; an lmdb.Error
        fails all.
        """
        outcomes: list[Outcome] = []
        for operation in operations:
            value, refusal = None, None
            try:
                if isinstance(operation, Append):
                    self._append(operation)
                else:
                    self._put_all()
                    value = operation.run(self)
            except (StorageError, ValueError) as error:
                refusal = error
            outcomes.append((operation, value, refusal))
        self._put_all()
        return outcomes

    def publish(self) -> None:
        """Make the collected state current, after the commit."""
        state = self._state
        state.logs.update(self._logs)
        state.freeing.update(self._freeing)
        for log_id in self._closed:
            state.logs.pop(log_id, None)

    def _append(self, append: Append) -> None:
        log = self.log(append.log_id)
        entries = append.entries
        if entries[0].base_offset != log.end_offset:
            raise StorageFailed(
                "an append before this one failed, so its offsets would leave a gap"
            )
        log_id, running, position = log.log_id, log.running_timestamp, log.position
        for entry in entries:
            payload, timestamp = entry.payload, entry.max_timestamp
            size = len(payload)
            position += size
            if timestamp > running:
                running = timestamp
            key = SLOT.pack(
                log_id, entry.base_offset, entry.last_offset, timestamp, running, position, size
            )
            self._puts.append((key, payload))
        log.end_offset = entries[-1].last_offset + 1
        log.running_timestamp, log.position = running, position
        log.size += append.size

    def _put_all(self) -> None:
        """Put the collected entries in key order, the cheapest order for the B+ tree."""
        if self._puts:
            self._puts.sort(key=entry_key)
            with self.txn.cursor(db=self.databases["entries"]) as cursor:
                cursor.putmulti(self._puts)
            self._puts = []


def entry_key(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]
