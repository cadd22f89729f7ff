"""Counts dropped rows of the traffic log and logs them at a limited rate."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gateway import logs

_log = logs.get_logger(__name__)

#: Minimum seconds between two log messages about dropped rows.
LOG_INTERVAL_SECONDS = 60.0


class DroppedLines:
    """The number of dropped rows, `total`. Callers on any thread log it at most once a minute."""

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
        """Log what has been dropped since the last message, if that is long enough ago."""
        with self._lock:
            lines = self.total - self._logged
            if not lines or self._ticks() - self._logged_at < LOG_INTERVAL_SECONDS:
                return
            self._logged, self._logged_at = self.total, self._ticks()
        _log.warning("traffic rows dropped", lines=lines, reason=self._reason)
