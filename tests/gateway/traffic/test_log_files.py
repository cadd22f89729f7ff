from __future__ import annotations

import errno
import gzip
import os
import signal
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

from gateway.traffic import log_files
from gateway.traffic.log_files import (
    RetentionLimits,
    TrafficFolder,
    base36,
    compress,
    compress_and_expire,
    create_locked,
)

HOUR_MS = 3_600_000
NINE = int(datetime(2026, 11, 22, 9, 59, 59, tzinfo=UTC).timestamp() * 1000)
NO_LIMITS = RetentionLimits(None, None, 1)


@pytest.fixture
def folder(tmp_path):
    return TrafficFolder(tmp_path, 3, 36**3)


def written(path, content=b'{"v":1}\n'):
    file = create_locked(path)
    file.write(memoryview(content))
    file.close()
    return path


def left_behind(root):
    """Return what a later process finds there."""
    return set(TrafficFolder(root, 3, 36**4).unfinished_files())


def packed(path, content=b'{"v":1}\n'):
    compress(written(path, content), 1)
    return path.with_name(path.name + ".gz")


def test_path_has_hour_node_start_and_number(folder, tmp_path):
    assert folder.path_of(NINE, 5) == tmp_path / "date=2026-11-22" / "hour=09" / "3-1000-5.jsonl"


@pytest.mark.parametrize(
    ("number", "digits"), [(0, "0"), (35, "z"), (36, "10"), (2**31 - 1, "zik0zj")]
)
def test_base36_formats_numbers(number, digits):
    assert base36(number) == digits
    assert int(digits, 36) == number


def test_file_path_is_valid_for_clock_before_1970(tmp_path):
    assert (
        TrafficFolder(tmp_path, 3, -5).path_of(-5, 0)
        == tmp_path / "date=1969-12-31" / "hour=23" / "3-0-0.jsonl"
    )


def test_compressed_file_replaces_original(folder):
    lines = b'{"v":1}\n' * 100_000
    path = written(folder.path_of(NINE, 0), lines)
    compress(path, 1)
    assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == lines
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_already_compressed_original_is_only_deleted(folder):
    path = written(folder.path_of(NINE, 0))
    finished = path.with_name(path.name + ".gz")
    finished.write_bytes(gzip.compress(b"the same\n"))
    compress(path, 1)
    assert gzip.decompress(finished.read_bytes()) == b"the same\n"
    assert not path.exists()


def test_compressed_file_appears_atomically(folder, monkeypatch):
    path = written(folder.path_of(NINE, 0))
    real = log_files._gzip
    seen = []

    def packs(source, target, level):
        real(source, target, level)
        seen.extend(sorted(one.name for one in path.parent.iterdir()))

    monkeypatch.setattr(log_files, "_gzip", packs)
    compress(path, 1)
    assert seen == ["3-1000-0.jsonl", "3-1000-0.jsonl.gz.part"]
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_partial_compression_is_restarted(folder, tmp_path):
    path = written(folder.path_of(NINE, 0))
    path.with_name(path.name + ".gz.part").write_bytes(b"half")
    pending = left_behind(tmp_path)
    compress_and_expire(folder, pending, NO_LIMITS, lambda: NINE)
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_partial_last_line_is_kept(folder, tmp_path):
    path = written(folder.path_of(NINE, 0), b'{"v":1}\n{"v":')
    compress_and_expire(folder, left_behind(tmp_path), NO_LIMITS, lambda: NINE)
    assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == b'{"v":1}\n{"v":'


def test_file_being_written_is_not_compressed_or_deleted(folder, tmp_path):
    path = folder.path_of(NINE, 0)
    file = create_locked(path)
    file.write(memoryview(b"{}\n"))
    compress_and_expire(
        folder, left_behind(tmp_path), RetentionLimits(0, 0, 1), lambda: NINE + 99 * HOUR_MS
    )
    assert path.read_bytes() == b"{}\n"
    file.close()
    compress_and_expire(folder, left_behind(tmp_path), NO_LIMITS, lambda: NINE)
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_expired_files_are_deleted_with_their_folders(folder, tmp_path):
    old, young = packed(folder.path_of(NINE - 30 * HOUR_MS, 0)), packed(folder.path_of(NINE, 1))
    folder.delete_old(NINE, RetentionLimits(24 * HOUR_MS, None, 1))
    assert young.exists()
    assert not old.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["date=2026-11-22"]


def test_age_counts_from_end_of_hour(folder):
    """The file was opened by 9:59:59, and its lines may be from 10 o'clock."""
    kept = packed(folder.path_of(NINE, 0))
    assert folder.delete_old(NINE + 2 * HOUR_MS, RetentionLimits(2 * HOUR_MS, None, 1)) == 0
    assert folder.delete_old(NINE + 4 * HOUR_MS, RetentionLimits(2 * HOUR_MS, None, 1)) == 1
    assert not kept.exists()


def test_oldest_files_are_deleted_beyond_max_bytes(folder, tmp_path):
    content = os.urandom(1000)
    earlier = TrafficFolder(tmp_path, 3, 36**3 - 1)
    made = [
        packed(earlier.path_of(NINE - HOUR_MS, 9), content),
        packed(earlier.path_of(NINE, 10), content),
        packed(folder.path_of(NINE, 2), content),
        packed(folder.path_of(NINE, 11), content),
    ]
    size = made[0].stat().st_size
    folder.delete_old(NINE, RetentionLimits(None, 3 * size - 1, 1))
    assert [path.exists() for path in made] == [False, False, True, True]


def test_new_file_is_compressed_before_size_limit_applies(folder):
    """It was finished after the files of this pass were compressed; compressed it fits."""
    path = written(folder.path_of(NINE, 0), b'{"v":1}\n' * 1000)
    limits = RetentionLimits(None, 1000, 1)
    compress_and_expire(folder, set(), limits, lambda: NINE)
    assert path.exists()
    compress_and_expire(folder, {path}, limits, lambda: NINE)
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_uncompressible_file_is_deleted_beyond_max_bytes(folder, monkeypatch):
    path = written(folder.path_of(NINE, 0), b'{"v":1}\n' * 1000)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log_files, "_gzip", full)
    compress_and_expire(folder, {path}, RetentionLimits(None, 1000, 1), lambda: NINE)
    assert not path.exists()


def test_other_files_are_not_touched(folder, tmp_path):
    packed(folder.path_of(NINE, 0))
    strangers = [
        tmp_path / "notes.txt",
        tmp_path / "date=2026-11-22" / "hour=09" / "x.jsonl.gz",
        tmp_path / "date=x" / "hour=09" / "0-1-1.jsonl",
        tmp_path / "date=2026-13-01" / "hour=09" / "0-1-1.jsonl.gz",
        tmp_path / "date=2026-11-22" / "hour=24" / "0-1-1.jsonl.gz",
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    folder.delete_old(NINE + 999 * HOUR_MS, RetentionLimits(0, 0, 1))
    assert [path.read_text() for path in strangers] == ["mine"] * 5
    assert len(folder.files()) == 0


def made(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)


@pytest.mark.parametrize("kind", ["pipe", "folder", "/etc/hostname", "nowhere"])
def test_non_files_with_log_names_are_not_touched(folder, kind):
    path = written(folder.path_of(NINE, 0))
    for name in ("3-1-0.jsonl", "3-1-1.jsonl.gz", "3-1-2.jsonl.gz.part"):
        made(path.with_name(name), kind)
    pending = {path, *folder.unfinished_files()}
    compress_and_expire(folder, pending, NO_LIMITS, lambda: NINE)
    compress_and_expire(folder, pending, RetentionLimits(0, 0, 1), lambda: NINE + 999 * HOUR_MS)
    assert not pending
    assert sorted(one.name for one in path.parent.iterdir()) == [
        "3-1-0.jsonl",
        "3-1-1.jsonl.gz",
        "3-1-2.jsonl.gz.part",
    ]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_compression_does_not_write_into_existing_target(folder, tmp_path, kind):
    path, other = written(folder.path_of(NINE, 0)), tmp_path / "other"
    other.write_text("mine")
    made(path.with_name(path.name + ".gz.part"), "pipe" if kind == "pipe" else other)
    compress(path, 1)
    assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == b'{"v":1}\n'
    assert other.read_text() == "mine"


def test_folder_named_like_compressed_file_loses_no_line(folder):
    path = written(folder.path_of(NINE, 0))
    path.with_name(path.name + ".gz").mkdir()
    with pytest.raises(IsADirectoryError):
        compress(path, 1)
    assert path.read_bytes() == b'{"v":1}\n'
    assert [one.name for one in path.parent.glob("*.part")] == []


def test_compression_without_disk_space_is_retried(folder, monkeypatch, caplog):
    path = written(folder.path_of(NINE, 0))
    pending = {path}

    def full(source, target, level):
        target.write_bytes(b"ha")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(log_files, "_gzip", full)
        compress_and_expire(folder, pending, NO_LIMITS, lambda: NINE)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert caplog.records[-1].fields["reason"] == "No space left on device"
    compress_and_expire(folder, pending, NO_LIMITS, lambda: NINE)
    assert not pending
    assert not path.exists()


def test_file_is_created_in_folder_that_was_just_deleted(folder, monkeypatch):
    path = folder.path_of(NINE, 0)
    path.parent.mkdir(parents=True)
    real = log_files._locked
    tidied = []

    def locked(asked):
        if not tidied:
            tidied.append(asked.parent.rmdir())
        return real(asked)

    monkeypatch.setattr(log_files, "_locked", locked)
    assert written(path).read_bytes() == b'{"v":1}\n'


@pytest.mark.parametrize(
    ("umask", "file_mode", "folder_mode"),
    [(0o022, 0o640, 0o750), (0o077, 0o600, 0o700), (0, 0o640, 0o750)],
)
def test_files_are_readable_by_user_and_group_only(
    folder, tmp_path, monkeypatch, umask, file_mode, folder_mode
):
    before = os.umask(umask)
    try:
        path = written(folder.path_of(NINE, 0))
        assert stat.S_IMODE(path.stat().st_mode) == file_mode
        modes = []
        monkeypatch.setattr(
            log_files.igzip, "IGzipFile", _watched(path.with_name(path.name + ".gz.part"), modes)
        )
        compress(path, 1)
    finally:
        os.umask(before)
    assert modes == [file_mode]
    assert stat.S_IMODE(path.with_name(path.name + ".gz").stat().st_mode) == file_mode
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path.parent.parent)] == [
        folder_mode
    ] * 2


def _watched(path, modes):
    """Return a compressor that records the mode of the compressed file."""
    real = log_files.igzip.IGzipFile

    def open_gzip(**options):
        modes.append(stat.S_IMODE(path.stat().st_mode))
        return real(**options)

    return open_gzip


def test_empty_leftover_is_deleted(folder, tmp_path):
    path = written(folder.path_of(NINE, 0), b"")
    compress(path, 1)
    assert list(tmp_path.rglob("*.jsonl*")) == []


def test_file_compressed_before_lock_is_not_written(folder, monkeypatch):
    path = folder.path_of(NINE, 0)
    real = log_files._lock

    def after_another(file, kind):
        monkeypatch.setattr(log_files, "_lock", real)
        compress(path, 1)
        return real(file, kind)

    monkeypatch.setattr(log_files, "_lock", after_another)
    assert create_locked(path) is None
    with create_locked(path) as file, path.open("rb") as other:
        assert not real(other, log_files.fcntl.LOCK_EX)
        file.write(memoryview(b"mine\n"))
    assert path.read_bytes() == b"mine\n"


def test_file_being_compressed_is_not_deleted(folder, monkeypatch):
    path = written(folder.path_of(NINE, 0))
    real = log_files._gzip

    def packs(source, target, level):
        real(source, target, level)
        assert folder.delete_old(NINE + 99 * HOUR_MS, RetentionLimits(0, 0, 1)) == 0

    monkeypatch.setattr(log_files, "_gzip", packs)
    compress(path, 1)
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_undeletable_file_does_not_stop_deletion(folder, monkeypatch, caplog):
    kept, other = packed(folder.path_of(NINE, 0)), packed(folder.path_of(NINE, 1))
    real = log_files._delete_if_unused

    def deleted(one):
        if one.path == kept:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(kept))
        return real(one)

    monkeypatch.setattr(log_files, "_delete_if_unused", deleted)
    compress_and_expire(folder, set(), RetentionLimits(0, None, 1), lambda: NINE + 99 * HOUR_MS)
    assert kept.exists()
    assert not other.exists()
    assert caplog.records[-1].fields["file"] == str(kept)


def test_open_reader_survives_deletion(folder):
    lines = b'{"v":1}\n' * 1000
    path = packed(folder.path_of(NINE, 0), lines)
    with gzip.open(path) as file:
        assert file.readline() == lines[:8]
        assert folder.delete_old(NINE + 99 * HOUR_MS, RetentionLimits(0, None, 1)) == 1
        assert file.read() == lines[8:]


#: Compresses a file and is killed at the first call of the given function.
KILLED = """
import os, signal, sys
from pathlib import Path
from gateway.traffic import log_files
owner, name = {
    "pack": (os, "fsync"),
    "rename": (log_files.Path, "replace"),
    "unlink": (log_files.Path, "unlink"),
}[sys.argv[2]]
setattr(owner, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
log_files.compress(Path(sys.argv[1]), 1)
"""


@pytest.mark.parametrize(
    ("when", "left"),
    [
        ("pack", [".jsonl", ".jsonl.gz.part"]),
        ("rename", [".jsonl", ".jsonl.gz.part"]),
        ("unlink", [".jsonl", ".jsonl.gz"]),
    ],
)
def test_kill_during_compression_neither_loses_nor_repeats_lines(folder, tmp_path, when, left):
    lines = os.urandom(200_000).hex().encode() + b"\n"
    path = written(folder.path_of(NINE, 0), lines)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), when], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert sorted(one.name for one in path.parent.iterdir()) == [
        f"3-1000-0{ending}" for ending in left
    ]
    compress_and_expire(folder, left_behind(tmp_path), NO_LIMITS, lambda: NINE)
    (finished,) = path.parent.iterdir()
    assert finished.name == "3-1000-0.jsonl.gz"
    assert gzip.decompress(finished.read_bytes()) == lines


def test_concurrent_maintenance_finishes_each_file_once(folder, tmp_path):
    paths = [written(folder.path_of(NINE, number), b"%d\n" % number) for number in range(100)]
    both = [
        threading.Thread(
            target=compress_and_expire, args=(folder, set(paths), NO_LIMITS, lambda: NINE)
        )
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    found = sorted(int(gzip.decompress(one.read_bytes())) for one in tmp_path.rglob("*.jsonl*"))
    assert found == list(range(100))


def test_own_files_are_never_leftovers(folder, tmp_path):
    mine, other = (
        written(folder.path_of(NINE, 0)),
        written(TrafficFolder(tmp_path, 3, 36**3 - 1).path_of(NINE, 0)),
    )
    assert set(folder.unfinished_files()) == {other}
    assert left_behind(tmp_path) == {mine, other}


@pytest.mark.parametrize("failure", [None, PermissionError(errno.EACCES, "Permission denied")])
def test_unreadable_or_deleted_folder_hides_no_other(folder, tmp_path, monkeypatch, failure):
    gone, there = folder.path_of(NINE - HOUR_MS, 0).parent, written(folder.path_of(NINE, 1))
    gone.mkdir(parents=True)
    real = os.scandir

    def after_another(path):
        if str(path) == str(gone):
            gone.rmdir()
            if failure is not None:
                raise failure
        return real(path)

    monkeypatch.setattr(os, "scandir", after_another)
    assert [one.path for one in folder.files()] == [there]
    assert not gone.exists()
