# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled codec functions for the common case of Produce and Fetch: valid, without tagged fields.

Each function returns None for any other case. The Python implementation, which handles all cases
and all errors, then takes over (`header`, `produce_codec`, `fetch_codec`,
`gateway.partitions.record_batch`).
Without this module everything works the same, only slower. The input is untrusted: each read is
bounds-checked.
"""

cimport cython
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
)
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from storage._log cimport new_entry

cdef extern from "_crc32.h":
    void kopgate_crc32_init() noexcept nogil
    uint32_t kopgate_crc32c(const unsigned char* at, size_t size) noexcept nogil

kopgate_crc32_init()

#: Version of the functions' signatures; `compiled.py` expects the same number.
INTERFACE = 11

cdef enum:
    HEADER_BYTES = 61
    TOPIC_ID_BYTES = 16
    FIRST_WITH_TRANSACTIONAL_ID = 3
    FIRST_WITH_BATCHES = 3
    FIRST_FLEXIBLE = 9
    FIRST_WITH_TOPIC_IDS = 13
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    CONTROL = 0x20
    ZSTD = 4
    FIRST_WITH_ZSTD = 7
    MOST_TOPICS = 1024
    MOST_PARTITIONS = 1024
    # Bytes of records whose CRC is computed while a request is read, and the least of one batch
    # without the GIL.
    MOST_CHECKED_BYTES = 4194304
    LARGE_BATCH_BYTES = 1048576


cdef struct Source:
    const unsigned char* bytes
    Py_ssize_t size
    Py_ssize_t at


cdef inline uint32_t be32(const unsigned char* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline int16_t be16(const unsigned char* p) noexcept nogil:
    return <int16_t>((<uint16_t>p[0] << 8) | p[1])


cdef inline int64_t be64(const unsigned char* p) noexcept nogil:
    return <int64_t>((<uint64_t>be32(p) << 32) | be32(p + 4))


cdef inline bint has(Source* source, Py_ssize_t count) noexcept nogil:
    return 0 <= count <= source.size - source.at


cdef inline bint uvarint(Source* source, uint32_t* value) noexcept nogil:
    """Read at most four bytes: no count or length of the common case has five."""
    cdef int shift = 0
    value[0] = 0
    while shift < 28 and source.at < source.size:
        value[0] |= <uint32_t>(source.bytes[source.at] & 0x7F) << shift
        source.at += 1
        if not source.bytes[source.at - 1] & 0x80:
            return True
        shift += 7
    return False


cdef inline bint no_tags(Source* source) noexcept nogil:
    source.at += 1
    return source.at <= source.size and source.bytes[source.at - 1] == 0


cdef bint length(Source* source, bint compact, bint is_long, int64_t* value) noexcept nogil:
    """Read the length of a string (16 bits if not compact), an array or bytes (32); -1 for null."""
    cdef uint32_t raw
    if compact:
        if not uvarint(source, &raw):
            return False
        value[0] = <int64_t>raw - 1
        # MAX_STRING_BYTES
        if not is_long and value[0] > 32767:
            return False
    elif is_long:
        if not has(source, 4):
            return False
        value[0] = <int32_t>be32(source.bytes + source.at)
        source.at += 4
    else:
        if not has(source, 2):
            return False
        value[0] = be16(source.bytes + source.at)
        source.at += 2
    return True


cdef text(Source* source, Py_ssize_t size):
    source.at += size
    return PyUnicode_DecodeUTF8(<const char*>source.bytes + source.at - size, size, NULL)


def frames(chunk, Py_ssize_t limit):
    """Return the whole frames at the start of `chunk`, and the position after them.

    A length below 0 or above `limit` is left to the caller. See `gateway.net.framing`.
    """
    cdef Py_buffer buffer
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0
    cdef int32_t size
    found = []
    PyObject_GetBuffer(chunk, &buffer, PyBUF_SIMPLE)
    try:
        p = <const unsigned char*>buffer.buf
        while buffer.len - position >= 4:
            size = <int32_t>be32(p + position)
            if size < 0 or size > limit or size > buffer.len - position - 4:
                break
            found.append(PyByteArray_FromStringAndSize(<const char*>p + position + 4, size))
            position += 4 + size
    finally:
        PyBuffer_Release(&buffer)
    return found, position


def total(buffers):
    """Return the number of bytes in all buffers."""
    cdef Py_ssize_t size = 0
    for buffer in buffers:
        size += len(buffer)
    return size


def header(frame, first_flexible_version, make):
    """Return `make(api_key, api_version, correlation_id, client_id, body)`, or None.

    See `gateway.protocol.wire.header.read_header`.
    """
    cdef Source source
    cdef int64_t size
    cdef int16_t api_key, api_version
    cdef int32_t correlation_id
    if type(frame) is not bytearray:
        return None
    source.bytes = <const unsigned char*>PyByteArray_AS_STRING(frame)
    source.size, source.at = PyByteArray_GET_SIZE(frame), 8
    if source.size < 10:
        return None
    api_key, api_version = be16(source.bytes), be16(source.bytes + 2)
    correlation_id = <int32_t>be32(source.bytes + 4)
    length(&source, False, False, &size)
    client_id = None
    if size >= 0:
        if not has(&source, size):
            return None
        try:
            client_id = text(&source, size)
        except UnicodeDecodeError:
            return None
    first = first_flexible_version.get(api_key)
    if first is not None and api_version >= first and not no_tags(&source):
        return None
    return make(api_key, api_version, correlation_id, client_id, source.at)


def request(frame, Py_ssize_t position, int version, make, make_topic, make_partition, make_batch):
    """Return the request, or None. `make` and the others create its values.

    Partitions whose records are one valid batch get its header, as `batch` returns it, up to
    MOST_CHECKED_BYTES of the request. The peer may not even be authorized to write.

    See `gateway.protocol.wire.produce_codec.read_produce`.
    """
    cdef Source source
    cdef Request head
    cdef int64_t size, partitions, unchecked = MOST_CHECKED_BYTES
    cdef int32_t index
    if not begin(&source, &head, frame, position, version):
        return None
    view = memoryview(frame)
    rows = []
    left = MOST_PARTITIONS
    for _ in range(head.topics):
        topic = topic_name(&source, version, head.compact)
        if topic is None or not length(&source, head.compact, True, &partitions):
            return None
        if not 0 <= partitions <= left:
            return None
        left -= partitions
        cells = []
        for _ in range(partitions):
            if not records_of(&source, head.compact, &index, &size):
                return None
            records = view[source.at - <Py_ssize_t>size : source.at]
            found = source.bytes + source.at - size
            if (
                version >= FIRST_WITH_BATCHES
                and size <= unchecked
                and is_valid(found, size, version)
            ):
                unchecked -= size
                cells.append(make_partition(index, records, made(found, make_batch)))
            else:
                cells.append(make_partition(index, records))
            if head.compact and not no_tags(&source):
                return None
        if head.compact and not no_tags(&source):
            return None
        rows.append(make_topic(topic, cells))
    return make(version, None, head.acks, head.timeout_ms, rows)


cdef struct Request:
    int64_t topics
    int32_t timeout_ms
    int16_t acks
    bint compact


cdef bint begin(Source* source, Request* head, frame, Py_ssize_t position, int version) except -1:
    """Read up to the number of topics. Without a transactional id."""
    cdef int64_t size
    head.compact = version >= FIRST_FLEXIBLE
    if type(frame) is not bytearray or position < 0:
        return False
    source.bytes = <const unsigned char*>PyByteArray_AS_STRING(frame)
    source.size, source.at = PyByteArray_GET_SIZE(frame), position
    if version >= FIRST_WITH_TRANSACTIONAL_ID and (
        not length(source, head.compact, False, &size) or size >= 0
    ):
        return False
    if not has(source, 6):
        return False
    head.acks = be16(source.bytes + source.at)
    head.timeout_ms = <int32_t>be32(source.bytes + source.at + 2)
    source.at += 6
    return length(source, head.compact, True, &head.topics) and 0 <= head.topics <= MOST_TOPICS


cdef topic_name(Source* source, int version, bint compact):
    """Return a topic's name or id, or None."""
    cdef int64_t size
    if version >= FIRST_WITH_TOPIC_IDS:
        if not has(source, TOPIC_ID_BYTES):
            return None
        source.at += TOPIC_ID_BYTES
        return PyBytes_FromStringAndSize(
            <const char*>source.bytes + source.at - TOPIC_ID_BYTES, TOPIC_ID_BYTES
        )
    if not length(source, compact, False, &size) or size <= 0 or not has(source, size):
        return None
    try:
        return text(source, size)
    except UnicodeDecodeError:
        return None


cdef bint records_of(Source* source, bint compact, int32_t* index, int64_t* size) noexcept:
    """Read a partition up to the end of its records, which have `size` bytes."""
    if not has(source, 4):
        return False
    index[0] = <int32_t>be32(source.bytes + source.at)
    source.at += 4
    if not length(source, compact, True, size) or size[0] < 0 or not has(source, size[0]):
        return False
    source.at += size[0]
    return True


def batch(records, int version, make):
    """Return `make` of the header fields if `records` is one valid batch, else None.

    See `gateway.partitions.record_batch.check_batch`.
    """
    cdef Py_buffer buffer
    cdef bint valid
    PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len < LARGE_BATCH_BYTES:
            valid = is_valid(<const unsigned char*>buffer.buf, buffer.len, version)
        else:
            with nogil:
                valid = is_valid(<const unsigned char*>buffer.buf, buffer.len, version)
        if not valid:
            return None
        return made(<const unsigned char*>buffer.buf, make)
    finally:
        PyBuffer_Release(&buffer)


cdef bint is_valid(const unsigned char* p, Py_ssize_t size, int version) noexcept nogil:
    return is_plain(p, size, version) and has_valid_crc(p, size)


cdef bint has_valid_crc(const unsigned char* p, Py_ssize_t size) noexcept nogil:
    return kopgate_crc32c(p + 21, size - 21) == be32(p + 17)


cdef bint is_plain(const unsigned char* p, Py_ssize_t size, int version) noexcept nogil:
    if size < HEADER_BYTES or p[16] != 2 or <int64_t><int32_t>be32(p + 8) + 12 != size:
        return False
    cdef int16_t attributes = be16(p + 21), epoch = be16(p + 51)
    cdef int codec = attributes & CODEC_MASK
    cdef int32_t last_offset_delta = <int32_t>be32(p + 23)
    cdef int32_t sequence = <int32_t>be32(p + 53), count = <int32_t>be32(p + 57)
    if attributes & (CONTROL | LOG_APPEND_TIME) or codec > ZSTD:
        return False
    if codec == ZSTD and version < FIRST_WITH_ZSTD:
        return False
    if count <= 0 or last_offset_delta != count - 1:
        return False
    return be64(p + 43) < 0 or (sequence >= 0 and epoch >= 0)


cdef made(const unsigned char* p, make):
    return make(
        be64(p),
        <int32_t>be32(p + 12),
        be16(p + 21),
        <int32_t>be32(p + 23),
        be64(p + 27),
        be64(p + 35),
        be64(p + 43),
        be16(p + 51),
        <int32_t>be32(p + 53),
        <int32_t>be32(p + 57),
        <int64_t><int32_t>be32(p + 8) + 12,
    )


def stamp(records, int64_t base_offset, int32_t leader_epoch):
    """Write offset and leader epoch into a batch, return whether it is done.

    See `records.batch.stamp_batch`.
    """
    cdef Py_buffer buffer
    cdef Sink sink
    PyObject_GetBuffer(records, &buffer, PyBUF_WRITABLE)
    if buffer.len >= HEADER_BYTES:
        sink.bytes, sink.at = <unsigned char*>buffer.buf, 0
        put64(&sink, base_offset)
        sink.at = 12
        put32(&sink, leader_epoch)
    PyBuffer_Release(&buffer)
    return buffer.len >= HEADER_BYTES


cdef struct Sink:
    unsigned char* bytes
    Py_ssize_t at


cdef inline void put16(Sink* sink, int16_t value) noexcept nogil:
    sink.bytes[sink.at] = <unsigned char>(<uint16_t>value >> 8)
    sink.bytes[sink.at + 1] = <unsigned char>(<uint16_t>value & 0xFF)
    sink.at += 2


cdef inline void put32(Sink* sink, int32_t value) noexcept nogil:
    put16(sink, <int16_t>(<uint32_t>value >> 16))
    put16(sink, <int16_t><uint16_t>value)


cdef inline void put64(Sink* sink, int64_t value) noexcept nogil:
    put32(sink, <int32_t>(<uint64_t>value >> 32))
    put32(sink, <int32_t><uint32_t>value)


cdef void put_length(Sink* sink, int64_t value, bint compact, bint is_long) noexcept nogil:
    cdef uint64_t left = <uint64_t>(value + 1)
    if not compact:
        if is_long:
            put32(sink, <int32_t>value)
        else:
            put16(sink, <int16_t>value)
        return
    while left >= 0x80:
        sink.bytes[sink.at] = <unsigned char>(left & 0x7F | 0x80)
        sink.at += 1
        left >>= 7
    sink.bytes[sink.at] = <unsigned char>left
    sink.at += 1


def reply(topics, int32_t throttle_time_ms, int version):
    """Return the body of the reply, or None. `topics` are its rows.

    See `gateway.protocol.wire.produce_codec.write_produce_response`.
    """
    cdef Sink sink
    cdef bint compact = version >= FIRST_FLEXIBLE
    cdef Py_ssize_t most = 16
    names = []
    for topic, partitions in topics:
        name = topic if type(topic) is bytes else (<str>topic).encode()
        if len(name) > 32767:
            return None
        names.append(name)
        most += 16 + len(name) + 48 * <Py_ssize_t>len(partitions)
    body = PyBytes_FromStringAndSize(NULL, most)
    sink.bytes, sink.at = <unsigned char*>PyBytes_AS_STRING(body), 0
    put_length(&sink, len(names), compact, True)
    for name, (topic, partitions) in zip(names, topics):
        put_name(&sink, name, type(topic) is bytes, compact)
        put_length(&sink, len(partitions), compact, True)
        for partition in partitions:
            if partition.error_message is not None:
                return None
            put_row(
                &sink,
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time,
                partition.log_start_offset,
                version,
                compact,
            )
        if compact:
            put_length(&sink, -1, True, False)
    put_end(&sink, throttle_time_ms, version, compact)
    return PyBytes_FromStringAndSize(<const char*>sink.bytes, sink.at)


cdef void put_name(Sink* sink, bytes name, bint is_id, bint compact) noexcept:
    """Write a topic's name, or its id."""
    if not is_id:
        put_length(sink, PyBytes_GET_SIZE(name), compact, False)
    memcpy(sink.bytes + sink.at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    sink.at += PyBytes_GET_SIZE(name)


cdef void put_end(Sink* sink, int32_t throttle_time_ms, int version, bint compact) noexcept nogil:
    """Write what follows the topics."""
    if version >= 1:
        put32(sink, throttle_time_ms)
    if compact:
        put_length(sink, -1, True, False)


cdef void put_row(
    Sink* sink,
    int32_t index,
    int16_t error_code,
    int64_t base_offset,
    int64_t log_append_time,
    int64_t log_start_offset,
    int version,
    bint compact,
) noexcept nogil:
    """Write the result of a partition, at most 48 bytes."""
    put32(sink, index)
    put16(sink, error_code)
    put64(sink, base_offset)
    if version >= 2:
        put64(sink, log_append_time)
    if version >= 5:
        put64(sink, log_start_offset)
    if version >= 8:
        # No record errors, no message, and in the flexible versions no tagged fields.
        put_length(sink, 0, compact, True)
        put_length(sink, -1, compact, False)
        if compact:
            put_length(sink, -1, True, False)


include "_dispatch.pxi"
include "_produce.pxi"
include "_fetch.pxi"
include "_repeated.pxi"
