"""Deadlines that hardly ever come: never early, a grain late at most, and nothing is left of those that are taken back."""

from __future__ import annotations

import gc
import weakref

import pytest
from twisted.internet.task import Clock

from gateway.coarse_clock import GRANULARITY_SECONDS, CoarseClock


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(1_700_000_000.03)
    return clock


@pytest.fixture
def coarse(clock: Clock) -> CoarseClock:
    return CoarseClock(clock)


def passed(clock: Clock, seconds: float) -> None:
    for _ in range(round(seconds * 1000)):
        clock.advance(0.001)


@pytest.mark.parametrize("delay", [0, 0.05, 0.1, 0.25, 3])
def test_a_call_comes_never_early_and_a_tick_after_the_next_grain_at_most(clock, coarse, delay):
    called: list[float] = []
    begun = clock.seconds()
    call = coarse.callLater(delay, lambda: called.append(coarse.seconds() - begun))
    passed(clock, delay + 3 * GRANULARITY_SECONDS)
    assert delay <= called[0] <= delay + 2 * GRANULARITY_SECONDS
    assert not call.active()


def test_a_call_is_given_its_arguments_and_comes_once(clock, coarse):
    called: list[int] = []
    coarse.callLater(0.1, called.append, 7)
    passed(clock, 1)
    assert called == [7]


def test_a_call_that_is_taken_back_does_not_come(clock, coarse):
    called: list[int] = []
    first, second = coarse.callLater(0.1, called.append, 1), coarse.callLater(0.1, called.append, 2)
    first.cancel()
    first.cancel()
    assert (first.active(), second.active()) == (False, True)
    passed(clock, 1)
    assert called == [2]


def test_a_call_may_take_back_another_of_the_same_moment(clock, coarse):
    called: list[str] = []
    calls = [
        coarse.callLater(0.1, lambda: (called.append("one"), [call.cancel() for call in calls]))
        for _ in range(2)
    ]
    passed(clock, 1)
    assert called == ["one"]


def test_one_timer_is_enough_for_all_and_none_is_there_for_nothing(clock, coarse):
    calls = [coarse.callLater(n, lambda: None) for n in range(50)]
    assert len(clock.getDelayedCalls()) == 1
    for call in calls:
        call.cancel()
    passed(clock, 2 * GRANULARITY_SECONDS)
    assert clock.getDelayedCalls() == []


def test_calls_that_were_missed_while_the_machine_stood_still_come_in_order(clock, coarse):
    called: list[int] = []
    for n in (3, 1, 2):
        coarse.callLater(n, called.append, n)
    clock.advance(10)
    assert called == [1, 2, 3]


class Request:
    """It has its deadline, and is an argument of it."""

    deadline: object = None


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "called"])
def test_a_call_releases_its_arguments_without_the_garbage_collector(clock, coarse, is_cancelled):
    gc.disable()
    try:
        request = Request()
        request.deadline = call = coarse.callLater(1, id, request)
        seen = weakref.ref(request)
        if is_cancelled:
            call.cancel()
        else:
            passed(clock, 1 + 2 * GRANULARITY_SECONDS)
        del request, call
        assert seen() is None
    finally:
        gc.enable()
