# cython: language_level=3
cdef class Waiter:
    cpdef stored(self, result)
    cpdef refused(self, failure)


cdef class Completion:
    cdef object _done, _failed, _failure, _result
    cdef Waiter _waiter
    cdef bint _has_ended

    cdef succeed(self, result)
    cdef watch(self, Waiter waiter)


cdef class ReactorCallQueue:
    cdef object _reactor, _calls
    cdef bint _is_scheduled

    cpdef run(self, call)
