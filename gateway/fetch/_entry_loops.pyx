# cython: language_level=3, boundscheck=False, wraparound=False
"""Loops over the entries of a Fetch, compiled, with the results of `entry_loops.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from gateway.protocol.errors import KafkaError
from records.layout import READABLE

from storage._log cimport Entry, payload_of, sent_of

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object found, object key) except? NULL

#: Version of the functions' signatures; `entry_loops.py` expects the same number.
INTERFACE = 6

cdef enum:
    KEY_FIELDS = 25
    MAGIC_AT = 16
    ATTRIBUTES_AT = 17
    CODEC_MASK = 7
    GZIP = 1
    LZ4 = 3
    ZSTD = 4
    LENGTH_AT = 8
    LOG_OVERHEAD = 12
    HEADER_BYTES = 61
    LZ4_HEADER_BYTES = 7
    GZIP_START_BYTES = 4
    BATCH_CRC_AT = 17
    BATCH_ATTRIBUTES_AT = 22
    LAST_OFFSET_DELTA_AT = 23

# See entry_loops.MIXER.
cdef uint64_t mixer = 0x9E3779B97F4A7C15ULL
cdef object refusal = KafkaError
cdef int64_t readable = READABLE


cdef inline uint8_t* put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255
    return at + 4


cdef inline uint8_t* put64(uint8_t* at, uint64_t value) noexcept nogil:
    return put32(put32(at, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t mixed(uint64_t mark, uint64_t field) noexcept nogil:
    mark = (mark ^ field) * mixer
    return mark ^ mark >> 32


def look_up(
    entries,
    list checksums not None,
    bytes topic_id not None,
    int partition,
    int magic,
    cache,
    dict jobs not None,
    own_job,
):
    cdef Py_ssize_t number, prefix = PyBytes_GET_SIZE(topic_id)
    cdef int64_t checksum
    cdef uint8_t* at
    cdef PyObject* found
    cdef Entry entry
    cdef list results = [], pending = [], keys = [], missing = []
    move_to_end = cache.move_to_end
    for number in range(len(checksums)):
        entry, checksum = entries[number], checksums[number]
        payload = entry.payload
        if checksum < 0:
            results.append(payload if checksum == readable else b"")
            continue
        key = PyBytes_FromStringAndSize(NULL, prefix + KEY_FIELDS)
        at = <uint8_t*>PyBytes_AS_STRING(key)
        memcpy(at, PyBytes_AS_STRING(topic_id), prefix)
        at = put64(put32(at + prefix, <uint32_t>partition), <uint64_t>entry.base_offset)
        at = put32(put64(at, <uint64_t>len(payload)), <uint32_t>checksum)
        at[0] = <uint8_t>magic
        found = PyDict_GetItemWithError(cache, key)
        if found != NULL:
            results.append(<object>found)
            move_to_end(key)
            continue
        found = PyDict_GetItemWithError(jobs, key)
        if found != NULL and not (<object>found).is_cancelled:
            job = <object>found
        elif own_job is None:
            break
        else:
            job = own_job
            jobs[key] = job
            keys.append(key)
            missing.append(entry)
        pending.append((len(results), key, job))
        results.append(b"")
    return results, pending, keys, missing


def fill(list results not None, list pending not None, Py_ssize_t first, found):
    cdef Py_ssize_t number, index, count = len(pending)
    job = (<tuple>pending[first])[2]
    for number in range(first, count):
        index, key, of = <tuple>pending[number]
        if of is not job:
            return number
        converted = found.get(key)
        if converted is None:
            del results[index:]
            return count
        results[index] = converted
    return count


def remove_job(dict jobs not None, list keys not None, job):
    for key in keys:
        if jobs.get(key) is job:
            del jobs[key]


def keep(cache, results, int64_t cached_bytes, int64_t limit, int64_t overhead):
    cdef int64_t size
    for key, converted in results.items():
        if isinstance(converted, refusal):
            continue
        size = len(converted) + overhead
        if size <= limit:
            cache[key] = converted
            cached_bytes += size
    popitem = cache.popitem
    while cached_bytes > limit:
        _, oldest = popitem(False)
        cached_bytes -= len(oldest) + overhead
    return cached_bytes


def select_whole(entries, payloads, Py_ssize_t first, int64_t limit):
    cdef Py_ssize_t number, size
    cdef int64_t batches = 0, records = 0, stored = 0, left = limit
    cdef list selected = []
    cdef Entry entry
    number = first
    while number < len(payloads):
        payload = payloads[number]
        if isinstance(payload, refusal):
            break
        size = len(payload)
        if size > left:
            break
        if size:
            selected.append(payload)
            left -= size
            entry = entries[number]
            kept = entry.payload
            if payload is not kept and payload != kept:
                batches += 1
                records += entry.last_offset - entry.base_offset + 1
                stored += len(kept)
        number += 1
    return number, selected, limit - left, (batches, records, stored)


def legacy_lz4(entries, payloads):
    cdef Py_ssize_t number
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef list found = []
    cdef Entry entry
    for number in range(len(payloads)):
        payload, entry = payloads[number], entries[number]
        if payload is not entry.payload:
            continue
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        data = <const uint8_t*>view.buf
        if (
            view.len > ATTRIBUTES_AT
            and not data[MAGIC_AT]
            and data[ATTRIBUTES_AT] & CODEC_MASK == LZ4
        ):
            found.append(number)
        PyBuffer_Release(&view)
    return found


cdef bint is_batch(const uint8_t* data, Py_ssize_t size, bint with_zstd) noexcept:
    """Whether a payload is a batch of format 2, and not in zstd unless `with_zstd`."""
    if size < HEADER_BYTES or data[MAGIC_AT] != 2:
        return False
    return with_zstd or data[BATCH_ATTRIBUTES_AT] & CODEC_MASK != ZSTD


def whole_batches(entries, int64_t offset, int64_t limit, *, bint with_zstd):
    cdef Py_buffer view
    cdef int64_t size = 0
    cdef bint is_first = True, are_whole = True
    cdef list records = []
    cdef Entry entry
    for entry in entries:
        if is_first:
            are_whole = offset <= entry.base_offset
            is_first = False
        payload = sent_of(entry)
        records.append(payload)
        if payload is entry:
            size += entry.size
            are_whole = are_whole and is_batch(entry.at, entry.size, with_zstd)
            continue
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        size += view.len
        are_whole = are_whole and is_batch(<const uint8_t*>view.buf, view.len, with_zstd)
        PyBuffer_Release(&view)
    return records if are_whole and size <= limit else [], size


def are_batches(payload, Py_ssize_t count, *, bint with_zstd):
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef Py_ssize_t found = 0
    cdef int64_t left, size
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    data, left = <const uint8_t*>view.buf, view.len
    while left >= HEADER_BYTES:
        size = LOG_OVERHEAD + <int64_t><int32_t>get32(data + LENGTH_AT)
        if data[MAGIC_AT] != 2 or size < HEADER_BYTES or size > left:
            break
        if data[BATCH_ATTRIBUTES_AT] & CODEC_MASK == ZSTD and not with_zstd:
            break
        data += size
        left -= size
        found += 1
    PyBuffer_Release(&view)
    return left == 0 and found == count


cdef inline bint is_of_kafka(const uint8_t* header) noexcept nogil:
    """Whether an lz4 header is one of `lz4_header.KAFKA_HEADERS`."""
    return memcmp(header, b"\x04\x22\x4d\x18\x60", 5) == 0 and (
        memcmp(header + 5, b"\x40\x82", 2) == 0
        or memcmp(header + 5, b"\x50\xfb", 2) == 0
        or memcmp(header + 5, b"\x60\x51", 2) == 0
        or memcmp(header + 5, b"\x70\x73", 2) == 0
    )


def run_mark(payloads, Py_ssize_t least, int64_t before, int codecs):
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef int64_t left, size, end = before
    cdef int codec
    cdef Py_ssize_t found = 0
    cdef bint is_packed = False
    cdef uint64_t mark = 0
    for payload in payloads:
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        data, left = <const uint8_t*>view.buf, view.len
        while left >= HEADER_BYTES:
            size = LOG_OVERHEAD + <int64_t><int32_t>get32(data + LENGTH_AT)
            codec = data[BATCH_ATTRIBUTES_AT] & CODEC_MASK
            if data[MAGIC_AT] != 2 or size < HEADER_BYTES or size > left:
                break
            if codec:
                if not codecs >> codec & 1:
                    break
                if codec == LZ4 and (
                    size < HEADER_BYTES + LZ4_HEADER_BYTES or not is_of_kafka(data + HEADER_BYTES)
                ):
                    break
                if codec == GZIP and (
                    size < HEADER_BYTES + GZIP_START_BYTES
                    or memcmp(data + HEADER_BYTES, b"\x1f\x8b\x08\x00", GZIP_START_BYTES) != 0
                ):
                    break
                is_packed = True
            mark = mixed(mark, <uint64_t>get32(data) << 32 | get32(data + 4))
            mark = mixed(mark, <uint64_t>size << 32 | get32(data + BATCH_CRC_AT))
            end = <int64_t>(
                (<uint64_t>get32(data) << 32 | get32(data + 4))
                + <uint64_t><int64_t><int32_t>get32(data + LAST_OFFSET_DELTA_AT) + 1
            )
            data += size
            left -= size
            found += 1
        PyBuffer_Release(&view)
        if left:
            return None
    return mark if is_packed and found >= least and end < before else None
