# cython: language_level=3
from libc.stdint cimport int64_t


cdef class Entry:
    cdef readonly int64_t base_offset, last_offset, max_timestamp
    cdef readonly object payload


cdef Entry new_entry(int64_t base_offset, int64_t last_offset, int64_t max_timestamp, payload)
