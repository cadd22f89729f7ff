# cython: language_level=3, boundscheck=False, wraparound=False
"""Frames and rows of an append, compiled: `frames.py` has the reference, with the same results."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "_crc32.h":
    void kopgate_crc32_init() noexcept nogil
    uint32_t kopgate_crc32(const uint8_t *at, size_t size) noexcept nogil

kopgate_crc32_init()

#: Version of the functions' signatures; `frames.py` expects the same number.
INTERFACE = 1

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
    cdef uint8_t fields[PLACE_BYTES + FIELD_BYTES]
    cdef uint8_t* place
    cdef uint8_t* header
    cdef uint32_t size = 0, crc
    cdef uint64_t base_offset, last_offset
    cdef int64_t timestamp
    cdef Py_ssize_t number, count = len(entries)
    if PyBytes_GET_SIZE(mark) != MARK_BYTES:
        raise ValueError("a mark has 8 bytes")
    buffers, rows = [], []
    for number in range(count):
        entry = entries[number]
        payload = entry.payload
        base_offset, last_offset = entry.base_offset, entry.last_offset
        timestamp = entry.max_timestamp
        crc = checksum(payload, &size)
        if at > UINT32_MAX:
            raise OverflowError("a segment has at most 4 GiB")
        place = put32(put64(fields, segment), <uint32_t>at)
        place = put32(put32(put32(place, crc), size), durable_to)
        place = put64(put32(place, IS_LAST if number == count - 1 else 0), log_id)
        place = put64(put64(put64(place, base_offset), last_offset), <uint64_t>timestamp)
        buffer = PyBytes_FromStringAndSize(NULL, FRAME_BYTES)
        header = <uint8_t*>PyBytes_AS_STRING(buffer)
        memcpy(header, PyBytes_AS_STRING(mark), MARK_BYTES)
        put32(header + MARK_BYTES, kopgate_crc32(fields, PLACE_BYTES + FIELD_BYTES))
        memcpy(header + START_BYTES, fields + PLACE_BYTES, FIELD_BYTES)
        buffers.append(buffer)
        buffers.append(payload)
        position += size
        if timestamp > running:
            running = timestamp
        row = PyBytes_FromStringAndSize(NULL, ROW_BYTES)
        place = put64(<uint8_t*>PyBytes_AS_STRING(row), log_id)
        place = put64(put64(put64(place, base_offset), last_offset), <uint64_t>timestamp)
        place = put32(put64(put64(place, <uint64_t>running), position), size)
        put32(put64(place, segment), <uint32_t>at)
        rows.append(row)
        at += FRAME_BYTES + size
    return buffers, rows, at, running, position
