"""Waiting for the reactor in code that is not a coroutine: fixtures and Hypothesis's rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import greenlet
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred

T = TypeVar("T")


def settle(awaitable: Awaitable[T]) -> T:
    """Run the reactor until it fires. Within a test only below `in_own_greenlet`."""

    async def wait() -> T:
        return await awaitable

    result: Any = pytest_twisted.blockon(Deferred.fromCoroutine(wait()))
    return result


async def in_own_greenlet(call: Callable[[], None]) -> None:
    """Run `call` beside the reactor's greenlet, so that it may `settle`."""
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
