"""The folder of the traffic log: names, compression, and what is kept for how long."""

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
    """What another process finds there."""
    return set(TrafficFolder(root, 3, 36**4).unfinished_files())


def packed(path, content=b'{"v":1}\n'):
    compress(written(path, content), 1)
    return path.with_name(path.name + ".gz")


def test_a_place_is_named_by_the_hour_the_node_the_start_and_a_number(folder, tmp_path):
    assert folder.path_of(NINE, 5) == tmp_path / "date=2026-11-22" / "hour=09" / "3-1000-5.jsonl"


@pytest.mark.parametrize(
    ("number", "digits"), [(0, "0"), (35, "z"), (36, "10"), (2**31 - 1, "zik0zj")]
)
def test_numbers_in_base_36(number, digits):
    assert base36(number) == digits
    assert int(digits, 36) == number


def test_a_clock_before_1970_makes_a_name(tmp_path):
    assert (
        TrafficFolder(tmp_path, 3, -5).path_of(-5, 0)
        == tmp_path / "date=1969-12-31" / "hour=23" / "3-0-0.jsonl"
    )


def test_a_compressed_file_holds_the_same_and_takes_the_other_ones_place(folder):
    lines = b'{"v":1}\n' * 100_000
    path = written(folder.path_of(NINE, 0), lines)
    compress(path, 1)
    assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == lines
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_a_file_that_was_compressed_but_not_deleted_when_the_process_ended_is_only_deleted(folder):
    path = written(folder.path_of(NINE, 0))
    finished = path.with_name(path.name + ".gz")
    finished.write_bytes(gzip.compress(b"the same\n"))
    compress(path, 1)
    assert gzip.decompress(finished.read_bytes()) == b"the same\n"
    assert not path.exists()


def test_a_compressed_file_appears_whole_and_the_other_is_there_until_then(folder, monkeypatch):
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


def test_what_a_process_left_half_compressed_is_begun_anew(folder, tmp_path):
    path = written(folder.path_of(NINE, 0))
    path.with_name(path.name + ".gz.part").write_bytes(b"half")
    pending = left_behind(tmp_path)
    compress_and_expire(folder, pending, NO_LIMITS, lambda: NINE)
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_half_a_last_line_is_kept_as_it_is(folder, tmp_path):
    path = written(folder.path_of(NINE, 0), b'{"v":1}\n{"v":')
    compress_and_expire(folder, left_behind(tmp_path), NO_LIMITS, lambda: NINE)
    assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == b'{"v":1}\n{"v":'


def test_a_file_that_somebody_writes_is_neither_compressed_nor_deleted(folder, tmp_path):
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


def test_files_of_hours_that_are_too_old_are_deleted_with_their_folders(folder, tmp_path):
    old, young = packed(folder.path_of(NINE - 30 * HOUR_MS, 0)), packed(folder.path_of(NINE, 1))
    folder.delete_old(NINE, RetentionLimits(24 * HOUR_MS, None, 1))
    assert young.exists()
    assert not old.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["date=2026-11-22"]


def test_the_hour_of_a_file_counts_from_its_end(folder):
    """It was begun at 9:59:59 or before, and its lines may be of 10 o'clock."""
    kept = packed(folder.path_of(NINE, 0))
    assert folder.delete_old(NINE + 2 * HOUR_MS, RetentionLimits(2 * HOUR_MS, None, 1)) == 0
    assert folder.delete_old(NINE + 4 * HOUR_MS, RetentionLimits(2 * HOUR_MS, None, 1)) == 1
    assert not kept.exists()


def test_beyond_the_size_the_oldest_go_first_whatever_their_numbers(folder, tmp_path):
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


def test_what_was_finished_a_moment_ago_is_compressed_before_it_counts_as_too_much(folder):
    """It was finished after this round's files were compressed; compressed there is room for it."""
    path = written(folder.path_of(NINE, 0), b'{"v":1}\n' * 1000)
    limits = RetentionLimits(None, 1000, 1)
    compress_and_expire(folder, set(), limits, lambda: NINE)
    assert path.exists()
    compress_and_expire(folder, {path}, limits, lambda: NINE)
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_what_cannot_be_compressed_is_deleted_where_it_is_too_much(folder, monkeypatch):
    path = written(folder.path_of(NINE, 0), b'{"v":1}\n' * 1000)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log_files, "_gzip", full)
    compress_and_expire(folder, {path}, RetentionLimits(None, 1000, 1), lambda: NINE)
    assert not path.exists()


def test_what_is_none_of_the_log_is_let_alone(folder, tmp_path):
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
def test_what_is_called_like_a_file_and_is_none_is_let_alone_and_holds_up_nobody(folder, kind):
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
def test_what_lies_where_a_file_is_compressed_to_gets_none_of_it(folder, tmp_path, kind):
    path, other = written(folder.path_of(NINE, 0)), tmp_path / "other"
    other.write_text("mine")
    made(path.with_name(path.name + ".gz.part"), "pipe" if kind == "pipe" else other)
    compress(path, 1)
    assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == b'{"v":1}\n'
    assert other.read_text() == "mine"


def test_a_folder_that_is_called_like_the_compressed_file_costs_no_line(folder):
    path = written(folder.path_of(NINE, 0))
    path.with_name(path.name + ".gz").mkdir()
    with pytest.raises(IsADirectoryError):
        compress(path, 1)
    assert path.read_bytes() == b'{"v":1}\n'
    assert [one.name for one in path.parent.glob("*.part")] == []


def test_a_disk_without_room_for_the_compressed_file_keeps_the_other_and_it_is_tried_again(
    folder, monkeypatch, caplog
):
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


def test_a_file_goes_into_its_folder_also_if_that_was_just_tidied_away(folder, monkeypatch):
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
def test_files_are_for_the_user_and_its_group_alone_whatever_else_is_usual(
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
    """What compresses, and looks at the mode of what it compresses to."""
    real = log_files.igzip.IGzipFile

    def open_gzip(**options):
        modes.append(stat.S_IMODE(path.stat().st_mode))
        return real(**options)

    return open_gzip


def test_an_empty_file_that_was_left_only_goes(folder, tmp_path):
    path = written(folder.path_of(NINE, 0), b"")
    compress(path, 1)
    assert list(tmp_path.rglob("*.jsonl*")) == []


def test_a_file_that_another_takes_for_a_leftover_before_it_is_locked_is_not_written_into(
    folder, monkeypatch
):
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


def test_what_somebody_compresses_is_not_deleted_meanwhile(folder, monkeypatch):
    path = written(folder.path_of(NINE, 0))
    real = log_files._gzip

    def packs(source, target, level):
        real(source, target, level)
        assert folder.delete_old(NINE + 99 * HOUR_MS, RetentionLimits(0, 0, 1)) == 0

    monkeypatch.setattr(log_files, "_gzip", packs)
    compress(path, 1)
    assert [one.name for one in path.parent.iterdir()] == ["3-1000-0.jsonl.gz"]


def test_one_that_cannot_be_deleted_keeps_no_other(folder, monkeypatch, caplog):
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


def test_whoever_reads_a_file_that_is_deleted_meanwhile_reads_it_to_its_end(folder):
    lines = b'{"v":1}\n' * 1000
    path = packed(folder.path_of(NINE, 0), lines)
    with gzip.open(path) as file:
        assert file.readline() == lines[:8]
        assert folder.delete_old(NINE + 99 * HOUR_MS, RetentionLimits(0, None, 1)) == 1
        assert file.read() == lines[8:]


#: Compresses a file, and is killed at the first call of this function.
KILLED = """
import os, signal, sys
from pathlib import Path
from gateway.traffic import log_files
owner, name = {"pack": (os, "fsync"), "rename": (log_files.Path, "replace"), "unlink": (log_files.Path, "unlink")}[sys.argv[2]]
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
def test_whoever_is_killed_while_it_compresses_loses_no_line_and_leaves_none_twice(
    folder, tmp_path, when, left
):
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


def test_two_gateways_that_tidy_one_folder_at_once_finish_each_file_once(folder, tmp_path):
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


def test_a_process_takes_none_of_its_own_files_for_a_leftover_whether_or_not_there_are_locks(
    folder, tmp_path
):
    mine, other = (
        written(folder.path_of(NINE, 0)),
        written(TrafficFolder(tmp_path, 3, 36**3 - 1).path_of(NINE, 0)),
    )
    assert set(folder.unfinished_files()) == {other}
    assert left_behind(tmp_path) == {mine, other}


@pytest.mark.parametrize("failure", [None, PermissionError(errno.EACCES, "Permission denied")])
def test_a_folder_that_another_gateway_deletes_while_it_is_looked_for_or_that_cannot_be_read_hides_no_other(
    folder, tmp_path, monkeypatch, failure
):
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
