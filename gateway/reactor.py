"""Twisted's epoll reactor with a shorter main loop, for Linux.

A small request wakes the reactor twice: by its bytes and by the end of its append. Twisted's loop
takes about 230 bytecodes for each wake-up. This loop takes about 70, or none if it is compiled
(`_reactor.pyx`). It handles readable sockets and calls from threads; everything else is left to
Twisted's methods.

It uses attributes of Twisted's reactor that are not public. `install` does nothing if one of them
is missing; then Twisted's own loop runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from os import EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write
from select import EPOLLIN
from typing import TYPE_CHECKING, Any

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor

from gateway import logs

_log = logs.get_logger(__name__)

#: Attributes of Twisted's reactor that the loop uses.
USED = (
    "_cancellations",
    "_disconnectSelectable",
    "_doReadOrWrite",
    "_insertNewDelayedCalls",
    "_justStopped",
    "_newTimedCalls",
    "_pendingTimedCalls",
    "_poller",
    "_selectables",
    "_started",
    "_wakerFactory",
    "threadCallQueue",
    "waker",
)

#: Cancelled timers above which Twisted's `runUntilCurrent` checks whether to remove them.
MAX_CANCELLED_TIMERS = 50

#: Longest wait for events. Twisted's `timeout` has the same limit, and is called for longer ones.
MAX_WAIT_SECONDS = 2_147_483

_INTERFACE = 2
"""Expected INTERFACE of the compiled module; incremented when its function changes."""

ThreadCall = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]


class ReactorState:
    """The compiled class has the attributes that each turn uses as fields."""

    _is_waiting: bool


#: The module whose function is used: the compiled one, or this one.
loop: Any = sys.modules[__name__]

if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import gateway._reactor as _reactor
    except ImportError:
        pass
    else:
        if _reactor.INTERFACE == _INTERFACE:
            loop = _reactor
            if not TYPE_CHECKING:
                ReactorState = _reactor.ReactorState


def install() -> None:
    """Make this the reactor of the process, which must not have one yet."""
    reactor: Any = GatewayReactor()
    # Fields of the compiled class that Twisted does not set are None.
    missing = [name for name in USED if getattr(reactor, name, None) is None]
    if missing:
        _log.warning(
            "this version of Twisted needs its own, slower loop", missing=",".join(missing)
        )
    else:
        installReactor(reactor)


class Waker:
    """An eventfd by which other threads end the loop's wait. Reading it takes one system call."""

    disconnected = False

    def __init__(self) -> None:
        self._descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return "waker"

    def wakeUp(self) -> None:
        eventfd_write(self._descriptor, 1)

    def doRead(self) -> None:
        try:
            eventfd_read(self._descriptor)
        except BlockingIOError:
            return

    def connectionLost(self, reason: object) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)


class GatewayReactor(ReactorState, EPollReactor):
    """The reactor of a gateway.

    `_is_waiting` is whether `mainLoop` waits for events, or is about to. Other threads need to wake
    it only then. `iterate` is not supported.
    """

    def __init__(self) -> None:
        self._is_waiting = True
        super().__init__()  # type: ignore[no-untyped-call]  # Twisted's constructor

    def _wakerFactory(self) -> Any:
        return Waker()

    def wakeUp(self) -> None:
        """End the wait for events, from any thread. A call that was queued before is then run."""
        if self._is_waiting and self.waker:
            self._is_waiting = False
            self.waker.wakeUp()

    def mainLoop(self) -> None:
        while self._started:
            try:
                loop.run_turns(self, _run_calls, _log.bug, MAX_WAIT_SECONDS, MAX_CANCELLED_TIMERS)
            except BaseException as bug:  # noqa: BLE001 - as in Twisted's loop
                _log.bug("the reactor's loop failed", bug)


def _run_calls(calls: list[ThreadCall]) -> None:
    """Run and remove the calls in the queue. Those that are added meanwhile stay in it."""
    count = len(calls)
    for call, arguments, named in calls[:count]:
        try:
            call(*arguments, **named)
        except BaseException as bug:  # noqa: BLE001 - as in Twisted's reactor
            _log.bug("a call from a thread failed", bug)
    del calls[:count]


def run_turns(
    reactor: Any,
    run_calls: Callable[[list[ThreadCall]], None],
    log_bug: Callable[[str, BaseException], None],
    longest_wait: float,
    most_cancelled: int,
) -> None:
    """Run calls from threads, timers and events until the reactor stops."""
    poll, selectables, seconds = reactor._poller.poll, reactor._selectables, reactor.seconds
    reactor._is_waiting = False
    calls: list[ThreadCall] = reactor.threadCallQueue
    while reactor._started:
        if calls:
            run_calls(calls)
        if reactor._newTimedCalls:
            reactor._insertNewDelayedCalls()
        timers = reactor._pendingTimedCalls
        wait = timers[0].time - seconds() if timers else -1.0
        if (
            reactor._justStopped
            or (timers and not 0 < wait < longest_wait)
            or reactor._cancellations > most_cancelled
        ):
            reactor.runUntilCurrent()
            longest = reactor.timeout()
            wait = -1.0 if longest is None else longest
        reactor._is_waiting = True
        # A thread that added a call before that has not woken the loop.
        events = poll(0 if calls or not reactor._started else wait, len(selectables))
        reactor._is_waiting = False
        for descriptor, event in events:
            selectable = selectables.get(descriptor)
            if selectable is None:
                # Removed by an earlier event of this turn.
                continue
            try:
                if event != EPOLLIN:
                    reactor._doReadOrWrite(selectable, descriptor, event)
                    continue
                try:
                    reason = selectable.doRead()
                except BaseException as bug:  # noqa: BLE001 - ends this socket only
                    log_bug("reading a socket failed", bug)
                    reason = bug
                if reason:
                    reactor._disconnectSelectable(selectable, reason, True)
            except BaseException as bug:  # noqa: BLE001 - the other sockets are served
                log_bug("the end of a connection failed", bug)
        # No closed connection is kept while the loop waits.
        events = selectable = reason = None
