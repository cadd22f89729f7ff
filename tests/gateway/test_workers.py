"""Worker threads: fairness, dropped calls, cancellation and closing."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from twisted.internet.defer import CancelledError

from gateway.workers import FairWorkers, TooManyWaiting
from tests.fakes.broker import Started


class ManualReactor:
    """Runs calls posted by threads when `turns` is called."""

    def __init__(self):
        self.calls = deque()
        self.posted = threading.Semaphore(0)

    def callFromThread(self, call, *arguments):
        self.calls.append((call, arguments))
        self.posted.release()

    def callLater(self, delay, call, *arguments):
        raise NotImplementedError

    def turns(self, until):
        while not until():
            assert self.posted.acquire(timeout=60)
            call, arguments = self.calls.popleft()
            call(*arguments)


@pytest.fixture
def reactor():
    return ManualReactor()


class Gate:
    """A call that runs until the gate is opened."""

    def __init__(self):
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self):
        self.entered.set()
        assert self.opened.wait(60)


def kept(deferred):
    """The outcome, once there is one."""
    outcome = []
    deferred.addBoth(outcome.append)
    return outcome


def held(workers):
    """Occupy the only thread until the gate is opened."""
    gate = Gate()
    outcome = kept(workers.run(gate))
    assert gate.entered.wait(60)
    return gate, outcome


def test_owners_take_turns(reactor):
    workers, order = FairWorkers(reactor, 1, "test"), []
    gate, _ = held(workers)
    works = [
        kept(workers.run_for(owner, order.append, owner + str(n)))
        for owner in "abc"
        for n in range(3 if owner == "a" else 1)
    ]
    gate.opened.set()
    reactor.turns(lambda: all(works))
    assert order == ["a0", "b0", "c0", "a1", "a2"]


def test_cancelled_waiting_call_is_not_made(reactor):
    workers, order = FairWorkers(reactor, 1, "test"), []
    gate, _ = held(workers)
    first, second = workers.run_for("a", order.append, 1), workers.run_for("a", order.append, 2)
    outcome, last = kept(first), kept(second)
    first.cancel()
    assert outcome[0].check(CancelledError)
    gate.opened.set()
    reactor.turns(lambda: last)
    assert order == [2]


def test_cancelled_running_call_keeps_its_thread_until_it_ends(reactor):
    workers = FairWorkers(reactor, 1, "test")
    gate = Gate()
    running = workers.run(gate)
    outcome = kept(running)
    assert gate.entered.wait(60)
    running.cancel()
    assert outcome[0].check(CancelledError)
    after = kept(workers.run(lambda: "after"))
    assert not after
    gate.opened.set()
    reactor.turns(lambda: after)
    assert after == ["after"]


def test_full_queue_drops_newest_call_of_owner_with_most(reactor):
    workers = FairWorkers(reactor, 1, "test", max_waiting=3)
    gate, _ = held(workers)
    many = [kept(workers.run_for("many", int, n)) for n in range(3)]
    one = kept(workers.run_for("one", str, "served"))
    assert many[2][0].check(TooManyWaiting)
    excess = kept(workers.run_for("many", int, 4))
    assert excess[0].check(TooManyWaiting)
    gate.opened.set()
    reactor.turns(lambda: one and many[1])
    assert (many[0], one, many[1]) == ([0], ["served"], [1])


def test_failure_is_raised_in_caller(reactor):
    workers = FairWorkers(reactor, 1, "test")
    outcome = kept(workers.run(int, "x"))
    reactor.turns(lambda: outcome)
    assert outcome[0].check(ValueError)
    after = kept(workers.run(int, "1"))
    reactor.turns(lambda: after)
    assert after == [1]


def test_closing_drops_waiting_calls_and_waits_for_running_ones(reactor):
    workers, order = FairWorkers(reactor, 1, "test"), []
    gate, _ = held(workers)
    workers.run_for("a", order.append, 1)
    closing = Started(workers.close())
    assert not closing.is_done
    gate.opened.set()
    reactor.turns(lambda: closing.is_done)
    workers.run(order.append, 2)
    assert order == []
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("test-"))
