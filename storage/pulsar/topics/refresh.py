"""Periodic refresh of state that other processes may change; one run at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from storage.bridge import DelayedCall, Reactor
from storage.log import StorageError

log = logging.getLogger(__name__)


class Refresher:
    """Calls `look` every `seconds` after the previous call ended; `what` names its subject in the
    log.

    Only the first of consecutive failures is logged.
    """

    def __init__(
        self,
        look: Callable[[], Coroutine[Any, Any, None]],
        what: str,
        seconds: float,
        reactor: Reactor,
    ) -> None:
        self._look = look
        self._what = what
        self._seconds = seconds
        self._reactor = reactor
        self._timer: DelayedCall | None = None
        self._next = 0.0
        self._running: Deferred[None] | None = None
        self._is_failing = False

    def start(self) -> None:
        self._schedule(self._seconds)

    def hasten(self, seconds: float) -> None:
        """Make the next call in `seconds` at the latest. No effect while one is running."""
        if self._timer is not None and self._next > self._reactor.seconds() + seconds:
            self._timer.cancel()
            self._schedule(seconds)

    def _schedule(self, seconds: float) -> None:
        self._next = self._reactor.seconds() + seconds
        self._timer = self._reactor.callLater(seconds, self._run)

    def stop(self) -> None:
        """Stop at once; a running call is cancelled."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    def _run(self) -> None:
        self._timer = None
        running = self._running = Deferred.fromCoroutine(self._once())

        def again(_: object) -> None:
            if self._running is running:
                self._running = None
                self.start()

        running.addBoth(again)

    async def _once(self) -> None:
        try:
            await self._look()
        except CancelledError:
            return
        except StorageError as failure:
            if not self._is_failing:
                self._is_failing = True
                log.error(
                    "%s cannot be refreshed, using the last known state: %s",
                    self._what,
                    failure,
                )
        except Exception:
            log.exception("bug: refreshing %s failed, retrying", self._what)
        else:
            if self._is_failing:
                self._is_failing = False
                log.warning("%s can be refreshed again", self._what)
