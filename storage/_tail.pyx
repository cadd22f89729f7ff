# cython: language_level=3
"""`TailCache.add` of `tail.py`, for other compiled modules."""

from libc.stdint cimport int64_t

from storage._log cimport Entry, new_entry

from storage.tail import ENTRY_OVERHEAD, EVICTED

cdef int64_t OVERHEAD = ENTRY_OVERHEAD


cdef int add_to_tail(tail, cached, Entry entry) except -1:
    cdef int64_t held, limit, cost
    payload = entry.payload
    cost = len(payload)
    if isinstance(payload, memoryview):
        buffer = payload.obj
        if type(buffer) in (bytes, bytearray) and cost * 8 >= len(buffer) * 7:
            cost = len(buffer)
        else:
            entry = new_entry(
                entry.base_offset, entry.last_offset, entry.max_timestamp, bytes(payload)
            )
    cost += OVERHEAD
    (<list?>cached.entries).append(entry)
    tail._arrivals.append((cached, cost))
    held, limit = tail._held + cost, tail._limit
    while held > limit:
        oldest, cost = tail._arrivals.popleft()
        evict_oldest(oldest)
        held -= <int64_t>cost
    tail._held = held
    return 0


cdef int evict_oldest(cached) except -1:
    """As `CachedTail.evict_oldest`."""
    cdef Py_ssize_t begin
    cdef list entries
    if cached.cleared:
        cached.cleared -= 1
        return 0
    entries, begin = cached.entries, cached.begin
    entries[begin] = EVICTED
    begin += 1
    if begin * 2 > len(entries):
        del entries[:begin]
        begin = 0
    cached.begin = begin
    return 0
