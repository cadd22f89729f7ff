"""Where a long run is: which step of how many, and how many minutes are left."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class StepProgress:
    """`guesses` is what each step is guessed to take, in seconds; `now` is a clock in seconds. The guesses need only be right among each other."""

    def __init__(self, guesses: Sequence[float], now: Callable[[], float]) -> None:
        self._guesses = guesses
        self._now = now
        self._began = now()
        self._done = 0

    def next(self, step: str) -> str:
        """The line for a step that begins; the one before it has ended."""
        done, left = sum(self._guesses[: self._done]), sum(self._guesses[self._done :])
        seconds = left * (self._now() - self._began) / done if done else left
        self._done += 1
        return f"[{self._done}/{len(self._guesses)}] {step}; some {max(1, round(seconds / 60))} min left"
