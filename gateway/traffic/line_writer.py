"""Lines of the traffic log on their way to disk, off the reactor thread. Nothing waits for them: what does not fit is dropped, and counted."""

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

#: How often old files are looked at where none is finished meanwhile, in seconds.
MAINTENANCE_SECONDS = 600.0

#: What the writing thread waits at least where a file is all but due, in seconds: it would only turn around.
_MIN_WAIT_SECONDS = 0.01

#: The least that other threads are asked to let go first: compression can wait.
_NICE = 19


class LineWriter:
    """The threads: one writes, the other compresses and deletes. At most `max_lines` and `max_bytes` wait for the first."""

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
        # Daemons: a disk that hangs holds up no end of the process.
        self._write_thread = threading.Thread(target=self._run_writer, name="traffic", daemon=True)
        self._maintenance_thread = threading.Thread(
            target=self._run_maintenance, name="traffic-tidy", daemon=True
        )

    @property
    def dropped(self) -> int:
        """Lines so far that found no room, or a disk that failed."""
        return self._dropped.total

    def start(self) -> None:
        self._write_thread.start()
        self._maintenance_thread.start()

    def put(self, block: bytes, lines: int) -> None:
        """Take so many whole lines, or drop them."""
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
        self._dropped.add(lines, "they were not written fast enough")

    async def stop(self, seconds: float) -> None:
        """Write what waits and finish the file, for at most so long, and meanwhile do nothing else; what is not compressed by then is at the next start."""
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
        except Exception as failure:  # noqa: BLE001 - the rim of a thread
            _log.bug("the traffic log is not written any more", failure)

    def _write_waiting(self) -> bool:
        """False at the end."""
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
        """For the age of files: a clock that jumps ahead for a while deletes nothing."""
        started_at, ticks = self._started_at
        return min(self._now(), started_at + int((self._ticks() - ticks) * 1000))

    def _run_maintenance(self) -> None:
        try:
            # Of this thread alone (Linux).
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        except OSError as failure:
            _log.debug("compression has the priority of all else", reason=str(failure.strerror))
        try:
            pending: set[Path] = set()
            while True:
                is_last = self._is_last_pass
                # Of a process before this one, or of another gateway that was killed meanwhile.
                pending.update(self._folder.unfinished_files())
                while self._finished_files:
                    pending.add(self._finished_files.popleft())
                compress_and_expire(self._folder, pending, self._limits, self._steady_now)
                if is_last:
                    return
                self._maintenance_due.wait(MAINTENANCE_SECONDS)
                self._maintenance_due.clear()
        except Exception as failure:  # noqa: BLE001 - the rim of a thread
            _log.bug("traffic files are not looked after any more", failure)
