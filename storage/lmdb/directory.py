"""The store's directory: one process at a time, and names that survive a power cut."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from storage.log import StoreInUse


def take_lock(directory: Path) -> int:
    """A descriptor that holds the directory's lock for as long as it is open, whatever becomes of the process."""
    lock = os.open(directory / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreInUse(
            f"the store in {directory} is in use by process {holder}: stop that process, or give this one a directory of its own"
        ) from None
    # The number only serves the message above; a full disk must not keep the store from being opened.
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def sync_directory(directory: Path) -> None:
    """Make the names of new files survive a power cut; LMDB syncs the files only."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
