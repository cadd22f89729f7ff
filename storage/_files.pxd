# cython: language_level=3
from libc.stdint cimport int64_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass


cdef class Pieces:
    cdef list buffers
    cdef Py_buffer* views
    cdef iovec* parts
    cdef int count


cdef struct Call:
    # A call of `store`; `begun` and `ended` pass it to the thread and back. The thread ends when
    # `begun` is posted without a call.
    sem_t begun
    int ended
    bint is_made
    int descriptor
    iovec* parts
    int count
    int64_t position
    const char* directory
    int64_t written
    int64_t least
    bint syncs
    int64_t room
    int failure


cdef class FlushThread:
    cdef Call call
    cdef pthread_t thread
    cdef int process
    cdef Pieces pieces
    cdef bytes directory

    cdef begin_call(
        self,
        int descriptor,
        list buffers,
        int64_t position,
        bytes directory,
        int64_t written,
        int64_t least,
        bint syncs,
    )
    cdef bint end_call(self, int64_t* room) except -1
    cdef _end(self)
