"""The file of the traffic log that is being written.

Blocks are written completely or not at all. A file is finished at a size or an age.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from gateway import logs
from gateway.traffic.dropped_lines import DroppedLines
from gateway.traffic.log_files import AppendableFile, TrafficFolder, create_locked, is_unlinked

_log = logs.get_logger(__name__)

#: Seconds without writing after a disk error. A full disk is retried after that.
RETRY_SECONDS = 5.0

OpenFile = Callable[[Path], AppendableFile | None]


class Rotation(msgspec.Struct, frozen=True):
    """Size in bytes or age in ms at which a file is finished."""

    max_bytes: int
    max_ms: int


class FileAppender:
    """Appends blocks to the current file.

    `now()` is in ms since 1970, for names; `ticks()` in seconds, for intervals. `finished` is
    called with the path of each finished file.
    """

    def __init__(
        self,
        folder: TrafficFolder,
        rotation: Rotation,
        dropped: DroppedLines,
        now: Callable[[], int],
        ticks: Callable[[], float],
        finished: Callable[[Path], None],
        open_file: OpenFile = create_locked,
    ) -> None:
        self._folder = folder
        self._rotation = rotation
        self._dropped = dropped
        self._now = now
        self._ticks = ticks
        self._finished = finished
        self._open_file = open_file
        self._file: AppendableFile | None = None
        self._path = Path()
        self._size = self._lines = 0
        self._opened_at = 0.0
        self._number = 0
        self._failed_at = -RETRY_SECONDS
        self._failure = ""

    def append(self, block: bytes, lines: int) -> None:
        """Write whole lines. After an error none of them is in the file."""
        if self._file is None and self._ticks() - self._failed_at < RETRY_SECONDS:
            self._dropped.add(lines, self._failure)
            return
        try:
            if self._file is not None and is_unlinked(self._file):
                self._dropped.add(self._lines, "file was deleted")
                self._size = 0
                self._finish_file()
            if self._file is None:
                self._open_next()
            self._write(block)
            self._lines += lines
        except OSError as failure:
            self._failure = failure.strerror or type(failure).__name__
            self._failed_at = self._ticks()
            self._dropped.add(lines, self._failure)
            self._finish_file()
        self.rotate_if_due()

    def rotate_if_due(self) -> None:
        if self._file is not None and (
            self._size >= self._rotation.max_bytes or self.seconds_to_rotation() <= 0
        ):
            self._finish_file()

    def seconds_to_rotation(self) -> float:
        """Return the seconds until the file reaches its maximum age."""
        if self._file is None:
            return self._rotation.max_ms / 1000
        return self._opened_at + self._rotation.max_ms / 1000 - self._ticks()

    def close(self) -> None:
        if self._file is not None:
            self._finish_file()

    def _open_next(self) -> None:
        while self._file is None:
            self._path = self._folder.path_of(self._now(), self._number)
            self._number += 1
            self._file = self._open_file(self._path)
        self._size = self._lines = 0
        self._opened_at = self._ticks()

    def _write(self, block: bytes) -> None:
        assert self._file is not None
        left = memoryview(block)
        while left:
            left = left[self._file.write(left) or 0 :]
        self._size += len(block)

    def _finish_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        # After an error a partial line may be at the end. If truncating fails, it stays there.
        with suppress(OSError):
            file.truncate(self._size)
        _close(file)
        if self._size:
            self._finished(self._path)
        else:
            with suppress(OSError):
                self._path.unlink()


def _close(file: AppendableFile) -> None:
    try:
        file.close()
    except OSError as failure:
        _log.warning("traffic file not closed", reason=str(failure.strerror))
