"""Looking at all of many things, a few at a time: thousands of connections in one go would hold all of them up for tens of milliseconds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

T = TypeVar("T")


class Sweep(Generic[T]):
    """Goes round `things`, which may change meanwhile, in about `steps` steps a round."""

    __slots__ = ("_left", "_steps", "_things")

    def __init__(self, things: Collection[T], steps: int) -> None:
        self._things = things
        self._steps = steps
        self._left: list[T] = []

    def step(self) -> list[T]:
        """The next ones. What has come since the round began is in the next round, what has gone in none."""
        self._left = self._left or list(self._things)
        size = -(-len(self._things) // self._steps) or len(self._left)
        taken, self._left = self._left[:size], self._left[size:]
        return [one for one in taken if one in self._things]
