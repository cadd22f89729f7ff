"""The LMDB environment of one directory: its lock, its format, its growth, and its return after an I/O error.

Reads run in several threads; the map can be moved or closed only while none is under way, which the `Gate` sees to.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from storage.lmdb.layout import DATABASES, FORMAT
from storage.log import LogClosed, StorageFailed, StoreInUse, StoreTooNew

T = TypeVar("T")

MIB = 1 << 20
GIB = 1 << 30
SMALLEST_MAP = MIB
"""Less does not hold the empty databases."""


class Gate:
    """Many inside, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._inside == 0:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._alone = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class Environment:
    """An open LMDB environment and the lock on its directory. Write transactions belong to one thread, the writer's."""

    def __init__(self, directory: Path, map_bytes: int) -> None:
        """Take and open `directory`, made where it is missing. Raises StoreInUse, StoreTooNew, StorageFailed; blocks."""
        self.directory = directory
        self.databases: dict[str, Any] = {}
        self._map_bytes = max(map_bytes, SMALLEST_MAP)
        self._gate = Gate()
        self._env: Any = None
        self._closed = False
        try:
            made = not directory.exists()
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(directory)
        except OSError as error:
            raise StorageFailed(f"cannot use {directory}: {error}") from error
        try:
            self._open()
            self._check_format()
            if made:
                sync_directory(directory.parent)
            sync_directory(directory)
        except BaseException as error:
            self.close()
            if isinstance(error, lmdb.Error | OSError):
                raise StorageFailed(f"cannot open the store in {directory}: {error}") from error
            raise

    def _open(self) -> None:
        self._env = lmdb.open(str(self.directory), map_size=self._map_bytes, max_dbs=len(DATABASES), max_spare_txns=8)
        self._map_bytes = self._env.info()["map_size"]
        # Where all of them exist nothing is written: a full disk does not keep a store from being opened and read.
        with self._env.begin(write=True) as txn:
            self.databases = {name: self._env.open_db(name.encode(), txn=txn) for name in DATABASES}

    def _check_format(self) -> None:
        meta = self.databases["meta"]
        with self._env.begin() as txn:
            written = txn.get(b"format", db=meta)
        if written is None:
            with self._env.begin(write=True) as txn:
                txn.put(b"uuid", uuid.uuid4().bytes, db=meta)
                txn.put(b"format", str(FORMAT).encode(), db=meta)
        elif int(written) > FORMAT:
            raise StoreTooNew(
                f"the store in {self.directory} has format {int(written)}, and this version reads formats up to {FORMAT}: "
                "start the version that wrote it, or a newer one"
            )

    def begin(self) -> Any:
        """A write transaction; for the writer's thread only."""
        if self._env is None:
            raise lmdb.Error("the environment is not open")
        return self._env.begin(write=True)

    def read(self, call: Callable[[Any], T]) -> T:
        """What `call` makes of a read transaction, which ends with it; blocks. Raises LogClosed, StorageFailed."""
        with self._gate.shared():
            if self._closed:
                raise LogClosed("the store is closed")
            if self._env is None:
                raise StorageFailed(f"the store in {self.directory} is being opened again after an I/O error")
            try:
                with self._env.begin() as txn:
                    return call(txn)
            except lmdb.Error as error:
                raise StorageFailed(f"cannot read the store in {self.directory}: {error}") from error

    def grow(self) -> None:
        """Make the map half as large again, and a GiB larger at least. No write transaction may be open."""
        with self._gate.alone():
            larger = max(self._map_bytes + self._map_bytes // 2, self._map_bytes + GIB)
            self._env.set_mapsize(larger)
            self._map_bytes = larger

    def has_landed(self, txn_id: int) -> bool:
        """Whether the commit of `txn_id`, which raised, is on disk all the same; opens the environment again where it cannot go on.

        Raises lmdb.Error while it cannot be opened. LMDB gives an environment up when it could not write a meta page (MDB_PANIC).
        """
        if self._env is not None:
            try:
                self._env.begin(write=True).abort()
            except lmdb.Error:
                with self._gate.alone():
                    self._env.close()
                    self._env = None
        if self._env is None:
            with self._gate.alone():
                self._open()
        landed = bool(self._env.info()["last_txnid"] >= txn_id)
        if landed:
            self._env.sync(True)
        return landed

    def close(self) -> None:
        """Close and let the directory go; blocks until the reads under way are through."""
        with self._gate.alone():
            if self._closed:
                return
            self._closed = True
            if self._env is not None:
                self._env.close()
            os.close(self._lock)


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
