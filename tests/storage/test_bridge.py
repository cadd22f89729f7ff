"""Shared results, pauses, and calls between worker threads and the reactor."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock, deferLater
from twisted.internet.threads import deferToThread

from storage.bridge import (
    Completion,
    ReactorCallQueue,
    SharedResult,
    SingleFlightCache,
    WorkerPool,
    after_calls,
    clock_seconds,
    now_ms,
    sleep,
)
from storage.log import StorageFailed
from tests.fakes.broker import Started


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has this clock")
def test_clock_runs_while_the_machine_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = clock_seconds()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_now_is_in_milliseconds_since_1970() -> None:
    before = time.time_ns() // 1_000_000
    now = now_ms()
    assert before <= now <= time.time_ns() // 1_000_000


class ManualReactor:
    """Collects scheduled calls; the test runs them."""

    def __init__(self) -> None:
        self.asked: list[Callable[..., object]] = []

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        self.asked.append(call)


def test_queued_calls_share_one_wake_up() -> None:
    reactor, ran = ManualReactor(), []
    reactor_calls = ReactorCallQueue(reactor)
    for n in range(5):
        reactor_calls.post(lambda n=n: ran.append(n))
    assert len(reactor.asked) == 1
    reactor.asked.pop()()
    assert ran == [0, 1, 2, 3, 4]
    reactor_calls.post(lambda: ran.append(5))
    assert len(reactor.asked) == 1


def test_exception_in_a_call_does_not_stop_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reactor, ran = ManualReactor(), []
    reactor_calls = ReactorCallQueue(reactor)
    reactor_calls.post(lambda: 1 // 0)
    reactor_calls.post(lambda: ran.append(1))
    reactor.asked.pop()()
    assert ran == [1]
    assert "ZeroDivisionError" in caplog.text


def test_call_after_calls_runs_at_the_end_of_a_burst() -> None:
    reactor, ran = ManualReactor(), []
    reactor_calls = ReactorCallQueue(reactor)

    def completes(number: int) -> None:
        ran.append(number)
        assert after_calls(lambda: ran.append(-number))

    for number in (1, 2):
        reactor_calls.post(partial(completes, number))
    reactor.asked.pop()()
    assert ran == [1, 2, -1, -2]


def test_no_call_is_queued_outside_of_a_burst(caplog: pytest.LogCaptureFixture) -> None:
    reactor, found = ManualReactor(), []
    reactor_calls = ReactorCallQueue(reactor)
    reactor_calls.post(lambda: after_calls(lambda: 1 // 0))
    reactor_calls.post(lambda: after_calls(lambda: found.append(after_calls(list))))
    reactor.asked.pop()()
    assert (found, after_calls(list)) == ([False], False)
    assert "ZeroDivisionError" in caplog.text


class Large:
    """A result that can be weakly referenced."""


@ensureDeferred
async def test_idle_worker_keeps_no_reference_to_last_result() -> None:
    readers = WorkerPool(ReactorCallQueue(reactor), threads=1, waiting=10)
    argument = Large()
    result = await readers.run(lambda given=argument: (Large(), given))
    seen = [weakref.ref(one) for one in result]
    del argument, result
    for _ in range(1000):
        if not any(one() for one in seen):
            break
        await deferLater(reactor, 0.01)
    assert [one() for one in seen] == [None, None]
    await readers.stop(lambda: None)


@ensureDeferred
async def test_run_returns_result_or_exception_of_call() -> None:
    readers = WorkerPool(ReactorCallQueue(reactor), threads=2, waiting=10)
    assert (
        await readers.run(lambda: threading.current_thread().name)
        != threading.current_thread().name
    )
    with pytest.raises(ZeroDivisionError):
        await readers.run(lambda: 1 // 0)
    await readers.stop(lambda: None)


@ensureDeferred
async def test_call_beyond_queue_limit_fails_and_names_setting() -> None:
    held = threading.Event()
    readers = WorkerPool(ReactorCallQueue(reactor), threads=1, waiting=2)
    began = threading.Event()

    def hold() -> None:
        began.set()
        held.wait(10)

    first = readers.run(hold)
    began.wait(10)
    waiting = [readers.run(lambda: 1) for _ in range(2)]
    with pytest.raises(StorageFailed, match="reads_waiting"):
        await readers.run(lambda: 1)
    held.set()
    await first
    assert [await one for one in waiting] == [1, 1]
    await readers.stop(lambda: None)


@ensureDeferred
async def test_sequential_calls_share_a_thread_and_concurrent_calls_use_all() -> None:
    readers = WorkerPool(ReactorCallQueue(reactor), threads=4, waiting=10)
    meeting = threading.Barrier(4)

    def meet() -> str:
        meeting.wait(10)
        return threading.current_thread().name

    assert len({await one for one in [readers.run(meet) for _ in range(4)]}) == 4
    names = set()
    for _ in range(20):
        # A thread is idle again once it has reacquired the lock, possibly after the reactor runs.
        while len(readers._idle) < 4:
            await deferLater(reactor, 0)
        names.add(await readers.run(lambda: threading.current_thread().name))
    assert len(names) == 1
    await readers.stop(lambda: None)


@ensureDeferred
async def test_stop_runs_queued_calls_before_ending_threads() -> None:
    held = threading.Event()
    readers = WorkerPool(ReactorCallQueue(reactor), threads=2, waiting=10)
    asked = [readers.run(lambda number=number: held.wait(10) and number) for number in range(6)]
    last = readers.stop(lambda: "last")
    held.set()
    assert [await one for one in asked] == list(range(6))
    assert await last == "last"
    for thread in readers._threads:
        await deferToThread(thread.join, 10)
        assert not thread.is_alive()


@ensureDeferred
async def test_cancelled_queued_call_is_not_started() -> None:
    held, ran = threading.Event(), []
    readers = WorkerPool(ReactorCallQueue(reactor), threads=1, waiting=10)
    first = readers.run(lambda: held.wait(10))
    second = readers.run(lambda: ran.append(2))
    second.cancel()
    with pytest.raises(CancelledError):
        await second
    held.set()
    await first
    await readers.run(lambda: None)
    assert ran == []
    await readers.stop(lambda: None)


def test_creation_that_raises_at_once_can_be_repeated():
    things = SingleFlightCache()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            Started(things.get("a", lambda: 1 // 0)).result  # noqa: B018 - reading it raises
    assert things.wait_for_pending(lambda key: True).called
    assert Started(things.get("a", lambda: succeed("one"))).result == "one"


def test_wait_for_pending_covers_successes_and_failures():
    things, created = SingleFlightCache(), {key: Deferred() for key in ("a1", "a2", "b1")}
    for key, one in created.items():
        Deferred.fromCoroutine(things.get(key, lambda one=one: one)).addErrback(
            lambda failure: failure.trap(ValueError)
        )
    settled = things.wait_for_pending(lambda key: key[0] == "a")
    created["a1"].callback("one")
    assert not settled.called
    created["a2"].errback(ValueError("no"))
    assert [is_made for is_made, _ in settled.result] == [True, False]
    assert things.wait_for_pending(lambda key: key[0] == "a").called


def test_cancelled_wait_for_pending_has_no_effect():
    clock, things, making = Clock(), SingleFlightCache(), Deferred()
    got = Deferred.fromCoroutine(things.get("a", lambda: making))
    settled = things.wait_for_pending(lambda key: True).addTimeout(5, clock)
    clock.advance(6)
    ((is_made, outcome),) = settled.result
    assert (is_made, outcome.check(CancelledError)) == (False, CancelledError)
    making.callback("one")
    assert got.result == "one"


# Completion


@pytest.mark.parametrize("is_early", [False, True])
def test_completion_passes_result_or_failure_to_its_waiter(is_early):
    ended = []
    done, failed = Completion(), Completion()
    failure = KeyError("it")

    def watch():
        for one in (done, failed):
            one.when_ended(ended.append, lambda error: ended.append(["failed", error]))

    if not is_early:
        watch()
    done.callback("it")
    failed.errback(failure)
    if is_early:
        watch()
    assert ended == ["it", ["failed", failure]]


def test_awaited_completion_returns_result_or_raises():
    async def wait(one):
        return await one

    early, late, failed = Completion(), Completion(), Completion()
    early.callback(1)
    runs = [Started(wait(one)) for one in (early, late, failed)]
    late.callback(2)
    failed.errback(failure := KeyError("it"))
    assert [runs[0].result, runs[1].result, runs[2].failure] == [1, 2, failure]


def test_completion_ends_after_cancelled_wait():
    async def wait(one):
        return await one

    for end in (lambda one: one.callback(1), lambda one: one.errback(KeyError())):
        completion = Completion()
        waiting = Started(wait(completion))
        waiting.cancel()
        end(completion)
        assert isinstance(waiting.failure, CancelledError)


@pytest.mark.parametrize("ending", ["callback", "errback"])
def test_error_of_completions_waiter_does_not_reach_its_store(ending, caplog):
    def fail(_):
        raise ValueError("bug")

    completion = Completion()
    completion.when_ended(fail, fail)
    getattr(completion, ending)(KeyError())
    assert caplog.records[0].exc_info[0] is ValueError


# SharedResult


@pytest.mark.parametrize("end", [
    lambda shared: shared.succeed(1),
    lambda shared: shared.fail(StorageFailed("no")),
])  # fmt: skip
def test_exception_in_a_callback_of_a_shared_result_does_not_stop_the_others(
    end: Callable[[SharedResult[int]], None], caplog: pytest.LogCaptureFixture
) -> None:
    shared, ran = SharedResult[int](), []
    shared.when_done(lambda: 1 // 0)
    shared.when_done(lambda: ran.append(1))
    end(shared)
    assert ran == [1]
    assert "ZeroDivisionError" in caplog.text


def test_shared_result_reaches_waiters_in_order():
    shared = SharedResult()
    order = []

    async def work(index):
        order.append((index, await shared))

    for index in range(3):
        Started(work(index))
    shared.succeed("it")
    Started(work(3))
    assert order == [(0, "it"), (1, "it"), (2, "it"), (3, "it")]


def test_shared_failure_reaches_all_waiters():
    shared = SharedResult()
    runs = [Started(shared.wait())]
    failure = KeyError("it")
    shared.fail(failure)
    runs.append(Started(shared.wait()))
    assert [run.failure for run in runs] == [failure, failure]


def test_cancelling_one_waiter_does_not_affect_others():
    shared = SharedResult()
    first, second = Started(shared.wait()), Started(shared.wait())
    first.cancel()
    shared.succeed(1)
    assert isinstance(first.failure, CancelledError)
    assert second.result == 1


def test_result_before_timeout_cancels_timer():
    clock, shared = Clock(), SharedResult[int]()
    waiting = Started(shared.with_timeout(clock, 5))
    shared.succeed(7)
    assert (waiting.result, clock.getDelayedCalls()) == (7, [])


def test_wait_for_result_times_out_for_one_waiter_only():
    clock, shared = Clock(), SharedResult[int]()
    patient, hasty, late = (
        Started(shared.with_timeout(clock, 5)),
        Started(shared.with_timeout(clock, 1)),
        Started(shared.with_timeout(clock, 0)),
    )
    assert isinstance(late.failure, TimeoutError)
    clock.advance(1)
    assert isinstance(hasty.failure, TimeoutError)
    shared.fail(ValueError("no"))
    assert isinstance(patient.failure, ValueError)
    assert clock.getDelayedCalls() == []


def test_cancelled_wait_for_result_cleans_up():
    clock, shared = Clock(), SharedResult[int]()
    waiting = Started(shared.with_timeout(clock, 5))
    waiting.cancel()
    assert isinstance(waiting.failure, CancelledError)
    shared.succeed(1)
    assert clock.getDelayedCalls() == []


def test_sleep_ends_after_its_time_unless_cancelled():
    clock = Clock()
    over, cancelled = sleep(clock, 2), sleep(clock, 2)
    cancelled.addErrback(lambda failure: failure.trap(CancelledError))
    cancelled.cancel()
    clock.advance(1)
    assert not over.called
    clock.advance(1)
    assert over.called
    assert clock.getDelayedCalls() == []
