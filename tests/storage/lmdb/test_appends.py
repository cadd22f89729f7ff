"""Appends are queued and completed with the same effects by compiled code and in Python."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.task import Clock

from gateway.coroutines import when_ended
from storage.lmdb import LmdbSettings, LmdbStore
from storage.lmdb import store as store_module
from storage.lmdb.frames import compiled
from storage.lmdb.log import LmdbLog
from storage.lmdb.write_burst import DurableLog
from storage.lmdb.write_queue import WriteQueue
from storage.log import Entry, LogClosed, StorageFailed
from tests.storage.entries import everything, sized, topic
from tests.storage.lmdb.simulation.simulated_disk import SimulatedDisk, io_error

SETTINGS = LmdbSettings(queue_bytes=300, queue_operations=6, tail_bytes=2000)

python_append: Any = getattr(LmdbLog, "append_any", LmdbLog.append)
"""What the compiled method calls unless it is the common case."""


def entries_at(random: Random, offset: int) -> Any:
    """Mostly one entry at the end of the log, in a tuple."""
    entries = []
    offset += random.choice([0] * 9 + [1])
    for _ in range(random.choice([1] * 8 + [0, 2])):
        last = offset + random.choice([0, 0, 3, -1])
        payload = random.choice([bytes, bytearray, memoryview])(bytes(random.randrange(90)))
        entries.append(Entry(offset, last, random.randrange(-1, 9), payload))
        offset = last + 1
    return random.choice([tuple, tuple, list])(entries)


class Appends:
    """Two logs of a store whose writer is the test."""

    def __init__(self, *, is_compiled: bool) -> None:
        self.is_compiled = is_compiled
        self.told: list[object] = []
        self.store = LmdbStore(Path("unused"), reactor=cast(Any, Clock()), settings=SETTINGS)
        self.store._is_open = True
        self.bursts: list[list[Any]] = []
        self.store._queue = WriteQueue(cast(Any, Clock()), SETTINGS, self.bursts.append)
        self.logs = [
            LmdbLog(self.store, DurableLog(number, 0, 0, -1, 0, 0), 0, "") for number in range(2)
        ]

    def append(self, number: int, entries: Any, name: int) -> None:
        def stored(result: object) -> None:
            self.told.append((name, result))
            if name % 10 == 3:
                raise ZeroDivisionError

        log = self.logs[number]
        waiting = log.append(entries) if self.is_compiled else python_append(log, entries)
        when_ended(waiting, stored, lambda failure: self.told.append((name, repr(failure))))

    def deliver(self, failing: int) -> None:
        """Complete all bursts; the appends from `failing` on fail."""
        queue = self.store._queue
        assert queue
        while self.bursts:
            burst = self.bursts.pop()
            outcomes: list[Any] = [
                (one, None, StorageFailed("test") if number >= failing else None)
                for number, one in enumerate(burst)
            ]
            self.told.append([(one.log_id, one.entries, one.size) for one in burst])
            queue.burst_written(0)
            self.store._deliver(outcomes)
            queue.outcomes_delivered()

    def state(self) -> object:
        return (
            [(one.log_id, one.entries, one.size) for burst in self.bursts for one in burst],
            list(self.told),
            (self.store._queued_bytes, self.store._queued_operations, self.store.tail._held),
            [
                (
                    log.next_offset,
                    log.end_offset,
                    log.size,
                    log._in_flight,
                    log._failure,
                    [(one.base_offset, bytes(one.payload)) for one in log._cached_tail.entries],
                    log._cached_tail.begin,
                )
                for log in self.logs
            ],
        )


def states(seed: int, *, is_compiled: bool) -> list[object]:
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(store_module, "compiled", None)
        made, found = Appends(is_compiled=is_compiled), []
        for number, log in enumerate(made.logs):
            log.watch(partial(made.told.append, ("changed", number)))
        for name in range(30):
            kind = random.choice(["append"] * 6 + ["deliver"] * 3 + ["fail", "end"])
            if kind == "append":
                number = random.randrange(2)
                made.append(number, entries_at(random, made.logs[number].next_offset), name)
            elif kind == "end" and random.random() < 0.1:
                made.logs[0].status.end(LogClosed("test"))
            else:
                made.deliver(random.randrange(3) if kind == "fail" else 1000)
            found.append(made.state())
    return found


@given(seed=st.integers(0, (1 << 32) - 1))
def test_compiled_appends_have_the_same_effects(seed: int) -> None:
    if compiled is None:
        pytest.skip("not compiled")
    assert states(seed, is_compiled=True) == states(seed, is_compiled=False)


async def outcomes_on_disk(
    folder: Path, seed: int, *, sync_appends: bool, is_compiled: bool
) -> list[object]:
    """What single appends to two logs return, and what the logs have, while some writes fail.

    The flusher writes if `is_compiled`, otherwise the writer thread, with the Python code.
    """
    random = Random(seed)
    disk = SimulatedDisk()
    disk.has_flusher = is_compiled
    settings = LmdbSettings(
        held_bytes=0,
        index_seconds=3600,
        tail_bytes=0,
        segment_bytes=200_000,
        sync_appends=sync_appends,
    )
    store = LmdbStore(
        folder / str(is_compiled), reactor=cast(Any, reactor), settings=settings, files=disk
    )
    await store.open()
    await store.create_topic(topic(partitions=2))
    logs = [await store.log("orders", number) for number in range(2)]
    found: list[object] = []
    for _ in range(40):
        log, size = random.choice(logs), random.randrange(4000)
        failing = random.choice(["write", "sync" if sync_appends else "write"] + [""] * 8)

        def fail(operation: str, failing: str = failing) -> None:
            if operation == failing:
                raise io_error()

        disk.before = fail
        entries = (sized(log.next_offset, size),)
        try:
            await (log.append(entries) if is_compiled else python_append(log, entries))
        except StorageFailed as error:
            # Not which segment: that depends on the zeros ahead.
            found.append("Input/output error" in str(error))
        disk.before = lambda operation: None
        found.append([(one.next_offset, one.end_offset, one.size) for one in logs])
    found.append([[bytes(entry.payload) for entry in await everything(one)] for one in logs])
    await store.close()
    return found


@pytest.mark.parametrize("sync_appends", [True, False])
@pytest.mark.parametrize("seed", range(5))
@ensureDeferred
async def test_compiled_bursts_fail_and_succeed_like_those_of_the_writer_thread(
    tmp_path: Path, seed: int, sync_appends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled is None:
        pytest.skip("not compiled")
    with_flusher = await outcomes_on_disk(
        tmp_path, seed, sync_appends=sync_appends, is_compiled=True
    )
    assert True in with_flusher
    monkeypatch.setattr(store_module, "compiled", None)
    with_thread = await outcomes_on_disk(
        tmp_path, seed, sync_appends=sync_appends, is_compiled=False
    )
    assert with_thread == with_flusher
