# cython: language_level=3, boundscheck=False, wraparound=False
"""`DiskFiles.store`, compiled: its system calls without taking the GIL in between.

`FlushThread` makes them in a thread that never takes the GIL.
"""

import os

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t pwritev(int descriptor, const iovec* parts, int count, int64_t position)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int descriptor)
    int close(int descriptor)
    int getpid()
    ssize_t read(int descriptor, void* to, size_t size)
    ssize_t write(int descriptor, const void* data, size_t size)

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int count, int flags)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t* signals)
    int pthread_sigmask(int how, const sigset_t* signals, sigset_t* before)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    int pthread_create(
        pthread_t* thread, const void* kind, void* (*run)(void*) noexcept nogil, void* argument
    )
    int pthread_join(pthread_t thread, void** result)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t* semaphore, int is_shared, unsigned int count)
    int sem_post(sem_t* semaphore)
    int sem_wait(sem_t* semaphore)
    int sem_destroy(sem_t* semaphore)

cdef extern from "<sys/statvfs.h>" nogil:
    struct statvfs_t "statvfs":
        uint64_t f_bavail
        uint64_t f_frsize
    int statvfs(const char* path, statvfs_t* volume)

cdef extern from "<sys/resource.h>" nogil:
    struct rlimit:
        uint64_t rlim_cur
    uint64_t RLIM_INFINITY
    int RLIMIT_FSIZE
    int getrlimit(int resource, rlimit* limit)

#: Version of the functions' signatures; `files.py` expects the same number.
INTERFACE = 4


cdef int64_t room_on(const char* directory, int64_t written) noexcept nogil:
    cdef statvfs_t volume
    cdef rlimit limit
    cdef int64_t free
    if statvfs(directory, &volume) != 0:
        return INT64_MAX
    if volume.f_frsize and volume.f_bavail > <uint64_t>INT64_MAX // volume.f_frsize:
        free = INT64_MAX
    else:
        free = <int64_t>(volume.f_bavail * volume.f_frsize)
    if getrlimit(RLIMIT_FSIZE, &limit) == 0 and limit.rlim_cur != RLIM_INFINITY:
        free = min(free, <int64_t>limit.rlim_cur - written)
    return free


cdef int write_all(int descriptor, iovec* parts, int count, int64_t position) noexcept nogil:
    """Write everything. Returns errno, 0 for success."""
    cdef ssize_t written
    while count:
        written = pwritev(descriptor, parts, count, position)
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        position += written
        # After a partial write the next call gives the reason.
        while count and written >= <ssize_t>parts.iov_len:
            written -= parts.iov_len
            parts += 1
            count -= 1
        if count:
            parts.iov_base = <char*>parts.iov_base + written
            parts.iov_len -= written
    return 0


cdef int sync_data(int descriptor) noexcept nogil:
    """Returns errno, 0 for success."""
    while fdatasync(descriptor) != 0:
        if errno != EINTR:
            return errno
    return 0


cdef class Pieces:
    """Buffers that are written together; held as long as this object. At most IOV_MAX."""

    cdef Py_buffer* views
    cdef iovec* parts
    cdef int count

    def __cinit__(self, list buffers not None):
        cdef Py_ssize_t number, count = len(buffers)
        self.views = <Py_buffer*>PyMem_Malloc(count * sizeof(Py_buffer) or 1)
        self.parts = <iovec*>PyMem_Malloc(count * sizeof(iovec) or 1)
        if self.views == NULL or self.parts == NULL:
            raise MemoryError
        for number in range(count):
            PyObject_GetBuffer(buffers[number], self.views + number, PyBUF_SIMPLE)
            self.count += 1
            self.parts[number].iov_base = self.views[number].buf
            self.parts[number].iov_len = self.views[number].len

    def __dealloc__(self):
        cdef int number
        for number in range(self.count):
            PyBuffer_Release(self.views + number)
        PyMem_Free(self.views)
        PyMem_Free(self.parts)


def store(
    int descriptor,
    list buffers,
    int64_t position,
    bytes directory,
    int64_t written,
    int64_t least,
    bint syncs,
):
    """See `storage.files.Files.store`. At most IOV_MAX buffers."""
    cdef Pieces pieces = Pieces(buffers)
    cdef const char* path = directory
    cdef int64_t room
    cdef int failure = 0
    with nogil:
        room = room_on(path, written)
        if room >= least:
            failure = write_all(descriptor, pieces.parts, pieces.count, position)
            if syncs and not failure:
                failure = sync_data(descriptor)
    if failure:
        raise OSError(failure, os.strerror(failure))
    return room


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


cdef void* make_calls(void* argument) noexcept nogil:
    cdef Call* call = <Call*>argument
    cdef uint64_t one = 1
    while True:
        while sem_wait(&call.begun) != 0:
            pass
        if not call.is_made:
            return NULL
        call.is_made = False
        call.failure = 0
        call.room = room_on(call.directory, call.written)
        if call.room >= call.least:
            call.failure = write_all(call.descriptor, call.parts, call.count, call.position)
            if call.syncs and not call.failure:
                call.failure = sync_data(call.descriptor)
        while write(call.ended, &one, sizeof(one)) < 0 and errno == EINTR:
            pass


@cython.no_gc_clear
cdef class FlushThread:
    """See `storage.files.Flusher`."""

    cdef Call call
    cdef pthread_t thread
    cdef int process
    cdef Pieces pieces
    cdef bytes directory

    def __cinit__(self):
        cdef sigset_t every, before
        cdef int failure
        self.call.ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.call.ended < 0:
            raise OSError(errno, os.strerror(errno))
        sem_init(&self.call.begun, 0, 0)
        # Signals are for the threads of the interpreter.
        sigfillset(&every)
        pthread_sigmask(SIG_SETMASK, &every, &before)
        failure = pthread_create(&self.thread, NULL, make_calls, &self.call)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if failure:
            raise OSError(failure, os.strerror(failure))
        self.process = getpid()

    def __dealloc__(self):
        self._end()

    def fileno(self):
        return self.call.ended

    def begin(
        self,
        int descriptor,
        list buffers,
        int64_t position,
        bytes directory not None,
        int64_t written,
        int64_t least,
        bint syncs,
    ):
        if self.pieces is not None or not self.process:
            raise RuntimeError("one call is made at a time, by an open thread")
        self.pieces, self.directory = Pieces(buffers), directory
        self.call.descriptor, self.call.position = descriptor, position
        self.call.parts, self.call.count = self.pieces.parts, self.pieces.count
        self.call.directory = directory
        self.call.written, self.call.least, self.call.syncs = written, least, syncs
        self.call.is_made = True
        sem_post(&self.call.begun)

    def end(self):
        cdef uint64_t count
        if read(self.call.ended, &count, sizeof(count)) < 0:
            return None
        self.pieces = None
        if self.call.failure:
            raise OSError(self.call.failure, os.strerror(self.call.failure))
        return self.call.room

    def close(self):
        self._end()

    cdef _end(self):
        # A process that was forked has no such thread.
        if self.process and self.process == getpid():
            sem_post(&self.call.begun)
            with nogil:
                pthread_join(self.thread, NULL)
            sem_destroy(&self.call.begun)
        self.process = 0
        if self.call.ended >= 0:
            close(self.call.ended)
            self.call.ended = -1
