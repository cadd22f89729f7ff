# cython: language_level=3
"""`GatewayReactor._run_turns`, compiled: the same loop, without bytecode for a turn.

The method in `reactor.py` is the reference.
"""

from os import strerror

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.math cimport ceil
from libc.stdint cimport uint32_t

cdef extern from "<sys/epoll.h>" nogil:
    int EPOLLIN
    ctypedef union epoll_data:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_wait(int descriptor, epoll_event* events, int most, int milliseconds)

cdef enum:
    # Events that one wait returns; further ones are returned by the next.
    MOST_EVENTS = 256

#: Version of the signatures; `reactor.py` expects the same number.
INTERFACE = 2


cdef class ReactorState:
    """Attributes of Twisted's reactor and of `GatewayReactor` that each turn uses, as fields."""

    cdef public object _newTimedCalls, _pendingTimedCalls, _cancellations, _justStopped, _started
    cdef public object threadCallQueue
    cdef public bint _is_waiting


def run_turns(
    ReactorState reactor not None,
    run_calls,
    log_bug,
    double longest_wait,
    Py_ssize_t most_cancelled,
):
    cdef epoll_event[MOST_EVENTS] events
    cdef int epoll = reactor._poller.fileno(), number, count, descriptor, milliseconds, failure
    cdef double wait
    cdef bint has_timers
    cdef dict selectables = reactor._selectables
    cdef list calls = reactor.threadCallQueue, timers
    seconds = reactor.seconds
    reactor._is_waiting = False
    while reactor._started:
        if calls:
            run_calls(calls)
        if reactor._newTimedCalls:
            reactor._insertNewDelayedCalls()
        timers = reactor._pendingTimedCalls
        has_timers = bool(timers)
        wait = <double>timers[0].time - <double>seconds() if has_timers else -1.0
        if (
            (has_timers and not 0 < wait < longest_wait)
            or reactor._justStopped
            or <Py_ssize_t>reactor._cancellations > most_cancelled
        ):
            reactor.runUntilCurrent()
            longest = reactor.timeout()
            wait = -1.0 if longest is None else longest
        reactor._is_waiting = True
        # A thread that added a call before that has not woken the loop.
        if calls or not reactor._started:
            wait = 0.0
        # As `select.epoll.poll`: a timer that is due in less than a millisecond is not early.
        milliseconds = -1 if wait < 0 else <int>ceil(1000.0 * wait)
        with nogil:
            count = epoll_wait(epoll, events, MOST_EVENTS, milliseconds)
            failure = errno
        reactor._is_waiting = False
        # Signals are handled here, because no bytecode runs in between.
        PyErr_CheckSignals()
        if count < 0 and failure != EINTR:
            raise OSError(failure, strerror(failure))
        for number in range(count):
            descriptor = events[number].data.fd
            selectable = selectables.get(descriptor)
            if selectable is None:
                # Removed by an earlier event of this turn.
                continue
            try:
                if events[number].events != <uint32_t>EPOLLIN:
                    reactor._doReadOrWrite(selectable, descriptor, events[number].events)
                    continue
                try:
                    reason = selectable.doRead()
                except BaseException as bug:
                    log_bug("reading a socket failed", bug)
                    reason = bug
                if reason:
                    reactor._disconnectSelectable(selectable, reason, True)
            except BaseException as bug:
                log_bug("the end of a connection failed", bug)
        selectable = reason = None
