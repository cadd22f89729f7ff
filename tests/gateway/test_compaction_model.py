"""Model test: any sequence of produce, compact, delete and crash, as seen by consumers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from storage.log import StorageFailed
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.partitions.compacted_topic import (
    FETCH_VERSIONS,
    FORMATS,
    compact,
    consume,
    put,
    table,
)
from tests.records.record_sets import Pair
from tests.records.strategies import prop

LONG = b"a key that is longer than its hash"

pairs = st.tuples(
    st.sampled_from((b"a", b"b", b"c", b"", LONG)), st.none() | st.binary(min_size=1, max_size=30)
)
produces = st.tuples(
    st.just("produce"),
    st.sampled_from(FORMATS),
    st.lists(pairs, min_size=1, max_size=6),
    st.sampled_from((None, None, 7, 8)),
)
compacts = st.tuples(
    st.just("compact"),
    st.integers(1, 6),
    st.sampled_from((1, 150, 1 << 20)),
    # Writes that the store accepts before the simulated crash.
    st.none() | st.integers(0, 4),
)
deletes = st.tuples(st.just("delete"), st.integers(0, 10))
waits = st.tuples(st.just("wait"))
steps = st.lists(
    st.one_of(produces, produces, compacts, compacts, deletes, waits), min_size=1, max_size=14
)


class Life:
    """A topic and everything ever written to it, with times."""

    def __init__(self, delete_retention_ms: int) -> None:
        self.env = self.opened(None)
        self.retention_ms = delete_retention_ms
        table(self.env, delete_retention_ms=str(delete_retention_ms))
        self.history: list[Pair] = []
        self.sequences = {7: 0, 8: 0}

    def opened(self, before: BrokerEnvironment | None) -> BrokerEnvironment:
        if before is None:
            return open_environment()
        before.store.medium.held_by = None
        env = open_environment(before.store.medium)
        env.clock.advance(before.clock.seconds())
        return env

    def produce(
        self, written: tuple[int, int], records: list[Pair], producer_id: int | None
    ) -> None:
        producer = (-1, -1, -1)
        if producer_id is not None and written[0] == 2:
            # Accepted only if the previous sequence is known: compaction must preserve it.
            producer = (producer_id, 0, self.sequences[producer_id])
            self.sequences[producer_id] += len(records)
        assert put(self.env, *records, written=written, producer=producer) == len(self.history)
        self.history += records

    def compact(self, max_keys: int, chunk_bytes: int, writes: int | None) -> None:
        if writes is None:
            compact(self.env, max_keys=max_keys, chunk_bytes=chunk_bytes)
            return
        store, left = self.env.store, [writes]
        real = store.check_medium

        def check() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StorageFailed("the power is gone")
            real()

        store.check_medium = check
        compact(self.env, max_keys=max_keys, chunk_bytes=chunk_bytes)
        self.env = self.opened(self.env)
        self.check_producers()

    def check_producers(self) -> None:
        known = {
            producer_id: producer.batches[-1].last_sequence
            for producer_id, producer in self.env.partition().producers
        }
        for producer_id, sequence in self.sequences.items():
            if producer_id in known:
                assert known[producer_id] == sequence - 1

    def delete(self, offset: int) -> None:
        ended(self.env.partition().log.delete_before(min(offset, len(self.history))))

    def wait(self) -> None:
        self.env.clock.advance(60)

    def check(self) -> None:
        start = self.env.partition().log.start_offset
        last = {key: offset for offset, (key, _) in enumerate(self.history)}
        for version in FETCH_VERSIONS:
            seen = consume(self.env, version)
            assert all(left < right for (left, *_), (right, *_) in pairwise(seen)), (
                "offsets do not increase"
            )
            assert all(self.history[offset] == (key, value) for offset, key, value in seen), (
                "something was invented"
            )
            offsets = {offset for offset, *_ in seen}
            for offset in last.values():
                is_tombstone = self.history[offset][1] is None
                if offset >= start and not (is_tombstone and self.retention_ms == 0):
                    assert offset in offsets, "the last record of a key is missing"


@prop
@given(steps, st.sampled_from((0, 86_400_000)))
def test_consumers_always_get_last_records_and_only_written_ones(taken, delete_retention_ms):
    life = Life(delete_retention_ms)
    for name, *arguments in taken:
        getattr(life, name)(*arguments)
        life.check()
    assert not life.env.bugs


@prop
@given(steps, st.integers(1, 6), st.sampled_from((1, 150, 1 << 20)))
def test_repeated_passes_leave_one_record_per_key(taken, max_keys, chunk_bytes):
    life = Life(86_400_000)
    for name, *arguments in taken:
        getattr(life, name)(*arguments)
    life.produce((2, 0), [(b"the last", b"entry")], None)
    compact(life.env, max_keys=max_keys, chunk_bytes=chunk_bytes)
    life.check()
    found = [key for _, key, _ in consume(life.env)]
    assert len(found) == len(set(found))
