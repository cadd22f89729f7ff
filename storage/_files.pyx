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
from libc.string cimport memset

from storage._log cimport Entry

cdef extern from "<sys/uio.h>" nogil:
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
    int pthread_create(
        pthread_t* thread, const void* kind, void* (*run)(void*) noexcept nogil, void* argument
    )
    int pthread_join(pthread_t thread, void** result)

cdef extern from "<semaphore.h>" nogil:
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
INTERFACE = 5


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
    """Buffers that are written together; held as long as this object. At most IOV_MAX.

    The list does not change. Entries whose payload is in a request stand for their payloads.
    """

    def __cinit__(self, list buffers not None):
        cdef Py_ssize_t number, count = len(buffers)
        cdef Py_buffer* view
        cdef iovec* part
        self.views = <Py_buffer*>PyMem_Malloc(count * (sizeof(Py_buffer) + sizeof(iovec)) or 1)
        if self.views == NULL:
            raise MemoryError
        self.parts = <iovec*>(self.views + count)
        # For the entries in it.
        self.buffers = buffers
        for number in range(count):
            view, part = self.views + number, self.parts + number
            buffer = buffers[number]
            if type(buffer) is Entry and (<Entry>buffer).request is not None:
                part.iov_base, part.iov_len = <void*>(<Entry>buffer).at, (<Entry>buffer).size
                memset(view, 0, sizeof(Py_buffer))
            else:
                PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
                part.iov_base, part.iov_len = view.buf, view.len
            self.count += 1

    def __dealloc__(self):
        cdef int number
        for number in range(self.count):
            PyBuffer_Release(self.views + number)
        PyMem_Free(self.views)


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
        self.begin_call(descriptor, buffers, position, directory, written, least, syncs)

    cdef begin_call(
        self,
        int descriptor,
        list buffers,
        int64_t position,
        bytes directory,
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
        cdef int64_t room
        return room if self.end_call(&room) else None

    cdef bint end_call(self, int64_t* room) except -1:
        """As `end`: sets `room`, or returns False."""
        cdef uint64_t count
        if read(self.call.ended, &count, sizeof(count)) < 0:
            return False
        self.pieces = None
        if self.call.failure:
            raise OSError(self.call.failure, os.strerror(self.call.failure))
        room[0] = self.call.room
        return True

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
