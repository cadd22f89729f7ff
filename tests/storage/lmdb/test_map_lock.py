"""The shared/exclusive lock of the map."""

from __future__ import annotations

import threading
import time

from storage.lmdb.map_lock import MapLock


def test_readers_do_not_block_each_other() -> None:
    map_lock, both = MapLock(), threading.Barrier(2, timeout=10)

    def read() -> None:
        with map_lock.shared():
            both.wait()

    thread = threading.Thread(target=read)
    thread.start()
    read()
    thread.join(10)


def test_exclusive_waits_for_readers_and_blocks_later_ones() -> None:
    map_lock, seen = MapLock(), []
    inside, is_asked, leave = threading.Event(), threading.Event(), threading.Event()

    def early() -> None:
        with map_lock.shared():
            inside.set()
            leave.wait()
            seen.append("early")

    def exclusive() -> None:
        inside.wait()
        with map_lock.exclusive():
            seen.append("exclusive")

    def late() -> None:
        is_asked.wait()
        with map_lock.shared():
            seen.append("late")

    threads = [threading.Thread(target=call, daemon=True) for call in (early, exclusive, late)]
    for thread in threads:
        thread.start()
    while not map_lock._is_exclusive:
        time.sleep(0.001)
    is_asked.set()
    # Without the lock, the late reader enters within this time.
    threads[-1].join(0.1)
    leave.set()
    for thread in threads:
        thread.join()
    assert seen == ["early", "exclusive", "late"]
