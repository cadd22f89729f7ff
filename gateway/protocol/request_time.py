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

    __slots__ = ("_of_workers", "began", "ns")

    def __init__(self) -> None:
        #: Finished steps on the reactor's thread, and when the running one began, 0 for none.
        self.ns = self.began = 0
        # Appended to by worker threads.
        self._of_workers: list[int] = []

    def total_ns(self) -> int:
        total = self.ns
        if self.began:
            total += perf_counter_ns() - self.began
        return total + sum(self._of_workers)

    def measure(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return `work`, measured whenever it runs on the reactor's thread."""
        return _MeasuredCoroutine(work, self)

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
        stopwatch = self._stopwatch
        stopwatch.began = perf_counter_ns()
        try:
            return self._work.send(value)
        finally:
            stopwatch.ns += perf_counter_ns() - stopwatch.began
            stopwatch.began = 0

    def throw(
        self,
        failure: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        stopwatch = self._stopwatch
        stopwatch.began = perf_counter_ns()
        try:
            return self._work.throw(failure)
        finally:
            stopwatch.ns += perf_counter_ns() - stopwatch.began
            stopwatch.began = 0

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()
