"""Files on a disk: writing and syncing in one call, in Python and compiled."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import files
from storage.files import CompiledDiskFiles, DiskFiles, Files

BUFFERS = [b"first", bytearray(b" second"), memoryview(b" third"), b""]
WRITTEN = b"first second third"


@pytest.fixture(params=[DiskFiles, CompiledDiskFiles])
def disk(request: pytest.FixtureRequest) -> Files:
    if request.param is CompiledDiskFiles and files._store is None:
        pytest.skip("not compiled")
    made: Files = request.param()
    return made


@pytest.fixture
def descriptor(disk: Files, tmp_path: Path) -> Iterator[int]:
    opened = disk.open(tmp_path / "file", is_new=True)
    yield opened
    disk.close(opened)


def test_store_writes_all_buffers_at_the_position(
    disk: Files, descriptor: int, tmp_path: Path
) -> None:
    disk.write(descriptor, [b"." * 30], 0)
    room = disk.store(descriptor, list(BUFFERS), 4, tmp_path, 30, 0, syncs=True)
    assert (tmp_path / "file").read_bytes() == b"." * 4 + WRITTEN + b"." * 8
    assert room > 0


def test_store_writes_more_buffers_than_one_system_call_takes(
    disk: Files, descriptor: int, tmp_path: Path
) -> None:
    pieces = [b"%04d" % number for number in range(2500)]
    disk.store(descriptor, list(pieces), 0, tmp_path, 0, 0, syncs=True)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_store_without_room_writes_nothing(disk: Files, descriptor: int, tmp_path: Path) -> None:
    least = 1 << 62
    assert 0 < disk.store(descriptor, list(BUFFERS), 0, tmp_path, 0, least, syncs=True) < least
    assert disk.size(descriptor) == 0


def test_room_is_limited_by_the_size_of_files(disk: Files, descriptor: int, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        assert disk.store(descriptor, [b"some"], 0, tmp_path, 1000, 0, syncs=True) == 4000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_room_is_unlimited_if_it_is_unknown(disk: Files, descriptor: int, tmp_path: Path) -> None:
    assert (
        disk.store(descriptor, [b"some"], 0, tmp_path / "missing", 0, 1 << 60, syncs=True)
        >= 1 << 60
    )


def test_error_of_a_write_is_raised(disk: Files, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            disk.store(descriptor, [b"some"], 0, tmp_path, 0, 0, syncs=True)
    finally:
        os.close(descriptor)


def test_write_that_ends_at_the_limit_of_a_file_raises(
    disk: Files, descriptor: int, tmp_path: Path
) -> None:
    """The first system call writes a part, and the next one gives the reason."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            disk.store(descriptor, list(BUFFERS), 0, tmp_path, 0, 0, syncs=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / "file").read_bytes() == WRITTEN[:8]


def test_error_of_a_sync_is_raised(disk: Files, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        # A pipe takes no position, either: nothing is written, and only the sync remains.
        with pytest.raises(OSError, match=r"Illegal seek|Invalid argument"):
            disk.store(writing, [b"some"], 0, tmp_path, 0, 0, syncs=True)
        with pytest.raises(OSError, match=r"Illegal seek|Invalid argument"):
            disk.store(writing, [], 0, tmp_path, 0, 0, syncs=True)
    finally:
        os.close(reading)
        os.close(writing)


def test_store_syncs_only_if_asked(disk: Files, tmp_path: Path) -> None:
    """A device takes no sync, so that one is seen as an error."""
    descriptor = os.open("/dev/null", os.O_WRONLY)
    try:
        disk.store(descriptor, [b"some"], 0, tmp_path, 0, 0, syncs=False)
        with pytest.raises(OSError, match="Invalid argument"):
            disk.store(descriptor, [b"some"], 0, tmp_path, 0, 0, syncs=True)
    finally:
        os.close(descriptor)
