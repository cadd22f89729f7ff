"""Where coroutines meet the reactor: each ends exactly once, may be cancelled wherever it waits, and nobody is woken twice or never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from gateway.coroutines import InterruptibleWaits, SharedResult, Waiter, call_later, gather, start
from tests.fakes.broker import Started


class Run:
    """A coroutine that was started, and how it ended."""

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


def test_what_never_waits_ends_at_once():
    async def work():
        return 7

    run = Run(work())
    assert run.result == 7
    assert run.cancel is None


def test_what_waits_goes_on_when_it_is_there_as_often_as_it_waits():
    first, second, third = Deferred(), Deferred(), Deferred()
    run = Run(sum_of(first, second, third))
    second.callback(20)
    first.callback(1)
    assert run.ends == []
    third.callback(300)
    assert run.result == 321


def test_a_failure_reaches_the_one_who_awaits_and_may_be_handled_there():
    async def work(awaited):
        try:
            return await awaited
        except ZeroDivisionError:
            return "handled"

    early, late = Deferred(), Deferred()
    early.errback(ZeroDivisionError())
    assert Run(work(early)).result == "handled"
    run = Run(work(late))
    late.errback(ZeroDivisionError())
    assert run.result == "handled"


def test_a_failure_that_nobody_handles_ends_the_work():
    awaited = Deferred()
    run = Run(value_of(awaited))
    failure = ZeroDivisionError()
    awaited.errback(failure)
    assert run.failure is failure


def test_cancelling_breaks_off_the_wait_and_leaves_the_rest_to_the_work():
    cancelled = []

    async def work(awaited):
        try:
            await awaited
        finally:
            cancelled.append("cleaned up")

    awaited = Deferred()
    run = Run(work(awaited))
    run.cancel()
    assert cancelled == ["cleaned up"]
    assert isinstance(run.failure, CancelledError)
    run.cancel()
    assert len(run.ends) == 1


def test_cancelling_reaches_the_wait_that_is_under_way_now():
    seen = []
    first, second = Deferred(), Deferred(seen.append)
    run = Run(sum_of(first, second))
    first.callback(1)
    run.cancel()
    assert seen == [second]
    assert isinstance(run.failure, CancelledError)


def test_ten_thousand_waits_in_a_row_need_no_deep_stack():
    async def work():
        for _ in range(10_000):
            await passed()
        return "done"

    def passed():
        deferred = Deferred()
        deferred.callback(None)
        return deferred

    assert Run(work()).result == "done"


# Wake


def test_a_wake_ends_by_the_event_or_by_the_deadline():
    clock = Clock()
    by_event, by_deadline = Waiter(clock), Waiter(clock)
    runs = Run(by_event.wait(5)), Run(by_deadline.wait(5))
    by_event.wake_up()
    clock.advance(4.9)
    assert runs[1].ends == []
    clock.advance(0.2)
    assert [run.result for run in runs] == [True, False]
    assert clock.getDelayedCalls() == []


def test_firing_at_nobody_does_nothing():
    clock = Clock()
    wake = Waiter(clock)
    wake.wake_up()
    run = Run(wake.wait(1))
    assert run.ends == []
    wake.wake_up()
    wake.wake_up()
    assert run.result is True


def test_a_cancelled_wait_leaves_no_timer():
    clock = Clock()
    wake = Waiter(clock)
    run = Run(wake.wait(5))
    run.cancel()
    wake.wake_up()
    assert isinstance(run.failure, CancelledError)
    assert clock.getDelayedCalls() == []


def test_a_wake_may_be_waited_for_again():
    clock = Clock()
    wake = Waiter(clock)
    assert [self_ended(wake, clock), self_ended(wake, clock)] == [False, False]


def self_ended(wake, clock):
    run = Run(wake.wait(1))
    clock.advance(1)
    return run.result


def test_the_end_of_all_waits_wakes_those_that_wait_and_those_that_would():
    clock = Clock()
    waits = InterruptibleWaits()
    runs = [Run(waits.wait(Waiter(clock), 60)) for _ in range(3)]
    runs[0].cancel()
    waits.end()
    late = Run(waits.wait(Waiter(clock), 60))
    assert [run.result for run in [*runs[1:], late]] == [True, True, True]
    assert clock.getDelayedCalls() == []


# Shared


def test_one_result_reaches_all_in_the_order_in_which_they_wait():
    shared = SharedResult()
    order = []

    async def work(index):
        order.append((index, await shared))

    for index in range(3):
        Run(work(index))
    shared.succeed("it")
    Run(work(3))
    assert order == [(0, "it"), (1, "it"), (2, "it"), (3, "it")]


def test_one_failure_reaches_all():
    shared = SharedResult()
    runs = [Run(value_of(shared))]
    failure = KeyError("it")
    shared.fail(failure)
    runs.append(Run(value_of(shared)))
    assert [run.failure for run in runs] == [failure, failure]


def test_one_that_is_cancelled_does_not_trouble_the_others():
    shared = SharedResult()
    first, second = Run(value_of(shared)), Run(value_of(shared))
    first.cancel()
    shared.succeed(1)
    assert isinstance(first.failure, CancelledError)
    assert second.result == 1


# gather


@given(data=st.data(), count=st.integers(0, 6))
def test_gathered_results_stand_in_the_order_of_the_works_whatever_ends_first(data, count):
    deferreds = [Deferred() for _ in range(count)]
    run = Run(gather([value_of(deferred) for deferred in deferreds]))
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


def test_what_is_gathered_starts_at_once_and_in_order():
    started = []

    async def work(index, awaited):
        started.append(index)
        return await awaited

    Run(gather([work(index, Deferred()) for index in range(3)]))
    assert started == [0, 1, 2]


# call_later


def test_a_call_is_made_once_its_time_has_come_unless_it_is_taken_back():
    clock = Clock()
    calls = []
    call_later(clock, 1, lambda: calls.append("kept"))
    take_back = call_later(clock, 1, lambda: calls.append("taken back"))
    take_back()
    take_back()
    clock.advance(1)
    assert calls == ["kept"]


@pytest.mark.parametrize("when", [0.5, 1.5])
def test_taking_back_is_harmless_at_any_time(when):
    clock = Clock()
    take_back = call_later(clock, 1, lambda: None)
    clock.advance(when)
    take_back()
    assert clock.getDelayedCalls() == []


def test_a_result_that_comes_in_time_is_waited_for_and_leaves_nothing_behind():
    clock, shared = Clock(), SharedResult[int]()
    waiting = Started(shared.with_timeout(clock, 5))
    shared.succeed(7)
    assert (waiting.result, clock.getDelayedCalls()) == (7, [])


def test_a_result_is_not_waited_for_longer_than_was_said_and_may_come_for_others():
    clock, shared = Clock(), SharedResult[int]()
    patient, hasty, late = (
        Started(shared.with_timeout(clock, 5)),
        Started(shared.with_timeout(clock, 1)),
        Started(shared.with_timeout(clock, 0)),
    )
    assert isinstance(late.failure, TimeoutError)
    clock.advance(1)
    assert isinstance(hasty.failure, TimeoutError)
    shared.fail(ValueError("no"))
    assert isinstance(patient.failure, ValueError)
    assert clock.getDelayedCalls() == []


def test_a_wait_for_a_result_that_is_cancelled_leaves_nothing_behind():
    clock, shared = Clock(), SharedResult[int]()
    waiting = Started(shared.with_timeout(clock, 5))
    waiting.cancel()
    assert isinstance(waiting.failure, CancelledError)
    shared.succeed(1)
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("is_failure", [False, True])
def test_what_goes_wrong_after_an_end_does_not_hold_on_to_it(is_failure):
    """The next request of a connection is started where the one before ends: a chain of all that failed would hold the records of all."""
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
