"""Counting process stalls, with a fake clock."""

from __future__ import annotations

from twisted.internet.task import Clock

from storage.pulsar.client.process_stalls import ProcessStalls


def begun() -> tuple[Clock, ProcessStalls]:
    clock = Clock()
    standstills = ProcessStalls(clock, 10.0, clock.seconds)
    standstills.start()
    return clock, standstills


def test_timely_timers_count_no_stall():
    clock, standstills = begun()
    clock.pump([1.0] * 100)
    assert standstills.count() == 0


def test_each_stall_counts_once():
    clock, standstills = begun()
    # Noticed by a timer.
    clock.advance(11.0)
    assert (standstills.count(), standstills.count()) == (1, 1)
    clock.pump([1.0] * 20)
    # Noticed by `count` before any timer runs.
    clock.rightNow += 11.0
    assert standstills.count() == 2
    clock.pump([1.0] * 20)
    assert standstills.count() == 2


def test_no_checks_after_stop():
    clock, standstills = begun()
    standstills.stop()
    assert clock.getDelayedCalls() == []
    clock.rightNow += 11.0
    assert standstills.count() == 0
