"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from reports.interrupts import NUMBERS, Interrupted, SignalHandler


@pytest.fixture
def done():
    """What was done, in order."""
    return []


@pytest.fixture
def signals(done):
    signals = SignalHandler()
    signals.before_interrupt = lambda: done.append("first")
    # Shells let what they start in the background ignore Ctrl-C, the tests, too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with signals.installed():
        yield signals
    signal.signal(signal.SIGINT, before)


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def held(signals, done, times):
    """A step that is told so often to stop."""
    with signals.deferred():
        for _ in range(times):
            send()
        done.append("whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_with_the_exit_code_of_shells(signals, done, number, code):
    with pytest.raises(Interrupted) as stopped:
        send(number)
    assert (stopped.value.exit_code, done, signals.received) == (code, ["first"], number)


class Finalized:
    def __init__(self, error=None):
        self._error = error

    def __del__(self):
        if self._error:
            raise self._error
        send()


def test_one_that_comes_while_an_object_is_finalized_is_noted_and_not_printed(
    signals, done, monkeypatch
):
    printed = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda unraisable: printed.append(unraisable.exc_type)
    )
    with signals.installed():
        Finalized(ValueError())
        Finalized()
    assert (printed, done, signals.received) == ([ValueError], ["first"], signal.SIGINT)


def test_a_second_one_does_not_disturb_who_cleans_up(signals, done):
    with pytest.raises(Interrupted):
        send()
    send()
    send(signal.SIGTERM)
    assert done == ["first"]


def test_a_step_that_is_held_is_done_whole(signals, done):
    with pytest.raises(Interrupted):
        held(signals, done, times=1)
    assert done == ["whole", "first"]


def test_a_second_one_does_not_wait_for_a_held_step(signals, done):
    with pytest.raises(Interrupted):
        held(signals, done, times=2)
    assert done == ["first"]


def test_it_is_heeded_again_where_somebody_else_put_a_handler_in_between(signals):
    signal.signal(signal.SIGINT, lambda *_: pytest.fail("asked the other"))
    signals.reinstall()
    with pytest.raises(Interrupted):
        send()


def test_what_was_ignored_stays_ignored():
    """As of a command that a shell has put into the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        signals = SignalHandler()
        with signals.installed():
            send()
            signals.reinstall()
            send()
        assert signals.received is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_afterwards_handlers_are_those_of_before():
    before = [signal.getsignal(number) for number in NUMBERS]
    with SignalHandler().installed():
        pass
    assert [signal.getsignal(number) for number in NUMBERS] == before
