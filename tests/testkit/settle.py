"""Waiting for the reactor outside coroutines: in fixtures and Hypothesis rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import greenlet
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred

T = TypeVar("T")


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
