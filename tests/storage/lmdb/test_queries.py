"""Cursor searches, compared with a plain list of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.lmdb import queries
from storage.lmdb.layout import LogRow, Row, Slot, key_of
from storage.log import Entry
from tests.storage.entries import compiled_frames

NEIGHBOURS = [
    Slot(log_id, base, base + 9, 999, 999, 10, 10) for log_id in (1, 3) for base in (0, 10, 1 << 40)
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path: Path = tmp_path_factory.mktemp("queries")
    env = lmdb.open(str(path), sync=False)
    yield env
    env.close()


@st.composite
def logs(draw: st.DrawFn) -> list[Slot]:
    """The slots of log 2 as left by appends, with some removed from the start and the middle."""
    slots: list[Slot] = []
    offset = position = 0
    running = -1
    for records, timestamp, size in draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 9), st.integers(0, 5)), max_size=12)
    ):
        position += size
        running = max(running, timestamp)
        slots.append(Slot(2, offset, offset + records - 1, timestamp, running, position, size))
        offset += records
    kept = draw(st.lists(st.booleans(), min_size=len(slots), max_size=len(slots)))
    return [slot for slot, is_kept in zip(slots, kept, strict=True) if is_kept]


def on(environment: Any, slots: list[Slot], call: Callable[[Any], Any]) -> Any:
    """Run `call` with a cursor; the slots are stored between those of other logs.

    The result is the same for any number of slots that are pending.
    """
    results = []
    for pending in range(len(slots) + 1):
        stored = slots[: len(slots) - pending]
        with environment.begin(write=True) as txn:
            for slot in stored + NEIGHBOURS:
                txn.put(key_of(slot), b"")
            with txn.cursor() as cursor:
                keys = [key_of(slot) for slot in slots[len(stored) :]]
                results.append(call(queries.LogCursor(cursor, 2, keys) if keys else cursor))
            # The next example starts with an empty database.
            txn.abort()
    assert all(result == results[0] for result in results)
    return results[0]


quiet = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


@quiet
@given(slots=logs(), offset=st.integers(0, 50))
def test_slot_at_returns_first_slot_that_ends_at_or_after_offset(
    environment: Any, slots: list[Slot], offset: int
) -> None:
    expected = next((slot for slot in slots if slot.last_offset >= offset), None)

    def look(cursor: Any) -> tuple[Slot | None, bool]:
        found = queries.slot_at(cursor, 2, offset)
        return found, found is None or cursor.key() == key_of(found)

    assert on(environment, slots, look) == (expected, True)


@quiet
@given(slots=logs())
def test_last_slot_belongs_to_its_log(environment: Any, slots: list[Slot]) -> None:
    assert on(environment, slots, lambda cursor: queries.last_slot(cursor, 2)) == (
        slots[-1] if slots else None
    )


@quiet
@given(slots=logs(), low=st.integers(0, 50), high=st.integers(0, 50), timestamp=st.integers(-1, 10))
def test_bisection_finds_first_matching_slot(
    environment: Any, slots: list[Slot], low: int, high: int, timestamp: int
) -> None:
    expected = next(
        (
            s
            for s in slots
            if s.last_offset >= low and s.base_offset < high and s.running_timestamp >= timestamp
        ),
        None,
    )
    if low >= high:
        expected = None
    found = on(
        environment,
        slots,
        lambda cursor: queries.bisect_slots(
            cursor, 2, low, high, lambda s: s.running_timestamp >= timestamp
        ),
    )
    assert found == expected


@quiet
@given(slots=logs(), start=st.integers(0, 50), timestamp=st.integers(-1, 10))
def test_slot_for_time_is_first_with_timestamp_reached(
    environment: Any, slots: list[Slot], start: int, timestamp: int
) -> None:
    readable = [slot for slot in slots if slot.last_offset >= start]
    expected = next((slot for slot in readable if slot.timestamp >= timestamp), None)
    assert (
        on(
            environment,
            slots,
            lambda cursor: queries.slot_for_time(cursor, 2, start, 100, timestamp),
        )
        == expected
    )


@quiet
@given(
    slots=logs(),
    segments=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    offset=st.integers(0, 50),
    end=st.integers(0, 50),
    max_bytes=st.integers(0, 30),
)
def test_read_returns_rows_from_offset_up_to_end_and_max_bytes(
    environment: Any,
    slots: list[Slot],
    segments: list[int],
    offset: int,
    end: int,
    max_bytes: int,
) -> None:
    slots = [
        slot._replace(segment=segment)
        for slot, segment in zip(slots, sorted(segments), strict=False)
    ]
    expected: list[Row] = []
    left = max_bytes
    for slot in slots:
        if slot.last_offset < offset or slot.base_offset >= end:
            continue
        left -= slot.size
        if expected and left < 0:
            break
        # The values in this database are empty.
        entry = Entry(slot.base_offset, slot.last_offset, slot.timestamp, b"")
        expected.append(key_of(slot) if slot.segment else entry)
    assert (
        on(environment, slots, lambda cursor: queries.read(cursor, 2, offset, end, max_bytes))
        == expected
    )


@given(
    st.lists(
        st.builds(
            lambda slot, has_place, value: (key_of(slot._replace(segment=has_place)), value),
            st.builds(
                Slot,
                st.integers(1, 2),
                st.integers(0, 20),
                st.integers(0, (1 << 63) - 1),
                st.integers(-(1 << 63), (1 << 63) - 1),
                st.just(-1),
                st.just(0),
                st.integers(0, (1 << 32) - 1),
                st.just(0),
                st.integers(0, (1 << 32) - 1),
            ),
            st.integers(0, 1),
            st.binary(max_size=3),
        ),
        max_size=6,
    ),
    st.integers(0, (1 << 33)),
    st.integers(0, 5),
)
def test_compiled_function_takes_the_same_rows(
    items: list[tuple[bytes, bytes]], max_bytes: int, most: int
) -> None:
    compiled = compiled_frames()
    assert compiled.take_rows(items, 2, 15, max_bytes, most) == queries.take_rows(
        items, 2, 15, max_bytes, most
    )


def in_steps(start: int, scan: Callable[[int], tuple[Slot | None, int]]) -> list[Slot]:
    """The slots found by repeated scans, each continuing at the offset returned by the previous
    one.
    """
    found: list[Slot] = []
    while start < 100:
        slot, start = scan(start)
        found += [slot] if slot else []
    return found


@quiet
@given(
    slots=logs(), start=st.integers(0, 50), timestamp=st.integers(-1, 10), most=st.integers(1, 4)
)
def test_slot_for_time_is_found_in_steps(
    environment: Any, slots: list[Slot], start: int, timestamp: int, most: int
) -> None:
    expected = next(
        (slot for slot in slots if slot.last_offset >= start and slot.timestamp >= timestamp), None
    )

    def steps(cursor: Any) -> list[Slot]:
        return in_steps(
            start, lambda offset: queries.scan_for_time(cursor, 2, offset, 100, timestamp, most)
        )

    assert on(environment, slots, steps) == ([expected] if expected else [])


@quiet
@given(slots=logs(), start=st.integers(0, 50), most=st.integers(1, 4))
def test_latest_slot_is_first_with_greatest_timestamp(
    environment: Any, slots: list[Slot], start: int, most: int
) -> None:
    readable = [slot for slot in slots if slot.last_offset >= start and slot.timestamp >= 0]
    expected = max(readable, key=lambda slot: slot.timestamp, default=None)

    def steps(cursor: Any) -> list[Slot]:
        return in_steps(start, lambda offset: queries.scan_for_latest(cursor, 2, offset, 100, most))

    assert (
        max(on(environment, slots, steps), key=lambda slot: slot.timestamp, default=None)
        == expected
    )
    greatest = max((slot.timestamp for slot in readable), default=-1)
    assert (
        on(environment, slots, lambda cursor: queries.greatest_timestamp(cursor, 2, start))
        >= greatest
    )


@quiet
@given(slots=logs(), limit=st.integers(0, 60), cut=st.integers(0, 12))
def test_compacted_log_is_cut_to_least_size_not_below_limit(
    environment: Any, slots: list[Slot], limit: int, cut: int
) -> None:
    check_cut(environment, slots[cut:], limit, LogRow(compacted_to=1000))


@quiet
@given(slots=logs(), limit=st.integers(0, 60), cut=st.integers(0, 12))
def test_uncompacted_log_is_cut_equally_by_bisection(
    environment: Any, slots: list[Slot], limit: int, cut: int
) -> None:
    unbroken = slots[cut:]
    if any(
        later.position - later.size != earlier.position for earlier, later in pairwise(unbroken)
    ):
        unbroken = unbroken[-1:]
    check_cut(environment, unbroken, limit, LogRow())


def check_cut(environment: Any, slots: list[Slot], limit: int, row: LogRow) -> None:
    size = left = sum(slot.size for slot in slots)
    start = slots[0].base_offset if slots else 0
    expected = list(slots)
    while expected and left - expected[0].size >= limit:
        left -= expected.pop(0).size
    found = on(
        environment,
        slots,
        lambda cursor: queries.slot_within_bytes(cursor, 2, start, 100, row, size, limit),
    )
    assert found == (expected[0] if expected else None)
