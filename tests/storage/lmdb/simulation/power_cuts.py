"""Random work on an embedded store whose power is cut at random moments, by seed.

`python -m tests.storage.lmdb.simulation.power_cuts FIRST LAST` runs seeds. After each power cut
the store is opened again: acknowledged records are there, none is replaced by one that was refused,
offsets are continuous, an append is there as a whole or not at all. The rows of a table are those
after a number of puts, in the order of the calls, with all acknowledged ones and without refused
ones: only the last put may be a refused one.

Half of the seeds have operations on the disk and commits that fail; of a failed write or flush any
part may have reached the medium. Half have a disk that is full at times, also when the store is
opened: then deletions must succeed. In half of them the flusher writes bursts of appends and
table rows. Every fourth seed acknowledges appends before they are synced: they may be lost, but
only from the end. In every third seed larger bursts than 1,000 bytes are written without zeros
behind them.

The flusher also writes while rows are committed: a commit waits a moment for that.

LMDB's file is taken as it is at that moment, before or after a commit: LMDB syncs its commits
itself.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import lmdb
from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList

from storage.lmdb import LmdbSettings, LmdbStore, journal
from storage.log import Entry, PartitionLog, StateTable, StorageError
from tests.storage.entries import everything, topic
from tests.storage.lmdb.simulation.simulated_disk import SimulatedDisk, io_error

PARTITIONS = 3
ROUNDS = 25
CUTS_PER_RUN = 10
LONGEST_COMMIT = 0.002
"""Seconds that a commit waits for a write of the journal."""

SETTINGS = LmdbSettings(
    tail_bytes=0,
    segment_bytes=30_000,
    index_entries=15,
    index_seconds=0.02,
    table_rows=6,
    table_bytes=6000,
    cleaned_bytes=5000,
    freeing_entries=10,
    burst_operations=6,
    readers=1,
)


@dataclass
class KnownRecords:
    """What callers know of a partition.

    Payloads by base offset; those of appends that failed or are in flight may be there instead.
    """

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    tried: dict[int, set[bytes]] = field(default_factory=dict)
    start: int = 0
    tried_start: int = 0

    def copy(self) -> KnownRecords:
        tried = {base: set(payloads) for base, payloads in self.tried.items()}
        return KnownRecords(dict(self.acknowledged), tried, self.start, self.tried_start)

    def add_tried(self, later: KnownRecords) -> None:
        """Add what was tried since this copy was made."""
        for base, payloads in later.tried.items():
            self.tried.setdefault(base, set()).update(payloads)
        self.tried_start = later.tried_start


@dataclass
class KnownPuts:
    """What callers know of the puts of a table, in the order of the calls.

    `outcomes` says whether each is stored or refused; None while it is in flight.
    """

    puts: list[dict[bytes, bytes | None]] = field(default_factory=list)
    outcomes: list[bool | None] = field(default_factory=list)

    def copy(self) -> KnownPuts:
        return KnownPuts(list(self.puts), list(self.outcomes))

    def add_tried(self, later: KnownPuts) -> None:
        """Add what was tried since this copy was made."""
        self.puts = list(later.puts)
        self.outcomes += [None] * (len(self.puts) - len(self.outcomes))

    def begin(self, key: int, size: int) -> dict[bytes, bytes | None]:
        """The next put. It replaces two rows, and replaces or deletes that of `key`."""
        number = b"%d" % len(self.puts)
        value = number.ljust(size) if len(self.puts) % 3 else None
        rows = {b"last": number, b"pair": number, b"key %d" % key: value}
        self.puts.append(rows)
        self.outcomes.append(None)
        return rows

    def check(self, rows: dict[bytes, bytes]) -> None:
        """Check the rows of the table, and that they are what the puts leave."""
        last = int(rows.get(b"last", b"-1"))
        stored = [number for number, outcome in enumerate(self.outcomes) if outcome]
        assert last >= max(stored, default=-1), "an acknowledged put is lost"
        # Those of a burst are stored together.
        refused_from, expected = last + 1, [self._rows_after(last, last + 1)]
        while refused_from and self.outcomes[refused_from - 1] is False:
            refused_from -= 1
            expected.append(self._rows_after(last, refused_from))
        assert rows in expected, "the rows of the table are not what the puts leave"

    def settle(self, rows: dict[bytes, bytes]) -> None:
        """Continue with these rows: they have been read."""
        self.puts, self.outcomes = [{**rows}], [True]
        self.puts += [{}] * int(rows.get(b"last", b"0"))
        self.outcomes += [False] * (len(self.puts) - 1)

    def _rows_after(self, last: int, refused_from: int) -> dict[bytes, bytes]:
        rows: dict[bytes, bytes | None] = {}
        for number, put in enumerate(self.puts[: last + 1]):
            if self.outcomes[number] is not False or number >= refused_from:
                rows |= put
        return {key: value for key, value in rows.items() if value is not None}


@dataclass
class Cut:
    """A moment at which power was lost or the process was killed."""

    disk: SimulatedDisk
    folder: Path
    known: list[KnownRecords]
    puts: KnownPuts


class RandomWork:
    """Work on one store; `cuts` are the moments that were chosen."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = Random(seed)
        self.folder = folder
        self.disk = SimulatedDisk()
        self.syncs = seed % 4 != 0
        self._disk_chance = Random(seed + 1)
        self._fails = self._disk_chance.choice([0, 0, 0.03, 0.3])
        self._fills = self._disk_chance.random() < 0.5
        # Without a reserve the disk is noticed to be full in the middle of a write.
        reserve = self._disk_chance.choice([0, 40_000])
        settings = replace(SETTINGS, sync_appends=self.syncs, reserve_bytes=reserve)
        self._changes = 0.2
        if self._disk_chance.random() < 0.5:
            self.disk.has_flusher = True
            # Its bursts are behind rows that wait, and within a segment.
            settings = replace(
                settings,
                segment_bytes=200_000,
                index_entries=40,
                index_seconds=0.2,
                table_rows=24,
            )
            self._changes = 0.04
        self.store = LmdbStore(
            folder / "store", reactor=reactor, settings=settings, files=self.disk
        )
        self.known = [KnownRecords() for _ in range(PARTITIONS)]
        self.puts = KnownPuts()
        self.cuts: list[Cut] = []
        self._lock = threading.Lock()
        self.cutting = threading.Lock()
        """Held while power is cut, or a commit is made."""
        self.has_written = threading.Event()
        """Set when the journal is written."""
        self._appends = 0

    async def run(self) -> None:
        await self.store.open()
        await self.store.create_topic(topic("orders", PARTITIONS))
        logs = [await self.store.log("orders", n) for n in range(PARTITIONS)]
        table = await self.store.table("rows")
        self.disk.before = self._before
        assert self.store._environment
        begin = self.store._environment.begin
        failing = lambda: FailingCommit(begin(), self)  # noqa: E731
        self.store._environment.begin = failing  # type: ignore[method-assign]
        for _ in range(ROUNDS):
            if self._fills:
                is_full = self.chance.random() < 0.3
                self.disk.limit = self.disk.used + 30_000 if is_full else sys.maxsize
            working: list[Deferred[None]] = []
            for _ in range(self.chance.randint(1, 8)):
                n = self.chance.randrange(PARTITIONS)
                working.append(Deferred.fromCoroutine(self._change(logs[n], self.known[n])))
            puts = self.chance.choice([0, 0, 1, 4])
            working += [Deferred.fromCoroutine(self._put(table)) for _ in range(puts)]
            await DeferredList(working, fireOnOneErrback=True)
        self.disk.before, self._fails = lambda operation: None, 0
        await self.store.close()

    async def _put(self, table: StateTable) -> None:
        size = self.chance.choice([10, 10, 1000, 7000])
        with self._lock:
            number = len(self.puts.puts)
            rows = self.puts.begin(self.chance.randrange(5), size)
        is_stored = False
        try:
            await table.put(rows)
            is_stored = True
            if self.chance.random() < 0.5:
                # Other rows may have been put since.
                assert int(dict(await table.items())[b"last"]) >= number
        except StorageError:
            assert self._fails, "a put failed on a full disk"
        finally:
            with self._lock:
                self.puts.outcomes[number] = is_stored

    async def _change(self, log: PartitionLog, known: KnownRecords) -> None:
        kind = self.chance.random()
        with suppress(StorageError):
            if kind > self._changes or not known.acknowledged:
                await self._append(log, known)
            elif kind > self._changes * 0.4:
                offset = self.chance.randint(log.start_offset, log.end_offset)
                known.tried_start = max(known.tried_start, offset)
                try:
                    await log.delete_before(offset)
                except StorageError:
                    assert self._fails, "a deletion failed on a full disk"
                    raise
                known.start = max(known.start, offset)
            else:
                await self._replace(log, known)

    async def _append(self, log: PartitionLog, known: KnownRecords) -> None:
        self._appends += 1
        base, count = log.next_offset, self.chance.randint(1, 3)
        rows = []
        for index in range(count):
            # Of equal size, so that what a failed write left continues a shorter one after it.
            size = self.chance.choice([30, 30, 3000, 20_000])
            payload = (b"%d %d %d." % (self._appends, index, count)).ljust(size, b"\0")
            rows.append(Entry(base + index, base + index, -1, payload))
            with self._lock:
                known.tried.setdefault(base + index, set()).add(payload)
        await log.append(rows)
        with self._lock:
            for one in rows:
                known.acknowledged[one.base_offset] = bytes(one.payload)

    async def _replace(self, log: PartitionLog, known: KnownRecords) -> None:
        """Compact a range: each payload gets shorter, so that offsets stay continuous."""
        kept = [base for base in known.acknowledged if base >= log.start_offset]
        if not kept:
            return
        first, last = sorted(self.chance.choices(kept, k=2))
        if not {*range(first, last + 1)} <= {*kept}:
            return
        less = {
            base: known.acknowledged[base].split(b".")[0] + b".less"
            for base in kept
            if first <= base <= last
        }
        with self._lock:
            for base, payload in less.items():
                known.tried[base] |= {payload, known.acknowledged.pop(base)}
        rows = [Entry(base, base, -1, payload) for base, payload in sorted(less.items())]
        await log.replace(first, last, rows)
        with self._lock:
            known.acknowledged |= less

    def _before(self, operation: str) -> None:
        """Cut the power, or fail; in the thread that has the turn, or fills the journal ahead."""
        if operation == "write":
            self.has_written.set()
        self.may_cut()
        if self.fails(operation):
            raise io_error()

    def may_cut(self) -> None:
        with self.cutting:
            if len(self.cuts) < CUTS_PER_RUN and self._disk_chance.random() < 0.1:
                self.cuts.append(self._cut(self._disk_chance))

    def fails(self, operation: str) -> bool:
        """Whether an operation on the disk, or a commit, fails now."""
        # Truncations often, for what happens then.
        times = {"unlink": 0, "truncate": 10}.get(operation, 1)
        return self._disk_chance.random() < self._fails * times

    def fails_late(self) -> bool:
        """Whether a commit that fails is on disk."""
        return self._disk_chance.random() < 0.5

    def _cut(self, chance: Random) -> Cut:
        # What is acknowledged is copied first: it must be on the medium that is copied next.
        with self._lock:
            known, puts = [one.copy() for one in self.known], self.puts.copy()
        is_killed = chance.random() < 0.4
        if not self.syncs and not is_killed:
            for one in known:
                one.acknowledged.clear()
        folder = self.folder / f"cut {len(self.cuts)}"
        folder.mkdir()
        shutil.copy(self.folder / "store" / "data.mdb", folder)
        disk = self.disk.after_kill() if is_killed else self.disk.after_power_cut(chance)
        # The other threads may have written more meanwhile.
        with self._lock:
            for one, later in zip(known, self.known, strict=True):
                one.add_tried(later)
            puts.add_tried(self.puts)
        return Cut(disk, folder, known, puts)


class FailingCommit:
    """A transaction whose commit may fail."""

    def __init__(self, txn: Any, run: RandomWork) -> None:
        self._txn = txn
        self._run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        run = self._run
        run.may_cut()
        if run.disk.has_flusher:
            run.has_written.clear()
            run.has_written.wait(LONGEST_COMMIT)
        is_failure = run.fails("commit")
        if not is_failure or run.fails_late():
            with run.cutting:
                self._txn.commit()
        if is_failure:
            raise lmdb.DiskError("a simulated failure")
        run.may_cut()


@dataclass
class SecondCut:
    """Loses power at the next operation on the disk.

    In the writer thread: nothing is committed between the copies of the disk and of LMDB's file.
    """

    running: SimulatedDisk
    folder: Path
    to: Path
    chance: Random
    disk: SimulatedDisk | None = None

    def cut(self, operation: str) -> None:
        if self.disk is None:
            self.disk = self.running.after_power_cut(self.chance)
            self.to.mkdir()
            shutil.copy(self.folder / "data.mdb", self.to)


async def check(cut: Cut, chance: Random) -> None:
    """Open the store after a power cut, append, lose power again, and open it again."""
    disk, folder = cut.disk, cut.folder
    for number in range(2):
        is_full = chance.random() < 0.3
        disk.limit = disk.used if is_full else sys.maxsize
        store = LmdbStore(folder, reactor=reactor, settings=SETTINGS, files=disk)
        await store.open()
        for n, known in enumerate(cut.known):
            log = await store.log("orders", n)
            found = await check_log(log, known)
            if is_full and n == 0:
                await log.delete_before(log.end_offset)
                known.start = log.start_offset
            disk.limit = sys.maxsize
            # Consumers have read these.
            known.acknowledged |= found
            base = log.next_offset
            payload = b"after 0 1."
            await log.append([Entry(base, base, -1, payload)])
            known.acknowledged[base], known.tried[base] = payload, {payload}
        table = await store.table("rows")
        cut.puts.check(rows := dict(await table.items()))
        cut.puts.settle(rows)
        await table.put(cut.puts.begin(number, 10))
        cut.puts.outcomes[-1] = True
        cut.puts.check(dict(await table.items()))
        later = SecondCut(disk, folder, folder.with_name(f"{folder.name}.{number}"), chance)
        disk.before = later.cut
        base = log.next_offset
        payload = b"last 0 1."
        known.tried.setdefault(base, set()).add(payload)
        put = table.put(cut.puts.begin(0, 10))
        await log.append([Entry(base, base, -1, payload)])
        await put
        disk.before = lambda operation: None
        await store.close()
        assert later.disk
        disk, folder = later.disk, later.to


async def check_log(log: PartitionLog, known: KnownRecords) -> dict[int, bytes]:
    """Check all records of a partition, and return them by base offset."""
    assert known.start <= log.start_offset <= max(known.tried_start, known.start)
    entries = await everything(log)
    offsets = [one.base_offset for one in entries]
    assert offsets == list(range(log.start_offset, log.end_offset)), "offsets have a gap"
    found = {one.base_offset: bytes(one.payload) for one in entries}
    for base, payload in known.acknowledged.items():
        if base >= log.start_offset:
            assert base in found, "an acknowledged entry is lost"
            assert found[base] == payload, "an acknowledged entry was replaced by another"
    for base, payload in found.items():
        assert payload in known.tried[base], "an entry that nobody appended"  # prose: quoted
        number, index, count = payload.split(b".")[0].split()
        first, end = base - int(index), base - int(index) + int(count)
        for other in range(max(first, log.start_offset), end):
            assert found[other].startswith(number + b" "), "half an append is there"
    assert log.size == sum(len(one.payload) for one in entries)
    return found


@contextmanager
def no_damage_reported() -> Iterator[None]:
    """Fail if opening a store reports damage: a simulated disk has none."""
    reported: list[str] = []
    recovery = logging.getLogger("storage.lmdb.recovery")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                reported.append(record.getMessage())

    handler = Handler()
    recovery.addHandler(handler)
    try:
        yield
    finally:
        recovery.removeHandler(handler)
    assert not reported, reported


async def run_seed(seed: int) -> int:
    """Run a seed and check all its cuts; return their number. Raises AssertionError."""
    # In memory, if possible: LMDB syncs each commit.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    filled = journal.LARGEST_FILLED_WRITE
    journal.LARGEST_FILLED_WRITE = 1000 if seed % 3 == 0 else filled
    try:
        run = RandomWork(seed, folder)
        await run.run()
        for number, cut in enumerate(run.cuts):
            try:
                with no_damage_reported():
                    await check(cut, Random(seed))
            except BaseException:
                print(f"seed {seed}, cut {number}", file=sys.stderr)
                raise
        return len(run.cuts)
    finally:
        journal.LARGEST_FILLED_WRITE = filled
        shutil.rmtree(folder)
        # The contents of the disks are few objects, of many MiB, in cycles.
        gc.collect()


async def run_seeds(first: int, last: int) -> int:
    return sum([await run_seed(seed) for seed in range(first, last + 1)])


if __name__ == "__main__":
    finished = Deferred.fromCoroutine(run_seeds(int(sys.argv[1]), int(sys.argv[2])))
    finished.addCallback(lambda cuts: print(f"{cuts} power cuts"))
    finished.addErrback(lambda failure: (failure.printTraceback(sys.stderr), os._exit(1)))
    finished.addBoth(lambda _: reactor.stop())
    reactor.run()
