"""The entries kept in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.log import Entry
from storage.tail import ENTRY_OVERHEAD, CachedTail, TailCache
from tests.contract.entries import Counted, bases, sized


def test_what_was_added_is_read_from_memory() -> None:
    tail, log_tail = TailCache(10_000), CachedTail()
    entries = [sized(0, 10, records=5), sized(5, 10)]
    for one in entries:
        tail.add(log_tail, one)
    assert log_tail.read(3, 100) == entries
    assert log_tail.read(5, 100) == entries[1:]


def test_a_run_that_does_not_reach_back_so_far_knows_nothing() -> None:
    tail, log_tail = TailCache(10_000), CachedTail()
    tail.add(log_tail, sized(7, 10))
    assert log_tail.read(6, 100) is None
    assert CachedTail().read(0, 100) is None


def test_the_oldest_of_all_logs_leaves_first() -> None:
    tail, old, new = TailCache(2 * (100 + ENTRY_OVERHEAD)), CachedTail(), CachedTail()
    tail.add(old, sized(0, 100))
    tail.add(new, sized(0, 100))
    tail.add(new, sized(1, 100))
    assert old.read(0, 1) is None
    assert bases(new.read(0, 1000) or []) == [0, 1]


def test_an_entry_that_left_is_freed_at_once() -> None:
    """Large entries are followed by small ones: far more large ones would stay than the limit allows."""
    tail, log_tail = TailCache(50_000), CachedTail()
    for base in range(40):
        tail.add(log_tail, Entry(base, base, -1, Counted(20_000)))
        assert Counted.alive <= 2
    for base in range(40, 60):
        tail.add(log_tail, sized(base, 2000))
    assert Counted.alive == 0
    assert bases(log_tail.read(42, 1 << 30) or []) == list(range(42, 60))


def test_an_entry_larger_than_the_limit_is_not_kept() -> None:
    tail, log_tail = TailCache(1000), CachedTail()
    tail.add(log_tail, sized(0, 2000))
    assert log_tail.read(0, 1) is None


def test_a_view_is_copied_so_that_it_does_not_keep_the_whole_buffer() -> None:
    tail, log_tail = TailCache(10_000), CachedTail()
    buffer = bytearray(5000)
    tail.add(log_tail, Entry(0, 0, -1, memoryview(buffer)[:3]))
    found = log_tail.read(0, 100)
    assert found is not None
    assert found[0].payload == bytes(3)
    buffer.clear()  # impossible while a view of it is alive


def test_a_cleared_run_is_not_harmed_by_what_still_stands_in_the_queue() -> None:
    tail, log_tail = TailCache(3 * (100 + ENTRY_OVERHEAD)), CachedTail()
    tail.add(log_tail, sized(0, 100))
    log_tail.clear()
    fresh = CachedTail()
    for base in (1, 2, 3):
        tail.add(fresh, sized(base, 100))
    assert bases(fresh.read(1, 1000) or []) == [1, 2, 3]


@given(
    adds=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 300, 2500])), max_size=60),
    limit=st.sampled_from([0, 700, 3000, 9000]),
)
def test_what_is_held_is_an_unbroken_run_to_the_end_within_the_limit(
    adds: list[tuple[int, int]], limit: int
) -> None:
    tail, runs, ends = TailCache(limit), [CachedTail() for _ in range(4)], [0] * 4
    for which, size in adds:
        tail.add(runs[which], sized(ends[which], size))
        ends[which] += 1
    held = 0
    for log_tail, end in zip(runs, ends, strict=True):
        readable = [log_tail.read(offset, 1 << 30) for offset in range(end)]
        known = [entries for entries in readable if entries is not None]
        assert readable[: end - len(known)] == [None] * (end - len(known))
        for entries in known:
            assert bases(entries) == list(range(end - len(entries), end))
        if known:
            held += sum(len(one.payload) + ENTRY_OVERHEAD for one in known[0])
    assert held <= limit
