# cython: language_level=3
"""Frames and rows of an append, compiled: `frames.py` has the reference, with the same results."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "_crc32.h":
    void kopgate_crc32_init() noexcept nogil
    uint32_t kopgate_crc32(const uint8_t *at, size_t size) noexcept nogil

from storage.log import StorageError, StorageFailed

kopgate_crc32_init()

GAP = "an append before this one failed, so its offsets would leave a gap"

#: Version of the functions' signatures; `frames.py` expects the same number.
INTERFACE = 2

cdef enum:
    MARK_BYTES = 8
    START_BYTES = 12
    PLACE_BYTES = 12
    FIELD_BYTES = 48
    FRAME_BYTES = 60
    ROW_BYTES = 64
    IS_LAST = 1
    # The checksum of a payload of at least this size is computed without the GIL.
    LARGE_BYTES = 65536


cdef inline uint8_t* put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255
    return at + 4


cdef inline uint8_t* put64(uint8_t* at, uint64_t value) noexcept nogil:
    return put32(put32(at, <uint32_t>(value >> 32)), <uint32_t>value)


cdef uint32_t checksum(payload, uint32_t* size) except? 0:
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if view.len > <Py_ssize_t>UINT32_MAX:
            raise OverflowError("a payload has at most 4 GiB")
        size[0] = <uint32_t>view.len
        if view.len < LARGE_BYTES:
            crc = kopgate_crc32(<const uint8_t*>view.buf, view.len)
        else:
            with nogil:
                crc = kopgate_crc32(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


cdef class Frames:
    """Where the next frame goes, and what was encoded: see `encode_appends`."""

    cdef bytes mark
    cdef uint64_t segment, at
    cdef uint32_t durable_to
    cdef list buffers

    def __init__(
        self, bytes mark, uint64_t segment, uint64_t at, uint32_t durable_to, list buffers
    ):
        if PyBytes_GET_SIZE(mark) != MARK_BYTES:
            raise ValueError("a mark has 8 bytes")
        self.mark, self.segment, self.at = mark, segment, at
        self.durable_to, self.buffers = durable_to, buffers

    cdef list add(self, uint64_t log_id, entries, int64_t* running, uint64_t* position):
        """Add the frames of an append; return the rows of its entries."""
        cdef uint8_t fields[PLACE_BYTES + FIELD_BYTES]
        cdef uint8_t* place
        cdef uint8_t* header
        cdef uint32_t size = 0, crc
        cdef uint64_t base_offset, last_offset
        cdef int64_t timestamp
        cdef Py_ssize_t number, count = len(entries)
        cdef list rows = []
        for number in range(count):
            entry = entries[number]
            payload = entry.payload
            base_offset, last_offset = entry.base_offset, entry.last_offset
            timestamp = entry.max_timestamp
            crc = checksum(payload, &size)
            if self.at > UINT32_MAX:
                raise OverflowError("a segment has at most 4 GiB")
            place = put32(put64(fields, self.segment), <uint32_t>self.at)
            place = put32(put32(put32(place, crc), size), self.durable_to)
            place = put64(put32(place, IS_LAST if number == count - 1 else 0), log_id)
            place = put64(put64(put64(place, base_offset), last_offset), <uint64_t>timestamp)
            buffer = PyBytes_FromStringAndSize(NULL, FRAME_BYTES)
            header = <uint8_t*>PyBytes_AS_STRING(buffer)
            memcpy(header, PyBytes_AS_STRING(self.mark), MARK_BYTES)
            put32(header + MARK_BYTES, kopgate_crc32(fields, PLACE_BYTES + FIELD_BYTES))
            memcpy(header + START_BYTES, fields + PLACE_BYTES, FIELD_BYTES)
            self.buffers.append(buffer)
            self.buffers.append(payload)
            position[0] += size
            if timestamp > running[0]:
                running[0] = timestamp
            row = PyBytes_FromStringAndSize(NULL, ROW_BYTES)
            place = put64(<uint8_t*>PyBytes_AS_STRING(row), log_id)
            place = put64(put64(put64(place, base_offset), last_offset), <uint64_t>timestamp)
            place = put32(put64(put64(place, <uint64_t>running[0]), position[0]), size)
            put32(put64(place, self.segment), <uint32_t>self.at)
            rows.append(row)
            self.at += FRAME_BYTES + size
        return rows


def encode_append(
    bytes mark,
    uint64_t segment,
    uint64_t at,
    uint32_t durable_to,
    uint64_t log_id,
    entries,
    int64_t running,
    uint64_t position,
):
    cdef Frames frames = Frames(mark, segment, at, durable_to, [])
    rows = frames.add(log_id, entries, &running, &position)
    return frames.buffers, rows, frames.at, running, position


def encode_appends(
    bytes mark,
    uint64_t segment,
    uint64_t at,
    uint32_t durable_to,
    dict logs,
    find_log,
    appends,
    list buffers,
    list rows,
):
    cdef Frames frames = Frames(mark, segment, at, durable_to, buffers)
    cdef int64_t running
    cdef uint64_t position
    outcomes = []
    for append in appends:
        refusal = None
        try:
            log_id, entries = append.log_id, append.entries
            log = logs.get(log_id)
            if log is None:
                log = find_log(log_id)
            if entries[0].base_offset != log.end_offset:
                raise StorageFailed(GAP)
            running, position = log.running_timestamp, log.position
            rows.append((log_id, frames.add(log_id, entries, &running, &position)))
            log.running_timestamp, log.position = running, position
            log.end_offset = entries[-1].last_offset + 1
            log.size += append.size
        except StorageError as error:
            refusal = error.with_traceback(None)
        outcomes.append((append, None, refusal))
    return frames.at, outcomes
