"""Progress of a long run: the current step and the minutes left."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class StepProgress:
    """Estimates the remaining time from the steps so far.

    `guesses` are estimated seconds per step; only their proportions matter after the first step.
    `now` is a clock in seconds.
    """

    def __init__(self, guesses: Sequence[float], now: Callable[[], float]) -> None:
        self._guesses = guesses
        self._now = now
        self._began = now()
        self._done = 0

    def next(self, step: str) -> str:
        """The progress line of the next step; the previous step has ended."""
        done, left = sum(self._guesses[: self._done]), sum(self._guesses[self._done :])
        seconds = left * (self._now() - self._began) / done if done else left
        self._done += 1
        return (
            f"[{self._done}/{len(self._guesses)}] {step}; about {max(1, round(seconds / 60))} min "
            "left"
        )
