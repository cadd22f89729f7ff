# cython: language_level=3
"""The class of the same name in `log.py`, with C fields."""

cimport cython
from libc.stdint cimport int64_t


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Entry:
    def __init__(
        self, int64_t base_offset, int64_t last_offset, int64_t max_timestamp, payload
    ):
        self.base_offset, self.last_offset = base_offset, last_offset
        self.max_timestamp, self.payload = max_timestamp, payload

    def __eq__(self, other):
        return type(other) is Entry and self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash(self.__reduce__())

    def __reduce__(self):
        return Entry, (self.base_offset, self.last_offset, self.max_timestamp, self.payload)

    def __repr__(self):
        return f"Entry({self.base_offset}-{self.last_offset}, {len(self.payload)} bytes)"


cdef Entry new_entry(int64_t base_offset, int64_t last_offset, int64_t max_timestamp, payload):
    cdef Entry entry = Entry.__new__(Entry)
    entry.base_offset, entry.last_offset = base_offset, last_offset
    entry.max_timestamp, entry.payload = max_timestamp, payload
    return entry
