# Reads of a log from memory, with all state in C fields: what each Fetch calls.
#
# The methods of the Python class, whose names end with `_any` or which are the same, are the
# reference. They take over unless it is the common case.

from functools import partial

from storage._log cimport tail_has, tail_read

from storage.log import EntryRun

cdef int64_t most_at_once, most_gaps
cdef Py_ssize_t most_rows


cdef struct Run:
    # What `select_run` returns.
    Py_ssize_t first
    Py_ssize_t stop
    uint64_t segment
    uint64_t base_offset
    uint64_t last_offset
    int64_t size


def limit_reads(int64_t at_once, int64_t gaps, Py_ssize_t rows):
    """Set MOST_AT_ONCE and MOST_GAPS of `log.py`, and MOST_ROWS of `queries.py`."""
    global most_at_once, most_gaps, most_rows
    most_at_once, most_gaps, most_rows = at_once, gaps, rows


def read_log_resident(LogState log not None, int64_t offset, int64_t max_bytes):
    """`LmdbLog.read_resident`."""
    if log.status.end_reason is None and log.start_offset <= offset < log.end_offset:
        found = tail_read(log._cached_tail, offset, max_bytes)
        if found is not None:
            return found
    return log.read_resident_any(offset, max_bytes)


def read_log_run(
    LogState log not None, int64_t offset, int64_t max_bytes, *, bint at_least_one=True
):
    """`LmdbLog.read_run`."""
    if log.status.end_reason is not None or not log.start_offset <= offset <= log.end_offset:
        return log.read_run_any(offset, max_bytes, at_least_one=at_least_one)
    if log._ahead is None or tail_has(log._cached_tail, offset):
        return None
    return read_ahead(log, log._ahead, offset, max_bytes, at_least_one)


cdef read_ahead(LogState log, ahead, int64_t offset, int64_t max_bytes, bint at_least_one):
    """As `LmdbLog._read_ahead`."""
    cdef Run run
    cdef bytes rows = ahead[1]
    if max_bytes > most_at_once or offset < <int64_t>ahead[0] or offset == log._not_cached:
        return None
    if not find_run(
        rows, offset, log.end_offset, max_bytes, most_at_once, most_gaps, most_rows, &run
    ):
        return None
    if run.size > max_bytes and not at_least_one:
        return EntryRun(offset, offset - 1, 0, b"", list)
    payloads = log._store.read_cached(run.segment, rows, run.first, run.stop)
    if payloads is None:
        if log._store.has_segment(run.segment):
            log._not_cached = offset
        else:
            # The cleaner has moved the entries.
            log._drop_ahead()
        return None
    log._read_from, log._read_to = run.base_offset, run.last_offset + 1
    entries = partial(entries_of, rows, run.first, run.stop, payloads)
    return EntryRun(run.base_offset, run.last_offset, run.stop - run.first, payloads, entries)
