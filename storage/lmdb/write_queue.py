"""The reactor side of the writer: groups queued writes into bursts (group commit).

One burst is written at a time. A burst costs a sync and two thread switches, as much as a dozen
appends. A short wait makes bursts larger, since a client whose write has just completed often has
the next one ready.

A burst is written by the writer thread, or, in the common case, by the flusher: a thread without
Python code. It needs no GIL, and the interpreter's code and data are still in the caches of the
reactor's core. The compiled code for that is in `_appends.pxi` (`FlusherBursts`). Without it the
writer thread writes all bursts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from storage.bridge import DelayedCall, Reactor
from storage.lmdb.frames import compiled
from storage.lmdb.journal import JournalFailed
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import Operation

SIZE: Callable[[Operation], int] = attrgetter("size")


class WriteQueue:
    """Passes bursts to `write`, one at a time; for the reactor thread only.

    After a burst, the next one waits up to `gathering_seconds` for as many operations as that burst
    had appends plus those queued while it was written. Producers that write without pause are thus
    written together; a single one that waits for each write is not delayed. The callers of other
    operations are not waited for: consumers commit from time to time.
    """

    def __init__(
        self, reactor: Reactor, settings: LmdbSettings, write: Callable[[list[Operation]], None]
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._write = write
        self._waiting: deque[Operation] = deque()
        self._is_writing = False
        self._expected_operations = 1
        self._deadline: DelayedCall | None = None
        self._on_finished: Callable[[], None] | None = None
        self.flusher_bursts: Any = None
        """For the compiled class."""

    def add(self, operation: Operation) -> None:
        """Queue an operation behind all earlier ones."""
        self._waiting.append(operation)
        if not self._is_writing and len(self._waiting) >= self._expected_operations:
            self._write_next()

    def burst_written(self, appends: int) -> None:
        """The current burst is written; its callers are not notified yet.

        The callers of its `appends` may append again, besides those already waiting.
        """
        self._expected_operations = len(self._waiting) + appends

    def outcomes_delivered(self) -> None:
        """All outcomes of the current burst have been delivered."""
        self._is_writing = False
        if self._on_finished is not None or len(self._waiting) >= self._expected_operations:
            self._write_next()
        elif self._expected_operations > 1:
            self._deadline = self._reactor.callLater(
                self._settings.gathering_seconds, self._stop_waiting
            )

    def finish(self, ended: Callable[[], None]) -> None:
        """Stop gathering; call `ended` once everything queued is written."""
        self._on_finished = ended
        self._expected_operations = 1
        if not self._is_writing:
            self._write_next()

    def _stop_waiting(self) -> None:
        self._deadline = None
        self._expected_operations = 1
        if self._waiting:
            self._write_next()

    def _write_next(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        waiting, settings = self._waiting, self._settings
        operations: list[Operation] = []
        size = 0
        while (
            waiting and len(operations) < settings.burst_operations and size < settings.burst_bytes
        ):
            operations.append(waiting.popleft())
            size += operations[-1].size
        if operations:
            self._is_writing = True
            self._write(operations)
        elif self._on_finished is not None:
            self._on_finished()


class Turn:
    """Which thread uses the journal, except `fill_ahead`, and the writer's state: one at a time.

    Rows that were set aside (`Burst.set_aside`) are committed without the turn.

    The writer thread uses it in a `with` statement and waits for it. The reactor thread takes it
    for a burst of the flusher, and only if the writer thread does not wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @property
    def is_taken(self) -> bool:
        """Whether a thread has the turn."""
        return self._lock.locked()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


if not TYPE_CHECKING and compiled:
    # The same two in C. A burst of the queue is written by `flusher_bursts` if possible, otherwise
    # by `write`. The reactor thread has the turn from `take_if_free` to `give_back`.
    WriteQueue, Turn = compiled.WriteQueue, compiled.Turn


@dataclass(frozen=True, slots=True)
class FailedBurst:
    """Operations that the flusher could not write."""

    operations: Sequence[Operation]
    error: JournalFailed
