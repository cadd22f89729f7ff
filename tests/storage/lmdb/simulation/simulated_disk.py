"""A disk in memory that can lose power: what was not synced is lost, kept or torn, by chance.

As on a journaling file system: names reach the medium in the order in which they were changed, at
the latest with `sync_directory`. The sectors of an unsynced write reach it in any order.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from random import Random

from storage.files import Files, Flusher
from storage.log import Buffer

SECTOR = 512

Write = tuple[int, bytes | None]
"""Position and bytes of a write, or None for a truncation at that position."""


@dataclass
class File:
    """A file as programs see it, as it is on the medium, and the writes between."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Write] = field(default_factory=list)
    failed_syncs: int = 0

    @property
    def has_unsynced_frames(self) -> bool:
        """Whether more than zeros is not on the medium. Zeros are written ahead at any time."""
        return any(piece is not None and any(piece) for _, piece in tuple(self.unsynced))

    def copy(self) -> File:
        return File(bytearray(self.data), bytearray(self.durable), list(self.unsynced))


@dataclass
class OpenFile:
    """An open file. As in Linux (`errseq_t`), each failure of a sync is reported to it once."""

    file: File
    reported_failures: int


def put(data: bytearray, position: int, piece: bytes | None) -> None:
    data.extend(bytes(max(position + len(piece or b"") - len(data), 0)))
    if piece is None:
        del data[position:]
    else:
        data[position : position + len(piece)] = piece


def sectors(write: Write) -> list[Write]:
    """The parts of a write that reach the medium as a whole."""
    position, piece = write
    if piece is None:
        return [write]
    cuts = [0, *range(SECTOR - position % SECTOR, len(piece), SECTOR), len(piece)]
    return [(position + start, piece[start:end]) for start, end in itertools.pairwise(cuts)]


class SimulatedDisk(Files):
    """`Files` in memory.

    `before` is called before each operation that changes something, with its name; it may raise
    OSError. The files have at most `limit` bytes together; a write has some room left in part.
    """

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.durable: dict[str, File] = {}
        self.changes: list[tuple[str, File | None]] = []
        self.before: Callable[[str], None] = lambda operation: None
        self.limit = sys.maxsize
        self.chance = Random(0)
        self.has_flusher = False
        self._open: dict[int, OpenFile] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def after_power_cut(self, chance: Random) -> SimulatedDisk:
        """What is on the medium if power is lost now."""
        cut = self.after_kill()
        cut.chance = chance
        cut._apply_changes(chance.randint(0, len(cut.changes)))
        cut.changes.clear()
        cut.files = dict(cut.durable)
        likelihood = chance.choice([0, 0.5, 0.9, 1])
        for file in cut.files.values():
            cut._persist(file, likelihood)
            file.data = bytearray(file.durable)
        return cut

    def after_kill(self) -> SimulatedDisk:
        """The disk if the process ends now: everything is there, but not all is on the medium."""
        killed = SimulatedDisk()
        with self._lock:
            copies = {
                id(file): file.copy()
                for file in [
                    *self.files.values(),
                    *self.durable.values(),
                    *(file for _, file in self.changes if file),
                ]
            }
            killed.files = {name: copies[id(file)] for name, file in self.files.items()}
            killed.durable = {name: copies[id(file)] for name, file in self.durable.items()}
            killed.changes = [(name, file and copies[id(file)]) for name, file in self.changes]
        return killed

    @property
    def used(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return sum(len(file.data) for file in self.files.values())

    def open(self, path: Path, is_new: bool) -> int:
        with self._lock:
            file = self.files.get(path.name)
            if file is None:
                if not is_new:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory")
                file = File()
                self._change(path.name, file)
            descriptor = next(self._numbers)
            self._open[descriptor] = OpenFile(file, file.failed_syncs)
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            del self._open[descriptor]

    def size(self, descriptor: int) -> int:
        return len(self._open[descriptor].file.data)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        self.before("write")
        piece = b"".join(buffers)
        with self._lock:
            file = self._open[descriptor].file
            before = file.data[position : position + len(piece)]
            assert any(piece) or not any(before), "zeros were written over frames"
            room = len(file.data) + max(self.room(Path(), 0), 0)
            part = piece[: max(room - position, 0)]
            put(file.data, position, part)
            file.unsynced.append((position, part))
        if part != piece:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.before("written")

    def truncate(self, descriptor: int, size: int) -> None:
        self.before("truncate")
        with self._lock:
            file = self._open[descriptor].file
            put(file.data, size, None)
            file.unsynced.append((size, None))

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        with self._lock:
            return bytes(self._open[descriptor].file.data[position : position + length])

    def sync(self, descriptor: int) -> None:
        opened = self._open[descriptor]
        file = opened.file
        try:
            self.before("sync")
        except OSError:
            # Linux considers the pages clean although only some of them are on the medium.
            with self._lock:
                self._persist(file, self.chance.choice([0, 0.5, 1]))
                file.failed_syncs += 1
                opened.reported_failures = file.failed_syncs
            raise
        with self._lock:
            self._persist(file, 1)
            if opened.reported_failures < file.failed_syncs:
                opened.reported_failures = file.failed_syncs
                raise io_error()

    def _persist(self, file: File, likelihood: float) -> None:
        """Write what is not on the medium, each sector with this likelihood."""
        for write in file.unsynced:
            for position, piece in sectors(write):
                if self.chance.random() < likelihood:
                    put(file.durable, position, piece)
        file.unsynced.clear()

    def make_directory(self, path: Path) -> None:
        pass

    def names(self, directory: Path) -> list[str]:
        return sorted(self.files)

    def unlink(self, path: Path) -> None:
        self.before("unlink")
        if path.name not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        self._change(path.name, None)

    def sync_directory(self, directory: Path) -> None:
        self.before("sync_directory")
        with self._lock:
            self._apply_changes(len(self.changes))

    def room(self, directory: Path, written: int) -> int:
        return self.limit - self.used

    def flusher(self) -> Flusher | None:
        return SimulatedFlusher(self) if self.has_flusher else None

    def _change(self, name: str, file: File | None) -> None:
        """Create or delete a name."""
        with self._lock:
            self.changes.append((name, file))
            if file is None:
                del self.files[name]
            else:
                self.files[name] = file

    def _apply_changes(self, count: int) -> None:
        """Make the first changes of names durable."""
        for name, file in self.changes[:count]:
            if file is None:
                self.durable.pop(name, None)
            else:
                self.durable[name] = file
        del self.changes[:count]


class SimulatedFlusher:
    """A flusher for `Files` in memory, or for files that fail, as a thread with Python code."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._calls: SimpleQueue[tuple[int, list[Buffer], int, Path, int, int, bool] | None]
        self._calls = SimpleQueue()
        self._results: SimpleQueue[int | OSError] = SimpleQueue()
        self._readable, self._writable = os.pipe()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._readable

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
        folder = Path(os.fsdecode(directory))
        self._calls.put((descriptor, buffers, position, folder, written, least, syncs))

    def end(self) -> int | None:
        if self._results.empty():
            return None
        os.read(self._readable, 1)
        result = self._results.get()
        if isinstance(result, OSError):
            raise result
        return result

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()
        os.close(self._readable)
        os.close(self._writable)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            descriptor, buffers, position, folder, written, least, syncs = call
            try:
                room = self._files.store(
                    descriptor, buffers, position, folder, written, least, syncs=syncs
                )
                self._results.put(room)
            except OSError as error:
                self._results.put(error)
            os.write(self._writable, b".")


def io_error() -> OSError:
    return OSError(errno.EIO, "Input/output error")
