from __future__ import annotations

import errno
import os
import shutil

import pytest

from gateway.traffic.dropped_lines import DroppedLines
from gateway.traffic.file_appender import RETRY_SECONDS, FileAppender, Rotation
from gateway.traffic.log_files import TrafficFolder, create_locked
from tests.fakes.traffic import NINE_OCLOCK_MS, ManualClock

LINE = b'{"v":1}\n'


class Disk:
    """Real files on a disk with space for `room` more bytes; None is unlimited."""

    def __init__(self):
        self.room = None
        self.opens = True
        self.error = errno.EIO
        self.truncates = True
        self.opened = 0

    def open(self, path):
        self.opened += 1
        if not self.opens:
            raise OSError(self.error, os.strerror(self.error))
        file = create_locked(path)
        return None if file is None else _File(self, file)


class _File:
    def __init__(self, disk, file):
        self._disk = disk
        self._file = file

    def fileno(self):
        return self._file.fileno()

    def write(self, chunk):
        if self._disk.room is None:
            return self._file.write(chunk)
        taken = chunk[: min(self._disk.room, 5)]
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._disk.room -= len(taken)
        return self._file.write(taken)

    def truncate(self, size):
        if not self._disk.truncates:
            raise OSError(errno.EIO, "Input/output error")
        return self._file.truncate(size)

    def close(self):
        self._file.close()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def finished():
    return []


@pytest.fixture
def appender(tmp_path, clock, disk, finished):
    rotation = Rotation(max_bytes=100, max_ms=60_000)
    return FileAppender(
        TrafficFolder(tmp_path, 0, 0),
        rotation,
        DroppedLines(clock.ticks),
        clock.now,
        clock.ticks,
        finished.append,
        disk.open,
    )


def dropped(appender):
    return appender._dropped.total


def test_file_is_created_with_first_line(appender, tmp_path, finished):
    appender.close()
    assert list(tmp_path.rglob("*")) == []
    appender.append(LINE, 1)
    appender.close()
    assert [path.read_bytes() for path in finished] == [LINE]


def test_file_is_finished_at_max_size(appender, finished):
    for _ in range(12):
        appender.append(LINE, 1)
    assert finished == []
    appender.append(LINE, 1)
    assert [path.read_bytes() for path in finished] == [LINE * 13]
    appender.append(LINE, 1)
    appender.close()
    assert [path.name for path in finished] == ["0-0-0.jsonl", "0-0-1.jsonl"]


def test_file_is_finished_at_max_age_without_lines(appender, clock, finished):
    appender.append(LINE, 1)
    clock.seconds += 59
    appender.rotate_if_due()
    assert finished == []
    assert appender.seconds_to_rotation() == 1
    clock.seconds += 1
    appender.rotate_if_due()
    assert len(finished) == 1


def test_clock_jump_back_finishes_no_file(appender, clock, finished):
    appender.append(LINE, 1)
    clock.jump_ms = -7_200_000
    appender.append(LINE, 1)
    assert finished == []
    clock.seconds += 60
    appender.append(LINE, 1)
    appender.append(LINE, 1)
    appender.close()
    assert [path.parent.name for path in finished] == ["hour=09", "hour=07"]


def test_lines_are_dropped_whole_when_disk_is_full(appender, disk, clock, finished):
    appender.append(LINE, 1)
    disk.room = 3
    appender.append(LINE * 2, 2)
    assert [path.read_bytes() for path in finished] == [LINE]
    assert dropped(appender) == 2
    disk.room = None
    clock.seconds += RETRY_SECONDS
    appender.append(LINE * 3, 3)
    appender.close()
    assert [path.read_bytes() for path in finished] == [LINE, LINE * 3]
    assert dropped(appender) == 2


@pytest.mark.parametrize(
    "error", [errno.EIO, errno.EROFS, errno.EACCES, errno.ENOENT, errno.ESTALE, errno.EMFILE]
)
def test_failed_disk_is_retried_later(appender, disk, clock, error):
    disk.opens, disk.error = False, error
    for _ in range(3):
        appender.append(LINE, 1)
    assert disk.opened == 1
    clock.seconds += RETRY_SECONDS
    appender.append(LINE, 1)
    assert disk.opened == 2
    assert dropped(appender) == 4


def test_partial_line_that_cannot_be_truncated_ends_its_file(appender, disk, clock, finished):
    appender.append(LINE, 1)
    disk.room, disk.truncates = 3, False
    appender.append(LINE, 1)
    disk.room = None
    clock.seconds += RETRY_SECONDS
    appender.append(LINE, 1)
    appender.close()
    assert [path.read_bytes() for path in finished] == [LINE + LINE[:3], LINE]


def test_lines_of_removed_folder_count_as_dropped(appender, tmp_path, finished, caplog):
    appender.append(LINE * 3, 3)
    shutil.rmtree(tmp_path)
    appender.append(LINE, 1)
    appender.close()
    assert dropped(appender) == 3
    assert caplog.records[-1].fields == {"lines": 3, "reason": "file was deleted"}
    assert [(path.name, path.read_bytes()) for path in finished] == [("0-0-1.jsonl", LINE)]


def test_removed_folder_is_created_again(appender, tmp_path, clock, finished):
    appender.append(LINE, 1)
    clock.seconds += 60
    appender.rotate_if_due()
    shutil.rmtree(tmp_path)
    appender.append(LINE * 2, 2)
    appender.close()
    assert dropped(appender) == 0
    assert finished[-1].read_bytes() == LINE * 2


def test_existing_file_name_is_skipped(appender, tmp_path, finished):
    taken = TrafficFolder(tmp_path, 0, 0).path_of(NINE_OCLOCK_MS, 0)
    taken.parent.mkdir(parents=True)
    taken.write_bytes(b"of another\n")
    appender.append(LINE, 1)
    appender.close()
    assert taken.read_bytes() == b"of another\n"
    assert [(path.name, path.read_bytes()) for path in finished] == [("0-0-1.jsonl", LINE)]
