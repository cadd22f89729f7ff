"""The coarse clock: calls are never early, at most two ticks late, and cheap to cancel."""

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
def test_call_is_never_early_and_at_most_two_ticks_late(clock, coarse, delay):
    called: list[float] = []
    begun = clock.seconds()
    call = coarse.callLater(delay, lambda: called.append(coarse.seconds() - begun))
    passed(clock, delay + 3 * GRANULARITY_SECONDS)
    assert delay <= called[0] <= delay + 2 * GRANULARITY_SECONDS
    assert not call.active()


def test_call_gets_arguments_and_runs_once(clock, coarse):
    called: list[int] = []
    coarse.callLater(0.1, called.append, 7)
    passed(clock, 1)
    assert called == [7]


def test_cancelled_call_does_not_run(clock, coarse):
    called: list[int] = []
    first, second = coarse.callLater(0.1, called.append, 1), coarse.callLater(0.1, called.append, 2)
    first.cancel()
    first.cancel()
    assert (first.active(), second.active()) == (False, True)
    passed(clock, 1)
    assert called == [2]


def test_call_may_cancel_another_of_same_tick(clock, coarse):
    called: list[str] = []
    calls = [
        coarse.callLater(0.1, lambda: (called.append("one"), [call.cancel() for call in calls]))
        for _ in range(2)
    ]
    passed(clock, 1)
    assert called == ["one"]


def test_all_calls_share_one_timer_and_none_runs_without_calls(clock, coarse):
    calls = [coarse.callLater(n, lambda: None) for n in range(50)]
    assert len(clock.getDelayedCalls()) == 1
    for call in calls:
        call.cancel()
    passed(clock, 2 * GRANULARITY_SECONDS)
    assert clock.getDelayedCalls() == []


def test_calls_missed_while_process_was_suspended_run_in_order(clock, coarse):
    called: list[int] = []
    for n in (3, 1, 2):
        coarse.callLater(n, called.append, n)
    clock.advance(10)
    assert called == [1, 2, 3]


class Request:
    """Refers to its deadline, which has the request as an argument."""

    deadline: object = None


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "called"])
def test_call_releases_arguments_without_garbage_collection(clock, coarse, is_cancelled):
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
