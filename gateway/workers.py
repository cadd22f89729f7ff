"""Worker threads for conversions and password checks. Their queue is fair between clients.

Each call belongs to an owner, for example an address. Owners with waiting calls take turns, each
with its oldest call, so an owner with a thousand calls delays another owner by one call per thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from storage.bridge import Reactor, ReactorCallQueue, WorkerPool

T = TypeVar("T")
Work = Callable[[], Any]


class TooManyWaiting(Exception):
    """The queue is full, and no owner has more waiting calls than the one of this call."""


class FairWorkers:
    """A pool of `threads` threads.

    At most `max_waiting` calls wait; None leaves the limit to those on connections and requests. If
    the queue is full, the owner with the most waiting calls loses its newest call.
    """

    def __init__(
        self, reactor: Reactor, threads: int, name: str, *, max_waiting: int | None = None
    ) -> None:
        # The threads start with the first call. A call is passed on only when a thread is free, so
        # that the order is decided here.
        self._make_threads = partial(WorkerPool, ReactorCallQueue(reactor), threads, threads, name)
        self._threads: WorkerPool | None = None
        self._size = self._free = threads
        self._max_waiting = max_waiting
        self._owners: OrderedDict[Hashable, OrderedDict[Deferred[Any], Work]] = OrderedDict()
        self._waiting = 0
        self._ended: Deferred[None] | None = None

    def run(self, function: Callable[..., T], *arguments: Any) -> Deferred[T]:
        """Like `run_for`, for the gateway itself."""
        return self.run_for(None, function, *arguments)

    def run_for(self, owner: Hashable, function: Callable[..., T], *arguments: Any) -> Deferred[T]:
        """Return the result of a call on another thread.

        A call that is cancelled while it waits is not made. Fails with TooManyWaiting.
        """
        deferred: Deferred[T] = Deferred(partial(self._withdraw, owner))
        if self._ended is not None:
            return deferred
        self._owners.setdefault(owner, OrderedDict())[deferred] = partial(function, *arguments)
        self._waiting += 1
        if self._free:
            self._start()
        elif self._max_waiting is not None and self._waiting > self._max_waiting:
            self._shed()
        return deferred

    async def close(self) -> None:
        """Drop the waiting calls without a result, and return when the running ones have ended.

        The threads are daemon threads.
        """
        self._owners.clear()
        self._waiting = 0
        self._ended = Deferred()
        self._end_if_idle()
        await self._ended

    def _withdraw(self, owner: Hashable, deferred: Deferred[Any]) -> None:
        waiting = self._owners.get(owner)
        if waiting is not None and waiting.pop(deferred, None) is not None:
            self._waiting -= 1
            if not waiting:
                del self._owners[owner]

    def _shed(self) -> None:
        owner = max(self._owners, key=lambda one: len(self._owners[one]))
        newest = next(reversed(self._owners[owner]))
        self._withdraw(owner, newest)
        newest.errback(TooManyWaiting(f"{self._max_waiting} calls are waiting already"))

    def _start(self) -> None:
        """Run the oldest call of the owner whose turn it is on a free thread."""
        owner, waiting = next(iter(self._owners.items()))
        deferred, work = waiting.popitem(last=False)
        self._waiting -= 1
        if waiting:
            self._owners.move_to_end(owner)
        else:
            del self._owners[owner]
        self._free -= 1
        self._threads = self._threads or self._make_threads()
        self._threads.run(work).addBoth(self._done, deferred)

    def _done(self, result: Any, deferred: Deferred[Any]) -> None:
        self._free += 1
        if self._owners:
            self._start()
        if not deferred.called:
            # A Failure fails the Deferred.
            deferred.callback(result)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._ended is not None and self._free == self._size and not self._ended.called:
            if self._threads is not None:
                self._threads.stop(lambda: None)
            self._ended.callback(None)
