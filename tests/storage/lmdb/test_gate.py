"""Many readers, or one alone."""

from __future__ import annotations

import threading

from storage.lmdb.gate import Gate


def test_readers_do_not_wait_for_each_other() -> None:
    gate, both = Gate(), threading.Barrier(2, timeout=10)

    def read() -> None:
        with gate.shared():
            both.wait()

    thread = threading.Thread(target=read)
    thread.start()
    read()
    thread.join(10)


def test_alone_waits_for_those_inside_and_keeps_out_those_who_come_later() -> None:
    gate, seen = Gate(), []
    inside, leave, is_alone = threading.Event(), threading.Event(), threading.Event()

    def early() -> None:
        with gate.shared():
            inside.set()
            leave.wait(10)
            seen.append("early")

    def alone() -> None:
        inside.wait(10)
        with gate.alone():
            seen.append("alone")
            is_alone.set()

    def late() -> None:
        inside.wait(10)
        while not gate._alone:
            pass
        with gate.shared():
            seen.append("late")

    threads = [threading.Thread(target=call) for call in (early, alone, late)]
    for thread in threads:
        thread.start()
    while not gate._alone:
        pass
    leave.set()
    for thread in threads:
        thread.join(10)
    assert seen == ["early", "alone", "late"]
