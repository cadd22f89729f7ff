"""The writer's thread: takes whatever is queued, writes it in one synced transaction, hands all results to the reactor at once.

Between bursts it frees what was deleted, a bounded piece at a time, in transactions of its own: they must succeed on a disk that is too full
for appends.
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
"""How long the thread waits before it tries again what the medium refused and nobody waits for."""

ENTRY_TREE_BYTES = 200
"""What an append needs in the tree beside its payload, about."""

UNREACHED_TXN = 1 << 64
"""A transaction that no commit reaches."""


class LmdbWriter:
    """The only thread that writes. `deliver` gets each burst's outcomes in the reactor's thread."""

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
        """Queue it; from the reactor's thread. The order of the calls is the order of the writes."""
        self._queue.add(operation)

    def stop(self) -> Deferred[None]:
        """Write what is queued, or fail it where the medium is gone; then end the thread. Fires after all outcomes were delivered."""
        self._is_stopping.set()
        self._queue.finish(lambda: self._bursts.put(None))
        return self._ended

    def _work(self) -> None:
        while True:
            try:
                # Without a burst to write there is time to free something, unless the medium refused that just now.
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
            # Not kept while the thread waits for the next burst, perhaps for long.
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
        """One burst. Where the medium refuses it, its appends fail, and the small rest is tried once more without them."""
        has_appends = any(isinstance(one, Append) for one in operations)
        what = "appending" if has_appends else "writing"
        try:
            outcomes = self._commit(operations)
        except Exception as error:  # noqa: BLE001 - a bug here must fail this burst, not end the thread that all the others wait for
            reason = self._failed(what, error)
            rest = [one for one in operations if not isinstance(one, Append)]
            is_retried = has_appends and rest and isinstance(error, lmdb.Error)
            written = (
                {id(outcome[0]): outcome for outcome in self._write(rest)} if is_retried else {}
            )
            # Each gets an exception of its own: one that thousands raise again grows a traceback through all of them.
            return [
                written.get(id(one)) or (one, None, StorageFailed(reason)) for one in operations
            ]
        # Appends that only follow a refused one are refused without a try, and an empty transaction succeeds on any medium.
        if any(
            error is None and isinstance(one, Append) is has_appends for one, _, error in outcomes
        ):
            self._succeeded(what)
        return outcomes

    def _failed(self, what: str, error: Exception) -> str:
        """The reason for those who wait; one line in the log when it begins, not one for each burst of a bad hour."""
        directory = self._environment.directory
        if not isinstance(error, lmdb.Error):
            log.exception("%s in %s failed, which is a bug", what, directory)
        elif what not in self._failing:
            self._failing.add(what)
            log.error(
                "%s in %s fails: %s; it is refused until it succeeds again, reads go on",
                what,
                directory,
                error,
            )
        return f"cannot write to {directory}: {error}"

    def _succeeded(self, what: str) -> None:
        if what in self._failing:
            self._failing.remove(what)
            log.warning("%s in %s succeeds again", what, self._environment.directory)

    def _commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """All of it in one transaction. Raises lmdb.Error where nothing was stored."""

        def write(txn: Any) -> tuple[Burst, list[Outcome]]:
            burst = Burst(self._environment, txn, self._state)
            return burst, burst.run(operations)

        incoming = sum(one.size + ENTRY_TREE_BYTES for one in operations if isinstance(one, Append))
        burst, outcomes = self._transact(write, incoming)
        burst.publish()
        return outcomes

    def _transact(self, write: Callable[[Any], T], incoming: int = 0) -> T:
        """What `write` gave, its writes committed and synced; it is run again after the map has grown.

        `incoming`: about how much room appends in it need; 0 where there are none, which may then use the disk's reserve.
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
        """Whether the commit of `txn_id` that raised is on disk all the same. Until that is known nothing else can be written."""
        while True:
            try:
                return self._environment.is_committed(txn_id)
            except lmdb.Error as error:
                log.error(
                    "%s cannot be used again yet: %s; trying again",
                    self._environment.directory,
                    error,
                )
                if self._is_stopping.wait(RETRY_SECONDS):
                    raise

    def _free_deleted_entries(self) -> None:
        """Free a bounded number of deleted entries. A smaller one where the medium refused: freeing needs some pages itself."""
        log_id, below = next(iter(self._state.freeing.items()))
        try:
            is_done = self._transact(
                lambda txn: free_entries(
                    txn, self._environment.databases, log_id, below, self._freeing_entries
                )
            )
            if self._environment.is_disk_low:
                # LMDB uses pages again from the second commit on after the one that freed them, and the appends that wait for them make none.
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
    """Delete up to `at_most` entries that lie wholly below the offset `below`, and with the last the note to do so; whether it was the last."""
    first = SLOT_PREFIX.pack(log_id, 0)
    with txn.cursor(db=databases["entries"]) as cursor:
        cursor.set_range(first)
        for _ in range(at_most):
            # Behind the last key of a page a deletion may leave the cursor nowhere.
            key = cursor.key() or (cursor.set_range(first) and cursor.key())
            slot = slot_of(key) if key else None
            if slot is None or slot.log_id != log_id or slot.last_offset >= below:
                txn.delete(U64.pack(log_id), db=databases["freeing"])
                return True
            cursor.delete()
    return False
