"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from reports.interrupts import NUMBERS, Interrupted, SignalHandler


@pytest.fixture
def done():
    """Actions in their order."""
    return []


@pytest.fixture
def signals(done):
    signals = SignalHandler()
    signals.before_interrupt = lambda: done.append("first")
    # Shells start background processes with Ctrl-C ignored, the tests included.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with signals.installed():
        yield signals
    signal.signal(signal.SIGINT, before)


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def held(signals, done, times):
    """A deferred step during which `times` signals arrive."""
    with signals.deferred():
        for _ in range(times):
            send()
        done.append("whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_interrupts_with_exit_code_of_shells(signals, done, number, code):
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


def test_signal_during_finalizer_is_recorded_and_not_printed(signals, done, monkeypatch):
    printed = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda unraisable: printed.append(unraisable.exc_type)
    )
    with signals.installed():
        Finalized(ValueError())
        Finalized()
    assert (printed, done, signals.received) == ([ValueError], ["first"], signal.SIGINT)


def test_second_signal_does_not_interrupt_cleanup(signals, done):
    with pytest.raises(Interrupted):
        send()
    send()
    send(signal.SIGTERM)
    assert done == ["first"]


def test_deferred_step_is_completed(signals, done):
    with pytest.raises(Interrupted):
        held(signals, done, times=1)
    assert done == ["whole", "first"]


def test_second_signal_interrupts_deferred_step(signals, done):
    with pytest.raises(Interrupted):
        held(signals, done, times=2)
    assert done == ["first"]


def test_reinstall_restores_replaced_handlers(signals):
    signal.signal(signal.SIGINT, lambda *_: pytest.fail("asked the other"))
    signals.reinstall()
    with pytest.raises(Interrupted):
        send()


def test_ignored_signal_stays_ignored():
    """As for a command that a shell started in the background."""
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


def test_previous_handlers_are_restored():
    before = [signal.getsignal(number) for number in NUMBERS]
    with SignalHandler().installed():
        pass
    assert [signal.getsignal(number) for number in NUMBERS] == before
