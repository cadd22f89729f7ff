"""A small disk for the journal of an embedded store."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from storage.files import DiskFiles
from storage.log import Buffer


class SmallDisk(DiskFiles):
    """Files of at most `limit` bytes together; what they already have can be overwritten."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self.limit = limit

    def room(self, directory: Path, written: int) -> int:
        used = sum(path.stat().st_size for path in self._directory.glob("journal/*"))
        return max(self.limit - used, 0)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        growth = position + sum(map(len, buffers)) - self.size(descriptor)
        if growth > max(self.room(self._directory, 0), 0):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(descriptor, buffers, position)
