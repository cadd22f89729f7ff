"""Detects changes of files that are reloaded at run time: certificates, users, tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

#: Modification time in nanoseconds, size and inode; None for a file that cannot be read.
FileStamp = tuple[int, int, int] | None


class WatchedFiles:
    """Files and their state when they were last loaded.

    With a `clock` (seconds), the files are checked at most once per `interval` seconds.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        clock: Callable[[], float] | None = None,
        interval: float = 0.0,
    ) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._interval = interval
        self._checked_at = clock() if clock else 0.0
        self._stamps = self._read_stamps()

    def changed(self) -> bool:
        """Whether a file changed since the last call that returned True, or since the start.

        The caller then loads the files. The state is recorded before, so that a change during the
        load is found by the next call.
        """
        if self._is_recent():
            return False
        if self._clock:
            self._checked_at = self._clock()
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        return True

    def is_current(self) -> bool:
        """Whether `changed` would return False. Records nothing."""
        return self._is_recent() or self._read_stamps() == self._stamps

    def _is_recent(self) -> bool:
        return self._clock is not None and self._clock() - self._checked_at < self._interval

    def _read_stamps(self) -> tuple[FileStamp, ...]:
        return tuple(_file_stamp(path) for path in self._paths)


def _file_stamp(path: Path) -> FileStamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
