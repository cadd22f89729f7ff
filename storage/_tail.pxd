# cython: language_level=3
from storage._log cimport Entry


cdef int add_to_tail(tail, cached, Entry entry) except -1
