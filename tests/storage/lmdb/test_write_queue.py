"""When bursts are written, what they contain, and which thread writes them."""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

import lmdb
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import Clock

import storage
from storage.bridge import sleep
from storage.files import DiskFiles, Flusher
from storage.lmdb import LmdbStore, writer
from storage.lmdb.frames import compiled
from storage.lmdb.journal import FIRST_STEP, LARGEST_FILLED_WRITE, LARGEST_STEP
from storage.lmdb.log import LmdbLog
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.table import LmdbTable
from storage.lmdb.write_burst import Append, Operation, Task
from storage.lmdb.write_queue import Turn, WriteQueue
from storage.lmdb.writer import begin_transaction
from storage.log import Buffer, StorageFailed
from tests.contract.benches import no_file_may_grow
from tests.storage.entries import bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.storage.lmdb.simulation.simulated_disk import io_error
from tests.testkit.settle import until

SECONDS = 0.5


class IdleReactor(Clock):
    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        raise AssertionError("nothing here comes from another thread")


class Bursts:
    """A write queue and the bursts it passed on."""

    def __init__(self, **settings: int) -> None:
        self.clock = IdleReactor()
        self.handed: list[list[Operation]] = []
        self.queue = WriteQueue(
            self.clock, LmdbSettings(gathering_seconds=SECONDS, **settings), self.handed.append
        )

    def add(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.queue.add(Task(lambda _: None, size=size))

    def burst_written(self, again: int = 0, *, appends: int | None = None) -> None:
        """Complete the current burst; `again` of its callers write again immediately.

        All its operations are appends, or `appends` of them.
        """
        self.queue.burst_written(len(self.handed[-1]) if appends is None else appends)
        self.add(again)
        self.queue.outcomes_delivered()

    @property
    def sizes(self) -> list[int]:
        return [len(burst) for burst in self.handed]


@pytest.fixture
def bursts() -> Bursts:
    return Bursts()


def test_single_write_is_not_delayed(bursts: Bursts) -> None:
    for count in range(1, 4):
        bursts.add(1)
        assert bursts.sizes == [1] * count
        bursts.burst_written()


def test_single_client_writing_again_is_not_delayed(bursts: Bursts) -> None:
    bursts.add(1)
    bursts.burst_written(again=1)
    bursts.burst_written(again=1)
    assert bursts.sizes == [1, 1, 1]


def test_write_queued_during_burst_waits_for_its_callers(bursts: Bursts) -> None:
    bursts.add(4)
    assert bursts.sizes == [1]
    bursts.burst_written()
    assert bursts.sizes == [1]
    bursts.add(1)
    assert bursts.sizes == [1, 4]


def test_write_does_not_wait_for_the_callers_of_commits(bursts: Bursts) -> None:
    bursts.add(3)
    bursts.burst_written(appends=0)
    assert bursts.sizes == [1, 2]
    bursts.burst_written(appends=0)
    bursts.add(1)
    assert bursts.sizes == [1, 2, 1]


def test_write_waits_for_the_callers_of_appends_that_were_written_with_commits(
    bursts: Bursts,
) -> None:
    bursts.add(4)
    bursts.burst_written(appends=0)
    bursts.burst_written(again=1, appends=2)
    assert bursts.sizes == [1, 3]
    bursts.add(1)
    assert bursts.sizes == [1, 3, 2]


def test_burst_waits_for_size_of_previous_burst(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written(again=1)
    bursts.burst_written()
    bursts.add(3)
    assert bursts.sizes == [1, 4]
    bursts.add(1)
    assert bursts.sizes == [1, 4, 4]


def test_burst_waits_at_most_gathering_seconds(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]


def test_write_after_gathering_time_is_not_delayed(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written(again=1)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    bursts.add(1)
    assert bursts.sizes == [1, 4, 1]


def test_one_burst_is_written_at_a_time(bursts: Bursts) -> None:
    bursts.add(10)
    bursts.clock.advance(10 * SECONDS)
    assert bursts.sizes == [1]


def test_burst_is_limited_to_burst_operations() -> None:
    bursts = Bursts(burst_operations=3)
    bursts.add(6)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3, 2]


def test_burst_ends_with_operation_reaching_burst_bytes() -> None:
    bursts = Bursts(burst_bytes=10)
    bursts.add(1)
    bursts.add(5, size=4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]


def test_finish_writes_everything_without_delay(bursts: Bursts) -> None:
    ends: list[bool] = []
    bursts.add(4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    bursts.add(1)
    bursts.queue.finish(lambda: ends.append(True))
    assert not ends
    bursts.burst_written()
    assert bursts.sizes == [1, 3, 1]
    assert not ends
    bursts.burst_written()
    assert ends == [True]


def test_finish_of_empty_queue_is_immediate(bursts: Bursts) -> None:
    ends: list[bool] = []
    bursts.queue.finish(lambda: ends.append(True))
    assert ends == [True]
    assert bursts.sizes == []


class HeldFlusher:
    """A flusher whose calls the test makes."""

    def __init__(self, files: DiskFiles) -> None:
        self._files = files
        self.call: tuple[int, list[Buffer], int, Path, int, int] | None = None
        self.syncs = False
        self.is_closed = False
        self._result: int | OSError | None = None
        self._readable, self._writable = os.pipe()

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
        assert not self.call
        self.syncs = syncs
        folder = Path(os.fsdecode(directory))
        self.call = descriptor, buffers, position, folder, written, least

    def make_call(self, failure: OSError | None = None) -> None:
        """Make the call, and end it with `failure` if there is one."""
        assert self.call
        room = self._files.store(*self.call, syncs=self.syncs)
        self.call, self._result = None, failure or room
        os.write(self._writable, b".")

    def end(self) -> int | None:
        os.read(self._readable, 1)
        if isinstance(self._result, OSError):
            raise self._result
        return self._result

    def close(self) -> None:
        self.is_closed = True
        os.close(self._readable)
        os.close(self._writable)


class HeldFiles(DiskFiles):
    """Writes of nothing but zeros fail with `zeros_fail`, and `failed` counts them."""

    zeros_fail: Exception | None = None
    failed = 0

    def __init__(self) -> None:
        self.held = HeldFlusher(self)

    def flusher(self) -> Flusher:
        return self.held

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if self.zeros_fail and not any(map(any, buffers)):
            self.failed += 1
            raise self.zeros_fail
        super().write(descriptor, buffers, position)


class OpenedStore:
    """A store with an entry whose row is pending, and its flusher."""

    def __init__(self, store: LmdbStore, log: LmdbLog, files: HeldFiles) -> None:
        self.store = store
        self.log = log
        self.files = files
        self.flusher = files.held

    @property
    def turn(self) -> Turn:
        assert self.store._writer
        return self.store._writer._turn

    @property
    def pending(self) -> int:
        """Rows that are not committed, with those that are being committed."""
        return sum(one.count for one in self.store._state.pending.generations())

    @property
    def is_filling(self) -> bool:
        """Whether the writer thread fills the journal ahead."""
        assert self.store._writer
        return self.store._journal.is_filling

    @property
    def file_size(self) -> int:
        journal = self.store._journal
        assert journal
        return (journal.directory / f"{journal.end.segment:016d}").stat().st_size

    async def let_rows_be_due(self) -> None:
        """Let the writer thread wait for the turn, to commit rows."""
        assert self.store._writer
        self.store._writer._pending_since = -math.inf
        # The thread awakes.
        self.store._writer._bursts.put(())
        await until(lambda: self.turn._is_awaited)

    async def append_by_flusher(self, size: int) -> Awaitable[None]:
        """Append an entry, and wait until the flusher has it and the writer thread does nothing."""
        waiting = self.log.append((sized(self.log.next_offset, size),))
        await until(lambda: self.flusher.call)
        await until(lambda: not self.is_filling)
        return waiting

    async def table(self) -> LmdbTable:
        """A new table, whose id was committed with all rows, and another entry."""
        table = await self.store.table("rows")
        await self.log.append((sized(self.log.next_offset, 10),))
        await until(lambda: not self.turn.is_taken)
        return table

    async def written(self, waiting: Awaitable[None]) -> None:
        """Wait for a write by either thread."""
        done = Deferred.fromCoroutine(_ended(waiting))
        while not done.called:
            await until(lambda: done.called or self.flusher.call)
            if self.flusher.call:
                self.flusher.make_call()
        await done


async def opened(open_store: Opener, **settings: Any) -> OpenedStore:
    if compiled is None:
        pytest.skip("not compiled")
    files = HeldFiles()
    store = open_store(files=files, **({"index_seconds": 3600, "tail_bytes": 0} | settings))
    await store.open()
    await store.create_topic(topic())
    one = OpenedStore(store, await store.log("orders", 0), files)
    # Begins the segment, fills the file, and begins the time after which rows are committed.
    await one.log.append((sized(0, 10),))
    await until(lambda: not one.turn.is_taken)
    return one


@ensureDeferred
async def test_flusher_writes_appends_behind_pending_rows(open_store: Opener) -> None:
    one = await opened(open_store)
    for base in range(1, 4):
        waiting = await one.append_by_flusher(10)
        assert one.log.end_offset == base
        one.flusher.make_call()
        await waiting
        assert one.log.end_offset == base + 1
        assert one.pending == base + 1
    assert bases(await everything(one.log)) == [0, 1, 2, 3]


@ensureDeferred
async def test_append_by_the_flusher_runs_only_compiled_code_of_the_store(
    open_store: Opener,
) -> None:
    one = await opened(open_store)
    waiting = await one.append_by_flusher(10)
    one.flusher.make_call()
    await waiting
    # The queue notices that the burst is complete.
    await sleep(reactor, 0)
    entries, called, ended = (sized(2, 10),), set(), []
    folder = str(Path(storage.__file__).parent)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            called.add(frame.f_code.co_name)

    def profiled(call: Callable[..., Any], *arguments: object) -> Any:
        sys.setprofile(note)
        try:
            return call(*arguments)
        finally:
            sys.setprofile(None)

    append = profiled(one.log.append, entries)
    append.when_ended(ended.append, ended.append)
    one.flusher.make_call()
    assert one.store._writer
    profiled(one.store._writer._flusher_bursts.doRead)
    assert ended == [None]
    # Python code decides whether the file is to be filled ahead.
    assert called <= {"lacks_zeros", "_missing_zeros", "_fill_later"}


@ensureDeferred
async def test_writer_thread_commits_rows_between_bursts_of_the_flusher(
    open_store: Opener,
) -> None:
    """Although a burst is always waiting."""
    one = await opened(open_store)
    waiting = await one.append_by_flusher(10)
    await one.let_rows_be_due()
    assert one.pending == 1
    behind = one.log.append((sized(2, 10),))
    one.flusher.make_call()
    await waiting
    await one.written(behind)
    # The two rows before it are committed.
    await until(lambda: one.pending == 1)
    assert bases(await everything(one.log)) == [0, 1, 2]


@ensureDeferred
async def test_writer_thread_writes_the_first_append_after_a_commit_of_rows(
    open_store: Opener,
) -> None:
    """So it knows when to commit the next ones."""
    one = await opened(open_store, index_seconds=0.02)
    for base in range(1, 3):
        await until(lambda: not one.pending)
        await until(lambda: not one.turn.is_taken)
        await one.log.append((sized(base, 10),))
    await until(lambda: not one.pending)


@ensureDeferred
async def test_writer_thread_writes_all_but_appends_and_table_rows(open_store: Opener) -> None:
    one = await opened(open_store)
    waiting = await one.append_by_flusher(10)
    # A burst with an append and a task, behind that of the flusher.
    task, behind = one.store.write(Task(lambda _: "done")), one.log.append((sized(2, 10),))
    last = one.log.append((sized(3, 10),))
    one.flusher.make_call()
    await waiting
    assert await task == "done"
    await behind
    await last
    assert bases(await everything(one.log)) == [0, 1, 2, 3]


@ensureDeferred
async def test_rows_are_committed_when_the_flusher_has_added_enough(
    open_store: Opener,
) -> None:
    one = await opened(open_store, index_entries=2)
    waiting = await one.append_by_flusher(10)
    one.flusher.make_call()
    await waiting
    await until(lambda: not one.pending)
    await one.log.append((sized(2, 10),))
    assert bases(await everything(one.log)) == [0, 1, 2]


@ensureDeferred
async def test_file_is_filled_ahead_while_the_flusher_writes(open_store: Opener) -> None:
    """So the flusher can write all bursts."""
    one = await opened(open_store)
    for base in range(1, 20):
        size = one.file_size
        waiting = await one.append_by_flusher(40_000)
        # More than the bytes that the next burst has.
        assert one.file_size >= base * 40_000 + FIRST_STEP
        assert one.file_size <= max(2 * size, size + LARGEST_STEP)
        assert one.turn.is_taken
        one.flusher.make_call()
        await waiting
    assert bases(await everything(one.log)) == list(range(20))


@pytest.mark.parametrize("failure", [io_error(), RuntimeError("a bug")])
@ensureDeferred
async def test_appends_continue_if_the_file_cannot_be_filled_ahead(
    open_store: Opener,
    failure: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried again after a pause."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", 3600)
    one = await opened(open_store)
    one.files.zeros_fail = failure
    for base in range(1, 4):
        waiting = await one.append_by_flusher(10_000)
        await until(lambda: one.files.failed)
        one.flusher.make_call()
        await waiting
        assert one.log.end_offset == base + 1
    # The writer thread's write adds zeros.
    await one.log.append((sized(4, 100_000),))
    assert one.files.failed == 1
    assert ("bug" in caplog.text) is isinstance(failure, RuntimeError)
    assert bases(await everything(one.log)) == list(range(5))


@ensureDeferred
async def test_writer_thread_writes_what_the_file_has_no_room_for(open_store: Opener) -> None:
    one = await opened(open_store, segment_bytes=300_000)
    for base in range(1, 6):
        await one.log.append((sized(base, 100_000),))
    assert bases(await everything(one.log)) == list(range(6))
    assert one.store._journal
    assert one.store._journal.end.segment == 3


@ensureDeferred
async def test_flusher_makes_the_file_larger_for_a_large_burst(open_store: Opener) -> None:
    """It is not filled ahead for it. The next small burst is written with zeros behind it."""
    one = await opened(open_store)
    size = LARGEST_FILLED_WRITE + 1
    for base in range(1, 4):
        waiting = await one.append_by_flusher(size)
        assert one.flusher.syncs
        one.flusher.make_call()
        await waiting
        assert one.store._journal
        assert one.store._journal._durable_to == one.store._journal.end.at
        assert one.pending == base + 1
    assert one.file_size == one.store._journal.end.at
    await one.log.append((sized(4, 10),))
    assert one.flusher.call is None
    assert one.file_size > one.store._journal.end.at
    waiting = await one.append_by_flusher(10)
    one.flusher.make_call()
    await waiting
    assert bases(await everything(one.log)) == list(range(6))


@ensureDeferred
async def test_flusher_does_not_make_a_file_larger_that_is_filled_ahead(open_store: Opener) -> None:
    """The zeros would be written over the entries."""
    one = await opened(open_store)
    journal = one.store._journal
    assert journal
    journal.is_filling = True
    await one.log.append((sized(1, LARGEST_FILLED_WRITE + 1),))
    assert one.flusher.call is None
    await until(lambda: not one.is_filling)
    assert bases(await everything(one.log)) == [0, 1]


@ensureDeferred
async def test_flusher_writes_appends_without_a_flush_and_without_zeros_ahead(
    open_store: Opener,
) -> None:
    one = await opened(open_store, sync_appends=False)
    for base in range(1, 4):
        waiting = await one.append_by_flusher(100_000)
        assert not one.flusher.syncs
        one.flusher.make_call()
        await waiting
        assert one.pending == base + 1
        assert one.store._journal
        assert one.file_size == one.store._journal.end.at
    assert bases(await everything(one.log)) == [0, 1, 2, 3]


@ensureDeferred
async def test_flusher_writes_appends_without_a_flush_up_to_the_end_of_a_segment(
    open_store: Opener,
) -> None:
    one = await opened(open_store, sync_appends=False, segment_bytes=350_000)
    assert one.store._journal
    for segment, fitting in ((1, 3), (2, 2)):
        for _ in range(fitting):
            waiting = await one.append_by_flusher(100_000)
            one.flusher.make_call()
            await waiting
        assert one.store._journal.end.segment == segment
        # The writer thread begins the next segment.
        await one.log.append((sized(one.log.next_offset, 100_000),))
    assert bases(await everything(one.log)) == list(range(8))


@pytest.mark.parametrize("sync_appends", [True, False])
@ensureDeferred
async def test_appends_that_the_flusher_could_not_write_are_refused_and_leave_nothing(
    open_store: Opener, caplog: pytest.LogCaptureFixture, sync_appends: bool
) -> None:
    one = await opened(open_store, sync_appends=sync_appends)
    with caplog.at_level(logging.INFO):
        waiting = await one.append_by_flusher(1000)
        assert one.store._journal
        end = one.store._journal.end
        behind = one.log.append((sized(2, 10),))
        one.flusher.make_call(OSError(errno.EIO, "Input/output error"))
        with pytest.raises(StorageFailed, match=r"segment 1 of the journal: Input/output error"):
            await waiting
        with pytest.raises(StorageFailed, match="leave a gap"):
            await behind
        assert one.store._journal.end == end
        assert (one.store.directory / "journal" / f"{end.segment:016d}").stat().st_size == end.at
        # While it is unknown whether the disk works, the writer thread writes.
        await one.log.append((sized(1, 20),))
    said = [record for record in caplog.records if record.name == "storage.lmdb.writer"]
    assert [record.levelname for record in said] == ["ERROR", "WARNING"]
    await until(lambda: not one.turn.is_taken)
    waiting = await one.append_by_flusher(30)
    one.flusher.make_call()
    await waiting
    assert [len(entry.payload) for entry in await everything(one.log)] == [10, 20, 30]


@pytest.mark.parametrize("sync_appends", [True, False])
@ensureDeferred
async def test_rows_committed_after_a_failure_of_the_flusher_cut_the_segment_first(
    open_store: Opener, sync_appends: bool
) -> None:
    """The writer thread has waited for the turn, and gets it before the failed burst."""
    one = await opened(open_store, sync_appends=sync_appends)
    waiting = await one.append_by_flusher(1000)
    await one.let_rows_be_due()
    one.flusher.make_call(OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StorageFailed):
        await waiting
    await until(lambda: not one.pending)
    await one.log.append((sized(1, 20),))
    assert [len(entry.payload) for entry in await everything(one.log)] == [10, 20]


@pytest.mark.parametrize("sync_appends", [True, False])
@ensureDeferred
async def test_flusher_refuses_appends_on_a_full_disk(
    open_store: Opener, sync_appends: bool
) -> None:
    one = await opened(open_store, sync_appends=sync_appends)
    waiting = await one.append_by_flusher(1000)
    with no_file_may_grow():
        one.flusher.make_call()
    with pytest.raises(StorageFailed, match="the disk is full"):
        await waiting
    await one.log.append((sized(1, 20),))
    assert [len(entry.payload) for entry in await everything(one.log)] == [10, 20]


@ensureDeferred
async def test_closing_waits_for_the_flusher(open_store: Opener) -> None:
    one = await opened(open_store)
    waiting = await one.append_by_flusher(10)
    closing = Deferred.fromCoroutine(one.store.close())
    assert not one.flusher.is_closed
    one.flusher.make_call()
    await waiting
    await closing
    assert one.flusher.is_closed
    assert not one.pending


def test_flusher_leaves_the_turn_to_a_thread_that_waits() -> None:
    """That may not have noticed yet that the turn is free."""
    if compiled is None:
        pytest.skip("not compiled")
    turn: Any = Turn()
    assert turn.take_if_free()
    assert not turn.take_if_free()
    turn.give_back()
    turn._is_awaited = True
    assert not turn.take_if_free()
    with turn:
        assert not turn.take_if_free()
    assert turn.take_if_free()


@ensureDeferred
async def test_failing_callback_of_an_append_does_not_end_the_flusher(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    one = await opened(open_store)

    def leave(_: object) -> None:
        raise SystemExit

    waiting = await one.append_by_flusher(10)
    cast(Append, waiting).when_ended(leave, leave)
    one.flusher.make_call()
    await until(lambda: one.log.end_offset == 2)
    assert "could not be delivered" in caplog.text
    waiting = await one.append_by_flusher(10)
    one.flusher.make_call()
    await waiting
    assert bases(await everything(one.log)) == [0, 1, 2]


@ensureDeferred
async def test_appends_whose_rows_cannot_be_added_fail_and_writing_stops(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await opened(open_store)

    waiting = await one.append_by_flusher(10)
    with monkeypatch.context() as patched:
        patched.setattr(one.store._state.pending, "rows", [])
        one.flusher.make_call()
        with pytest.raises(StorageFailed, match="not known: TypeError"):
            await waiting
    # What is written next would be behind an entry that no row describes.
    with pytest.raises(StorageFailed):
        await one.log.append((sized(1, 10),))
    await one.store.close()


@ensureDeferred
async def test_store_without_a_flusher_writes(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    if compiled is None:
        pytest.skip("not compiled")

    class Unavailable(DiskFiles):
        def flusher(self) -> Flusher:
            raise OSError(errno.EMFILE, "Too many open files")

    store = open_store(files=Unavailable())
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append((sized(0, 10),))
    assert "no flusher: [Errno 24] Too many open files" in caplog.text


@ensureDeferred
async def test_store_without_a_timer_for_gathering_writes(
    open_store: Opener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled is None:
        pytest.skip("not compiled")

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(compiled, "FlusherBursts", fail)
    files = HeldFiles()
    store = open_store(files=files)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append((sized(0, 10),))
    assert "no flusher: [Errno 24] Too many open files" in caplog.text
    assert files.held.is_closed


@pytest.mark.parametrize("seconds", [0.0, 0.001])
@ensureDeferred
async def test_gathering_ends_by_the_timer(open_store: Opener, seconds: float) -> None:
    one = await opened(open_store, gathering_seconds=seconds)
    appends = [one.log.append((sized(base, 10),)) for base in range(1, 4)]
    for _ in range(3):
        if one.flusher.call is None:
            await until(lambda: one.flusher.call)
        one.flusher.make_call()
        await until(lambda: not one.turn.is_taken)
        # Fewer than the burst before: the queue waits for more.
        appends.append(one.log.append((sized(one.log.next_offset, 10),)))
    await until(lambda: one.flusher.call)
    one.flusher.make_call()
    await DeferredList([Deferred.fromCoroutine(_ended(append)) for append in appends])


class HeldCommit:
    """Commits of LMDB wait until the test lets them go on. Then `failure` is raised once."""

    def __init__(self, store: LmdbStore) -> None:
        self.is_waiting = threading.Event()
        self.goes_on = threading.Event()
        self.failure: lmdb.Error | None = None
        assert store._environment
        begin = store._environment.begin
        store._environment.begin = lambda: HeldTxn(begin(), self)  # type: ignore[method-assign]


class HeldTxn:
    def __init__(self, txn: Any, held: HeldCommit) -> None:
        self._txn = txn
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._held.is_waiting.set()
        self._held.goes_on.wait()
        failure, self._held.failure = self._held.failure, None
        if failure:
            raise failure
        self._txn.commit()


async def contents(store: LmdbStore) -> tuple[list[int], dict[bytes, bytes]]:
    """The base offsets of the log, and the rows of the table."""
    log, table = await store.log("orders", 0), await store.table("rows")
    return bases(await everything(log)), dict(await table.items())


async def contents_after_kill(store: LmdbStore, copy: Path) -> Any:
    """The `contents` of a store on what is there now."""
    shutil.copytree(store.directory, copy)
    settings = LmdbSettings(tail_bytes=0, held_bytes=0)
    again = LmdbStore(copy, reactor=reactor, settings=settings)
    await again.open()
    found = await contents(again)
    await again.close()
    return found


@ensureDeferred
async def test_flusher_writes_table_rows_with_appends(open_store: Opener, tmp_path: Path) -> None:
    one = await opened(open_store)
    table = await one.table()
    waiting = await one.append_by_flusher(10)
    puts = [table.put({b"a": b"1", b"b": b"1"}), table.put({b"a": b"2", b"c": None})]
    behind = one.log.append((sized(3, 10),))
    one.flusher.make_call()
    await waiting
    await until(lambda: one.flusher.call)
    assert await table.items() == []
    one.flusher.make_call()
    for done in (*puts, behind):
        await done
    assert one.flusher.call is None
    expected = [0, 1, 2, 3], {b"a": b"2", b"b": b"1"}
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "copy") == expected


@pytest.mark.parametrize("failure", [None, lmdb.DiskError("no space"), lmdb.MapFullError("full")])
@ensureDeferred
async def test_flusher_writes_while_rows_are_committed(
    open_store: Opener, tmp_path: Path, failure: lmdb.Error | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads, and a restart, find the rows of both generations."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.01)
    one = await opened(open_store)
    table = await one.store.table("rows")
    await one.written(table.put({b"a": b"1", b"b": b"1", b"c": b"1"}))
    held = HeldCommit(one.store)
    held.failure = failure
    assert one.store._writer
    one.store._writer._pending_since = -math.inf
    one.store._writer._bursts.put(())
    await until(held.is_waiting.is_set)
    expected: Any = [0], {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert await contents(one.store) == expected
    # The writer thread cannot fill the journal ahead.
    waiting = one.log.append((sized(1, 10),))
    await until(lambda: one.flusher.call)
    one.flusher.make_call()
    await waiting
    put = table.put({b"a": b"2", b"b": None, b"d": b"2"})
    await until(lambda: one.flusher.call)
    one.flusher.make_call()
    await put
    expected = [0, 1], {b"a": b"2", b"c": b"1", b"d": b"2"}
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "during") == expected
    assert one.pending == 7
    held.goes_on.set()
    # The rows of a failed commit are pending again.
    await until(lambda: one.store._state.pending.older is None)
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "after") == expected
    await until(lambda: one.pending <= 4)
    assert await contents(one.store) == expected
    await one.store.write(Task(begin_transaction))
    assert one.pending == 0
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "last") == expected


@ensureDeferred
async def test_table_rows_of_both_generations_are_limited(open_store: Opener) -> None:
    """A put for which there is no room waits for the commit."""
    one = await opened(open_store, table_rows=10)
    table = await one.store.table("rows")
    held = HeldCommit(one.store)
    for number in range(5):
        await one.written(table.put({b"%d" % number: b"1"}))
    # Half of the rows that may wait.
    await until(held.is_waiting.is_set)
    for number in range(5, 10):
        await one.written(table.put({b"%d" % number: b"1"}))
    last = Deferred.fromCoroutine(_ended(table.put({b"last": b"1"})))
    assert one.flusher.call is None
    assert sum(len(rows.table_rows) for rows in one.store._state.pending.generations()) == 10
    assert not last.called
    held.goes_on.set()
    await last
    assert len(await table.items()) == 11


@ensureDeferred
async def test_transaction_has_rows_that_were_set_aside_before_it(
    open_store: Opener, tmp_path: Path
) -> None:
    """The writer thread waited for the turn when the reactor thread set them aside."""
    one = await opened(open_store)
    table = await one.store.table("rows")
    await one.written(table.put({b"a": b"1"}))
    assert one.store._writer
    assert one.turn.take_if_free()
    one.store._writer._aside = one.store._writer._set_aside()
    one.turn.give_back()
    await one.store.write(Task(begin_transaction))
    assert one.store._writer._aside is None
    assert one.pending == 0
    expected = [0], {b"a": b"1"}
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "copy") == expected


@ensureDeferred
async def test_rows_that_were_set_aside_are_kept_after_an_unexpected_error(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction has them, too."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.01)
    one = await opened(open_store)
    table = await one.store.table("rows")
    await one.written(table.put({b"a": b"1"}))
    environment, opened_writer = one.store._environment, one.store._writer
    assert environment
    assert opened_writer
    is_committed = environment.is_committed

    def fail(txn_id: int) -> bool:
        monkeypatch.setattr(environment, "is_committed", is_committed)
        raise RuntimeError("a bug")

    monkeypatch.setattr(environment, "is_committed", fail)
    held = HeldCommit(one.store)
    held.failure = lmdb.DiskError("no space")
    held.goes_on.set()
    opened_writer._pending_since = -math.inf
    opened_writer._bursts.put(())
    await until(lambda: environment.is_committed is is_committed)
    await one.written(table.put({b"b": b"2"}))
    await one.store.write(Task(begin_transaction))
    expected = [0], {b"a": b"1", b"b": b"2"}
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "copy") == expected


@ensureDeferred
async def test_rows_are_set_aside_once_if_both_threads_want_to(
    open_store: Opener, tmp_path: Path
) -> None:
    """The writer thread waits for the turn while the flusher writes the last of many rows."""
    one = await opened(open_store, table_rows=4)
    table = await one.table()
    put = table.put({b"a": b"1", b"b": b"1"})
    await until(lambda: one.flusher.call)
    await until(lambda: not one.is_filling)
    await one.let_rows_be_due()
    one.flusher.make_call()
    await put
    await until(lambda: not one.pending)
    expected = [0, 1], {b"a": b"1", b"b": b"1"}
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "copy") == expected


@ensureDeferred
async def test_table_rows_that_the_flusher_could_not_write_are_in_lmdb_at_once(
    open_store: Opener, tmp_path: Path
) -> None:
    """Unlike appends of the same burst, which are refused."""
    one = await opened(open_store)
    table = await one.table()
    waiting = await one.append_by_flusher(10)
    append, put = one.log.append((sized(3, 10),)), table.put({b"a": b"1"})
    one.flusher.make_call()
    await waiting
    await until(lambda: one.flusher.call)
    one.flusher.make_call(io_error())
    with pytest.raises(StorageFailed, match="Input/output error"):
        await append
    await put
    assert one.pending == 0
    expected = [0, 1, 2], {b"a": b"1"}
    assert await contents(one.store) == expected
    assert await contents_after_kill(one.store, tmp_path / "copy") == expected


async def _ended(append: Awaitable[None]) -> None:
    await append
