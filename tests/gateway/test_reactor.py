"""The reactor's loop: sockets, timers and calls from threads, as with Twisted's own loop."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import threading
import time
from functools import partial

import pytest
from twisted.internet.main import CONNECTION_DONE

from gateway import reactor as module
from gateway.reactor import MAX_CANCELLED_TIMERS, USED, GatewayReactor


def compiled():
    try:
        found = importlib.import_module("gateway._reactor")
    except ImportError as error:
        pytest.skip(f"not compiled (pip install -e .): {error}")
    if not issubclass(GatewayReactor, found.ReactorState):
        pytest.skip("not used by pure Python")
    return found


@pytest.fixture(params=[lambda: module, compiled], ids=["python", "compiled"])
def reactor(request, monkeypatch):
    monkeypatch.setattr(module, "loop", request.param())
    made = GatewayReactor()
    yield made
    made.disconnectAll()
    made.waker.connectionLost(None)
    made._poller.close()


def run(reactor, *, seconds=30):
    """Run until something stops the reactor."""
    late = reactor.callLater(seconds, reactor.crash)
    reactor.run(installSignalHandlers=False)
    assert late.active(), "nothing stopped the reactor"
    late.cancel()


class Reader:
    """A socket of the reactor; `read` is called when it has bytes."""

    disconnected = False

    def __init__(self, read):
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.doRead = read
        self.lost = []

    def fileno(self):
        return self.near.fileno()

    def logPrefix(self):
        return "reader"

    def doWrite(self):
        raise AssertionError("not asked for")

    def connectionLost(self, reason):
        self.lost.append(reason.value)


def test_uses_what_this_version_of_twisted_has(reactor):
    assert [name for name in USED if getattr(reactor, name, None) is None] == []


def test_install_keeps_twisteds_loop_if_an_attribute_is_missing(monkeypatch, caplog):
    monkeypatch.setattr(module, "USED", ("threadCallQueue", "no_longer_there"))
    monkeypatch.setattr(module, "installReactor", lambda _: pytest.fail("installed"))
    module.install()
    assert caplog.records[0].fields == {"missing": "no_longer_there"}


def test_timers_run_in_their_order(reactor):
    ran = []
    reactor.callLater(0.02, ran.append, "last")
    reactor.callLater(0.02, reactor.stop)
    moved = reactor.callLater(0, ran.append, "moved")
    moved.delay(0.01)
    reactor.callLater(0, ran.append, "first")
    reactor.callLater(0.001, ran.append, "cancelled").cancel()
    run(reactor)
    assert ran == ["first", "moved", "last"]


def test_timer_of_a_timer_runs_in_a_later_turn(reactor):
    ran = []

    def first():
        reactor.callLater(0, ran.append, "second")
        reactor.callFromThread(ran.append, "between")
        ran.append("first")

    reactor.callLater(0, first)
    reactor.callLater(0.01, reactor.stop)
    run(reactor)
    assert ran == ["first", "between", "second"]


def test_cancelled_timers_are_removed(reactor):
    for _ in range(3 * MAX_CANCELLED_TIMERS):
        reactor.callLater(1000, print).cancel()
    reactor.callLater(0.001, reactor.callLater, 0, reactor.stop)
    run(reactor)
    assert len(reactor.getDelayedCalls()) == 0
    assert len(reactor._pendingTimedCalls) < MAX_CANCELLED_TIMERS


def test_calls_from_threads_run_in_order_and_end_the_wait(reactor):
    ran = []

    def work():
        for number in range(1000):
            reactor.callFromThread(ran.append, number)
        reactor.callFromThread(reactor.stop)

    reactor.callLater(0, threading.Thread(target=work).start)
    run(reactor)
    assert ran == list(range(1000))


def test_each_call_of_a_thread_that_waits_for_the_last_one_runs(reactor):
    """The loop is about to wait when most of these calls arrive."""
    ran = []

    def work():
        for number in range(2000):
            arrived = threading.Event()
            reactor.callFromThread(arrived.set)
            assert arrived.wait(30)
            ran.append(number)
        reactor.callFromThread(reactor.stop)

    thread = threading.Thread(target=work)
    reactor.callLater(0, thread.start)
    run(reactor, seconds=120)
    thread.join()
    assert len(ran) == 2000


def test_failing_call_is_logged_and_the_next_one_runs(reactor, caplog):
    def fail(number):
        raise ValueError(f"broken: {number}")

    reactor.callFromThread(fail, 7)
    reactor.callFromThread(reactor.stop)
    run(reactor)
    (record,) = caplog.records
    assert record.event == "a call from a thread failed"
    assert record.fields["error"] == "ValueError: broken: 7"


def test_calls_that_are_queued_by_a_call_run_after_events(reactor):
    ran = []

    def again():
        ran.append("again")
        reactor.callFromThread(reactor.stop)

    reactor.callFromThread(lambda: (ran.append("first"), reactor.callFromThread(again)))
    run(reactor)
    assert ran == ["first", "again"]


def test_idle_loop_waits(reactor, monkeypatch):
    began = []

    def seconds():
        began.append(time.monotonic())
        return began[-1]

    monkeypatch.setattr(reactor, "seconds", seconds)
    reactor.callLater(0.3, reactor.stop)
    run(reactor)
    assert began[-1] - began[0] >= 0.3
    assert len(began) < 20


def test_readable_socket_is_read(reactor):
    read = []

    def arrived():
        read.append(reader.near.recv(100))
        reactor.removeReader(reader)
        reactor.stop()

    reader = Reader(arrived)
    reactor.addReader(reader)
    reactor.callLater(0, reader.far.send, b"bytes")
    run(reactor)
    assert read == [b"bytes"]
    assert reader.lost == []


def test_socket_whose_read_fails_is_lost_and_others_are_served(reactor, caplog):
    def fail():
        raise ValueError("broken")

    failing, ending = Reader(fail), Reader(lambda: CONNECTION_DONE)
    for reader in (failing, ending):
        reader.far.send(b"x")
        reactor.addReader(reader)
    reactor.callLater(0.02, reactor.stop)
    run(reactor)
    assert [type(error).__name__ for error in failing.lost] == ["ValueError"]
    assert [type(error).__name__ for error in ending.lost] == ["ConnectionDone"]
    assert [record.event for record in caplog.records] == ["reading a socket failed"]
    assert failing not in reactor.getReaders()


def test_failing_end_of_a_connection_leaves_the_other_sockets(reactor, caplog):
    def fail(reason):
        raise ValueError("broken")

    readers, read = [], []
    for number in range(10):
        reader = Reader(lambda number=number: read.append(number) or CONNECTION_DONE)
        reader.connectionLost = fail
        reader.far.send(b"x")
        reactor.addReader(reader)
        readers.append(reader)
    turns = []
    reactor.callLater(0, reactor.callLater, 0, lambda: turns.append(len(read)))
    reactor.callLater(0.02, reactor.stop)
    run(reactor)
    assert sorted(read) == list(range(10))
    # All in one turn.
    assert turns == [10]
    assert {record.event for record in caplog.records} == {"the end of a connection failed"}


def test_socket_that_an_earlier_event_removed_is_not_read(reactor):
    read = []

    def removing(mine):
        def arrived():
            read.append(mine)
            for reader in readers:
                reactor.removeReader(reader)
            reactor.stop()

        return arrived

    readers = [Reader(removing(number)) for number in range(2)]
    for reader in readers:
        reader.far.send(b"x")
        reactor.addReader(reader)
    run(reactor)
    assert len(read) == 1


def test_peer_that_closes_ends_its_socket(reactor):
    reader = Reader(lambda: None if reader.near.recv(10) else CONNECTION_DONE)
    reactor.addReader(reader)
    reader.far.send(b"last")
    reader.far.close()
    reactor.callLater(0.02, reactor.stop)
    run(reactor)
    assert len(reader.lost) == 1


def test_awake_loop_is_not_woken(reactor):
    """A thread's call during a turn costs no system call."""
    wakes = []

    def count():
        wakes.append(os.getpid())
        wake()

    wake, reactor.waker.wakeUp = reactor.waker.wakeUp, count

    def turn():
        for _ in range(5):
            reactor.callFromThread(list)
        reactor.callFromThread(reactor.stop)

    reactor.callLater(0, turn)
    run(reactor)
    assert wakes == []


def test_signal_during_the_wait_is_handled(reactor, monkeypatch):
    handled = []

    def handle(number, frame):
        handled.append(number)
        reactor.callFromThread(reactor.stop)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        reactor.callLater(
            0, threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1)).start
        )
        run(reactor)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [signal.SIGUSR1]


def test_more_readable_sockets_than_one_wait_returns(reactor):
    read = []

    def arrived(reader):
        read.append(reader.near.recv(100))
        if len(read) == 400:
            reactor.stop()

    readers = []
    for _ in range(400):
        reader = Reader(None)
        reader.doRead = partial(arrived, reader)
        reader.far.send(b"x")
        reactor.addReader(reader)
        readers.append(reader)
    run(reactor)
    assert read == [b"x"] * 400
    for reader in readers:
        reader.near.close()
        reader.far.close()


def test_bug_in_the_loop_is_logged_and_the_loop_goes_on(reactor, caplog):
    failed = []

    def fail():
        failed.append(True)
        if len(failed) == 2:
            del reactor.seconds
            reactor.callLater(0, reactor.stop)
        raise ValueError("broken")

    def first():
        reactor.seconds = fail

    reactor.callLater(0, first)
    run(reactor)
    assert [record.event for record in caplog.records] == ["the reactor's loop failed"] * 2


def test_closed_waker_closes_its_descriptor_once(reactor):
    waker = module.Waker()
    descriptor = waker.fileno()
    waker.wakeUp()
    waker.doRead()
    waker.doRead()
    waker.connectionLost(None)
    waker.connectionLost(None)
    with pytest.raises(OSError):
        os.fstat(descriptor)
