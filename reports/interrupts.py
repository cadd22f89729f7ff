"""Ctrl-C and SIGTERM: interrupts the running work once, at a safe point."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The process was asked to stop. Like KeyboardInterrupt, it passes `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        """128 plus the signal number, as in shells: 130 for Ctrl-C."""


def _without_interrupts(
    hook: Callable[[sys.UnraisableHookArgs], object],
) -> Callable[[sys.UnraisableHookArgs], object]:
    """Wrap `hook` to ignore Interrupted.

    It may be raised in a finalizer (py4j has one per Java object), where it cannot be caught and
    Python prints it. The work then ends because of `before_interrupt`, and `received` has the
    signal.
    """

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Interrupted):
            hook(unraisable)

    return report


class SignalHandler:
    """While `installed`, the first signal raises Interrupted and later ones are ignored.

    Signals that were ignored before stay ignored.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.before_interrupt: Callable[[], None] = lambda: None
        """Called before Interrupted is raised, to stop what must not continue during cleanup."""
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
        """Install the handlers again after other code has replaced them."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else self._handle)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defers the first signal until the end of the block; a second signal is not deferred."""
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
