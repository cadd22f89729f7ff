from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred

from gateway.protocol import request_time as module
from gateway.protocol.request_time import RequestStopwatch
from tests.fakes.broker import Started


class Ticks:
    """Replaces both clocks of the module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1
        monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(module, "thread_time_ns", lambda: self.now)

    def take(self, ns: int) -> None:
        self.now += ns


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(monkeypatch)


async def nothing() -> None:
    return


def test_waiting_does_not_count(ticks: Ticks) -> None:
    data: Deferred[str] = Deferred()
    totals = []

    async def work() -> str:
        ticks.take(5)
        result = await data
        ticks.take(7)
        totals.append(stopwatch.total_ns())
        return result

    stopwatch = RequestStopwatch(work())
    started = Started(stopwatch)
    assert stopwatch.total_ns() == 5
    ticks.take(1000)
    data.callback("data")
    assert (started.result, totals, stopwatch.total_ns()) == ("data", [12], 12)


def test_work_that_is_cancelled_or_fails_counts(ticks: Ticks) -> None:
    async def work() -> None:
        try:
            await Deferred()
        finally:
            ticks.take(3)

    stopwatch = RequestStopwatch(work())
    started = Started(stopwatch)
    started.cancel()
    assert isinstance(started.failure, CancelledError)
    assert stopwatch.total_ns() == 3


def test_time_of_worker_threads_counts(ticks: Ticks) -> None:
    stopwatch = RequestStopwatch(nothing())
    assert stopwatch.run(lambda ns: ticks.take(ns) or ns, 40) == 40
    stopwatch.add(2)
    assert stopwatch.total_ns() == 42
    with pytest.raises(ZeroDivisionError):
        stopwatch.run(lambda: ticks.take(8) or 1 / 0)
    assert stopwatch.total_ns() == 50
    stopwatch.close()
