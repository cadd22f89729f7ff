"""The allocator is told on the machines that have one to tell."""

import gc
import platform

from gateway import memory


def test_glibc_takes_every_value():
    assert memory.tune() == (platform.libc_ver()[0] == "glibc")


def test_telling_it_twice_does_no_harm():
    assert memory.tune() == memory.tune()


def test_what_was_made_at_the_start_is_not_collected_again():
    kept = [[] for _ in range(1000)]
    memory.settle()
    try:
        assert gc.get_freeze_count() >= len(kept)
    finally:
        gc.unfreeze()
