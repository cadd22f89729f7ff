"""A disk in memory that can lose power: what was not synced is lost, kept or torn, by chance.

As on a journaling file system: names reach the medium in the order in which they were changed, at
the latest with `sync_directory`. The sectors of an unsynced write reach it in any order.
"""

from __future__ import annotations

import errno
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from storage.log import Buffer

SECTOR = 512

Write = tuple[int, bytes]


@dataclass
class File:
    """A file as programs see it, as it is on the medium, and the writes between."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Write] = field(default_factory=list)

    def copy(self) -> File:
        return File(bytearray(self.data), bytearray(self.durable), list(self.unsynced))


def put(data: bytearray, position: int, piece: bytes) -> None:
    data.extend(bytes(max(position + len(piece) - len(data), 0)))
    data[position : position + len(piece)] = piece


def sectors(write: Write) -> list[Write]:
    """The parts of a write that reach the medium as a whole."""
    position, piece = write
    cuts = [0, *range(SECTOR - position % SECTOR, len(piece), SECTOR), len(piece)]
    return [(position + start, piece[start:end]) for start, end in itertools.pairwise(cuts)]


class SimulatedDisk:
    """`Files` in memory.

    `before` is called before each operation that changes something, with its name; it may raise
    OSError.
    """

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.durable: dict[str, File] = {}
        self.renames: list[Callable[[dict[str, File]], None]] = []
        self.before: Callable[[str], None] = lambda operation: None
        self._descriptors: dict[int, File] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def after_power_cut(self, chance: Random) -> SimulatedDisk:
        """What is on the medium if power is lost now."""
        with self._lock:
            copies = {id(file): file.copy() for file in self.files.values()}
            copies |= {id(file): file.copy() for file in self.durable.values()}
            names = dict(self.durable)
            for change in self.renames[: chance.randint(0, len(self.renames))]:
                change(names)
        likelihood = chance.choice([0, 0.5, 0.9, 1])
        for file in copies.values():
            for write in file.unsynced:
                for position, piece in sectors(write):
                    if chance.random() < likelihood:
                        put(file.durable, position, piece)
            file.data, file.unsynced = bytearray(file.durable), []
        cut = SimulatedDisk()
        cut.files = {name: copies[id(file)] for name, file in names.items() if id(file) in copies}
        cut.durable = dict(cut.files)
        return cut

    def open(self, path: Path) -> int:
        with self._lock:
            file = self.files.get(path.name)
            if file is None:
                created = File()
                self._change(lambda names: names.__setitem__(path.name, created))
                file = created
            descriptor = next(self._numbers)
            self._descriptors[descriptor] = file
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            del self._descriptors[descriptor]

    def size(self, descriptor: int) -> int:
        return len(self._descriptors[descriptor].data)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        self.before("write")
        piece = b"".join(buffers)
        with self._lock:
            file = self._descriptors[descriptor]
            put(file.data, position, piece)
            file.unsynced.append((position, piece))
        self.before("written")

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        with self._lock:
            return bytes(self._descriptors[descriptor].data[position : position + length])

    def sync(self, descriptor: int) -> None:
        file = self._descriptors[descriptor]
        try:
            self.before("sync")
        except OSError:
            # Linux considers the pages clean although they are not on the medium.
            with self._lock:
                file.unsynced.clear()
            raise
        with self._lock:
            for position, piece in file.unsynced:
                put(file.durable, position, piece)
            file.unsynced.clear()

    def make_directory(self, path: Path) -> None:
        pass

    def names(self, directory: Path) -> list[str]:
        return sorted(self.files)

    def rename(self, path: Path, to: Path) -> None:
        self.before("rename")
        self._change(lambda names: names.__setitem__(to.name, names.pop(path.name)))

    def unlink(self, path: Path) -> None:
        self.before("unlink")
        self._change(lambda names: names.__delitem__(path.name))

    def sync_directory(self, directory: Path) -> None:
        self.before("sync_directory")
        with self._lock:
            for change in self.renames:
                change(self.durable)
            self.renames.clear()

    def room(self, directory: Path, written: int) -> int:
        return sys.maxsize

    def _change(self, change: Callable[[dict[str, File]], None]) -> None:
        with self._lock:
            change(self.files)
            self.renames.append(change)


def io_error() -> OSError:
    return OSError(errno.EIO, "Input/output error")
