"""Measures the time that the gateway spends on a request, for the quota request_percentage.

It is the time on the reactor's thread while the request's handler runs, and the CPU time of worker
threads on its behalf. Waiting, as in a long poll, does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import perf_counter_ns, thread_time_ns
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class RequestStopwatch:
    """The time spent on one request so far."""

    __slots__ = ("_began", "_ns", "_of_workers")

    def __init__(self) -> None:
        self._ns = 0
        self._began: int | None = None
        # Appended to by worker threads.
        self._of_workers: list[int] = []

    def total_ns(self) -> int:
        running = 0 if self._began is None else perf_counter_ns() - self._began
        return self._ns + running + sum(self._of_workers)

    def measure(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return `work`, measured whenever it runs on the reactor's thread."""
        return _MeasuredCoroutine(work, self)

    def begin(self) -> None:
        self._began = perf_counter_ns()

    def end(self) -> None:
        if self._began is not None:
            self._ns += perf_counter_ns() - self._began
            self._began = None

    def add(self, ns: int) -> None:
        """Add CPU time of a worker thread."""
        self._of_workers.append(ns)

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, on a worker thread, and add its CPU time."""
        began = thread_time_ns()
        try:
            return function(*arguments)
        finally:
            self.add(thread_time_ns() - began)


class _MeasuredCoroutine(Coroutine[Any, Any, T]):
    __slots__ = ("_stopwatch", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], stopwatch: RequestStopwatch) -> None:
        self._work = work
        self._stopwatch = stopwatch

    def send(self, value: Any, /) -> Any:
        self._stopwatch.begin()
        try:
            return self._work.send(value)
        finally:
            self._stopwatch.end()

    def throw(
        self,
        failure: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        self._stopwatch.begin()
        try:
            return self._work.throw(failure)
        finally:
            self._stopwatch.end()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()
