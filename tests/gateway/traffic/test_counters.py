from __future__ import annotations

import pytest

from gateway.traffic.counters import UNCOUNTED_VERSIONS, Counters, RowLimits
from gateway.traffic.traffic_rows import MAX_TEXT


def counters(each=10, all_together=100, room=None):
    return Counters(room or RowLimits(each, all_together), {})


def test_counter_is_unique_per_key():
    found = counters()
    keys = [
        (0, 7, None, None),
        (0, 8, None, None),
        (1, 7, None, None),
        (0, 7, "t", None),
        (0, 7, None, "t"),
        (0, 7, "t", "g"),
        (0, 7, b"t", None),
    ]
    assert len({id(found[key]) for key in keys}) == len(keys) == len(found)
    assert all(found[key] is found[key] for key in keys)


def test_highest_versions_are_recorded():
    highest = {}
    found = Counters(RowLimits(10, 10), highest)
    for key in [(0, 3, None, None), (0, 7, "t", None), (0, 5, None, None), (1, 0, None, None)]:
        _ = found[key]
    assert highest == {0: 7, 1: 0}


def test_counters_of_one_connection_are_limited():
    found = counters(each=10)
    for number in range(10_000):
        found[0, 7, f"t{number}", None].records += 1
        found[8, 2, "t", f"g{number}"].requests += 1
        found[11, 5, None, f"g{number}"].requests += 1
    assert len(found) == 10 + 3
    merged = {key: usage for key, usage in found.items() if usage.is_merged}
    assert set(merged) == {(0, 7, "", None), (8, 2, "", None), (11, 5, None, "")}
    assert sum(usage.records for usage in found.values()) == 10_000
    assert sum(usage.requests for usage in found.values()) == 20_000


def test_versions_are_limited_and_merged_into_used_ones():
    """ApiVersions is answered in any version, also before authentication."""
    highest = {}
    room = RowLimits(10, 100)
    found = Counters(room, highest)
    for version in range(7, 32_768):
        found[18, version, None, None].requests += 1
    for _ in range(3):
        found[3, 9, None, None].requests += 1
    assert len(found) == UNCOUNTED_VERSIONS + 10 + 2
    merged = {key: usage.requests for key, usage in found.items() if usage.is_merged}
    assert merged == {(18, 7, None, ""): 32_768 - 7 - UNCOUNTED_VERSIONS - 10, (3, 9, None, ""): 3}
    assert highest == {18: 32_767, 3: 9}
    found.release()
    assert room.used == 0


def test_api_keys_and_versions_do_not_count_as_topics():
    found = counters(each=10, all_together=0)
    for version in range(UNCOUNTED_VERSIONS):
        found[version % 60, version, None, None].requests += 1
    assert not any(usage.is_merged for usage in found.values())


def test_total_limit_is_shared_and_released():
    room = RowLimits(10, 25)
    all_of_them = [counters(room=room) for _ in range(5)]
    for one in all_of_them:
        for number in range(10):
            _ = one[0, 7, f"t{number}", None]
    assert [
        len([key for key, usage in one.items() if not usage.is_merged]) for one in all_of_them
    ] == [10, 10, 5, 0, 0]
    all_of_them[0].release()
    late = counters(room=room)
    for number in range(20):
        _ = late[0, 7, f"t{number}", None]
    assert len(late) == 10 + 1
    for one in [late, *all_of_them]:
        one.release()
    assert room.used == 0


@pytest.mark.parametrize("letter", ["x", "\u00e4", "\U0001f600", "\ud800"])
def test_long_name_is_shortened(letter):
    found = counters()
    name = letter * 32_767
    found[0, 7, name, None].records += 1
    found[0, 7, name, None].records += 1
    found[8, 2, None, name].requests += 1
    assert max(len(name) for key in found for name in key[2:] if name) == MAX_TEXT
    assert [usage.records for usage in found.values()] == [2, 0]
