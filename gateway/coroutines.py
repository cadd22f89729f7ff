"""Connects coroutines to the reactor: starting, waking, timeouts, concurrency, time slices.

Handlers are `async def` and await what this module and the stores provide. Deferreds are used only
here and in the stores' bridges.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from storage.bridge import (
    Clock,
    Completion,
    DelayedCall,
    SharedResult,
    after_calls,
    clock_seconds,
    sleep,
)

T = TypeVar("T")

#: Rows that a request processes in one reactor turn, about 5 ms. A reply with more rows is encoded
#: on another thread.
SLICE_ROWS = 500

#: Calls of one request that run concurrently, and the rows that each counts as (about 50 us).
MAX_CONCURRENT_CALLS = 50
CALL_ROWS = 5

#: Returned by `start`: cancels the coroutine. Has no effect after its end.
Cancel = Callable[[], None]

__all__ = [
    "CALL_ROWS",
    "MAX_CONCURRENT_CALLS",
    "PENDING",
    "SLICE_ROWS",
    "Cancel",
    "CancelledError",
    "Clock",
    "DelayedCall",
    "InterruptibleWaits",
    "SerialChanges",
    "SharedResult",
    "TaskGroup",
    "TimeSlices",
    "Waiter",
    "after_calls",
    "call_later",
    "clock_seconds",
    "gather",
    "shield",
    "shield_with_timeout",
    "sleep",
    "start",
    "when_ended",
]


def start(
    work: Coroutine[Any, Any, T], done: Callable[[T], None], failed: Callable[[BaseException], None]
) -> Cancel | None:
    """Run `work` until it first waits, and continue whenever the awaited result is there.

    Exactly one of `done` and `failed` is called at the end. Returns None if `work` has ended
    already. Cancelling raises CancelledError inside `work`, which then normally ends with `failed`.
    """
    running = _Running(work, done, failed)
    running.step(None)
    return None if running.awaited is None else running.cancel


class _Running(Generic[T]):
    """A running coroutine.

    Deferred.fromCoroutine costs six times as much for a coroutine that does not wait, as in most
    requests.
    """

    __slots__ = ("awaited", "done", "failed", "work")

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.work = work
        self.done = done
        self.failed = failed
        self.awaited: Deferred[Any] | None = None

    def step(self, result: object) -> None:
        """Run to the next wait.

        A result stays in the Deferred, from which the awaiting expression reads it. A failure is
        thrown into the coroutine: a Deferred cannot raise its failure while its callbacks run,
        because it has not yet recorded that the failure may be unhandled.
        """
        self.awaited = None
        ended: Callable[[], None]
        try:
            awaited = (
                self.work.throw(cast(BaseException, result.value))
                if isinstance(result, Failure)
                else self.work.send(None)
            )
        except StopIteration as finished:
            ended = partial(self.done, finished.value)
        except Exception as failure:  # noqa: BLE001 - any failure is passed to `failed`
            ended = partial(self.failed, failure)
        else:
            self.awaited = awaited
            awaited.addBoth(self.step)
            return
        # Called outside the except block: an exception raised in here would otherwise keep this
        # one, and everything it refers to, as its context.
        try:
            ended()
        finally:
            # The failure's traceback refers to this frame; without these the frame does not refer
            # back to the failure.
            del ended, result

    def cancel(self) -> None:
        if self.awaited is not None:
            self.awaited.cancel()


class Waiter:
    """Lets one coroutine wait for an event or a timeout.

    Not for reuse while a coroutine waits.
    """

    __slots__ = ("_clock", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: Deferred[bool] | None = None

    def wake_up(self) -> None:
        """Wake the waiting coroutine, if there is one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(True)

    async def wait(self, seconds: float) -> bool:
        """Return True after `wake_up`, False after `seconds`.

        Raises CancelledError if the request is cancelled meanwhile.
        """
        waiting: Deferred[bool] = Deferred()
        self._waiting = waiting
        timer = self._clock.callLater(seconds, self._expire, waiting)
        try:
            return await waiting
        finally:
            self._waiting = None
            if timer.active():
                timer.cancel()

    def _expire(self, waiting: Deferred[bool]) -> None:
        if self._waiting is waiting:
            self._waiting = None
            waiting.callback(False)


class InterruptibleWaits:
    """Waits that a shutdown ends early, such as long polls."""

    __slots__ = ("_are_over", "_under_way")

    def __init__(self) -> None:
        self._under_way: set[Waiter] = set()
        self._are_over = False

    async def wait(self, wake: Waiter, seconds: float) -> bool:
        """Like `wake.wait`, but returns True as soon as `end` is called."""
        if self._are_over:
            return True
        self._under_way.add(wake)
        try:
            return await wake.wait(seconds)
        finally:
            self._under_way.discard(wake)

    def end(self) -> None:
        """End all waits, and all later ones at once."""
        self._are_over = True
        for wake in list(self._under_way):
            wake.wake_up()


async def gather(
    works: Sequence[Coroutine[Any, Any, T]], so_far: list[T | BaseException] | None = None
) -> list[T | BaseException]:
    """Run coroutines concurrently and return their results in order, exceptions included.

    `so_far` is filled with the results as they arrive, and PENDING for the others. It stays empty
    for a single coroutine.
    """
    if len(works) == 1:
        try:
            return [await works[0]]
        except Exception as failure:  # noqa: BLE001 - failures are results
            return [failure]
    gathered = TaskGroup(so_far)
    for work in works:
        gathered.start_task(work)
    return await gathered.wait()


class TaskGroup(Generic[T]):
    """Coroutines that run concurrently and are started one after the other.

    `results` holds the results so far, PENDING for the others.
    """

    __slots__ = ("_everything", "_has_all", "_missing", "results")

    def __init__(self, results: list[T | BaseException] | None = None) -> None:
        self.results: list[T | BaseException] = [] if results is None else results
        self._missing = 0
        self._has_all = False
        self._everything: SharedResult[None] = SharedResult()

    def start_task(self, work: Coroutine[Any, Any, T]) -> None:
        """Start another coroutine."""
        index = len(self.results)
        self.results.append(PENDING)
        self._missing += 1
        start(work, partial(self._ended, index), partial(self._ended, index))

    async def wait(self) -> list[T | BaseException]:
        """Return all results. No task may be started after this call."""
        self._has_all = True
        if self._missing:
            await self._everything
        return self.results

    def _ended(self, index: int, result: T | BaseException) -> None:
        self.results[index] = result
        self._missing -= 1
        if self._has_all and not self._missing:
            self._everything.succeed(None)


class TimeSlices:
    """Bounds the work of one task in one reactor turn to `slice_rows`.

    Between two slices the reactor serves other requests. `rows` counts the rows of all slices.
    """

    __slots__ = ("_clock", "_left", "_slice_rows", "rows")

    def __init__(self, clock: Clock, slice_rows: int = SLICE_ROWS) -> None:
        self._clock = clock
        self._slice_rows = self._left = slice_rows
        self.rows = 0

    def count(self, rows: int = 1) -> bool:
        """Count rows. Returns True at the end of a slice; the caller then awaits `pause`.

        For loops that run once per record batch.
        """
        self.rows += rows
        self._left -= rows
        return self._left <= 0

    async def pause(self) -> None:
        """Start the next slice after the reactor has served other requests."""
        self._left = self._slice_rows
        await sleep(self._clock, 0)

    async def take(self, rows: int = 1) -> None:
        """Count rows, and pause at the end of a slice."""
        if self.count(rows):
            await self.pause()

    async def gather(self, works: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """Like `gather`, with at most MAX_CONCURRENT_CALLS at a time.

        `works` creates each coroutine when it is started.
        """
        outcomes: list[T | BaseException] = []
        works = iter(works)
        while some := list(islice(works, MAX_CONCURRENT_CALLS)):
            outcomes += await gather(some)
            await self.take(len(some) * CALL_ROWS)
        return outcomes


#: Stands for a result that is not there yet.
PENDING = RuntimeError("not finished yet")


def when_ended(
    waiting: Awaitable[T], done: Callable[[T], None], failed: Callable[[BaseException], None]
) -> None:
    """Call `done` with the result of a store's call, or `failed`; at once if it has ended.

    Neither may raise. For what stores return, a `Completion` or a Deferred, it costs less than a
    coroutine.
    """
    if isinstance(waiting, Completion):
        waiting.when_ended(done, failed)
    elif type(waiting) is Deferred:
        waiting.addCallbacks(done, _pass_failure, errbackArgs=(failed,))
    else:
        start(_result_of(waiting), done, failed)


def _pass_failure(failure: Failure, failed: Callable[[BaseException], None]) -> None:
    failed(cast(BaseException, failure.value))


async def _result_of(waiting: Awaitable[T]) -> T:
    return await waiting


async def shield(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, which continues to its end even if the waiting coroutine is cancelled.

    For operations that must not stop halfway.
    """
    ended: SharedResult[T] = SharedResult()
    start(work, ended.succeed, ended.fail)
    return await ended


class SerialChanges:
    """Makes changes one after another. A change that has begun is completed (`shield`)."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: SharedResult[None] | None = None

    async def make(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await `change()` once no other change runs. A caller that is cancelled before makes none.

        Returns and raises as the change.
        """
        while self._running is not None:
            await self._running
        return await shield(self._make(change))

    async def _make(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        running = self._running = SharedResult()
        try:
            return await change()
        finally:
            self._running = None
            running.succeed(None)


async def shield_with_timeout(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Like `shield`, but waits for at most `seconds`.

    Raises TimeoutError.
    """
    ended: SharedResult[T] = SharedResult()
    start(work, ended.succeed, ended.fail)
    return await ended.with_timeout(clock, seconds)


def call_later(clock: Clock, seconds: float, what: Callable[[], None]) -> Cancel:
    """Call `what` after `seconds`. The returned function cancels the call."""
    timer = clock.callLater(seconds, what)

    def cancel() -> None:
        if timer.active():
            timer.cancel()

    return cancel
