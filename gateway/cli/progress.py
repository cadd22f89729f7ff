"""Progress on stderr: a bar that is redrawn on a terminal, otherwise one line per step."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TextIO

MAX_BAR_WIDTH = 40
"""Maximum width of the bar in columns."""
MIN_BAR_WIDTH = 8
"""Without space for this width only the percentage is shown."""
DEFAULT_COLUMNS = 80
"""Width of terminals that do not report one."""


class ProgressBar:
    """A context manager; within it, `self(step, part)` shows the step and the completed fraction.

    Other threads may print lines above the bar.
    """

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
        """Show a text instead of the bar, for work of unknown length."""
        with self._lock:
            if self._is_terminal:
                self._draw(text[: self._columns() - 1])
            else:
                self._file.write(f"{text}\n")
            self._file.flush()

    def print_above(self, text: str) -> None:
        """Print a permanent line above the bar."""
        with self._lock:
            was_drawn = self._drawn
            self._draw("")
            self._file.write(f"{text}\n")
            if was_drawn:
                self._draw(bar_line(self._step, self._part, self._columns() - 1))
            self._file.flush()

    def _draw(self, text: str) -> None:
        """Replace the drawn text.

        It is overwritten with spaces, because not every terminal has the same command to clear a
        line.
        """
        if self._drawn:
            self._file.write("\r" + " " * len(self._drawn) + "\r")
        self._file.write(text)
        self._drawn = text

    def _columns(self) -> int:
        """Return the current terminal width, which can change at any time.

        Callers draw one column less, because a full line would wrap.
        """
        try:
            return os.get_terminal_size(self._file.fileno()).columns or DEFAULT_COLUMNS
        except (OSError, ValueError):
            return DEFAULT_COLUMNS


def bar_line(step: str, part: float, width: int) -> str:
    """Return bar and text, with the bar as wide as fits; without it if too little fits."""
    words = f"{part:4.0%}  {step}"
    room = min(MAX_BAR_WIDTH, width - len(words) - len("[] "))
    if room < MIN_BAR_WIDTH:
        return words[:width]
    filled = int(part * room)
    return f"[{'#' * filled}{'-' * (room - filled)}] {words}"
