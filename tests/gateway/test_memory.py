"""Configuration of the allocator, and trimming of the heap."""

import gc
import platform
from itertools import accumulate

from gateway import memory


def test_glibc_accepts_every_value():
    assert memory.configure_allocator() == (platform.libc_ver()[0] == "glibc")


def test_configuring_twice_succeeds():
    assert memory.configure_allocator() == memory.configure_allocator()


def test_startup_objects_are_excluded_from_collection():
    # `tests/conftest.py` has excluded all tests.
    before = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    memory.freeze_startup_objects()
    assert gc.get_freeze_count() >= before + len(kept)


def test_memory_is_trimmed_after_idle_intervals():
    trimmed = []
    busy, quiet = memory.TRIM_INTERVAL_SECONDS, memory.TRIM_INTERVAL_SECONDS / 100
    used = accumulate([1000.0, quiet, busy, busy, quiet])
    trimming = memory.HeapTrimmer(lambda: trimmed.append(True), lambda: next(used))
    counts = []
    for _ in range(4):
        trimming.end_interval()
        counts.append(len(trimmed))
    assert counts == [1, 1, 1, 2]


def test_trimming_without_free_memory_succeeds():
    memory.trim()
    memory.trim()
