"""Threads for work that clients cause: conversions and password checks. The queue in front of them is fair between clients.

Work belongs to an owner, for example an address. The owners with waiting work take turns, each with its oldest piece, so that
an owner with a thousand pieces delays another owner by one piece per thread.
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
    """The queue is full, and no owner has more waiting work than the one that failed with this."""


class FairWorkers:
    """`threads` threads. At most `max_waiting` pieces of work wait; None leaves that to the limits on connections and requests.

    If the queue is full, the owner with the most waiting work loses its newest piece.
    """

    def __init__(
        self, reactor: Reactor, threads: int, name: str, *, max_waiting: int | None = None
    ) -> None:
        # Started with the first piece of work. None is handed over before a thread is free, so that the order is decided here.
        self._make_threads = partial(WorkerPool, ReactorCallQueue(reactor), threads, threads, name)
        self._threads: WorkerPool | None = None
        self._size = self._free = threads
        self._max_waiting = max_waiting
        self._owners: OrderedDict[Hashable, OrderedDict[Deferred[Any], Work]] = OrderedDict()
        self._waiting = 0
        self._ended: Deferred[None] | None = None

    def run(self, function: Callable[..., T], *arguments: Any) -> Deferred[T]:
        """As `run_for`, for the gateway itself."""
        return self.run_for(None, function, *arguments)

    def run_for(self, owner: Hashable, function: Callable[..., T], *arguments: Any) -> Deferred[T]:
        """The result of a call in a thread. If it is cancelled while it waits, the call is never made.

        Fails with TooMuchWaits.
        """
        told: Deferred[T] = Deferred(partial(self._withdraw, owner))
        if self._ended is not None:
            return told
        self._owners.setdefault(owner, OrderedDict())[told] = partial(function, *arguments)
        self._waiting += 1
        if self._free:
            self._start()
        elif self._max_waiting is not None and self._waiting > self._max_waiting:
            self._shed()
        return told

    async def close(self) -> None:
        """Drop what waits, without a word to its callers, and return when the running calls have ended.

        The threads do not keep the process alive.
        """
        self._owners.clear()
        self._waiting = 0
        self._ended = Deferred()
        self._end_if_idle()
        await self._ended

    def _withdraw(self, owner: Hashable, told: Deferred[Any]) -> None:
        waiting = self._owners.get(owner)
        if waiting is not None and waiting.pop(told, None) is not None:
            self._waiting -= 1
            if not waiting:
                del self._owners[owner]

    def _shed(self) -> None:
        owner = max(self._owners, key=lambda one: len(self._owners[one]))
        newest = next(reversed(self._owners[owner]))
        self._withdraw(owner, newest)
        newest.errback(TooManyWaiting(f"{self._max_waiting} wait already"))

    def _start(self) -> None:
        """Hand the oldest work of the owner whose turn it is to a free thread."""
        owner, waiting = next(iter(self._owners.items()))
        told, work = waiting.popitem(last=False)
        self._waiting -= 1
        if waiting:
            self._owners.move_to_end(owner)
        else:
            del self._owners[owner]
        self._free -= 1
        self._threads = self._threads or self._make_threads()
        self._threads.run(work).addBoth(self._done, told)

    def _done(self, result: Any, told: Deferred[Any]) -> None:
        self._free += 1
        if self._owners:
            self._start()
        if not told.called:
            # A Failure becomes the failure of `told`.
            told.callback(result)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._ended is not None and self._free == self._size and not self._ended.called:
            if self._threads is not None:
                self._threads.stop(lambda: None)
            self._ended.callback(None)
