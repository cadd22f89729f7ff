"""Writes rows of the traffic log to disk, off the reactor thread.

The queue is bounded. Nothing waits for it: rows that do not fit are dropped and counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gateway import logs
from gateway.traffic.dropped_lines import LOG_INTERVAL_SECONDS, DroppedLines
from gateway.traffic.file_appender import FileAppender, OpenFile, Rotation
from gateway.traffic.log_files import (
    RetentionLimits,
    TrafficFolder,
    compress_and_expire,
    create_locked,
)

_log = logs.get_logger(__name__)

#: Seconds between two checks for old files while no file is finished.
MAINTENANCE_SECONDS = 600.0

#: Minimum wait of the writer thread in seconds, so that it does not spin shortly before a rotation.
_MIN_WAIT_SECONDS = 0.01

#: Nice value of the maintenance thread: compression has the lowest priority.
_NICE = 19


class LineWriter:
    """Two threads: one writes, the other compresses and deletes files.

    At most `max_lines` and `max_bytes` wait to be written.
    """

    def __init__(
        self,
        folder: TrafficFolder,
        rotation: Rotation,
        limits: RetentionLimits,
        now: Callable[[], int],
        *,
        max_lines: int,
        max_bytes: int,
        ticks: Callable[[], float] = time.monotonic,
        open_file: OpenFile = create_locked,
    ) -> None:
        self._folder = folder
        self._limits = limits
        self._now = now
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._dropped = DroppedLines(ticks)
        self._appender = FileAppender(
            folder, rotation, self._dropped, now, ticks, self._file_finished, open_file
        )
        self._ticks = ticks
        self._started_at = now(), ticks()
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._waiting_lines = self._waiting_bytes = 0
        self._is_stopping = False
        self._changed = threading.Condition()
        self._finished_files: deque[Path] = deque()
        self._maintenance_due = threading.Event()
        self._is_last_pass = False
        # Daemon threads: a hanging disk does not delay the end of the process.
        self._write_thread = threading.Thread(target=self._run_writer, name="traffic", daemon=True)
        self._maintenance_thread = threading.Thread(
            target=self._run_maintenance, name="traffic-tidy", daemon=True
        )

    @property
    def dropped(self) -> int:
        """Rows dropped so far because the queue was full or the disk failed."""
        return self._dropped.total

    def start(self) -> None:
        self._write_thread.start()
        self._maintenance_thread.start()

    def put(self, block: bytes, lines: int) -> None:
        """Queue a block of whole lines, or drop it."""
        with self._changed:
            has_room = (
                self._waiting_lines + lines <= self._max_lines
                and self._waiting_bytes + len(block) <= self._max_bytes
            )
            if has_room and not self._is_stopping:
                self._waiting.append((block, lines))
                self._waiting_lines += lines
                self._waiting_bytes += len(block)
                self._changed.notify()
                return
        self._dropped.add(lines, "queue full")

    async def stop(self, seconds: float) -> None:
        """Write the queue and finish the file, blocking for at most `seconds`.

        Files that are not compressed by then are compressed after the next start.
        """
        end = time.monotonic() + seconds
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._write_thread.is_alive():
            self._write_thread.join(seconds)
        self._is_last_pass = True
        self._maintenance_due.set()
        if self._maintenance_thread.is_alive():
            self._maintenance_thread.join(max(end - time.monotonic(), 0))

    def _file_finished(self, path: Path) -> None:
        self._finished_files.append(path)
        self._maintenance_due.set()

    def _run_writer(self) -> None:
        try:
            while self._write_waiting():
                pass
        except Exception as failure:  # noqa: BLE001 - outermost frame of the thread
            _log.bug("traffic log writer stopped", failure)

    def _write_waiting(self) -> bool:
        """Write what is queued. Returns False when stopped."""
        with self._changed:
            if not self._waiting and not self._is_stopping:
                self._changed.wait(
                    max(
                        min(self._appender.seconds_to_rotation(), LOG_INTERVAL_SECONDS),
                        _MIN_WAIT_SECONDS,
                    )
                )
            taken, self._waiting = self._waiting, deque()
            lines, self._waiting_lines, self._waiting_bytes = self._waiting_lines, 0, 0
            is_stopping = self._is_stopping
        if taken:
            self._appender.append(b"".join([block for block, _ in taken]), lines)
        self._appender.rotate_if_due()
        self._dropped.log_if_due()
        if is_stopping:
            self._appender.close()
        return not is_stopping

    def _steady_now(self) -> int:
        """Return the time for ages of files; a clock that jumps ahead deletes nothing."""
        started_at, ticks = self._started_at
        return min(self._now(), started_at + int((self._ticks() - ticks) * 1000))

    def _run_maintenance(self) -> None:
        try:
            # Applies to this thread only (Linux).
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        except OSError as failure:
            _log.debug("compression priority not lowered", reason=str(failure.strerror))
        try:
            pending: set[Path] = set()
            while True:
                is_last = self._is_last_pass
                # Left by an earlier process, or by another gateway that was killed meanwhile.
                pending.update(self._folder.unfinished_files())
                while self._finished_files:
                    pending.add(self._finished_files.popleft())
                compress_and_expire(self._folder, pending, self._limits, self._steady_now)
                if is_last:
                    return
                self._maintenance_due.wait(MAINTENANCE_SECONDS)
                self._maintenance_due.clear()
        except Exception as failure:  # noqa: BLE001 - outermost frame of the thread
            _log.bug("traffic log maintenance stopped", failure)
