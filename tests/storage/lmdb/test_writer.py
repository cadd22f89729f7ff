"""The writer thread: failure isolation, error delivery, recovery."""

from __future__ import annotations

import logging
from typing import Any

import lmdb
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from storage.lmdb import writer as writer_module
from storage.lmdb.write_burst import Burst, Task
from storage.lmdb.writer import begin_transaction
from storage.log import Entry, StorageFailed
from tests.contract.benches import no_file_may_grow
from tests.storage.entries import Counted, bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.testkit.settle import until

MORE_THAN_ANY_DISK = 1 << 62


@ensureDeferred
async def test_appends_do_not_use_disk_reserve(open_store: Opener) -> None:
    store = open_store(reserve_bytes=MORE_THAN_ANY_DISK)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    with pytest.raises(StorageFailed, match=r"the disk is full.*reserved for deletions"):
        await log.append([sized(0, 100_000)])


@ensureDeferred
async def test_idle_writer_keeps_no_reference_to_last_burst(open_store: Opener) -> None:
    store = open_store(tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append([Entry(0, 0, -1, Counted(100_000))])
    for _ in range(1000):
        if not Counted.alive:
            break
        await deferLater(reactor, 0.01)
    assert Counted.alive == 0


@ensureDeferred
async def test_other_writes_succeed_if_appends_of_burst_fail(
    open_store: Opener,
) -> None:
    store = open_store(reserve_bytes=MORE_THAN_ANY_DISK)
    await store.open()
    await store.create_topic(topic())
    log, table = await store.log("orders", 0), await store.table("rows")
    first, append, last = (
        table.put({b"a": b"1"}),
        log.append([sized(0, 100_000)]),
        table.put({b"b": b"2" * 100_000}),
    )
    await first
    with pytest.raises(StorageFailed):
        await append
    await last
    assert [key for key, _ in await table.items()] == [b"a", b"b"]


@ensureDeferred
async def test_outage_is_logged_once_at_start_and_end(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    with caplog.at_level(logging.INFO):
        with no_file_may_grow():
            for _ in range(5):
                with pytest.raises(StorageFailed):
                    await log.append([sized(0, 10)])
        await log.append([sized(0, 10)])
    said = [record for record in caplog.records if record.name == "storage.lmdb.writer"]
    assert [record.levelname for record in said] == ["ERROR", "WARNING"]
    assert str(store.directory) in caplog.text


@ensureDeferred
async def test_each_failed_write_gets_a_separate_exception(open_store: Opener) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    errors = []
    with no_file_may_grow():
        appends = [log.append([sized(n, 10)]) for n in range(20)]
        for one in appends:
            with pytest.raises(StorageFailed) as raised:
                await one
            errors.append(raised.value)
    assert len({id(error) for error in errors}) == 20


@ensureDeferred
async def test_unexpected_exception_is_logged_and_next_write_succeeds(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    await store.open()

    def broken(burst: Burst) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(StorageFailed):
        await store.write(Task(broken))
    assert "RuntimeError: a bug" in caplog.text
    await store.create_topic(topic())


@ensureDeferred
async def test_nothing_is_written_after_a_commit_that_stays_unknown(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows, if they are on disk, refer to the place in the journal where the next would be."""
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    log, table = await store.log("orders", 0), await store.table("rows")
    assert store._environment
    assert store._journal
    begin = store._environment.begin
    monkeypatch.setattr(store._environment, "begin", lambda: FailsAfterCommit(begin()))

    def is_committed(txn_id: int) -> bool:
        raise lmdb.DiskError("a simulated failure")

    monkeypatch.setattr(store._environment, "is_committed", is_committed)
    first, put = log.append([sized(0, 10)]), table.put({b"a": b"1"})
    task = store.write(Task(begin_transaction))
    await until(lambda: "does not show whether the last commit was written" in caplog.text)
    end = store._journal.end
    later = log.append([sized(1, 10)])
    closed = Deferred.fromCoroutine(store.close())
    for one in (first, put, task, later):
        with pytest.raises(StorageFailed):
            await one
    await closed
    assert store._journal.end == end


class FailsAfterCommit:
    """A transaction whose commit is on disk but raises, as if the disk's answer were lost."""

    def __init__(self, txn: Any) -> None:
        self._txn = txn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._txn.commit()
        raise lmdb.Error("an I/O error after all")


@ensureDeferred
async def test_commit_that_raised_but_is_on_disk_succeeds(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log, table = await store.log("orders", 0), await store.table("rows")
    environment = store._environment
    assert environment
    begin = environment.begin
    with monkeypatch.context() as patch:
        patch.setattr(environment, "begin", lambda: FailsAfterCommit(begin()))
        first, put, append = table.put({}), table.put({b"a": b"1"}), log.append([sized(0, 10)])
        task = store.write(Task(begin_transaction))
        await first
        await put
        await append
        await task
        assert not store._state.pending.count
    await log.append([sized(1, 10)])
    assert bases(await everything(log)) == [0, 1]
    assert await table.items() == [(b"a", b"1")]


@ensureDeferred
async def test_unknown_commit_outcome_blocks_writes_but_not_reads(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.01)
    store = open_store(tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append([sized(0, 10)])
    environment = store._environment
    assert environment
    begin, has_landed, asked = environment.begin, environment.is_committed, []

    def cannot_tell_at_first(txn_id: int) -> bool:
        asked.append(txn_id)
        if len(asked) < 4:
            raise lmdb.Error("cannot open")
        monkeypatch.setattr(environment, "begin", begin)
        return has_landed(txn_id)

    monkeypatch.setattr(environment, "is_committed", cannot_tell_at_first)
    monkeypatch.setattr(environment, "begin", lambda: FailsAfterCommit(begin()))
    first, second = store.write(Task(begin_transaction)), log.append([sized(1, 10)])
    assert bases(await log.read(0, 1)) == [0]
    await first
    await second
    await log.append([sized(2, 10)])
    assert len(asked) >= 4
    assert bases(await everything(log)) == [0, 1, 2]


@ensureDeferred
async def test_close_does_not_wait_for_a_lost_medium(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    await store.open()
    await store.create_topic(topic())
    environment = store._environment
    assert environment
    begin = environment.begin

    def gone(txn_id: int) -> bool:
        raise lmdb.Error("no such device")

    monkeypatch.setattr(environment, "is_committed", gone)
    monkeypatch.setattr(environment, "begin", lambda: FailsAfterCommit(begin()))
    task = store.write(Task(begin_transaction))
    await store.close()
    with pytest.raises(StorageFailed):
        await task


@ensureDeferred
async def test_rows_are_committed_when_enough_segments_have_begun(open_store: Opener) -> None:
    """Otherwise a restart after a crash would read many gigabytes of large entries."""
    store = open_store(segment_bytes=30_000, index_seconds=1e6, index_segments=3, tail_bytes=0)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    for base in range(3):
        await log.append((sized(base, 20_000),))
    await until(lambda: store._state.pending.since.segment == 3)
    assert not store._state.pending.count


@ensureDeferred
async def test_lasting_failure_to_commit_rows_is_logged_once(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Records are stored and read meanwhile."""
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.01)
    store = open_store(tail_bytes=0, index_seconds=0.01)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    environment = store._environment
    assert environment
    begin, asked = environment.begin, []

    def fail() -> Any:
        asked.append(1)
        raise lmdb.Error("no space")

    monkeypatch.setattr(environment, "is_committed", lambda txn_id: False)
    monkeypatch.setattr(environment, "begin", fail)
    await log.append([sized(0, 10)])
    await until(lambda: len(asked) > 10)
    await log.append([sized(1, 10)])
    assert bases(await everything(log)) == [0, 1]
    monkeypatch.setattr(environment, "begin", begin)
    await until(lambda: not store._state.pending.count)
    await until(lambda: "succeeds again" in caplog.text)
    said = [record for record in caplog.records if record.name == "storage.lmdb.writer"]
    assert [record.levelname for record in said] == ["ERROR", "WARNING"]
    assert "indexing" in said[0].getMessage()


@ensureDeferred
async def test_appends_are_refused_when_too_many_rows_wait(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tail_bytes=0, index_limit=3)
    await store.open()
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    environment = store._environment
    assert environment

    def fail() -> Any:
        raise lmdb.Error("no space")

    with monkeypatch.context() as patch:
        patch.setattr(environment, "is_committed", lambda txn_id: False)
        patch.setattr(environment, "begin", fail)
        for base in range(3):
            await log.append([sized(base, 10)])
        with pytest.raises(StorageFailed, match="no space"):
            await log.append([sized(3, 10)])
        assert bases(await everything(log)) == [0, 1, 2]
    await log.append([sized(3, 10)])
    assert bases(await everything(log)) == [0, 1, 2, 3]
