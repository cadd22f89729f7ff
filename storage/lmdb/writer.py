"""The writer thread: writes queued operations in bursts and makes each durable.

A burst of appends and writes of table rows is one write to the journal and one flush. Its rows are
committed to LMDB later, with those of other bursts, or by the transaction of a burst that needs one
anyway. Results are delivered to the reactor once per burst. Between bursts the thread frees space,
a bounded amount at a time; this must also succeed on a disk that is too full for appends.

In the common case the flusher writes a burst of appends and table rows (`write_queue.py`). This
thread does all the rest, failures included, while it has the turn. Filling the journal ahead needs
none, and neither does a commit of rows alone: the flusher writes bursts meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import lmdb
from twisted.internet.defer import Deferred

from storage.bridge import Reactor, ReactorCallQueue, WatchingReactor
from storage.lmdb.cleaner import free_entries, move_entries, segment_to_clean
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.frames import SEGMENT_HEADER, compiled
from storage.lmdb.journal import Journal, JournalFailed
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import (
    Append,
    Burst,
    Operation,
    Outcome,
    TablePut,
    Task,
    WriterState,
)
from storage.lmdb.write_queue import (
    SIZE,
    FailedBurst,
    Turn,
    WriteQueue,
)
from storage.log import StorageFailed

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Pause before retrying a failed write that no caller is waiting for."""

CLEANING_RETRY_SECONDS = 10.0
"""Pause of cleaning after a failure, while there are deleted entries to free.

Cleaning needs more space: on a full disk freeing must continue.
"""

UNREACHED_TXN = 1 << 64
"""A transaction id that no commit reaches."""

APPENDING, WRITING = "appending", "writing"
INDEXING, FREEING, CLEANING, DELETING = "indexing", "freeing", "cleaning", "deleting files"
"""What may fail."""

SILENT_ATTEMPTS = 3
"""How often the last four of these may fail before it is logged.

They are tried again and no caller waits for them. While something else fails, they are not logged.
"""


def _needs_journal(operation: Operation) -> bool:
    return isinstance(operation, Append) or operation.writes_entries


class LmdbWriter:
    """The only thread that writes. `deliver` gets each burst's outcomes in the reactor thread."""

    def __init__(
        self,
        environment: LmdbEnvironment,
        journal: Journal,
        settings: LmdbSettings,
        reactor: Reactor,
        reactor_calls: ReactorCallQueue,
        state: WriterState,
        deliver: Callable[[list[Outcome]], None],
    ) -> None:
        self._environment = environment
        self._journal = journal
        self._settings = settings
        self._reactor_calls = reactor_calls
        self._state = state
        self._deliver = deliver
        self._bursts: SimpleQueue[Sequence[Operation] | FailedBurst | None] = SimpleQueue()
        self.queue = WriteQueue(reactor, settings, self._bursts.put)
        """Reactor thread only. Operations are written in the order in which they are added."""
        self._turn = Turn()
        self._aside: Burst | None = None
        """Commits rows that the reactor thread has set aside. The writer thread takes it; if it
        begins another transaction or burst before, these rows are pending again.
        """
        self._flusher_bursts: Any = None
        if compiled and isinstance(reactor, WatchingReactor):
            self._flusher_bursts = self._start_flusher(reactor)
        self._freeing_entries = settings.freeing_entries
        self._retry_at = 0.0
        self._clean_at = 0.0
        self._undeleted = 0
        """The segment of the last failure to delete a file."""
        self._has_freed = False
        self._pending_since = 0.0
        self._fill_at = 0.0
        self._cleaned = 0, 0
        self._is_stopping = threading.Event()
        self._ended: Deferred[None] = Deferred()
        self._attempts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._work, name="lmdb-writer", daemon=True)
        self._thread.start()

    def stop(self) -> Deferred[None]:
        """Write what is queued, or fail it if the medium is gone; then end the thread.

        Fires after all outcomes were delivered.
        """
        self._is_stopping.set()
        self.queue.finish(lambda: self._bursts.put(None))
        return self._ended

    def _start_flusher(self, reactor: WatchingReactor) -> Any:
        flusher = None
        try:
            flusher = self._journal.flusher()
            if flusher is None:
                return None
            bursts = compiled.FlusherBursts(
                flusher,
                reactor,
                self._reactor_calls,
                self._journal,
                self._settings,
                self._state,
                self._turn,
                self.queue,
                self._deliver,
                lambda operations, error: self._bursts.put(FailedBurst(operations, error)),
                self._fill_later,
                self._rows_added,
            )
        except OSError as error:
            log.warning("the writer thread writes all bursts: no flusher: %s", error)
            if flusher is not None:
                flusher.close()
            return None
        self.queue.flusher_bursts = bursts
        return bursts

    def _fill_later(self) -> None:
        """Have the writer thread fill the journal ahead; reactor thread only."""
        if not self._journal.is_filling and monotonic() >= self._fill_at:
            self._journal.is_filling = True
            self._bursts.put(())

    def _rows_added(self) -> None:
        """Have the writer thread commit the rows if there are many; reactor thread only, which has
        the turn.
        """
        pending = self._state.pending
        if (
            pending.older is None
            and pending.are_many(self._settings)
            and self._journal.is_synced
            and monotonic() >= self._retry_at
        ):
            self._aside = self._set_aside()
            self._bursts.put(())

    def _set_aside(self) -> Burst:
        """A burst that commits the rows that are pending. For the thread that has the turn."""
        if self._state.pending.older is not None:
            # After an unexpected error.
            self._take_back()
        burst = Burst(self._environment, self._journal, self._state, 0)
        burst.set_aside()
        self._pending_since = monotonic()
        return burst

    def _take_back(self) -> None:
        """The rows that were set aside are pending again, and due. For the thread that has the
        turn.
        """
        self._state.pending = self._state.pending.merged()
        self._pending_since = 0.0

    def _end(self) -> None:
        if self._flusher_bursts is not None:
            self._flusher_bursts.close()
        self._ended.callback(None)

    def _work(self) -> None:
        while self._work_once():
            # No reference to a burst is kept while the thread waits for the next one.
            pass

    def _work_once(self) -> bool:
        """Write a burst or tidy. Returns False when the thread should end."""
        burst: Sequence[Operation] | FailedBurst | None = ()
        # The flusher changes this time only if rows are pending, or being committed, already.
        with suppress(Empty):
            burst = self._bursts.get(timeout=self._idle_seconds())
        if burst is None:
            self._commit_pending()
            self._reactor_calls.post(self._end)
            return False
        if burst:
            with self._turn:
                outcomes = (
                    self._refuse(burst) if isinstance(burst, FailedBurst) else self._write(burst)
                )
            # The flusher can write the next burst.
            self._reactor_calls.post(lambda: self._deliver_outcomes(outcomes))
        if self._journal.is_filling:
            self._fill_ahead()
        if self._aside is not None:
            self._attempt(INDEXING, self._index)
        if self._idle_seconds() == 0:
            self._tidy()
        return True

    def _fill_ahead(self) -> None:
        """Fill the journal ahead.

        Errors are not logged: appends succeed without zeros, and report an error of the disk.
        """
        try:
            self._journal.fill_ahead()
        except Exception as error:
            self._fill_at = monotonic() + RETRY_SECONDS
            if not isinstance(error, OSError):
                log.exception("bug: the journal could not be filled ahead")
        self._journal.is_filling = False

    def _refuse(self, failed: FailedBurst) -> list[Outcome]:
        """Do what `_write` does if the journal refuses a burst."""
        try:
            self._journal.clean_up()
        except Exception:
            log.exception("bug: the journal could not be cut; the next write tries again")
        operations = failed.operations
        rest = [one for one in operations if not _needs_journal(one)]
        again = self._write(rest, in_transaction=True) if rest else []
        if len(rest) == len(operations):
            return again
        return _merge(operations, again, self._failed(APPENDING, failed.error))

    def _deliver_outcomes(self, outcomes: list[Outcome]) -> None:
        self.queue.burst_written(sum(isinstance(one, Append) for one, _, _ in outcomes))
        try:
            self._deliver(outcomes)
        finally:
            self.queue.outcomes_delivered()

    def _write(
        self, operations: Sequence[Operation], *, in_transaction: bool = False
    ) -> list[Outcome]:
        """Write one burst. If a medium refuses it, retry the operations that may not need it:

        | what failed | retried | how |
        |---|---|---|
        | commit of `index_limit` pending rows | each `Task` except `TablePut` | as a burst |
        | journal | what writes no entries: `TablePut`, `Task` | in a transaction of LMDB |
        | LMDB, in a burst with a `Task` | each `Append` and `TablePut` | as a burst |
        | LMDB, in another burst: its table rows are too many | each `Append` | as a burst |
        | either one, in the second row's transaction | nothing | |

        The other operations fail.
        """
        kinds = set(map(type, operations))
        has_appends, has_others = Append in kinds, kinds != {Append}
        are_rows_limited = (
            not kinds.isdisjoint((Append, TablePut))
            and self._state.pending.count >= self._settings.index_limit
        )
        try:
            if are_rows_limited:
                self._commit([Task(begin_transaction)])
                are_rows_limited = False
            if in_transaction:
                outcomes = self._commit([Task(begin_transaction), *operations])[1:]
            else:
                outcomes = self._commit(operations)
        except Exception as error:  # noqa: BLE001 - a bug fails this burst, not the writer thread
            rest: list[Operation] = []
            is_journal = isinstance(error, JournalFailed)
            if is_journal and not in_transaction:
                rest = [one for one in operations if not _needs_journal(one)]
                if len(rest) == len(operations):
                    return self._write(rest, in_transaction=True)
            elif isinstance(error, lmdb.Error) and not in_transaction:
                if are_rows_limited:
                    rest = [one for one in operations if type(one) is Task]
                else:
                    rest = [one for one in operations if type(one) is not Task]
                if len(rest) == len(operations):
                    # The table rows needed a transaction.
                    rest = [one for one in operations if isinstance(one, Append)]
            fails_appends = is_journal or are_rows_limited or not has_others
            reason = self._failed(APPENDING if fails_appends and has_appends else WRITING, error)
            again: list[Outcome] = []
            if 0 < len(rest) < len(operations):
                again = self._write(rest, in_transaction=is_journal)
            return _merge(operations, again, reason)
        # An append behind a failed one is refused without being written: that does not show that
        # appending works again.
        if APPENDING in self._state.failing and any(
            isinstance(one, Append) and error is None for one, _, error in outcomes
        ):
            self._succeeded(APPENDING)
        return outcomes

    def _failed(self, what: str, error: Exception) -> str:
        """Return the error message for callers; log only the first of consecutive failures."""
        directory = self._environment.directory
        if not isinstance(error, lmdb.Error | JournalFailed | OSError):
            log.exception("%s to %s failed, which is a bug", what, directory)
        elif what not in self._state.failing and self._is_worth_a_line(what):
            self._state.failing.add(what)
            log.error(
                "%s to %s fails: %s; %s, reads continue",
                what,
                directory,
                error,
                "clients receive errors until it succeeds"
                if what in (APPENDING, WRITING)
                else "it is tried again every second",
            )
        return f"cannot write to {directory}: {error}"

    def _is_worth_a_line(self, what: str) -> bool:
        if what in (APPENDING, WRITING):
            return True
        self._attempts[what] += 1
        return not self._state.failing and self._attempts[what] > SILENT_ATTEMPTS

    def _succeeded(self, what: str) -> None:
        self._attempts.pop(what, None)
        if what in self._state.failing:
            self._state.failing.remove(what)
            log.warning("%s to %s succeeds again", what, self._environment.directory)

    def _commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Run all operations, make them durable and return the outcomes.

        Raises JournalFailed or lmdb.Error if nothing was stored.
        """
        self._check_resolved()
        if self._state.pending.older is not None:
            self._take_back()
            self._aside = None
        size = sum(map(SIZE, operations))
        while True:
            burst = Burst(self._environment, self._journal, self._state, size)
            try:
                outcomes = self._write_burst(burst, operations)
            except lmdb.MapFullError:
                self._environment.grow()
            else:
                if not self._state.pending.count:
                    self._pending_since = monotonic()
                burst.publish()
                if burst.has_txn:
                    # What needs only the journal, or nothing, does not show that.
                    self._succeeded(WRITING)
                    self._journal.held_bytes = self._environment.hold_room()
                return outcomes

    def _check_resolved(self) -> None:
        if self._state.is_unresolved:
            # Its rows may refer to what would be overwritten in the journal.
            raise lmdb.Error(
                "it is unknown whether the last write is complete: restart the gateway"
            )

    def _write_burst(self, burst: Burst, operations: Sequence[Operation]) -> list[Outcome]:
        """Write the frames and commit the transaction, if there is one."""
        txn_id = None
        try:
            settings = self._settings
            outcomes = burst.run(operations, settings.table_rows, settings.table_bytes)
            if burst.staging.buffers:
                self._journal.write(burst.staging)
            if burst.has_txn:
                # Rows are committed only if their entries are durable.
                self._journal.sync()
                txn_id = burst.txn.id()
                burst.commit()
        except lmdb.Error as error:
            burst.abort()
            is_full = isinstance(error, lmdb.MapFullError)
            if txn_id is None:
                # The environment may have to be opened again.
                if not is_full:
                    self._resolve_commit(UNREACHED_TXN)
                self._journal.retract(burst.staging)
                raise
            if is_full or not self._resolve_commit(txn_id):
                self._journal.retract(burst.staging)
                raise
        except BaseException:
            burst.abort()
            self._journal.retract(burst.staging)
            raise
        self._journal.advance(burst.staging)
        return outcomes

    def _resolve_commit(self, txn_id: int) -> bool:
        """Whether the commit of `txn_id`, which raised, is on disk. Nothing can be written until
        known.
        """
        while True:
            try:
                return self._environment.is_committed(txn_id)
            except lmdb.Error as error:
                log.error(
                    "%s does not show whether the last commit was written: %s; "
                    "writes wait, retrying every %s s",
                    self._environment.directory,
                    error,
                    RETRY_SECONDS,
                )
                if self._is_stopping.wait(RETRY_SECONDS):
                    self._state.is_unresolved = True
                    raise

    def _idle_seconds(self) -> float | None:
        """How long to wait for the next burst before there is something else to do."""
        has_work = self._state.freeing or self._state.unused or self._state.sparse
        if not has_work and not self._state.pending.count:
            return None
        now = monotonic()
        if has_work:
            return max(self._retry_at - now, 0.0)
        return max(self._rows_due_at() - now, self._retry_at - now, 0.0)

    def _rows_due_at(self) -> float:
        """When the rows that are pending are to be committed."""
        pending, settings = self._state.pending, self._settings
        if (
            pending.are_many(settings)
            or self._journal.end.segment - pending.since.segment >= settings.index_segments
        ):
            return 0.0
        return self._pending_since + settings.index_seconds

    def _tidy(self) -> None:
        """Do one of: delete a file, commit rows that are due, free entries, clean a segment.

        Files are first: deleting them needs no space. Freeing and cleaning take turns, since
        clients may delete all the time. After a failure, only after a pause.
        """
        now = monotonic()
        if now < self._retry_at:
            return
        if self._state.unused:
            with self._turn:
                if self._attempt(DELETING, self._delete_file):
                    return
        if self._state.pending.count and now >= self._rows_due_at():
            self._commit_pending()
        elif self._state.sparse and (
            not self._state.freeing or (self._has_freed and now >= self._clean_at)
        ):
            self._has_freed = False
            with self._turn:
                if not self._attempt(CLEANING, self._clean):
                    self._clean_at = now + CLEANING_RETRY_SECONDS
        elif self._state.freeing:
            self._has_freed = True
            with self._turn:
                self._free_deleted_entries()

    def _attempt(self, what: str, call: Callable[[], None]) -> bool:
        """Run `call`; if it fails, log that and pause. Returns whether it succeeded."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - as in _write
            self._failed(what, error)
            self._retry_at = monotonic() + RETRY_SECONDS
            return False
        self._succeeded(what)
        return True

    def _commit_pending(self) -> None:
        if self._aside is not None:
            self._attempt(INDEXING, self._index)
        if self._state.pending.count:
            self._attempt(INDEXING, self._index)

    def _index(self) -> None:
        """Commit the rows that were set aside, or are pending.

        Meanwhile bursts of the flusher add others. If it fails, the rows are pending again. Raises
        JournalFailed, lmdb.Error.
        """
        burst = self._aside
        if burst is None:
            with self._turn:
                # The reactor thread had the turn: it may have set rows aside.
                burst = self._aside
                if burst is None:
                    self._check_resolved()
                    # Rows are committed only if their entries are durable.
                    self._journal.sync()
                    burst = self._set_aside()
        # The reactor thread sets no more rows aside before these are committed.
        self._aside = None
        txn_id = None
        try:
            txn_id = burst.txn.id()
            burst.commit()
        except lmdb.Error as error:
            burst.abort()
            with self._turn:
                is_full = isinstance(error, lmdb.MapFullError)
                # While that is unknown, nothing else is written, as in `_write_burst`.
                if is_full or not self._resolve_commit(UNREACHED_TXN if txn_id is None else txn_id):
                    self._take_back()
                    if not is_full:
                        raise
                    self._environment.grow()
                    self._run(begin_transaction)
                    return
        except BaseException:
            burst.abort()
            with self._turn:
                self._take_back()
            raise
        with self._turn:
            burst.publish_commit()
            self._succeeded(WRITING)
            # Until then appends count room as held that the commit has used.
            self._journal.held_bytes = self._environment.hold_room()

    def _run(self, call: Callable[[Burst], Any]) -> Any:
        """Run a task that no caller waits for and return its result."""
        ((_, value, refusal),) = self._commit([Task(call)])
        if refusal is not None:
            raise refusal
        return value

    def _free_deleted_entries(self) -> None:
        """Free a bounded number of deleted entries; fewer after a failure, since freeing needs
        pages too.
        """
        most = self._freeing_entries

        def free_in(burst: Burst) -> list[int]:
            """Return the logs without entries to free."""
            done: list[int] = []
            left = most
            for log_id, below in self._state.freeing.items():
                left = free_entries(burst, log_id=log_id, below=below, at_most=left)
                if not left:
                    break
                done.append(log_id)
                # The row of the log in `freeing` is deleted.
                left -= 1
                if not left:
                    break
            return done

        def free() -> None:
            for log_id in self._run(free_in):
                del self._state.freeing[log_id]

        if self._attempt(FREEING, free):
            self._freeing_entries = min(most * 2, self._settings.freeing_entries)
        else:
            self._freeing_entries = max(most // 4, 1)

    def _delete_file(self) -> None:
        """Delete the file of an unused segment; after a failure, those of the others first."""
        unused = self._state.unused
        segment = min(unused, key=lambda number: (number <= self._undeleted, number))
        try:
            self._journal.delete(segment)
        except OSError:
            self._undeleted = segment
            raise
        self._state.forget(segment)

    def _clean(self) -> None:
        """Move a part of the entries of a segment with few of them."""
        segment, at = self._cleaned
        if segment not in self._state.sparse:
            chosen = segment_to_clean(self._state)
            if chosen is None:
                return
            segment, at = chosen, SEGMENT_HEADER.size
        following = self._run(
            partial(
                move_entries,
                journal=self._journal,
                segment=segment,
                at=at,
                at_most=self._settings.cleaned_bytes,
            )
        )
        if following is not None:
            self._cleaned = segment, following
            return
        self._cleaned = 0, 0
        use = self._state.segments.get(segment)
        if use is not None and use.live_frames:
            self._state.damaged.add(segment)
            self._state.sparse.discard(segment)
            log.error(
                "segment %d of the journal in %s is damaged: %d entries cannot be read, and its "
                "space is not freed until they are deleted",
                segment,
                self._environment.directory,
                use.live_frames,
            )


def _merge(
    operations: Sequence[Operation], outcomes: Sequence[Outcome], reason: str
) -> list[Outcome]:
    """The outcomes, and failures of the other operations, in their order.

    Each has a separate exception: one raised by thousands of callers would collect all their
    tracebacks.
    """
    known = {id(outcome[0]): outcome for outcome in outcomes}
    return [known.get(id(one)) or (one, None, StorageFailed(reason)) for one in operations]


def begin_transaction(burst: Burst) -> None:
    """A task that commits the rows that are pending."""
    _ = burst.txn
