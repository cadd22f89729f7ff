"""Tables: their rows are durable in the journal, and follow to LMDB later."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.bridge import sleep
from storage.files import DiskFiles, Files
from storage.lmdb import LmdbSettings, LmdbStore, cleaner, environment
from storage.lmdb.frames import FRAME
from storage.lmdb.layout import DATABASES, Slot
from storage.lmdb.table import LmdbTable
from storage.lmdb.write_burst import Burst, Task
from storage.lmdb.writer import begin_transaction
from storage.log import Buffer, StorageFailed, StoreTooNew
from tests.storage.entries import bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.storage.lmdb.simulation.simulated_disk import SimulatedDisk, io_error
from tests.testkit.settle import until

NEVER = 1e6
Rows = dict[bytes, bytes]


async def opened(open_store: Opener, **settings: Any) -> tuple[LmdbStore, LmdbTable]:
    """A store whose rows are not committed by time, and a table that has one."""
    store = open_store(**({"tail_bytes": 0, "index_seconds": NEVER} | settings))
    await store.open()
    if not store.topics:
        await store.create_topic(topic())
    table = await store.table("rows")
    await table.put({b"first": b"1"})
    return store, table


async def rows_after_kill(
    directory: Path, copy: Path, files: Files | None = None
) -> tuple[LmdbStore, Rows]:
    """A store on what is there now, as after a kill, and the rows of the table. The caller closes
    it.
    """
    shutil.copytree(directory, copy)
    settings = LmdbSettings(tail_bytes=0, index_seconds=NEVER, held_bytes=0)
    store = LmdbStore(copy, reactor=reactor, settings=settings, files=files)
    await store.open()
    return store, dict(await (await store.table("rows")).items())


def last_txn(store: LmdbStore) -> int:
    assert store._environment
    return int(store._environment._env.info()["last_txnid"])


@ensureDeferred
async def test_put_is_one_write_and_one_flush_of_the_journal(open_store: Opener) -> None:
    disk = SimulatedDisk()
    store, table = await opened(open_store, files=disk)
    done: list[str] = []
    disk.before = done.append
    before = last_txn(store)
    await table.put({b"a": b"1", b"b": b"2"})
    assert done == ["write", "written", "sync"]
    assert last_txn(store) == before


@ensureDeferred
async def test_appends_and_puts_of_a_burst_are_one_write(open_store: Opener) -> None:
    disk = SimulatedDisk()
    store, table = await opened(open_store, files=disk)
    log = await store.log("orders", 0)
    await log.append([sized(0, 10)])
    done: list[str] = []
    disk.before = done.append
    # The burst before has not been delivered to all of its callers yet, so these are one.
    for one in (
        table.put({b"a": b"1"}),
        table.put({b"a": b"2"}),
        log.append([sized(1, 10)]),
        table.put({b"b": None}),
    ):
        await one
    assert done == ["write", "written", "sync"]
    assert dict(await table.items()) == {b"first": b"1", b"a": b"2"}


@ensureDeferred
async def test_put_does_not_wait_for_the_caller_of_another_put(open_store: Opener) -> None:
    """It was queued while that one was written."""
    _, table = await opened(open_store, gathering_seconds=NEVER)
    # The queue notices that the burst before is complete.
    await sleep(reactor, 0)
    puts = [cast("Deferred[None]", table.put({b"a": b"%d" % number})) for number in range(2)]
    await until(lambda: all(one.called for one in puts))


@ensureDeferred
async def test_put_is_flushed_although_appends_are_not(open_store: Opener) -> None:
    """With `log_flush=os`."""
    disk = SimulatedDisk()
    store, table = await opened(open_store, files=disk, sync_appends=False)
    log = await store.log("orders", 0)
    (file,) = disk.files.values()
    await log.append([sized(0, 10)])
    assert file.has_unsynced_frames
    put, append = table.put({b"a": b"1"}), log.append([sized(1, 10)])
    await put
    assert not file.has_unsynced_frames
    await append
    both = [table.put({b"a": b"2"}), log.append([sized(2, 10)]), table.put({b"a": b"3"})]
    for one in both:
        await one
    assert not file.has_unsynced_frames


@ensureDeferred
async def test_items_are_the_same_before_and_after_the_commit_of_rows(open_store: Opener) -> None:
    store, table = await opened(open_store)
    other = await store.table("rows2")
    await other.put({b"k": b"other"})
    await table.put({b"a": b"1", b"b": b"2", b"c": b"3"})
    await store.write(Task(begin_transaction))
    await table.put({b"a": b"4", b"d": b"5"})
    await table.put({b"b": None, b"d": b"6", b"never there": None})
    expected = [(b"a", b"4"), (b"c", b"3"), (b"d", b"6"), (b"first", b"1")]
    assert store._state.pending.count == 4
    assert await table.items() == expected
    await store.write(Task(begin_transaction))
    assert store._state.pending.count == 0
    assert await table.items() == expected
    assert await other.items() == [(b"k", b"other")]


@ensureDeferred
async def test_rows_survive_a_kill_in_the_order_of_the_puts(
    open_store: Opener, directory: Path, tmp_path: Path
) -> None:
    store, table = await opened(open_store)
    log = await store.log("orders", 0)
    await table.put({b"a": b"1", b"b": b"1", b"c": b"1"})
    await store.write(Task(begin_transaction))
    expected = {b"first": b"1"}
    for number in range(20):
        await table.put({b"a": b"%d" % number, b"b": None if number % 3 else b"%d" % number})
        await log.append([sized(number, 10)])
    await table.put({b"c": None})
    expected |= {b"a": b"19"}
    for number in range(3):
        killed, rows = await rows_after_kill(directory, tmp_path / f"killed {number}")
        assert rows == expected
        assert bases(await everything(await killed.log("orders", 0))) == list(range(20))
        # The next one begins with rows that the journal has, and continues their numbers.
        await (await killed.table("rows")).put({b"c": b"%d" % number})
        directory = killed.directory
        expected |= {b"c": b"%d" % number}
        if number == 1:
            await killed.write(Task(begin_transaction))
        shutil.copytree(directory, tmp_path / f"copy {number}")
        await killed.close()
        directory = tmp_path / f"copy {number}"


@pytest.mark.parametrize("is_refused", [False, True])
@ensureDeferred
async def test_frame_of_a_put_that_was_committed_instead_replaces_no_later_value(
    open_store: Opener,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_refused: bool,
) -> None:
    """The flush fails although everything reached the medium, and truncating fails, too."""
    disk = SimulatedDisk()
    store, table = await opened(open_store, files=disk, table_bytes=1000)
    assert store._environment
    begin = store._environment.begin

    def fail(operation: str) -> None:
        if operation in ("sync", "truncate"):
            raise io_error()

    def fail_commit() -> Any:
        raise lmdb.DiskError("a simulated failure")

    disk.before = fail
    if is_refused:
        monkeypatch.setattr(store._environment, "begin", fail_commit)
        monkeypatch.setattr(store._environment, "is_committed", lambda txn_id: False)
        with pytest.raises(StorageFailed):
            await table.put({b"a": b"1"})
        monkeypatch.setattr(store._environment, "begin", begin)
    else:
        await table.put({b"a": b"1"})
    # This one does not try to write to the journal.
    large = bytes(2000)
    await table.put({b"a": b"2", b"large": large})
    (file,) = disk.files.values()
    assert b"a1" in file.data
    # Only the number of the frame tells that it is older than the row in LMDB.
    killed, rows = await rows_after_kill(directory, tmp_path / "killed", disk.after_kill())
    assert rows == {b"first": b"1", b"a": b"2", b"large": large}
    await (await killed.table("rows")).put({b"a": b"3"})
    assert (await (await killed.table("rows")).items())[0] == (b"a", b"3")
    await killed.close()
    disk.before = lambda operation: None
    await table.put({b"a": b"4"})
    assert store._state.pending.count == 1


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["header", "payload"])
@ensureDeferred
async def test_damaged_write_is_reported_and_later_ones_are_read(
    open_store: Opener,
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    store, table = await opened(open_store)
    await table.put({b"a": b"1", b"b": b"1"})
    await store.write(Task(begin_transaction))
    assert store._journal
    at = store._journal.end.at
    await table.put({b"a": b"2", b"b": b"2"})
    await table.put({b"b": b"3"})
    copy = tmp_path / "damaged"
    shutil.copytree(directory, copy)
    damage(copy / "journal" / f"{1:016d}", at + (20 if part == "header" else FRAME.size + 8))
    killed, rows = await rows_after_kill(copy, tmp_path / "killed")
    assert rows == {b"first": b"1", b"a": b"1", b"b": b"3"}
    assert "1 writes to tables are lost, because the journal" in caplog.text
    caplog.clear()
    # It is reported once, not again behind the next checkpoint.
    await killed.write(Task(begin_transaction))
    await (await killed.table("rows")).put({b"c": b"1"})
    again, rows = await rows_after_kill(killed.directory, tmp_path / "again")
    assert rows == {b"first": b"1", b"a": b"1", b"b": b"3", b"c": b"1"}
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    await again.close()
    await killed.close()


@ensureDeferred
async def test_interrupted_put_is_cut_off(
    open_store: Opener, directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, table = await opened(open_store)
    await table.put({b"a": b"1"})
    assert store._journal
    at = store._journal.end.at
    await table.put({b"a": b"2", b"b": b"2"})
    copy = tmp_path / "torn"
    shutil.copytree(directory, copy)
    damage(copy / "journal" / f"{1:016d}", at + FRAME.size + 15)
    killed, rows = await rows_after_kill(copy, tmp_path / "killed")
    assert rows == {b"first": b"1", b"a": b"1"}
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    await (await killed.table("rows")).put({b"a": b"3"})
    await killed.close()


def size_of(path: Path) -> int:
    """The size of a file, which may be deleted meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


@ensureDeferred
async def test_journal_does_not_grow_with_puts_alone(open_store: Opener, directory: Path) -> None:
    """Nothing but the number of segments lets rows be committed here."""
    store, table = await opened(open_store, segment_bytes=20_000, table_bytes=1 << 30)
    sizes = []
    for number in range(200):
        await table.put({b"k": b"%d" % number * 300})
        sizes.append(sum(map(size_of, (directory / "journal").iterdir())))
    assert max(sizes) <= 7 * 20_000
    assert store._journal
    assert store._journal.end.segment > 8
    await until(lambda: not store._state.unused)
    await store.close()
    store, table = await opened(open_store)
    assert dict(await table.items()) == {b"first": b"1", b"k": b"199" * 300}


@ensureDeferred
async def test_entry_between_many_puts_is_moved_and_its_segment_deleted(
    open_store: Opener, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames with table rows are skipped without a look-up."""
    looked_up: set[int] = set()
    slot_at = cleaner._slot_at

    def look_up(burst: Burst, log_id: int, base_offset: int) -> Slot | None:
        looked_up.add(log_id)
        return slot_at(burst, log_id, base_offset)

    monkeypatch.setattr(cleaner, "_slot_at", look_up)
    store, table = await opened(open_store, segment_bytes=20_000)
    log = await store.log("orders", 0)
    for number in range(100):
        if number % 10 == 0:
            await log.append([sized(log.next_offset, 100)])
        await table.put({b"k": b"%d" % number * 500})
    await store.write(Task(begin_transaction))
    await until(lambda: not store._state.sparse and not store._state.unused)
    assert store._journal
    assert len(list((directory / "journal").iterdir())) <= 3
    assert bases(await everything(log)) == list(range(10))
    assert looked_up == {log._log_id}


@ensureDeferred
async def test_rows_are_committed_when_they_have_many_bytes(open_store: Opener) -> None:
    """Half of those that may wait: others follow meanwhile."""
    store, table = await opened(open_store, table_bytes=10_000)

    def pending() -> int:
        generations = store._state.pending.generations()
        return sum(sum(one.table_bytes.values()) for one in generations)

    for number in range(100):
        await table.put({b"k": b"%d" % number * 500})
        assert pending() <= 10_000
    await until(lambda: pending() < 5_000)
    # A large one is in LMDB at once.
    await table.put({b"k": b"large" * 10_000})
    assert pending() == 0
    assert dict(await table.items())[b"k"] == b"large" * 10_000


@ensureDeferred
async def test_rows_are_committed_when_they_have_many_distinct_keys(open_store: Opener) -> None:
    """Half of those that may wait: others follow meanwhile."""
    store, table = await opened(open_store, table_rows=10)
    await store.write(Task(begin_transaction))

    def pending() -> int:
        return sum(len(one.table_rows) for one in store._state.pending.generations())

    before = last_txn(store)
    for number in range(100):
        await table.put({b"%d" % (number % 4): b"%d" % number})
    assert pending() == 4
    assert last_txn(store) == before
    for number in range(95):
        await table.put({b"%d" % number: b""})
        assert pending() <= 10
    await until(lambda: pending() < 5)
    await table.put({b"%d" % number: b"" for number in range(11)})
    assert pending() == 0
    assert len(await table.items()) == 96


class UnreadableDisk(DiskFiles):
    """The byte at `position` of every file cannot be read."""

    def __init__(self, position: int) -> None:
        self._position = position

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        if position <= self._position < position + length:
            raise io_error()
        return super().read(descriptor, length, position)


@pytest.mark.parametrize("is_damaged", [False, True])
@ensureDeferred
async def test_put_after_a_temporary_read_error_survives_the_next_kill(
    open_store: Opener,
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_damaged: bool,
) -> None:
    """It has the number of the frame that could not be read."""
    store, table = await opened(open_store)
    log = await store.log("orders", 0)
    await log.append([sized(0, 9000)])
    assert store._journal
    at = store._journal.end.at
    await table.put({b"a": b"1", b"b": bytes(100)})
    # The next page, and a frame that shows that the one before it was durable.
    for base in (1, 2):
        await log.append([sized(base, 9000)])
    files = UnreadableDisk(at + 10)
    second, rows = await rows_after_kill(directory, tmp_path / "second", files)
    assert rows == {b"first": b"1"}
    await (await second.table("rows")).put({b"a": b"2"})
    await (await second.table("rows")).put({b"c": b"1"})
    expected = {b"first": b"1", b"a": b"2", b"b": bytes(100), b"c": b"1"}
    copy = tmp_path / "copy"
    shutil.copytree(second.directory, copy)
    if is_damaged:
        *_, newest = sorted((copy / "journal").iterdir())
        damage(newest, newest.read_bytes().index(b"a2"))
        expected[b"a"] = b"1"
    caplog.clear()
    third, rows = await rows_after_kill(copy, tmp_path / "third")
    assert rows == expected
    assert ("1 writes to tables are lost" in caplog.text) == is_damaged
    # The next number is behind both.
    assert third._state.next_table_write == second._state.next_table_write
    await second.close()
    await third.close()


class FailingLmdb:
    """LMDB cannot commit."""

    def __init__(self, store: LmdbStore, patch: pytest.MonkeyPatch) -> None:
        def fail() -> Any:
            raise lmdb.DiskError("no space")

        assert store._environment
        patch.setattr(store._environment, "is_committed", lambda txn_id: False)
        patch.setattr(store._environment, "begin", fail)


@ensureDeferred
async def test_puts_are_refused_when_too_many_rows_wait(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = await opened(open_store, index_limit=4)
    with monkeypatch.context() as patch:
        FailingLmdb(store, patch)
        for number in range(3):
            await table.put({b"%d" % number: b""})
        for _ in range(2):
            with pytest.raises(StorageFailed, match="no space"):
                await table.put({b"refused": b""})
        assert len(await table.items()) == 4
    await table.put({b"3": b""})
    assert [key for key, _ in await table.items()] == [b"0", b"1", b"2", b"3", b"first"]


@ensureDeferred
async def test_appends_and_small_puts_succeed_if_lmdb_refuses_what_is_written_with_them(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = await opened(open_store, table_bytes=10_000)
    log = await store.log("orders", 0)
    await log.append([sized(0, 10)])
    with monkeypatch.context() as patch:
        FailingLmdb(store, patch)
        # The first occupies the writer.
        first, put, append = (
            table.put({b"a": b""}),
            table.put({b"b": b""}),
            log.append([sized(1, 10)]),
        )
        task = Deferred.fromCoroutine(store.create_topic(topic("other")))
        for one in (first, put, append):
            await one
        with pytest.raises(StorageFailed, match="no space"):
            await task
        put, append = table.put({b"large": bytes(20_000)}), log.append([sized(2, 10)])
        with pytest.raises(StorageFailed, match="no space"):
            await put
        await append
    assert [key for key, _ in await table.items()] == [b"a", b"b", b"first"]
    assert bases(await everything(log)) == [0, 1, 2]


@ensureDeferred
async def test_partitions_and_tables_open_when_too_many_rows_wait(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in one burst with what is refused."""
    store, table = await opened(open_store, index_limit=4)
    await store.create_topic(topic("others", 2))
    await store.table("second")
    await store.close()
    store, table = await opened(open_store, index_limit=4)
    log = await store.log("orders", 0)
    with monkeypatch.context() as patch:
        FailingLmdb(store, patch)
        for base in range(3):
            await log.append([sized(base, 10)])
        assert store._state.pending.count == 4
        other = await store.log("others", 0)
        assert await everything(other) == []
        # The burst before has not been delivered to all of its callers yet, so these are one.
        opening: list[Deferred[Any]] = [
            Deferred.fromCoroutine(store.log("others", 1)),
            Deferred.fromCoroutine(store.table("second")),
        ]
        for one in (table.put({b"a": b"1"}), log.append([sized(3, 10)])):
            with pytest.raises(StorageFailed, match="no space"):
                await one
        for opened_later in opening:
            await opened_later
    await log.append([sized(3, 10)])
    assert bases(await everything(log)) == [0, 1, 2, 3]


@ensureDeferred
async def test_failure_of_lmdb_is_logged_once_while_the_journal_is_written(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, table = await opened(open_store)
    with monkeypatch.context() as patch:
        FailingLmdb(store, patch)
        for number in range(3):
            with pytest.raises(StorageFailed, match="no space"):
                await store.create_topic(topic(f"refused-{number}"))
            await table.put({b"a": b"%d" % number})
            await store.log("orders", 0)
    assert [one.levelname for one in caplog.records] == ["ERROR"]
    # Also if no caller waits for it.
    assert store._writer
    await table.put({b"a": b"3"})
    monkeypatch.setattr(store._writer, "_settings", LmdbSettings(index_seconds=0))
    await table.put({b"a": b"4"})
    await until(lambda: len(caplog.records) > 1)
    assert [one.levelname for one in caplog.records] == ["ERROR", "WARNING"]
    assert "writing to" in caplog.text
    assert "succeeds again" in caplog.text


class RefusingDisk(SimulatedDisk):
    """Writes of the journal fail while `refuses` is set."""

    refuses = False

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if self.refuses:
            raise io_error()
        super().write(descriptor, buffers, position)


@ensureDeferred
async def test_puts_are_in_lmdb_at_once_while_the_journal_cannot_be_written(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    disk = RefusingDisk()
    store, table = await opened(open_store, files=disk)
    disk.refuses = True
    for number in range(3):
        await table.put({b"a": b"%d" % number})
        assert store._state.pending.count == 0
    assert "fails" not in caplog.text
    disk.refuses = False
    await table.put({b"a": b"3"})
    assert store._state.pending.count == 1
    assert dict(await table.items()) == {b"first": b"1", b"a": b"3"}


def set_format(directory: Path, number: int) -> None:
    """Make a closed store as a version with this format has left it."""
    with lmdb.open(str(directory), max_dbs=len(DATABASES)) as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn)
        txn.put(b"format", b"%d" % number, db=meta)
        txn.delete(b"next_table_write", db=meta)


@ensureDeferred
async def test_store_of_format_3_is_continued_and_then_refused_by_its_version(
    open_store: Opener, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await opened(open_store)
    log = await store.log("orders", 0)
    for base in range(5):
        await log.append([sized(base, 10)])
    await store.close()
    set_format(directory, 3)
    store, table = await opened(open_store)
    log = await store.log("orders", 0)
    assert bases(await everything(log)) == list(range(5))
    await log.append([sized(5, 10)])
    await table.put({b"a": b"1"})
    killed, rows = await rows_after_kill(directory, tmp_path / "killed")
    assert rows == {b"first": b"1", b"a": b"1"}
    assert bases(await everything(await killed.log("orders", 0))) == list(range(6))
    await killed.close()
    await store.close()
    monkeypatch.setattr(environment, "FORMAT", 3)
    with pytest.raises(StoreTooNew, match=r"has format 4; this version supports formats up to 3"):
        await open_store().open()
