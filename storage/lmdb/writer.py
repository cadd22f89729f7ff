"""The writer thread: writes queued operations in one synced transaction at a time.

Results are delivered to the reactor once per burst. Between bursts it frees deleted entries, a
bounded number per transaction. These transactions are separate, since they must succeed on a disk
that is too full for appends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import lmdb
from twisted.internet.defer import Deferred

from storage.bridge import Reactor, ReactorCallQueue
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.layout import SLOT_PREFIX, U64, slot_of
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import Append, Burst, Operation, Outcome, WriterState
from storage.lmdb.write_queue import WriteQueue
from storage.log import StorageFailed

T = TypeVar("T")
log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Pause before retrying a failed write that no caller is waiting for."""

ENTRY_TREE_BYTES = 200
"""Approximate space of an append in the tree besides its payload."""

UNREACHED_TXN = 1 << 64
"""A transaction id that no commit reaches."""


class LmdbWriter:
    """The only thread that writes. `deliver` gets each burst's outcomes in the reactor thread."""

    def __init__(
        self,
        environment: LmdbEnvironment,
        settings: LmdbSettings,
        reactor: Reactor,
        reactor_calls: ReactorCallQueue,
        state: WriterState,
        deliver: Callable[[list[Outcome]], None],
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._reactor_calls = reactor_calls
        self._state = state
        self._deliver = deliver
        self._bursts: SimpleQueue[list[Operation] | None] = SimpleQueue()
        self._queue = WriteQueue(reactor, settings, self._bursts.put)
        self._freeing_entries = settings.freeing_entries
        self._freeing_pause = 0.0
        self._is_stopping = threading.Event()
        self._ended: Deferred[None] = Deferred()
        self._failing: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="lmdb-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        """Queue an operation; reactor thread only. Operations are written in the order of the
        calls.
        """
        self._queue.add(operation)

    def stop(self) -> Deferred[None]:
        """Write what is queued, or fail it if the medium is gone; then end the thread.

        Fires after all outcomes were delivered.
        """
        self._is_stopping.set()
        self._queue.finish(lambda: self._bursts.put(None))
        return self._ended

    def _work(self) -> None:
        while True:
            try:
                # Free entries while there is nothing to write; after a failure, only after a pause.
                operations = (
                    self._bursts.get(timeout=self._freeing_pause)
                    if self._state.freeing
                    else self._bursts.get()
                )
            except Empty:
                self._free_deleted_entries()
                continue
            if operations is None:
                self._reactor_calls.post(lambda: self._ended.callback(None))
                return
            self._write_and_deliver(operations)
            # No reference is kept while the thread waits for the next burst.
            del operations
            if self._state.freeing:
                self._free_deleted_entries()

    def _write_and_deliver(self, operations: Sequence[Operation]) -> None:
        outcomes = self._write(operations)
        self._reactor_calls.post(lambda: self._deliver_outcomes(outcomes))

    def _deliver_outcomes(self, outcomes: list[Outcome]) -> None:
        self._queue.burst_written(len(outcomes))
        try:
            self._deliver(outcomes)
        finally:
            self._queue.outcomes_delivered()

    def _write(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Write one burst. If the medium refuses it, its appends fail and the other operations are
        retried without them.
        """
        has_appends = any(isinstance(one, Append) for one in operations)
        what = "appending" if has_appends else "writing"
        try:
            outcomes = self._commit(operations)
        except Exception as error:  # noqa: BLE001 - a bug fails this burst, not the writer thread
            reason = self._failed(what, error)
            rest = [one for one in operations if not isinstance(one, Append)]
            is_retried = has_appends and rest and isinstance(error, lmdb.Error)
            written = (
                {id(outcome[0]): outcome for outcome in self._write(rest)} if is_retried else {}
            )
            # A separate exception each: one raised by thousands of callers would collect all their
            # tracebacks.
            return [
                written.get(id(one)) or (one, None, StorageFailed(reason)) for one in operations
            ]
        # Appends behind a refused one are refused without being written, and an empty transaction
        # succeeds on any medium: neither shows that writing works again.
        if any(
            error is None and isinstance(one, Append) is has_appends for one, _, error in outcomes
        ):
            self._succeeded(what)
        return outcomes

    def _failed(self, what: str, error: Exception) -> str:
        """Return the error message for callers; log only the first of consecutive failures."""
        directory = self._environment.directory
        if not isinstance(error, lmdb.Error):
            log.exception("%s to %s failed, which is a bug", what, directory)
        elif what not in self._failing:
            self._failing.add(what)
            log.error(
                "%s to %s fails: %s; clients receive errors until it succeeds, reads continue",
                what,
                directory,
                error,
            )
        return f"cannot write to {directory}: {error}"

    def _succeeded(self, what: str) -> None:
        if what in self._failing:
            self._failing.remove(what)
            log.warning("%s to %s succeeds again", what, self._environment.directory)

    def _commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Run all operations in one transaction. Raises lmdb.Error if nothing was stored."""

        def write(txn: Any) -> tuple[Burst, list[Outcome]]:
            burst = Burst(self._environment, txn, self._state)
            return burst, burst.run(operations)

        incoming = sum(one.size + ENTRY_TREE_BYTES for one in operations if isinstance(one, Append))
        burst, outcomes = self._transact(write, incoming)
        burst.publish()
        return outcomes

    def _transact(self, write: Callable[[Any], T], incoming: int = 0) -> T:
        """Run `write`, commit, sync, and return its result; runs it again after growing the map.

        `incoming` is about the number of bytes that appends need; 0 without appends, in which case
        the disk's reserve may be used.
        """
        if incoming:
            self._environment.limit_growth(incoming)
        while True:
            txn, txn_id = self._begin(), None
            try:
                result = write(txn)
                txn_id = txn.id()
                txn.commit()
            except lmdb.MapFullError:
                txn.abort()
                self._environment.grow(for_appends=incoming > 0)
            except lmdb.Error:
                txn.abort()
                if txn_id is None or not self._resolve_commit(txn_id):
                    raise
                return result
            except BaseException:
                txn.abort()
                raise
            else:
                return result

    def _begin(self) -> Any:
        try:
            return self._environment.begin()
        except lmdb.Error:
            self._resolve_commit(UNREACHED_TXN)
            return self._environment.begin()

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
                    raise

    def _free_deleted_entries(self) -> None:
        """Free a bounded number of deleted entries; fewer after a failure, since freeing needs
        pages too.
        """
        log_id, below = next(iter(self._state.freeing.items()))
        try:
            is_done = self._transact(
                lambda txn: free_entries(
                    txn, self._environment.databases, log_id, below, self._freeing_entries
                )
            )
            if self._environment.is_disk_low:
                # LMDB reuses pages from the second commit after the one that freed them, and
                # appends waiting for them do not commit.
                self._transact(
                    lambda txn: txn.put(
                        b"last_freed", U64.pack(log_id), db=self._environment.databases["meta"]
                    )
                )
        except Exception as error:  # noqa: BLE001 - as in _write
            self._failed("freeing", error)
            self._freeing_entries = max(self._freeing_entries // 4, 1)
            self._freeing_pause = RETRY_SECONDS
            return
        self._freeing_entries = min(self._freeing_entries * 2, self._settings.freeing_entries)
        self._freeing_pause = 0.0
        self._succeeded("freeing")
        if is_done:
            del self._state.freeing[log_id]


def free_entries(
    txn: Any, databases: Mapping[str, Any], log_id: int, below: int, at_most: int
) -> bool:
    """Free up to `at_most` entries wholly below the offset `below`; return whether all are freed.

    The marker in `freeing` is deleted with the last of them.
    """
    first = SLOT_PREFIX.pack(log_id, 0)
    with txn.cursor(db=databases["entries"]) as cursor:
        cursor.set_range(first)
        for _ in range(at_most):
            # After deleting the last key of a page the cursor may be unpositioned.
            key = cursor.key() or (cursor.set_range(first) and cursor.key())
            slot = slot_of(key) if key else None
            if slot is None or slot.log_id != log_id or slot.last_offset >= below:
                txn.delete(U64.pack(log_id), db=databases["freeing"])
                return True
            cursor.delete()
    return False
