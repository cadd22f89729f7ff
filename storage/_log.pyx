# cython: language_level=3
"""The classes of the same names in `log.py` and `tail.py`, with C fields."""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.string cimport memcpy

#: Version of the signatures; `log.py` expects the same number.
INTERFACE = 4

#: As ENTRY_OVERHEAD of `tail.py`.
cdef enum:
    OVERHEAD = 300
    # Payloads in a request of at most this size are copied when they are read.
    COPIED_BYTES = 4096


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class RequestBytes:
    """The bytes of a request with payloads of entries.

    `payload_bytes` is the size of these payloads, `cached` how many of them a `TailCache` has.
    Nothing changes the bytes any more, and nothing can change their number: they are exported.
    """

    def __dealloc__(self):
        if self.view.buf != NULL:
            PyBuffer_Release(&self.view)


cdef RequestBytes request_bytes(buffer, Py_ssize_t payload_bytes):
    cdef RequestBytes request = RequestBytes.__new__(RequestBytes)
    PyObject_GetBuffer(buffer, &request.view, PyBUF_SIMPLE)
    request.payload_bytes = payload_bytes
    return request


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Entry:
    """A payload in a request becomes a Python object only when it is needed as one.

    An entry is also a buffer, its payload.
    """

    def __init__(
        self, int64_t base_offset, int64_t last_offset, int64_t max_timestamp, payload
    ):
        self.base_offset, self.last_offset = base_offset, last_offset
        self.max_timestamp, self._payload = max_timestamp, payload

    @property
    def payload(self):
        return payload_of(self)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if self.request is None:
            PyObject_GetBuffer(self._payload, view, flags)
        else:
            PyBuffer_FillInfo(view, self, <void*>self.at, self.size, True, flags)
        # Cython has set `view.obj` to None before, which is overwritten by now.
        Py_DECREF(None)

    def __len__(self):
        return payload_size(self)

    def __bool__(self):
        return True

    def __eq__(self, other):
        return type(other) is Entry and self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash(self.__reduce__())

    def __reduce__(self):
        return Entry, (self.base_offset, self.last_offset, self.max_timestamp, payload_of(self))

    def __repr__(self):
        return f"Entry({self.base_offset}-{self.last_offset}, {payload_size(self)} bytes)"


cdef Entry new_entry(int64_t base_offset, int64_t last_offset, int64_t max_timestamp, payload):
    cdef Entry entry = Entry.__new__(Entry)
    entry.base_offset, entry.last_offset = base_offset, last_offset
    entry.max_timestamp, entry._payload = max_timestamp, payload
    return entry


cdef Entry entry_in_request(
    int64_t base_offset,
    int64_t last_offset,
    int64_t max_timestamp,
    RequestBytes request,
    Py_ssize_t at,
    Py_ssize_t size,
):
    """The entry whose payload is at this position of the request."""
    cdef Entry entry = new_entry(base_offset, last_offset, max_timestamp, None)
    if at < 0 or size < 0 or at > request.view.len - size:
        raise ValueError("the payload is not in the request")
    entry.request, entry.at, entry.size = request, <const unsigned char*>request.view.buf + at, size
    return entry


cdef payload_of(Entry entry):
    cdef Py_ssize_t at
    if entry._payload is None and entry.request is not None:
        if entry.size <= COPIED_BYTES:
            # Less memory than a view, and nothing for the garbage collector.
            return PyBytes_FromStringAndSize(<const char*>entry.at, entry.size)
        at = entry.at - <const unsigned char*>entry.request.view.buf
        entry._payload = memoryview(<object>entry.request.view.obj)[at : at + entry.size]
    return entry._payload


cdef sent_of(Entry entry):
    """The payload as a buffer to be sent: the entry itself, instead of a view of its request."""
    if entry.request is not None and entry.size > COPIED_BYTES:
        return entry
    return payload_of(entry)


cdef Py_ssize_t payload_size(Entry entry) except -1:
    return len(entry._payload) if entry.request is None else entry.size


cdef class OpenLog:
    """The part of a `PartitionLog` that each append needs, for logs in compiled code."""

    cdef queue_entry(self, Entry entry):
        """As `append` of one entry: a Completion. None, and nothing has changed, if Python code has
        to do it.
        """
        return None


cdef class LogStatusState:
    """Of a `LogStatus`."""


cdef class CachedTailState:
    """Of a `CachedTail`, with its methods that each read calls."""

    def has(self, int64_t offset):
        return tail_has(self, offset)

    def read(self, int64_t offset, int64_t max_bytes):
        return tail_read(self, offset, max_bytes)


cdef bint tail_has(CachedTailState tail, int64_t offset) except -1:
    """As `CachedTail.has`."""
    cdef list entries = tail.entries
    return tail.begin < len(entries) and offset >= (<Entry?>entries[tail.begin]).base_offset


cdef list tail_read(CachedTailState tail, int64_t offset, int64_t max_bytes):
    """As `CachedTail.read`."""
    cdef list entries = tail.entries
    cdef Py_ssize_t count = len(entries), first = tail.begin, end = count, middle
    cdef int64_t room = max_bytes if max_bytes > 0 else 0
    cdef Entry entry
    if first >= count or offset < (<Entry?>entries[first]).base_offset:
        return None
    while first < end:
        middle = (first + end) // 2
        if (<Entry?>entries[middle]).last_offset < offset:
            first = middle + 1
        else:
            end = middle
    end = first
    while end < count:
        entry = <Entry?>entries[end]
        room -= payload_size(entry)
        if room < 0 and end > first:
            break
        end += 1
        if room < 0:
            break
    return entries[first:end]


cdef evict_oldest(CachedTailState tail):
    """As `CachedTail.evict_oldest`."""
    cdef list entries = tail.entries
    if tail.cleared:
        tail.cleared -= 1
        return
    entries[tail.begin] = EVICTED
    tail.begin += 1
    if tail.begin * 2 > len(entries):
        del entries[: tail.begin]
        tail.begin = 0


cdef class TailCache:
    """As that of `tail.py`. Payloads in a request are not copied if they are most of it.

    Then the whole request is counted, once, as long as one of them is cached. A request whose log
    was cleared is kept, and counted, until the turn of its last payload.
    """

    # What was added is a ring of `room` arrivals, a power of two; the oldest one is `first`.

    def __init__(self, int64_t limit):
        self._limit = limit

    def __dealloc__(self):
        while self.count:
            self.forget_oldest()
        PyMem_Free(self.arrivals)

    cpdef add(self, CachedTailState log_tail, Entry entry):
        cdef int64_t cost
        cdef Arrival* arrival
        cdef RequestBytes request
        if log_tail is None or entry is None:
            raise TypeError("a log's cache and an entry are required")
        request = entry.request
        if request is not None and request.payload_bytes * 8 < request.view.len * 7:
            entry = new_entry(
                entry.base_offset,
                entry.last_offset,
                entry.max_timestamp,
                (<const char*>entry.at)[: entry.size],
            )
            request = None
        if request is not None:
            cost = 0
        else:
            payload = entry._payload
            cost = len(payload)
            if PyMemoryView_Check(payload):
                buffer = payload.obj
                if isinstance(buffer, (bytes, bytearray)) and cost * 8 >= len(buffer) * 7:
                    cost = len(buffer)
                else:
                    entry = new_entry(
                        entry.base_offset, entry.last_offset, entry.max_timestamp, bytes(payload)
                    )
        if self.count == self.room:
            self.grow()
        log_tail.entries.append(entry)
        arrival = self.arrivals + ((self.first + self.count) & (self.room - 1))
        arrival.tail, arrival.request, arrival.cost = <PyObject*>log_tail, NULL, cost + OVERHEAD
        Py_INCREF(log_tail)
        if request is not None:
            arrival.request = <PyObject*>request
            Py_INCREF(request)
            if not request.cached:
                self._held += request.view.len
            request.cached += 1
        self.count += 1
        self._held += cost + OVERHEAD
        if self._held > self._limit:
            self.evict()

    cpdef evict(self):
        while self.count and self._held > self._limit:
            self.evict_one()

    cdef evict_one(self):
        cdef CachedTailState tail = <CachedTailState>self.arrivals[self.first].tail
        self.forget_oldest()
        evict_oldest(tail)

    cdef forget_oldest(self):
        cdef Arrival* arrival = self.arrivals + self.first
        cdef CachedTailState tail = <CachedTailState>arrival.tail
        cdef RequestBytes request = None
        self.first = (self.first + 1) & (self.room - 1)
        self.count -= 1
        self._held -= arrival.cost
        if arrival.request != NULL:
            request = <RequestBytes>arrival.request
            request.cached -= 1
            if not request.cached:
                self._held -= request.view.len
            Py_DECREF(request)
        Py_DECREF(tail)

    cdef grow(self):
        cdef size_t before = self.room, room = 2 * before if before else 64
        cdef Arrival* arrivals = <Arrival*>PyMem_Realloc(self.arrivals, room * sizeof(Arrival))
        if arrivals == NULL:
            raise MemoryError
        # The ring is full: its part before the oldest arrival goes behind the newest one.
        memcpy(arrivals + before, arrivals, self.first * sizeof(Arrival))
        self.arrivals, self.room = arrivals, room


# As EVICTED of `tail.py`.
cdef Entry EVICTED = new_entry(-1, -1, -1, b"")
