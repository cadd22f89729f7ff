"""Groups queued writes into bursts (group commit); the reactor side of the writer.

One burst is written at a time. A burst costs a sync and two thread switches, as much as a dozen
appends. A short wait makes bursts larger, since a client whose write has just completed often has
the next one ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter

from storage.bridge import DelayedCall, Reactor
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import Operation

SIZE: Callable[[Operation], int] = attrgetter("size")


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
