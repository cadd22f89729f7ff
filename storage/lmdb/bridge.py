"""Between the store's threads and the reactor: one deque and one wake-up for whatever has piled up, and the threads that read."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

from storage.log import StorageFailed

T = TypeVar("T")
log = logging.getLogger(__name__)


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


class Reactor(Protocol):
    """What the store needs of Twisted's reactor."""

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> object: ...
    def callLater(self, delay: float, call: Callable[..., object], *arguments: object) -> Timer: ...


class Wake:
    """Runs calls in the reactor's thread, in the order they were posted, with one wake-up for all that have piled up."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._calls: deque[Callable[[], None]] = deque()
        self._is_called = False

    def post(self, call: Callable[[], None]) -> None:
        """From any thread."""
        self._calls.append(call)
        if not self._is_called:
            self._is_called = True
            self._reactor.callFromThread(self._run)

    def _run(self) -> None:
        # First: a call posted from here on asks for a wake-up of its own, and one posted before is already in the deque.
        self._is_called = False
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("a result of the store could not be handed over")


class Job(Generic[T]):
    """One call for a reader's thread."""

    __slots__ = ("call", "told")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.told: Deferred[T] = Deferred()


class Readers:
    """Threads for calls that may wait for the disk."""

    def __init__(self, wake: Wake, threads: int, waiting: int) -> None:
        self._wake = wake
        self._waiting = waiting
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"lmdb-reader-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def run(self, call: Callable[[], T]) -> Deferred[T]:
        """What `call` gives or raises in a reader's thread. A cancelled one that has not begun is not begun. Fails with StorageFailed if too many wait."""
        job = Job(call)
        if self._jobs.qsize() >= self._waiting:
            job.told.errback(StorageFailed(f"{self._waiting} reads wait for the disk already (reads_waiting): try again later"))
        else:
            self._jobs.put(job)
        return job.told

    def stop(self, last: Callable[[], T]) -> Deferred[T]:
        """What `last` gives, begun after all that was asked before has begun; then the threads end."""
        job = Job(last)
        self._jobs.put(job)
        for _ in self._threads:
            self._jobs.put(None)
        return job.told

    def _work(self) -> None:
        while job := self._jobs.get():
            if job.told.called:
                continue
            try:
                result = job.call()
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
                self._wake.post(lambda told=job.told, error=error: told.errback(error))  # type: ignore[misc]
            else:
                self._wake.post(lambda told=job.told, result=result: told.callback(result))  # type: ignore[misc]
