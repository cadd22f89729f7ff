"""Ctrl-C and SIGTERM: whoever works is interrupted once, when it can be, and ends in order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """Somebody wants this to end. Like KeyboardInterrupt it passes by whatever bears with errors."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        """As shells have it: 130 for Ctrl-C."""


def _told_otherwise(
    hook: Callable[[sys.UnraisableHookArgs], object],
) -> Callable[[sys.UnraisableHookArgs], object]:
    """`hook`, but not of Stopped. That may be raised in a finalizer (py4j has one for each object of Java's), where nobody can catch it and Python prints
    it. What Signals did first ends the work then, and `came` says why."""

    def heard(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Stopped):
            hook(unraisable)

    return heard


class Signals:
    """While `heeded`, the first signal raises Stopped, and those after it do nothing; what was ignored before stays so."""

    def __init__(self) -> None:
        self.came: int | None = None
        self.first: Callable[[], None] = lambda: None
        """Is done before Stopped is raised: what must not go on while others clean up."""
        self._before: dict[int, Any] = {}
        self._is_held = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        self._before = {number: signal.getsignal(number) for number in NUMBERS}
        before, sys.unraisablehook = sys.unraisablehook, _told_otherwise(sys.unraisablehook)
        self.take()
        try:
            yield
        finally:
            sys.unraisablehook = before
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def take(self) -> None:
        """Once more, where somebody else has put himself in between."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else self._handle)

    @contextmanager
    def held(self) -> Iterator[None]:
        """For a step that is to be done whole: a first signal waits for its end, and a second one does not."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self.came is not None:
            self._stop(self.came)

    def _handle(self, number: int, _: FrameType | None) -> None:
        is_first, self.came = self.came is None, number
        if not (self._is_held and is_first):
            self._stop(number)

    def _stop(self, number: int) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        self.first()
        raise Stopped(number)
