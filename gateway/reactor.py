"""Twisted's epoll reactor with a shorter main loop, for Linux.

A small request wakes the reactor twice: by its bytes and by the end of its append. Twisted's loop
takes about 230 bytecodes for each wake-up, together a third of what the interpreter does for such a
request. This loop takes about 70. It handles readable sockets and calls from threads; everything
else is left to Twisted's methods.

It uses attributes of Twisted's reactor that are not public. `install` does nothing if one of them
is missing; then Twisted's own loop runs.
"""

from __future__ import annotations

from collections.abc import Callable
from os import EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write
from select import EPOLLIN
from typing import Any

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

ThreadCall = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]


def install() -> None:
    """Make this the reactor of the process, which must not have one yet."""
    reactor: Any = GatewayReactor()  # type: ignore[no-untyped-call]  # Twisted's constructor
    missing = [name for name in USED if not hasattr(reactor, name)]
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


class GatewayReactor(EPollReactor):
    """The reactor of a gateway."""

    #: Whether `mainLoop` waits for events, or is about to. Other threads need to wake it only then.
    #: `iterate` is not supported.
    _is_waiting = True

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
                self._run_turns()
            except BaseException as bug:  # noqa: BLE001 - as in Twisted's loop
                _log.bug("the reactor's loop failed", bug)

    def _run_turns(self) -> None:
        """Run calls from threads, timers and events until the reactor stops."""
        poll, selectables, seconds = self._poller.poll, self._selectables, self.seconds
        twisted: Any = self
        self._is_waiting = False
        calls: list[ThreadCall] = self.threadCallQueue
        while self._started:
            if calls:
                _run_calls(calls)
            if self._newTimedCalls:
                self._insertNewDelayedCalls()
            timers = self._pendingTimedCalls
            wait = timers[0].time - seconds() if timers else -1.0
            if (
                self._justStopped
                or (timers and not 0 < wait < MAX_WAIT_SECONDS)
                or self._cancellations > MAX_CANCELLED_TIMERS
            ):
                self.runUntilCurrent()
                longest = self.timeout()
                wait = -1.0 if longest is None else longest
            self._is_waiting = True
            # A thread that added a call before that has not woken the loop.
            events = poll(0 if calls or not self._started else wait, len(selectables))
            self._is_waiting = False
            for descriptor, event in events:
                selectable = selectables.get(descriptor)
                if selectable is None:
                    # Removed by an earlier event of this turn.
                    continue
                try:
                    if event != EPOLLIN:
                        twisted._doReadOrWrite(selectable, descriptor, event)
                        continue
                    try:
                        reason = selectable.doRead()
                    except BaseException as bug:  # noqa: BLE001 - ends this socket only
                        _log.bug("reading a socket failed", bug)
                        reason = bug
                    if reason:
                        twisted._disconnectSelectable(selectable, reason, True)
                except BaseException as bug:  # noqa: BLE001 - the other sockets are served
                    _log.bug("the end of a connection failed", bug)


def _run_calls(calls: list[ThreadCall]) -> None:
    """Run and remove the calls in the queue. Those that are added meanwhile stay in it."""
    count = len(calls)
    for call, arguments, named in calls[:count]:
        try:
            call(*arguments, **named)
        except BaseException as bug:  # noqa: BLE001 - as in Twisted's reactor
            _log.bug("a call from a thread failed", bug)
    del calls[:count]
