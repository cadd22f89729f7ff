"""Lines of the traffic log that were dropped, and how often that is said."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gateway import logs

_log = logs.get_logger(__name__)

#: The log says at most so often that lines were dropped, in seconds.
LOG_INTERVAL_SECONDS = 60.0


class DroppedLines:
    """Lines that were dropped. `total` counts them; the log is told now and then, by whoever drops or writes."""

    def __init__(self, ticks: Callable[[], float]) -> None:
        self.total = 0
        self._logged = 0
        self._logged_at = -LOG_INTERVAL_SECONDS
        self._reason = ""
        self._ticks = ticks
        self._lock = threading.Lock()

    def add(self, lines: int, reason: str) -> None:
        with self._lock:
            self.total += lines
            self._reason = reason
        self.log_if_due()

    def log_if_due(self) -> None:
        """Say what is not said yet, unless something was said a short while ago."""
        with self._lock:
            lines = self.total - self._logged
            if not lines or self._ticks() - self._logged_at < LOG_INTERVAL_SECONDS:
                return
            self._logged, self._logged_at = self.total, self._ticks()
        _log.warning("traffic lines dropped", lines=lines, reason=self._reason)
