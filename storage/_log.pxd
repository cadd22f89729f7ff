# cython: language_level=3
from cpython.object cimport PyObject
from libc.stdint cimport int64_t


cdef class RequestBytes:
    cdef Py_buffer view
    cdef Py_ssize_t payload_bytes, cached


cdef class Entry:
    cdef readonly int64_t base_offset, last_offset, max_timestamp
    cdef object _payload
    cdef RequestBytes request
    cdef const unsigned char* at
    cdef Py_ssize_t size


cdef class OpenLog:
    cdef public int64_t start_offset, end_offset, next_offset, leader_epoch

    cdef queue_entry(self, Entry entry)


cdef class LogStatusState:
    cdef public object end_reason
    cdef public list watchers


cdef class CachedTailState:
    cdef public list entries
    cdef public Py_ssize_t begin, cleared


cdef bint tail_has(CachedTailState tail, int64_t offset) except -1
cdef list tail_read(CachedTailState tail, int64_t offset, int64_t max_bytes)


cdef struct Arrival:
    PyObject* tail
    PyObject* request
    int64_t cost


cdef class TailCache:
    cdef readonly int64_t _limit, _held
    cdef Arrival* arrivals
    cdef size_t first, count, room

    cpdef add(self, CachedTailState log_tail, Entry entry)
    cpdef evict(self)
    cdef evict_one(self)
    cdef forget_oldest(self)
    cdef grow(self)


cdef Entry new_entry(int64_t base_offset, int64_t last_offset, int64_t max_timestamp, payload)
cdef RequestBytes request_bytes(buffer, Py_ssize_t payload_bytes)
cdef Entry entry_in_request(
    int64_t base_offset,
    int64_t last_offset,
    int64_t max_timestamp,
    RequestBytes request,
    Py_ssize_t at,
    Py_ssize_t size,
)
cdef payload_of(Entry entry)
cdef sent_of(Entry entry)
cdef Py_ssize_t payload_size(Entry entry) except -1
