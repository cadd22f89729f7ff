"""What is written in one transaction, and what the writer knows of each log while it writes.

A burst changes nothing of the writer's knowledge before its commit: `Burst` collects the new state, `publish` makes it the standing one. So a
burst may be dropped at any point and tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred

from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.layout import SLOT, U64
from storage.log import Entry, LogClosed, StorageError, StorageFailed

T = TypeVar("T")


@dataclass(slots=True)
class DurableLog:
    """A log as the last commit left it: its end, and the running sums that the next entry's key carries on. `size` counts what is readable."""

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
    """Entries for one log, checked by the log to be contiguous. `on_complete` is called in the reactor's thread, with the error if there was one."""

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
    """Anything else that is written: `run` in the writer's thread (again, where a burst is tried again), then `on_complete` in the reactor's.

    `run` raises a StorageError or ValueError to refuse, before it writes anything.
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


@dataclass(slots=True)
class WriterState:
    """What the writer's thread knows: every open log, and where entries are to be freed (log id -> below which offset)."""

    logs: dict[int, DurableLog] = field(default_factory=dict)
    freeing: dict[int, int] = field(default_factory=dict)


class Burst:
    """One write transaction. `txn` and `databases` are for tasks."""

    def __init__(self, environment: LmdbEnvironment, txn: Any, state: WriterState) -> None:
        self.txn = txn
        self.databases = environment.databases
        self._state = state
        self._logs: dict[int, DurableLog] = {}
        self._closed: set[int] = set()
        self._freeing: dict[int, int] = {}
        self._puts: list[tuple[bytes, Any]] = []

    def log(self, log_id: int) -> DurableLog:
        """The log as this burst leaves it so far; changes to it stand once the burst is committed. Raises LogClosed."""
        staged = self._logs.get(log_id)
        if staged is None:
            known = self._state.logs.get(log_id)
            if known is None or log_id in self._closed:
                raise LogClosed("the log is closed: its topic was deleted")
            staged = self._logs[log_id] = known.copy()
        return staged

    def add_log(self, log: DurableLog) -> None:
        """`log` was opened."""
        self._logs[log.log_id] = log

    def close_log(self, log_id: int) -> None:
        """Its topic was deleted: what is appended from here on is refused."""
        self._logs.pop(log_id, None)
        self._closed.add(log_id)

    def free(self, log_id: int, below: int) -> None:
        """Entries of the log that lie wholly below this offset are to be freed."""
        self.txn.put(U64.pack(log_id), U64.pack(below), db=self.databases["freeing"])
        self._freeing[log_id] = below

    def run(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do all in order. One that is refused leaves the others alone; an lmdb.Error is the whole burst's."""
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
        """The commit is on disk."""
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
        """Put the entries collected so far, in key order, which is kindest to the tree."""
        if self._puts:
            self._puts.sort(key=entry_key)
            with self.txn.cursor(db=self.databases["entries"]) as cursor:
                cursor.putmulti(self._puts)
            self._puts = []


def entry_key(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]
