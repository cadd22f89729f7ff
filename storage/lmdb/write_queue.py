"""The reactor side of the writer: groups queued writes into bursts (group commit).

One burst is written at a time. A burst costs a sync and two thread switches, as much as a dozen
appends. A short wait makes bursts larger, since a client whose write has just completed often has
the next one ready.

A burst is written by the writer thread, or, in the common case, by the flusher: a thread without
Python code. It needs no GIL, and the interpreter's code and data are still in the caches of the
reactor's core.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any

from twisted.python.failure import Failure

from storage.bridge import DelayedCall, Reactor, ReactorCallQueue, WatchingReactor
from storage.files import MOST_BUFFERS, Flusher
from storage.lmdb import frames
from storage.lmdb.journal import LARGEST_FILLED_WRITE, LARGEST_STEP, Journal, JournalFailed
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import Append, DurableLog, Operation, Outcome, WriterState
from storage.log import StorageFailed

log = logging.getLogger(__name__)

SIZE: Callable[[Operation], int] = attrgetter("size")

MOST_OPERATIONS = MOST_BUFFERS // 2
"""Of a burst of the flusher. An append has at least two buffers."""

stage_appends: Callable[..., Any] | None = (
    frames.compiled.stage_appends if frames.compiled else None
)
"""Without the compiled function the writer thread writes all bursts."""


class WriteQueue:
    """Passes bursts to `write`, one at a time; for the reactor thread only.

    After a burst, the next one waits up to `gathering_seconds` for as many operations as that burst
    had plus those queued while it was written. Clients that write without pause are thus written
    together; a single client that waits for each write is not delayed.
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

    def add(self, operation: Operation) -> None:
        """Queue an operation behind all earlier ones."""
        self._waiting.append(operation)
        if not self._is_writing and len(self._waiting) >= self._expected_operations:
            self._write_next()

    def burst_written(self, operations: int) -> None:
        """The current burst of `operations` operations is written; its callers are not notified
        yet.

        Each of them may write again, besides those already waiting.
        """
        self._expected_operations = operations + len(self._waiting)

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
        if (
            len(waiting) <= settings.burst_operations
            and sum(map(SIZE, waiting)) <= settings.burst_bytes
        ):
            # The common case.
            operations += waiting
            waiting.clear()
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

    The writer thread uses it in a `with` statement and waits for it. The reactor thread takes it
    for a burst of the flusher, and only if the writer thread does not wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_awaited = False

    def __enter__(self) -> None:
        self._is_awaited = True
        self._lock.acquire()
        self._is_awaited = False

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def take_if_free(self) -> bool:
        return not self._is_awaited and self._lock.acquire(blocking=False)

    def give_back(self) -> None:
        self._lock.release()


@dataclass(frozen=True, slots=True)
class FailedBurst:
    """Appends that the flusher could not write."""

    operations: Sequence[Operation]
    error: JournalFailed


class FlusherBursts:
    """Bursts of the flusher; for the reactor thread.

    Each is encoded at once. It has the turn until the flusher has ended. Then `deliver` is called
    with its outcomes, or `fail`.
    """

    def __init__(
        self,
        flusher: Flusher,
        reactor: WatchingReactor,
        reactor_calls: ReactorCallQueue,
        journal: Journal,
        settings: LmdbSettings,
        state: WriterState,
        turn: Turn,
        deliver: Callable[[list[Outcome]], None],
        fail: Callable[[FailedBurst], None],
        fill_ahead: Callable[[], None],
    ) -> None:
        """`fill_ahead` is called when the journal should be filled with zeros."""
        self._flusher = flusher
        self._reactor = reactor
        self._reactor_calls = reactor_calls
        self._journal = journal
        self._most_rows = min(settings.index_entries, settings.index_limit)
        self._state = state
        self._turn = turn
        self._deliver = deliver
        self._fail = fail
        self._fill_ahead = fill_ahead
        self._outcomes: list[Outcome] | None = None
        self._has_logged = False
        self._at = 0
        self._rows: dict[int, list[bytes]] = {}
        self._logs: dict[int, DurableLog] = {}
        self.fileno = flusher.fileno
        reactor.addReader(self)

    def close(self) -> None:
        """End the flusher, after its last burst."""
        self._reactor.removeReader(self)
        self._flusher.close()

    def begin(self, operations: list[Operation]) -> bool:
        """Begin a burst, or return False: then the writer thread has to write it.

        That also begins to wait with the first rows that are not committed, and commits them when
        there are many.
        """
        if len(operations) > MOST_OPERATIONS or not self._turn.take_if_free():
            return False
        try:
            has_begun = self._begin(operations)
        except Exception:
            # The writer thread writes the burst. If it cannot either, it answers with its error.
            has_begun = False
            if not self._has_logged:
                self._has_logged = True
                log.exception("bug: the flusher could not begin a burst")
        if not has_begun:
            self._turn.give_back()
        return has_begun

    def _begin(self, operations: list[Operation]) -> bool:
        """Encode a burst and pass it to the flusher, in the common case."""
        state, journal = self._state, self._journal
        place = journal.place_for_flusher()
        if (
            place is None
            or not 0 < state.pending.count < self._most_rows
            or state.failing
            or state.is_unresolved
            or stage_appends is None
        ):
            return False
        staged = stage_appends(operations, Append, state.logs, DurableLog, journal.mark, *place)
        if staged is None or len(staged[1]) > MOST_BUFFERS:
            return False
        self._at, buffers, self._rows, self._logs, outcomes = staged
        _, begun, _, limit = place
        if (
            limit - self._at < LARGEST_STEP
            and self._at - begun <= LARGEST_FILLED_WRITE
            and journal.lacks_zeros
        ):
            self._fill_ahead()
        journal.begin_write(self._flusher, buffers)
        self._outcomes = outcomes
        return True

    def doRead(self) -> None:
        """The flusher has ended. Raises nothing: the reactor would not watch it any longer."""
        outcomes = self._outcomes
        if outcomes is None:
            return
        try:
            if not self._journal.end_write(self._flusher, self._at):
                return
        except JournalFailed as error:
            self._outcomes = None
            self._turn.give_back()
            self._fail(FailedBurst([operation for operation, _, _ in outcomes], error))
            return
        self._outcomes = None
        try:
            self._publish()
        except BaseException as bug:
            # The entries are durable but not readable. Later ones must not be written before a
            # restart has read them.
            self._state.is_unresolved = True
            log.exception("bug: rows could not be added; writing stops until a restart")
            failure = StorageFailed(f"the outcome of the write is not known: {bug!r}")
            outcomes = [(operation, None, failure) for operation, _, _ in outcomes]
        self._turn.give_back()
        try:
            self._reactor_calls.run(partial(self._deliver, outcomes))
        except BaseException:
            log.exception("bug: the outcomes of a burst could not be delivered")

    def _publish(self) -> None:
        """Make the entries of the burst readable."""
        self._state.logs.update(self._logs)
        self._state.pending.add(self._rows.items())
        self._rows = {}

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has ended."""

    def logPrefix(self) -> str:
        return "flusher"
