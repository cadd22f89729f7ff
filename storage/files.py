"""Files of a store, behind an interface that tests replace to simulate power cuts and small disks.

Reads, writes and syncs release the GIL.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from storage.log import Buffer

FLUSH = getattr(os, "fdatasync", os.fsync)
"""macOS has only fsync."""

MOST_BUFFERS = 1000
"""Buffers per system call; the kernel's limit (IOV_MAX) is 1024."""


class Files(Protocol):
    """Every method may raise OSError. A descriptor belongs to its `Files`."""

    def open(self, path: Path, is_new: bool) -> int:
        """Open a file for reading and writing, for its owner only; if new, create it if missing."""
        ...

    def close(self, descriptor: int) -> None: ...

    def size(self, descriptor: int) -> int: ...

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers`, one after the other, from `position`."""
        ...

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        """Read `length` bytes from `position`, fewer only at the end of the file."""
        ...

    def system_descriptor(self, descriptor: int) -> int:
        """The file's descriptor of the operating system, for reads only; -1 if it has none."""
        return -1

    def truncate(self, descriptor: int, size: int) -> None: ...

    def sync(self, descriptor: int) -> None:
        """Make everything written to the file, and its size, durable."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory durably; no effect if it exists."""
        ...

    def names(self, directory: Path) -> list[str]: ...

    def unlink(self, path: Path) -> None: ...

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def room(self, directory: Path, written: int) -> int:
        """Bytes by which a file of `written` bytes may grow; unlimited if that is unknown."""
        ...

    def store(
        self,
        descriptor: int,
        buffers: list[Buffer],
        position: int,
        directory: Path,
        written: int,
        least: int,
        *,
        syncs: bool,
    ) -> int:
        """Return the `room`. Unless it is below `least`, `write` before, and `sync` if `syncs`."""
        room = self.room(directory, written)
        if room >= least:
            self.write(descriptor, buffers, position)
            if syncs:
                self.sync(descriptor)
        return room

    def flusher(self) -> Flusher | None:
        """A thread that does `store`, if there is one for these files."""
        return None


class Flusher(Protocol):
    """A thread that does `Files.store` without the GIL, one call at a time.

    Its methods are called by one thread.
    """

    def fileno(self) -> int:
        """A descriptor that is readable while a call has ended and `end` was not called."""
        ...

    def begin(
        self,
        descriptor: int,
        buffers: list[Buffer],
        position: int,
        directory: bytes,
        written: int,
        least: int,
        syncs: bool,
    ) -> None:
        """Begin a call with at most `MOST_BUFFERS` buffers."""
        ...

    def end(self) -> int | None:
        """The result of the call, or None if it has not ended. Raises OSError if it failed."""
        ...

    def close(self) -> None:
        """End the thread after the call."""
        ...


class DiskFiles(Files):
    """Files on a disk."""

    def open(self, path: Path, is_new: bool) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if is_new else 0), 0o600)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        for first in range(0, len(buffers), MOST_BUFFERS):
            some = buffers[first : first + MOST_BUFFERS]
            size = sum(map(len, some))
            written = os.pwritev(descriptor, some, position)
            while written < size:
                # Interrupted by a full disk or a signal: the next call gives the reason.
                written += os.pwrite(
                    descriptor, memoryview(b"".join(some))[written:], position + written
                )
            position += size

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        found = os.pread(descriptor, length, position)
        while len(found) < length and (
            more := os.pread(descriptor, length - len(found), position + len(found))
        ):
            found += more
        return found

    def system_descriptor(self, descriptor: int) -> int:
        return descriptor

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        FLUSH(descriptor)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)
            self.sync_directory(path.parent)

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def room(self, directory: Path, written: int) -> int:
        try:
            volume = os.statvfs(directory)
        except OSError:
            return sys.maxsize
        free = volume.f_bavail * volume.f_frsize
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return free if limit == resource.RLIM_INFINITY else min(free, limit - written)


_INTERFACE = 5
"""Expected INTERFACE of the compiled module; incremented when something in it changes."""

_store: Callable[..., Any] | None = None
_new_flusher: Callable[[], Flusher] | None = None
if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import storage._files as _files
    except ImportError:
        pass
    else:
        if _files.INTERFACE == _INTERFACE:
            _store, _new_flusher = _files.store, _files.FlushThread


class CompiledDiskFiles(DiskFiles):
    """As `DiskFiles`. A thread that stores does not take the GIL between the system calls."""

    def store(
        self,
        descriptor: int,
        buffers: list[Buffer],
        position: int,
        directory: Path,
        written: int,
        least: int,
        *,
        syncs: bool,
    ) -> int:
        if _store is None or len(buffers) > MOST_BUFFERS:
            return super().store(
                descriptor, buffers, position, directory, written, least, syncs=syncs
            )
        path = os.fsencode(directory)
        room: int = _store(descriptor, buffers, position, path, written, least, syncs)
        return room

    def flusher(self) -> Flusher | None:
        return _new_flusher() if _new_flusher else None
