"""The allocator is told on the machines that have one to tell."""

import gc
import platform
from itertools import accumulate

from gateway import memory


def test_glibc_takes_every_value():
    assert memory.configure_allocator() == (platform.libc_ver()[0] == "glibc")


def test_telling_it_twice_does_no_harm():
    assert memory.configure_allocator() == memory.configure_allocator()


def test_what_was_made_at_the_start_is_not_collected_again():
    kept = [[] for _ in range(1000)]
    memory.freeze_startup_objects()
    try:
        assert gc.get_freeze_count() >= len(kept)
    finally:
        gc.unfreeze()


def test_memory_is_returned_at_the_end_of_intervals_in_which_the_process_was_quiet():
    trimmed = []
    busy, quiet = memory.TRIM_INTERVAL_SECONDS, memory.TRIM_INTERVAL_SECONDS / 100
    used = accumulate([1000.0, quiet, busy, busy, quiet])
    trimming = memory.HeapTrimmer(lambda: trimmed.append(True), lambda: next(used))
    counts = []
    for _ in range(4):
        trimming.end_interval()
        counts.append(len(trimmed))
    assert counts == [1, 1, 1, 2]


def test_trimming_does_no_harm_where_there_is_nothing_to_return():
    memory.trim()
    memory.trim()
