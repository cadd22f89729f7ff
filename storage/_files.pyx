# cython: language_level=3, boundscheck=False, wraparound=False
"""`DiskFiles.store`, compiled: its system calls without taking the GIL in between."""

import os

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
INTERFACE = 2


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
    cdef Py_ssize_t count = len(buffers), number, held = 0
    cdef const char* path = directory
    cdef int64_t room
    cdef int failure = 0
    cdef Py_buffer* views = <Py_buffer*>PyMem_Malloc(count * sizeof(Py_buffer) or 1)
    cdef iovec* parts = <iovec*>PyMem_Malloc(count * sizeof(iovec) or 1)
    try:
        if views == NULL or parts == NULL:
            raise MemoryError
        for number in range(count):
            PyObject_GetBuffer(buffers[number], views + number, PyBUF_SIMPLE)
            held += 1
            parts[number].iov_base = views[number].buf
            parts[number].iov_len = views[number].len
        with nogil:
            room = room_on(path, written)
            if room >= least:
                failure = write_all(descriptor, parts, <int>count, position)
                if syncs and not failure:
                    failure = sync_data(descriptor)
    finally:
        for number in range(held):
            PyBuffer_Release(views + number)
        PyMem_Free(views)
        PyMem_Free(parts)
    if failure:
        raise OSError(failure, os.strerror(failure))
    return room
