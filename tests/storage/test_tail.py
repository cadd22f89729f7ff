"""The cache of recently appended entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.log import Entry
from storage.tail import ENTRIES_AT_A_TIME, ENTRY_OVERHEAD, CachedTail, TailCache
from tests.storage.entries import Counted, bases, sized


def test_added_entries_are_readable() -> None:
    tail, log_tail = TailCache(10_000), CachedTail()
    entries = [sized(0, 10, records=5), sized(5, 10)]
    for one in entries:
        tail.add(log_tail, one)
    assert log_tail.read(3, 100) == entries
    assert log_tail.read(5, 100) == entries[1:]


def test_read_before_cached_tail_returns_none() -> None:
    tail, log_tail = TailCache(10_000), CachedTail()
    tail.add(log_tail, sized(7, 10))
    assert log_tail.read(6, 100) is None
    assert CachedTail().read(0, 100) is None


def test_oldest_entry_of_all_logs_is_evicted_first() -> None:
    tail, old, new = TailCache(2 * (100 + ENTRY_OVERHEAD)), CachedTail(), CachedTail()
    tail.add(old, sized(0, 100))
    tail.add(new, sized(0, 100))
    tail.add(new, sized(1, 100))
    assert old.read(0, 1) is None
    assert bases(new.read(0, 1000) or []) == [0, 1]


def test_evicted_entry_is_freed_immediately() -> None:
    """Large entries precede small ones: with lazy removal far more than the limit would remain."""
    tail, log_tail = TailCache(50_000), CachedTail()
    for base in range(40):
        tail.add(log_tail, Entry(base, base, -1, Counted(20_000)))
        assert Counted.alive <= 2
    for base in range(40, 60):
        tail.add(log_tail, sized(base, 2000))
    assert Counted.alive == 0
    assert bases(log_tail.read(42, 1 << 30) or []) == list(range(42, 60))


def test_entry_larger_than_limit_is_not_cached() -> None:
    tail, log_tail = TailCache(1000), CachedTail()
    tail.add(log_tail, sized(0, 2000))
    assert log_tail.read(0, 1) is None


def test_memoryview_is_copied_to_release_its_buffer() -> None:
    tail, log_tail = TailCache(10_000), CachedTail()
    buffer = bytearray(5000)
    tail.add(log_tail, Entry(0, 0, -1, memoryview(buffer)[:3]))
    found = log_tail.read(0, 100)
    assert found is not None
    assert found[0].payload == bytes(3)
    # Fails while a view of the buffer exists.
    buffer.clear()


def test_memoryview_of_nearly_the_whole_buffer_is_kept() -> None:
    tail, log_tail = TailCache(10_000), CachedTail()
    buffer = bytearray(b"h" * 100 + b"p" * 900)
    whole, part = Entry(0, 0, -1, memoryview(buffer)[100:]), Entry(1, 1, -1, memoryview(buffer)[:8])
    tail.add(log_tail, whole)
    tail.add(log_tail, part)
    found = log_tail.read(0, 10_000)
    assert found is not None
    assert found[0].payload is whole.payload
    assert type(found[1].payload) is bytes


def test_queued_evictions_do_not_affect_a_cleared_tail() -> None:
    tail, log_tail = TailCache(3 * (100 + ENTRY_OVERHEAD)), CachedTail()
    tail.add(log_tail, sized(0, 100))
    log_tail.clear()
    for base in (1, 2, 3):
        tail.add(log_tail, sized(base, 100))
    assert bases(log_tail.read(1, 1000) or []) == [1, 2, 3]


@given(
    adds=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 300, 2500])), max_size=60),
    limit=st.sampled_from([0, 700, 3000, 9000]),
)
def test_cached_entries_are_a_contiguous_tail_within_limit(
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


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7]), min_size=1, max_size=3 * ENTRIES_AT_A_TIME),
    data=st.data(),
)
def test_read_returns_what_fits_and_at_least_one_entry(
    sizes: list[int], data: st.DataObject
) -> None:
    tail, log_tail = TailCache(1 << 20), CachedTail()
    for base, size in enumerate(sizes):
        tail.add(log_tail, sized(base, size))
    first = data.draw(st.integers(0, len(sizes) - 1))
    max_bytes = data.draw(st.integers(0, sum(sizes) + 1))
    end = first + 1
    while end < len(sizes) and sum(sizes[first : end + 1]) <= max_bytes:
        end += 1
    assert bases(log_tail.read(first, max_bytes) or []) == list(range(first, end))


def test_read_at_the_end_of_the_cached_tail_returns_nothing() -> None:
    tail, log_tail = TailCache(1000), CachedTail()
    tail.add(log_tail, sized(0, 10))
    assert log_tail.read(1, 100) == []


def test_offsets_from_the_first_cached_entry_on_are_cached() -> None:
    tail, log_tail = TailCache(2 * (100 + ENTRY_OVERHEAD)), CachedTail()
    assert not log_tail.has(0)
    for base in (5, 6, 7):
        tail.add(log_tail, sized(base, 100))
    assert [log_tail.has(offset) for offset in (5, 6, 7, 8)] == [False, True, True, True]
