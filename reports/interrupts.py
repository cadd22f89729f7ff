"""Ctrl-C and SIGTERM: whoever works is interrupted once, when it can be, and ends in order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Somebody wants this to end. Like KeyboardInterrupt it passes by whatever bears with errors."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        """As shells have it: 130 for Ctrl-C."""


def _without_interrupts(
    hook: Callable[[sys.UnraisableHookArgs], object],
) -> Callable[[sys.UnraisableHookArgs], object]:
    """`hook`, but not of Stopped. That may be raised in a finalizer (py4j has one for each object of Java's), where nobody can catch it and Python prints
    it. What Signals did first ends the work then, and `received` says why."""

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Interrupted):
            hook(unraisable)

    return report


class SignalHandler:
    """While `installed`, the first signal raises Stopped, and those after it do nothing; what was ignored before stays so."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.before_interrupt: Callable[[], None] = lambda: None
        """Is done before Stopped is raised: what must not go on while others clean up."""
        self._previous: dict[int, Any] = {}
        self._is_deferred = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._previous = {number: signal.getsignal(number) for number in NUMBERS}
        before, sys.unraisablehook = sys.unraisablehook, _without_interrupts(sys.unraisablehook)
        self.reinstall()
        try:
            yield
        finally:
            sys.unraisablehook = before
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def reinstall(self) -> None:
        """Once more, where somebody else has put himself in between."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else self._handle)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """For a step that is to be done whole: a first signal waits for its end, and a second one does not."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.received is not None:
            self._stop(self.received)

    def _handle(self, number: int, _: FrameType | None) -> None:
        is_first, self.received = self.received is None, number
        if not (self._is_deferred and is_first):
            self._stop(number)

    def _stop(self, number: int) -> None:
        for each in self._previous:
            signal.signal(each, signal.SIG_IGN)
        self.before_interrupt()
        raise Interrupted(number)
