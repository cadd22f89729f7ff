"""Running coroutines on the reactor: ends, cancellation, waits, timeouts and concurrency."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from gateway.coroutines import (
    SLICE_ROWS,
    InterruptibleWaits,
    SerialChanges,
    TimeSlices,
    Waiter,
    call_later,
    gather,
    start,
    when_ended,
)
from storage.bridge import Completion
from tests.fakes.broker import Started


class StartedRun:
    """A started coroutine and its outcome."""

    def __init__(self, work):
        self.ends = []
        self.cancel = start(
            work,
            lambda result: self.ends.append(("done", result)),
            lambda failure: self.ends.append(("failed", failure)),
        )

    @property
    def result(self):
        ((how, result),) = self.ends
        assert how == "done"
        return result

    @property
    def failure(self):
        ((how, failure),) = self.ends
        assert how == "failed"
        return failure


async def value_of(awaitable):
    return await awaitable


async def sum_of(*awaitables):
    return sum([await awaitable for awaitable in awaitables])


def test_coroutine_without_waits_ends_at_once():
    async def work():
        return 7

    run = StartedRun(work())
    assert run.result == 7
    assert run.cancel is None


def test_coroutine_continues_after_each_wait():
    first, second, third = Deferred(), Deferred(), Deferred()
    run = StartedRun(sum_of(first, second, third))
    second.callback(20)
    first.callback(1)
    assert run.ends == []
    third.callback(300)
    assert run.result == 321


def test_failure_is_raised_in_awaiting_coroutine():
    async def work(awaited):
        try:
            return await awaited
        except ZeroDivisionError:
            return "handled"

    early, late = Deferred(), Deferred()
    early.errback(ZeroDivisionError())
    assert StartedRun(work(early)).result == "handled"
    run = StartedRun(work(late))
    late.errback(ZeroDivisionError())
    assert run.result == "handled"


def test_unhandled_failure_ends_coroutine():
    awaited = Deferred()
    run = StartedRun(value_of(awaited))
    failure = ZeroDivisionError()
    awaited.errback(failure)
    assert run.failure is failure


def test_cancelling_ends_wait_and_coroutine_may_handle_it():
    cancelled = []

    async def work(awaited):
        try:
            await awaited
        finally:
            cancelled.append("cleaned up")

    awaited = Deferred()
    run = StartedRun(work(awaited))
    run.cancel()
    assert cancelled == ["cleaned up"]
    assert isinstance(run.failure, CancelledError)
    run.cancel()
    assert len(run.ends) == 1


def test_cancelling_reaches_current_wait():
    seen = []
    first, second = Deferred(), Deferred(seen.append)
    run = StartedRun(sum_of(first, second))
    first.callback(1)
    run.cancel()
    assert seen == [second]
    assert isinstance(run.failure, CancelledError)


def test_many_consecutive_waits_do_not_deepen_stack():
    async def work():
        for _ in range(10_000):
            await passed()
        return "done"

    def passed():
        deferred = Deferred()
        deferred.callback(None)
        return deferred

    assert StartedRun(work()).result == "done"


# Waiter


def test_wait_ends_by_event_or_timeout():
    clock = Clock()
    by_event, by_deadline = Waiter(clock), Waiter(clock)
    runs = StartedRun(by_event.wait(5)), StartedRun(by_deadline.wait(5))
    by_event.wake_up()
    clock.advance(4.9)
    assert runs[1].ends == []
    clock.advance(0.2)
    assert [run.result for run in runs] == [True, False]
    assert clock.getDelayedCalls() == []


def test_wake_up_without_waiter_has_no_effect():
    clock = Clock()
    wake = Waiter(clock)
    wake.wake_up()
    run = StartedRun(wake.wait(1))
    assert run.ends == []
    wake.wake_up()
    wake.wake_up()
    assert run.result is True


def test_cancelled_wait_cancels_its_timer():
    clock = Clock()
    wake = Waiter(clock)
    run = StartedRun(wake.wait(5))
    run.cancel()
    wake.wake_up()
    assert isinstance(run.failure, CancelledError)
    assert clock.getDelayedCalls() == []


def test_waiter_can_be_reused_after_wait():
    clock = Clock()
    wake = Waiter(clock)
    assert [self_ended(wake, clock), self_ended(wake, clock)] == [False, False]


def self_ended(wake, clock):
    run = StartedRun(wake.wait(1))
    clock.advance(1)
    return run.result


def test_end_wakes_current_and_later_waits():
    clock = Clock()
    waits = InterruptibleWaits()
    runs = [StartedRun(waits.wait(Waiter(clock), 60)) for _ in range(3)]
    runs[0].cancel()
    waits.end()
    late = StartedRun(waits.wait(Waiter(clock), 60))
    assert [run.result for run in [*runs[1:], late]] == [True, True, True]
    assert clock.getDelayedCalls() == []


# gather


@given(data=st.data(), count=st.integers(0, 6))
def test_gathered_results_keep_order_of_coroutines(data, count):
    deferreds = [Deferred() for _ in range(count)]
    run = StartedRun(gather([value_of(deferred) for deferred in deferreds]))
    failures = [KeyError(index) for index in range(count)]
    expected = []
    fails = [data.draw(st.booleans()) for _ in range(count)]
    for index in data.draw(st.permutations(range(count))):
        assert run.ends == []
        if fails[index]:
            deferreds[index].errback(failures[index])
        else:
            deferreds[index].callback(index)
    expected = [failures[index] if fails[index] else index for index in range(count)]
    assert run.result == expected


def test_gather_starts_all_coroutines_in_order():
    started = []

    async def work(index, awaited):
        started.append(index)
        return await awaited

    StartedRun(gather([work(index, Deferred()) for index in range(3)]))
    assert started == [0, 1, 2]


# call_later


class NotedChanges:
    """Changes that wait for a Deferred each; `begun` and `made` are their numbers."""

    def __init__(self, count):
        self.serial = SerialChanges()
        self.waits = [Deferred() for _ in range(count)]
        self.begun, self.made = [], []
        self.runs = [
            StartedRun(self.serial.make(lambda number=number: self._change(number)))
            for number in range(count)
        ]

    async def _change(self, number):
        self.begun.append(number)
        await self.waits[number]
        self.made.append(number)
        return number


def test_change_begins_when_the_one_before_has_ended():
    changes = NotedChanges(3)
    assert changes.begun == [0]
    changes.waits[0].callback(None)
    assert changes.begun == [0, 1]
    changes.waits[1].callback(None)
    changes.waits[2].callback(None)
    assert changes.made == [run.result for run in changes.runs] == [0, 1, 2]


def test_failed_change_does_not_prevent_the_next():
    changes = NotedChanges(2)
    changes.waits[0].errback(ValueError("no"))
    changes.waits[1].callback(None)
    assert isinstance(changes.runs[0].failure, ValueError)
    assert changes.runs[1].result == 1


def test_change_that_has_begun_is_completed_and_one_that_waits_is_not_made():
    changes = NotedChanges(3)
    changes.runs[0].cancel()
    changes.runs[1].cancel()
    for wait in changes.waits:
        wait.callback(None)
    assert changes.made == [0, 2]
    assert [type(run.failure) for run in changes.runs[:2]] == [CancelledError] * 2


def test_call_later_runs_after_delay_unless_cancelled():
    clock = Clock()
    calls = []
    call_later(clock, 1, lambda: calls.append("kept"))
    take_back = call_later(clock, 1, lambda: calls.append("taken back"))
    take_back()
    take_back()
    clock.advance(1)
    assert calls == ["kept"]


@pytest.mark.parametrize("when", [0.5, 1.5])
def test_cancelling_call_is_allowed_at_any_time(when):
    clock = Clock()
    take_back = call_later(clock, 1, lambda: None)
    clock.advance(when)
    take_back()
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("is_failure", [False, True])
def test_failure_after_end_does_not_keep_earlier_failure(is_failure):
    """The next request of a connection starts where the previous one ends. A chain of all failures
    would keep the records of all of them.
    """
    contexts = []

    async def ends():
        if is_failure:
            raise KeyError
        return "result"

    def goes_on(_):
        try:
            raise ValueError
        except ValueError as failure:
            contexts.append(failure.__context__)

    start(ends(), goes_on, goes_on)
    assert contexts == [None]


# TimeSlices


def test_failure_is_freed_without_garbage_collection():
    class Failed(Exception):
        pass

    async def work():
        raise Failed

    failures = []
    gc.disable()
    try:
        start(work(), failures.append, lambda failure: failures.append(weakref.ref(failure)))
        assert [failure() for failure in failures] == [None]
    finally:
        gc.enable()


def test_slice_has_limited_rows():
    clock = Clock()
    slices = TimeSlices(clock)
    assert Started(slices.take(SLICE_ROWS - 1)).is_done
    assert not (second := Started(slices.take())).is_done
    clock.advance(0)
    assert second.is_done
    assert Started(slices.take()).is_done
    assert slices.rows == SLICE_ROWS + 1


@pytest.mark.parametrize("kind", [Completion, Deferred])
def test_when_ended_calls_one_of_both(kind):
    ended = []
    done, failed = kind(), kind()
    failure = KeyError("it")
    when_ended(done, ended.append, lambda error: ended.append(["failed", error]))
    when_ended(failed, ended.append, lambda error: ended.append(["failed", error]))
    done.callback("it")
    failed.errback(failure)
    assert ended == ["it", ["failed", failure]]


def test_when_ended_accepts_any_awaitable():
    source, ended = Deferred(), []
    when_ended(value_of(source), ended.append, ended.append)
    source.callback("it")
    assert ended == ["it"]
