"""The store's directory: exclusive lock and durable file names."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from storage.log import StoreInUse


def take_lock(directory: Path) -> int:
    """Lock the directory; return the descriptor that holds the lock while it is open.

    The kernel releases the lock when the process ends. Raises StoreInUse.
    """
    lock = os.open(directory / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreInUse(
            f"the store in {directory} is in use by process {holder}: "
            "stop that process, or use another directory for this one"
        ) from None
    # The process id is only for the message above; a full disk must not prevent opening.
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def sync_directory(directory: Path) -> None:
    """Make new file names durable; LMDB syncs only file contents."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
