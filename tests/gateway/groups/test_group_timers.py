"""Group timers: each due call is made once, in order, with a limited number per reactor turn."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from gateway.groups.group_timers import MAX_CANCELLED, GroupClock, GroupTimers


class AdvancingClock(Clock):
    """A clock that advances during calls."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[list[int]] = [[]]

    def work(self, number: int, seconds: float) -> None:
        self.turns[-1].append(number)
        self.rightNow += seconds


def timers(clock: Clock) -> GroupTimers:
    return GroupTimers(clock, GroupClock(clock, lambda: 0))


def test_calls_are_made_in_order_when_due():
    clock = Clock()
    alarms = timers(clock)
    made: list[int] = []
    for number in (3, 1, 2):
        alarms.call_later(number, lambda number=number: made.append(number))
    clock.advance(1)
    assert made == [1]
    clock.advance(0.5)
    alarms.call_later(0.1, lambda: made.append(0))
    clock.advance(2)
    assert made == [1, 0, 2, 3]
    assert clock.getDelayedCalls() == []


def test_cancelled_call_is_not_made():
    clock = Clock()
    alarms = timers(clock)
    made: list[int] = []
    cancels = [
        alarms.call_later(1, lambda number=number: made.append(number)) for number in range(3)
    ]
    cancels[0]()
    cancels[2]()
    clock.advance(1)
    cancels[1]()
    assert made == [1]
    assert len(alarms) == 0


def test_slow_calls_are_spread_over_turns():
    clock = AdvancingClock()
    alarms = timers(clock)
    for number in range(10):
        alarms.call_later(1, lambda number=number: clock.work(number, 0.003))
    clock.rightNow = 1.0
    while clock.calls:
        clock.turns.append([])
        clock.calls.pop(0).func()
    assert clock.turns[1:] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_cancelled_calls_are_removed_early():
    alarms = timers(Clock())
    kept = [alarms.call_later(1800, lambda: None) for _ in range(10)]
    for _ in range(10_000):
        alarms.call_later(1800, lambda: None)()
    assert len(alarms) <= len(kept) + MAX_CANCELLED + 1


def test_failing_call_does_not_stop_others():
    clock = Clock()
    alarms = timers(clock)
    made: list[int] = []
    alarms.call_later(1, lambda: made.remove(0))
    alarms.call_later(1, lambda: made.append(1))
    with pytest.raises(ValueError, match="not in list"):
        clock.advance(1)
    clock.advance(0)
    assert made == [1]


def test_timer_is_cancelled_with_last_call():
    clock = Clock()
    alarms = timers(clock)
    cancels = [alarms.call_later(1, lambda: None) for _ in range(3)]
    for cancel in cancels:
        cancel()
    assert clock.getDelayedCalls() == []


def test_clock_of_groups_excludes_pauses():
    clock = Clock()
    groups = GroupClock(clock, lambda: 0)
    clock.advance(5)
    for pause in (10, 20):
        groups.set_running(False)
        clock.advance(pause)
        groups.set_running(False)
        clock.advance(1)
        groups.set_running(True)
        groups.set_running(True)
        clock.advance(2)
    assert groups.now() == 9_000
