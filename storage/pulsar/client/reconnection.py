"""Notices that the client library does not reconnect a producer or a reader.

After some errors of a broker that stops, the library makes no further attempt. The producer or
reader of a topic that is available again then stays disconnected, and must be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

GIVE_UP_SECONDS = 120.0
"""Twice the longest pause between two attempts of the library."""

READER_GIVE_UP_SECONDS = 20.0
"""For readers and for producers that fence no other. Replacing one too early has no effect."""


class Reconnection:
    """`seconds` is the clock, and may be any that does not go back."""

    def __init__(
        self, seconds: Callable[[], float], give_up_seconds: float = GIVE_UP_SECONDS
    ) -> None:
        self._seconds = seconds
        self._give_up_seconds = give_up_seconds
        self._disconnected_since: float | None = None

    def has_given_up(self, handle: Any) -> bool:
        """Whether `handle`, a producer or a reader, was disconnected at each call for that time."""
        if handle.is_connected():
            self._disconnected_since = None
            return False
        now = self._seconds()
        if self._disconnected_since is None:
            self._disconnected_since = now
        return now - self._disconnected_since >= self._give_up_seconds

    def connected(self) -> None:
        """Note that the handle was connected, or was replaced."""
        self._disconnected_since = None
