"""What is to be written, gathered into bursts: the reactor's side of the writer.

One burst is being written at a time. Each costs a sync and two changes of thread, as much as a dozen appends, so a burst is worth waiting for, a
little: who was just told that a write is on disk often has the next one ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from storage.bridge import Reactor, ScheduledCall
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import Operation


class WriteQueue:
    """Hands bursts to `write`, one after the other; for the reactor's thread only.

    After each burst the next one waits for `gathering_seconds` at most: until there are as many operations as that one had and as came while it
    was written. So all who write without a pause are written together, and who writes alone, one at a time, waits for nobody.
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
        self._deadline: ScheduledCall | None = None
        self._on_finished: Callable[[], None] | None = None

    def add(self, operation: Operation) -> None:
        """To be written after all that was added before."""
        self._waiting.append(operation)
        if not self._is_writing and len(self._waiting) >= self._expected_operations:
            self._write_next()

    def burst_written(self, operations: int) -> None:
        """The burst under way, of so many operations, is written, and nobody has been told yet: who is may write again, besides those who wait."""
        self._expected_operations = operations + len(self._waiting)

    def outcomes_delivered(self) -> None:
        """All outcomes of that burst have been told."""
        self._is_writing = False
        if self._on_finished is not None or len(self._waiting) >= self._expected_operations:
            self._write_next()
        elif self._expected_operations > 1:
            self._deadline = self._reactor.callLater(
                self._settings.gathering_seconds, self._stop_waiting
            )

    def finish(self, ended: Callable[[], None]) -> None:
        """Wait for nothing any more, and call `ended` once all that was added has been written."""
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
        operations: list[Operation] = []
        size = 0
        while (
            self._waiting
            and len(operations) < self._settings.burst_operations
            and size < self._settings.burst_bytes
        ):
            operations.append(self._waiting.popleft())
            size += operations[-1].size
        if operations:
            self._is_writing = True
            self._write(operations)
        elif self._on_finished is not None:
            self._on_finished()
