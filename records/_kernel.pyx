# cython: language_level=3, boundscheck=False, wraparound=False
# cython: cdivision=True, initializedcheck=False
"""The inner loops, compiled: one pass over the bytes, without the GIL for large inputs.

`_pure.py` is the reference: same functions, same results, same faults in the same order of checks.
The bytes are untrusted: every length is read once and checked against the remaining bytes (never
added to a position first) before it is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from records.errors import Fault, error_of
from records.layout import EMPTY, READABLE, Converted, Scan

#: Version of the functions' signatures; `kernel.py` expects the same number.
INTERFACE = 9

cdef extern from "_crc32.h":
    void kopgate_crc32_init() noexcept nogil
    uint32_t kopgate_crc32(const uint8_t *at, size_t size) noexcept nogil
    uint32_t kopgate_crc32c(const uint8_t *at, size_t size) noexcept nogil

cdef extern from *:
    """
    static inline uint32_t kopgate_get32(const uint8_t *at)
    {
        return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8
            | (uint32_t)at[3];
    }
    static inline uint64_t kopgate_get64(const uint8_t *at)
    {
        return (uint64_t)kopgate_get32(at) << 32 | kopgate_get32(at + 4);
    }
    static inline void kopgate_put32(uint8_t *at, uint32_t value)
    {
        at[0] = (uint8_t)(value >> 24); at[1] = (uint8_t)(value >> 16);
        at[2] = (uint8_t)(value >> 8); at[3] = (uint8_t)value;
    }
    static inline void kopgate_put64(uint8_t *at, uint64_t value)
    {
        kopgate_put32(at, (uint32_t)(value >> 32)); kopgate_put32(at + 4, (uint32_t)value);
    }
    static inline uint32_t kopgate_get32_little(const uint8_t *at)
    {
        return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8
            | (uint32_t)at[0];
    }
    static inline void kopgate_put32_little(uint8_t *at, uint32_t value)
    {
        at[3] = (uint8_t)(value >> 24); at[2] = (uint8_t)(value >> 16);
        at[1] = (uint8_t)(value >> 8); at[0] = (uint8_t)value;
    }
    /* returns 1, and stores nothing, if the sum overflows */
    static inline int kopgate_add(int64_t left, int64_t right, int64_t *sum)
    {
        if ((right > 0 && left > INT64_MAX - right) || (right < 0 && left < INT64_MIN - right))
            return 1;
        *sum = left + right;
        return 0;
    }
    /* same for the difference */
    static inline int kopgate_subtract(int64_t left, int64_t right, int64_t *difference)
    {
        if ((right < 0 && left > INT64_MAX + right) || (right > 0 && left < INT64_MIN + right))
            return 1;
        *difference = left - right;
        return 0;
    }
    """
    uint32_t get32 "kopgate_get32"(const uint8_t *at) noexcept nogil
    uint64_t get64 "kopgate_get64"(const uint8_t *at) noexcept nogil
    void put32 "kopgate_put32"(uint8_t *at, uint32_t value) noexcept nogil
    void put64 "kopgate_put64"(uint8_t *at, uint64_t value) noexcept nogil
    uint32_t get32_little "kopgate_get32_little"(const uint8_t *at) noexcept nogil
    void put32_little "kopgate_put32_little"(uint8_t *at, uint32_t value) noexcept nogil
    bint sum_overflows "kopgate_add"(int64_t left, int64_t right, int64_t *sum) noexcept nogil
    bint difference_overflows "kopgate_subtract"(
        int64_t left, int64_t right, int64_t *difference
    ) noexcept nogil

cdef extern from "<time.h>" nogil:
    ctypedef int64_t time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_THREAD_CPUTIME_ID
    int clock_gettime(int clock, timespec *now)

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *content, Py_ssize_t size) except NULL
    bytes copied "PyBytes_FromStringAndSize"(const char *content, Py_ssize_t size)
    char *PyBytes_AS_STRING(PyObject *content) noexcept nogil
    void Py_DecRef(PyObject *owned)
    int _PyBytes_Resize(PyObject **content, Py_ssize_t size) except -1

kopgate_crc32_init()

cdef enum:
    # For fewer bytes, releasing and reacquiring the GIL can take longer than the call.
    RELEASE_FROM = 32 * 1024

    LOG_OVERHEAD = 12
    CRC_AT = 12
    CRC_FROM = 16
    MAGIC_AT = 16
    ATTRIBUTES_AT = 17
    BATCH_ATTRIBUTES_AT = 22
    BATCH_COUNT_AT = 57
    CODECS = 8
    TIMESTAMP_AT = 18
    SMALLEST_V0 = 14
    SMALLEST_V1 = 22
    CODEC_MASK = 7
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    APPEND_TIME_BIT = 8

    SMALLEST_RECORD = 7
    # Maximum growth of a record: a message's overhead minus the smallest record's.
    GROWTH_V0 = LOG_OVERHEAD + SMALLEST_V0 - SMALLEST_RECORD
    GROWTH_V1 = LOG_OVERHEAD + SMALLEST_V1 - SMALLEST_RECORD
    # Maximum overhead of a record: size, attributes, timestamp, offset, two lengths, header count.
    RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 1

cdef enum Found:
    # Same values as records.errors.Fault, checked below.
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

if [one.value for one in Fault] != [
    TRUNCATED, SIZE, MAGIC, MIXED, CHECKSUM, FIELDS, CODEC, NESTED, COUNT, OFFSET, TIMESTAMP
]:
    raise ImportError(
        "the kernel was compiled for another version of this package: install it again"
    )

include "_messages.pxi"
include "_batches.pxi"
include "_jobs.pxi"
include "_gzip.pxi"
include "_snappy.pxi"

cdef object converted(int fault, PyObject *content, Summary *found):
    """Return the result of a conversion or raise its error. Takes ownership of `content`."""
    if fault:
        Py_DecRef(content)
        raise error_of(fault, found.at)
    _PyBytes_Resize(&content, found.written)
    result = <object>content
    Py_DecRef(content)
    return Converted(
        result, found.count, found.first_offset, found.last_offset, found.max_timestamp
    )


def tally(payloads):
    cdef Py_buffer view
    cdef const uint8_t *data
    cdef int64_t counts[3 * CODECS]
    cdef int64_t records = 0, size = 0
    cdef int number
    for number in range(3 * CODECS):
        counts[number] = 0
    for payload in payloads:
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        data = <const uint8_t *>view.buf
        size += view.len
        if view.len >= LOG_OVERHEAD + SMALLEST_V0:
            if data[MAGIC_AT] == 2 and view.len >= BATCH_OVERHEAD:
                counts[2 * CODECS | data[BATCH_ATTRIBUTES_AT] & CODEC_MASK] += 1
                records += <int32_t>get32(data + BATCH_COUNT_AT)
            elif data[MAGIC_AT] < 2:
                counts[data[MAGIC_AT] * CODECS | data[ATTRIBUTES_AT] & CODEC_MASK] += 1
        PyBuffer_Release(&view)
    return [counts[number] for number in range(3 * CODECS)], records, size


def conversions(payloads, int magic):
    cdef Py_buffer view
    cdef const uint8_t *data
    cdef int stored, attributes
    cdef bint is_readable
    cdef list found = []
    for payload in payloads:
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        data = <const uint8_t *>view.buf
        stored = <int8_t>data[MAGIC_AT] if view.len > MAGIC_AT else -1
        attributes = data[BATCH_ATTRIBUTES_AT] if view.len > BATCH_ATTRIBUTES_AT else 0
        if magic < 2:
            is_readable = stored <= magic
        else:
            is_readable = stored != 0 and stored != 1 and not (
                magic == 2 and stored >= 2 and attributes & CODEC_MASK == ZSTD
            )
        if is_readable:
            found.append(READABLE)
        elif magic < 2 and stored == 2 and attributes & CONTROL_BIT:
            found.append(EMPTY)
        elif stored == 2 and view.len >= BATCH_OVERHEAD:
            found.append(get32(data + BATCH_CRC_AT))
        else:
            found.append(kopgate_crc32(data, view.len))
        PyBuffer_Release(&view)
    return found


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
        found.magic, found.count, found.wrappers, found.largest, found.max_timestamp,
        found.last_offset, found.is_ordinal, found.has_null_key, found.has_append_time,
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
            fault = stamp_all(
                <uint8_t *>view.buf, view.len, base_offset, has_time, timestamp, &found
            )
        else:
            with nogil:
                fault = stamp_all(
                    <uint8_t *>view.buf, view.len, base_offset, has_time, timestamp, &found
                )
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise error_of(fault, found.at)
    return found.count


def down_batch(
    records, int64_t count, int64_t base_offset, int64_t last_delta, int64_t base_timestamp,
    append_time, int magic, bint is_relative
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
        content = PyBytes_FromStringAndSize(
            NULL, view.len + count * (GROWTH_V1 if magic else GROWTH_V0)
        )
        into = <uint8_t *>PyBytes_AS_STRING(content)
        with nogil:
            fault = down_records(
                <const uint8_t *>view.buf, view.len, count, base_offset, last_delta, base_timestamp,
                has_time, timestamp, magic, is_relative, into, &found,
            )
    finally:
        PyBuffer_Release(&view)
    return converted(fault, content, &found)


def use_lz4(unpack: int, pack: int, state_bytes: int):
    """Set the addresses of LZ4_decompress_safe and LZ4_compress_fast_extState, and LZ4_sizeofState.

    Without this call `down_all` and `down_run` do not handle lz4.
    """
    global lz4_unpack, lz4_pack, lz4_state_bytes
    lz4_state_bytes = state_bytes
    lz4_pack = <Pack><uintptr_t>pack
    lz4_unpack = <Unpack><uintptr_t>unpack
    handle(LZ4, lz4_unpack != NULL)


def use_gzip(
    unpack_init: int, unpack: int, unpack_bytes: int, pack_init: int, pack: int, pack_bytes: int
):
    """Set the addresses of isal_inflate_init, isal_inflate_stateless, isal_deflate_stateless_init
    and isal_deflate_stateless, and the sizes of inflate_state and isal_zstream.

    Without this call `down_all` and `down_run` do not handle gzip.
    """
    global gzip_unpack_init, gzip_unpack, gzip_unpack_bytes
    global gzip_pack_init, gzip_pack, gzip_pack_bytes
    gzip_pack_bytes = pack_bytes
    gzip_pack = <Deflate><uintptr_t>pack
    gzip_pack_init = <DeflateInit><uintptr_t>pack_init
    gzip_unpack_bytes = unpack_bytes
    gzip_unpack = <Inflate><uintptr_t>unpack
    gzip_unpack_init = <InflateInit><uintptr_t>unpack_init
    handle(GZIP, gzip_unpack != NULL)


def use_snappy(length: int, unpack: int, pack: int, block_bytes: int):
    """Set the addresses of GetUncompressedLength, RawUncompress and CompressFragment, and
    MaxCompressedLength for XERIAL_BLOCK bytes.

    Without this call `down_all` and `down_run` do not handle snappy.
    """
    global snappy_length, snappy_unpack, snappy_pack, snappy_block_bytes
    snappy_block_bytes = block_bytes
    snappy_pack = <SnappyPack><uintptr_t>pack
    snappy_unpack = <SnappyUnpack><uintptr_t>unpack
    snappy_length = <SnappyLength><uintptr_t>length
    handle(SNAPPY, snappy_length != NULL)


cdef void handle(int codec, bint is_available):
    global handled_codecs
    handled_codecs &= ~(1 << codec)
    handled_codecs |= is_available << codec


def down_all(payloads, int magic, int64_t limit):
    cdef Py_ssize_t count = len(payloads), held = 0, done = 0, taken = 0, at
    cdef list results = []
    cdef Desk desk
    cdef Task *tasks = <Task *>calloc(count + 1, sizeof(Task))
    if tasks == NULL:
        raise MemoryError
    desk = taken_desk()
    try:
        for payload in payloads:
            PyObject_GetBuffer(payload, &tasks[held].view, PyBUF_SIMPLE)
            held += 1
        while done < count:
            with nogil:
                done += convert_some(&desk.on, tasks + done, count - done, magic, limit)
            at = 0
            while taken < done:
                results.append(
                    None
                    if tasks[taken].made < 0
                    else copied(<const char *>desk.on.results.bytes + at, tasks[taken].made)
                )
                at += max(tasks[taken].made, 0)
                taken += 1
    finally:
        while held > 0:
            held -= 1
            PyBuffer_Release(&tasks[held].view)
        free(tasks)
        give_back(desk)
    return results


def down_run(
    payloads, Py_ssize_t batches, int magic, int64_t offset, int64_t max_bytes, bint at_least_one,
    int64_t most_records, int64_t limit, int codecs=-1
):
    cdef Py_ssize_t count = len(payloads), held = 0, number, room = 0, size
    cdef int failed = 0
    cdef PyObject *content
    cdef Desk desk = None
    cdef Places on
    cdef Run run
    cdef Py_buffer *views = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
    if views == NULL:
        raise MemoryError
    memset(&run, 0, sizeof(run))
    run.magic, run.offset, run.max_bytes, run.at_least_one = magic, offset, max_bytes, at_least_one
    run.limit = limit
    run.begun_ms = thread_cpu_ms()
    try:
        for payload in payloads:
            PyObject_GetBuffer(payload, views + held, PyBUF_SIMPLE)
            held += 1
            size = run_room(
                <const uint8_t *>views[held - 1].buf, views[held - 1].len, magic,
                handled_codecs & codecs if limit > 0 else 0, &batches, &most_records,
            )
            if size < 0:
                return None
            room += size
        if batches:
            return None
        desk = taken_desk()
        on = desk.on
        if limit > 0:
            room = min(room, max(max_bytes, 0)) + RUN_SPARE
        memset(&on.results, 0, sizeof(on.results))
        on.results.owner = PyBytes_FromStringAndSize(NULL, room)
        on.results.bytes, on.results.size = <uint8_t *>PyBytes_AS_STRING(on.results.owner), room
        with nogil:
            for number in range(count):
                failed = convert_run(
                    &on, <const uint8_t *>views[number].buf, views[number].len, &run
                )
                if failed or run.is_full or run.is_short:
                    break
    finally:
        while held > 0:
            held -= 1
            PyBuffer_Release(views + held)
        free(views)
        if desk is not None:
            # It keeps its own room for results.
            desk.on.records, desk.on.messages = on.records, on.messages
            desk.on.pack_state = on.pack_state
            desk.on.unpack_state, desk.on.pack_stream = on.unpack_state, on.pack_stream
            give_back(desk)
    content = on.results.owner
    if failed or not on.results.used:
        Py_DecRef(content)
        return None
    _PyBytes_Resize(&content, on.results.used)
    result = <object>content
    Py_DecRef(content)
    return result, (run.batches, run.offsets, run.stored), run.is_short


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


def up_messages(
    messages, int magic, int64_t shift, int64_t base_offset, int64_t base_timestamp, append_time
):
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
            NULL,
            view.len
            + view.len // (LOG_OVERHEAD + SMALLEST_V0)
            * (RECORD_OVERHEAD - LOG_OVERHEAD - SMALLEST_V0),
        )
        into = <uint8_t *>PyBytes_AS_STRING(content)
        with nogil:
            fault = up_newer(
                <const uint8_t *>view.buf, view.len, magic, shift, base_offset, base_timestamp,
                has_time, timestamp, into, &found,
            )
    finally:
        PyBuffer_Release(&view)
    return converted(fault, content, &found)
