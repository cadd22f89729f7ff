"""Waiting for the reactor: for a condition, and outside coroutines (fixtures, Hypothesis rules)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import greenlet
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

T = TypeVar("T")

WAIT_SECONDS = 60.0
"""Limit of a wait that takes less than a second on an idle machine."""

POLL_SECONDS = 0.005


async def until(is_so: Callable[[], object], describe: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition, which may return an awaitable.

    After `WAIT_SECONDS` raises AssertionError with a description.
    """
    end = reactor.seconds() + WAIT_SECONDS
    while True:
        result = is_so()
        if await result if isinstance(result, Awaitable) else result:
            return
        if reactor.seconds() > end:
            raise AssertionError(f"did not happen within {WAIT_SECONDS} s. {describe()}")
        await deferLater(reactor, POLL_SECONDS)


def settle(awaitable: Awaitable[T]) -> T:
    """Run the reactor until `awaitable` fires. Within a test, call it only below
    `in_own_greenlet`.
    """

    async def wait() -> T:
        return await awaitable

    result: Any = pytest_twisted.blockon(Deferred.fromCoroutine(wait()))
    return result


async def in_own_greenlet(call: Callable[[], None]) -> None:
    """Run `call` in a greenlet beside the reactor's, so that it may call `settle`."""
    finished: Deferred[None] = Deferred()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            reactor.callLater(0, finished.errback, error)
        else:
            reactor.callLater(0, finished.callback, None)

    greenlet.greenlet(run).switch()
    await finished
