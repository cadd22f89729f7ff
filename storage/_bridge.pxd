# cython: language_level=3
cdef class Completion:
    cdef object _done, _failed, _failure, _result
    cdef bint _has_ended

    cdef succeed(self, result)


cdef class ReactorCallQueue:
    cdef object _reactor, _calls
    cdef bint _is_scheduled

    cpdef run(self, call)
