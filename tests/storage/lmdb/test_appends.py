"""Appends are queued and completed with the same effects by compiled code and in Python."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from gateway.coroutines import when_ended
from storage.lmdb import LmdbSettings, LmdbStore
from storage.lmdb import log as log_module
from storage.lmdb import store as store_module
from storage.lmdb.log import LmdbLog
from storage.lmdb.write_burst import DurableLog, complete_appends, queue_append
from storage.log import Entry, LogClosed, StorageFailed

SETTINGS = LmdbSettings(queue_bytes=300, queue_operations=6, tail_bytes=2000)


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

    def __init__(self) -> None:
        self.submitted: list[Any] = []
        self.told: list[object] = []
        self.store = LmdbStore(Path("unused"), reactor=cast(Any, Clock()), settings=SETTINGS)
        self.store._is_open = True
        self.store._writer = cast(Any, SimpleNamespace(submit=self.submitted.append))
        self.logs = [
            LmdbLog(self.store, DurableLog(number, 0, 0, -1, 0, 0), 0, "") for number in range(2)
        ]

    def append(self, number: int, entries: Any, name: int) -> None:
        def stored(result: object) -> None:
            self.told.append((name, result))
            if name % 10 == 3:
                raise ZeroDivisionError

        waiting = self.logs[number].append(entries)
        when_ended(waiting, stored, lambda failure: self.told.append((name, repr(failure))))

    def deliver(self, failing: int) -> None:
        """Complete what is queued; the appends from `failing` on fail."""
        outcomes: list[Any] = [
            (one, None, StorageFailed("test") if number >= failing else None)
            for number, one in enumerate(self.submitted)
        ]
        self.submitted.clear()
        self.store._deliver(outcomes)

    def state(self) -> object:
        return (
            [(one.log_id, one.entries, one.size) for one in self.submitted],
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
        for module, name, function in (
            (log_module, "queue_append", queue_append),
            (store_module, "complete_appends", complete_appends),
        ):
            patch.setattr(module, name, function if is_compiled else lambda *_: None)
        made, found = Appends(), []
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
    pytest.importorskip("storage.lmdb._appends")
    assert states(seed, is_compiled=True) == states(seed, is_compiled=False)


def test_appends_of_one_entry_are_queued_by_compiled_code() -> None:
    if queue_append.__module__ == "storage.lmdb.write_burst":
        pytest.skip("not compiled")
    made = Appends()
    one = Entry(0, 0, -1, b"some")
    assert queue_append(made.logs[0], (one,), store_module.Append) is made.submitted[0]
    assert complete_appends([(made.submitted[0], None, None)], made.store, store_module.Append)
    assert made.logs[0].end_offset == 1
