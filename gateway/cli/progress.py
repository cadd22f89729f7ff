"""How far a command is, on stderr: one line that is drawn anew where somebody looks, and a line a step in a log."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TextIO

MAX_BAR_WIDTH = 40
"""Of the bar itself; a wider one says no more."""
MIN_BAR_WIDTH = 8
"""Below it the number alone says more."""
DEFAULT_COLUMNS = 80
"""Where a terminal does not say its width."""


class ProgressBar:
    """A context: within it, `self(step, part)` says what is being done and which part of the whole is behind it. Threads may say lines above it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_terminal = file.isatty()
        self._lock = threading.RLock()
        self._drawn = ""
        self._step = ""
        self._part = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._file.write("\n" if self._drawn else "")
            self._drawn = ""
            self._file.flush()

    def __call__(self, step: str, part: float) -> None:
        with self._lock:
            is_new, self._step, self._part = step != self._step, step, part
            if self._is_terminal:
                self._draw(bar_line(step, part, self._columns() - 1))
            elif is_new:
                self._file.write(f"{step}\n")
            self._file.flush()

    def show(self, text: str) -> None:
        """In place of the bar, where nobody knows how long the whole takes: what is being done."""
        with self._lock:
            if self._is_terminal:
                self._draw(text[: self._columns() - 1])
            else:
                self._file.write(f"{text}\n")
            self._file.flush()

    def print_above(self, text: str) -> None:
        """A line of its own, which stays."""
        with self._lock:
            was_drawn = self._drawn
            self._draw("")
            self._file.write(f"{text}\n")
            if was_drawn:
                self._draw(bar_line(self._step, self._part, self._columns() - 1))
            self._file.flush()

    def _draw(self, text: str) -> None:
        """In the place of what is shown. Spaces and not a terminal's own command: they clear a line on every one of them."""
        if self._drawn:
            self._file.write("\r" + " " * len(self._drawn) + "\r")
        self._file.write(text)
        self._drawn = text

    def _columns(self) -> int:
        """It may change at any time. A line that is as wide as the terminal would begin another one."""
        try:
            return os.get_terminal_size(self._file.fileno()).columns or DEFAULT_COLUMNS
        except (OSError, ValueError):
            return DEFAULT_COLUMNS


def bar_line(step: str, part: float, width: int) -> str:
    """The bar, as wide as fits beside its words; without it where too little fits."""
    words = f"{part:4.0%}  {step}"
    room = min(MAX_BAR_WIDTH, width - len(words) - len("[] "))
    if room < MIN_BAR_WIDTH:
        return words[:width]
    filled = int(part * room)
    return f"[{'#' * filled}{'-' * (room - filled)}] {words}"
