"""Coroutines on the reactor: a failure that comes later reaches the one who awaits, as itself."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred, fail

from gateway.waiting import start


def run(work):
    """What came of `work` so far: the results, the failures, and how to cancel it."""
    done, failed = [], []
    return done, failed, start(work, done.append, failed.append)


async def awaiting(deferred):
    return await deferred


def test_a_failure_that_comes_later_is_raised_where_it_is_awaited():
    deferred = Deferred()
    done, failed, _ = run(awaiting(deferred))
    deferred.errback(ZeroDivisionError("by nought"))
    assert done == []
    assert [type(error) for error in failed] == [ZeroDivisionError]


def test_a_failure_that_is_there_already_is_raised_at_once():
    done, failed, cancel = run(awaiting(fail(ZeroDivisionError())))
    assert (done, cancel) == ([], None)
    assert [type(error) for error in failed] == [ZeroDivisionError]


def test_a_failure_can_be_caught_and_the_work_goes_on():
    first, second = Deferred(), Deferred()

    async def work():
        try:
            await first
        except ZeroDivisionError:
            return await second

    done, failed, _ = run(work())
    first.errback(ZeroDivisionError())
    second.callback("went on")
    assert (done, failed) == (["went on"], [])


def test_a_result_that_comes_later_is_returned():
    deferred = Deferred()
    done, failed, _ = run(awaiting(deferred))
    deferred.callback(3)
    assert (done, failed) == ([3], [])


def test_cancelling_raises_inside_the_work():
    done, failed, cancel = run(awaiting(Deferred()))
    cancel()
    assert done == []
    assert [type(error) for error in failed] == [CancelledError]


def test_cancelled_work_may_clean_up_first():
    cleaned = []

    async def work():
        try:
            await Deferred()
        finally:
            cleaned.append(True)

    _, failed, cancel = run(work())
    cancel()
    assert cleaned == [True]
    assert len(failed) == 1


@pytest.mark.parametrize("error", [KeyError, CancelledError])
def test_work_that_fails_without_waiting_fails_at_once(error):
    async def work():
        raise error

    done, failed, cancel = run(work())
    assert (done, cancel) == ([], None)
    assert [type(each) for each in failed] == [error]
