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


class RequestStopwatch(Coroutine[Any, Any, Any]):
    """A coroutine that is measured whenever it runs on the reactor's thread."""

    __slots__ = ("_began", "_ns", "_of_workers", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        # Finished steps, and when the running one began, 0 for none.
        self._ns = self._began = 0
        # Worker threads add to it without a lock. Simultaneous calls may lose time, but calls for
        # one request rarely overlap.
        self._of_workers = 0

    def total_ns(self) -> int:
        """The time so far."""
        total = self._ns + self._of_workers
        return total + perf_counter_ns() - self._began if self._began else total

    def add(self, ns: int) -> None:
        """Add CPU time of a worker thread."""
        self._of_workers += ns

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, on a worker thread, and add its CPU time."""
        began = thread_time_ns()
        try:
            return function(*arguments)
        finally:
            self.add(thread_time_ns() - began)

    def send(self, value: Any, /) -> Any:
        self._began = began = perf_counter_ns()
        try:
            return self._work.send(value)
        finally:
            self._ns += perf_counter_ns() - began
            self._began = 0

    def throw(
        self,
        failure: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        self._began = began = perf_counter_ns()
        try:
            return self._work.throw(failure)
        finally:
            self._ns += perf_counter_ns() - began
            self._began = 0

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()
