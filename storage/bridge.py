"""Between a store's threads and the reactor: a call queue, a thread pool, a creation cache."""

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
    """A pending delayed call (Twisted's IDelayedCall)."""

    def cancel(self) -> None: ...


class Reactor(Protocol):
    """The part of Twisted's reactor that stores use."""

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> object: ...
    def callLater(
        self, delay: float, call: Callable[..., object], *arguments: object
    ) -> ScheduledCall: ...


class ReactorCallQueue:
    """Runs calls in the reactor thread, in the order of `post`.

    The reactor is woken once per burst: one `callFromThread` runs every call queued until then.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._calls: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def post(self, call: Callable[[], None]) -> None:
        """Queue `call`. Thread-safe."""
        self._calls.append(call)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._reactor.callFromThread(self._run)

    def _run(self) -> None:
        # Reset first: a call posted from here on schedules another wake-up; one posted earlier is
        # already in the deque.
        self._is_scheduled = False
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("a callback from a storage thread failed")


class Job(Generic[T]):
    """A call for a worker thread and the Deferred of its result."""

    __slots__ = ("call", "done")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.done: Deferred[T] = Deferred()


class WorkerPool:
    """Threads for calls that may block on disk or network.

    `name` is the prefix of the thread names. The idle thread that finished last gets the next call:
    its data is still in the processor cache and in its malloc arena.
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
        """Run `call` in a worker thread; the Deferred gets its result or exception.

        A call whose Deferred is cancelled before it starts is not started. The Deferred fails with
        StorageFailed if too many calls are queued.
        """
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
        """Run `last` after all queued calls have started, then end the threads."""
        job = Job(last)
        self._give(job)
        for _ in self._threads:
            self._give(None)
        return job.done

    def _give(self, job: Job[Any] | None) -> None:
        """Pass `job` to an idle thread or queue it. None ends one thread."""
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
            # No reference to a job or its result (possibly many MiB) is kept while the thread
            # waits.
            pass

    def _run_next(self, own: SimpleQueue[Job[Any] | None]) -> bool:
        """Run one job. Returns False when the thread should end."""
        job = self._next(own)
        if job is None:
            return False
        if job.done.called:
            return True
        try:
            result = job.call()
        except Exception as error:  # noqa: BLE001 - passed to the caller
            self._reactor_calls.post(lambda done=job.done, error=error: done.errback(error))  # type: ignore[misc]
        else:
            self._reactor_calls.post(lambda done=job.done, result=result: done.callback(result))  # type: ignore[misc]
        return True


class SingleFlightCache(Generic[K, T]):
    """Values created at most once, even if several callers request them concurrently."""

    def __init__(self) -> None:
        self.created: dict[K, T] = {}
        self._waiting: dict[K, list[Deferred[T]]] = {}

    async def get(self, key: K, make: Callable[[], Deferred[T]]) -> T:
        """Return the value of `key`, calling `make` if it is neither created nor being created.

        `make` stores the value in `created` itself. It is not cancelled when its first caller is.
        """
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
        """Fires when all pending creations of matching keys have succeeded or failed."""
        done: list[Deferred[T]] = []
        for key, waiting in self._waiting.items():
            if is_meant(key):
                done.append(Deferred())
                waiting.append(done[-1])
        return DeferredList(done, consumeErrors=True)
