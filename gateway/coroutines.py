"""Where coroutines meet the reactor: starting them, waking them, giving them deadlines.

Handlers are plain `async def` and await what this module and the stores hand out; Deferreds are named here and in the stores' bridges only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


class DelayedCall(Protocol):
    """A call that is still to come, or not any more."""

    def active(self) -> bool: ...
    def cancel(self) -> None: ...


class Clock(Protocol):
    """What counts the waits, in seconds: a reactor, or Twisted's `task.Clock` in tests."""

    def seconds(self) -> float: ...
    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object
    ) -> DelayedCall: ...


#: What `start` hands back: call it to cancel what waits. Calling it after the end does nothing.
Cancel = Callable[[], None]

__all__ = [
    "PENDING",
    "Cancel",
    "CancelledError",
    "Clock",
    "DelayedCall",
    "InterruptibleWaits",
    "SharedResult",
    "TaskGroup",
    "Waiter",
    "call_later",
    "gather",
    "has_fired",
    "shield",
    "shield_with_timeout",
    "start",
]


def start(
    work: Coroutine[Any, Any, T], done: Callable[[T], None], failed: Callable[[BaseException], None]
) -> Cancel | None:
    """Run `work` until it waits, and go on whenever what it waits for is there; exactly one of `done` and `failed` is called at its end.

    Returns None where the end came at once. Cancelling raises CancelledError inside `work`, which then ends through `failed`.
    """
    running = _Running(work, done, failed)
    running.step(None)
    return None if running.awaited is None else running.cancel


class _Running(Generic[T]):
    """A coroutine under way. Deferred.fromCoroutine does the same at six times the cost where nothing waits, as most requests do not."""

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
        """Run on to the next wait. As a callback it leaves a result to the awaiting expression, which reads it itself; a failure is thrown there.

        A Deferred cannot raise its own failure while its callbacks run: it has not yet made the note that it would cross out.
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
        except Exception as failure:  # noqa: BLE001 - the rim: whatever it was is handed on
            ended = partial(self.failed, failure)
        else:
            self.awaited = awaited
            awaited.addBoth(self.step)
            return
        # Not while the exception is handled: each one that is raised from here on would have it as its context, with all that it holds.
        ended()

    def cancel(self) -> None:
        if self.awaited is not None:
            self.awaited.cancel()


class Waiter:
    """One waiter, woken by an event or by a deadline. Not for reuse while somebody waits."""

    __slots__ = ("_clock", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: Deferred[bool] | None = None

    def wake_up(self) -> None:
        """Wake the waiter, if there is one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(True)

    async def wait(self, seconds: float) -> bool:
        """True once fired, False after `seconds`. Raises CancelledError when the request is cancelled meanwhile."""
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
    """The waits that may be cut short without harm, so that a shutdown need not sit them out."""

    __slots__ = ("_are_over", "_under_way")

    def __init__(self) -> None:
        self._under_way: set[Waiter] = set()
        self._are_over = False

    async def wait(self, wake: Waiter, seconds: float) -> bool:
        """As `wake.wait`, but at an end as soon as all waits are."""
        if self._are_over:
            return True
        self._under_way.add(wake)
        try:
            return await wake.wait(seconds)
        finally:
            self._under_way.discard(wake)

    def end(self) -> None:
        """Wake everyone, now and from now on."""
        self._are_over = True
        for wake in list(self._under_way):
            wake.wake_up()


class SharedResult(Awaitable[T]):
    """One result for any number of waiters, in the order in which they began to wait."""

    __slots__ = ("_failure", "_result", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Deferred[None]] | None = []
        self._result: T | None = None
        self._failure: BaseException | None = None

    def succeed(self, result: T) -> None:
        self._result = result
        self._release()

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._release()

    def _release(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for deferred in waiting:
            if not deferred.called:
                deferred.callback(None)

    def __await__(self) -> Generator[Any, None, T]:
        if self._waiting is not None:
            deferred: Deferred[None] = Deferred()
            self._waiting.append(deferred)
            yield from deferred.__await__()
        return self._outcome()

    def _outcome(self) -> T:
        if self._failure is not None:
            raise self._failure
        return cast(T, self._result)

    async def with_timeout(self, clock: Clock, seconds: float) -> T:
        """As awaiting it, for at most so long; what it is the result of goes on. Raises TimeoutError."""
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
        return self._outcome()


async def gather(
    works: Sequence[Coroutine[Any, Any, T]], so_far: list[T | BaseException] | None = None
) -> list[T | BaseException]:
    """Run all coroutines at the same time. The results in their order, exceptions among them.

    `so_far` is filled with the results that are there, NOT_YET for the others; it stays empty for one coroutine.
    """
    if len(works) == 1:
        try:
            return [await works[0]]
        except Exception as failure:  # noqa: BLE001 - it is a result like any other
            return [failure]
    gathered = TaskGroup(so_far)
    for work in works:
        gathered.start_task(work)
    return await gathered.wait()


class TaskGroup(Generic[T]):
    """Coroutines that run at the same time and begin one after the other. `results` has what is there, NOT_YET for the others."""

    __slots__ = ("_everything", "_has_all", "_missing", "results")

    def __init__(self, results: list[T | BaseException] | None = None) -> None:
        self.results: list[T | BaseException] = [] if results is None else results
        self._missing = 0
        self._has_all = False
        self._everything: SharedResult[None] = SharedResult()

    def start_task(self, work: Coroutine[Any, Any, T]) -> None:
        """Start one more."""
        index = len(self.results)
        self.results.append(PENDING)
        self._missing += 1
        start(work, partial(self._ended, index), partial(self._ended, index))

    async def wait(self) -> list[T | BaseException]:
        """All results. Nothing may begin after this."""
        self._has_all = True
        if self._missing:
            await self._everything
        return self.results

    def _ended(self, index: int, result: T | BaseException) -> None:
        self.results[index] = result
        self._missing -= 1
        if self._has_all and not self._missing:
            self._everything.succeed(None)


#: In the place of a result that there is not.
PENDING = RuntimeError("not ended yet")


def has_fired(waiting: object) -> bool:
    """Whether what is waited for has ended already, as far as that can be told without waiting."""
    return isinstance(waiting, Deferred) and bool(waiting.called)


async def shield(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, which goes on to its end whether or not the one who waits for it is cancelled: for what must not be left half done."""
    ended: SharedResult[T] = SharedResult()
    start(work, ended.succeed, ended.fail)
    return await ended


async def shield_with_timeout(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """As `shield`, waited for at most so long. Raises TimeoutError."""
    ended: SharedResult[T] = SharedResult()
    start(work, ended.succeed, ended.fail)
    return await ended.with_timeout(clock, seconds)


def call_later(clock: Clock, seconds: float, what: Callable[[], None]) -> Cancel:
    """Call `what` after `seconds`; the returned function takes it back."""
    timer = clock.callLater(seconds, what)

    def cancel() -> None:
        if timer.active():
            timer.cancel()

    return cancel
