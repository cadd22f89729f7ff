"""Awaiting results on the reactor: shared results, pauses, and calls from and to threads."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.python.failure import Failure

from storage.log import StorageFailed

K = TypeVar("K")
P = TypeVar("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class DelayedCall(Protocol):
    """A scheduled call (Twisted's IDelayedCall)."""

    def active(self) -> bool: ...
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The clock of waits, in seconds: a reactor, or Twisted's `task.Clock` in tests."""

    def seconds(self) -> float: ...
    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object
    ) -> DelayedCall: ...


class Reactor(Clock, Protocol):
    """The part of Twisted's reactor that stores use."""

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> object: ...


class Readable(Protocol):
    """A descriptor that a reactor watches (Twisted's IReadDescriptor)."""

    def fileno(self) -> int: ...
    def doRead(self) -> object: ...
    def connectionLost(self, reason: Failure) -> None: ...
    def logPrefix(self) -> str: ...


@runtime_checkable
class WatchingReactor(Reactor, Protocol):
    """A reactor that watches descriptors (Twisted's IReactorFDSet). A clock of tests does not."""

    def addReader(self, reader: Readable) -> None: ...
    def removeReader(self, reader: Readable) -> None: ...


clock_seconds: Callable[[], float] = partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Seconds of a clock that also runs while the machine is suspended.

Linux's monotonic clock stops then.
"""


def now_ms() -> int:
    """Milliseconds since 1970, as in Kafka."""
    return time.time_ns() // 1_000_000


class SharedResult(Generic[T]):
    """One result for any number of waiters.

    They continue in the order in which they began to wait.
    """

    __slots__ = ("_failure", "_result", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Deferred[None] | Callable[[], None]] | None = []
        self._result: T | None = None
        self._failure: BaseException | None = None

    def when_done(self, call: Callable[[], None]) -> None:
        """Call `call` once there is a result; at once if there is one.

        It costs a tenth of a coroutine that waits. `outcome` has the result. If a later call
        raises, that is logged as a bug, and the other waiters continue.
        """
        if self._waiting is None:
            call()
        else:
            self._waiting.append(call)

    def outcome(self, pending: P) -> T | BaseException | P:
        """The result or the failure, or `pending` if there is none yet."""
        if self._waiting is not None:
            return pending
        return cast(T, self._result) if self._failure is None else self._failure

    def succeed(self, result: T) -> None:
        self._result = result
        waiting, self._waiting = self._waiting, None
        if waiting:
            _release(waiting)

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        waiting, self._waiting = self._waiting, None
        if waiting:
            _release(waiting)

    def __await__(self) -> Generator[Any, None, T]:
        if self._waiting is not None:
            deferred: Deferred[None] = Deferred()
            self._waiting.append(deferred)
            yield from deferred.__await__()
        return self._get()

    def _get(self) -> T:
        if self._failure is not None:
            raise self._failure
        return cast(T, self._result)

    async def wait(self) -> T:
        """As awaiting it; for calls that need a coroutine."""
        return await self

    async def with_timeout(self, clock: Clock, seconds: float) -> T:
        """Like awaiting it, for at most `seconds`. The work behind the result continues.

        Raises TimeoutError.
        """
        if self._waiting is not None and seconds > 0:
            deferred: Deferred[None] = Deferred()
            self._waiting.append(deferred)
            timer = clock.callLater(seconds, deferred.callback, None)
            try:
                await deferred
            finally:
                if timer.active():
                    timer.cancel()
                if self._waiting is not None:
                    self._waiting.remove(deferred)
        if self._waiting is not None:
            raise TimeoutError
        return self._get()


def _release(waiting: list[Deferred[None] | Callable[[], None]]) -> None:
    for waiter in waiting:
        # Deferred is an abstract base class: `isinstance` is slow for other types.
        if type(waiter) is Deferred:
            if not waiter.called:
                waiter.callback(None)
        else:
            try:
                waiter()  # type: ignore[operator]  # mypy does not exclude the Deferred
            except Exception:
                log.exception("bug: a callback of a shared result failed")


class Completion(Generic[T]):
    """The end of one call, for one waiter. A Deferred costs five times as much.

    `callback` and `errback` complete the call and are named as those of a Deferred. Cancelling the
    wait does not cancel the call.
    """

    __slots__ = ("_done", "_failed", "_failure", "_has_ended", "_result")

    def __init__(self) -> None:
        self._done: Callable[[T], object] | None = None
        self._has_ended = False

    def when_ended(
        self, done: Callable[[T], object], failed: Callable[[BaseException], object]
    ) -> None:
        """Call `done` with the result, or `failed`; at once if the call has ended.

        To be called once. As with a Deferred, an error that they raise does not reach the caller of
        `callback`; it is logged.
        """
        self._done, self._failed = done, failed
        if not self._has_ended:
            return
        if self._failure is None:
            self.callback(self._result)
        else:
            self.errback(self._failure)

    def callback(self, result: T) -> None:
        self._has_ended = True
        done = self._done
        if done is None:
            self._result = result
            self._failure: BaseException | None = None
            return
        try:
            done(result)
        except Exception:
            log.exception("bug: the callback of a completed call failed")

    def errback(self, failure: BaseException) -> None:
        self._has_ended = True
        if self._done is None:
            self._failure = failure
            return
        try:
            self._failed(failure)
        except Exception:
            log.exception("bug: the callback of a failed call failed")

    def __await__(self) -> Generator[Any, None, T]:
        waiting: Deferred[T] = Deferred()
        self.when_ended(
            partial(_unless_cancelled, waiting, waiting.callback),
            partial(_unless_cancelled, waiting, waiting.errback),
        )
        return (yield from waiting.__await__())


def _unless_cancelled(waiting: Deferred[Any], end: Callable[[Any], None], outcome: object) -> None:
    if not waiting.called:
        end(outcome)


def sleep(clock: Clock, seconds: float) -> Deferred[None]:
    """Fires after `seconds`; with 0, once the reactor has handled other events."""
    over: Deferred[None] = Deferred(lambda _: timer.cancel())
    timer = clock.callLater(seconds, over.callback, None)
    return over


_after_calls: list[Callable[[], None]] | None = None
"""Calls for the end of the `ReactorCallQueue._run` that is running. There is one reactor thread."""


def after_calls(call: Callable[[], None]) -> bool:
    """Run `call` after the calls from threads that are running, which complete a burst.

    Returns False, and does nothing, if none is running. It costs a tenth of a timer.
    """
    if _after_calls is None:
        return False
    _after_calls.append(call)
    return True


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

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` after those posted before; for the reactor thread."""
        self._calls.append(call)
        self._run()

    def _run(self) -> None:
        # Reset first: a call posted from here on schedules another wake-up; one posted earlier is
        # already in the deque.
        self._is_scheduled = False
        global _after_calls
        outer, _after_calls = _after_calls, []
        try:
            while self._calls:
                _run_or_log(self._calls.popleft())
        finally:
            after, _after_calls = _after_calls, outer
        for call in after:
            _run_or_log(call)


def _run_or_log(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("bug: a callback from a storage thread failed")


_INTERFACE = 3
"""Expected INTERFACE of the compiled module; incremented when something in it changes."""

if not TYPE_CHECKING and os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import storage._bridge as _bridge
    except ImportError:
        pass
    else:
        if _bridge.INTERFACE == _INTERFACE:
            # Compiled versions.
            Completion = _bridge.Completion
            ReactorCallQueue = _bridge.ReactorCallQueue
            after_calls = _bridge.after_calls
            clock_seconds, now_ms = _bridge.clock_seconds, _bridge.now_ms


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
            self._reactor_calls.post(partial(job.done.errback, error))
        else:
            self._reactor_calls.post(partial(job.done.callback, result))
        return True


class SingleFlightCache(Generic[K, T]):
    """Values created at most once, even if several callers request them concurrently."""

    def __init__(self) -> None:
        self.created: dict[K, T] = {}
        self._pending: dict[K, SharedResult[T]] = {}

    async def get(self, key: K, make: Callable[[], Deferred[T]]) -> T:
        """Return the value of `key`, calling `make` if it is neither created nor being created.

        `make` stores the value in `created` itself. It is not cancelled when its first caller is.
        """
        if key in self.created:
            return self.created[key]
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = SharedResult()
            maybeDeferred(make).addBoth(self._ended, key)
        return await pending

    def _ended(self, result: T | Failure, key: K) -> None:
        pending = self._pending.pop(key)
        if isinstance(result, Failure):
            pending.fail(cast(BaseException, result.value))
        else:
            pending.succeed(result)

    def wait_for_pending(self, is_meant: Callable[[K], bool]) -> Deferred[Any]:
        """Fires when all pending creations of matching keys have succeeded or failed."""
        return DeferredList(
            [
                Deferred.fromCoroutine(pending.wait())
                for key, pending in self._pending.items()
                if is_meant(key)
            ],
            consumeErrors=True,
        )
