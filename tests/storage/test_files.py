"""Files on a disk: writing and syncing in one call, in Python and compiled."""

from __future__ import annotations

import os
import resource
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import files
from storage.files import CompiledDiskFiles, DiskFiles, Files, Flusher
from tests.storage.entries import Counted

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


@pytest.fixture
def flusher() -> Iterator[Flusher]:
    made = CompiledDiskFiles().flusher()
    if made is None:
        pytest.skip("not compiled")
    yield made
    made.close()


def ended(flusher: Flusher) -> int | None:
    """The result of the call of the flusher, when it is readable."""
    select.select([flusher], [], [])
    return flusher.end()


def test_flusher_stores_one_call_after_the_other(flusher: Flusher, tmp_path: Path) -> None:
    files = DiskFiles()
    descriptor, folder = files.open(tmp_path / "file", is_new=True), os.fsencode(tmp_path)
    try:
        assert flusher.end() is None
        for number in range(3):
            flusher.begin(descriptor, list(BUFFERS), number * len(WRITTEN), folder, 0, 0, True)
            assert (ended(flusher) or 0) > 0
            assert flusher.end() is None
        assert (tmp_path / "file").read_bytes() == WRITTEN * 3
    finally:
        files.close(descriptor)


def test_flusher_without_room_writes_nothing(flusher: Flusher, tmp_path: Path) -> None:
    path, least = tmp_path / "file", 1 << 62
    with path.open("wb") as file:
        flusher.begin(file.fileno(), [b"some"], 0, os.fsencode(tmp_path), 0, least, True)
        assert 0 < (ended(flusher) or 0) < least
    assert path.read_bytes() == b""


def test_flusher_raises_the_error_of_a_write(flusher: Flusher, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as file:
        flusher.begin(file.fileno(), [b"some"], 0, os.fsencode(tmp_path), 0, 0, True)
        with pytest.raises(OSError, match="Bad file descriptor"):
            ended(flusher)
    # The next call is not affected.
    with path.open("wb") as file:
        flusher.begin(file.fileno(), [b"some"], 0, os.fsencode(tmp_path), 0, 0, True)
        assert ended(flusher)
    assert path.read_bytes() == b"some"


def test_flusher_syncs_only_if_asked(flusher: Flusher, tmp_path: Path) -> None:
    """A device takes no sync, so that one is seen as an error."""
    with Path("/dev/null").open("wb") as file:
        flusher.begin(file.fileno(), [b"some"], 0, os.fsencode(tmp_path), 0, 0, True)
        with pytest.raises(OSError, match="Invalid argument"):
            ended(flusher)
        flusher.begin(file.fileno(), [b"some"], 0, os.fsencode(tmp_path), 0, 0, False)
        assert ended(flusher)


def test_flusher_refuses_a_second_call_at_the_same_time(flusher: Flusher, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        flusher.begin(file.fileno(), [b"some"], 0, os.fsencode(tmp_path), 0, 0, True)
        with pytest.raises(RuntimeError):
            flusher.begin(file.fileno(), [b"other"], 0, os.fsencode(tmp_path), 0, 0, True)
        assert ended(flusher)


def test_flusher_is_closed_after_its_call(tmp_path: Path) -> None:
    flusher = CompiledDiskFiles().flusher()
    if flusher is None:
        pytest.skip("not compiled")
    payload = Counted(1_000_000)
    with (tmp_path / "file").open("wb") as file:
        flusher.begin(file.fileno(), [payload], 0, os.fsencode(tmp_path), 0, 0, True)
        del payload
        assert Counted.alive == 1
        flusher.close()
        flusher.close()
    assert (tmp_path / "file").stat().st_size == 1_000_000
    with pytest.raises(RuntimeError):
        flusher.begin(0, [], 0, b"", 0, 0, True)
    del flusher
    assert Counted.alive == 0


def test_forked_process_leaves_the_flusher_alone(flusher: Flusher, tmp_path: Path) -> None:
    """It has no such thread, which would otherwise be awaited forever."""
    child = os.fork()
    if not child:
        flusher.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with (tmp_path / "file").open("wb") as file:
        flusher.begin(file.fileno(), [b"some"], 0, os.fsencode(tmp_path), 0, 0, True)
        assert ended(flusher)
