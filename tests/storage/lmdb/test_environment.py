"""The LMDB environment: lock, format, growth, recovery after I/O errors."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from pytest_twisted import ensureDeferred

from storage.lmdb.environment import MIB, MIN_MAP_BYTES, LmdbEnvironment, MapLock
from storage.lmdb.journal import PAGE
from storage.lmdb.layout import FORMAT
from storage.lmdb.write_burst import PendingIndex
from storage.log import LogClosed, StorageFailed, StoreInUse, StoreTooNew
from tests.contract.benches import no_file_may_grow
from tests.storage.entries import bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.testkit.settle import until

HOLD = """
import sys
from pathlib import Path
from storage.lmdb.environment import LmdbEnvironment
LmdbEnvironment(Path(sys.argv[1]), 1)
print("open", flush=True)
sys.stdin.read()
"""


def test_older_store_without_a_free_page_in_its_map_opens(directory: Path, tmp_path: Path) -> None:
    """As `mdb_copy -c` leaves a store that is larger than `map_bytes`."""
    full = tmp_path / "full"
    full.mkdir()
    with lmdb.open(str(full), map_size=16 * MIN_MAP_BYTES, max_dbs=16) as env:
        with env.begin(write=True) as txn:
            txn.put(b"format", b"1", db=env.open_db(b"meta", txn=txn))
            entries = env.open_db(b"entries", txn=txn)
            for number in range(4 * MIN_MAP_BYTES // 2000):
                txn.put(b"%d" % number, bytes(2000), db=entries)
        directory.mkdir(exist_ok=True)
        env.copy(str(directory), compact=True)
    environment = LmdbEnvironment(directory, MIN_MAP_BYTES)
    try:
        assert (
            environment.read(lambda txn: txn.get(b"format", db=environment.databases["meta"]))
            == str(FORMAT).encode()
        )
    finally:
        environment.close()


def test_lock_error_names_holder_and_remedy(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(
            StoreInUse,
            match=f"process {holder.pid}: stop that process, or use another directory",
        ):
            LmdbEnvironment(directory, 1)
        holder.kill()
    LmdbEnvironment(directory, 1).close()


def test_newer_format_is_refused_naming_both_versions(directory: Path) -> None:
    LmdbEnvironment(directory, 1).close()
    with (
        lmdb.open(str(directory), max_dbs=10) as env,
        env.begin(write=True, db=env.open_db(b"meta")) as txn,
    ):
        txn.put(b"format", b"%d" % (FORMAT + 6))
    with pytest.raises(StoreTooNew, match=f"has format {FORMAT + 6}.*up to {FORMAT}"):
        LmdbEnvironment(directory, 1)
    with pytest.raises(StoreTooNew):
        LmdbEnvironment(directory, 1)


def test_newer_store_is_not_modified(directory: Path) -> None:
    with lmdb.open(str(directory.parent / "newer"), max_dbs=10) as env:
        with env.begin(write=True) as txn:
            txn.put(b"format", b"%d" % (FORMAT + 1), db=env.open_db(b"meta", txn=txn))
        before = env.info()["last_txnid"]
    with pytest.raises(StoreTooNew):
        LmdbEnvironment(directory.parent / "newer", 1)
    with lmdb.open(str(directory.parent / "newer"), max_dbs=10) as env:
        assert (env.info()["last_txnid"], env.dbs()) == (before, [b"meta"])


def test_file_is_accessible_to_owner_only(directory: Path) -> None:
    LmdbEnvironment(directory, 1).close()
    assert (directory / "data.mdb").stat().st_mode & 0o777 == 0o600


def test_unusable_directory_is_named_in_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="file"):
        LmdbEnvironment(tmp_path / "file", 1)


def test_foreign_file_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "data.mdb").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageFailed, match="cannot open the store"):
        LmdbEnvironment(directory, 1)


def test_commit_is_synced_before_acknowledgement(directory: Path) -> None:
    environment = LmdbEnvironment(directory, 1)
    flags = environment._env.flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"], flags["map_async"]) == (
        True,
        True,
        False,
        False,
    )
    environment.close()


def test_read_of_closed_environment_fails(directory: Path) -> None:
    environment = LmdbEnvironment(directory, 1)
    environment.close()
    with pytest.raises(LogClosed):
        environment.read(lambda txn: None)


@ensureDeferred
async def test_full_map_grows_without_failed_writes(open_store: Opener, directory: Path) -> None:
    store = open_store(map_bytes=1)
    await store.open()
    table = await store.table("rows")
    rows = {b"%d" % n: b"v" * 100_000 for n in range(60)}
    puts = [table.put({key: value}) for key, value in rows.items()]
    for one in puts:
        await one
    assert (directory / "data.mdb").stat().st_size > 5 * MIN_MAP_BYTES
    assert dict(await table.items()) == rows


@ensureDeferred
async def test_reads_continue_while_map_grows(open_store: Opener) -> None:
    store = open_store(map_bytes=1, tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log, table = await store.log("orders", 0), await store.table("rows")
    await log.append([sized(0, 100_000)])
    puts = [table.put({b"%d" % n: b"v" * 100_000}) for n in range(40)]
    for one in puts:
        assert bases(await log.read(0, 1)) == [0]
        await one
    assert bases(await everything(log)) == [0]


@contextmanager
def broken_meta_page(directory: Path) -> Iterator[None]:
    """LMDB cannot write its meta page: its descriptor for that (O_DSYNC) is replaced by a read-only
    one.
    """
    path = str(directory / "data.mdb")
    found = [
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{name}") == path
    ]
    (meta,) = (fd for fd in found if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC)
    read_only = os.open(path, os.O_RDONLY)
    os.dup2(read_only, meta, inheritable=False)
    os.close(read_only)
    yield


@ensureDeferred
async def test_environment_is_reopened_after_mdb_panic(open_store: Opener, directory: Path) -> None:
    store = open_store(tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log, table = await store.log("orders", 0), await store.table("rows")
    await log.append([sized(0, 10)])
    with broken_meta_page(directory), pytest.raises(StorageFailed):
        await store.create_topic(topic("other"))
    assert bases(await log.read(0, 1000)) == [0]
    await table.put({b"c": b"3"})
    await log.append([sized(1, 10)])
    assert bases(await everything(log)) == [0, 1]
    await store.close()
    again = open_store()
    await again.open()
    assert bases(await everything(await again.log("orders", 0))) == [0, 1]
    assert await (await again.table("rows")).items() == [(b"c", b"3")]


@ensureDeferred
async def test_store_opens_and_reads_on_full_disk(open_store: Opener, directory: Path) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    await (await store.log("orders", 0)).append([sized(0, 10)])
    await store.close()
    again = open_store()
    with no_file_may_grow():
        await again.open()
        assert bases(await everything(await again.log("orders", 0))) == [0]


@ensureDeferred
async def test_deletion_succeeds_on_a_disk_that_other_files_have_filled(
    open_store: Opener, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may become larger. Freeing and rows that wait need pages, too."""
    # As many rows wait as if the commit of half of them lasted.
    monkeypatch.setattr(PendingIndex, "are_many", lambda *_: False)
    limits = {
        "held_bytes": MIN_MAP_BYTES,
        "table_bytes": MIN_MAP_BYTES // 2,
        "table_rows": 2000,
    }
    store = open_store(tail_bytes=0, index_seconds=1e6, **limits)
    await store.open()
    await store.create_topic(topic("orders", 2))
    logs = [await store.log("orders", n) for n in range(2)]
    table = await store.table("rows")
    for base in range(1500):
        appends = [log.append([sized(base, 10)]) for log in logs]
    for one in appends:
        await one
    for number in range(2000):
        put = table.put({b"%d" % number: bytes(150)})
    await put
    size = (directory / "data.mdb").stat().st_size
    assert store._state.pending.count == 5000
    with no_file_may_grow(size):
        await logs[0].delete_before(1400)
        assert store._state.pending.count == 0
        await store.delete_topic("orders")
        await until(lambda: not store._state.freeing)
    assert (directory / "data.mdb").stat().st_size == size


@ensureDeferred
async def test_deletion_succeeds_on_a_full_disk_behind_table_rows_that_are_far_apart(
    open_store: Opener, directory: Path
) -> None:
    """A commit writes a page for each of them."""
    store = open_store(
        tail_bytes=0,
        index_seconds=1e6,
        held_bytes=MIN_MAP_BYTES,
        table_rows=MIN_MAP_BYTES // 2 // (2 * PAGE),
    )
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    for base in range(10):
        await log.append([sized(base, 10)])
    table = await store.table("rows")
    keys = [b"%05d" % number for number in range(20_000)]
    await table.put(dict.fromkeys(keys, bytes(100)))
    most = store.settings.table_rows
    # After more puts than rows may wait, and with as many rows as may wait.
    for puts in (1000, most):
        for number in range(puts):
            put = table.put({keys[number * len(keys) // puts]: b"%0100d" % puts})
        await put
        assert len(store._state.pending.table_rows) <= most
        with no_file_may_grow((directory / "data.mdb").stat().st_size):
            await log.delete_before(log.start_offset + 1)
        assert store._state.pending.count == 0


def test_space_behind_the_last_page_is_written(directory: Path) -> None:
    """Allocated space alone would be written with the first commit that uses it."""
    environment = LmdbEnvironment(directory, MIN_MAP_BYTES, 3 * MIB)
    try:
        held = environment.hold_room()
        assert held == 3 * MIB
        assert environment.hold_room() == held
        size = (directory / "data.mdb").stat().st_size
        with open(directory / "data.mdb", "rb") as file:
            # The file system reports allocated space that was never written as a hole.
            assert os.lseek(file.fileno(), size - held, os.SEEK_HOLE) == size
            file.seek(size - held)
            assert not any(file.read())
    finally:
        environment.close()


def test_readers_do_not_block_each_other() -> None:
    map_lock, both = MapLock(), threading.Barrier(2, timeout=10)

    def read() -> None:
        with map_lock:
            both.wait()

    thread = threading.Thread(target=read)
    thread.start()
    read()
    thread.join(10)


def test_exclusive_waits_for_readers_and_blocks_later_ones() -> None:
    map_lock, seen = MapLock(), []
    inside, is_asked, leave = threading.Event(), threading.Event(), threading.Event()

    def early() -> None:
        with map_lock:
            inside.set()
            leave.wait()
            seen.append("early")

    def exclusive() -> None:
        inside.wait()
        with map_lock.exclusive():
            seen.append("exclusive")

    def late() -> None:
        is_asked.wait()
        with map_lock:
            seen.append("late")

    threads = [threading.Thread(target=call, daemon=True) for call in (early, exclusive, late)]
    for thread in threads:
        thread.start()
    while not map_lock._is_exclusive:
        time.sleep(0.001)
    is_asked.set()
    # Without the lock, the late reader enters within this time.
    threads[-1].join(0.1)
    leave.set()
    for thread in threads:
        thread.join()
    assert seen == ["early", "exclusive", "late"]
