"""The state of a compaction pass: last offsets by key, and delete horizons of tombstones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.partitions import latest_records
from gateway.partitions.latest_records import DeleteHorizon, OffsetMap, add_delete_horizon
from records import stamp_batch
from storage.log import Entry
from tests.records.record_sets import TIME, batch
from tests.records.strategies import prop

HOUR = 3_600_000


def entry(base_offset: int, *keys: bytes | None) -> Entry:
    records = batch([(key, b"v") for key in keys])
    stamp_batch(records, base_offset, 0, None)
    return Entry(base_offset, base_offset + len(keys) - 1, TIME, bytes(records))


def test_last_offset_of_each_key_is_stored():
    found = OffsetMap(0, 10, 1 << 20)
    found.add([entry(0, b"a", b"b"), entry(2, b"a")])
    assert [found.has_later(b"a", offset) for offset in (0, 1, 2)] == [True, True, False]
    assert [found.has_later(b"b", offset) for offset in (0, 1)] == [True, False]
    assert not found.has_later(b"c", 0)
    assert (len(found), found.end, found.is_full) == (2, 3, False)


def test_known_key_does_not_count_towards_limit():
    found = OffsetMap(0, 2, 1 << 20)
    found.add([entry(0, b"a", b"b", b"a", b"b")])
    assert (found.end, found.is_full) == (4, False)


def test_map_ends_before_first_key_that_does_not_fit():
    found = OffsetMap(0, 2, 1 << 20)
    found.add([entry(0, b"a", b"b"), entry(2, b"a", b"c", b"a"), entry(5, b"a")])
    assert (found.end, found.is_full) == (3, True)
    assert not found.has_later(b"a", 2)


def test_records_before_start_are_ignored():
    found = OffsetMap(1, 10, 1 << 20)
    found.add([entry(0, b"a", b"b")])
    assert len(found) == 1


def test_gil_is_released_at_byte_intervals(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(latest_records, "sleep", pauses.append)
    large = batch([(b"a", bytes(40_000))])
    OffsetMap(0, 10, 1 << 20).add([Entry(n, n, TIME, bytes(large)) for n in range(8)])
    assert len(pauses) == 4
    assert max(pauses) < 0.001


def test_horizon_is_at_most_a_64th_after_retention_time():
    ((end, time),) = [(one.end, one.time) for one in add_delete_horizon([], 7, 1_000_001, HOUR)]
    assert end == 7
    assert 1_000_001 + HOUR <= time <= 1_000_001 + HOUR + HOUR // 64


def test_tombstone_without_retention_expires_immediately():
    assert add_delete_horizon([], 7, 1_000_001, 0) == [DeleteHorizon(7, 1_000_001)]


def test_expired_horizons_are_merged():
    assert add_delete_horizon(
        [DeleteHorizon(3, 10), DeleteHorizon(5, 90), DeleteHorizon(6, 200)], 7, 100, 0
    ) == [
        DeleteHorizon(5, 90),
        DeleteHorizon(6, 200),
        DeleteHorizon(7, 100),
    ]


@prop
@given(
    st.lists(
        st.tuples(st.integers(1, HOUR), st.sampled_from((0, 1, HOUR, 24 * HOUR))), max_size=400
    )
)
def test_horizons_are_few_and_never_too_early(passes):
    now, end, horizons, due = 1_700_000_000_000, 0, [], []
    for wait, retention in passes:
        now += wait
        end += 1
        horizons = add_delete_horizon(horizons, end, now, retention)
        due.append(now + retention)
    assert len(horizons) <= 256
    ends = [one.end for one in horizons]
    assert ends == sorted(set(ends))
    for offset in range(end):
        assert next(one.time for one in horizons if one.end > offset) >= due[offset]
