"""The LMDB environment of one directory: its lock, its format, its growth, and its return after an I/O error.

Reads run in several threads; the map can be moved or closed only while none is under way, which the `MapLock` sees to.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from storage.lmdb.directory import sync_directory, take_lock
from storage.lmdb.layout import DATABASES, FORMAT
from storage.lmdb.map_lock import MapLock
from storage.log import LogClosed, StorageFailed, StoreTooNew

T = TypeVar("T")

MIB = 1 << 20
GIB = 1 << 30
MIN_MAP_BYTES = MIB
"""Less does not hold the empty databases."""

MIN_GROWTH_BYTES = MIB
"""What a deletion on a full disk is given at a time; it needs some pages of the tree."""


REOPEN_SECONDS = 5.0
"""How long a read waits for an environment that LMDB gave up to be opened again, some milliseconds where the medium is there."""


class LmdbEnvironment:
    """An open LMDB environment and the lock on its directory. Write transactions belong to one thread, the writer's."""

    def __init__(self, directory: Path, map_bytes: int, reserve_bytes: int = 0) -> None:
        """Take and open `directory`, made where it is missing. Raises StoreInUse, StoreTooNew, StorageFailed; blocks."""
        self.directory = directory
        self._reserve_bytes = reserve_bytes
        self.is_disk_low = False
        self.databases: dict[str, Any] = {}
        self._map_bytes = max(map_bytes, MIN_MAP_BYTES)
        self._map_lock = MapLock()
        self._reopened = threading.Condition()
        self._is_rolled_back = False
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
            if made:
                sync_directory(directory.parent)
            sync_directory(directory)
        except BaseException as error:
            self.close()
            if isinstance(error, lmdb.Error | OSError):
                raise StorageFailed(
                    f"cannot open the store in {directory} with map_bytes={map_bytes}: {error}"
                ) from error
            raise

    def _open(self) -> None:
        # Not for everybody's eyes: tables may hold credentials.
        env = lmdb.open(
            str(self.directory),
            map_size=self._map_bytes,
            max_dbs=len(DATABASES),
            max_spare_txns=8,
            mode=0o600,
        )
        try:
            # Where all is there nothing is written: a full disk does not keep a store from being opened and read.
            with env.begin(write=True) as txn:
                meta = env.open_db(b"meta", txn=txn)
                self._check_format(txn, meta)
                self.databases = {name: env.open_db(name.encode(), txn=txn) for name in DATABASES}
        except BaseException:
            env.close()
            raise
        self._map_bytes = env.info()["map_size"]
        self._env = env

    def _check_format(self, txn: Any, meta: Any) -> None:
        """Mark a new store with the format; refuse a newer one before anything in it is touched."""
        written = txn.get(b"format", db=meta)
        if written is None:
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
        while True:
            with self._map_lock.shared():
                if self._closed:
                    raise LogClosed("the store is closed")
                env = self._env
                if env is None:
                    raise StorageFailed(
                        f"the store in {self.directory} is being opened again after an I/O error"
                    )
                try:
                    with env.begin() as txn:
                        return call(txn)
                except lmdb.PanicError as error:
                    given_up = error
                except lmdb.Error as error:
                    raise StorageFailed(
                        f"cannot read the store in {self.directory}: {error}"
                    ) from error
            with self._reopened:
                # The commit that LMDB gave up over is the writer's, who opens the environment again as the next thing it does.
                if not self._reopened.wait_for(
                    lambda env=env: self._env is not env,  # type: ignore[misc]
                    REOPEN_SECONDS,
                ):
                    raise StorageFailed(
                        f"cannot read the store in {self.directory}: {given_up}"
                    ) from given_up

    def limit_growth(self, incoming: int) -> None:
        """To be called before appends of `incoming` bytes: where they would take the disk's last room, the file may not grow for them.

        LMDB needs new pages even to delete. On a disk filled to the last page nothing could be deleted, so `reserve_bytes` are left for that;
        appends go on only as far as there are free pages in the file, and end in MapFullError before anything is written.
        """
        if self._env is None:
            return
        self.is_disk_low = self.free_bytes() < self._reserve_bytes + 2 * incoming
        if self.is_disk_low:
            info = self._env.info()
            used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
            if info["map_size"] > used:
                self._resize(used)

    def free_bytes(self) -> int:
        """The bytes by which the file may still grow: the volume's, or less by the process's own limit. A volume that does not tell has enough."""
        try:
            volume = os.fstatvfs(self._lock)
            written = (self.directory / "data.mdb").stat().st_size
        except OSError:
            return sys.maxsize
        room = volume.f_bavail * volume.f_frsize
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return room if limit == resource.RLIM_INFINITY else min(room, limit - written)

    def grow(self, for_appends: bool) -> None:
        """Make the map larger, so that what it was too small for can be tried again. No write transaction may be open.

        By half, and by a GiB at least. On a tight disk by little, and for appends not at all: raises lmdb.MapFullError.
        """
        if not self.is_disk_low:
            self._resize(max(self._map_bytes + self._map_bytes // 2, self._map_bytes + GIB))
        elif for_appends:
            raise lmdb.MapFullError(
                f"the disk is full: {self.free_bytes()} bytes are left, of which {self._reserve_bytes} are kept for deletions"
            )
        else:
            self._resize(self._map_bytes + MIN_GROWTH_BYTES)

    def _resize(self, map_bytes: int) -> None:
        with self._map_lock.exclusive():
            self._env.set_mapsize(map_bytes)
            self._map_bytes = map_bytes

    def is_committed(self, txn_id: int) -> bool:
        """Whether the commit of `txn_id`, which raised, is on disk all the same; opens the environment again where it cannot go on.

        Raises lmdb.Error while it cannot be opened. LMDB gives an environment up when it could not write a meta page (MDB_PANIC).
        """
        if not self._is_usable():
            self._is_rolled_back = True
            self._reopen()
        on_complete = bool(self._env.info()["last_txnid"] >= txn_id)
        if on_complete:
            self._rewrite_meta_page()
        elif self._is_rolled_back:
            # LMDB has put the old meta page back, and nothing may be written over what the refused one names before that is on the medium.
            self._env.sync(True)
        self._is_rolled_back = False
        return on_complete

    def _rewrite_meta_page(self) -> None:
        """A commit on top of the one whose meta page failed to be written and yet is there: it writes the other meta page.

        A sync would not do. After a failed write Linux takes the page for clean, so the next sync succeeds and writes nothing.
        """
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    txn.put(b"settled", uuid.uuid4().bytes, db=self.databases["meta"])
                return
            except lmdb.MapFullError:
                self._resize(self._map_bytes + MIN_GROWTH_BYTES)

    def _is_usable(self) -> bool:
        try:
            self.begin().abort()
        except lmdb.Error:
            return False
        return True

    def _reopen(self) -> None:
        try:
            with self._map_lock.exclusive():
                if self._env is not None:
                    self._env.close()
                    self._env = None
                self._open()
        finally:
            with self._reopened:
                self._reopened.notify_all()

    def close(self) -> None:
        """Close and let the directory go; blocks until the reads under way are through."""
        with self._map_lock.exclusive():
            if self._closed:
                return
            self._closed = True
            if self._env is not None:
                self._env.close()
            os.close(self._lock)
