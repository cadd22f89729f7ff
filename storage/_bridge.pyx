# cython: language_level=3
"""The classes and functions of the same names in `bridge.py`, compiled."""

import logging
import os
from collections import deque
from functools import partial

from libc.errno cimport errno
from libc.stdint cimport int64_t

from twisted.internet.defer import Deferred

cdef extern from * nogil:
    """
    #include <time.h>
    #ifndef CLOCK_BOOTTIME
    #define CLOCK_BOOTTIME CLOCK_MONOTONIC
    #endif
    """
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_REALTIME
    int CLOCK_BOOTTIME
    int clock_gettime(int clock, timespec* now)

log = logging.getLogger("storage.bridge")

#: Version of the signatures; `bridge.py` expects the same number.
INTERFACE = 3


def clock_seconds():
    cdef timespec now
    if clock_gettime(CLOCK_BOOTTIME, &now) != 0:
        raise OSError(errno, os.strerror(errno))
    return <double>now.tv_sec + <double>now.tv_nsec / 1e9


def now_ms():
    cdef timespec now
    if clock_gettime(CLOCK_REALTIME, &now) != 0:
        raise OSError(errno, os.strerror(errno))
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef class Waiter:
    """What waits for a Completion in compiled code: two calls without objects for them."""

    cpdef stored(self, result):
        """The call has ended."""

    cpdef refused(self, failure):
        """The call has failed."""


cdef class Completion:
    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def when_ended(self, done, failed):
        self._done, self._failed = done, failed
        if not self._has_ended:
            return
        if self._failure is None:
            self.succeed(self._result)
        else:
            self.errback(self._failure)

    cdef watch(self, Waiter waiter):
        """As `when_ended`."""
        if self._has_ended:
            self.when_ended(waiter.stored, waiter.refused)
        else:
            self._waiter = waiter

    def callback(self, result):
        self.succeed(result)

    cdef succeed(self, result):
        self._has_ended = True
        if self._done is None and self._waiter is None:
            self._result = result
            return
        try:
            if self._waiter is not None:
                self._waiter.stored(result)
            else:
                self._done(result)
        except Exception:
            log.exception("bug: the callback of a completed call failed")

    def errback(self, failure):
        self._has_ended = True
        if self._done is None and self._waiter is None:
            self._failure = failure
            return
        try:
            if self._waiter is not None:
                self._waiter.refused(failure)
            else:
                self._failed(failure)
        except Exception:
            log.exception("bug: the callback of a failed call failed")

    def __await__(self):
        waiting = Deferred()
        self.when_ended(
            partial(unless_cancelled, waiting, waiting.callback),
            partial(unless_cancelled, waiting, waiting.errback),
        )
        return waiting.__await__()


def unless_cancelled(waiting, end, outcome):
    if not waiting.called:
        end(outcome)


cdef list gathered = None


def after_calls(call):
    if gathered is None:
        return False
    gathered.append(call)
    return True


cdef class ReactorCallQueue:
    def __init__(self, reactor):
        self._reactor = reactor
        self._calls = deque()

    def post(self, call):
        self._calls.append(call)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._reactor.callFromThread(self._run)

    cpdef run(self, call):
        self._calls.append(call)
        self._run()

    def _run(self):
        global gathered
        cdef list outer, after
        self._is_scheduled = False
        outer, gathered = gathered, []
        try:
            while self._calls:
                run_or_log(self._calls.popleft())
        finally:
            after, gathered = gathered, outer
        for call in after:
            run_or_log(call)


cdef run_or_log(call):
    try:
        call()
    except Exception:
        log.exception("bug: a callback from a storage thread failed")
