"""The LMDB environment of one directory: lock, format check, growth, recovery after I/O errors.

Several threads read. The map may be resized or closed only while no read is running, which
`MapLock` enforces.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from storage.files import FLUSH
from storage.lmdb.frames import MARK_BYTES
from storage.lmdb.layout import DATABASES, FORMAT, JOURNAL_FORMAT, UNRELEASED_FORMAT
from storage.log import LogClosed, StorageFailed, StoreInUse, StoreTooNew

T = TypeVar("T")

MIB = 1 << 20
GIB = 1 << 30
MIN_MAP_BYTES = MIB
ZEROS = bytes(MIB)
"""A smaller map cannot hold the empty databases."""

REOPEN_SECONDS = 5.0
"""How long a read waits for an environment to be reopened after MDB_PANIC.

It takes milliseconds if the medium works.
"""


class MapLock:
    """Shared by any number of readers (`with lock`), or held exclusively: to resize or close the
    map.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._shared_holders = 0
        self._is_exclusive = False

    def __enter__(self) -> None:
        with self._lock:
            while self._is_exclusive:
                self._changed.wait()
            self._shared_holders += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._shared_holders -= 1
            if self._is_exclusive and self._shared_holders == 0:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            while self._is_exclusive:
                self._changed.wait()
            self._is_exclusive = True
            while self._shared_holders:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._is_exclusive = False
                self._changed.notify_all()


class LmdbEnvironment:
    """An open LMDB environment and the lock on its directory.

    Only the writer thread uses write transactions.
    """

    def __init__(
        self,
        directory: Path,
        map_bytes: int,
        held_bytes: int = 0,
        before_format: Callable[[int], None] = lambda older: None,
    ) -> None:
        """Lock and open `directory`, creating it if missing. Blocks.

        `before_format` is called before a store gets a journal, with its older format or 0 if it is
        new. If it raises, the store is not changed.

        Raises StoreInUse, StoreTooNew, StorageFailed.
        """
        self.directory = directory
        self.databases: dict[str, Any] = {}
        self._map_bytes = max(map_bytes, MIN_MAP_BYTES)
        self._held_bytes = held_bytes
        self._before_format = before_format
        self._allocated = 0
        self._map_lock = MapLock()
        self._reopened = threading.Condition()
        self._is_rolled_back = False
        self._env: Any = None
        self._closed = False
        try:
            made = not directory.exists()
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(directory)
        except OSError as error:
            raise StorageFailed(f"cannot use {directory}: {error}") from error
        try:
            self._open()
            if made:
                _sync_directory(directory.parent)
            _sync_directory(directory)
        except BaseException as error:
            self.close()
            if isinstance(error, lmdb.Error | OSError):
                raise StorageFailed(
                    f"cannot open the store in {directory} with map_bytes={map_bytes}: {error}"
                ) from error
            raise

    def _open(self) -> None:
        # Tables may hold credentials, so other users get no access.
        env = lmdb.open(
            str(self.directory),
            map_size=self._map_bytes,
            max_dbs=len(DATABASES),
            max_spare_txns=8,
            mode=0o600,
        )
        try:
            try:
                self._open_databases(env)
            except lmdb.MapFullError:
                # A file that is larger than `map_size` is mapped without a free page.
                env.set_mapsize(env.info()["map_size"] + GIB)
                self._open_databases(env)
        except BaseException:
            env.close()
            raise
        self._map_bytes = env.info()["map_size"]
        self._env = env

    def _open_databases(self, env: Any) -> None:
        """Open all databases. Writes only those that are missing, and the format if it is older: a
        store on a full disk can be opened and read.
        """
        with env.begin(write=True) as txn:
            meta = env.open_db(b"meta", txn=txn)
            self._check_format(txn, meta)
            self.databases = {name: env.open_db(name.encode(), txn=txn) for name in DATABASES}

    def _check_format(self, txn: Any, meta: Any) -> None:
        """Write the format to a new or older store; refuse a newer one before changing anything.

        A store of format 1 has entries in LMDB, which stay there until they are deleted.
        """
        written = txn.get(b"format", db=meta)
        if written is not None and int(written) == UNRELEASED_FORMAT:
            raise StorageFailed(
                f"the store in {self.directory} has format {UNRELEASED_FORMAT}, which no release "
                "has written: use another directory"
            )
        if written is None or int(written) < FORMAT:
            if written is None or int(written) < JOURNAL_FORMAT:
                self._before_format(int(written or 0))
                txn.put(b"journal_mark", secrets.token_bytes(MARK_BYTES), db=meta)
            if written is None:
                txn.put(b"uuid", uuid.uuid4().bytes, db=meta)
            txn.put(b"format", str(FORMAT).encode(), db=meta)
        elif int(written) > FORMAT:
            raise StoreTooNew(
                f"the store in {self.directory} has format {int(written)}; this version supports "
                f"formats up to {FORMAT}: "
                "start the version that wrote it, or a newer one"
            )

    def begin(self) -> Any:
        """A write transaction; for the writer thread only."""
        if self._env is None:
            raise lmdb.Error("the environment is not open")
        return self._env.begin(write=True)

    def read(self, call: Callable[[Any], T]) -> T:
        """Run `call` with a read transaction and return its result. Blocks.

        Raises LogClosed, StorageFailed.
        """
        while True:
            with self._map_lock:
                if self._closed:
                    raise LogClosed("the store is closed")
                env = self._env
                if env is None:
                    raise StorageFailed(
                        f"the store in {self.directory} is being reopened after an I/O error"
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
                # LMDB panicked in a commit of the writer, which reopens the environment next.
                # mypy cannot infer the type of a lambda with a default argument.
                if not self._reopened.wait_for(
                    lambda env=env: self._env is not env,  # type: ignore[misc]
                    REOPEN_SECONDS,
                ):
                    raise StorageFailed(
                        f"cannot read the store in {self.directory}: {given_up}"
                    ) from given_up

    def hold_room(self) -> int:
        """Allocate disk space behind the last page, and return how much there is. Blocks.

        It is at least three quarters of `held_bytes`, if the disk has room. So on a disk that other
        files have filled, entries can still be deleted. The space is filled
        with zeros: the flush of a commit then changes no metadata of the file. For the writer
        thread, between transactions.
        """
        if self._env is None:
            return 0
        used = int((self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"])
        can_allocate = hasattr(os, "posix_fallocate")
        if self._allocated - used < self._held_bytes * 3 // 4 and can_allocate:
            with suppress(OSError):
                descriptor = os.open(self.directory / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
                try:
                    start = max(self._allocated, used)
                    os.posix_fallocate(descriptor, used, self._held_bytes)
                    self._allocated = used + self._held_bytes
                    for position in range(start, self._allocated, len(ZEROS)):
                        size = min(len(ZEROS), self._allocated - position)
                        os.pwrite(descriptor, memoryview(ZEROS)[:size], position)
                    FLUSH(descriptor)
                finally:
                    os.close(descriptor)
        return max(self._allocated - used, 0)

    def grow(self) -> None:
        """Enlarge the map so that the failed write can be retried. No write transaction may be
        open.

        The map grows by half, at least 1 GiB. The file only grows by the pages that are used.
        """
        self._resize(max(self._map_bytes + self._map_bytes // 2, self._map_bytes + GIB))

    def _resize(self, map_bytes: int) -> None:
        with self._map_lock.exclusive():
            self._env.set_mapsize(map_bytes)
            self._map_bytes = map_bytes

    def is_committed(self, txn_id: int) -> bool:
        """Whether the commit of `txn_id`, which raised, is on disk; reopens an unusable
        environment.

        LMDB makes the environment unusable (MDB_PANIC) if it could not write a meta page. Raises
        lmdb.Error while the environment cannot be reopened.
        """
        if not self._is_usable():
            self._is_rolled_back = True
            self._reopen()
        on_complete = bool(self._env.info()["last_txnid"] >= txn_id)
        if on_complete:
            self._rewrite_meta_page()
        elif self._is_rolled_back:
            # LMDB restored the old meta page. It must be on disk before the pages that the failed
            # meta page refers to are overwritten.
            self._env.sync(True)
        self._is_rolled_back = False
        return on_complete

    def _rewrite_meta_page(self) -> None:
        """Commit again, which writes the other meta page.

        For a commit that is present although writing its meta page failed. A sync is not enough:
        after a failed write Linux considers the page clean, so the next sync succeeds without
        writing it.
        """
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    txn.put(b"settled", uuid.uuid4().bytes, db=self.databases["meta"])
                return
            except lmdb.MapFullError:
                self.grow()

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
        """Close and unlock the directory; blocks until running reads have finished."""
        with self._map_lock.exclusive():
            if self._closed:
                return
            self._closed = True
            if self._env is not None:
                self._env.close()
            os.close(self._lock)


def _take_lock(directory: Path) -> int:
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


def _sync_directory(directory: Path) -> None:
    """Make new file names durable; LMDB syncs only file contents."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
