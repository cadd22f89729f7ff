"""Between a store's threads and the reactor: one deque and one wake-up for whatever has piled up, the threads that wait, things made once."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred, DeferredList

from storage.log import StorageFailed

K = TypeVar("K")
T = TypeVar("T")
log = logging.getLogger(__name__)


class ScheduledCall(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


class Reactor(Protocol):
    """What the store needs of Twisted's reactor."""

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> object: ...
    def callLater(
        self, delay: float, call: Callable[..., object], *arguments: object
    ) -> ScheduledCall: ...


class ReactorCallQueue:
    """Runs calls in the reactor's thread, in the order they were posted, with one wake-up for all that have piled up."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._calls: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def post(self, call: Callable[[], None]) -> None:
        """From any thread."""
        self._calls.append(call)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._reactor.callFromThread(self._run)

    def _run(self) -> None:
        # First: a call posted from here on asks for a wake-up of its own, and one posted before is already in the deque.
        self._is_scheduled = False
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("a result of the store could not be handed over")


class Job(Generic[T]):
    """One call for a reader's thread."""

    __slots__ = ("call", "done")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.done: Deferred[T] = Deferred()


class WorkerPool:
    """Threads for calls that may wait for the disk or the network; `name` is what a list of threads shows.

    Of the idle ones the one that worked last goes first: what it needs is still in the processor's cache, and in its own part of the heap.
    """

    def __init__(
        self,
        reactor_calls: ReactorCallQueue,
        threads: int,
        waiting: int,
        name: str = "store-reader",
    ) -> None:
        self._reactor_calls = reactor_calls
        self._waiting = waiting
        self._lock = threading.Lock()
        self._jobs: deque[Job[Any] | None] = deque()
        self._idle: list[SimpleQueue[Job[Any] | None]] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, call: Callable[[], T]) -> Deferred[T]:
        """What `call` gives or raises in a reader's thread. A cancelled one that has not begun is not begun. Fails with StorageFailed if too many wait."""
        job = Job(call)
        if len(self._jobs) >= self._waiting:
            job.done.errback(
                StorageFailed(
                    f"{self._waiting} reads wait already (reads_waiting): try again later"
                )
            )
        else:
            self._give(job)
        return job.done

    def stop(self, last: Callable[[], T]) -> Deferred[T]:
        """What `last` gives, begun after all that was asked before has begun; then the threads end."""
        job = Job(last)
        self._give(job)
        for _ in self._threads:
            self._give(None)
        return job.done

    def _give(self, job: Job[Any] | None) -> None:
        """To an idle thread, or to the first that has time. None ends it."""
        with self._lock:
            if not self._idle:
                self._jobs.append(job)
                return
            idle = self._idle.pop()
        idle.put(job)

    def _next(self, own: SimpleQueue[Job[Any] | None]) -> Job[Any] | None:
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._idle.append(own)
        return own.get()

    def _work(self) -> None:
        own: SimpleQueue[Job[Any] | None] = SimpleQueue()
        while self._run_next(own):
            # Nothing of a job stays in a variable of this thread, which may wait for long: a result has many MiB.
            pass

    def _run_next(self, own: SimpleQueue[Job[Any] | None]) -> bool:
        """False at the end."""
        job = self._next(own)
        if job is None:
            return False
        if job.done.called:
            return True
        try:
            result = job.call()
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            self._reactor_calls.post(lambda done=job.done, error=error: done.errback(error))  # type: ignore[misc]
        else:
            self._reactor_calls.post(lambda done=job.done, result=result: done.callback(result))  # type: ignore[misc]
        return True


class SingleFlightCache(Generic[K, T]):
    """Things that are made once, however many ask for them at the same time."""

    def __init__(self) -> None:
        self.created: dict[K, T] = {}
        self._waiting: dict[K, list[Deferred[T]]] = {}

    async def get(self, key: K, make: Callable[[], Deferred[T]]) -> T:
        """The thing of `key`. `make` is not cancelled with whoever asked first, and puts what it created into `created` itself."""
        if key in self.created:
            return self.created[key]
        own: Deferred[T] = Deferred()
        waiting = self._waiting.setdefault(key, [])
        waiting.append(own)
        if len(waiting) == 1:

            def tell(result: Any) -> None:
                for one in self._waiting.pop(key):
                    one.callback(result)

            make().addBoth(tell)
        return await own

    def wait_for_pending(self, is_meant: Callable[[K], bool]) -> Deferred[Any]:
        """Fires once those of these keys that are being made now are made, or could not be."""
        done: list[Deferred[T]] = []
        for key, waiting in self._waiting.items():
            if is_meant(key):
                done.append(Deferred())
                waiting.append(done[-1])
        return DeferredList(done, consumeErrors=True)
