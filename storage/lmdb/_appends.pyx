# cython: language_level=3
"""The reactor's part of an append of one entry, compiled: queuing it and completing a burst.

Each function returns None or False, and has changed nothing, unless it is the common case. Then
`LmdbLog.append` and `LmdbStore._deliver`, which handle all cases, take over.
"""

import logging

from libc.stdint cimport int64_t

from storage.log import Entry
from storage.tail import ENTRY_OVERHEAD

logger = logging.getLogger(__name__)

#: Version of the functions' signatures; `write_burst.py` expects the same number.
INTERFACE = 1


def queue_append(log, tuple entries, kind):
    """Queue an append as `LmdbLog.append` and return it, of class `kind`, or None."""
    cdef int64_t first, last, size, queued
    if len(entries) != 1 or log.status.end_reason is not None or log._failure:
        return None
    entry = entries[0]
    first, last = entry.base_offset, entry.last_offset
    if first != <int64_t>log.next_offset or last < first:
        return None
    store = log._store
    writer = store._writer
    if writer is None or not store._is_open:
        return None
    size = len(entry.payload)
    queued = store._queued_operations
    if queued:
        settings = store.settings
        if (
            <int64_t>store._queued_bytes + size > <int64_t>settings.queue_bytes
            or queued >= <int64_t>settings.queue_operations
        ):
            return None
    append = kind.__new__(kind)
    append._done, append._has_ended = None, False
    append.log_id, append.entries, append.size, append.log = log._log_id, entries, size, log
    store._queued_bytes += size
    store._queued_operations = queued + 1
    writer.submit(append)
    log.next_offset = last + 1
    log._in_flight += 1
    return append


def complete_appends(list outcomes, store, kind):
    """Deliver the outcomes of a burst as `LmdbStore._deliver` and return True, or return False."""
    cdef tuple outcome
    cdef int64_t size = 0
    for outcome in outcomes:
        append = outcome[0]
        if type(append) is not kind or outcome[2] is not None or append.log._failure:
            return False
        size += append.size
    store._queued_bytes -= size
    store._queued_operations -= len(outcomes)
    tail, changed = store.tail, <dict?>store._changed_logs
    for outcome in outcomes:
        append = outcome[0]
        log, entries = append.log, append.entries
        log._in_flight -= 1
        log.end_offset = entries[-1].last_offset + 1
        log.size += append.size
        for entry in entries:
            add_to_tail(tail, log._cached_tail, entry)
        changed[log.status] = None
    store.notify_changed()
    for outcome in outcomes:
        append = outcome[0]
        append._has_ended = True
        done = append._done
        if done is None:
            append._result = append._failure = None
            continue
        try:
            done(None)
        except Exception:
            logger.exception("bug: the callback of a completed call failed")
    return True


cdef add_to_tail(tail, cached, entry):
    """As `TailCache.add`."""
    cdef int64_t held
    payload = entry.payload
    if isinstance(payload, memoryview):
        entry = Entry(entry.base_offset, entry.last_offset, entry.max_timestamp, bytes(payload))
    cost = len(payload) + ENTRY_OVERHEAD
    (<list?>cached.entries).append(entry)
    tail._arrivals.append((cached, cost))
    held = tail._held + cost
    tail._held = held
    if held > <int64_t>tail._limit:
        tail.evict()
