from __future__ import annotations

import gzip
import os
import threading
import time
from io import FileIO

import pytest

from gateway.traffic import log_files
from gateway.traffic.file_appender import Rotation
from gateway.traffic.line_writer import LineWriter
from gateway.traffic.log_files import RetentionLimits, TrafficFolder, create_locked
from tests.fakes.broker import ended
from tests.fakes.traffic import NINE_OCLOCK_MS, ManualClock

LINE = b'{"v":1}\n'
#: Seconds that a write to a working disk may take on a busy machine.
STOP_SECONDS = 60.0
#: Seconds that the disk hangs, and limit for a stop with a timeout of 0.2 seconds.
HANG_SECONDS, SOON = 300.0, 30.0


def writer(
    folder, opened=create_locked, *, max_ms=60_000, keep_ms=None, clock=None, start=0, **more
):
    limits = {"max_lines": 10, "max_bytes": 1000} | more
    limits |= (
        {"now": lambda: NINE_OCLOCK_MS}
        if clock is None
        else {"now": clock.now, "ticks": clock.ticks}
    )
    return LineWriter(
        TrafficFolder(folder, 0, start),
        Rotation(1 << 20, max_ms),
        RetentionLimits(keep_ms, None, 1),
        open_file=opened,
        **limits,
    )


def lines_of(folder):
    return b"".join(
        gzip.decompress(path.read_bytes()) for path in sorted(folder.rglob("*.jsonl.gz"))
    )


def test_stop_writes_and_compresses_everything(tmp_path):
    one = writer(tmp_path)
    for number in range(5):
        one.put(b"%d\n" % number, 1)
    one.start()
    ended(one.stop(STOP_SECONDS))
    assert lines_of(tmp_path) == b"0\n1\n2\n3\n4\n"
    assert [path.name for path in tmp_path.rglob("*.jsonl*")] == ["0-0-0.jsonl.gz"]


def test_idle_file_is_finished_and_compressed_at_max_age(tmp_path):
    one = writer(tmp_path, max_ms=50)
    one.start()
    one.put(LINE, 1)
    end = time.monotonic() + STOP_SECONDS
    while not list(tmp_path.rglob("*.gz")) and time.monotonic() < end:
        time.sleep(0.01)
    assert lines_of(tmp_path) == LINE
    ended(one.stop(STOP_SECONDS))


@pytest.mark.parametrize(("lines", "size", "taken"), [(1, 10, 10), (1, 200, 5), (3, 10, 3)])
def test_queue_is_bounded_in_lines_and_bytes(tmp_path, lines, size, taken):
    one = writer(tmp_path)
    for _ in range(20):
        one.put(b"x" * (size - 1) + b"\n", lines)
    assert one.dropped == (20 - taken) * lines
    one.start()
    ended(one.stop(STOP_SECONDS))
    assert len(lines_of(tmp_path)) == taken * size


def test_hanging_disk_blocks_neither_put_nor_stop(tmp_path):
    hangs = threading.Event()

    def opened(path):
        hangs.wait(HANG_SECONDS)
        return create_locked(path)

    one = writer(tmp_path, opened)
    one.start()
    began = time.monotonic()
    for _ in range(1000):
        one.put(LINE, 1)
    ended(one.stop(0.2))
    assert time.monotonic() - began < SOON
    assert one.dropped >= 1000 - 2 * 10
    hangs.set()


def test_lines_queued_during_write_keep_order(tmp_path):
    one = writer(tmp_path, max_lines=100_000, max_bytes=1 << 20)
    one.start()
    for number in range(5000):
        one.put(b"%d\n" % number, 1)
    ended(one.stop(STOP_SECONDS))
    assert lines_of(tmp_path).split() == [b"%d" % number for number in range(5000)]


def test_written_lines_free_the_queue(tmp_path):
    one = writer(tmp_path, max_lines=2, max_bytes=2 * len(LINE))
    one.start()
    end = time.monotonic() + STOP_SECONDS
    for _ in range(20):
        one.put(LINE, 1)
        while one._waiting and time.monotonic() < end:
            time.sleep(0.001)
    ended(one.stop(STOP_SECONDS))
    assert (one.dropped, lines_of(tmp_path)) == (0, 20 * LINE)


def test_files_of_earlier_process_are_compressed_at_start(tmp_path):
    left = TrafficFolder(tmp_path, 0, 5).path_of(NINE_OCLOCK_MS, 3)
    file = create_locked(left)
    file.write(memoryview(b"1\n2\n3"))
    file.close()
    one = writer(tmp_path)
    one.start()
    ended(one.stop(STOP_SECONDS))
    assert lines_of(tmp_path) == b"1\n2\n3"


YEAR_MS = 365 * 24 * 3_600_000


@pytest.mark.parametrize(
    ("begins_ms", "jump_ms", "seconds", "is_kept"),
    [
        (0, YEAR_MS, 0, True),
        (0, -YEAR_MS, 0, True),
        (YEAR_MS, 0, 0, True),
        (0, 0, YEAR_MS // 1000, False),
    ],
    ids=["jumps ahead", "is set back", "was ahead and is set right", "goes on"],
)
def test_clock_jump_expires_no_file(tmp_path, begins_ms, jump_ms, seconds, is_kept):
    before = writer(tmp_path)
    before.start()
    before.put(LINE, 1)
    ended(before.stop(STOP_SECONDS))
    clock = ManualClock()
    clock.jump_ms = begins_ms
    one = writer(tmp_path, clock=clock, keep_ms=7_200_000, start=1)
    clock.jump_ms = jump_ms
    clock.seconds += seconds
    one.start()
    ended(one.stop(STOP_SECONDS))
    assert lines_of(tmp_path) == (LINE if is_kept else b"")


def test_lines_not_compressed_at_stop_are_kept_for_next_start(tmp_path, monkeypatch):
    began_to_pack, goes_on = threading.Event(), threading.Event()
    real = log_files._gzip

    def packs(source, target, level):
        target.write_bytes(b"half")
        began_to_pack.set()
        goes_on.wait(HANG_SECONDS)
        raise OSError("too late")

    with monkeypatch.context() as patched:
        patched.setattr(log_files, "_gzip", packs)
        one = writer(tmp_path, max_ms=50)
        one.start()
        one.put(LINE, 1)
        assert began_to_pack.wait(STOP_SECONDS)
        began = time.monotonic()
        ended(one.stop(0.2))
        assert time.monotonic() - began < SOON
        assert [path.read_bytes() for path in tmp_path.rglob("*.jsonl")] == [LINE]
        goes_on.set()
        one._maintenance_thread.join(STOP_SECONDS)
    assert log_files._gzip is real
    again = writer(tmp_path, start=1)
    again.start()
    ended(again.stop(STOP_SECONDS))
    assert lines_of(tmp_path) == LINE
    assert len(list(tmp_path.rglob("*.jsonl*"))) == 1


@pytest.mark.parametrize("call", ["write", "truncate", "close"])
def test_disk_hanging_during_write_blocks_neither_put_nor_stop(tmp_path, call):
    hangs = threading.Event()

    class Hanging(FileIO):
        def hang(self, *arguments):
            hangs.wait(HANG_SECONDS)
            return getattr(super(), call)(*arguments)

    setattr(Hanging, call, Hanging.hang)
    one = writer(
        tmp_path, lambda path: path.parent.mkdir(parents=True) or Hanging(path, "w"), max_ms=1
    )
    one.start()
    began = time.monotonic()
    for _ in range(1000):
        one.put(LINE, 1)
    ended(one.stop(0.2))
    assert time.monotonic() - began < SOON
    hangs.set()
    one._write_thread.join(STOP_SECONDS)


def test_files_left_by_other_gateways_are_compressed(tmp_path):
    one = writer(tmp_path)
    one.start()
    # The first files may be compressed as leftovers before they are locked; the writer then uses
    # the next name, too.
    other = next(
        file
        for number in range(100)
        if (file := create_locked(TrafficFolder(tmp_path, 1, 5).path_of(NINE_OCLOCK_MS, number)))
        is not None
    )
    other.write(memoryview(LINE))
    other.close()
    ended(one.stop(STOP_SECONDS))
    assert lines_of(tmp_path) == LINE


def test_maintenance_continues_when_folder_disappears(tmp_path, monkeypatch):
    empty = TrafficFolder(tmp_path, 1, 5).path_of(NINE_OCLOCK_MS - 3_600_000, 0).parent
    empty.mkdir(parents=True)
    looked, real = threading.Event(), os.scandir

    def after_another(path):
        if str(path) == str(empty) and empty.exists():
            empty.rmdir()
            looked.set()
        return real(path)

    monkeypatch.setattr(os, "scandir", after_another)
    one = writer(tmp_path)
    one.start()
    assert looked.wait(STOP_SECONDS)
    one.put(LINE, 1)
    ended(one.stop(STOP_SECONDS))
    assert lines_of(tmp_path) == LINE
