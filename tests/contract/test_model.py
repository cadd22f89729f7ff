"""Any sequence of calls leaves a log equal to a plain list of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pytest_twisted import ensureDeferred

from storage.log import Entry, Fenced, PartitionLog, Store
from tests.contract.benches import Bench
from tests.storage.entries import everything, plain, topic
from tests.storage.open_shards import open_with_shards
from tests.testkit.settle import in_own_greenlet, settle

SIZES = st.sampled_from([0, 1, 10, 100, 3000, 20_000])
TIMES = st.integers(-1, 20)


class LogMachine(RuleBasedStateMachine):
    """A log and its model: the list of readable entries, the start and the end."""

    new_bench: Callable[[], Bench]

    @initialize()
    def open_a_log(self) -> None:
        self.bench = self.new_bench()
        self.store: Store = self.bench.store()
        settle(open_with_shards(self.store))
        settle(self.store.create_topic(topic()))
        self.log: PartitionLog = settle(self.store.log("orders", 0))
        self.entries: list[Entry] = []
        self.start = self.end = 0

    def teardown(self) -> None:
        settle(self.store.close())

    def drawn(self, base: int, records: int, time: int, size: int) -> Entry:
        return Entry(base, base + records - 1, time, bytes([base % 251]) * size)

    @rule(
        rows=st.lists(st.tuples(st.integers(1, 5), TIMES, SIZES), min_size=1, max_size=4),
        calls=st.integers(1, 3),
    )
    def append(self, rows: list[tuple[int, int, int]], calls: int) -> None:
        appends = []
        for _ in range(calls):
            batch = []
            for records, time, size in rows:
                batch.append(self.drawn(self.end, records, time, size))
                self.end += records
            appends.append(self.log.append(batch))
            self.entries += batch
        for one in appends:
            settle(one)

    @rule(size=SIZES)
    def append_to_a_medium_that_refuses(self, size: int) -> None:
        with self.bench.refusing_writes(), pytest.raises(self.bench.refusal) as failure:
            settle(self.log.append([self.drawn(self.end, 1, 0, size)]))
        log = settle(self.store.log("orders", 0))
        assert (log is self.log) == (failure.type is not Fenced)
        self.log = log

    @rule(share=st.floats(0, 1))
    def delete_before(self, share: float) -> None:
        offset = int(self.start + share * (self.end - self.start))
        assert settle(self.log.delete_before(offset)) == offset
        self.cut(offset)

    @rule(since=st.none() | TIMES, limit=st.none() | st.integers(0, 50_000))
    def retain(self, since: int | None, limit: int | None) -> None:
        kept = self.entries
        if since is not None:
            young = [n for n, one in enumerate(kept) if one.max_timestamp >= since]
            kept = kept[young[0] :] if young else []
        if limit is not None:
            while kept and sum(len(one.payload) for one in kept[1:]) >= limit:
                kept = kept[1:]
        start = self.start
        if len(kept) < len(self.entries):
            start = kept[0].base_offset if kept else self.end
        assert settle(self.log.retain(since=since, at_most_bytes=limit)) == start
        self.cut(start)

    def cut(self, start: int) -> None:
        self.start = max(start, self.start)
        self.entries = [one for one in self.entries if one.last_offset >= self.start]

    @precondition(lambda self: self.entries)
    @rule(draw=st.data())
    def compact(self, draw: Any) -> None:
        first, last = sorted(
            draw.draw(st.tuples(st.integers(0, self.end), st.integers(0, self.end)))
        )
        gone = [one for one in self.entries if first <= one.base_offset and one.last_offset <= last]
        kept = draw.draw(st.lists(st.sampled_from(gone), unique_by=id)) if gone else []
        kept = sorted(
            (Entry(one.base_offset, one.last_offset, one.max_timestamp, b"less") for one in kept),
            key=lambda one: one.base_offset,
        )
        settle(self.log.replace(first, last, kept))
        self.entries = sorted(
            [one for one in self.entries if one not in gone] + kept, key=lambda one: one.base_offset
        )

    @rule()
    def reclaim(self) -> None:
        settle(self.log.reclaim())

    @rule()
    def restart(self) -> None:
        settle(self.store.close())
        self.store = self.bench.store()
        settle(open_with_shards(self.store))
        self.log = settle(self.store.log("orders", 0))

    @rule(timestamp=TIMES)
    def find_by_time(self, timestamp: int) -> None:
        expected = [one for one in self.entries if one.max_timestamp >= timestamp][:1]
        found = settle(self.log.entry_for_time(timestamp))
        assert plain([found] if found else []) == plain(expected)

    @rule()
    def find_the_latest(self) -> None:
        greatest = max((one.max_timestamp for one in self.entries), default=-1)
        expected = [one for one in self.entries if one.max_timestamp == greatest >= 0][:1]
        found = settle(self.log.latest_by_time())
        assert plain([found] if found else []) == plain(expected)

    @rule(share=st.floats(0, 1), max_bytes=st.integers(0, 30_000))
    def read(self, share: float, max_bytes: int) -> None:
        offset = int(self.start + share * (self.end - self.start))
        expected: list[Entry] = []
        for one in self.entries:
            if one.last_offset >= offset:
                if (
                    expected
                    and sum(len(earlier.payload) for earlier in expected) + len(one.payload)
                    > max_bytes
                ):
                    break
                expected.append(one)
        resident = self.log.read_resident(offset, max_bytes)
        assert resident is None or plain(resident) == plain(expected)
        assert plain(settle(self.log.read(offset, max_bytes))) == plain(expected)

    @invariant()
    def the_log_is_as_the_model(self) -> None:
        log = self.log
        assert (log.start_offset, log.end_offset, log.next_offset) == (
            self.start,
            self.end,
            self.end,
        )
        assert log.size == sum(len(one.payload) for one in self.entries)
        assert plain(settle(everything(log))) == plain(self.entries)


@pytest.mark.long
@ensureDeferred
async def test_log_matches_list_of_entries(new_bench: Callable[[], Bench]) -> None:
    machine = type("Machine", (LogMachine,), {"new_bench": staticmethod(new_bench)})
    examples = new_bench().examples
    limits = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    await in_own_greenlet(lambda: run_state_machine_as_test(machine, settings=limits))
