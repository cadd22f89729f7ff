"""The allocator is told on the machines that have one to tell."""

import platform

from gateway import memory


def test_glibc_takes_every_value():
    assert memory.tune() == (platform.libc_ver()[0] == "glibc")


def test_telling_it_twice_does_no_harm():
    assert memory.tune() == memory.tune()
