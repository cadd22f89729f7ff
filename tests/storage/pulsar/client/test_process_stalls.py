"""How often a process stood still, by a clock by hand."""

from __future__ import annotations

from twisted.internet.task import Clock

from storage.pulsar.client.process_stalls import ProcessStalls


def begun() -> tuple[Clock, ProcessStalls]:
    clock = Clock()
    standstills = ProcessStalls(clock, 10.0, clock.seconds)
    standstills.start()
    return clock, standstills


def test_who_is_served_in_time_never_stood_still():
    clock, standstills = begun()
    clock.pump([1.0] * 100)
    assert standstills.count() == 0


def test_each_standstill_counts_once_whoever_sees_it_first():
    clock, standstills = begun()
    # A timer.
    clock.advance(11.0)
    assert (standstills.count(), standstills.count()) == (1, 1)
    clock.pump([1.0] * 20)
    # Somebody who asks before any timer.
    clock.rightNow += 11.0
    assert standstills.count() == 2
    clock.pump([1.0] * 20)
    assert standstills.count() == 2


def test_one_that_was_stopped_looks_no_more():
    clock, standstills = begun()
    standstills.stop()
    assert clock.getDelayedCalls() == []
    clock.rightNow += 11.0
    assert standstills.count() == 0
