# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The inner loops, compiled: one pass over the bytes, without the GIL where they are many.

The twin of `_pure.py`, which is the reference: the same functions, the same results, the same faults in the same order of checks. The bytes are a
stranger's: every length is read once, checked against what is left (never added to a position first), and only then used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from compat.records.errors import Fault, error_of
from compat.records.layout import Converted, Scan

cdef extern from "_crc32.h":
    void kopgate_crc32_init() noexcept nogil
    uint32_t kopgate_crc32(const uint8_t *at, size_t size) noexcept nogil

cdef extern from *:
    """
    static inline uint32_t kopgate_get32(const uint8_t *at)
    {
        return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
    }
    static inline uint64_t kopgate_get64(const uint8_t *at)
    {
        return (uint64_t)kopgate_get32(at) << 32 | kopgate_get32(at + 4);
    }
    static inline void kopgate_put32(uint8_t *at, uint32_t value)
    {
        at[0] = (uint8_t)(value >> 24); at[1] = (uint8_t)(value >> 16); at[2] = (uint8_t)(value >> 8); at[3] = (uint8_t)value;
    }
    static inline void kopgate_put64(uint8_t *at, uint64_t value)
    {
        kopgate_put32(at, (uint32_t)(value >> 32)); kopgate_put32(at + 4, (uint32_t)value);
    }
    /* 1 where the sum does not fit, and then nothing is stored */
    static inline int kopgate_add(int64_t left, int64_t right, int64_t *sum)
    {
        if ((right > 0 && left > INT64_MAX - right) || (right < 0 && left < INT64_MIN - right)) return 1;
        *sum = left + right;
        return 0;
    }
    /* the same for the difference */
    static inline int kopgate_subtract(int64_t left, int64_t right, int64_t *difference)
    {
        if ((right < 0 && left > INT64_MAX + right) || (right > 0 && left < INT64_MIN + right)) return 1;
        *difference = left - right;
        return 0;
    }
    """
    uint32_t get32 "kopgate_get32"(const uint8_t *at) noexcept nogil
    uint64_t get64 "kopgate_get64"(const uint8_t *at) noexcept nogil
    void put32 "kopgate_put32"(uint8_t *at, uint32_t value) noexcept nogil
    void put64 "kopgate_put64"(uint8_t *at, uint64_t value) noexcept nogil
    bint sum_overflows "kopgate_add"(int64_t left, int64_t right, int64_t *sum) noexcept nogil
    bint difference_overflows "kopgate_subtract"(int64_t left, int64_t right, int64_t *difference) noexcept nogil

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *content, Py_ssize_t size) except NULL
    char *PyBytes_AS_STRING(PyObject *content) noexcept nogil
    void Py_DecRef(PyObject *owned)
    int _PyBytes_Resize(PyObject **content, Py_ssize_t size) except -1

kopgate_crc32_init()

cdef enum:
    # Below this many bytes a call is shorter than giving the GIL away and waiting for it may be.
    RELEASE_FROM = 32 * 1024

    LOG_OVERHEAD = 12
    CRC_AT = 12
    CRC_FROM = 16
    MAGIC_AT = 16
    ATTRIBUTES_AT = 17
    TIMESTAMP_AT = 18
    SMALLEST_V0 = 14
    SMALLEST_V1 = 22
    CODEC_MASK = 7
    LZ4 = 3
    APPEND_TIME_BIT = 8

    SMALLEST_RECORD = 7
    # How much longer a record can get: a message's overhead less the smallest record's.
    GROWTH_V0 = LOG_OVERHEAD + SMALLEST_V0 - SMALLEST_RECORD
    GROWTH_V1 = LOG_OVERHEAD + SMALLEST_V1 - SMALLEST_RECORD
    # The most that a record has beside key and value: its size, attributes, timestamp, offset, two lengths, the header count.
    RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 1

cdef enum Found:
    # compat.records.errors.Fault; the check below holds them together
    OK = 0
    TRUNCATED = 1
    SIZE = 2
    MAGIC = 3
    MIXED = 4
    CHECKSUM = 5
    FIELDS = 6
    CODEC = 7
    NESTED = 8
    COUNT = 9
    OFFSET = 10
    TIMESTAMP = 11

if [one.value for one in Fault] != [TRUNCATED, SIZE, MAGIC, MIXED, CHECKSUM, FIELDS, CODEC, NESTED, COUNT, OFFSET, TIMESTAMP]:
    raise ImportError("the kernel was compiled for another version of this package: install it again")

cdef struct Message:
    # A message whose length is right: `end` is its end, `fields` where the key's length is.
    int64_t offset
    int64_t timestamp
    Py_ssize_t end
    Py_ssize_t fields
    Py_ssize_t key_at
    Py_ssize_t value_at
    int32_t key_size
    int32_t value_size
    int magic
    int attributes

cdef struct Summary:
    int64_t max_timestamp
    int64_t first_offset
    int64_t last_offset
    Py_ssize_t count
    Py_ssize_t wrappers
    Py_ssize_t largest
    Py_ssize_t written
    Py_ssize_t at
    int magic
    bint is_ordinal
    bint has_null_key
    bint has_append_time

cdef inline int headline(const uint8_t *data, Py_ssize_t size, Py_ssize_t start, int magic, Message *out) noexcept nogil:
    """Length, magic (which must be `magic` unless that is -1), offset and attributes of the message at `start`."""
    cdef int32_t claimed
    if size - start < LOG_OVERHEAD + SMALLEST_V0:
        return TRUNCATED
    claimed = <int32_t>get32(data + start + 8)
    if claimed < SMALLEST_V0:
        return SIZE
    out.magic = data[start + MAGIC_AT]
    if out.magic > 1:
        return MAGIC
    if magic >= 0 and out.magic != magic:
        return MIXED
    if out.magic == 1 and claimed < SMALLEST_V1:
        return SIZE
    if claimed > size - start - LOG_OVERHEAD:
        return TRUNCATED
    out.end = start + LOG_OVERHEAD + claimed
    out.offset = <int64_t>get64(data + start)
    out.attributes = data[start + ATTRIBUTES_AT]
    out.fields = start + (TIMESTAMP_AT + 8 if out.magic else TIMESTAMP_AT)
    return OK

cdef inline int verify(const uint8_t *data, Py_ssize_t size, Py_ssize_t start, int magic, bint is_inner, Message *out) noexcept nogil:
    """`headline`, then everything else that can be wrong with one message."""
    cdef int fault = headline(data, size, start, magic, out)
    if fault:
        return fault
    if kopgate_crc32(data + start + CRC_FROM, out.end - start - CRC_FROM) != get32(data + start + CRC_AT):
        return CHECKSUM
    out.key_size = <int32_t>get32(data + out.fields)
    out.key_at = out.fields + 4
    if out.key_size < -1 or out.key_size > out.end - 4 - out.key_at:
        return FIELDS
    out.value_at = out.key_at + (out.key_size if out.key_size > 0 else 0) + 4
    out.value_size = <int32_t>get32(data + out.value_at - 4)
    if out.value_size < -1 or (out.value_size if out.value_size > 0 else 0) != out.end - out.value_at:
        return FIELDS
    if out.attributes & CODEC_MASK > LZ4:
        return CODEC
    if is_inner and out.attributes & CODEC_MASK:
        return NESTED
    out.timestamp = <int64_t>get64(data + start + TIMESTAMP_AT) if out.magic else -1
    return OK

cdef void begin(Summary *out, int magic) noexcept nogil:
    out.magic = magic
    out.max_timestamp = out.first_offset = out.last_offset = -1
    out.count = out.wrappers = out.largest = out.written = out.at = 0
    out.is_ordinal = True
    out.has_null_key = out.has_append_time = False

cdef int scan_all(const uint8_t *data, Py_ssize_t size, int magic, bint is_inner, Summary *out) noexcept nogil:
    cdef Message one
    cdef int fault
    begin(out, magic)
    while out.at < size:
        fault = verify(data, size, out.at, out.magic, is_inner, &one)
        if fault:
            return fault
        out.magic = one.magic
        if one.end - out.at > out.largest:
            out.largest = one.end - out.at
        out.last_offset = one.offset
        if one.offset != out.count:
            out.is_ordinal = False
        if one.magic and one.attributes & APPEND_TIME_BIT:
            out.has_append_time = True
        if one.attributes & CODEC_MASK:
            out.wrappers += 1
        else:
            if one.timestamp > out.max_timestamp:
                out.max_timestamp = one.timestamp
            if one.key_size < 0:
                out.has_null_key = True
        out.count += 1
        out.at = one.end
    return OK

cdef int skip_plain(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at) noexcept nogil:
    cdef Message one
    cdef int fault
    while at[0] < size:
        fault = headline(data, size, at[0], -1, &one)
        if fault:
            return fault
        if one.attributes & CODEC_MASK:
            break
        at[0] = one.end
    return OK

cdef int find_cut(const uint8_t *data, Py_ssize_t size, int64_t offset, int64_t max_bytes, Py_ssize_t *start, Py_ssize_t *last) noexcept nogil:
    cdef Message one
    cdef int fault
    start[0] = last[0] = 0
    while last[0] < size:
        fault = headline(data, size, last[0], -1, &one)
        if fault:
            return fault
        if one.offset >= offset:
            break
        last[0] = one.end
    start[0] = last[0]
    while last[0] < size:
        fault = headline(data, size, last[0], -1, &one)
        if fault:
            return fault
        if one.end - start[0] > max_bytes and last[0] > start[0]:
            break
        last[0] = one.end
    return OK

cdef int stamp_all(uint8_t *data, Py_ssize_t size, int64_t base_offset, bint has_time, int64_t append_time, Summary *out) noexcept nogil:
    cdef Message one
    cdef int fault
    begin(out, -1)
    while out.at < size:
        fault = headline(data, size, out.at, -1, &one)
        if fault:
            return fault
        put64(data + out.at, <uint64_t>base_offset + <uint64_t>out.count)
        if one.magic and has_time:
            data[out.at + ATTRIBUTES_AT] = <uint8_t>(one.attributes | APPEND_TIME_BIT)
            put64(data + out.at + TIMESTAMP_AT, <uint64_t>append_time)
            put32(data + out.at + CRC_AT, kopgate_crc32(data + out.at + CRC_FROM, one.end - out.at - CRC_FROM))
        out.count += 1
        out.at = one.end
    return OK

cdef inline bint get_varint(const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, int32_t *value) noexcept nogil:
    """A zigzag varint of at most 32 bits that ends by `end`; False where there is none."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < end and shift < 35:
        byte = data[at[0]]
        at[0] += 1
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int32_t>(<uint32_t>(raw >> 1) ^ (0 - <uint32_t>(raw & 1)))
            return raw <= 0xFFFFFFFFU
        shift += 7
    return False

cdef inline bint get_varlong(const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, int64_t *value) noexcept nogil:
    """A zigzag varint of at most 64 bits that ends by `end`; False where there is none."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < end and shift < 70:
        byte = data[at[0]]
        at[0] += 1
        if shift == 63 and byte > 1:
            return False
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
            return True
        shift += 7
    return False

cdef inline bint get_sized(const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, int32_t *size) noexcept nogil:
    """The length (-1: null) of a field that ends by `end`; `at` moves to its bytes. False where it does not fit."""
    return get_varint(data, at, end, size) and size[0] >= -1 and size[0] <= end - at[0]

cdef inline bint skip_headers(const uint8_t *data, Py_ssize_t *at, Py_ssize_t end) noexcept nogil:
    """Past the headers, which must fill the record up to `end`; False where they do not."""
    cdef int32_t left, size
    if not get_varint(data, at, end, &left) or left < 0:
        return False
    while left > 0:
        if not get_sized(data, at, end, &size) or size < 0:
            return False
        at[0] += size
        if not get_sized(data, at, end, &size):
            return False
        if size > 0:
            at[0] += size
        left -= 1
    return at[0] == end

cdef int down_records(
    const uint8_t *data, Py_ssize_t size, int64_t count, int64_t base_offset, int64_t last_delta, int64_t base_timestamp, bint has_time,
    int64_t append_time, int magic, bint is_relative, uint8_t *into, Summary *out,
) noexcept nogil:
    """Magic 2 to 0 or 1. `into` has room for `size` and GROWTH_V0 or GROWTH_V1 for each of `count` records, of which `size` has room for the smallest."""
    cdef Py_ssize_t at = 0, end, key_at, value_at, content
    cdef int64_t delta, timestamp
    cdef int32_t claimed, offset_delta, key_size, value_size, previous = -1
    cdef uint8_t *to = into
    cdef uint8_t *message
    begin(out, magic)
    while out.count < count:
        out.at = at
        if at == size:
            return COUNT
        if not get_varint(data, &at, size, &claimed):
            return TRUNCATED
        if claimed < SMALLEST_RECORD - 1:
            return SIZE
        if claimed > size - at:
            return TRUNCATED
        end = at + claimed
        at += 1
        if not get_varlong(data, &at, end, &delta):
            return FIELDS
        timestamp = append_time
        if not has_time and sum_overflows(base_timestamp, delta, &timestamp):
            return TIMESTAMP
        if not get_varint(data, &at, end, &offset_delta):
            return FIELDS
        if offset_delta <= previous or offset_delta > last_delta:
            return OFFSET
        previous = offset_delta
        if not get_sized(data, &at, end, &key_size):
            return FIELDS
        key_at = at
        at += key_size if key_size > 0 else 0
        if not get_sized(data, &at, end, &value_size):
            return FIELDS
        value_at = at
        at += value_size if value_size > 0 else 0
        if not skip_headers(data, &at, end):
            return FIELDS

        out.last_offset = base_offset + offset_delta
        if out.count == 0:
            out.first_offset = out.last_offset
        if timestamp > out.max_timestamp:
            out.max_timestamp = timestamp
        out.count += 1

        message = to
        put64(message, <uint64_t>(out.last_offset - out.first_offset if is_relative else out.last_offset))
        message[MAGIC_AT] = <uint8_t>magic
        message[ATTRIBUTES_AT] = APPEND_TIME_BIT if has_time and magic else 0
        to += TIMESTAMP_AT
        if magic:
            put64(to, <uint64_t>timestamp)
            to += 8
        put32(to, <uint32_t>key_size)
        to += 4
        if key_size > 0:
            memcpy(to, data + key_at, key_size)
            to += key_size
        put32(to, <uint32_t>value_size)
        to += 4
        if value_size > 0:
            memcpy(to, data + value_at, value_size)
            to += value_size
        content = to - message
        put32(message + 8, <uint32_t>(content - LOG_OVERHEAD))
        put32(message + CRC_AT, kopgate_crc32(message + CRC_FROM, content - CRC_FROM))
    out.at = at
    if at != size:
        return COUNT
    out.written = to - into
    return OK

cdef int down_older(const uint8_t *data, Py_ssize_t size, int64_t shift, uint8_t *into, Summary *out) noexcept nogil:
    """Magic 1 to magic 0. `into` has room for `size`."""
    cdef Message one
    cdef int fault
    cdef int64_t offset
    cdef Py_ssize_t length
    cdef uint8_t *to = into
    begin(out, 1)
    while out.at < size:
        fault = verify(data, size, out.at, 1, True, &one)
        if fault:
            return fault
        if sum_overflows(one.offset, shift, &offset) or offset <= out.last_offset:
            return OFFSET
        if out.count == 0:
            out.first_offset = offset
        out.last_offset = offset
        out.count += 1
        length = one.end - one.fields
        put64(to, <uint64_t>offset)
        put32(to + 8, <uint32_t>(length + TIMESTAMP_AT - LOG_OVERHEAD))
        to[MAGIC_AT] = 0
        to[ATTRIBUTES_AT] = 0
        memcpy(to + TIMESTAMP_AT, data + one.fields, length)
        put32(to + CRC_AT, kopgate_crc32(to + CRC_FROM, length + TIMESTAMP_AT - CRC_FROM))
        to += length + TIMESTAMP_AT
        out.at = one.end
    out.written = to - into
    return OK

cdef inline uint8_t *put_varint(uint8_t *to, int64_t value) noexcept nogil:
    """`value` in zigzag: at most 10 bytes, at most 5 where it has 32 bits."""
    cdef uint64_t raw = (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))
    while raw >= 0x80:
        to[0] = <uint8_t>(raw & 0x7F | 0x80)
        to += 1
        raw >>= 7
    to[0] = <uint8_t>raw
    return to + 1

cdef inline int varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size

cdef int up_newer(
    const uint8_t *data, Py_ssize_t size, int magic, int64_t shift, int64_t base_offset, int64_t base_timestamp, bint has_time,
    int64_t append_time, uint8_t *into, Summary *out,
) noexcept nogil:
    """Magic 0 or 1 to 2. `into` has room for what every message but its overhead may take, and RECORD_OVERHEAD for each."""
    cdef Message one
    cdef int fault
    cdef int64_t offset, timestamp, delta, body
    cdef Py_ssize_t key_size, value_size
    cdef uint8_t *to = into
    begin(out, magic)
    while out.at < size:
        fault = verify(data, size, out.at, magic, True, &one)
        if fault:
            return fault
        if sum_overflows(one.offset, shift, &offset) or offset <= out.last_offset:
            return OFFSET
        if offset < base_offset or offset - base_offset > INT32_MAX:
            return OFFSET
        if out.count == 0:
            out.first_offset = offset
        out.last_offset = offset
        timestamp = append_time if has_time else one.timestamp
        if timestamp > out.max_timestamp:
            out.max_timestamp = timestamp
        if difference_overflows(timestamp, base_timestamp, &delta):
            return TIMESTAMP
        key_size = one.key_size if one.key_size > 0 else 0
        value_size = one.value_size if one.value_size > 0 else 0
        offset -= base_offset
        body = 2 + varint_size(delta) + varint_size(offset) + varint_size(one.key_size) + varint_size(one.value_size) + key_size + value_size
        to = put_varint(to, body)
        to[0] = 0
        to = put_varint(to + 1, delta)
        to = put_varint(to, offset)
        to = put_varint(to, one.key_size)
        memcpy(to, data + one.key_at, key_size)
        to = put_varint(to + key_size, one.value_size)
        memcpy(to, data + one.value_at, value_size)
        to += value_size
        to[0] = 0
        to += 1
        out.count += 1
        out.at = one.end
    out.written = to - into
    return OK

cdef object converted(int fault, PyObject *content, Summary *found):
    """What a conversion returns or raises; `content` is taken over."""
    if fault:
        Py_DecRef(content)
        raise error_of(fault, found.at)
    _PyBytes_Resize(&content, found.written)
    result = <object>content
    Py_DecRef(content)
    return Converted(result, found.count, found.first_offset, found.last_offset, found.max_timestamp)


def scan(messages, int magic, bint is_inner):
    cdef Py_buffer view
    cdef Summary found
    cdef int fault
    PyObject_GetBuffer(messages, &view, PyBUF_SIMPLE)
    try:
        if view.len < RELEASE_FROM:
            fault = scan_all(<const uint8_t *>view.buf, view.len, magic, is_inner, &found)
        else:
            with nogil:
                fault = scan_all(<const uint8_t *>view.buf, view.len, magic, is_inner, &found)
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise error_of(fault, found.at)
    return Scan(
        found.magic, found.count, found.wrappers, found.largest, found.max_timestamp, found.last_offset,
        found.is_ordinal, found.has_null_key, found.has_append_time,
    )


def plain_run(messages, Py_ssize_t start):
    cdef Py_buffer view
    cdef int fault
    PyObject_GetBuffer(messages, &view, PyBUF_SIMPLE)
    try:
        fault = skip_plain(<const uint8_t *>view.buf, view.len, &start)
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise error_of(fault, start)
    return start


def cut(messages, int64_t offset, int64_t max_bytes):
    cdef Py_buffer view
    cdef Py_ssize_t start, last
    cdef int fault
    PyObject_GetBuffer(messages, &view, PyBUF_SIMPLE)
    try:
        fault = find_cut(<const uint8_t *>view.buf, view.len, offset, max_bytes, &start, &last)
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise error_of(fault, last)
    return start, last


def stamp(messages, int64_t base_offset, append_time):
    cdef Py_buffer view
    cdef Summary found
    cdef int fault
    cdef bint has_time = append_time is not None
    cdef int64_t timestamp = append_time if has_time else -1
    PyObject_GetBuffer(messages, &view, PyBUF_WRITABLE)
    try:
        if view.len < RELEASE_FROM:
            fault = stamp_all(<uint8_t *>view.buf, view.len, base_offset, has_time, timestamp, &found)
        else:
            with nogil:
                fault = stamp_all(<uint8_t *>view.buf, view.len, base_offset, has_time, timestamp, &found)
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise error_of(fault, found.at)
    return found.count


def down_batch(
    records, int64_t count, int64_t base_offset, int64_t last_delta, int64_t base_timestamp, append_time, int magic, bint is_relative
):
    cdef Py_buffer view
    cdef Summary found
    cdef int fault
    cdef bint has_time = append_time is not None
    cdef int64_t timestamp = append_time if has_time else -1
    cdef PyObject *content
    cdef uint8_t *into
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        if count < 0 or count > view.len // SMALLEST_RECORD:
            raise error_of(COUNT, 0)
        content = PyBytes_FromStringAndSize(NULL, view.len + count * (GROWTH_V1 if magic else GROWTH_V0))
        into = <uint8_t *>PyBytes_AS_STRING(content)
        with nogil:
            fault = down_records(
                <const uint8_t *>view.buf, view.len, count, base_offset, last_delta, base_timestamp, has_time, timestamp, magic, is_relative,
                into, &found,
            )
    finally:
        PyBuffer_Release(&view)
    return converted(fault, content, &found)


def down_messages(messages, int64_t shift):
    cdef Py_buffer view
    cdef Summary found
    cdef int fault
    cdef PyObject *content
    cdef uint8_t *into
    PyObject_GetBuffer(messages, &view, PyBUF_SIMPLE)
    try:
        content = PyBytes_FromStringAndSize(NULL, view.len)
        into = <uint8_t *>PyBytes_AS_STRING(content)
        with nogil:
            fault = down_older(<const uint8_t *>view.buf, view.len, shift, into, &found)
    finally:
        PyBuffer_Release(&view)
    return converted(fault, content, &found)


def up_messages(messages, int magic, int64_t shift, int64_t base_offset, int64_t base_timestamp, append_time):
    cdef Py_buffer view
    cdef Summary found
    cdef int fault
    cdef bint has_time = append_time is not None
    cdef int64_t timestamp = append_time if has_time else -1
    cdef PyObject *content
    cdef uint8_t *into
    PyObject_GetBuffer(messages, &view, PyBUF_SIMPLE)
    try:
        content = PyBytes_FromStringAndSize(
            NULL, view.len + view.len // (LOG_OVERHEAD + SMALLEST_V0) * (RECORD_OVERHEAD - LOG_OVERHEAD - SMALLEST_V0)
        )
        into = <uint8_t *>PyBytes_AS_STRING(content)
        with nogil:
            fault = up_newer(
                <const uint8_t *>view.buf, view.len, magic, shift, base_offset, base_timestamp, has_time, timestamp, into, &found
            )
    finally:
        PyBuffer_Release(&view)
    return converted(fault, content, &found)
